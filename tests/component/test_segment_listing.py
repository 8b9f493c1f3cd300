"""The listing of a log's segments shows where their copies are, and what they begin and end with.

Repair and drain swap names in segments that are closed, which readers keep as they knew them. What
it tells of cold copies is in `test_cold_reads`. Source: docs/protocol/rest.md "Segments", R21.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.ids import EntryId, Epoch, ledger_of
from duramen.runtime.reading.positioning import segment_edges
from duramen.texts import format_time
from duramen.wire.metadata_json import encode_segment, read_segment
from duramen_readproxy import rest
from tests.component.readproxy_world import LOG, PATHS, A, D, World, run


async def repair(world: World) -> None:
    """A copy of the first closed segment lies on D in the place of A."""
    path = PATHS.segment(LOG, Epoch(1))
    found = await world.store.get(path)
    assert found is not None
    swapped = read_segment(found.data).with_swapped(EntryId(0), A, D, "repair")
    await world.put(path, encode_segment(swapped))


async def list_first(world: World) -> list[str]:
    """The bookies of the first fragment, as they are listed."""
    answer = await world.http.get("/v1/namespaces/ns/logs/log/segments")
    assert answer.status_code == 200, answer.text
    first = answer.json()["segments"][0]["fragments"][0]
    return [member["bookie"] for member in first["ensemble"]]


def test_a_repaired_segment_is_listed_with_its_new_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()
        monkeypatch.setattr(rest, "LISTED_AGAIN_S", 3_600.0)
        assert await list_first(world) == ["a", "b", "c"]
        await repair(world)
        assert await list_first(world) == ["a", "b", "c"], "it was listed a moment ago"
        monkeypatch.setattr(rest, "LISTED_AGAIN_S", 0.0)
        assert await list_first(world) == ["d", "b", "c"]

    run(scenario)


EDGES = ("first_txid", "last_txid", "first_timestamp", "last_timestamp")
NOTHING_KNOWN = [None, None, None, None]


async def list_edges(world: World) -> list[list[Any]]:
    answer = await world.http.get("/v1/namespaces/ns/logs/log/segments")
    assert answer.status_code == 200, answer.text
    return [[row[name] for name in EDGES] for row in answer.json()["segments"]]


async def fill_with_txids(world: World) -> None:
    """Epochs 1 … 5: txids and times, times alone, control entries first, empty, open."""
    await world.open_segment()
    await world.append(2, txids=[5, 7], at_ms=10_000)
    await world.append(1, txids=[9], at_ms=9_000)
    await world.close_segment()
    await world.open_segment()
    await world.append(1, at_ms=11_000)
    await world.append(3, at_ms=12_000)
    await world.close_segment()
    await world.open_segment()
    await world.append_control()
    for number in range(6):
        await world.append(1, at_ms=13_000 + number)
    await world.append(2, txids=[20, 21], at_ms=14_000)
    await world.close_segment()
    await world.open_segment()
    await world.append_control()
    await world.close_segment()
    await world.open_segment()
    await world.append(1, txids=[30], at_ms=15_000)


def spelled(*times_ms: int) -> list[str]:
    return [format_time(time_ms) for time_ms in times_ms]


FILLED: list[list[Any]] = [
    [5, 9, *spelled(10_000, 10_000)],
    [None, None, *spelled(11_000, 12_000)],
    [20, 21, *spelled(13_000, 14_000)],
    NOTHING_KNOWN,
    NOTHING_KNOWN,
]


def test_closed_segments_name_their_first_and_last_txid_and_timestamp() -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        assert await list_edges(world) == FILLED
        read_count = sum(bookie.read_count for bookie in world.bookies.values())
        assert await list_edges(world) == FILLED
        assert sum(bookie.read_count for bookie in world.bookies.values()) == read_count
        figures = world.proxy.edges.statistics()
        assert figures == {"known": 3, "look_ups": 3}, "each is read once, the empty one never"

    run(scenario)


@pytest.mark.parametrize("is_archived", [True, False])
def test_what_has_left_the_bookies_is_asked_of_the_archive_or_not_known(is_archived: bool) -> None:
    """An answer never fails, and never waits long, because of what it cannot tell."""

    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        if is_archived:
            for epoch in (1, 2, 3):
                await world.archive(epoch)
            await world.release(4)
        for bookie in world.bookies.values():
            bookie.is_broken = True
        found = await list_edges(world)
        if is_archived:
            assert found == FILLED
            return
        assert found[0] == [None, 9, None, format_time(10_000)], "the node knows the end"
        looked = world.proxy.edges.statistics()["look_ups"]
        for bookie in world.bookies.values():
            bookie.is_broken = False
        await list_edges(world)
        assert world.proxy.edges.statistics()["look_ups"] == looked, "not again at once"

    run(scenario)


def test_a_truncated_segment_is_not_read_and_a_lost_beginning_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        path = PATHS.segment(LOG, Epoch(2))
        found = await world.store.get(path)
        assert found is not None
        lossy = read_segment(found.data).with_lost([(0, 0)], "lost")
        await world.put(path, encode_segment(lossy))
        for bookie in world.bookies.values():
            bookie.entries.pop((ledger_of(LOG, Epoch(2)), EntryId(0)), None)
        await world.truncate(3, "e2n0")
        found_edges = await list_edges(world)
        assert found_edges[0] == [None, 9, None, format_time(10_000)], "nobody is to read it now"
        assert found_edges[1] == [None, None, *spelled(12_000, 12_000)]

    run(scenario)


def test_a_listing_looks_up_a_few_segments_each_time_the_newest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_edges, "LOOK_UP_COUNT_MAX", 2)

    async def scenario(world: World) -> None:
        for number in range(5):
            await world.open_segment()
            await world.append(1, txids=[number + 1], at_ms=1_000 + number)
            await world.close_segment()
        firsts = [[row[0] for row in await list_edges(world)] for _ in range(3)]
        assert firsts == [
            [None, None, None, 4, 5], [None, 2, 3, 4, 5], [1, 2, 3, 4, 5],
        ]  # fmt: skip

    run(scenario)


def test_what_is_kept_of_segments_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_edges, "KNOWN_MAX", 2)

    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        await list_edges(world)
        assert world.proxy.edges.statistics() == {"known": 2, "look_ups": 3}

    run(scenario)


def test_a_listing_does_not_wait_for_segments_that_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_edges, "LOOK_UP_S", 0.05)

    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        gate = asyncio.Event()

        async def hold(_path: str) -> None:
            await gate.wait()

        for bookie in world.bookies.values():
            bookie.on_call = hold
        try:
            assert [row[0] for row in await list_edges(world)] == [None] * 5
        finally:
            gate.set()

    run(scenario)


@pytest.mark.parametrize("policy", ["none", "move"])
def test_a_released_segment_is_listed_with_the_look_that_let_it_go(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """It was known before its copy was looked at again, and has left the bookies since."""
    monkeypatch.setattr(rest, "LISTED_AGAIN_S", 0.0 if policy == "none" else 3_600.0)

    async def list_copy(world: World) -> dict[str, object]:
        answer = await world.http.get("/v1/namespaces/ns/logs/log/segments")
        copy: dict[str, object] = answer.json()["segments"][0]["cold_copy"]
        return copy

    async def scenario(world: World) -> None:
        config = parse_log_config({"tiering": {"policy": policy}})
        world.log = replace(world.log, config=config)
        await world.fill()
        await world.archive(1)
        path = PATHS.segment(LOG, Epoch(1))
        found = await world.store.get(path)
        assert found is not None
        looked_at = read_segment(found.data)
        assert looked_at.cold_copy is not None
        fresh = replace(looked_at.cold_copy, rechecked_unix_ms=None)
        await world.put(path, encode_segment(replace(looked_at, cold_copy=fresh)))
        assert (await list_copy(world))["rechecked"] is None
        await world.put(path, encode_segment(looked_at))
        await world.release(2)
        follower = await world.proxy.catalog.find("ns", "log")
        await follower.refresh(Epoch(2))
        assert (await list_copy(world))["rechecked"] is not None

    run(scenario)
