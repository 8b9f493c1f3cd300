"""Reads entries of closed segments straight from bookies: the nearest replica, catch-up class.

The read proxy's own reader, without its cache: replicas by nearness and latency, checksums of every
entry verified, another replica on any doubt. And identities, as another replica tells them: it
reads and verifies its own copy of every entry, and sends the header. An inventory would say the
same at the pace of repair, which yields to clients: too slow to archive by, and needed for repair.
Of a flexible segment all nodes tell their books (`digests`).

Called by `part_task` in executors, and by `driver` for a few entry headers. Source:
docs/protocol/reading.md "Which replica", R1, R15.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from random import SystemRandom
from types import TracebackType
from typing import Final, Protocol, Self

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.reading.replica_order import Place
from duramen.core.reading.runs import last_of_run
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.limits import OVERLOADED_PAUSE_US, READ_BYTES_MAX, READ_TIMEOUT_US
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import Role
from duramen.runtime.reading.bookies import Bookies, RangeFetcher, read_clock_us
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.security.process_security import learn_role
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MIB, SECOND
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.entry import read_entry_info
from duramen.wire.metadata_json import Paths
from duramen_spark.archive.digests import PATIENCE_US, DigestReader, SourceError
from duramen_spark.cluster_address import ClusterAddress, open_security, open_store

_CACHE_BYTES: Final = 1 * MIB
"""Every entry is read once: there is nothing to keep."""


class EntrySource(Protocol):
    """Where entries of closed segments come from, and who says which there are.

    `BookieSource` has the contract of each method.
    """

    async def read_run(
        self, segment: AnySegment, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]: ...

    async def read_length_before(self, segment: AnySegment, entry: EntryId) -> int: ...

    async def read_identities(
        self, segment: AnySegment, first: EntryId, last: EntryId, turn: int
    ) -> list[tuple[EntryId, int]]: ...


class BookieSource:
    """The bookies of one cluster; `async with` connects and leaves.

    Attributes:
        security: as whom it calls; None: nobody asks.

    Raises:
        IdentityError: the address names a folder that holds no identity for this.
    """

    def __init__(self, address: ClusterAddress, store: MetadataStore | None = None) -> None:
        self._paths = Paths(address.cluster)
        self._owns_store = store is None
        self.security = None if address.identity is None else open_security(address.identity)
        self._store = store or open_store(address)
        here = Place(address.region, address.rack)
        self._client = PeerClient(self.security)
        self._bookies = Bookies(
            self._store, self._paths.available, here, SystemRandom(),
            client=self._client, learn=learn_role(self.security, Role.BOOKIE),
        )  # fmt: skip
        self._fetcher = RangeFetcher(self._bookies, EntryCache(_CACHE_BYTES))

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            MetadataError: ZooKeeper gives no answer.
        """
        try:
            if self._owns_store:
                await self._store.start()
            if self.security is not None:
                self.security.start()
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
        if self._owns_store:
            await self._store.close()
        if self.security is not None:
            await self.security.stop()

    async def read_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """Entries from `first` on without a gap; one at least.

        Raises:
            DuramenError: `data_unavailable`, `overloaded`: no replica gives it now.
        """
        return await self._fetcher.fetch_run(segment, first, last, bytes_max)

    async def read_length_before(self, segment: AnySegment, entry: EntryId) -> int:
        """Bytes of batches before an entry. Raises: as `read_run`."""
        info = await self._fetcher.fetch_header(segment, entry)
        return info.totals.length_bytes - info.payload_bytes

    async def read_identities(
        self, segment: AnySegment, first: EntryId, last: EntryId, turn: int
    ) -> list[tuple[EntryId, int]]:
        """(entry id, identity CRC32C) of every entry of a range, as bookies say who hold it.

        Of a flexible segment all nodes tell their books. Of a striped one each copy that is told
        was verified: every member of an ensemble is asked for a share of it, all at once, the
        nearest one last: that is whom entries are read from. What one does not say the next one is
        asked for.

        Args:
            turn: callers with other numbers begin with other members.

        Raises:
            SourceError: for some entry nobody who may hold it can say it now.
        """
        if isinstance(segment, FlexibleSegment):
            return await DigestReader(self._bookies, segment, first, last).read()
        found: dict[EntryId, int] = {}
        missing = EntryRanges(segment.list_present(first, last))
        async with asyncio.TaskGroup() as group:
            for low, high in _list_fragments(segment, first, last):
                ranked = self._fetcher.order.rank(
                    segment.fragment_of(low).ensemble, read_clock_us()
                )
                nearest, others = ranked[:1], ranked[1:]
                for index, share in enumerate(_share(low, high, max(1, len(others)))):
                    at = (turn + index) % max(1, len(others))
                    members = [*others[at:], *others[:at], *nearest]
                    group.create_task(self._learn(segment, share, members, found, missing))
        if ranges := missing.list_ranges():
            raise SourceError(f"no bookie says what it holds of e{segment.epoch}: {ranges[:3]}")
        return sorted(found.items())

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
            for first, last in _clip(missing, *share):
                for begin, end in _list_held(segment, first, last, member):
                    for entry, crc in await self._read_headers(segment, member, begin, end):
                        found[entry] = crc
                        missing.remove(entry)

    async def _read_headers(
        self, segment: Segment, member: Member, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, int]]:
        """Identities from `first` on without a gap, as far as one member tells them."""
        rows: list[tuple[EntryId, int]] = []
        deadline_us = read_clock_us() + PATIENCE_US
        at = first
        while at <= last and read_clock_us() < deadline_us:
            wanted = ReadRange(
                segment.ledger_id, at, last, READ_BYTES_MAX,
                headers_only=True, service=ServiceClass.CATCH_UP_READ,
            )  # fmt: skip
            answer = await self._bookies.read(member, wanted, READ_TIMEOUT_US)
            if answer.status is BookieStatus.OVERLOADED:
                await asyncio.sleep(OVERLOADED_PAUSE_US / SECOND)
                continue
            if not answer.entries or answer.entries[0][0] != at:
                break
            rows += [(entry, read_entry_info(header).crc) for entry, header in answer.entries]
            at = EntryId(answer.entries[-1][0] + 1)
            deadline_us = read_clock_us() + PATIENCE_US
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


def _list_held(
    segment: Segment, first: EntryId, last: EntryId, member: Member
) -> Iterator[tuple[EntryId, EntryId]]:
    """What of a range of one fragment a member holds: all, or runs of a striped segment."""
    at = first
    while at <= last:
        if member in segment.write_set_of(at):
            end = min(last, last_of_run(segment, at, member))
            yield at, end
            at = EntryId(end + 1)
        else:
            at = EntryId(at + 1)
