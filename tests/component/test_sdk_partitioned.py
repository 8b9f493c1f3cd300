"""Partitioned logs of the SDK: one order for each key, exactly once, whatever fails. Both faces.

Faults come from `sdk_world` as scripted, one for each batch that arrives, whatever its log is.
Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from duramen.errors import DuramenError
from tests.component.sdk_scenarios import bodies, face, play
from tests.component.sdk_world import FakeCluster, lose, refuse, serve, store_and_lose
from tests.waiting import wait_for

COUNT = 4
KEYS = [f"key-{number}" for number in range(12)]


def open_clicks(client: Any, count: Any = COUNT) -> Any:
    return client.partitioned_log("ns/clicks", partitions=count)


async def ensured(client: Any) -> Any:
    await client["ns"].ensure()
    clicks = open_clicks(client)
    assert await clicks.ensure()
    return clicks


def names(count: int = COUNT) -> list[str]:
    return [f"ns/clicks.{partition}-of-{count}" for partition in range(count)]


@face
@pytest.mark.parametrize("seed", range(3))
def test_each_key_has_its_order_whatever_fails(face: str, seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        kinds = [serve, store_and_lose, lose, refuse("window_full", retry_after_ms=1)]
        cluster.faults += rng.choices(kinds, [4, 1, 1, 1], k=60)
        tickets = []
        async with clicks.producer(linger=0, batch_records=2) as producer:
            for number in range(120):
                key = rng.choice(KEYS)
                partition = clicks.partition_of(key)
                body = f"{key} {number}".encode()
                tickets.append((partition, body, await producer.send(key, body)))
            await producer.flush()
            assert producer.statistics()["held_bytes"] == 0
            assert producer.statistics()["sent_again"] > 0
        stored = [bodies(cluster, name) for name in names()]
        for partition, body, ticket in tickets:
            assert stored[partition][(await ticket).seq_num] == body
        assert sum(map(len, stored)) == 120
        assert all(stored), "with twelve keys every partition has one"

    play(scenario, face)


@face
def test_a_partition_that_fails_leaves_the_others_as_they_are(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        broken, whole = (next(k for k in KEYS if clicks.partition_of(k) == p) for p in (0, 1))
        cluster.log(names()[0]).is_ended = True
        producer = clicks.producer(linger=0)
        await producer.__aenter__()
        ticket = await producer.send(broken, b"a")
        with pytest.raises(DuramenError) as failed:
            await ticket
        assert failed.value.code == "log_ended"
        await (await producer.send(whole, b"b"))
        with pytest.raises(DuramenError, match="ended"):
            await producer.send(broken, b"c")
        with pytest.raises(DuramenError, match="ended"):
            await producer.room(broken)
        last = await producer.send(whole, b"d")
        with pytest.raises(DuramenError, match="ended"):
            await producer.close()
        assert (await last).seq_num == 1, "what is taken in is settled before the fault is raised"
        assert bodies(cluster, names()[1]) == [b"b", b"d"]

    play(scenario, face)


@face
def test_all_partitions_are_read_each_in_its_order(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        async with clicks.producer(batch_records=3, id="writer") as producer:
            assert producer.id == "writer"
            for number in range(60):
                await producer.send(KEYS[number % len(KEYS)], b"%d" % number)
        found: dict[int, list[bytes]] = defaultdict(list)
        positions = dict.fromkeys(range(COUNT), 0)
        async for partition, batch in clicks.read("head", answer_bytes=1):
            assert batch.first == positions[partition]
            positions[partition] = batch.end
            found[partition] += batch.bodies
        assert [found[p] for p in range(COUNT)] == [bodies(cluster, name) for name in names()]
        assert {p: mark.seq_num for p, mark in (await clicks.tail()).items()} == positions
        assert [part async for part in clicks.read(positions)] == []
        positions[2] -= 1
        [(partition, batch)] = [part async for part in clicks.read(positions)]
        assert (partition, batch.bodies) == (2, found[2][-1:])

    play(scenario, face)


def test_a_follower_gets_what_comes_in_any_partition_until_all_are_ended() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        found: list[tuple[int, bytes]] = []

        async def follow() -> None:
            async for partition, batch in clicks.read("tail", follow=True):
                found.extend((partition, body) for body in batch.bodies)

        follower = asyncio.create_task(follow())
        expected = []
        await wait_for(lambda: len(cluster.reads) >= 2 * COUNT)  # all of them wait at the tail
        for key in KEYS:
            partition = clicks.partition_of(key)
            await client["ns"][clicks.log_names[partition]].append(key.encode())
            expected.append((partition, key.encode()))
            await wait_for(lambda: len(found) == len(expected))
        assert found == expected
        for name in clicks.log_names:
            assert not follower.done()
            await client["ns"][name].end()
        await follower

    play(scenario, "async")


def test_a_partition_that_cannot_be_read_ends_the_read() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        await client["ns"][clicks.log_names[3]].append([b"a", b"b"])
        with pytest.raises(DuramenError) as beyond:
            async for _ in clicks.read({0: 0, 1: 0, 2: 0, 3: 99}):
                pass
        assert beyond.value.code == "beyond_tail"

    play(scenario, "async")


@face
def test_another_number_of_partitions_is_refused_and_nothing_is_appended(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = await ensured(client)
        assert not await clicks.ensure(), "the same number is no change"
        for count in (COUNT - 1, COUNT + 1, 1):
            other = open_clicks(client, count)
            with pytest.raises(DuramenError, match="has 4 partitions, not") as refused:
                await other.ensure()
            assert refused.value.code == "log_exists_with_other_config"
            with pytest.raises(DuramenError, match="has 4 partitions, not") as refused:
                async with other.producer() as producer:
                    await producer.send("key", b"lost")
            assert (refused.value.code, refused.value.field) == ("invalid_argument", "partitions")
            with pytest.raises(DuramenError, match="make a partitioned log with another name"):
                async for _ in other.read():
                    pass
        assert sorted(name for _, name in cluster.logs if name.startswith("clicks.")) == [
            name.partition("/")[2] for name in names()
        ]
        assert not any(bodies(cluster, name) for name in names())

    play(scenario, face)


@face
def test_partitions_that_are_missing_are_told_and_can_be_made(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.add_log(names()[1])
        cluster.add_log("ns/clicks.archive")  # no partition of it
        clicks = open_clicks(client)
        with pytest.raises(DuramenError, match="1 of 4 partitions of ns/clicks are there"):
            await clicks.tail()
        assert await clicks.ensure()
        assert list(await clicks.tail()) == list(range(COUNT))

    play(scenario, face)


@face
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        clicks = open_clicks(client)
        for count in (0, 1_001, True, 2.0):
            with pytest.raises(DuramenError) as refused:
                open_clicks(client, count)
            assert refused.value.field == "partitions"
        for from_ in (7, {0: 0}, dict.fromkeys(range(COUNT + 1), 0)):
            with pytest.raises(DuramenError) as refused:
                async for _ in clicks.read(from_):
                    pass
            assert refused.value.field == "from_"
        with pytest.raises(DuramenError) as refused:
            clicks.partition_of(7)
        assert refused.value.field == "key"
        with pytest.raises(DuramenError) as refused:
            clicks.producer(max_in_flight_bytes=0)
        assert refused.value.field == "max_in_flight_bytes"
        assert len(clicks.log_names) == COUNT

    play(scenario, face)
