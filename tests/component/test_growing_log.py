"""Readers of a log that grows as fast as they look at it come to an end all the same.

Every call to a bookie is overtaken by another append. An answer goes to where the end was when it
was looked for, and one look is enough: what has come since is the next answer's. Without that a
reader of a busy log gets nothing until its bounds are full, which may take minutes.
Source: docs/protocol/read-answers.md "How a position is found".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from duramen.core.log_node import Ending
from duramen.ids import EntryId, Epoch
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.wire.read_answers import TAIL_HEADER, parse_batches
from tests.component.core_reading import open_log, read
from tests.component.readproxy_world import BATCH, NDJSON, World, run
from tests.component.truncations import finish

BEFORE_COUNT = 31
"""Records that were acknowledged before any request."""

GROWTH_COUNT = 400
"""Appends after which the log rests: who chases the end catches it there, and is found out."""

CALLS_COUNT_MAX = 40
"""An answer needs a few calls; a chase needs one for every append or two."""


@asynccontextmanager
async def growing(world: World, path: str) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """The log of most tests, which gets another record with every call of the path.

    Gives what takes a call: with the path itself it appends, too.
    """
    await world.fill()
    assert len(world.bodies) == BEFORE_COUNT
    lock = asyncio.Lock()

    async def grow(called: str) -> None:
        if called == path and len(world.bodies) < BEFORE_COUNT + GROWTH_COUNT:
            async with lock:
                await world.append(1)

    for bookie in world.bookies.values():
        bookie.on_call = grow
    yield grow


growth = pytest.mark.parametrize("path", ["/b/lac", "/b/read"])


@growth
@pytest.mark.parametrize("query", ["?from=head", "?from=seq:29", "?from=tail&wait=20s"])
def test_an_answer_ends_where_the_end_was_when_it_was_looked_for(path: str, query: str) -> None:
    async def scenario(world: World) -> None:
        async with growing(world, path):
            first, position = 0, query
            for _ in range(10):
                answer = await world.read(position)
                numbers = [record["seq_num"] for record in answer["records"]]
                if first:
                    assert numbers == list(range(first, first + len(numbers)))
                first = int(answer["next"].removeprefix("seq:"))
                assert BEFORE_COUNT <= first < BEFORE_COUNT + GROWTH_COUNT
                assert answer["tail"]["seq_num"] == first
                assert numbers and len(numbers) < BEFORE_COUNT + CALLS_COUNT_MAX
                position = f"?from={answer['next']}" + "&wait=20s" * ("wait" in query)

    run(scenario)


@growth
def test_so_does_a_binary_one(path: str) -> None:
    async def scenario(world: World) -> None:
        async with growing(world, path):
            response = await world.get(accept=BATCH)
            end = parse_batches(response.content)[-1].end_seq_num
            assert BEFORE_COUNT <= end < BEFORE_COUNT + CALLS_COUNT_MAX
            assert json.loads(response.headers[TAIL_HEADER])["seq_num"] == end

    run(scenario)


@growth
def test_a_stream_to_the_tail_ends(path: str) -> None:
    async def scenario(world: World) -> None:
        async with growing(world, path):
            lines = (await world.get(accept=NDJSON)).text.splitlines()
            assert BEFORE_COUNT <= len(lines) < BEFORE_COUNT + CALLS_COUNT_MAX
            assert [json.loads(line)["seq_num"] for line in lines] == list(range(len(lines)))

    run(scenario)


@growth
def test_a_stream_that_stays_tells_the_tail(path: str) -> None:
    """What it tells lies where its records end, and records that came later follow."""

    async def scenario(world: World) -> None:
        async with (
            growing(world, path) as grow,
            world.http.stream(
                "GET", "/v1/namespaces/ns/logs/log/records?notes=true&wait=20s",
                headers={"accept": NDJSON},
            ) as response,
        ):  # fmt: skip
            next_seq_num = told = 0
            async for line in response.aiter_lines():
                document = json.loads(line)
                if "tail" in document:
                    told = document["tail"]["tail"]["seq_num"]
                    assert document["tail"]["next"] == f"seq:{next_seq_num}"
                    assert BEFORE_COUNT <= told == next_seq_num < BEFORE_COUNT + CALLS_COUNT_MAX
                    await grow(path)  # who waits makes no call that would
                elif "heartbeat" not in document:
                    assert document["seq_num"] == next_seq_num
                    next_seq_num += 1
                if told and next_seq_num > told:
                    break

    run(scenario)


@growth
def test_the_core_library_ends_a_read_there_too(path: str) -> None:
    async def scenario(world: World) -> None:
        async with growing(world, path):
            numbers = await read(open_log(world), "head")
            assert numbers == list(range(len(numbers)))
            assert BEFORE_COUNT <= len(numbers) < BEFORE_COUNT + CALLS_COUNT_MAX

    run(scenario)


def test_a_log_that_ends_after_the_look_is_not_called_ended_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is told the end of an ended log asks no more, and would miss what came before it."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()  # from now on the proxy has all of it in its cache
        find_tail = world.proxy.tails.find_reach
        may_read = asyncio.Event()

        async def hold_reads(path: str) -> None:
            if path == "/b/read":
                await may_read.wait()

        async def find_and_end(follower: LogFollower) -> Tail:
            tail = await find_tail(follower)
            if not world.log.is_ended:
                for bookie in world.bookies.values():
                    bookie.on_call = hold_reads
                await world.append(3)
                await finish(world, Ending.END)
                await follower.refresh(Epoch(world.log.last_clean_epoch))
            return tail

        monkeypatch.setattr(world.proxy.tails, "find_reach", find_and_end)
        seen, query = 0, "?from=head"
        for _ in range(3):
            answer = await world.read(query)
            may_read.set()
            seen += len(answer["records"])
            query = f"?from={answer['next']}"
            if answer.get("ended"):
                break
        assert seen == len(world.bodies) == BEFORE_COUNT + 3

    run(scenario)


def test_an_answer_that_came_past_the_tail_ends_where_its_records_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is read up to a LAC that somebody learnt after the look comes in one piece."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()
        find_tail = world.proxy.tails.find_reach

        async def find_and_grow(follower: LogFollower) -> Tail:
            await world.append(1)
            tail = await find_tail(follower)
            await world.append(2)
            follower.note_lac(Epoch(3), EntryId(world.entry_count - 1))
            return tail

        monkeypatch.setattr(world.proxy.tails, "find_reach", find_and_grow)
        answer = await world.read()
        assert len(answer["records"]) == len(world.bodies) == BEFORE_COUNT + 3
        assert answer["next"] == f"seq:{BEFORE_COUNT + 3}"
        assert answer["tail"]["seq_num"] == BEFORE_COUNT + 3

    run(scenario)
