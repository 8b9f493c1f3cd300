"""Reads entries of closed segments straight from bookies: the nearest replica, catch-up class.

The read proxy's own reader, without its cache: replicas by nearness and latency, checksums of every
entry verified, another replica on any doubt. And inventories, in which a bookie says what it holds,
read anew from its disks: what the archive is compared with.

Called by `part_task` in executors, and by `driver` for a few entry headers. Source: 01-protocol
section 8, R1, R15.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import SystemRandom
from types import TracebackType
from typing import Final, Protocol, Self

from duramen.client.bookie_client import BookieClient
from duramen.core.entry_ranges import EntryRanges
from duramen.core.replica_order import Place
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.runtime.metadata_store import MetadataStore
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.zookeeper_store import ZooKeeperStore
from duramen.units import MIB
from duramen.wire.metadata_json import Paths, read_node
from duramen.wire.repair_calls import Inventory, Source

_CACHE_BYTES: Final = 1 * MIB
"""Every entry is read once: there is nothing to keep."""


class SourceError(Exception):
    """No bookie tells what it holds of some entry; a later run may get on."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is, and where its reader is.

    Attributes:
        zookeeper: `host:port,host:port…`.
        cluster: its name in ZooKeeper.
    """

    zookeeper: str
    cluster: str
    region: str = ""
    rack: str = ""


class EntrySource(Protocol):
    """Where entries of closed segments come from, and who says which there are.

    `BookieSource` has the contract of each method.
    """

    async def read_run(
        self, segment: Segment, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]: ...

    async def read_length_before(self, segment: Segment, entry: EntryId) -> int: ...

    async def read_identities(
        self, segment: Segment, first: EntryId, last: EntryId, turn: int
    ) -> list[tuple[EntryId, int]]: ...


class BookieSource:
    """The bookies of one cluster; `async with` connects and leaves."""

    def __init__(self, address: ClusterAddress, store: MetadataStore | None = None) -> None:
        self._paths = Paths(address.cluster)
        self._owns_store = store is None
        self._store = store or ZooKeeperStore(address.zookeeper)
        here = Place(address.region, address.rack)
        self._bookies = Bookies(self._store, self._paths.available, here, SystemRandom())
        self._fetcher = RangeFetcher(self._bookies, EntryCache(_CACHE_BYTES))
        self._client = BookieClient()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            MetadataError: ZooKeeper gives no answer.
        """
        try:
            if self._owns_store:
                await self._store.start()
            await self._bookies.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._fetcher.stop()
        await self._bookies.stop()
        await self._close()

    async def _close(self) -> None:
        await self._client.close()
        if self._owns_store:
            await self._store.close()

    async def read_run(
        self, segment: Segment, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """Entries from `first` on without a gap; one at least.

        Raises:
            DuramenError: `data_unavailable`, `overloaded`: no replica gives it now.
        """
        return await self._fetcher.fetch_run(segment, first, last, bytes_max)

    async def read_length_before(self, segment: Segment, entry: EntryId) -> int:
        """Bytes of batches before an entry. Raises: as `read_run`."""
        info = await self._fetcher.fetch_header(segment, entry)
        return info.totals.length_bytes - info.payload_bytes

    async def read_identities(
        self, segment: Segment, first: EntryId, last: EntryId, turn: int
    ) -> list[tuple[EntryId, int]]:
        """(entry id, identity CRC32C) of every entry of a range, as bookies say who read it anew.

        Every member of an ensemble is asked for a share of it, all at once: each reads at the pace
        that its upkeep may take. What one does not say the next one is asked for.

        Args:
            turn: which member gets the first share: callers with other numbers begin with others.

        Raises:
            SourceError: for some entry no member of its write set can say it now.
        """
        found: dict[EntryId, int] = {}
        missing = EntryRanges(segment.list_present(first, last))
        shares = [
            (begin, end, segment.fragment_of(begin).ensemble, turn + index)
            for low, high in _list_fragments(segment, first, last)
            for index, (begin, end) in enumerate(_share(low, high, segment.quorum.ensemble_size))
        ]
        async with asyncio.TaskGroup() as group:
            for begin, end, ensemble, index in shares:
                members = [*ensemble[index % len(ensemble) :], *ensemble[: index % len(ensemble)]]
                group.create_task(self._learn(segment, (begin, end), members, found, missing))
        if ranges := missing.list_ranges():
            raise SourceError(f"no bookie says what it holds of e{segment.epoch}: {ranges[:3]}")
        present = EntryRanges(segment.list_present(first, last))
        return sorted(pair for pair in found.items() if pair[0] in present)

    async def _learn(
        self,
        segment: Segment,
        share: tuple[EntryId, EntryId],
        members: Sequence[Member],
        found: dict[EntryId, int],
        missing: EntryRanges,
    ) -> None:
        """Ask one member after the other until nothing of a share is missing."""
        for member in members:
            wanted = _clip(missing, *share)
            if not wanted:
                return
            # Of a striped segment a member has some entries only: ask for all at once.
            low, high = wanted[0][0], wanted[-1][1]
            for entry, crc in await self._take_inventory(segment, member, low, high):
                found.setdefault(entry, crc)
                missing.remove(entry)

    async def _take_inventory(
        self, segment: Segment, member: Member, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, int]]:
        """What one member tells of a range; nothing where it does not answer."""
        node = await self._store.get(f"{self._paths.available}/{member.bookie}")
        url = None if node is None else read_node(node.data).get("data_url")
        if not isinstance(url, str):
            return []
        rows: list[tuple[EntryId, int]] = []
        at: EntryId | None = first
        while at is not None and at <= last:
            wanted = Inventory(segment.ledger_id, at, last)
            answer = await self._client.take_inventory(Source(member, url), wanted)
            if answer.status is not BookieStatus.OK:
                break
            rows += answer.entries
            if answer.next is not None and answer.next <= at:
                break
            at = answer.next
        return rows


def _list_fragments(
    segment: Segment, first: EntryId, last: EntryId
) -> list[tuple[EntryId, EntryId]]:
    """The range, cut where fragments begin."""
    begins = [f.first_entry for f in segment.fragments if first < f.first_entry <= last]
    cuts = [first, *begins, EntryId(last + 1)]
    return [(a, EntryId(b - 1)) for a, b in itertools.pairwise(cuts)]


def _share(first: EntryId, last: EntryId, count: int) -> list[tuple[EntryId, EntryId]]:
    """The range in `count` pieces of about equal length, or in fewer."""
    length = last - first + 1
    cuts = sorted({first + length * index // count for index in range(count + 1)})
    return [(EntryId(a), EntryId(b - 1)) for a, b in itertools.pairwise(cuts)]


def _clip(ranges: EntryRanges, first: EntryId, last: EntryId) -> list[tuple[EntryId, EntryId]]:
    """What of ranges lies within `first` … `last`."""
    clipped = [(max(a, first), min(b, last)) for a, b in ranges.list_ranges()]
    return [(EntryId(a), EntryId(b)) for a, b in clipped if a <= b]
