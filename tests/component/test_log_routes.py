"""The write proxy's routes that change a log or suspend rolling: what sequencers are asked for.

The sequencers are scripted; what they do with a call is in `test_log_changes`.
Source: docs/protocol/rest.md "Write proxy".
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duramen.config import parse_log_config
from duramen.errors import DuramenError
from duramen.runtime.admin import add_problem_handler
from tests.component.writeproxy_world import World, run

LOG = "/v1/namespaces/a/logs/l"


def test_a_change_is_forwarded_as_it_was_written() -> None:
    async def scenario(world: World) -> None:
        config = parse_log_config({"commit": "control"}).to_json()
        made = {"log_id": "5", "config": config, "config_version": 2, "changed": True}
        world.first.control_answers = [(200, made), (200, made)]
        answer = await world.call("PATCH", LOG, b'{"commit":"control"}')
        assert answer == (200, {"namespace": "a", "name": "l", **made})
        await world.call("PATCH", LOG + "?config_version=1", b'{"retention":{"age":null}}')
        common = {"op": "reconfigure", "log_id": "5"}
        assert world.first.controls == [
            {**common, "config": {"commit": "control"}},
            {**common, "config": {"retention": {"age": None}}, "config_version": 1},
        ]
        assert (await world.call("GET", LOG))[1]["config_version"] == 1

    run(scenario)


@pytest.mark.parametrize("epoch", [3, None])
def test_a_roll_is_begun_and_its_epoch_told(epoch: int | None) -> None:
    async def scenario(world: World) -> None:
        world.first.control_answers = [(200, {"epoch": epoch})]
        answer = await world.call("POST", LOG + ":roll")
        assert answer == (202, {"namespace": "a", "name": "l", "epoch": epoch})
        assert world.first.controls == [{"op": "roll", "log_id": "5"}]

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "field"),
    [
        ("PATCH", LOG, b"[]", 400, "invalid_argument", None),
        ("PATCH", LOG + "?config_version=x", b"{}", 400, "invalid_argument", "config_version"),
        ("PATCH", LOG + "?x=1", b"{}", 400, "unknown_field", "x"),
        ("PATCH", "/v1/namespaces/a/logs/none", b"{}", 404, "log_not_found", "log"),
        ("POST", "/v1/namespaces/a/logs/none:roll", None, 404, "log_not_found", "log"),
        ("POST", LOG + ":roll?x=1", None, 400, "unknown_field", "x"),
        ("POST", "/v1/namespaces/a/logs/_n:roll", None, 400, "invalid_name", "log"),
    ],
)
def test_a_bad_call_is_refused_here(  # noqa: PLR0917 - one call and its answer
    method: str, path: str, body: bytes | None, status: int, code: str, field: str | None
) -> None:
    async def scenario(world: World) -> None:
        got, problem = await world.call(method, path, body)
        assert (got, problem["code"]) == (status, code) and problem.get("field") == field
        assert not world.first.controls

    run(scenario)


def test_a_sequencers_refusal_is_passed_on() -> None:
    async def scenario(world: World) -> None:
        conflict = DuramenError("config_conflict", "version 4", field="config_version").problem()
        world.first.control_answers = [(409, conflict)]
        assert await world.call("PATCH", LOG, b"{}") == (409, conflict)

    run(scenario)


def test_every_sequencer_is_told_to_suspend_and_the_answer_says_which_obey() -> None:
    async def scenario(world: World) -> None:
        app = FastAPI()
        add_problem_handler(app)
        world.proxy.add_admin_routes(app)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:

            async def put(document: Any) -> tuple[int, dict[str, Any]]:
                answer = await admin.put("/v1/cluster/maintenance", json=document)
                return answer.status_code, answer.json()

            one, two = world.sequencers
            one.control_answers = [(200, {"rolling_suspended": True, "under_way": 0})]
            two.control_answers = [(200, {"rolling_suspended": True, "under_way": 2})]
            under_way = {one.name: 0, two.name: 2}
            assert await put({"rolling_suspended": True}) == (
                200,
                {"rolling_suspended": True, "is_settled": False, "under_way": under_way},
            )
            assert one.controls == two.controls == [{"op": "suspend", "rolling": True}]
            await two.stop()
            one.control_answers = [(200, {"rolling_suspended": False, "under_way": 0})]
            status, answer = await put({"rolling_suspended": False})
            assert (status, answer["is_settled"], answer["under_way"][two.name]) == (
                200,
                False,
                None,
            )
            for wrong in ({}, {"rolling_suspended": 1}, {"rolling_suspended": True, "x": 1}):
                status, problem = await put(wrong)
                assert (status, problem["field"]) == (400, "rolling_suspended")

    run(scenario, 2)
