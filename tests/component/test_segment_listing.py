"""The listing of a log's segments shows where their copies are, and not where they were.

Repair and drain swap names in segments that are closed, which readers keep as they knew them. What
it tells of cold copies is in `test_cold_reads`. Source: docs/protocol/rest.md, R21.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.config import parse_log_config
from duramen.ids import EntryId, Epoch
from duramen.wire.metadata_json import read_segment, spell_segment
from duramen_readproxy import rest
from tests.component.readproxy_world import LOG, PATHS, A, D, World, run


async def repair(world: World) -> None:
    """A copy of the first closed segment lies on D in the place of A."""
    path = PATHS.segment(LOG, Epoch(1))
    found = await world.store.get(path)
    assert found is not None
    swapped = read_segment(found.data).with_swapped(EntryId(0), A, D, "repair")
    await world.put(path, spell_segment(swapped))


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
        await world.put(path, spell_segment(replace(looked_at, cold_copy=fresh)))
        assert (await list_copy(world))["rechecked"] is None
        await world.put(path, spell_segment(looked_at))
        await world.release(2)
        follower = await world.proxy.catalog.find("ns", "log")
        await follower.refresh(Epoch(2))
        assert (await list_copy(world))["rechecked"] is not None

    run(scenario)
