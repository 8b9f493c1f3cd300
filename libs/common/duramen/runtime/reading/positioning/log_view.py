"""What a search for a position may ask of one log, and the same over the network.

`LogView` is the port: nodes, the tail, headers and whole entries. `LiveLog` is what requests use;
the property test puts a log in memory in its place.

Called by `positions` and the searches of this package. Source: 01-protocol section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.ids import EntryId, Epoch
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail, TailFinder
from duramen.wire.entry import EntryInfo


class LogView(Protocol):
    """One log, as searches see it."""

    async def read_log(self) -> LogNode:
        """The log node; never older than what an earlier call of any method here has shown."""

    async def read_segment(self, epoch: Epoch) -> Segment | None:
        """One segment node; None if there is none."""

    async def find_tail(self) -> Tail:
        """The tail at some moment after the call."""

    async def fetch_header(self, segment: Segment, entry: EntryId) -> EntryInfo:
        """The header of an entry that is there and may be shown."""

    async def fetch_run(
        self, segment: Segment, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        """Entries from `first` on, whole and without a gap: one at least, none above `last`."""


class LiveLog:
    """A log in its cluster.

    Every method raises what the follower, the tail finder or the fetcher raise: `log_not_found`,
    `log_deleted`, `metadata_unavailable`, `data_unavailable`, `overloaded`.
    """

    def __init__(self, follower: LogFollower, fetcher: RangeFetcher, tails: TailFinder) -> None:
        self._follower = follower
        self._fetcher = fetcher
        self._tails = tails

    async def read_log(self) -> LogNode:
        return await self._follower.current_log()

    async def read_segment(self, epoch: Epoch) -> Segment | None:
        return (await self._follower.current(epoch))[1]

    async def find_tail(self) -> Tail:
        return await self._tails.find(self._follower)

    async def fetch_header(self, segment: Segment, entry: EntryId) -> EntryInfo:
        return await self._fetcher.fetch_header(segment, entry)

    async def fetch_run(
        self, segment: Segment, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        return await self._fetcher.fetch_run(segment, first, last, bytes_max)
