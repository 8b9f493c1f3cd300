"""The write proxy's admin routes about repair: the auditor is found, asked, and answers.

The neighbours are `writeproxy_world`'s scripted sequencers on the real wire. What the auditor does
is in `test_auditor_operations`.
Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from duramen.errors import DuramenError
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, World, make_client, run

DISRUPTION_PATH = "/v1/cluster/bookies/b1/disruption"

TASK = {
    "log_id": "5", "epoch": 1, "first_entry": 0, "problem": "lost", "action": "swap",
    "good_copies": 1, "bytes": 1000, "copied_bytes": 5, "attempts": 2, "reason": "no copy",
    "ranges": [{"bookie": "b1", "first": 3, "last": 4, "why": "lost"}],
}  # fmt: skip
REPAIR = {
    "auditor": "s1",
    "backlog": {
        "tasks": 1, "tasks_max": 9, "running": 1, "running_max": 4, "targets": {"b2": 1},
        "unrepairable": 1, "left_bytes": 995, "by_problem": {"lost": 1}, "done": 0, "failed": 1,
        "postponed": 0, "unrepairable_reported": 1, "beyond": 0, "copied_bytes": 5,
    },
    "bytes_per_s": 0, "estimate_s": None, "running": [TASK], "unrepairable": [TASK],
    "drains": [
        {"bookie": "b1", "duty": "draining", "fragments": None, "bytes": 7, "waits_for": "a round"}
    ],
    "last_round": {
        "began_unix_ms": 1, "ended_unix_ms": 2, "whole": False, "logs": 1, "segments": 2,
        "segments_in_recovery": 0, "unproved_fragments": 0, "fragments_in_doubt": 0,
        "placement_violations": 0, "unread": ["a/l"], "unread_count": 1,
    },
    "statistics": {"is_auditor": True, "rounds": 3, "doubts": {"bookies": []}},
}  # fmt: skip
BOOKIES = {
    "read_unix_ms": 1, "whole": True,
    "bookies": [{
        "bookie": "b1", "incarnation": "aa", "region": "w", "rack": "a", "weight": 1.5,
        "duty": "serving", "fate": "here", "writable": True, "doubtful": False,
        "free_bytes": None, "copies": 1, "bytes": 1000, "share": None, "stuck": None,
    }, {
        "bookie": "b2", "incarnation": "ab", "region": "w", "rack": "b", "weight": 1,
        "duty": "draining", "fate": "here", "writable": True, "doubtful": False,
        "free_bytes": 7, "copies": 2, "bytes": 9, "share": 0.5,
        "stuck": {
            "fragments": 2, "kind": "place", "reason": "no place", "logs": ["a/l"], "logs_count": 3,
        },
    }],
}  # fmt: skip
DISRUPTION = {
    "bookie": "b1", "kind": "remove", "allowed": False,
    "reasons": [{"code": "named", "detail": "drain it first", "count": 2}],
    "logs_at_risk": ["a/l"], "logs_at_risk_count": 1, "read_unix_ms": 5, "metadata_age_ms": 3,
}  # fmt: skip
GRANT = {
    "token": "b1", "target": "bookie/b1", "kind": "restart", "holder": "op", "life_ms": 60_000,
    "over_in_ms": 65_000, "granted_unix_ms": 5, "accepts": ["quorum"],
}  # fmt: skip
QUESTION = {"token": "b1", "target": "bookie/b1", "kind": "restart", "holder": "op"}
TAKEN = {
    "target": "bookie/b1", "kind": "restart", "allowed": True, "reasons": [], "logs_at_risk": [],
    "logs_at_risk_count": 0, "read_unix_ms": 5, "metadata_age_ms": 3, "grant": GRANT,
}  # fmt: skip
STANDING = {
    "bookies": [
        {"bookie": "b1", "incarnation": "aa", "there": True, "reasons": [], "lacks_count": 2}
    ],
    "read_unix_ms": 5, "metadata_age_ms": 3,
}  # fmt: skip
DUTY = {"bookie": "b1", "incarnation": "aa", "duty": "draining"}
LOSS = {"bookie": "b1", "incarnation": "aa", "accepted_unix_ms": 5}
REBALANCE: dict[str, Any] = {
    "running": True, "request": {"requested_unix_ms": 5, "tolerance": 0.1}, "moves_waiting": 2,
    "shares": {"b1": 1.0, "b2": 0.25},
}  # fmt: skip
IDLE: dict[str, Any] = {"running": False, "request": None, "moves_waiting": 0, "shares": {}}
UNREADABLE = {**REBALANCE, "request": {"tolerance": 0.1}}
MOVE = {"log_id": "5", "epoch": 1, "first_entry": 0, "bytes": 9, "from": "b1", "to": "b2"}
PLAN = {"dry_run": True, "moves": [MOVE], "bytes": 9, "shares": {"b1": 2.0}}

CALLS: list[tuple[str, str, Any, dict[str, Any], dict[str, Any]]] = [
    ("GET", "repair", None, {"op": "repair"}, REPAIR),
    ("GET", "repair", None, {"op": "repair"}, {**REPAIR, "estimate_s": 5, "last_round": None}),
    ("GET", "repair/bookies", None, {"op": "repair_bookies"}, BOOKIES),
    ("GET", "bookies/b1/disruption?kind=remove", None,
     {"op": "disruption", "bookie": "b1", "kind": "remove"}, DISRUPTION),
    ("GET", "disruptions", None, {"op": "disruptions"}, {"grants": [GRANT]}),
    ("GET", "disruptions/standing", None, {"op": "standing"}, STANDING),
    ("POST", "disruptions", QUESTION, {"op": "take_disruption", **QUESTION}, TAKEN),
    ("POST", "disruptions", QUESTION, {"op": "take_disruption", **QUESTION},
     {**TAKEN, "allowed": False, "grant": None}),
    ("POST", "disruptions/b1/renew", None,
     {"op": "renew_disruption", "token": "b1"}, {"grant": GRANT}),
    ("POST", "disruptions/b1/renew", None,
     {"op": "renew_disruption", "token": "b1"}, {"grant": None}),
    ("DELETE", "disruptions/b1", None,
     {"op": "end_disruption", "token": "b1"}, {"token": "b1", "ended": True}),
    ("POST", "bookies/b1/drain", None, {"op": "drain", "bookie": "b1"}, DUTY),
    ("POST", "bookies/b1/cancel-drain", None, {"op": "cancel_drain", "bookie": "b1"}, DUTY),
    ("POST", "bookies/b1/accept-loss", {"incarnation": "aa"},
     {"op": "accept_loss", "bookie": "b1", "incarnation": "aa"}, LOSS),
    ("GET", "rebalance", None, {"op": "rebalance"}, REBALANCE),
    ("GET", "rebalance", None, {"op": "rebalance"}, UNREADABLE),
    ("POST", "rebalance", {"dry_run": True}, {"op": "start_rebalance", "dry_run": True}, PLAN),
    ("POST", "rebalance", {"tolerance": 0.1},
     {"op": "start_rebalance", "tolerance": 0.1}, REBALANCE),
    ("DELETE", "rebalance", None, {"op": "stop_rebalance"}, IDLE),
]  # fmt: skip


def encode_value(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


async def elect(world: World, name: str) -> None:
    found = await world.setup.get(PATHS.auditor)
    data = encode_node({"sequencer": name, "admin_url": "http://x"})
    if found is None:
        await world.setup.create(PATHS.auditor, data)
    else:
        await world.setup.set(PATHS.auditor, data, version=found.version)


@pytest.mark.parametrize(("method", "path", "body", "message", "answer"), CALLS)
def test_the_auditor_is_asked_and_its_answer_passed_on_byte_for_byte(
    method: str, path: str, body: Any, message: dict[str, Any], answer: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        auditor = world.sequencers[1]
        auditor.control_answers = [(200, answer)]
        await elect(world, auditor.name)
        async with make_client(world) as client:
            response = await client.request(method, f"/v1/cluster/{path}", json=body)
        assert (response.status_code, response.content) == (200, encode_value(answer))
        assert auditor.controls == [message] and world.first.controls == []

    run(scenario, 2)


def test_what_a_later_auditor_says_besides_is_passed_on() -> None:
    async def scenario(world: World) -> None:
        request = {**REBALANCE["request"], "later": {"more": [None]}}
        later = {**REBALANCE, "request": request, "as_of": 5}
        world.first.control_answers = [(200, later)]
        await elect(world, world.first.name)
        async with make_client(world) as client:
            response = await client.get("/v1/cluster/rebalance")
        assert (response.status_code, response.content) == (200, encode_value(later))

    run(scenario)


def test_what_is_no_answer_of_an_auditor_is_refused() -> None:
    async def scenario(world: World) -> None:
        world.first.control_answers = [(200, {**DISRUPTION, "allowed": "perhaps"})]
        await elect(world, world.first.name)
        async with make_client(world) as client:
            response = await client.get(DISRUPTION_PATH, params={"kind": "restart"})
        assert (response.status_code, response.json()["code"]) == (500, "internal")

    run(scenario)


def test_the_schema_is_that_of_the_model() -> None:
    async def scenario(world: World) -> None:
        app = FastAPI()
        world.proxy.add_admin_routes(app)
        document = app.openapi()
        for method, path, _, _, answer in CALLS:
            place = f"/v1/cluster/{path.partition('?')[0]}"
            variable = "token" if path.startswith("disruptions") else "bookie"
            place = place.replace("/b1", f"/{{{variable}}}")
            described = document["paths"][place][method.lower()]["responses"]["200"]
            schema = described["content"]["application/json"]["schema"]
            names = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
            required = [document["components"]["schemas"][name]["required"] for name in names]
            assert list(answer) in required

    run(scenario)


def test_a_sequencer_that_is_the_auditor_no_longer_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.control_answers = [(200, {"auditor": {"sequencer": second.name}})]
        second.control_answers = [(200, DISRUPTION)]
        await elect(world, first.name)
        async with make_client(world) as client:

            async def move(_path: str, _body: bytes) -> Any:
                await elect(world, second.name)
                return 200, "application/json", b'{"auditor":{"sequencer":"other"}}'

            first.on_control = move
            answer = await client.get(DISRUPTION_PATH, params={"kind": "remove"})
        assert answer.json() == DISRUPTION

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
            answer = await client.get(DISRUPTION_PATH)
            assert answer.status_code in (400, 422), "kind is missing"

    run(scenario)
