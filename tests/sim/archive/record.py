"""What becomes of a log's copies, judged (A1): the archive is the log, and hot copies go after it.

Part of `checkers`. A segment's node names a cold copy only if everything lies there that is to be;
`first_hot_epoch` passes a segment only if it is closed, was kept as long as its log says, is needed
by no takeover, and has a copy that was looked at again; the copy of what has left the bookies is
never forgotten; and repair lets go of it. That the bytes are those of the log is judged where
readers are served from it (O1, D1). Source: A1, docs/testing.md "Invariants",
docs/protocol/archive.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, epoch_of, log_of
from duramen.units import SECOND
from tests.sim.segment_record import SegmentRecord, Tally

_LATE_US: Final = 4 * SECOND
"""How much later than it was written a change may take effect: the answer of the store was lost."""
_REPAIR_LATE_US: Final = 30 * SECOND
"""How long after a release a repair that was under way may still end."""


@dataclass(slots=True, eq=False)
class _Copies:
    first_hot_epoch: int = 1
    completed_us: dict[int, int] = field(default_factory=dict)
    recorded: dict[int, bool] = field(default_factory=dict)
    """Epochs with a cold copy; True: it was looked at again."""
    released_us: dict[int, int] = field(default_factory=dict)


class ArchiveRecord:
    """The copies of all logs' segments.

    Args:
        clock_skew_us: how far ahead of the world's time the clocks of those who decide may be.
    """

    def __init__(self, tally: Tally, clock_skew_us: int = 0) -> None:
        self._tally = tally
        self._skew_us = clock_skew_us
        self._copies: dict[LogId, _Copies] = {}

    def first_hot_epoch(self, log_id: LogId) -> int:
        """What lies below has left the bookies."""
        return self._of(log_id).first_hot_epoch

    def on_completed(self, log_id: LogId, epoch: Epoch, completed_us: int) -> None:
        """A segment was closed."""
        self._of(log_id).completed_us[epoch] = completed_us

    def on_segment_changed(
        self,
        now_us: int,
        before: AnySegment,
        after: AnySegment,
        stored: Collection[int] | None,
    ) -> None:
        """A segment's node was replaced.

        Args:
            stored: the entries of the copy that it names now, as they lie in the cold store.
        """
        copies, epoch = self._of(after.log_id), after.epoch
        if _list_places(before) != _list_places(after) and epoch in copies.released_us:
            since_us = copies.released_us[epoch]
            is_late = now_us > since_us + _REPAIR_LATE_US
            self._check(not is_late, "copies of", after, "are moved, released at", since_us)
        if before.cold_copy == after.cold_copy:
            return
        if after.cold_copy is None:
            is_needed = epoch < copies.first_hot_epoch
            self._check(not is_needed, "the only copy is forgotten of", before)
            copies.recorded.pop(epoch, None)
            return
        assert after.last_entry is not None, after
        present = after.list_present(EntryId(0), after.last_entry)
        expected = [entry for first, last in present for entry in range(first, last + 1)]
        is_whole = stored is not None and sorted(stored) == expected
        self._check(is_whole, "a copy is named that holds", stored, "of", after)
        copies.recorded[epoch] = after.cold_copy.is_rechecked

    def on_pulled(self, now_us: int, ledger_id: LedgerId) -> None:
        """A bookie is asked to make copies of a segment."""
        released_us = self._of(log_of(ledger_id)).released_us.get(epoch_of(ledger_id), now_us)
        is_late = now_us > released_us + _REPAIR_LATE_US
        self._check(not is_late, "copies of", ledger_id, "are made, released at", released_us)

    def on_log_changed(
        self, now_us: int, before: LogNode, after: LogNode, segments: SegmentRecord
    ) -> None:
        """A log node was replaced."""
        copies = self._of(after.log_id)
        copies.first_hot_epoch = after.first_hot_epoch
        if after.first_hot_epoch == before.first_hot_epoch:
            return
        is_risen = after.first_hot_epoch > before.first_hot_epoch
        self._check(is_risen, before, "becomes", after, "at", now_us, "µs")
        lsn = before.snapshot_lsn
        is_free = lsn is not None and after.first_hot_epoch <= (lsn + 1) >> 32
        self._check(is_free, after, "releases what takeovers read from", lsn, "on")
        tiering = before.config.tiering
        for epoch in range(before.first_kept_epoch, after.first_hot_epoch):
            what = "epoch", epoch, "is released at", now_us, "µs by", after
            end = segments.ends.get(epoch)
            self._check(end is not None and tiering.policy == "move", *what)
            is_safe = end is not None and end.last_entry == NOTHING
            is_safe = is_safe or copies.recorded.get(epoch, False)
            self._check(is_safe, *what, "without a cold copy that was looked at again")
            completed_us = copies.completed_us.get(epoch, now_us)
            is_due = completed_us + tiering.keep_hot <= now_us + _LATE_US + self._skew_us
            self._check(is_due, *what, "completed at", completed_us)
            copies.released_us[epoch] = now_us

    def _of(self, log_id: LogId) -> _Copies:
        copies = self._copies.get(log_id)
        if copies is None:
            copies = self._copies[log_id] = _Copies()
        return copies

    def _check(self, is_kept: bool, *what: object) -> None:
        self._tally.check("A1", is_kept, *what)


def _list_places(segment: AnySegment) -> tuple[object, ...]:
    """Where the metadata say that copies are."""
    return segment.nodes if isinstance(segment, FlexibleSegment) else segment.fragments
