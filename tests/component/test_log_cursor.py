"""One cursor over a log: what it does with its window, and while there are no metadata.

Metadata are real, in a store that can be cut off; all entries are in the cache; the clock stands
still. How a cursor goes on behind what is lost or truncated is in `test_lost_reads` and
`test_truncated_reads`. Source: duramen.runtime.reading.log_reader, 01-protocol section 8.
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
from duramen.core.reader import ReaderLimits, SendRead
from duramen.core.replica_order import Place, ReplicaOrder
from duramen.core.segment import Fragment, Segment
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.runtime.memory_store import MemoryStore, MemoryTree
from duramen.runtime.reading import log_reader
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.log_reader import STALLED_US, LogCursor
from duramen.runtime.reading.metadata import LogFollower
from duramen.units import SECOND
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.metadata_json import Paths, spell_log, spell_segment
from duramen.wire.record_batch import encode_batch
from tests.component.still_clock import read_clock_us, run_still, wait_clock
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


class HandFetcher:
    """A cache that holds the whole segment."""

    def __init__(self, entries: dict[EntryId, bytes]) -> None:
        self.order = ReplicaOrder(Place("eu", "ra"), Random(1))
        self._entries = entries

    def find_cached(self, read: SendRead) -> ReadAnswer:
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
        self.store = MemoryStore(MemoryTree())
        self.follower = LogFollower(self.store, PATHS, LOG)
        self.fetcher = HandFetcher(made.entries)

    async def start(self) -> None:
        await self.store.start()
        log, segment = spell_log(self.log), spell_segment(self.segment)
        await self.store.create(PATHS.log(LOG), log, make_parents=True)
        await self.store.create(PATHS.segment(LOG, Epoch(1)), segment, make_parents=True)

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
