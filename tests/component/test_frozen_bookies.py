"""A bookie that is frozen takes calls and answers none: readers go round it, and do not come back.

Over real HTTP with fake bookies (`readproxy_world`), the nearest of them frozen, since it is asked
first. Counts of calls decide, so that a slow machine fails nothing: who went round a frozen bookie
by waiting would have asked it again for each record. Source: docs/protocol/reading.md "Which
replica".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.reading import tail
from duramen.units import SECOND
from tests.component.readproxy_world import A, B, FakeBookie, World, check, run
from tests.waiting import wait_for

READ_COUNT = 20


@contextlib.contextmanager
def frozen(bookie: FakeBookie) -> Iterator[list[str]]:
    """In the block it answers nothing; the calls that it takes."""
    calls: list[str] = []
    thawed = asyncio.Event()

    async def on_call(path: str) -> None:
        calls.append(path)
        await thawed.wait()

    bookie.on_call = on_call
    yield calls
    thawed.set()


def test_a_frozen_bookie_costs_a_reader_no_time_out() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        with frozen(world.bookies[A.bookie]) as calls:
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            answers = [await world.read("?from=head") for _ in range(3)]
            for answer in answers:
                check(world, answer, 0, 31)
            assert loop.time() - begun_s < READ_TIMEOUT_US / SECOND
            assert calls

    run(scenario)


@pytest.mark.parametrize("query", ["?from=seq:{}", "?from=time:1970-01-01T00:00:01.0{:02}Z"])
def test_positions_are_found_beside_a_frozen_bookie(query: str) -> None:
    """By headers of entries, which are looked up one after the other."""

    async def scenario(world: World) -> None:
        await world.fill()
        with frozen(world.bookies[A.bookie]):
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            for number in (2, 5, 12, 14, 20, 25, 30):
                world.forget()
                answer = await world.read(query.format(number))
                assert answer["records"]
            assert loop.time() - begun_s < READ_TIMEOUT_US / SECOND

    run(scenario)


def test_who_waits_at_the_tail_asks_a_frozen_bookie_once_and_then_others() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        with frozen(world.bookies[A.bookie]) as calls:
            for number in range(31, 61):
                polling = asyncio.create_task(world.get(f"?from=seq:{number}&wait=60s"))
                await wait_for(lambda: sum(b.waiting_count for b in world.bookies.values()) > 0)
                await world.append(1)
                answer = (await polling).json()
                assert [record["seq_num"] for record in answer["records"]] == [number]
            reads = [path for path in calls if path == "/b/read"]
            assert 1 <= len(reads) <= 8, "it was asked again for records that it had kept back"

    run(scenario)


def test_all_readers_of_a_process_go_round_it() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        with frozen(world.bookies[A.bookie]) as calls:
            await world.read("?from=head")
            met_count = len(calls)
            for _ in range(READ_COUNT):
                world.forget()
                check(world, await world.read("?from=head"), 0, 31)
            # A tail asks every bookie of the ensemble, and waits for enough of them. Where others
            # are late it is asked as well: on a full machine that was so five times.
            asked = calls[met_count:].count("/b/read")
            assert asked < READ_COUNT, "each reader asked it anew"

    run(scenario)


@pytest.mark.parametrize(
    "query",
    ["?from=head", "?from=seq:25", "?from=dlsn:e1n5s0", "?from=txid:29", "?from=seq:22&wait=1s"],
)
def test_one_bookie_that_answers_is_enough_to_read_an_open_segment(query: str) -> None:
    """Any LAC that was seen is safe to read up to; where the tail is, two must say."""

    async def scenario(world: World) -> None:
        await world.open_segment()
        for number in range(31):
            await world.append(1, txids=[number])
        with frozen(world.bookies[A.bookie]), frozen(world.bookies[B.bookie]):
            answer = await world.read(query)
            first = answer["records"][0]["seq_num"]
            check(world, answer, first, 31)
            assert "tail" not in answer, "there may be more"
            nothing = await world.read("?from=seq:31")
            assert nothing == {"records": [], "next": "seq:31"}

    run(scenario)


def test_that_one_is_enough_too_where_the_others_refuse() -> None:
    """Then it is known at once that too few can say where the tail is."""

    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(2, 1)
        for member in (A, B):
            world.bookies[member.bookie].is_broken = True
        answer = await world.read("?from=head")
        check(world, answer, 0, 3)
        assert "tail" not in answer
        assert (await world.get("/tail")).json()["code"] == "data_unavailable"

    run(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "/tail",
        "?from=tail",
        "?from=tail-3",
        "?from=seq:40",
        "?from=txid:31",
        "?from=time:2030-01-01T00:00:00Z",
    ],
)
def test_where_the_tail_is_one_bookie_cannot_say(
    monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(tail, "READ_TIMEOUT_US", SECOND)

    async def scenario(world: World) -> None:
        await world.open_segment()
        for number in range(31):
            await world.append(1, txids=[number])
        with frozen(world.bookies[A.bookie]), frozen(world.bookies[B.bookie]):
            answer = await world.get(query)
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "data_unavailable"
        assert (await world.get("/tail")).json()["tail"]["seq_num"] == 31

    run(scenario)
