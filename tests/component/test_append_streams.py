"""Appends of the SDK that share a session, at a real write proxy over real HTTP/2.

The sequencers are scripted; what they were sent is what may be in a log. Source: docs/sdk.md
"Appending", docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

from duramen.client import Client, DuramenError, Repeat, RetryPolicy, Uncertain
from duramen.client.sdk.log import Log
from duramen.client.sharing.append_streams import SHARED_COUNT_MIN
from duramen.wire.record_batch import check_batch, decode_batch
from duramen.wire.sequencer_calls import Append, AppendResult
from duramen_writeproxy.intake import stream_route
from tests.component.writeproxy_world import World, run
from tests.waiting import wait_for

MANY = 40

Play = Callable[[World, Client, Log], Awaitable[None]]


def play(scenario: Play, repeat: Repeat = Repeat.SAFE, within_s: float = 20.0) -> None:
    async def with_client(world: World) -> None:
        policy = RetryPolicy(repeat=repeat, within_s=within_s, first_pause_s=0.01)
        async with Client(f"http://127.0.0.1:{world.proxy.port}", retry=policy) as client:
            await scenario(world, client, client["a"]["l"])

    run(with_client)


def bodies_of(rows: Sequence[Append]) -> list[bytes]:
    return [body for row in rows for body in decode_batch(bytes(row.batch)).bodies]


def bodies_sent(world: World) -> Counter[bytes]:
    return Counter(bodies_of(world.rows))


def count_shared(client: Client) -> int:
    return int(client.statistics()["append_streams"]["appended"])


async def append_until_shared(client: Client, log: Log) -> set[bytes]:
    """Appends until some went in a session; what was acknowledged."""
    acked: set[bytes] = set()

    async def work(worker: int) -> None:
        number = 0
        while count_shared(client) < MANY:
            body = b"%d-%d" % (worker, number)
            await log.append(body)
            acked.add(body)
            number += 1

    await asyncio.gather(*(work(worker) for worker in range(SHARED_COUNT_MIN * 2)))
    return acked


@pytest.mark.parametrize("repeat", [Repeat.SAFE, Repeat.ALL])
def test_appends_that_share_a_session_are_in_the_log_once(repeat: Repeat) -> None:
    async def scenario(world: World, client: Client, log: Log) -> None:
        acked = await append_until_shared(client, log)
        assert bodies_sent(world) == Counter(acked)
        told = client.statistics()["append_streams"]
        assert (told["opened"], told["failed"], told["not_taken"]) == (1, 0, 0)
        sessions = world.proxy.statistics()["sessions"]
        assert sessions["open"] == 1

    play(scenario, repeat)


def test_one_append_at_a_time_opens_no_session() -> None:
    async def scenario(world: World, client: Client, log: Log) -> None:
        for number in range(20):
            await log.append(b"%d" % number)
        assert client.statistics()["append_streams"]["opened"] == 0
        assert len(world.rows) == 20

    play(scenario)


def test_a_token_goes_along_and_a_number_never_does() -> None:
    async def scenario(world: World, client: Client, log: Log) -> None:
        await append_until_shared(client, log)
        before = len(world.rows)
        shared = count_shared(client)
        await asyncio.gather(*(log.append(b"t", fencing_token="me") for _ in range(8)))
        assert count_shared(client) == shared + 8
        assert {row.options.fencing_token for row in world.rows[before:]} == {"me"}
        await log.append(b"n", match_seq_num=7)
        assert count_shared(client) == shared + 8
        assert world.rows[-1].options.match_seq_num == 7

    play(scenario)


def test_a_doubt_is_told_of_what_was_sent_with_it_and_the_rest_is_appended() -> None:
    """The sequencer is given a batch and its stream ends: those of its frame may be in the log."""

    async def scenario(world: World, client: Client, log: Log) -> None:
        await append_until_shared(client, log)
        accept = world.first.decide

        async def lose(append: Append) -> AppendResult | None:
            is_lost = b"lost" in decode_batch(bytes(append.batch)).bodies
            return None if is_lost else await accept(append)

        world.first.decide = lose
        others = [asyncio.create_task(log.append(b"%d" % number)) for number in range(8)]
        with pytest.raises(Uncertain):
            await log.append(b"lost")
        outcomes = await asyncio.gather(*others, return_exceptions=True)
        sent = bodies_sent(world)
        assert sent[b"lost"] == 1
        (frame,) = (f for f in world.first.frames if b"lost" in bodies_of(f))
        for number, outcome in enumerate(outcomes):
            body = b"%d" % number
            assert sent[body] == 1
            if isinstance(outcome, DuramenError):
                assert outcome.uncertain and body in bodies_of(frame)
        assert count_shared(client) > MANY

    play(scenario)


def test_with_producers_a_doubt_is_settled_and_nothing_is_there_twice() -> None:
    async def scenario(world: World, client: Client, log: Log) -> None:
        acked = await append_until_shared(client, log)
        accept, left = world.first.decide, [3]

        async def lose(append: Append) -> AppendResult | None:
            left[0] -= 1
            return await accept(append) if left[0] < 0 else None

        world.first.decide = lose
        bodies = [b"after-%d" % number for number in range(12)]
        await asyncio.gather(*(log.append(body) for body in bodies))
        stamps = {
            (check_batch(bytes(row.batch)).producer, body)
            for row in world.rows
            for body in decode_batch(bytes(row.batch)).bodies
            if body not in acked
        }
        # What was sent again has the numbers of the first time: the log knows it.
        assert sorted(body for _, body in stamps) == sorted(bodies)
        assert sum(bodies_sent(world).values()) > len(acked) + len(bodies)

    play(scenario, Repeat.ALL)


def test_a_proxy_without_room_for_sessions_is_asked_by_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_route, "SESSION_COUNT_MAX", 0)

    async def scenario(world: World, client: Client, log: Log) -> None:
        bodies = [b"%d" % number for number in range(MANY)]
        await asyncio.gather(*(log.append(body) for body in bodies))
        await wait_for(lambda: client.statistics()["append_streams"]["failed"] == 1)
        await asyncio.gather(*(log.append(body) for body in bodies))
        assert bodies_sent(world) == Counter(bodies * 2)
        told = client.statistics()["append_streams"]
        assert (told["opened"], told["appended"]) == (1, 0)

    play(scenario)


def test_a_proxy_that_drains_ends_the_session_and_loses_nothing() -> None:
    async def scenario(world: World, client: Client, log: Log) -> None:
        acked = await append_until_shared(client, log)
        draining = asyncio.create_task(world.proxy.stop())
        bodies = [b"late-%d" % number for number in range(20)]
        outcomes = await asyncio.gather(
            *(log.append(body) for body in bodies), return_exceptions=True
        )
        await draining
        sent = bodies_sent(world)
        for body, outcome in zip(bodies, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, DuramenError)
                assert outcome.uncertain or not sent[body]
            else:
                assert sent[body] == 1
        assert all(sent[body] == 1 for body in acked)

    play(scenario, within_s=0.2)


def test_where_nothing_is_to_be_shared_there_are_calls_alone() -> None:
    async def scenario(world: World) -> None:
        url = f"http://127.0.0.1:{world.proxy.port}"
        once = RetryPolicy(repeat=Repeat.NONE)
        for made in (
            Client(url, http2=False), Client(url, follow_owner=True), Client(url, retry=once),
        ):  # fmt: skip
            async with made as client:
                await asyncio.gather(*(client["a"]["l"].append(b"x") for _ in range(MANY)))
                assert not client.statistics()["append_streams"]

    run(scenario)
