"""`GET /v1/cluster/journals`: every bookie that is there is asked; who does not answer is named.

The bookies are small servers that answer as their admin ports do, or not.
Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

import json

import httpx

from duramen.errors import DuramenError
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, World, make_client, run
from tests.unit.fake_proxy import running_proxy

PATH = "/v1/cluster/journals"
JOURNAL = {
    "state": "running", "file_id": 3, "file_count": 1, "next_commit": 8, "waiting_bytes": 4096,
    "waiting_count": 2, "commit_count": 7, "record_count": 9, "written_bytes": 99, "mark_count": 1,
    "refused_count": 0, "sync_us_total": 900, "sync_us_last": 700, "is_poisoned": False,
    "is_out_of_space": False, "is_next_ready": True, "room_bytes": 5, "spare_count": 0,
    "recycled_count": 0, "sealed_file_ids": [1, 2],
    "replay": {
        "was_clean": True, "record_count": 1, "replayed_bytes": 10, "torn_bytes": 0,
        "damage_count": 0, "duration_us": 4,
    },
    "later": {"more": [None]},
}  # fmt: skip


async def ask(world: World) -> httpx.Response:
    async with make_client(world) as client:
        return await client.get(PATH)


def test_bookies_that_are_there_are_asked_and_silent_ones_named() -> None:
    async def scenario(world: World) -> None:
        urls = {"b0": good.url, "b1": starting.url, "b2": "http://127.0.0.1:9", "b3": None}
        urls |= {"b5": replaying.url, "b6": strange.url}
        await world.setup.create(PATHS.available, b"")
        for name, url in urls.items():
            fields = {} if url is None else {"admin_url": url}
            await world.setup.create(f"{PATHS.available}/{name}", encode_node(fields))
        await world.setup.create(f"{PATHS.available}/b4", b"no node")
        told = {
            "journals": [{"bookie": "b0", **JOURNAL}, {"bookie": "b5", "state": "replaying"}],
            "silent": ["b1", "b2", "b3", "b4", "b6"],
        }
        answer = await ask(world)
        assert answer.content == json.dumps(told, separators=(",", ":")).encode()
        assert [path for path, _ in good.asked] == ["/v1/journal"]

    with (
        running_proxy() as good,
        running_proxy() as starting,
        running_proxy() as replaying,
        running_proxy() as strange,
    ):
        good.answers["/v1/journal"] = JOURNAL
        replaying.answers["/v1/journal"] = {"state": "replaying"}
        strange.answers["/v1/journal"] = {"journal": "none of ours"}
        starting.answers["/v1/journal"] = DuramenError("overloaded", "the bookie starts")
        run(scenario)


def test_without_bookies_there_is_nothing_to_tell() -> None:
    async def scenario(world: World) -> None:
        assert (await ask(world)).content == b'{"journals":[],"silent":[]}'

    run(scenario)
