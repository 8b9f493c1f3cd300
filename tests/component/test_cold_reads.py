"""Cold ranges behind the read proxy: the same records, from a store that may be down or damaged.

Source: docs/protocol/reading.md "Cold copies", docs/protocol/archive.md "Reading",
docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.client.core.client import CoreClient
from duramen.ids import Epoch, ledger_of
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.texts import parse_position
from duramen_readproxy import rest
from tests.component.readproxy_world import BATCH, LOG, NDJSON, World, check, run
from tests.waiting import wait_for

QUERIES = [
    "from=head", "from=seq:0", "from=seq:4&count=3", "from=seq:12", "from=seq:13", "from=seq:21",
    "from=dlsn:e1n1s2", "from=lsn:e2n3", "from=dlsn:e1n9s0", "from=tail-25", "from=tail-31",
    "from=seq:2&until=seq:23", "from=time:1009", "from=time:1001", "from=head&bytes=1",
]  # fmt: skip


async def cool(world: World, first_hot: int, *, row_group_bytes: int = 4096) -> None:
    for epoch in range(1, first_hot):
        await world.archive(epoch, row_group_bytes=row_group_bytes)
    await world.release(first_hot)
    follower = await world.proxy.catalog.find("ns", "log")
    await follower.refresh(Epoch(1))


def test_every_position_and_form_gives_the_same_wherever_records_lie() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        hot = {query: (await world.get(f"?{query}")).content for query in QUERIES}
        forms = {
            form: (await world.get("?from=head&count=25", accept=form)).content
            for form in (
                "application/x-ndjson",
                "text/event-stream",
                "application/vnd.duramen.batch",
            )
        }
        for first_hot in (2, 3):
            await world.archive(first_hot - 1, part_count=2, row_group_bytes=200)
            await world.release(first_hot)
            follower = await world.proxy.catalog.find("ns", "log")
            await follower.refresh(Epoch(1))
            for query, content in hot.items():
                assert (await world.get(f"?{query}")).content == content, (query, first_hot)
            for form, content in forms.items():
                found = (await world.get("?from=head&count=25", accept=form)).content
                assert found == content, (form, first_hot)
        assert world.cold.statistics()["loads"] > 4

    run(scenario)


class Plan(NamedTuple):
    """A log, which part of it is cold and how it was archived, and reads of it."""

    segments: list[list[tuple[int, int | None]]]
    """Records, and txid of the first, of each entry; no records: a control entry."""
    first_hot: int
    row_group_bytes: int
    part_count: int
    queries: list[tuple[str, str]]
    """Query and media type."""


ENTRIES = st.tuples(st.integers(0, 4), st.none() | st.integers(0, 5))
FORMS = st.sampled_from(["application/json", NDJSON, BATCH])
POSITIONS = st.one_of(
    st.integers(0, 40).map("seq:{}".format), st.integers(0, 40).map("tail-{}".format),
    st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda p: f"lsn:e{p[0]}n{p[1]}"),
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 3)).map(
        lambda p: f"dlsn:e{p[0]}n{p[1]}s{p[2]}"
    ),
    st.integers(0, 40).map("txid:{}".format), st.integers(990, 1_045).map("time:{}".format),
    st.just("head"),
)  # fmt: skip
BOUNDS = st.sampled_from(["", "&count=1", "&count=5", "&bytes=1", "&until=seq:9"])


@st.composite
def make_plan(draw: st.DrawFn) -> Plan:
    segments = draw(st.lists(st.lists(ENTRIES, max_size=6), min_size=1, max_size=4))
    read = st.tuples(POSITIONS, BOUNDS, FORMS).map(lambda r: (f"from={r[0]}{r[1]}", r[2]))
    return Plan(
        segments,
        draw(st.integers(2, len(segments) + 1)),
        draw(st.sampled_from([1, 300, 4096])),
        draw(st.integers(1, 3)),
        draw(st.lists(read, min_size=8, max_size=8)),
    )


async def write(world: World, plan: Plan) -> None:
    """Every segment but a last one, with three records, is closed; txids only rise."""
    greatest = 0
    for entries in plan.segments:
        await world.open_segment()
        for count, step in entries:
            if count == 0:
                await world.append_control()
                continue
            txids = None
            if step is not None:
                txids = [greatest + step] * count
                greatest += step
            await world.append(count, txids=txids)
        await world.close_segment()
    await world.open_segment()
    await world.append(3)


@settings(max_examples=20)
@given(make_plan())
def test_whatever_is_cold_any_read_gives_the_same(plan: Plan) -> None:
    """Before anything is archived, and after a part of the log has left the bookies."""

    async def scenario(world: World) -> None:
        await write(world, plan)

        async def ask() -> list[tuple[int, bytes, str | None]]:
            found = []
            for query, form in plan.queries:
                answer = await world.get(f"?{query}&clamp=true", accept=form)
                following = answer.headers.get("duramen-next")
                found.append((answer.status_code, answer.content, following))
            return found

        hot = await ask()
        for epoch in range(1, plan.first_hot):
            await world.archive(
                epoch, part_count=plan.part_count, row_group_bytes=plan.row_group_bytes
            )
        await world.release(plan.first_hot)
        follower = await world.proxy.catalog.find("ns", "log")
        await follower.refresh(Epoch(1))
        world.forget()
        assert await ask() == hot

    run(scenario)


def test_a_reader_in_the_middle_meets_no_seam() -> None:
    """It has read the beginning from bookies when they drop it, and its metadata are old."""

    async def scenario(world: World) -> None:
        await world.fill()
        store = MemoryStore(world.tree)
        async with CoreClient("", cluster="c", store=store) as client:
            client._reading.fetcher._cold = world.cold
            log = client.log("ns", "log")
            seen: list[int] = []
            async with aclosing(log.read("head")) as batches:
                async for batch in batches:
                    seen += [record.seq_num for record in batch]
                    if seen[-1] == 5:
                        await world.archive(1, row_group_bytes=200)
                        await world.archive(2, row_group_bytes=200)
                        await world.release(3)
            assert seen == list(range(31))

    run(scenario)


def test_a_cold_store_that_is_down_leaves_hot_ranges_alone() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 3)
        world.cold_store.is_down = True
        problem = await world.problem(503, "cold_store_unavailable", None, "?from=seq:2")
        assert problem["retryable"] and not problem["uncertain"]
        await world.problem(503, "cold_store_unavailable", None, "?from=time:1001")
        check(world, await world.read("?from=seq:22"), 22, 31)
        assert world.cold.statistics()["is_down"]
        assert world.cold.statistics()["failures"] >= 1
        world.cold_store.is_down = False
        await wait_for(lambda: not world.cold.statistics()["is_down"])
        check(world, await world.read("?from=seq:2"), 2, 31)
        world.cold_store.is_down = True
        check(world, await world.read("?from=seq:2"), 2, 31)

    run(scenario)


def test_hot_ranges_do_not_wait_while_the_cold_store_is_silent() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 3)
        world.cold_store.gate.clear()
        try:
            waiting = [asyncio.create_task(world.get(f"?from=seq:{n}")) for n in range(12)]
            await wait_for(lambda: world.cold.statistics()["layouts"] + len(waiting) > 0)
            check(world, await world.read("?from=seq:22"), 22, 31)
            assert not any(task.done() for task in waiting)
        finally:
            world.cold_store.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}

    run(scenario)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "exchanged"])
@pytest.mark.parametrize("target", ["part", "manifest", "footer"])
def test_what_is_damaged_is_never_served(damage: str, target: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 3, row_group_bytes=200)
        files = world.cold_store.files
        ending = "manifest.json" if target == "manifest" else ".parquet"
        paths = sorted(path for path in files if path.endswith(ending))
        for path in paths:
            data = bytearray(files[path])
            match damage:
                case "flipped":
                    data[len(data) // 3 if target != "footer" else -40] ^= 4
                    files[path] = bytes(data)
                case "truncated":
                    files[path] = bytes(data[: len(data) // 2 if target != "footer" else -20])
                case "missing":
                    del files[path]
                case _:
                    files[path] = files[paths[0]] if path != paths[0] else bytes(data[::-1])
        answer = await world.get("?from=head&count=13")
        if answer.status_code == 200:  # what lies before the damage is whole
            found = [record["body"] for record in answer.json()["records"]]
            assert found == world.bodies[: len(found)] and len(found) < 13
        else:
            assert (answer.status_code, answer.json()["code"]) == (503, "data_unavailable")
        await world.problem(503, "data_unavailable", None, "?from=seq:12&count=1")
        assert world.cold.statistics()["damaged"] >= 1
        check(world, await world.read("?from=seq:22"), 22, 31)

    run(scenario)


def test_hot_copies_help_where_the_cold_one_is_damaged_and_cold_where_no_bookie_answers() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.archive(1)
        for bookie in world.bookies.values():
            bookie.is_broken = True
        check(world, await world.read("?from=head&count=13"), 0, 13)
        for bookie in world.bookies.values():
            bookie.is_broken = False
        await world.archive(2)
        world.cold_store.files.clear()
        check(world, await world.read("?from=seq:13"), 13, 31)

    run(scenario)


def test_a_look_up_loads_one_row_group_and_a_reader_has_more_ahead() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        for _ in range(60):
            await world.append(20)
        await world.close_segment()
        await world.open_segment()
        await cool(world, 2, row_group_bytes=4096)
        layout_groups = -(-60 * 20 * 106 // 4096)
        check(world, await world.read("?from=seq:600&count=1"), 600, 601)
        before = world.cold.statistics()
        assert before["loads"] <= 2 and before["ahead"] == 0, "row groups are pruned"
        check(world, await world.read("?from=head&count=1200"), 0, 1200)
        after = world.cold.statistics()
        assert after["ahead"] > layout_groups // 3
        assert after["loads"] == after["groups"] <= 60
        assert 0 < after["bytes"] <= after["bytes_max"]
        assert after["hits"] > 0
        check(world, await world.read("?from=head&count=1200"), 0, 1200)
        assert world.cold.statistics()["loads"] == after["loads"], "all of it is in memory"
        assert world.cold.hit_ratio > after["hit_ratio"]

    run(scenario)


def test_the_cache_keeps_its_bound_and_readers_share_loads() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        for _ in range(60):
            await world.append(20)
        await world.close_segment()
        await world.open_segment()
        world.cold._cache_bytes_max = 5_000
        await cool(world, 2, row_group_bytes=4096)
        asked = [world.read("?from=seq:700&count=100") for _ in range(10)]
        for answer in await asyncio.gather(*asked):
            check(world, answer, 700, 800)
        statistics = world.cold.statistics()
        assert statistics["loads"] < 40
        assert statistics["bytes"] <= 5_000 or statistics["groups"] == 1

    run(scenario)


def test_a_proxy_without_a_cold_store_says_so() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 2)
        world.proxy.fetcher._cold = None
        problem = await world.problem(503, "cold_store_unavailable", None, "?from=head")
        assert "--cold-store" in problem["detail"]
        check(world, await world.read("?from=seq:13"), 13, 31)

    run(scenario)


def test_a_stream_ends_with_the_error_and_goes_on_later() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 3, row_group_bytes=200)
        check(world, await world.read("?from=seq:0&count=5"), 0, 5)
        world.cold._groups.clear()
        world.cold._cached_bytes = 0
        world.cold_store.is_down = True
        answer = await world.get("?from=seq:0", accept="application/x-ndjson")
        assert answer.status_code == 503
        world.cold_store.is_down = False
        await wait_for(lambda: not world.cold.statistics()["is_down"])
        lines = (await world.get("?from=seq:0&count=31", accept="application/x-ndjson")).text
        bodies = [json.loads(line)["body"] for line in lines.splitlines()]
        assert bodies == world.bodies

    run(scenario)


def test_a_node_that_was_read_before_its_archive_is_read_again() -> None:
    """CLOSED segments are cached as they are; one that was released has a cold copy."""

    async def scenario(world: World) -> None:
        await world.fill()
        follower = await world.proxy.catalog.find("ns", "log")
        before = (await follower.current(Epoch(1)))[1]
        assert before is not None and before.cold_copy is None
        await world.archive(1)
        assert (await follower.current(Epoch(1)))[1] == before, "nobody needs it yet"
        await world.release(2)
        await follower.refresh(Epoch(3))
        after = (await follower.current(Epoch(1)))[1]
        assert after is not None and after.cold_copy is not None

    run(scenario)


def test_a_listing_tells_of_cold_copies_whatever_the_tiering_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy that names a log archives it without tiering, and asks here what still waits.

    The log node does not tell of that, so closed segments are read again, but not each time.
    """

    async def list_archived(world: World) -> list[int]:
        answer = (await world.http.get("/v1/namespaces/ns/logs/log/segments")).json()
        return [row["epoch"] for row in answer["segments"] if row["cold_copy"] is not None]

    async def scenario(world: World) -> None:
        await world.fill()
        assert world.log.config.tiering.policy == "none"
        monkeypatch.setattr(rest, "LISTED_AGAIN_S", 3_600.0)
        assert await list_archived(world) == []
        await world.archive(1)
        assert await list_archived(world) == []
        monkeypatch.setattr(rest, "LISTED_AGAIN_S", 0.0)
        assert await list_archived(world) == [1]

    run(scenario)


def test_a_process_without_pyarrow_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duramen.runtime.reading.cold_archive", None)

    async def scenario(world: World) -> None:
        await world.fill()
        await cool(world, 2)
        problem = await world.problem(503, "cold_store_unavailable", None, "?from=head")
        assert "duramen[cold]" in problem["detail"]

    run(scenario)


def test_a_position_is_found_in_a_segment_that_is_released_meanwhile() -> None:
    """Bookies have dropped it, and the log node that was read does not say so yet."""

    async def scenario(world: World) -> None:
        await world.fill()
        follower = await world.proxy.catalog.find("ns", "log")
        assert (await follower.current(Epoch(1)))[1] is not None
        await world.archive(1)
        for bookie in world.bookies.values():
            bookie.dropped.add(ledger_of(LOG, Epoch(1)))
        view = LiveLog(follower, world.proxy.fetcher, world.proxy.tails)
        start = await world.proxy.positions.find(view, parse_position("seq:4"), clamp=False)
        assert (start.epoch, start.entry, start.seq_num) == (1, 1, 4)

    run(scenario)
