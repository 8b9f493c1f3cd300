"""Which entry of a segment: bisection over entry headers, and what earlier searches have learnt.

Headers say how many records precede an entry and the greatest txid and timestamp up to and with
it. All of these only rise within a segment, so one bisection serves every kind of position. A hole
has no headers: it counts as part of the entry behind it, and the last entry is never in a hole.

Called by `positions` and `record_search`. Source: docs/protocol/reading.md "Positions".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from duramen.core.segment_base import SegmentBase
from duramen.ids import EntryId
from duramen.runtime.reading.positioning.log_view import SearchableLog
from duramen.wire.entry import EntryInfo

POINTS_MAX: Final = 512
"""Known points per ledger: bisection between two of them takes a few headers at most."""


class SparseIndex:
    """Points of one ledger: record position → entry that begins there. Sorted, bounded."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._entries: list[EntryId] = []

    def add(self, position: int, entry: EntryId) -> None:
        """`position` records of the segment precede `entry`."""
        at = bisect_right(self._positions, position)
        if at and self._positions[at - 1] == position:
            # Entries without records share a position: the later one is nearer to the record.
            self._entries[at - 1] = max(self._entries[at - 1], entry)
            return
        self._positions.insert(at, position)
        self._entries.insert(at, entry)
        if len(self._positions) > POINTS_MAX:
            del self._positions[1::2], self._entries[1::2]

    def narrow(self, position: int, last: EntryId) -> tuple[EntryId, EntryId, bool]:
        """Bounds (low, high) for the entry of `position`; whether it is known to be low."""
        at = bisect_right(self._positions, position)
        low = self._entries[at - 1] if at else EntryId(0)
        high = EntryId(min(self._entries[at] - 1, last)) if at < len(self._entries) else last
        is_exact = bool(at) and self._positions[at - 1] == position
        is_enclosed = bool(at) and at < len(self._entries) and self._entries[at] == low + 1
        return low, max(low, high), is_exact or is_enclosed


async def bisect_entries(
    view: SearchableLog,
    segment: SegmentBase,
    low: EntryId,
    high: EntryId,
    is_reached: Callable[[EntryInfo], bool],
) -> EntryId:
    """The first entry from `low` on whose header says that something is reached.

    Where that may have been in lost entries, the first of them.

    Args:
        high: an entry that is known to have reached it; it is not asked.
        is_reached: false up to some entry and true from it on.
    """
    while low < high:
        middle = EntryId((low + high) // 2)
        absence = segment.absence_at(middle)
        first, behind = (middle, middle) if absence is None else absence
        while absence is not None:
            behind = EntryId(absence[1] + 1)
            absence = segment.absence_at(behind)
        # What is lost may reach up to the end of what is searched.
        if behind > high or is_reached(await view.fetch_header(segment, behind)):
            high = max(low, first)
        else:
            low = EntryId(behind + 1)
    return skip_hole(segment, low)


def skip_absent(segment: SegmentBase, entry: EntryId) -> EntryId:
    """The entry itself, or the next one that is neither in a hole nor lost."""
    while (absence := segment.absence_at(entry)) is not None:
        entry = EntryId(absence[1] + 1)
    return entry


def skip_hole(segment: SegmentBase, entry: EntryId) -> EntryId:
    """The entry itself, or the one behind the holes that it lies in."""
    while (hole := segment.hole_at(entry)) is not None:
        entry = EntryId(hole[1] + 1)
    return entry
