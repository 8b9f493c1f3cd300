"""One question to all nodes: whose answer it is, who is silent, and who there is unknown.

The nodes are small servers that answer as admin ports do, or not.
Source: docs/protocol/turning-on.md "What is judged, and only counted".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from duramen.errors import DuramenError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import encode_node
from duramen_writeproxy.cluster.node_answers import NodeQuestions, RegisteredNode
from tests.component.writeproxy_world import PATHS, World, make_client, run
from tests.unit.fake_proxy import running_proxy

COUNTED: Final = {"security": "migrate", "rows": [], "forgotten": 3}
ROUTE: Final = "/v1/security/would-refuse"


def test_each_answer_has_the_role_that_its_node_registered_as() -> None:
    async def scenario(world: World) -> None:
        await world.setup.create(PATHS.available, b"")
        await world.setup.create(f"{PATHS.available}/n1", encode_node({"admin_url": turning.url}))
        # A node of another role may have the same name.
        await world.setup.create(f"{PATHS.sequencers}/n1", encode_node({"admin_url": older.url}))
        await world.setup.create(f"{PATHS.sequencers}/n2", encode_node({"admin_url": turning.url}))
        await world.setup.create(f"{PATHS.available}/n3", b"no node")
        async with make_client(world) as client:
            told = (await client.get("/v1/cluster/would-refuse")).json()
        assert told["nodes"] == [
            {**COUNTED, "node": "n1", "role": "bookie"},
            {**COUNTED, "node": "n2", "role": "sequencer"},
        ]
        # The world's own sequencer and proxy have no admin port.
        assert [name for name in told["silent"] if name.startswith("n")] == ["n3", "n1"]

    with running_proxy() as turning, running_proxy() as older:
        # Who was asked is known, whatever an answer says of itself.
        turning.answers[ROUTE] = {**COUNTED, "node": "n9", "role": "writeproxy"}
        older.answers[ROUTE] = {"title": "there is no such route"}
        run(scenario)


def test_who_is_there_is_not_guessed_without_the_metadata_store() -> None:
    def read(_node: RegisteredNode, _told: dict[str, Any]) -> None:
        raise AssertionError("nobody is asked")

    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        questions = NodeQuestions(store, None, [PATHS.available])
        assert await questions.ask_all(ROUTE, read) == []
        store.disconnect()
        with pytest.raises(DuramenError) as refused:
            await questions.ask_all(ROUTE, read)
        assert refused.value.code == "metadata_unavailable"
        await store.close()

    asyncio.run(scenario())
