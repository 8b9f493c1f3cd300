"""The way of a log's appends: window, admission, numbering, exactly-once, answer.

    push → queue ─┬→ admission ──→ entry → writer → acknowledge → answer with LSN and number
                  ├→ early (older epochs are open: only what nobody must judge goes ahead)
                  ├→ stalled (sent, and its epoch given to recovery: the closed segment decides)
                  └→ deadline, or the log is lost: refused, uncertain, or given back to be routed
Admission judges each append when it leaves the queue. What it lets through becomes an entry, which
is numbered from the writer's totals. Snapshots of the producers go between the entries.

Of an append the `TransmitBuffer` knows where it is; this is the buffer's one owner. What admission
and early appends hold for a while comes back to the queue through here.
Not here: claims, recoveries and rolls; `log_sequencer` tells of them.
Called by `log_sequencer`. Source: docs/protocol/write.md "An append, step by step".
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.config import Flush
from duramen.core.log_node import LogNode
from duramen.core.segment import Totals
from duramen.core.sequencer.context import Ports, SequencerContext
from duramen.core.sequencer.effects import Effect, LogView
from duramen.core.sequencer.epoch.segment_writer import AcknowledgedEntry, SegmentWriter
from duramen.core.sequencer.exactly_once.admission import Admission
from duramen.core.sequencer.exactly_once.carried_state import CarriedState
from duramen.core.sequencer.exactly_once.snapshots import Snapshots
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.takeover.early_appends import EarlyAppends
from duramen.core.sequencer.takeover.stalled_appends import StalledAppends
from duramen.core.sequencer.transmit import QueuedAppend, TransmitBuffer
from duramen.ids import EntryId, Epoch, Lsn
from duramen.units import MS


class AppendPipeline:
    """The appends of one log.

    Attributes:
        carried: what is known of producers and token from the epochs before.
    """

    def __init__(self, context: SequencerContext, ports: Ports) -> None:
        self.carried = CarriedState(ports, context.unix_ms)
        self.admission = Admission(ports.put)
        self.early = EarlyAppends(ports.put)
        self.stalled = StalledAppends(ports)
        self._context = context
        self._put = ports.put
        self._transmit = TransmitBuffer()
        self._snapshots = Snapshots()
        self._has_state = False
        """The open segment carries producers or control records by now."""
        self._expire_after_us = 0
        self._early_entry_count = 0

    # --- the queue -------------------------------------------------------------------------------

    @property
    def queued_count(self) -> int:
        """Appends that wait to become part of an entry."""
        return len(self._transmit.queue)

    @property
    def held_count(self) -> int:
        """Appends that were taken from the queue and go into no entry for now."""
        return self.admission.held_count + self.early.held_count + self.stalled.held_count

    @property
    def is_empty(self) -> bool:
        """Nothing is queued and nothing waits for its acknowledgement."""
        return self._transmit.is_empty and not self.stalled.held_count

    @property
    def fencing_token(self) -> str:
        """The log's token as far as it is known now; empty: none is set."""
        return self.admission.table.token

    def find_fault(
        self, append: QueuedAppend, writer: SegmentWriter | None, view: LogView | None
    ) -> str | None:
        """Why the log's window has no room for another append, or None."""
        held_bytes = self.admission.held_bytes + self.early.held_bytes + self.stalled.held_bytes
        if writer is not None:
            held_bytes += writer.window_bytes
            if not writer.has_room_for_owed():
                return "a bookie is owed more than may be kept for it"
        window = None if view is None else view.log.config.window
        return self._transmit.find_fault(
            append, window, held_bytes=held_bytes, held_count=self.held_count
        )

    def push(self, append: QueuedAppend, now_us: int) -> None:
        """Queue an append."""
        self._transmit.push(append, now_us)

    def due_us(self, writer: SegmentWriter, flush: Flush) -> int | None:
        """When the next entry is to be made; None while nothing waits or nothing may be sent."""
        is_possible = self._transmit.queue and writer.has_room
        return self._transmit.due_us(flush) if is_possible else None

    # --- an open epoch ---------------------------------------------------------------------------

    def begin_early(self) -> None:
        """An epoch is open, and nothing is known of the ones before: nothing can be judged."""
        self._has_state = False
        self._early_entry_count = 0

    def begin(self, log: LogNode) -> None:
        """An epoch is open and appends may be judged: the state of those before is known."""
        table, replayed_count = self.carried.hand_over(log)
        self._transmit.push_back(self.early.give_back())
        self._transmit.push_back(self.stalled.give_back())
        if replayed_count is not None:
            replayed_count += self._early_entry_count
        self._early_entry_count = 0
        self._expire_after_us = log.config.producers.expire_after
        self._has_state = False
        self._snapshots.begin(replayed_count=replayed_count)
        self.admission.begin(table)

    def send_due(self, writer: SegmentWriter, log: LogNode, now_us: int, *, is_early: bool) -> None:
        """Make entries of what is due, as far as the writer has room; then one for the LAC alone.

        Args:
            is_early: older epochs are still being recovered.
        """
        flush = log.config.flush
        while (due_us := self.due_us(writer, flush)) is not None and due_us <= now_us:
            if is_early:
                self._send_early(writer, log, now_us)
            else:
                self._send_entry(writer, log, now_us)
        if writer.wants_control and writer.has_room:
            self._add(writer, (), Totals(), now_us, is_control=True)

    def _send_early(self, writer: SegmentWriter, log: LogNode, now_us: int) -> None:
        """Make the next entry of what needs nothing of the older epochs."""
        appends = self._transmit.take(self.early.admit)
        if appends:
            self._early_entry_count += 1
            self._add_entry(writer, log, appends, now_us, is_control=False)

    def _send_entry(self, writer: SegmentWriter, log: LogNode, now_us: int) -> None:
        """Make the next entry of what waits and is admitted."""
        unix_ms = self._context.unix_ms(now_us)
        draw = self._transmit.take
        appends = self.admission.take(
            draw, writer, log.totals, log.config.ack_mode, now_us=now_us, unix_ms=unix_ms
        )
        if not appends:
            return
        self._has_state = self._has_state or self.admission.has_taken_state()
        is_control = appends[0].command is not None
        entry = self._add_entry(writer, log, appends, now_us, is_control=is_control)
        self.admission.on_sent(entry)
        if self._snapshots.is_due(self.admission.table):
            self._send_snapshot(writer, now_us)

    def end_segment(self, writer: SegmentWriter, now_us: int) -> None:
        """The segment is about to be closed: what the next owner must know goes into it."""
        is_wanted = self._snapshots.is_wanted_at_end(self.admission.table, writer.lap)
        if is_wanted and writer.state in (WriterState.OPEN, WriterState.CHANGING):
            self._send_snapshot(writer, now_us)

    def may_change_mode(self, wanted_mode: str, now_us: int) -> bool:
        """Whether the next epoch may acknowledge as the configuration wants it (R29)."""
        if wanted_mode == "ordered":
            return True
        self._forget_unused(now_us)
        return self.admission.is_stateless

    def list_state(self, now_us: int) -> list[str]:
        """What the next owner would have to know, for people: a token, producers by name."""
        self._forget_unused(now_us)
        return self.admission.list_state()

    def _forget_unused(self, now_us: int) -> None:
        before_ms = self._context.unix_ms(now_us) - self._expire_after_us // MS
        self.admission.table.forget_unused(before_ms, self.admission.in_flight)

    def _send_snapshot(self, writer: SegmentWriter, now_us: int) -> None:
        table = self.admission.table
        self._forget_unused(now_us)
        if table.is_empty:
            return
        self._has_state = True
        parts = self._snapshots.cut(table, writer.segment.epoch, writer.lac)
        for part in parts:
            record = self._context.encode_control(part)
            self._add(writer, [record], Totals(0, len(record)), now_us, is_control=True)
        self._snapshots.on_sent(parts[0].through, writer.lap)

    def _add_entry(
        self,
        writer: SegmentWriter,
        log: LogNode,
        appends: list[QueuedAppend],
        now_us: int,
        *,
        is_control: bool,
    ) -> EntryId:
        """An entry of these appends, of which the buffer notes where they lie in it."""
        before = writer.totals
        batches = [append.batch for append in appends]
        own = _totals_of(appends, batches)
        is_compressing = log.config.compression == "zstd" and not is_control
        entry = self._add(
            writer, batches, own, now_us, is_control=is_control, is_compressing=is_compressing
        )
        self._transmit.place(entry, appends, before)
        return entry

    def _add(
        self,
        writer: SegmentWriter,
        batches: Sequence[bytes],
        own: Totals,
        now_us: int,
        *,
        is_control: bool,
        is_compressing: bool = False,
    ) -> EntryId:
        before = writer.totals
        after = before.plus(own)
        payload = self._context.encode_entry(
            writer.segment.ledger_id,
            EntryId(writer.lap + 1),
            before,
            batches,
            own.record_count,
            after,
            is_control=is_control,
            has_state=self._has_state,
            is_compressing=is_compressing,
        )
        # Whoever replays a compressed entry has all of its batches in hand.
        self._snapshots.note_entry(max(len(payload), own.length_bytes))
        return writer.add(payload, after, now_us)

    def acknowledge(
        self,
        writer: SegmentWriter,
        log: LogNode,
        entries: Sequence[AcknowledgedEntry],
        now_us: int,
    ) -> None:
        """Entries are acknowledged, in their order: answer their appends.

        While the epoch before is not closed nobody knows sequence numbers, and all that was sent
        was plain.
        """
        epoch = writer.segment.epoch
        if log.last_clean_epoch < epoch - 1:
            for entry in entries:
                self._put_all(self._transmit.complete_early(epoch, entry.entry))
            return
        unix_ms = self._context.unix_ms(now_us)
        start_seq_num = log.totals.record_count
        for entry in entries:
            self._put_all(self._transmit.complete(epoch, entry.entry, start_seq_num))
        for entry in entries:
            self.admission.on_acknowledged(epoch, entry.entry, start_seq_num, unix_ms)
        self._snapshots.on_acknowledged(writer.lac)

    # --- the end of an epoch, or of the log here -------------------------------------------------

    def requeue_refusals(self) -> None:
        """Nothing may be answered in this epoch any more: what waits for a proof is judged anew."""
        self._transmit.push_back(self.admission.give_back())

    def snapshot_at_close(self, epoch: Epoch) -> Lsn | None:
        """What the closing `multi()` writes as the LSN of the last snapshot; None: no change."""
        return self._snapshots.at_close(self.admission.table, epoch)

    def abandon(self, reason: str) -> None:
        """The epoch is lost, or the log is given up: what was sent is uncertain (R9), the state of
        producers and token is to be read anew, and the rest is queued as it came.
        """
        self._put_all(self._transmit.fail_sent(reason))
        self._forget_epoch(reason)
        self.stalled.abandon(reason)
        self._transmit.push_back(self.stalled.give_back())

    def _forget_epoch(self, reason: str) -> None:
        self._transmit.push_back(self.early.give_back())
        self._transmit.push_back(self.admission.abandon(reason))
        self.carried.forget()

    def park(self, epoch: Epoch, reason: str) -> None:
        """We let our epoch be recovered, and take the log over by ourselves: the closed segment
        tells what became of what was sent (R28); the rest as for `abandon`.
        """
        self.stalled.park(epoch, self._transmit.take_sent())
        self._forget_epoch(reason)

    def fail_queued(self, code: str, detail: str) -> None:
        """Answer everything that was never sent with an error."""
        self._put_all(self._transmit.fail_queued(code, detail))

    def yield_queued(self) -> None:
        """Give everything that was never sent back for another owner."""
        self._put_all(self._transmit.yield_queued())

    # --- time ------------------------------------------------------------------------------------

    def on_timer(self, now_us: int, code: str, detail: str, *, is_vain: bool) -> None:
        """Answer what waited past its deadline, or in vain, and read again what could not be.

        Args:
            code, detail: for what was never sent.
            is_vain: all waits in vain, as `detail` says, and is answered at once.
        """
        self._put_all(self._transmit.expire(now_us, code, detail, is_vain=is_vain))
        self.admission.expire(now_us, code, detail, is_vain=is_vain)
        self.early.expire(now_us, "log_unavailable", "older epochs are still being recovered")
        self.stalled.expire(now_us)
        self.carried.on_timer(now_us)

    def _put_all(self, answers: Sequence[Effect]) -> None:
        for answer in answers:
            self._put(answer)

    def queue_statistics(self) -> dict[str, object]:
        """What waits, for the admin API."""
        return {
            "queued_count": self.queued_count,
            "queued_bytes": self._transmit.queued_bytes,
        }

    def statistics(self) -> dict[str, object]:
        """Of producers, token and what waits for a proof, for the admin API."""
        table = self.admission.table
        return {
            "producers": table.producer_count,
            "has_fencing_token": bool(table.token),
            "unproved_count": self.admission.held_count,
            "waiting_for_recovery_count": self.early.held_count,
            "snapshots": self._snapshots.written_count,
            "rebuilds": self.carried.rebuild_count,
        }

    def validate(self) -> None:
        """Assert the invariants of the parts."""
        for part in (self._transmit, self.admission, self.early, self.stalled, self.carried):
            part.validate()

    def __repr__(self) -> str:
        return repr(self._transmit)


def _totals_of(appends: Sequence[QueuedAppend], batches: Sequence[bytes]) -> Totals:
    txids = [append.max_txid for append in appends if append.max_txid is not None]
    times = [append.max_timestamp_ms for append in appends if append.record_count]
    return Totals(
        sum(append.record_count for append in appends),
        sum(map(len, batches)),
        max(txids) if txids else None,
        max(times) if times else None,
    )
