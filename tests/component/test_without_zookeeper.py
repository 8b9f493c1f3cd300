"""Reads while ZooKeeper cannot be read: what is known of a log is served, and no more is promised.

Over real HTTP with fake bookies (`readproxy_world`); the proxy's store is cut off and everybody
else's is not, as where only this proxy has lost ZooKeeper: the harder case, since logs change
meanwhile. Source: ADR 0021; docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from duramen.units import SECOND
from tests.component.readproxy_world import BATCH, NDJSON, World, check, run, seq_nums
from tests.waiting import wait_for

TAIL = "/v1/namespaces/ns/logs/log/records/tail"
COUNT = 31


async def cut_off(world: World) -> None:
    """A log with three segments, all of which the proxy has read, and no ZooKeeper any more."""
    await world.fill()
    check(world, await world.read("?from=head"), 0, COUNT)
    world.proxy_store.disconnect()


@pytest.mark.parametrize(
    ("query", "first"),
    [("?from=head", 0), ("?from=seq:3", 3), ("?from=seq:25", 25), ("?from=dlsn:e2n1s0", 14),
     ("?from=time:1970-01-01T00:00:00Z", 0)],
)  # fmt: skip
def test_what_is_known_is_read_to_its_newest_record(query: str, first: int) -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        await world.append(5)
        world.forget()
        answer = await world.read(query)
        check(world, answer, first, COUNT + 5)
        assert "tail" not in answer, "more may follow in a segment that nobody here knows of"

    run(scenario)


@pytest.mark.parametrize("media", [BATCH, NDJSON])
def test_other_forms_are_served_too(media: str) -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        answer = await world.get("?from=seq:24&count=7", accept=media)
        assert answer.status_code == 200, answer.text
        if media == NDJSON:
            seqs = [json.loads(line)["seq_num"] for line in answer.text.splitlines()]
            assert seqs == list(range(24, COUNT))
        else:
            assert answer.headers["duramen-next"] == f"seq:{COUNT}"
            assert "duramen-tail" not in answer.headers

    run(scenario)


@pytest.mark.parametrize("query", ["?from=tail", "?from=tail-3", "?from=tail&wait=5s"])
def test_where_the_log_ends_is_not_known(query: str) -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        await world.problem(503, "metadata_unavailable", None, query)
        answer = await world.http.get(TAIL)
        assert (answer.status_code, answer.json()["code"]) == (503, "metadata_unavailable")

    run(scenario)


def test_a_position_that_may_be_there_is_not_called_wrong() -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        for query in (f"?from=seq:{COUNT + 1}", "?from=dlsn:e4n0s0", "?from=txid:7"):
            problem = await world.problem(503, "metadata_unavailable", None, query)
            assert "ZooKeeper" in problem["detail"]

    run(scenario)


def test_who_waits_gets_records_as_they_are_acknowledged() -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        for count in (1, 2, 3):
            first = len(world.bodies)
            waiting = asyncio.create_task(world.read(f"?from=seq:{first}&wait=30s"))
            await wait_for(lambda: any(b.waiting_count for b in world.bookies.values()))
            await world.append(count)
            check(world, await waiting, first, first + count)

    run(scenario)


@pytest.mark.parametrize("media", ["application/json", BATCH])
def test_who_waited_is_not_told_that_what_came_is_the_end(media: str) -> None:
    """The feed has come to all that it knows of: nobody has asked ZooKeeper since the question."""

    async def scenario(world: World) -> None:
        await cut_off(world)
        for number in range(COUNT, COUNT + 3):
            query = f"?from=seq:{number}&wait=30s"
            waiting = asyncio.create_task(world.get(query, accept=media))
            await wait_for(lambda: any(b.waiting_count for b in world.bookies.values()))
            await world.append(1)
            answer = await waiting
            assert answer.status_code == 200, answer.text
            assert "duramen-tail" not in answer.headers
            assert media == BATCH or "tail" not in answer.json()

    run(scenario)


def test_who_waited_before_goes_on_waiting() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        waiting = asyncio.create_task(world.read(f"?from=seq:{COUNT}&wait=30s"))
        await wait_for(lambda: any(b.waiting_count for b in world.bookies.values()))
        world.proxy_store.disconnect()
        loop = asyncio.get_running_loop()
        polled = sum(bookie.read_count for bookie in world.bookies.values())
        looks_s = loop.time()
        # Longer than a reader tries to read metadata that it cannot do without.
        await wait_for(
            lambda: (
                loop.time() - looks_s > 5
                and sum(bookie.read_count for bookie in world.bookies.values()) > polled + 2
            )
        )
        await world.append(2)
        check(world, await waiting, COUNT, COUNT + 2)

    run(scenario)


def test_a_segment_that_nobody_has_read_is_named() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        assert seq_nums(await world.read("?from=seq:25")) == list(range(25, COUNT))
        world.proxy_store.disconnect()
        problem = await world.problem(503, "metadata_unavailable", None, "?from=head")
        assert "e1" in problem["detail"]

    run(scenario)


def test_who_needs_a_newer_segment_is_told_so() -> None:
    """Sealed by the next sequencer: whether and where it goes on only ZooKeeper says."""

    async def scenario(world: World) -> None:
        await cut_off(world)
        waiting = asyncio.create_task(world.get(f"?from=seq:{COUNT}&wait=30s"))
        await wait_for(lambda: any(b.waiting_count for b in world.bookies.values()))
        for bookie in world.bookies.values():
            bookie.is_sealed = True
        await world.close_segment()
        await world.open_segment()
        await world.append(3)
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (503, "metadata_unavailable")
        for bookie in world.bookies.values():
            bookie.is_sealed = False
        world.proxy_store.reconnect()
        check(world, await world.read(f"?from=seq:{COUNT}&wait=30s"), COUNT, COUNT + 3)

    run(scenario)


def test_what_was_truncated_meanwhile_is_shown_until_zookeeper_is_back() -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        await world.put_truncated(20, "e3n0")
        check(world, await world.read("?from=head"), 0, COUNT)
        world.proxy_store.reconnect()
        answer = await world.read("?from=seq:3")
        assert answer["moved_to"]["seq_num"] == 20

    run(scenario)


def test_what_is_too_old_is_refused_with_the_bound() -> None:
    async def scenario(world: World) -> None:
        await cut_off(world)
        for query in ("?from=head", "?from=seq:25"):
            problem = await world.problem(503, "metadata_unavailable", None, query)
            assert "--metadata-age-max" in problem["detail"]
        world.proxy_store.reconnect()
        check(world, await world.read("?from=head"), 0, COUNT)

    run(scenario, metadata_age_max_us=0)


@pytest.mark.parametrize(("age_max_us", "is_ready"), [(0, False), (3600 * SECOND, True)])
def test_it_is_ready_for_as_long_as_it_serves(age_max_us: int, is_ready: bool) -> None:
    """All read proxies lose ZooKeeper together: a load balancer would have none left."""

    async def scenario(world: World) -> None:
        assert world.proxy.is_ready()
        world.proxy_store.disconnect()
        await wait_for(lambda: world.proxy.is_ready() == is_ready)
        world.proxy_store.reconnect()
        await wait_for(world.proxy.is_ready)

    run(scenario, metadata_age_max_us=age_max_us)
