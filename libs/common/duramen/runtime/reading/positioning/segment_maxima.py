"""The greatest txid and timestamp of every CLOSED segment of a log: which segment to search next.

They are maxima of one segment each and need not rise from one to the next (timestamps are the
clients'), so all live segments are looked through in order, in memory. Each node is read once in
the life of the process; CLOSED segments keep their totals.

Called by `positions`. Source: docs/protocol/reading.md "Positions".
"""

from __future__ import annotations

from duramen.core.segment_base import SegmentBase, Totals
from duramen.errors import DuramenError
from duramen.ids import Epoch
from duramen.runtime.reading.positioning.log_view import SearchableLog
from duramen.runtime.reading.positioning.record_search import SearchTarget


class SegmentMaxima:
    """Maxima of one log's CLOSED segments: of the epochs from `_first` on, without a gap."""

    def __init__(self) -> None:
        self._first = Epoch(1)
        self._totals: list[Totals] = []

    @property
    def count(self) -> int:
        """Segments that are known."""
        return len(self._totals)

    async def learn(self, view: SearchableLog, first_live: Epoch, last_closed: int) -> None:
        """Know the segments `first_live` … `last_closed`, which are CLOSED; forget earlier ones.

        One that is not there has been truncated meanwhile: it holds nothing to find.

        Raises:
            DuramenError: `metadata_unavailable` (one is not seen CLOSED yet), or of the view.
        """
        self._forget_before(first_live)
        while missing := range(self._first + len(self._totals), last_closed + 1):
            segments = await view.read_segments(missing)
            found = [_totals_of(segment) for segment in segments]
            # Another request may have learnt some of them meanwhile, or forgotten them.
            self._totals += found[self._first + len(self._totals) - missing.start :]

    def find_next(self, epoch: Epoch, wanted: SearchTarget, last: int) -> Epoch | None:
        """The first segment from `epoch` to `last` that may hold what is wanted."""
        first = max(epoch, self._first)
        for known in range(first, min(last + 1, self._first + len(self._totals))):
            if wanted.is_reached(self._totals[known - self._first]):
                return Epoch(known)
        return None

    def _forget_before(self, first_live: Epoch) -> None:
        if first_live > self._first:
            del self._totals[: first_live - self._first]
            self._first = first_live


def _totals_of(segment: SegmentBase | None) -> Totals:
    if segment is None:
        return Totals()
    if segment.totals is None:
        raise DuramenError("metadata_unavailable", f"e{segment.epoch} is not seen closed yet")
    return segment.totals
