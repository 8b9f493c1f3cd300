"""The listing at the end: a fresh process that lists the segments of every log, from both places.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import Final

from duramen.core.metadata_log.listing import SegmentListing
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import MS
from tests.sim.reading.proxy import Cluster, ReadProxy
from tests.sim.world import World

_RETRY_US: Final = 100 * MS


class ListingReader(ReadProxy):
    """A process of its own; asks until it is told."""

    def __init__(self, world: World, region: str, cluster: Cluster) -> None:
        super().__init__(world, "r500", region, cluster)
        self.listings: list[SegmentListing] = []
        self.failure = ""
        self.is_done = False
        self.loop.run_task(self._list())

    async def _list(self) -> None:
        for number in range(self.cluster.log_count):
            while len(self.listings) == number:
                try:
                    self.listings.append(await self.segment_nodes.list_all(LogId(number + 1)))
                except (DuramenError, MetadataError) as error:
                    self.failure = f"log {number + 1}: {error}"
                    await self.pass_time(_RETRY_US)
        self.is_done = True
