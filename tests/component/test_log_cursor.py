"""One cursor over a log: its window, its patience at a quiet tail, and being without metadata.

Metadata are real, in a store that can be cut off; all entries are in the cache; the clock stands
still. How a cursor goes on behind what is lost or truncated is in `test_lost_reads` and
`test_truncated_reads`. Source: duramen.runtime.reading.log_reader, docs/protocol/reading.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, cast

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.reading.effects import SendRead
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.segment import Fragment, Segment
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.runtime.reading import log_reader
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.log_reader import STALLED_US, LogCursor
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.units import SECOND
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.metadata_json import Paths, encode_log, encode_segment
from duramen.wire.record_batch import encode_batch
from tests.component.still_clock import read_clock_us, run_still, wait_clock
from tests.moved_log import make_segment_nodes
from tests.pauses import let_pass
from tests.unit.cold_entries import SegmentBytes

LOG: Final = LogId(9)
PATHS: Final = Paths("c")
MEMBERS: Final = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
ENTRY_COUNT: Final = 50
BODY_BYTES: Final = 1_000
ONE_WINDOW: Final = ReaderLimits()
"""It holds the whole segment."""
OUTAGE_S: Final = 1.0
"""Shorter than the tries of a cursor."""
SILENCE_S: Final = 600.0
METADATA_S: Final = 0.005
"""What a look at a node takes: a cursor whose look takes none is never seen at it."""


class SlowStore(MemoryStore):
    """Reads take their time."""

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        await let_pass(METADATA_S, what="a look at a node")
        return await super().get(path, watch)


class HandFetcher:
    """A cache that holds the whole segment, before bookies where nothing is appended."""

    def __init__(self, entries: dict[EntryId, bytes]) -> None:
        self.order = ReplicaOrder(Place("eu", "ra"), Random(1))
        self.poll_count = 0
        self.is_frozen = False
        self._entries = entries

    async def fetch(self, read: SendRead) -> ReadAnswer:
        assert read.wait_us, read
        self.poll_count += 1
        waits_us = read.timeout_us if self.is_frozen else read.wait_us
        await let_pass(waits_us / SECOND, what="a long poll that nothing ends")
        status = BookieStatus.TIMEOUT if self.is_frozen else BookieStatus.NO_ENTRY
        return ReadAnswer(status, NOTHING, NOTHING, False, [])

    def find_cached(self, read: SendRead) -> ReadAnswer | None:
        if read.wait_us:
            return None
        run: list[tuple[EntryId, bytes]] = []
        left_bytes = read.bytes_max
        for number in range(read.first, read.last + 1):
            body = self._entries[EntryId(number)]
            left_bytes -= len(body)
            if run and left_bytes < 0:
                break
            run.append((EntryId(number), body))
        return ReadAnswer(BookieStatus.OK, NOTHING, NOTHING, False, run)


class World:
    """A log of one CLOSED segment, and a store that can be cut off."""

    def __init__(self) -> None:
        made = SegmentBytes(ledger_of(LOG, Epoch(1)))
        for number in range(ENTRY_COUNT):
            made.add(encode_batch([bytes(BODY_BYTES)], number))
        segment = Segment(LOG, Epoch(1), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
        last = EntryId(ENTRY_COUNT - 1)
        self.segment = segment.closed(
            last_entry=last, totals=made.totals, start_seq_num=0, completed_unix_ms=1, nonce="n"
        )
        log = LogNode(LOG, "ns", "log", parse_log_config({})).with_new_epoch("n")
        self.log = log.with_clean(self.segment, "n")
        self.store = SlowStore(MemoryTree())
        self.follower = LogFollower(self.store, PATHS, LOG, make_segment_nodes(self.store, PATHS))
        self.fetcher = HandFetcher(made.entries)

    async def start(self) -> None:
        await self.store.start()
        log, segment = encode_log(self.log), encode_segment(self.segment)
        await self.store.create(PATHS.log(LOG), log, make_parents=True)
        await self.store.create(PATHS.segment(LOG, Epoch(1)), segment, make_parents=True)

    async def open_next(self) -> None:
        """Open a second segment, in which nothing is."""
        segment = Segment(LOG, Epoch(2), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
        await self.store.create(PATHS.segment(LOG, Epoch(2)), encode_segment(segment))
        found = await self.store.get(PATHS.log(LOG))
        assert found is not None
        log = encode_log(self.log.with_new_epoch("n"))
        await self.store.set(PATHS.log(LOG), log, version=found.version)

    def open_cursor(self, limits: ReaderLimits = ONE_WINDOW) -> LogCursor:
        fetcher = cast("RangeFetcher", self.fetcher)
        return LogCursor(self.follower, fetcher, (Epoch(1), EntryId(0)), limits)


def play(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], Awaitable[None]]) -> None:
    monkeypatch.setattr(log_reader, "read_clock_us", read_clock_us)

    async def work() -> None:
        world = World()
        await world.start()
        await scenario(world)
        await world.store.close()

    run_still(work())


async def take_all(cursor: LogCursor) -> list[int]:
    """The entries up to the end."""
    numbers: list[int] = []
    while (delivered := await cursor.take(0)) is not None:
        numbers += [entry_id for entry_id, _ in delivered.entries]
    return numbers


def test_a_log_of_many_windows_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the consumer has taken makes room for what comes next."""
    limits = ReaderLimits(range_bytes=4 * BODY_BYTES, buffer_bytes=6 * BODY_BYTES)

    async def scenario(world: World) -> None:
        async with world.open_cursor(limits) as cursor:
            assert await take_all(cursor) == list(range(ENTRY_COUNT))

    play(monkeypatch, scenario)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_quiet_tail_is_waited_at_for_as_long_as_one_likes(
    monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """The cursor looks at the metadata again and again meanwhile; that is no failure to read."""

    async def scenario(world: World) -> None:
        if is_open:
            await world.open_next()
        async with world.open_cursor() as cursor:
            assert await take_all(cursor) == list(range(ENTRY_COUNT))
            cursor.follow()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    await cursor.take(0)
            assert cursor.position == (Epoch(2), EntryId(0))
        assert world.fetcher.poll_count == 0 or is_open
        assert world.fetcher.poll_count > SILENCE_S / 2 or not is_open

    play(monkeypatch, scenario)


def test_who_waits_at_bookies_that_are_all_frozen_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.open_next()
        async with world.open_cursor() as cursor:
            await take_all(cursor)
            cursor.follow()
            world.fetcher.is_frozen = True
            begun_us = read_clock_us()
            with pytest.raises(DuramenError) as caught:
                await cursor.take(0)
        assert caught.value.code == "data_unavailable"
        assert read_clock_us() - begun_us <= STALLED_US

    play(monkeypatch, scenario)


def test_who_reads_while_the_metadata_are_away_is_told_so_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        world.store.disconnect()
        begun_us = read_clock_us()
        async with world.open_cursor() as cursor:
            with pytest.raises(DuramenError) as caught:
                await cursor.take(0)
        assert caught.value.code == "metadata_unavailable"
        assert read_clock_us() - begun_us < STALLED_US / 4, "after its tries, not at its last wait"

    play(monkeypatch, scenario)


def test_who_reads_while_they_are_away_for_a_moment_does_not_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        world.store.disconnect()
        begun_us = read_clock_us()
        async with world.open_cursor() as cursor:
            taking = asyncio.create_task(take_all(cursor))
            await wait_clock(begun_us / SECOND + OUTAGE_S)
            assert not taking.done()
            world.store.reconnect()
            assert await taking == list(range(ENTRY_COUNT))

    play(monkeypatch, scenario)
