"""Catching up on a striped log (E > Qw), in requests to bookies for a thousand entries.

No bookie holds more than a few entries in a row, so whoever asks for each run by itself asks
hundreds of times. Gated on counts, not on times.
Source: docs/protocol/reading.md "Which replica", `core.reading.reader` (`beyond`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import cast

import pytest

from duramen.core.reading.effects import SendRead
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Member, ledger_of
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.units import KIB, MIB, SECOND
from duramen.wire.bookie_calls import ReadAnswer, ReadRange
from tests.component.readproxy_world import LOG, A, B, C, D, World, check, run
from tests.waiting import wait_for

ENTRY_COUNT = 1_000
LEDGER = ledger_of(LOG, Epoch(1))


async def write_striped(world: World, write_quorum: int, *, is_closed: bool) -> None:
    await world.open_segment((A, B, C, D), write_quorum=write_quorum)
    for _ in range(ENTRY_COUNT):
        await world.append(1)
    if is_closed:
        await world.close_segment()


def count_requests(world: World) -> int:
    return sum(bookie.read_count for bookie in world.bookies.values())


def count_given(world: World) -> int:
    """Entries that bookies sent, those that were sent twice counted twice."""
    return sum(bookie.given_count for bookie in world.bookies.values())


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("write_quorum", [3, 2])
def test_a_thousand_entries_take_a_dozen_requests(write_quorum: int, is_closed: bool) -> None:
    """They are 3 or 4; one run after the other took 500 (Qw = 3) and 630 (Qw = 2)."""

    async def scenario(world: World) -> None:
        await write_striped(world, write_quorum, is_closed=is_closed)
        check(world, await world.read("?from=head&count=10000&bytes=4MiB"), 0, ENTRY_COUNT)
        assert count_requests(world) <= 12
        assert count_given(world) <= ENTRY_COUNT + 20

    run(scenario)


@pytest.mark.parametrize("lost", [BookieStatus.UNKNOWN, BookieStatus.NO_ENTRY])
def test_what_one_replica_does_not_give_comes_from_the_others(lost: BookieStatus) -> None:
    async def scenario(world: World) -> None:
        await write_striped(world, 3, is_closed=True)
        for entry in range(0, ENTRY_COUNT, 7):
            member = (A, B, C, D)[entry % 4]  # the first of its write set
            world.bookies[member.bookie].lost[LEDGER, EntryId(entry)] = lost
        check(world, await world.read("?from=head&count=10000&bytes=4MiB"), 0, ENTRY_COUNT)

    run(scenario)


def test_a_striped_segment_is_read_without_one_of_its_bookies() -> None:
    async def scenario(world: World) -> None:
        await write_striped(world, 3, is_closed=True)
        world.bookies[B.bookie].is_broken = True
        answer = await world.read("?from=head&count=10000&bytes=4MiB")
        check(world, answer, 0, ENTRY_COUNT)
        assert count_requests(world) <= 24

    run(scenario)


def test_a_look_up_reads_no_further_than_its_range_of_bytes() -> None:
    async def scenario(world: World) -> None:
        await write_striped(world, 3, is_closed=True)
        entry_bytes = len(world.bookies[A.bookie].entries[LEDGER, EntryId(0)])
        check(world, await world.read("?from=seq:100&count=1"), 100, 101)
        assert count_given(world) <= 20 + 64 * KIB // entry_bytes, "a search, and 64 KiB"

    run(scenario)


def test_what_is_asked_for_ahead_is_not_asked_for_twice_at_once() -> None:
    """A second replica that wins by speculation must not make the whole window come again."""

    class SlowBookies:
        """Answers nothing before it may; notes what was asked."""

        def __init__(self) -> None:
            self.order = ReplicaOrder(Place("r", "r"), Random(1))
            self.asked: list[list[tuple[int, int]]] = []
            self.gate = asyncio.Event()

        async def read_ranges(
            self, _member: Member, ranges: Sequence[ReadRange], _timeout_us: int
        ) -> list[ReadAnswer]:
            self.asked.append([(wanted.first, wanted.last) for wanted in ranges])
            await self.gate.wait()
            return [ReadAnswer(BookieStatus.UNKNOWN, NOTHING, NOTHING, False, [])] * len(ranges)

    def read(first: int, last: int, *beyond: tuple[int, int]) -> SendRead:
        runs = tuple((EntryId(begin), EntryId(end)) for begin, end in beyond)
        return SendRead(1, A, LEDGER, EntryId(first), EntryId(last), MIB, SECOND, beyond=runs)

    async def scenario() -> None:
        bookies = SlowBookies()
        fetcher = RangeFetcher(cast("Bookies", bookies), EntryCache())
        first = asyncio.create_task(fetcher.fetch(read(0, 2, (4, 6), (8, 10))))
        await wait_for(lambda: len(bookies.asked) == 1)
        second = asyncio.create_task(fetcher.fetch(read(3, 3, (5, 7), (9, 11))))
        await wait_for(lambda: len(bookies.asked) == 2)
        assert bookies.asked == [[(0, 2), (4, 6), (8, 10)], [(3, 3), (7, 7), (11, 11)]]
        bookies.gate.set()
        await asyncio.gather(first, second)
        await fetcher.fetch(read(3, 3, (5, 7)))
        assert bookies.asked[2] == [(3, 3), (5, 7)], "what was not given is asked for again"
        assert fetcher.statistics()["entries_ahead"] == 0

    asyncio.run(scenario())
