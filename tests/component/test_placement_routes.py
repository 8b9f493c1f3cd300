"""The write proxy's admin routes about placement: a sequencer is asked, and its answer passed on.

The neighbours are `writeproxy_world`'s scripted sequencers. What a sequencer does is in
`test_placement`. Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duramen.runtime.admin import add_problem_handler
from tests.component.writeproxy_world import World, run

BOOKIE = {
    "id": "b0", "incarnation": "aa", "region": "w", "rack": "a", "state": "rw", "duty": "serving",
    "weight": 1.5, "free_bytes": None, "doubtful": False, "takes_new_data": True,
    "steady_in_s": 0,
}  # fmt: skip
REGIONS = {
    "closed": ["y"],
    "regions": [{"region": "y", "bookies": 2, "takes_new_data": 0, "closed": True}],
}
COPY = {"bookie": "b0", "incarnation": "aa", "region": "", "rack": "", "owed": True}
VIOLATION = {
    "epoch": 3, "first_entry": 0, "kind": "regions", "found": 2, "limit": 2, "detail": "too few",
    "write_set": [COPY],
}  # fmt: skip
CHECK = {"log_id": "5", "segments": 1, "fragments": 1, "violations": 1, "shown": [VIOLATION]}
LOCATED = {"id": "b0", "region": None, "rack": "a", "weight": 1, "from_flags": True}

CALLS: list[tuple[str, str, Any, dict[str, Any], dict[str, Any]]] = [
    ("GET", "bookies", None, {"op": "bookies"}, {"bookies": [BOOKIE]}),
    ("PATCH", "bookies/b0", {"weight": 1}, {"op": "locate", "id": "b0", "weight": 1}, LOCATED),
    ("GET", "regions", None, {"op": "regions"}, REGIONS),
    ("PUT", "regions", {"closed": ["y"]}, {"op": "close_regions", "closed": ["y"]}, REGIONS),
    ("GET", "logs/a/l/placement", None, {"op": "check_placement", "log_id": "5"}, CHECK),
]


def make_app(world: World) -> FastAPI:
    app = FastAPI()
    add_problem_handler(app)
    world.proxy.add_admin_routes(app)
    return app


async def call(app: FastAPI, method: str, path: str, body: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        return await client.request(method, f"/v1/cluster/{path}", json=body)


def encode_value(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


@pytest.mark.parametrize(("method", "path", "body", "message", "answer"), CALLS)
def test_an_answer_is_passed_on_byte_for_byte(
    method: str, path: str, body: Any, message: dict[str, Any], answer: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        world.first.control_answers = [(200, answer)]
        response = await call(make_app(world), method, path, body)
        assert (response.status_code, response.content) == (200, encode_value(answer))
        assert world.first.controls == [message]

    run(scenario)


def test_members_of_a_later_version_are_passed_on() -> None:
    async def scenario(world: World) -> None:
        later = {"bookies": [{**BOOKIE, "later": {"more": [1]}}], "as_of": 5}
        world.first.control_answers = [(200, later)]
        response = await call(make_app(world), "GET", "bookies")
        assert (response.status_code, response.content) == (200, encode_value(later))

    run(scenario)


def test_what_is_no_answer_is_refused() -> None:
    async def scenario(world: World) -> None:
        world.first.control_answers = [(200, {"bookies": "many"})]
        response = await call(make_app(world), "GET", "bookies")
        assert (response.status_code, response.json()["code"]) == (500, "internal")

    run(scenario)


def test_the_schema_is_that_of_the_model() -> None:
    async def scenario(world: World) -> None:
        document = make_app(world).openapi()
        for method, path, _, _, answer in CALLS:
            place = f"/v1/cluster/{path}".replace("/b0", "/{bookie}").replace(
                "a/l", "{namespace}/{log}"
            )
            described = document["paths"][place][method.lower()]["responses"]["200"]
            name = described["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert document["components"]["schemas"][name]["required"] == list(answer)

    run(scenario)
