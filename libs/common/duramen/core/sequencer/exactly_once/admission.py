"""Admission of appends: duplicates, gaps, conditions, the fencing token, and proofs of refusals.

Every append is judged when it leaves the queue for an entry, against the log's content and against
what this process has sent, in one order with all others. A fresh append goes on. A duplicate gets
the stored answer, or waits for the append that it repeats. A refusal is answered only when all that
it rests on is acknowledged and an ack round that began after the append's arrival succeeded in the
open epoch: so no zombie can refuse. If the epoch is lost before that, the append is judged anew.

Invariants (see `validate`):
 1 what is in flight of a producer is consecutive and ends with the last sequence admitted.
 2 every batch in flight is placed in one entry that is not acknowledged.
 3 the table is what the log's acknowledged part says.
Called by `append_pipeline`. Source: docs/protocol/write.md "Exactly once" and "Refusals",
docs/protocol/errors.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from duramen.core.segment import Totals
from duramen.core.sequencer.effects import (
    Complete,
    Effect,
    Expected,
    Fail,
    OldDuplicate,
    TailMark,
)
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.exactly_once.modes import Modes
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.stamps import Result, Stamp
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.ids import Dlsn, EntryId, Epoch

Draw = Callable[[Callable[[QueuedAppend], bool]], list[QueuedAppend]]


@dataclass(slots=True)
class _PlacedBatch:
    """A batch of a producer, or a new token, in an entry that is not acknowledged."""

    append: QueuedAppend
    slot: int
    position: int
    joined: list[QueuedAppend] = field(default_factory=list)


@dataclass(slots=True)
class _Ahead:
    """What is in flight of one producer in its newest epoch."""

    epoch: int
    last: int
    in_flight: dict[int, _PlacedBatch]


@dataclass(slots=True)
class _Refusal:
    append: QueuedAppend
    fail: Fail
    lap_before: EntryId
    """The last entry that was sent before the refusal: a later one is a proof when acknowledged."""
    judged_on: EntryId
    round_id: int | None = None


@dataclass(slots=True)
class _Place:
    """Where the next record of the entry that is being made will lie."""

    epoch: Epoch
    entry: EntryId
    slot: int
    position: int
    seq_num: int
    max_txid: int | None
    timestamp_ms: int

    def tail(self) -> TailMark:
        return TailMark(Dlsn(self.epoch, self.entry, self.slot), self.seq_num, self.timestamp_ms)

    def advance(self, append: QueuedAppend) -> None:
        self.slot += append.record_count
        self.position += append.record_count
        self.seq_num += append.record_count
        if append.max_txid is not None:
            self.max_txid = max(self.max_txid or 0, append.max_txid)
        self.timestamp_ms = max(self.timestamp_ms, append.max_timestamp_ms)


class Admission:
    """Judgement of one log's appends.

    Args:
        put: takes the answers.
    """

    def __init__(self, put: Callable[[Effect], None]) -> None:
        self.table = ProducerTable(1)
        self._put = put
        self._token = ""
        self._ahead: dict[str, _Ahead] = {}
        self._taken: list[_PlacedBatch] = []
        self._placed: dict[EntryId, list[_PlacedBatch]] = {}
        self._refusals: list[_Refusal] = []
        self._held_bytes = 0
        self._joined_count = 0

    @property
    def held_count(self) -> int:
        """Appends that wait here: refusals for their proof, duplicates for what they repeat."""
        return len(self._refusals) + self._joined_count

    @property
    def held_bytes(self) -> int:
        """Batches of what waits here."""
        return self._held_bytes

    @property
    def in_flight(self) -> dict[str, _Ahead]:
        """Producers with batches that are not acknowledged."""
        return self._ahead

    def begin(self, table: ProducerTable) -> None:
        """An epoch is open, and `table` is complete through the one before."""
        assert not self._ahead and not self._placed and not self._refusals, self
        self.table = table
        self._token = table.token

    # --- judgement -------------------------------------------------------------------------------

    def take(
        self,
        draw: Draw,
        writer: SegmentWriter,
        closed: Totals,
        wanted_mode: str,
        *,
        now_us: int,
        unix_ms: int,
    ) -> list[QueuedAppend]:
        """What of the queue goes into the next entry; the rest of what is drawn is dealt with.

        Args:
            draw: takes appends from the queue, and gives those that its argument admits.
            closed: totals of the log before the writer's segment.
            wanted_mode: the `ack_mode` of the log's configuration.
        """
        modes = Modes(writer.segment.ack_mode, wanted_mode)
        before = writer.totals
        place = _Place(
            writer.segment.epoch,
            EntryId(writer.lap + 1),
            0,
            before.record_count,
            closed.record_count + before.record_count,
            closed.plus(before).max_txid,
            closed.plus(before).max_timestamp_ms or 0,
        )
        first = len(self._refusals)

        def admit(append: QueuedAppend) -> bool:
            is_fresh = append.is_plain or self._judge(append, place, modes, writer, unix_ms)
            if is_fresh:
                place.advance(append)
            return is_fresh

        taken = draw(admit)
        if not taken:
            for refusal in self._refusals[first:]:
                refusal.judged_on = writer.lap
                refusal.round_id = writer.ask_round(now_us)
            self.settle(writer)
        return taken

    @property
    def is_stateless(self) -> bool:
        """There is nothing that the next owner would have to know, nor will there be soon."""
        return self.table.is_empty and not (self._ahead or self._token)

    def list_state(self) -> list[str]:
        """What there is of it, for people."""
        names = dict.fromkeys([*(row.producer_id for row in self.table.list_rows()), *self._ahead])
        tokens = ["a fencing token"] if self._token or self.table.token else []
        return [*tokens, *(f"producer {name}" for name in names)]

    def on_sent(self, entry: EntryId) -> None:
        """What was taken last is in this entry."""
        if self._taken:
            self._placed[entry] = self._taken
            self._taken = []

    def has_taken_state(self) -> bool:
        """Whether what was taken last carries producers or a command."""
        return bool(self._taken)

    def _judge(
        self,
        append: QueuedAppend,
        place: _Place,
        modes: Modes,
        writer: SegmentWriter,
        unix_ms: int,
    ) -> bool:
        if append.stamp is not None and self._answer_duplicate(append, append.stamp):
            return False
        refusal = modes.find_refusal(
            append, has_token=bool(self._token), knows_producer=self._knows(append.stamp)
        )
        if refusal is not None:
            # Nothing of it rests on what the log holds, so nothing has to be proved.
            self._put(refusal)
            return False
        fail = self._find_fault(append, place, unix_ms)
        if fail is None:
            placed = _PlacedBatch(append, place.slot, place.position)
            if append.stamp is not None:
                self._note_ahead(append.stamp, placed)
            if append.command is not None:
                self._token = append.command.token
            if append.stamp is not None or append.command is not None:
                self._taken.append(placed)
            return True
        if fail.code in ("window_full", "overloaded"):
            # Worth a retry whoever owns the log: nothing has to be proved.
            self._put(fail)
        else:
            self._refusals.append(_Refusal(append, fail, writer.lap, place.entry))
            self._held_bytes += len(append.batch)
        return False

    def _knows(self, stamp: Stamp | None) -> bool:
        """Whether it is of a producer that the log has, or is about to have."""
        if stamp is None:
            return False
        name = stamp.producer_id
        return name in self._ahead or self.table.last_of(name) is not None

    def _answer_duplicate(self, append: QueuedAppend, stamp: Stamp) -> bool:
        ahead = self._ahead.get(stamp.producer_id)
        known = self.table.last_of(stamp.producer_id)
        if ahead is not None and ahead.epoch == stamp.epoch:
            placed = ahead.in_flight.get(stamp.sequence)
            if placed is not None:
                placed.joined.append(append)
                self._joined_count += 1
                self._held_bytes += len(append.batch)
                return True
        elif ahead is not None and ahead.epoch > stamp.epoch:
            return False
        if known is None or known[0] != stamp.epoch or stamp.sequence > known[1]:
            return False
        if self.table.is_lost(stamp):
            return False
        result = self.table.result_of(stamp)
        if result is None:
            self._put(OldDuplicate(append.append_id))
        else:
            self._put(_complete(append.append_id, result, is_duplicate=True))
        return True

    def _find_fault(self, append: QueuedAppend, place: _Place, unix_ms: int) -> Fail | None:
        def refuse(
            code: str, detail: str, named: str, *, seq_num: int | None = None,
            producer_seq: int | None = None,
        ) -> Fail:  # fmt: skip
            expected = Expected(place.tail(), seq_num, producer_seq)
            return Fail(append.append_id, code, detail, named, expected)

        if append.stamp is not None and self.table.is_lost(append.stamp):
            ahead = self._ahead.get(append.stamp.producer_id)
            if ahead is None or ahead.epoch == append.stamp.epoch:
                return refuse("data_lost", _format_lost(append.stamp), "producer")
        token = append.fencing_token
        if append.command is not None:
            token = append.command.expected
        if token is not None and token != self._token:
            return refuse(
                "fencing_token_mismatch", "the log's fencing token is another one", "fencing_token"
            )
        if append.match_seq_num is not None and append.match_seq_num != place.seq_num:
            return refuse(
                "condition_failed",
                f"the next record gets sequence number {place.seq_num}, not {append.match_seq_num}",
                "match_seq_num",
                seq_num=place.seq_num,
            )
        if append.min_txid is not None and append.min_txid < (place.max_txid or 0):
            return refuse(
                "condition_failed",
                f"txid {append.min_txid} is below {place.max_txid}, the greatest of the log",
                "txid",
            )
        if append.stamp is None:
            return None
        found = self._find_producer_fault(append.stamp, unix_ms)
        if found is None:
            return None
        code, detail, producer_seq = found
        if code in ("window_full", "overloaded"):
            return Fail(append.append_id, code, detail)
        return refuse(code, detail, "producer", producer_seq=producer_seq)

    def _find_producer_fault(
        self, stamp: Stamp, unix_ms: int
    ) -> tuple[str, str, int | None] | None:
        """Code, detail and the sequence that would be right; None: the batch is the next one."""
        name, epoch, sequence = stamp
        ahead = self._ahead.get(name)
        known = (ahead.epoch, ahead.last) if ahead is not None else self.table.last_of(name)
        if known is None:
            if sequence:
                detail = f"producer {name} is not known (any more): begin anew with another id"
                return "producer_unknown", detail, 0
            if not self.table.make_room(unix_ms, self._ahead):
                return "overloaded", "the log has too many producers at once", None
            return None
        if epoch < known[0]:
            detail = f"producer {name} is in epoch {known[0]}: another instance has taken over"
            return "producer_fenced", detail, None
        expected = known[1] + 1 if epoch == known[0] else 0
        if sequence != expected:
            detail = f"producer {name}: batch {expected} of epoch {epoch} is next, not {sequence}"
            return "producer_gap", detail, expected
        if ahead is not None and len(ahead.in_flight) >= self.table.results_kept:
            detail = f"{len(ahead.in_flight)} batches of producer {name} are in flight already"
            return "window_full", detail, None
        return None

    def _note_ahead(self, stamp: Stamp, placed: _PlacedBatch) -> None:
        ahead = self._ahead.get(stamp.producer_id)
        if ahead is None or ahead.epoch != stamp.epoch:
            ahead = _Ahead(stamp.epoch, stamp.sequence, {})
            self._ahead[stamp.producer_id] = ahead
        ahead.last = stamp.sequence
        ahead.in_flight[stamp.sequence] = placed

    # --- what becomes of it ----------------------------------------------------------------------

    def on_acknowledged(
        self, epoch: Epoch, entry: EntryId, start_seq_num: int, unix_ms: int
    ) -> None:
        """The entry is acknowledged: its results are kept, and duplicates of them answered."""
        for placed in self._placed.pop(entry, ()):
            append = placed.append
            if append.command is not None:
                self.table.token = append.command.token
                continue
            assert append.stamp is not None
            result = Result(
                Dlsn(epoch, entry, placed.slot),
                start_seq_num + placed.position,
                append.record_count,
                append.max_timestamp_ms,
            )
            self.table.apply(append.stamp, result, unix_ms)
            self._land(append.stamp)
            for duplicate in placed.joined:
                self._put(_complete(duplicate.append_id, result, is_duplicate=True))
                self._drop_joined(duplicate)

    def _land(self, stamp: Stamp) -> None:
        ahead = self._ahead.get(stamp.producer_id)
        if ahead is not None and ahead.epoch == stamp.epoch:
            del ahead.in_flight[stamp.sequence]
            if not ahead.in_flight:
                del self._ahead[stamp.producer_id]

    def settle(self, writer: SegmentWriter) -> None:
        """Answer the refusals that are proved; none while an ensemble must be changed (R6)."""
        if not self._refusals or writer.state is not WriterState.OPEN:
            return
        waiting = []
        for refusal in self._refusals:
            is_unsealed = writer.lac > refusal.lap_before or (
                refusal.round_id is not None and writer.round_done >= refusal.round_id
            )
            if is_unsealed and writer.lac >= refusal.judged_on:
                self._put(refusal.fail)
                self._held_bytes -= len(refusal.append.batch)
            else:
                waiting.append(refusal)
        self._refusals = waiting

    def expire(self, now_us: int, code: str, detail: str, *, is_vain: bool = False) -> None:
        """Answer what waited past its deadline, or in vain; a duplicate shares the open fate."""

        def is_over(append: QueuedAppend) -> bool:
            return is_vain or append.deadline_us <= now_us

        late = [refusal for refusal in self._refusals if is_over(refusal.append)]
        for refusal in late:
            self._put(Fail(refusal.append.append_id, code, detail))
            self._held_bytes -= len(refusal.append.batch)
        if late:
            self._refusals = [r for r in self._refusals if not is_over(r.append)]
        if not self._joined_count:
            return
        for entry in self._placed.values():
            for placed in entry:
                for append in [a for a in placed.joined if is_over(a)]:
                    why = detail if is_vain else "what it repeats was not acknowledged in time"
                    self._put(_uncertain(append, why))
                    placed.joined.remove(append)
                    self._drop_joined(append)

    def give_back(self) -> list[QueuedAppend]:
        """Nothing may be answered in this epoch any more: refusals are judged anew, elsewhere.

        Returns:
            What is to be queued again, in its order.
        """
        appends = [refusal.append for refusal in self._refusals]
        self._held_bytes -= sum(len(append.batch) for append in appends)
        self._refusals.clear()
        return appends

    def abandon(self, reason: str) -> list[QueuedAppend]:
        """The epoch is lost: duplicates share the fate of what was sent, refusals go back."""
        appends = self.give_back()
        for entry in self._placed.values():
            for placed in entry:
                for append in placed.joined:
                    self._put(_uncertain(append, reason))
                    self._drop_joined(append)
        self._placed.clear()
        self._ahead.clear()
        self._token = self.table.token
        return appends

    def _drop_joined(self, append: QueuedAppend) -> None:
        self._joined_count -= 1
        self._held_bytes -= len(append.batch)

    def validate(self) -> None:
        """Assert invariants 1 and 2, and the table's."""
        flying = 0
        for name, ahead in self._ahead.items():
            sequences = list(ahead.in_flight)
            first = ahead.last - len(sequences) + 1
            assert sequences == list(range(first, ahead.last + 1)), f"1: {name} {ahead}"
            flying += len(sequences)
        stamped = sum(p.append.stamp is not None for e in self._placed.values() for p in e)
        assert flying <= stamped, f"2: {flying} of {stamped}"
        joined = [a for e in self._placed.values() for p in e for a in p.joined]
        assert len(joined) == self._joined_count, "2: joined"
        held = [*joined, *(refusal.append for refusal in self._refusals)]
        assert self._held_bytes == sum(len(a.batch) for a in held), "2: bytes"
        self.table.validate()

    def __repr__(self) -> str:
        return (
            f"<admission {self.table} refusals={len(self._refusals)} joined={self._joined_count}>"
        )


def _complete(append_id: int, result: Result, *, is_duplicate: bool) -> Complete:
    start, seq_num, count, timestamp_ms = result
    after = Dlsn(start.epoch, start.entry, start.slot + count)
    tail = TailMark(after, seq_num + count, timestamp_ms)
    return Complete(append_id, start, seq_num, count, timestamp_ms, tail, is_duplicate)


def _format_lost(stamp: Stamp) -> str:
    return (
        f"batch {stamp.sequence} of epoch {stamp.epoch} of producer {stamp.producer_id} is not in "
        "the log: entries are lost for ever, it with them, or a newer epoch: begin a new epoch"
    )


def _uncertain(append: QueuedAppend, reason: str) -> Fail:
    detail = f"{reason}; the append that it repeats may or may not be stored"
    return Fail(append.append_id, "append_uncertain", detail)
