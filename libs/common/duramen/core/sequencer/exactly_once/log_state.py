"""The exactly-once part of one log's owner: one object that `log_sequencer` asks and tells.

Before an epoch is used the state is rebuilt, unless this process carried it over from the epoch
before. While the epoch is open, `send_entry` makes entries of the appends that admission lets
through, snapshots go between them, and acknowledgements move the table.

Not here: claims, rolls and recoveries; `log_sequencer` tells of them.
Called by `log_sequencer`. Source: docs/protocol/write.md "Exactly once".
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer.effects import Effect, LogView
from duramen.core.sequencer.exactly_once.admission import Admission
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild
from duramen.core.sequencer.exactly_once.snapshots import Snapshots
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.core.sequencer.ledger_writer import LedgerWriter, SentEntry, WriterState
from duramen.core.sequencer.surroundings import Ports, Surroundings
from duramen.core.sequencer.takeover.early_appends import EarlyAppends
from duramen.core.sequencer.transmit import QueuedAppend, TransmitBuffer
from duramen.ids import EntryId, Epoch, Lsn
from duramen.units import MS


class ExactlyOnce:
    """Producers, conditions and token of one log."""

    def __init__(self, around: Surroundings, ports: Ports, transmit: TransmitBuffer) -> None:
        self.admission = Admission(ports.put, transmit)
        self.early = EarlyAppends(ports.put, transmit)
        self.rebuild: Rebuild | None = None
        self.rebuild_count = 0
        self._around = around
        self._ports = ports
        self._transmit = transmit
        self._snapshots = Snapshots()
        self._table: ProducerTable | None = None
        self._complete_through = 0
        """`_table` holds the state of all epochs up to this one, if it is not None."""
        self._stateless: list[Epoch] = []
        self._has_state = False
        self._is_rebuilt = False
        self._expire_after_us = 0
        self._early_entry_count = 0

    # --- before an epoch -------------------------------------------------------------------------

    def note_recovered(self, epoch: Epoch, *, has_state: bool) -> None:
        """This process closed an epoch by recovery and saw whether it carries state."""
        if not has_state:
            self._stateless.append(epoch)

    def begin_rebuild(self, log: LogNode, now_us: int) -> None:
        """Learn the state up to the log's LCE; `is_ready` says when it is there."""
        if self._table is not None and self._complete_through == log.last_clean_epoch:
            return
        if self.rebuild is not None and self.rebuild.fits(log):
            return
        self._table = None
        self.rebuild = Rebuild(log, self._stateless, self._around.unix_ms(now_us), self._ports)
        self.rebuild.start()
        self._follow_rebuild()

    @property
    def is_ready(self) -> bool:
        """The state up to the last closed epoch is known."""
        return self._table is not None

    def on_segment(self, token: int, segment: Segment | None, now_us: int) -> None:
        """A segment node was read for a rebuild."""
        if self.rebuild is not None:
            self.rebuild.on_segment(token, segment, now_us)
            self._follow_rebuild()

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries were read for a rebuild."""
        if self.rebuild is not None:
            self.rebuild.on_history(token, entries, now_us)
            self._follow_rebuild()

    def _follow_rebuild(self) -> None:
        if self.rebuild is not None and self.rebuild.is_done:
            self._table = self.rebuild.table
            count = self.rebuild.entry_count + self._early_entry_count
            self._snapshots.begin(replayed_count=count)
            self.rebuild_count += self.rebuild.entry_count > 0
            self._is_rebuilt = True
            self.rebuild = None

    def begin_early(self) -> None:
        """An epoch is open, and nothing is known of the ones before: nothing can be judged."""
        self._has_state = False
        self._early_entry_count = 0

    def begin(self, log: LogNode) -> None:
        """An epoch is open and appends may be judged."""
        assert self._table is not None
        self.early.give_back()
        self._early_entry_count = 0
        self._table.keep(log.config.producers.results_kept)
        self._expire_after_us = log.config.producers.expire_after
        self._has_state = False
        self._stateless.clear()
        if not self._is_rebuilt:
            self._snapshots.begin(replayed_count=None)
        self._is_rebuilt = False
        self.admission.begin(self._table)

    # --- an open epoch ---------------------------------------------------------------------------

    def find_fault(
        self, append: QueuedAppend, writer: LedgerWriter | None, view: LogView | None
    ) -> str | None:
        """Why the log's window has no room for another append, or None."""
        held_bytes = self.admission.held_bytes + self.early.held_bytes
        if writer is not None:
            held_bytes += writer.window_bytes
            if not writer.has_room_for_owed():
                return "a bookie is owed more than may be kept for it"
        window = None if view is None else view.log.config.window
        return self._transmit.find_fault(
            append, window, held_bytes=held_bytes, held_count=self.held_count
        )

    @property
    def held_count(self) -> int:
        """Appends that were taken from the queue and go into no entry for now."""
        return self.admission.held_count + self.early.held_count

    def send_early(self, writer: LedgerWriter, now_us: int) -> None:
        """Make the next entry of what needs nothing of the older epochs."""
        appends = self.early.take()
        if appends:
            before = writer.totals
            batches = [append.batch for append in appends]
            own = _totals_of(appends, batches)
            self._early_entry_count += 1
            entry = self._push(writer, batches, own, now_us, is_control=False)
            self._transmit.place(entry, appends, before)

    def send_entry(self, writer: LedgerWriter, view: LogView, now_us: int) -> None:
        """Make the next entry of what waits and is admitted."""
        unix_ms = self._around.unix_ms(now_us)
        closed = view.log.totals
        appends = self.admission.take(writer, closed, now_us=now_us, unix_ms=unix_ms)
        if not appends:
            return
        self._has_state = self._has_state or self.admission.has_taken_state()
        is_control = appends[0].command is not None
        before = writer.totals
        batches = [append.batch for append in appends]
        own = _totals_of(appends, batches)
        entry = self._push(writer, batches, own, now_us, is_control=is_control)
        self._transmit.place(entry, appends, before)
        self.admission.on_sent(entry)
        if self._snapshots.is_due(self.admission.table):
            self._send_snapshot(writer, now_us)

    def send_lac(self, writer: LedgerWriter, now_us: int) -> None:
        """An entry without records, which carries the LAC (`commit: control`)."""
        self._push(writer, (), Totals(), now_us, is_control=True)

    def end_segment(self, writer: LedgerWriter, now_us: int) -> None:
        """The segment is about to be closed: what the next owner must know goes into it."""
        is_wanted = self._snapshots.is_wanted_at_end(self.admission.table, writer.lap)
        if is_wanted and writer.state in (WriterState.OPEN, WriterState.CHANGING):
            self._send_snapshot(writer, now_us)

    def _send_snapshot(self, writer: LedgerWriter, now_us: int) -> None:
        table = self.admission.table
        before_ms = self._around.unix_ms(now_us) - self._expire_after_us // MS
        table.forget_unused(before_ms, self.admission.in_flight)
        if table.is_empty:
            return
        self._has_state = True
        parts = self._snapshots.cut(table, writer.segment.epoch, writer.lac)
        for part in parts:
            record = self._around.spell_control(part)
            self._push(writer, [record], Totals(0, len(record)), now_us, is_control=True)
        self._snapshots.on_sent(parts[0].through, writer.lap)

    def _push(
        self,
        writer: LedgerWriter,
        batches: Sequence[bytes],
        own: Totals,
        now_us: int,
        *,
        is_control: bool,
    ) -> EntryId:
        before = writer.totals
        after = before.plus(own)
        payload = self._around.encode_entry(
            writer.segment.ledger_id,
            EntryId(writer.lap + 1),
            before,
            batches,
            own.record_count,
            after,
            is_control=is_control,
            has_state=self._has_state,
        )
        self._snapshots.note_entry(len(payload))
        return writer.add(payload, after, now_us)

    def acknowledge(
        self, writer: LedgerWriter, view: LogView, entries: Sequence[SentEntry], now_us: int
    ) -> None:
        """Entries are acknowledged, in their order: answer their appends.

        While the epoch before is not closed nobody knows sequence numbers, and all that was sent
        was plain.
        """
        epoch = writer.segment.epoch
        if view.log.last_clean_epoch < epoch - 1:
            for entry in entries:
                self._put_all(self._transmit.complete_early(epoch, entry.entry))
            return
        unix_ms = self._around.unix_ms(now_us)
        start_seq_num = view.log.totals.record_count
        for entry in entries:
            self._put_all(self._transmit.complete(epoch, entry.entry, start_seq_num))
        for entry in entries:
            self.admission.on_acknowledged(epoch, entry.entry, start_seq_num, unix_ms)
        self._snapshots.on_acknowledged(writer.lac)

    def _put_all(self, answers: Sequence[Effect]) -> None:
        for answer in answers:
            self._ports.put(answer)

    # --- the end of an epoch ---------------------------------------------------------------------

    def snapshot_at_close(self, epoch: Epoch) -> Lsn | None:
        """What the closing `multi()` writes as the LSN of the last snapshot; None: no change."""
        return self._snapshots.at_close(self.admission.table, epoch)

    def on_closed(self, epoch: Epoch) -> None:
        """The closing `multi()` is in force: what is known is complete through this epoch."""
        self._complete_through = epoch

    def abandon(self, reason: str) -> None:
        """The epoch is lost, or the log is given up: the state is to be rebuilt."""
        self.early.give_back()
        self.admission.abandon(reason)
        self._table = None
        self.rebuild = None

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next for a rebuild."""
        return None if self.rebuild is None else self.rebuild.wakeup_at_us()

    def on_timer(self, now_us: int, code: str, detail: str, *, is_vain: bool = False) -> None:
        """Deadlines of what waits here, and reads that failed."""
        self.admission.expire(now_us, code, detail, is_vain=is_vain)
        self.early.expire(now_us, "log_unavailable", "older epochs are still being recovered")
        if self.rebuild is not None:
            self.rebuild.on_timer(now_us)
            self._follow_rebuild()

    @property
    def fencing_token(self) -> str:
        """The log's token as far as it is known now; empty: none is set."""
        return self.admission.table.token

    def statistics(self) -> dict[str, object]:
        """For the admin API."""
        table = self.admission.table
        return {
            "producers": table.producer_count,
            "has_fencing_token": bool(table.token),
            "unproved_count": self.admission.held_count,
            "waiting_for_recovery_count": self.early.held_count,
            "snapshots": self._snapshots.written_count,
            "rebuilds": self.rebuild_count,
        }

    def validate(self) -> None:
        """Assert the invariants of the parts."""
        self.admission.validate()
        self.early.validate()
        assert self.rebuild is None or self._table is None, f"rebuild of what is known: {self}"

    def __repr__(self) -> str:
        return repr(self.rebuild or self.admission)


def _totals_of(appends: Sequence[QueuedAppend], batches: Sequence[bytes]) -> Totals:
    txids = [append.max_txid for append in appends if append.max_txid is not None]
    times = [append.max_timestamp_ms for append in appends if append.record_count]
    return Totals(
        sum(append.record_count for append in appends),
        sum(map(len, batches)),
        max(txids) if txids else None,
        max(times) if times else None,
    )
