"""Where the archive's entries and their identities come from: bookies that fail, differ, stripe.

Fake bookies that speak the real wire (`readproxy_world`), roster in memory, the source as tasks use
it. Source: docs/protocol/reading.md "Which replica", R1, R15, docs/archive.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import EntryId, Member
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.entry import check_entry
from duramen.wire.metadata_json import encode_node
from duramen.wire.record_batch import encode_batch
from duramen_spark.archive.bookie_source import BookieSource
from duramen_spark.archive.digests import SourceError
from duramen_spark.cluster_address import ClusterAddress
from tests.component.readproxy_world import PATHS, A, B, C, D, FakeBookie
from tests.unit.cold_entries import EPOCH, LEDGER, LOG, SegmentBytes

COUNT = 20
Scenario = Callable[["Cluster"], Awaitable[None]]


class Cluster:
    """Four bookies with the entries that a segment says they have."""

    def __init__(self, write_quorum: int = 3, *, lost: tuple[int, ...] = ()) -> None:
        self.bookies = {member: FakeBookie(member) for member in (A, B, C, D)}
        self.store = MemoryStore(MemoryTree())
        self.entries = SegmentBytes()
        for index in range(COUNT):
            self.entries.add(encode_batch([b"%d" % index], index))
        fragments = (
            Fragment(EntryId(0), (A, B, C)),
            Fragment(EntryId(8), (A, B, D), totals_before=Totals(8)),
        )
        opened = Segment(LOG, EPOCH, Quorum(3, write_quorum, 2), fragments)
        closed = opened.closed(
            last_entry=EntryId(COUNT - 1), totals=self.entries.totals, start_seq_num=0,
            completed_unix_ms=1, nonce="n",
        )  # fmt: skip
        self.segment = closed.with_lost([(entry, entry) for entry in lost], "n") if lost else closed
        for entry, data in self.entries.entries.items():
            if entry not in lost:
                for member in self.segment.write_set_of(entry):
                    self.bookies[member].entries[LEDGER, entry] = data

    @property
    def identities(self) -> list[tuple[int, int]]:
        """What is to be told."""
        entries = self.entries.entries.items()
        return [
            (entry, check_entry(data).crc)
            for entry, data in entries
            if self.segment.absence_at(entry) is None
        ]

    def silence(self, *members: Member, status: BookieStatus = BookieStatus.UNKNOWN) -> None:
        """From now on these answer a status to everything."""
        for member in members:
            self.bookies[member].status = status

    async def start(self) -> None:
        await self.store.start()
        for member, bookie in self.bookies.items():
            await bookie.server.start()
            fields = {
                "data_url": f"http://127.0.0.1:{bookie.server.port}",
                "incarnation": member.incarnation,
                "region": "",
                "rack": "",
            }
            path = f"{PATHS.available}/{member.bookie}"
            await self.store.create(path, encode_node(fields), ephemeral=True, make_parents=True)

    async def stop(self) -> None:
        for bookie in self.bookies.values():
            await bookie.server.stop()
        await self.store.close()

    async def identify(self, first: int = 0, last: int = COUNT - 1, turn: int = 0) -> list[object]:
        async with BookieSource(ClusterAddress("", "c"), self.store) as source:
            found = await source.read_identities(self.segment, EntryId(first), EntryId(last), turn)
            return [*found]

    async def read(self, first: int, last: int) -> list[bytes]:
        """Entries one run after the other."""
        read: list[bytes] = []
        async with BookieSource(ClusterAddress("", "c"), self.store) as source:
            while len(read) <= last - first:
                at = EntryId(first + len(read))
                run = await source.read_run(self.segment, at, EntryId(last), 1 << 20)
                read += [data for _, data in run]
        return read


def play(cluster: Cluster, scenario: Scenario) -> None:
    async def run() -> None:
        await cluster.start()
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("write_quorum", [2, 3])
@pytest.mark.parametrize("turn", [0, 1, 5])
def test_every_entry_is_told(write_quorum: int, turn: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await cluster.identify(turn=turn) == cluster.identities
        assert await cluster.identify(5, 11, turn) == cluster.identities[5:12]
        assert await cluster.identify(3, 3, turn) == cluster.identities[3:4]
        assert await cluster.read(0, COUNT - 1) == list(cluster.entries.entries.values())

    play(Cluster(write_quorum), scenario)


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_lost_entries_are_not_asked_for(write_quorum: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await cluster.identify() == cluster.identities
        assert len(cluster.identities) == COUNT - 3

    play(Cluster(write_quorum, lost=(0, 7, 8)), scenario)


@pytest.mark.parametrize("status", [BookieStatus.UNKNOWN, BookieStatus.GONE])
def test_others_are_asked_for_what_one_does_not_say(status: BookieStatus) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.silence(A, status=status)
        for turn in range(3):
            assert await cluster.identify(turn=turn) == cluster.identities
        cluster.bookies[B].lost[LEDGER, EntryId(4)] = BookieStatus.UNKNOWN
        assert await cluster.identify() == cluster.identities
        assert await cluster.read(0, COUNT - 1) == list(cluster.entries.entries.values())

    play(Cluster(), scenario)


def test_a_range_that_nobody_tells_is_named() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.silence(A, B)
        assert await cluster.identify() == cluster.identities, "C and D have all of it"
        cluster.silence(D)
        assert await cluster.identify(0, 7) == cluster.identities[:8]
        with pytest.raises(SourceError, match=r"\[\(8, 19\)\]"):
            await cluster.identify()
        with pytest.raises(DuramenError, match="e3n8 can be read now"):
            await cluster.read(8, COUNT - 1)

    play(Cluster(), scenario)


def test_an_entry_that_a_replica_has_otherwise_is_seen() -> None:
    async def scenario(cluster: Cluster) -> None:
        other = SegmentBytes()
        other.add(encode_batch([b"another one"], 0))
        for member in (A, B, C):
            cluster.bookies[member].entries[LEDGER, EntryId(0)] = other.entries[EntryId(0)]
        assert (await cluster.identify())[0] != cluster.identities[0]

    play(Cluster(), scenario)
