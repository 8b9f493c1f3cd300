"""Reads of logs that were truncated, have ended, or are deleted.

The read proxy over real HTTP in the world of `readproxy_world`. Source: docs/protocol/reading.md
"What may be shown", docs/protocol/retention.md, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from duramen.core.log_node import Ending, LogNode
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.reading.log_reader import LogCursor
from duramen.wire.metadata_json import encode_log, encode_node
from tests.component.readproxy_world import BATCH, LOG, NDJSON, PATHS, RECORDS, World, run
from tests.component.truncations import (
    finish,
    give_up_below_e3n1s1,
    lose_segment,
    put_log,
    truncate,
    wait_stuck,
)
from tests.waiting import wait_for


def seq_nums(answer: dict[str, Any]) -> list[int]:
    return [record["seq_num"] for record in answer["records"]]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("?from=head", 17),
        ("", 17),
        ("?from=seq:0", 17),
        ("?from=16", 17),
        ("?from=seq:17", 17),
        ("?from=seq:18", 18),
        ("?from=tail-100", 17),
        ("?from=tail-14", 17),
        ("?from=lsn:e1n0", 17),
        ("?from=lsn:e2n2", 17),
        ("?from=dlsn:e1n3s1", 17),
        ("?from=dlsn:e2n2s0", 17),
        ("?from=dlsn:e2n2s1", 17),
        ("?from=dlsn:e2n2s2", 18),
        ("?from=dlsn:e3n0s0", 22),
    ],
)
def test_a_position_below_the_trim_point_moves_to_it_in_every_form(query: str, first: int) -> None:
    """Trimmed inside an entry: record 17 is slot 1 of e2n2."""

    async def scenario(world: World) -> None:
        await world.fill()
        await truncate(world, 2, 2, 1, 17)
        answer = await world.read(query)
        assert seq_nums(answer) == list(range(first, 31))
        assert answer["next"] == "seq:31"

    run(scenario)


@pytest.mark.parametrize("accept", ["application/json", NDJSON, BATCH])
def test_a_read_that_was_moved_says_so(accept: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await truncate(world, 2, 2, 1, 17)

        async def told(query: str) -> str | None:
            headers = {"accept": accept}
            async with world.http.stream("GET", RECORDS + query, headers=headers) as response:
                moved: str | None = response.headers.get("Duramen-Moved-To")
                return moved

        assert await told("?from=seq:3") == "seq:17" and await told("?from=head") is None
        answer = await world.read("?from=seq:3")
        assert answer["moved_to"] == {"seq_num": 17, "dlsn": "e2n2s1"}
        assert "moved_to" not in await world.read("?from=seq:17")

    run(scenario)


def test_a_log_that_is_truncated_to_its_tail_is_empty() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await truncate(world, 3, 3, 0, 31)
        answer = await world.read("?from=head")
        assert answer["records"] == [] and answer["next"] == "seq:31"
        await world.close_segment()
        await world.open_segment()
        await world.append(2)
        assert seq_nums(await world.read("?from=head")) == [31, 32]

    run(scenario)


def test_reading_goes_on_where_segments_are_given_up() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await truncate(world, 2, 0, 0, 13)
        world.log = world.log.with_first_live_epoch(Epoch(2), unix_ms=0, nonce="g")
        await put_log(world)
        await world.store.delete(PATHS.segment(LOG, Epoch(1)), version=2)
        for query in ("?from=head", "?from=dlsn:e1n2s0", "?from=seq:4", "?from=lsn:e1n0"):
            assert seq_nums(await world.read(query)) == list(range(13, 31)), query

    run(scenario)


@pytest.mark.parametrize("accept", ["application/json", BATCH])
def test_an_answer_ends_where_what_follows_was_given_up_meanwhile(accept: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        lose_segment(world, 2)
        reading = asyncio.create_task(world.get("?from=head&count=100", accept=accept))
        await wait_stuck(world, 2)
        await give_up_below_e3n1s1(world)
        answer = await reading
        assert answer.status_code == 200
        if accept == BATCH:
            assert answer.headers["Duramen-Next"] == "seq:13"
            assert "Duramen-Tail" not in answer.headers
        else:
            assert seq_nums(answer.json()) == list(range(13))
            assert answer.json()["next"] == "seq:13" and "tail" not in answer.json()
        after = await world.read("?from=seq:13")
        assert seq_nums(after) == [27, 28, 29, 30]
        assert after["moved_to"] == {"seq_num": 27, "dlsn": "e3n1s1"}

    run(scenario)


def test_an_answer_that_would_begin_with_what_was_given_up_meanwhile_is_refused_for_now() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        lose_segment(world, 2)
        reading = asyncio.create_task(world.get("?from=seq:13"))
        await wait_stuck(world, 2)
        await give_up_below_e3n1s1(world)
        answer = await reading
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "metadata_unavailable")
        assert "seq:27" in problem["detail"] and problem["retryable"] is True

    run(scenario)


def test_a_stream_breaks_off_before_what_was_given_up_meanwhile() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        lose_segment(world, 2)
        lines: list[str] = []

        async def read() -> None:
            async with world.http.stream("GET", RECORDS, headers={"accept": NDJSON}) as response:
                async for line in response.aiter_lines():
                    lines.append(line)

        reading = asyncio.create_task(read())
        await wait_stuck(world, 2)
        await wait_for(lambda: len(lines) == 13)
        await give_up_below_e3n1s1(world)
        with pytest.raises(httpx.RemoteProtocolError):
            await reading
        assert len(lines) == 13

    run(scenario)


def test_a_skip_that_loses_nothing_does_not_end_an_answer() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        lose_segment(world, 2)
        # The reader stands before e2n0, and wants nothing of that segment.
        follower = await world.proxy.catalog.find("ns", "log")
        start = (Epoch(2), EntryId(0))
        async with LogCursor(follower, world.proxy.fetcher, start, ReaderLimits()) as cursor:
            await cursor.on_tail(await world.proxy.tails.find(follower))
            taking = asyncio.create_task(cursor.take(27))
            await wait_stuck(world, 2)
            await give_up_below_e3n1s1(world)
            delivered = await taking
        assert delivered is not None
        assert (delivered.epoch, delivered.entries[0][0]) == (3, 1)

    run(scenario)


def test_segments_show_their_status() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await truncate(world, 2, 2, 1, 17)
        answer = (await world.http.get("/v1/namespaces/ns/logs/log/segments")).json()
        shown = [(s["status"], s["min_active_dlsn"]) for s in answer["segments"]]
        assert shown == [
            ("TRUNCATED", None),
            ("PARTIALLY_TRUNCATED", "e2n2s1"),
            ("LIVE", "e3n0s0"),
        ]
        log = (await world.http.get("/v1/namespaces/ns/logs/log")).json()
        assert log["head"] == {"seq_num": 17, "dlsn": "e2n2s1"} and log["ended"] is False

    run(scenario)


def test_a_read_at_the_end_of_an_ended_log_does_not_wait() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await finish(world, Ending.END)
        for query in ("?from=tail&wait=60s", "?from=head&wait=60s&count=100"):
            answer = await world.read(query)
            assert answer["ended"] is True and answer["tail"]["seq_num"] == 31
        batches = await world.get("?from=tail&wait=60s", accept=BATCH)
        assert batches.headers["Duramen-Ended"] == "true"

    run(scenario)


def test_a_reader_that_waits_gets_what_was_left_and_the_end() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        waiting = asyncio.create_task(world.read("?from=tail&wait=60s"))
        await wait_for(lambda: any(b.waiting_count for b in world.bookies.values()))
        await finish(world, Ending.END)
        answer = await waiting
        assert answer["records"] == [] and answer["ended"] is True

    run(scenario)


def test_a_deleted_log_is_not_shown_any_more_whatever_is_cached() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()
        await finish(world, Ending.DELETE)
        for query in ("", "?from=tail", "?from=seq:3"):
            await world.problem(409, "log_deleted", None, query)
        world.log = world.log.undeleted("u")
        await put_log(world)
        assert len((await world.read())["records"]) == 31

    run(scenario)


def test_a_name_that_was_given_to_a_new_log_shows_the_new_one() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()
        await finish(world, Ending.DELETE)
        fresh = LogNode(LogId(10), "ns", "log", world.log.config)
        await world.put(PATHS.log(fresh.log_id), encode_log(fresh))
        await world.put(PATHS.name("ns", "log"), encode_node({"log_id": "10", "replaces": "9"}))
        assert (await world.read())["records"] == []

    run(scenario)
