"""What becomes of a log's beginning, judged: T1, of the trim point, of retention and of bookies.

Part of `checkers`. A record is live until an operator truncates it or the log's own configuration
lets it go; what retention may do is computed here anew, from when the store applied each close. A
truncated segment is kept for `retention.truncated`; only then may `first_live_epoch` pass it, and
only what that has passed may bookies and the metadata store forget (R4). Source: T1,
docs/testing.md "Invariants", docs/protocol/retention.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from duramen.core.log_node import LogNode, TrimPoint
from duramen.ids import EntryId, Epoch, LedgerId, LogId, epoch_of, log_of, lsn_of
from duramen.units import SECOND
from tests.sim.segment_record import Record, SegmentEnd, SegmentRecord, Tally

_LATE_US: Final = 4 * SECOND
"""How much later than it was written a change may take effect: the answer of the store was lost."""


@dataclass(slots=True, eq=False)
class _Life:
    trim: TrimPoint | None = None
    trim_lsn: int = 0
    first_live_epoch: int = 1
    first_hot_epoch: int = 1
    closed_us: dict[int, int] = field(default_factory=dict)
    truncated_us: dict[int, int] = field(default_factory=dict)
    """When the trim point passed each segment, as far as it was closed."""
    asking_count: int = 0


class LifeRecord:
    """The beginnings of all logs.

    Args:
        clock_skew_us: how far ahead of the world's time the clocks of those who decide may be.
    """

    def __init__(self, tally: Tally, clock_skew_us: int = 0) -> None:
        self._tally = tally
        self._skew_us = clock_skew_us
        self._lives: dict[LogId, _Life] = {}

    def first_live_epoch(self, log_id: LogId) -> int:
        """What lies below is given up."""
        return self._life(log_id).first_live_epoch

    def on_truncation(self, log_id: LogId, *, is_asked: bool) -> None:
        """An operator begins to truncate a log, or is answered."""
        self._life(log_id).asking_count += 1 if is_asked else -1

    # --- the log node ----------------------------------------------------------------------------

    def on_log_changed(
        self, now_us: int, before: LogNode, after: LogNode, segments: SegmentRecord
    ) -> None:
        """A log node was replaced; T1: nothing that was truncated comes back, and what a new trim
        point passes is closed, or acknowledged in the open segment, and was to be truncated."""
        life = self._life(after.log_id)
        what = "the trim point of", before, "becomes that of", after
        is_risen = before.trim <= after.trim and before.trim_seq_num <= after.trim_seq_num
        is_risen &= before.first_live_epoch <= after.first_live_epoch
        is_risen &= before.trim_lsn <= after.trim_lsn
        self._check(is_risen, *what)
        is_over = before.is_ended and (not after.is_ended or after.next_epoch > before.next_epoch)
        self._tally.check("E1", not is_over, before, "has ended and becomes", after)
        if after.trim_lsn != before.trim_lsn or after.trim_seq_num != before.trim_seq_num:
            self._check(_is_released(after, segments), *what, "above the release pointer")
            # The end of a segment is the beginning of the next one: no record lies between.
            is_due = life.asking_count > 0 or after.trim_seq_num == before.trim_seq_num
            is_due = is_due or _is_expired(now_us + self._skew_us, after, segments, life)
            self._check(is_due, *what, "at", now_us, "µs, and nobody asked for it")
            life.trim = after.trim
        life.trim_lsn = after.trim_lsn
        self._note_passed(now_us, life, segments)
        if after.first_live_epoch > before.first_live_epoch:
            self._check_given_up(now_us, before, after, life)
        life.first_live_epoch = after.first_live_epoch
        life.first_hot_epoch = after.first_hot_epoch

    def on_closed(
        self, now_us: int, log_id: LogId, epoch: Epoch, completed_us: int, segments: SegmentRecord
    ) -> None:
        """A segment was closed, which says of itself when."""
        life = self._life(log_id)
        self._check(
            completed_us <= now_us + self._skew_us,
            "log",
            log_id,
            "e",
            epoch,
            "completed",
            completed_us,
            "at",
            now_us,
        )
        life.closed_us[epoch] = completed_us
        self._note_passed(now_us, life, segments)

    def _note_passed(self, now_us: int, life: _Life, segments: SegmentRecord) -> None:
        for epoch, end in segments.ends.items():
            if epoch not in life.truncated_us and life.trim_lsn > _lsn_of_end(epoch, end):
                life.truncated_us[epoch] = now_us

    def _check_given_up(self, now_us: int, before: LogNode, after: LogNode, life: _Life) -> None:
        kept_us = before.config.retention.truncated
        for epoch in range(before.first_live_epoch, after.first_live_epoch):
            since_us = life.truncated_us.get(epoch)
            is_over = since_us is not None and since_us + kept_us <= self._latest_us(now_us)
            self._check(is_over, "epoch", epoch, "of", after, "truncated", since_us, "gone", now_us)

    def _latest_us(self, now_us: int) -> int:
        """What a clock may show at an instant, or a little later: a change takes a while."""
        return now_us + _LATE_US + self._skew_us

    # --- who forgets -----------------------------------------------------------------------------

    def on_skip(self, log_id: LogId, epoch: Epoch, entry_id: EntryId) -> None:
        """A reader whose segment is given up goes on at the trim point."""
        life = self._life(log_id)
        first = max(life.trim_lsn, lsn_of(Epoch(life.first_live_epoch), EntryId(0)))
        is_gone = lsn_of(epoch, entry_id) <= first
        self._check(
            is_gone, "a reader of log", log_id, "skips to", epoch, entry_id, "beyond", first
        )

    def on_forgotten(self, log_id: LogId, epoch: Epoch) -> None:
        """Everything below `epoch` is removed from the metadata store."""
        first = self._life(log_id).first_live_epoch
        self._check(epoch <= first, "log", log_id, "is removed below", epoch, "beyond", first)

    def on_dropped(self, log_id: LogId, epoch: Epoch) -> None:
        """Everything below `epoch` is dropped by a bookie: it was given up, or released."""
        life = self._life(log_id)
        first = max(life.first_live_epoch, life.first_hot_epoch)
        self._check(epoch <= first, "log", log_id, "is dropped below", epoch, "beyond", first)

    def on_purged(self, ledger_id: LedgerId, last_entry: int, segments: SegmentRecord) -> None:
        """What lies beyond an entry is forgotten somewhere."""
        end = segments.ends.get(epoch_of(ledger_id))
        is_left_over = end is not None and end.last_entry <= last_entry
        what = "log", log_of(ledger_id), "epoch", epoch_of(ledger_id), "purged beyond", last_entry
        self._check(is_left_over, *what, "and ends as", end)

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, log_id: LogId, records: Sequence[Record]) -> None:
        """T1 at the end: position and number of the trim point name the same boundary."""
        trim = self._life(log_id).trim
        if trim is None:
            return
        passed = [seq_num for dlsn, seq_num, _ in records if dlsn < trim.dlsn]
        left = [seq_num for dlsn, seq_num, _ in records if dlsn >= trim.dlsn]
        is_boundary = max(passed, default=-1) < trim.seq_num <= min(left, default=trim.seq_num)
        self._check(is_boundary, "log", log_id, "is trimmed at", trim, "after", passed[-1:])

    def _life(self, log_id: LogId) -> _Life:
        life = self._lives.get(log_id)
        if life is None:
            life = self._lives[log_id] = _Life()
        return life

    def _check(self, is_kept: bool, *what: object) -> None:
        self._tally.check("T1", is_kept, *what)


def _is_released(after: LogNode, segments: SegmentRecord) -> bool:
    """Whether the trim point is not above the release pointer."""
    epoch, entry, _ = after.trim.dlsn
    if epoch in segments.ends:
        return entry <= segments.ends[epoch].last_entry + 1
    if entry > 0:
        return entry <= segments.ledger(epoch).highest_acknowledged + 1
    return epoch == 1 or epoch - 1 in segments.ends


def _lsn_of_end(epoch: int, end: SegmentEnd) -> int:
    """The last LSN of a closed segment; of an empty one, what precedes its first."""
    return (epoch << 32) + end.last_entry


def _is_expired(now_us: int, after: LogNode, segments: SegmentRecord, life: _Life) -> bool:
    """Whether the configuration lets go of all that lies before the trim point."""
    retention = after.config.retention
    last = after.trim.dlsn.epoch - 1
    if after.trim.dlsn.entry or last not in segments.ends:
        return False
    if retention.age is not None and life.closed_us[last] + retention.age <= now_us:
        return True
    later = range(last + 1, after.last_clean_epoch + 1)
    held_bytes = sum(segments.ends[epoch].totals.length_bytes for epoch in later)
    return retention.bytes is not None and held_bytes >= retention.bytes
