"""What a search for a position may ask of one log, and the same over the network.

`SearchableLog` is the port: nodes, the tail, headers and whole entries. `LiveLog` is what requests
use; the property test puts a log in memory in its place.

Called by `positions` and the searches of this package. Source: docs/protocol/reading.md
"Positions".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase, Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail, TailFinder
from duramen.wire.entry import EntryInfo

T = TypeVar("T")

READ_TOGETHER: Final = 32
"""Nodes read at once: a log of 1,000 segments is known after some 30 round trips."""


class SearchableLog(Protocol):
    """One log, as searches see it."""

    async def read_log(self) -> LogNode:
        """The log node; never older than what an earlier call of any method here has shown."""

    async def read_segment(self, epoch: Epoch) -> SegmentBase | None:
        """One segment; None if the log node says that there is none, yet or any more."""

    async def read_segments(self, epochs: range) -> Sequence[SegmentBase | None]:
        """The segments of the first of these epochs, one at least, each as `read_segment`."""

    async def find_tail(self) -> Tail:
        """The tail at some moment after the call."""

    async def find_reach(self) -> Tail:
        """As far as may be read now; the tail where that can be found."""

    async def list_points(self, segment: SegmentBase) -> Sequence[tuple[EntryId, Totals]]:
        """Entries, ascending, and the totals of the segment before each: what narrows a search."""

    async def fetch_header(self, segment: SegmentBase, entry: EntryId) -> EntryInfo:
        """The header of an entry that is there and may be shown."""

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        """Entries from `first` on, whole and without a gap: one at least, none above `last`."""


class LiveLog:
    """A log in its cluster.

    What was released is asked of the cold store; so is what bookies do not give, where there is a
    cold copy of it: it may have been released since the log node was read.

    Every method raises what the follower, the tail finder or the fetcher raise: `log_not_found`,
    `log_deleted`, `metadata_unavailable`, `data_unavailable`, `cold_store_unavailable`,
    `overloaded`.
    """

    def __init__(self, follower: LogFollower, fetcher: RangeFetcher, tails: TailFinder) -> None:
        self._follower = follower
        self._fetcher = fetcher
        self._tails = tails

    async def read_log(self) -> LogNode:
        return await self._follower.current_log()

    async def read_segment(self, epoch: Epoch) -> SegmentBase | None:
        return (await self._follower.current(epoch))[1]

    async def read_segments(self, epochs: range) -> Sequence[SegmentBase | None]:
        log = await self.read_log()
        if len(epochs) > READ_TOGETHER and epochs.start <= log.metadata.through:
            # A search in two places for each of them would take thousands of round trips.
            _, segments = await self._follower.list_all()
            found = {segment.epoch: segment for segment in segments}
            return [found.get(Epoch(epoch)) for epoch in epochs]
        first = epochs[:READ_TOGETHER]
        return await asyncio.gather(*(self.read_segment(Epoch(epoch)) for epoch in first))

    async def find_tail(self) -> Tail:
        return await self._tails.find(self._follower)

    async def find_reach(self) -> Tail:
        return await self._tails.find_reach(self._follower)

    async def list_points(self, segment: SegmentBase) -> Sequence[tuple[EntryId, Totals]]:
        if segment.epoch < (await self.read_log()).first_hot_epoch:
            return await self._fetch_cold(segment, self._fetcher.cold.list_points)
        if not isinstance(segment, Segment):
            return [(EntryId(0), Totals())]
        return [(fragment.first_entry, fragment.totals_before) for fragment in segment.fragments]

    async def fetch_header(self, segment: SegmentBase, entry: EntryId) -> EntryInfo:
        return await self._fetch(
            segment,
            lambda: self._fetcher.fetch_header(segment, entry),
            lambda current: self._fetcher.cold.fetch_header(current, entry),
        )

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        return await self._fetch(
            segment,
            lambda: self._fetcher.fetch_run(segment, first, last, bytes_max),
            lambda current: self._fetcher.cold.read(current, first, last, bytes_max),
        )

    async def _fetch(
        self,
        segment: SegmentBase,
        fetch_hot: Callable[[], Awaitable[T]],
        fetch_cold: Callable[[SegmentBase], Awaitable[T]],
    ) -> T:
        if segment.epoch < (await self.read_log()).first_hot_epoch:
            return await self._fetch_cold(segment, fetch_cold)
        try:
            return await fetch_hot()
        except DuramenError as error:
            if error.code != "data_unavailable" or not segment.is_closed:
                raise
            current = (await self._follower.refresh(segment.epoch))[1]
            if current is None or current.cold_copy is None:
                raise
        return await fetch_cold(current)

    async def _fetch_cold(
        self, segment: SegmentBase, fetch_cold: Callable[[SegmentBase], Awaitable[T]]
    ) -> T:
        """Ask the cold store, and once more where the node names another copy by now (ADR 0016)."""
        try:
            return await fetch_cold(segment)
        except DuramenError as error:
            if error.code != "data_unavailable":
                raise
            current = (await self._follower.refresh(segment.epoch))[1]
            if current is None or current.cold_copy in (None, segment.cold_copy):
                raise
        return await fetch_cold(current)
