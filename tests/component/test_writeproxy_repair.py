"""The write proxy's admin routes about repair: the auditor is found, asked, and answers.

The neighbours are `writeproxy_world`'s scripted sequencers on the real wire. What the auditor does
is in `test_auditor_operations`.
Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, World, make_client, run

DISRUPTION = "/v1/cluster/bookies/b1/disruption"

JSON = {"content-type": "application/json"}


async def elect(world: World, name: str) -> None:
    found = await world.setup.get(PATHS.auditor)
    data = encode_node({"sequencer": name, "admin_url": "http://x"})
    if found is None:
        await world.setup.create(PATHS.auditor, data)
    else:
        await world.setup.set(PATHS.auditor, data, version=found.version)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "repair", None, {"op": "repair"}),
        ("GET", "repair/bookies", None, {"op": "repair_bookies"}),
        ("GET", "bookies/b1/disruption?kind=remove", None,
         {"op": "disruption", "bookie": "b1", "kind": "remove"}),
        ("POST", "bookies/b1/drain", None, {"op": "drain", "bookie": "b1"}),
        ("POST", "bookies/b1/cancel-drain", None, {"op": "cancel_drain", "bookie": "b1"}),
        ("POST", "bookies/b1/accept-loss", b'{"incarnation":"aa"}',
         {"op": "accept_loss", "bookie": "b1", "incarnation": "aa"}),
        ("GET", "rebalance", None, {"op": "rebalance"}),
        ("POST", "rebalance", b'{"dry_run":true}', {"op": "start_rebalance", "dry_run": True}),
        ("DELETE", "rebalance", None, {"op": "stop_rebalance"}),
    ],
)  # fmt: skip
def test_the_auditor_is_asked_and_answers(
    method: str, path: str, body: bytes | None, message: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        auditor = world.sequencers[1]
        auditor.control_answers = [(200, {"fine": True})]
        await elect(world, auditor.name)
        async with make_client(world) as client:
            answer = await client.request(method, f"/v1/cluster/{path}", content=body, headers=JSON)
        assert (answer.status_code, answer.json()) == (200, {"fine": True})
        assert auditor.controls == [message] and world.first.controls == []

    run(scenario, 2)


def test_a_sequencer_that_is_the_auditor_no_longer_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.control_answers = [(200, {"auditor": {"sequencer": second.name}})]
        second.control_answers = [(200, {"allowed": True})]
        await elect(world, first.name)
        async with make_client(world) as client:

            async def move(_path: str, _body: bytes) -> Any:
                await elect(world, second.name)
                return 200, "application/json", b'{"auditor":{"sequencer":"other"}}'

            first.on_control = move
            answer = await client.get(DISRUPTION, params={"kind": "restart"})
        assert answer.json() == {"allowed": True}

    run(scenario, 2)


def test_a_refusal_passes_through_and_no_auditor_is_to_try_again() -> None:
    async def scenario(world: World) -> None:
        async with make_client(world) as client:
            answer = await client.get("/v1/cluster/repair")
            assert (answer.status_code, answer.json()["code"]) == (503, "metadata_unavailable")
            await elect(world, world.first.name)
            refusal = DuramenError("placement_impossible", "3 bookies left", field="bookie")
            world.first.control_answers = [(422, refusal.problem())]
            answer = await client.post("/v1/cluster/bookies/b1/drain")
            assert (answer.status_code, answer.json()["detail"]) == (422, "3 bookies left")
            answer = await client.post("/v1/cluster/rebalance", json={"dry": 1})
            assert (answer.status_code, answer.json()["field"]) == (400, "dry")
            answer = await client.get(DISRUPTION)
            assert answer.status_code in (400, 422), "kind is missing"

    run(scenario)
