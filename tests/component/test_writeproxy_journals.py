"""`GET /v1/cluster/journals`: every bookie that is there is asked; who does not answer is named.

The bookies are small servers that answer as their admin ports do, or not.
Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

import httpx

from duramen.errors import DuramenError
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, World, make_client, run
from tests.unit.fake_proxy import running_proxy

PATH = "/v1/cluster/journals"
JOURNAL = {"state": "running", "waiting_bytes": 4096, "sync_us_last": 700}


async def ask(world: World) -> httpx.Response:
    async with make_client(world) as client:
        return await client.get(PATH)


def test_bookies_that_are_there_are_asked_and_silent_ones_named() -> None:
    async def scenario(world: World) -> None:
        urls = {"b0": good.url, "b1": starting.url, "b2": "http://127.0.0.1:9", "b3": None}
        await world.setup.create(PATHS.available, b"")
        for name, url in urls.items():
            fields = {} if url is None else {"admin_url": url}
            await world.setup.create(f"{PATHS.available}/{name}", encode_node(fields))
        await world.setup.create(f"{PATHS.available}/b4", b"no node")
        answer = (await ask(world)).json()
        assert answer == {
            "journals": [{"bookie": "b0", **JOURNAL}],
            "silent": ["b1", "b2", "b3", "b4"],
        }
        assert [path for path, _ in good.asked] == ["/v1/journal"]

    with running_proxy() as good, running_proxy() as starting:
        good.answers["/v1/journal"] = JOURNAL
        starting.answers["/v1/journal"] = DuramenError("overloaded", "the bookie starts")
        run(scenario)


def test_without_bookies_there_is_nothing_to_tell() -> None:
    async def scenario(world: World) -> None:
        assert (await ask(world)).json() == {"journals": [], "silent": []}

    run(scenario)
