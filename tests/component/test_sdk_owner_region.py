"""Clients that follow a log to the region of its owner: whom they ask, and what they fall back to.

Two clusters in one: `near` is the client's own proxy, `there` that of the owner's region; they
have the same logs. Source: docs/sdk.md, docs/protocol/ownership.md "Clients in another region".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.client import Repeat, RetryPolicy
from duramen.cluster.layout import pick_free_port
from tests.component.sdk_faces import open_client
from tests.component.sdk_scenarios import SOON, bodies, face
from tests.component.sdk_world import FakeCluster, running_cluster, store_and_lose

Scenario = Callable[[FakeCluster, FakeCluster, Any], Awaitable[None]]


def play(scenario: Scenario, face: str, **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_cluster() as near, running_cluster() as there:
            there.logs, near.elsewhere = near.logs, there.url
            options.setdefault("retry", SOON)
            async with open_client(face, near.url, **{"follow_owner": True, **options}) as client:
                await scenario(near, there, client)

    asyncio.run(run())


@face
def test_an_append_goes_where_it_is_sent_and_the_next_one_at_once(face: str) -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        for body in (b"1", b"2", b"3"):
            await client["ns"]["log"].append(body)
        assert near.asking == [True]
        assert there.asking == [False, True, True], "sent there it does not ask a second time"
        assert bodies(near) == [b"1", b"2", b"3"]

    play(scenario, face)


@face
def test_who_does_not_ask_stays(face: str) -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        await client["ns"]["log"].append(b"1")
        assert (near.asking, there.asking) == ([False], [])

    play(scenario, face, follow_owner=False)


def test_proxies_that_disagree_send_an_append_round_no_more_than_once() -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        there.elsewhere = near.url
        for body in (b"1", b"2"):
            await client["ns"]["log"].append(body)
        assert near.asking == [True, False], "the owner was there, and is here by now"
        assert there.asking == [False, True]

    play(scenario, "async")


@pytest.mark.parametrize("repeat", [Repeat.ALL, Repeat.NONE])
def test_a_proxy_that_is_not_reached_costs_no_append(repeat: Repeat) -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        await client["ns"]["log"].append(b"1")
        await there.stop()
        await client["ns"]["log"].append(b"2")
        assert near.asking == [True, False], "it was known, and is not there"
        near.elsewhere = f"http://127.0.0.1:{pick_free_port()}"
        await client["ns"]["log"].append(b"3")
        assert near.asking == [True, False, True, False], "it was named, and is not there"
        assert bodies(near) == [b"1", b"2", b"3"]
        await there.start()

    play(scenario, "async", retry=RetryPolicy(repeat=repeat, within_s=5, first_pause_s=0.001))


def test_after_an_unknown_fate_the_first_proxy_is_asked_and_nothing_is_stored_twice() -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        await client["ns"]["log"].append(b"1")
        there.faults.append(store_and_lose)
        await client["ns"]["log"].append(b"2")
        assert near.asking == [True, True] and bodies(near) == [b"1", b"2"]

    play(scenario, "async")


def test_a_place_that_is_none_is_followed_by_nobody() -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        near.elsewhere = "ftp://there"
        await client["ns"]["log"].append(b"1")
        assert near.asking == [True, False] and not there.asking

    play(scenario, "async")


@face
def test_a_producer_keeps_its_order_while_it_moves(face: str) -> None:
    async def scenario(near: FakeCluster, there: FakeCluster, client: Any) -> None:
        near.elsewhere = None
        wanted = [b"%d" % n for n in range(60)]
        async with client["ns"]["log"].producer(linger=0, batch_records=1) as producer:
            for number, body in enumerate(wanted):
                ticket = await producer.send(body)
                if number in (20, 40):
                    await ticket
                    near.elsewhere = there.url if number == 20 else None
                    there.elsewhere = None if number == 20 else near.url
        assert bodies(near) == wanted
        assert len(there.asking) > 15 and sum(near.asking[21:]) > 15

    play(scenario, face)
