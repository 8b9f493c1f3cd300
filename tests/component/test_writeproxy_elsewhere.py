"""Appends that are sent to the region of their log's owner, for clients that ask for it.

Source: docs/protocol/ownership.md "Clients in another region".
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, RECORDS, World, owner, run
from tests.waiting import wait_for

ASKING = f"{RECORDS}?redirect=owner_region"
THERE = "http://w.there:7301"


async def locate(world: World, region: str | None, index: int = 0) -> None:
    """Let a sequencer say where it is; the proxy of these tests is in `r`."""
    sequencer = world.sequencers[index]
    path = f"{PATHS.sequencers}/{sequencer.name}"
    stored = await world.setup.get(path)
    assert stored is not None
    fields = {"data_url": sequencer.url} | ({} if region is None else {"region": region})
    await world.setup.set(path, encode_node(fields), version=stored.version)
    roster = world.proxy._roster
    await wait_for(lambda: roster.nodes.get(sequencer.name, {}).get("region") == region)


async def add_proxies(world: World, **regions: str) -> None:
    for name, region in regions.items():
        fields = {"data_url": f"http://{name}.{region}:7301", "region": region}
        await world.put(f"{PATHS.write_proxies}/{name}", fields)
    count = len(regions) + 1
    await wait_for(lambda: world.proxy.statistics()["elsewhere"]["proxies"] == count)


async def post(world: World, path: str, body: bytes = b"x") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.proxy.port}") as client:
        return await client.post(path, content=body, headers={"content-type": "text/plain"})


def test_who_asks_is_sent_to_the_region_of_an_owner_that_is_known() -> None:
    async def scenario(world: World) -> None:
        await locate(world, "there")
        await add_proxies(world, w="there", v="beyond")
        assert (await post(world, ASKING)).status_code == 200, "nobody is known to own it"
        assert len(world.rows) == 1
        for body in (b"x", bytes(1_000_000)):
            answer = await post(world, ASKING, body)
            assert (answer.status_code, answer.content) == (307, b"")
            assert answer.headers["location"] == f"{THERE}{RECORDS}", "and asks no second time"
        assert len(world.rows) == 1, "nothing was appended"
        assert world.proxy.statistics()["elsewhere"] == {"proxies": 3, "redirected": 2}
        assert (await post(world, RECORDS)).status_code == 200, "nobody else is sent away"
        assert len(world.rows) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("region", "proxies"),
    [("r", {"w": "there"}), ("there", {"w": "beyond"}), ("", {"w": ""}), (None, {"w": "there"})],
)
def test_nobody_is_sent_where_there_is_nothing_better(
    region: str | None, proxies: dict[str, str]
) -> None:
    async def scenario(world: World) -> None:
        await locate(world, region)
        await add_proxies(world, **proxies)
        for _ in range(2):
            assert (await post(world, ASKING)).status_code == 200

    run(scenario)


def test_an_owner_that_moved_here_is_learnt_by_the_first_append_that_comes_back() -> None:
    async def scenario(world: World) -> None:
        await locate(world, "there", 0)
        await locate(world, "r", 1)
        await add_proxies(world, w="there")
        await post(world, RECORDS)
        assert (await post(world, ASKING)).status_code == 307

        async def away(_append: Any) -> Any:
            return owner(world.sequencers[1])

        world.first.decide = away
        assert (await post(world, RECORDS)).status_code == 200, "as whoever is sent here asks"
        assert (await post(world, ASKING)).status_code == 200

    run(scenario, 2)


@pytest.mark.parametrize("query", ["redirect=yes", "redirect=", "redirect=owner_region&x=1"])
def test_another_wish_is_refused(query: str) -> None:
    async def scenario(world: World) -> None:
        answer = await post(world, f"{RECORDS}?{query}")
        assert answer.status_code == 400 and not world.rows

    run(scenario)
