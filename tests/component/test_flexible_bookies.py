"""Flexible segments read from real bookies: real HTTP/2, real files, metadata in memory.

A log of sticky blocks whose last entries went to somebody else by a later wave: each block ends
with entries that nobody sends by the first asking. Not here: what is read when nodes lie, fail or
lose copies (`test_flexible_reads`, `tests.unit.test_flexible_reading`). Source:
docs/protocol/reading.md "Flexible segments", docs/protocol/envelopes.md "What nobody sends", R30.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

from duramen.config import parse_log_config
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.replica_order import Place
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, LogId, NodeNumber, ledger_of
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.log_reader import LogCursor
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.bookie_calls import Add, LacUpdate
from duramen.wire.entry import check_entry
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen.wire.metadata_json import Paths, encode_log, encode_segment
from duramen.wire.record_batch import encode_batch
from tests.component.bookie_world import Bookie, keep, running
from tests.moved_log import make_segment_nodes
from tests.unit.cold_entries import SegmentBytes

LOG: Final = LogId(9)
LEDGER: Final = ledger_of(LOG, Epoch(1))
PATHS: Final = Paths("c")
NODE_COUNT: Final = 5
ENTRY_COUNT: Final = 160
BLOCK_COUNT: Final = 40
SHARE_COUNT: Final = 40
"""Rows of one frame."""


class Cluster:
    """Bookies with the entries of one flexible segment, and readers of it."""

    def __init__(self, bookies: Sequence[Bookie]) -> None:
        self.bookies = bookies
        self.made = SegmentBytes(LEDGER, 0)
        self.segment = FlexibleSegment.opened(
            LOG, Epoch(1), ReplicationProperty(3),
            [
                ServingBookie(BookieId(f"b{n}"), "eu", f"k{n % 3}", one.incarnation, 1.0)
                for n, one in enumerate(bookies)
            ],
            ack_mode="ordered", placement="strict", created_unix_ms=0, nonce="s",
        )  # fmt: skip
        self.log = LogNode(LOG, "ns", "log", parse_log_config({})).with_new_epoch("n")

    async def fill(self) -> None:
        """Blocks whose last three entries are not at their first node, but at another one."""
        rows: list[list[Add]] = [[] for _ in range(NODE_COUNT)]
        for entry in map(EntryId, range(ENTRY_COUNT)):
            self.made.add(encode_batch([b"r%d" % entry, bytes(900)], entry))
            block = entry - entry % BLOCK_COUNT
            copyset = tuple(NodeNumber((block // BLOCK_COUNT + n) % NODE_COUNT) for n in range(3))
            holders = dict.fromkeys(copyset, Envelope(copyset, EntryId(block)))
            if entry % BLOCK_COUNT >= BLOCK_COUNT - 3:
                other = NodeNumber((copyset[2] + 1) % NODE_COUNT)
                del holders[copyset[0]]
                holders[other] = Envelope((*copyset[1:], other))
            body = self.made.entries[entry]
            for number, envelope in holders.items():
                spelt = encode_envelope(envelope, LEDGER, entry, check_entry(body).crc)
                rows[number].append(Add(LEDGER, entry, NOTHING, body, envelope=spelt))
        for bookie, adds in zip(self.bookies, rows, strict=True):
            await keep(bookie, adds[0])
            for at in range(1, len(adds), SHARE_COUNT):
                statuses = await bookie.add(*adds[at : at + SHARE_COUNT])
                assert set(statuses) == {BookieStatus.OK}, statuses

    async def tell(self, lac: int, *numbers: int) -> None:
        """Nodes hear a LAC."""
        for number in numbers:
            await self.bookies[number].lac(LacUpdate(LEDGER, EntryId(lac), True))

    async def read(
        self, work: Callable[[LogFollower, RangeFetcher, Bookies], Awaitable[None]], away: int = -1
    ) -> None:
        """Have a process of its own read, to which one bookie cannot be reached."""
        store = MemoryStore(MemoryTree())
        await store.start()
        await store.create(PATHS.log(LOG), encode_log(self.log), make_parents=True)
        path = PATHS.segment(LOG, Epoch(1))
        await store.create(path, encode_segment(self.segment), make_parents=True)
        bookies = Bookies(store, PATHS.available, Place("eu", "k0"), Random(1))
        for number, bookie in enumerate(self.bookies):
            if number != away:
                bookies._urls[BookieId(f"b{number}")] = bookie.service.data_url
        fetcher = RangeFetcher(bookies, EntryCache())
        try:
            async with asyncio.timeout(60):
                await work(
                    LogFollower(store, PATHS, LOG, make_segment_nodes(store, PATHS)),
                    fetcher,
                    bookies,
                )
        finally:
            await fetcher.stop()
            await bookies._client.close()
            await store.close()

    def close(self) -> None:
        """Its owner closes the segment."""
        self.segment = self.segment.closed_by_owner(
            last_entry=EntryId(ENTRY_COUNT - 1), totals=self.made.totals, start_seq_num=0,
            completed_unix_ms=1, nonce="c",
        )  # fmt: skip
        self.log = self.log.with_clean(self.segment, "n")


def play(folder: Path, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            bookies = [
                await stack.enter_async_context(running(folder / f"b{n}", node_id=f"b{n}"))
                for n in range(NODE_COUNT)
            ]
            cluster = Cluster(bookies)
            await cluster.fill()
            await scenario(cluster)

    asyncio.run(work())


def open_cursor(follower: LogFollower, fetcher: RangeFetcher) -> LogCursor:
    return LogCursor(follower, fetcher, (Epoch(1), EntryId(0)), ReaderLimits())


def test_a_closed_segment_is_read_whole_whoever_is_away(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.close()

        async def read_all(follower: LogFollower, fetcher: RangeFetcher, _: Bookies) -> None:
            seen: list[int] = []
            async with open_cursor(follower, fetcher) as cursor:
                while (delivered := await cursor.take(0)) is not None:
                    seen += [entry for entry, _ in delivered.entries]
            assert seen == list(range(ENTRY_COUNT))

        for away in range(-1, NODE_COUNT):
            await cluster.read(read_all, away)

    play(tmp_path, scenario)


def test_r30_an_open_segment_is_read_as_some_nodes_hear_of_it_and_followed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.tell(99, 2, 3, 4)

        async def follow(follower: LogFollower, fetcher: RangeFetcher, bookies: Bookies) -> None:
            found = await TailFinder(bookies, fetcher).find(follower)
            assert (found.entry, found.seq_num, found.is_sure) == (100, 200, False)
            seen: list[int] = []
            async with open_cursor(follower, fetcher) as cursor:
                cursor.follow()
                for entry in range(100, ENTRY_COUNT):
                    while len(seen) < entry:
                        delivered = await cursor.take(0)
                        assert delivered is not None
                        seen += [number for number, _ in delivered.entries]
                    assert len(seen) == entry, "it is not released"
                    await cluster.tell(entry, *range(NODE_COUNT))
            assert seen == list(range(ENTRY_COUNT - 1))

        await cluster.read(follow)

    play(tmp_path, scenario)
