"""`/v1/grants` and `/v1/access-tokens` of the write proxy, in front of a sequencer's operations.

The caller is put into the calls' scope, as the port that lets them in does; what lies between the
proxy and the sequencer is a function here. Source: docs/protocol/rest.md "Write proxy",
docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from duramen.core.rights.grants import Principal, parse_principal
from duramen.runtime.admission.callers import (
    CALL_KEY,
    REQUEST_KEY,
    AdmittedCall,
    ShownCredentials,
)
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.public.calls import CALLS, JSON, On
from duramen.runtime.public.openapi import make_document
from duramen.runtime.public.serving import complete_app
from duramen.runtime.rest import make_public_app
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths
from duramen_sequencer.control import Control
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.rights.calls_for_callers import CallsForCallers
from duramen_writeproxy.rights.grant_routes import add_grant_routes
from duramen_writeproxy.rights.token_routes import add_token_routes
from tests.unit.grants import ANN, BOB, OPERATOR

PATHS = Paths("c")
PROXY = Identity("a" * 32, Role.WRITEPROXY, "wp-0")
GRANTS, TOKENS = "/v1/grants", "/v1/access-tokens"
OWNER = {"who": "user:corp/ann", "role": "owner", "scope": "shop"}
TILL = {"scopes": [{"verbs": ["append"], "target": "shop/a*"}], "expires": "30d", "note": "till"}


class Straight:
    """In the place of `Creator`: one sequencer that always answers."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.asked: list[dict[str, Any]] = []

    async def ask(self, _key: str, message: dict[str, Any], fields: tuple[str, ...]) -> Any:
        self.asked.append(message)
        answer = await self._control.handle(json.dumps(message).encode(), PROXY)
        assert answer.keys() >= {*fields}
        return answer


def admit(caller: Bearer) -> AdmittedCall:
    """As a door lets it in that has judged nothing: the call judges itself."""
    judged: Any = None
    return AdmittedCall(caller, ShownCredentials((), ()), None, time.time(), judged)


class World:
    """A write proxy's routes, and who calls them."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.sequencer = Straight(Control(self.store, PATHS, {}))
        self.caller: Bearer | None = None
        self.is_draining = False
        app = make_public_app("test")
        calls = CallsForCallers(cast(Creator, self.sequencer), lambda: self.is_draining)
        add_grant_routes(app, calls)
        add_token_routes(app, calls)
        complete_app(app, None)
        transport = httpx.ASGITransport(self._let_in(app))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://proxy")

    def _let_in(self, app: ASGIApp) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if self.caller is not None:
                scope[CALL_KEY], scope[REQUEST_KEY] = admit(self.caller), "r-1"
            await app(scope, receive, send)

        return serve

    def become(self, who: Principal | None) -> None:
        self.caller = None if who is None else Bearer(who, int(time.time()) + 900)

    async def ask(
        self, method: str, path: str, body: Any = None, status: int = 200, **query: Any
    ) -> dict[str, Any]:
        headers = {} if body is None else {"content-type": JSON}
        content = None if body is None else json.dumps(body)
        found = await self.http.request(
            method, path, content=content, params=query, headers=headers
        )
        assert found.status_code == status, found.text
        answer: dict[str, Any] = found.json()
        check_schema(method, path, status, answer)
        return answer


def check_schema(method: str, path: str, status: int, answer: dict[str, Any]) -> None:
    document = make_document()
    for template, item in document["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) and method.lower() in item:
            content = item[method.lower()]["responses"][str(status)]["content"]
            (schema,) = (each["schema"] for each in content.values())
            jsonschema_rs.validate({**schema, "components": document["components"]}, answer)
            return
    raise AssertionError(f"{method} {path} is no call")


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        world = World()
        await world.store.start()
        await ensure_cluster(world.store, PATHS)
        async with asyncio.timeout(30), world.http:
            await scenario(world)

    asyncio.run(play())


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.judged is On.CALL], ids=lambda call: call.name
)
def test_where_nobody_is_known_all_of_them_are_refused_before_a_body_is_read(call: Any) -> None:
    async def scenario(world: World) -> None:
        path = call.path.format(id="a" * 16)
        query = {name: {"scope": "shop", "version": "0"}[name]
                 for name in call.parameters if name in ("scope", "version")}  # fmt: skip
        body = None if call.body is None else {"wrong": 1}
        said = await world.ask(call.method, path, body, 403, **query)
        assert said["code"] == "forbidden"
        assert said["detail"] == "nobody is known here until this has --security migrate or on"
        assert not world.sequencer.asked

    run(scenario)


def test_a_client_names_no_caller() -> None:
    async def scenario(world: World) -> None:
        for name in (CALL_KEY, "duramen-for", "x-duramen-caller"):
            found = await world.http.get(GRANTS, params={"scope": "*"}, headers={name: "x"})
            assert found.status_code == 403

    run(scenario)


def test_grants_are_given_and_taken_by_those_who_may() -> None:
    async def scenario(world: World) -> None:
        world.become(OPERATOR)
        assert await world.ask("GET", GRANTS, scope="*") == {"version": 0, "grants": []}
        made = await world.ask("PUT", GRANTS, {"grants": [OWNER]}, scope="shop", version=0)
        (row,) = made["grants"]
        assert {**row, "given": ""} == {**OWNER, "by": str(OPERATOR), "given": ""}
        assert world.sequencer.asked[-1]["request_id"] == "r-1"
        world.become(ANN)
        reader = {"who": "group:corp/team", "role": "reader", "scope": "shop/a*"}
        made = await world.ask("PUT", GRANTS, {"grants": [reader]}, scope="shop/a*", version=1)
        assert (made["version"], made["grants"][0]["by"]) == (2, str(ANN))
        stale = await world.ask("PUT", GRANTS, {"grants": []}, 409, scope="shop", version=1)
        assert (stale["code"], stale["field"]) == ("config_conflict", "version")
        more = {**reader, "role": "monitor", "scope": "*"}
        refused = await world.ask("PUT", GRANTS, {"grants": [more]}, 403, scope="*", version=2)
        assert refused["detail"] == "grant on *: you may not"
        world.become(BOB)
        refused = await world.ask("GET", GRANTS, None, 403, scope="shop")
        assert (refused["code"], refused["detail"]) == ("forbidden", "grant on shop: you may not")

    run(scenario)


def test_a_token_is_shown_once_listed_and_revoked() -> None:
    async def scenario(world: World) -> None:
        world.become(OPERATOR)
        await world.ask("PUT", GRANTS, {"grants": [OWNER]}, scope="shop", version=0)
        world.become(ANN)
        made = await world.ask("POST", TOKENS, TILL, 201)
        text, token_id = made["token"], made["id"]
        assert text.startswith(f"{made['prefix']}_") and made["prefix"] == f"dur1_{token_id}"
        assert (made["by"], made["note"], made["scopes"]) == (str(ANN), "till", TILL["scopes"])
        assert text not in json.dumps(world.sequencer.asked), "no sequencer sees a secret"
        found = world.tree.get(PATHS.access_token(token_id))
        assert found is not None and text[22:].encode() not in found.data
        told = {name: made[name] for name in made if name != "token"}
        page = await world.ask("GET", TOKENS)
        assert page == {"tokens": [told], "has_more": False}
        second = await world.ask("POST", TOKENS, {**TILL, "note": ""}, 201)
        page = await world.ask("GET", TOKENS, limit=1)
        assert page["has_more"] is True
        page = await world.ask("GET", TOKENS, start_after=page["tokens"][0]["id"])
        ids = sorted((token_id, second["id"]))
        assert [row["id"] for row in page["tokens"]] == ids[1:]
        world.become(BOB)
        assert (await world.ask("GET", TOKENS))["tokens"] == []
        refused = await world.ask("DELETE", f"{TOKENS}/{token_id}", None, 403)
        assert refused["code"] == "forbidden"
        world.become(parse_principal(f"token:{token_id}"))
        child = {"scopes": [{"verbs": ["append"], "target": "shop/ab"}], "expires": "1m"}
        made = await world.ask("POST", TOKENS, child, 201)
        assert made["parent"] == token_id
        for is_there in (True, False):
            gone = await world.ask("DELETE", f"{TOKENS}/{token_id}")
            assert gone == {"id": token_id, "changed": is_there}
            world.become(ANN)

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "field"),
    [
        ("GET", GRANTS, None, {}, "scope"),
        ("GET", GRANTS, None, {"scope": "shop/*"}, "scope"),
        ("GET", GRANTS, None, {"scope": "*", "version": "1"}, "version"),
        ("PUT", GRANTS, {"grants": []}, {"scope": "*"}, "version"),
        ("PUT", GRANTS, {"grants": []}, {"scope": "*", "version": "-1"}, "version"),
        ("PUT", GRANTS, {}, {"scope": "*", "version": "0"}, "grants"),
        ("PUT", GRANTS, {"grants": [], "by": "x"}, {"scope": "*", "version": "0"}, "by"),
        ("PUT", GRANTS, {"grants": [], "op": "x"}, {"scope": "*", "version": "0"}, "op"),
        ("PUT", GRANTS, {"grants": [OWNER | {"role": "\ud800"}]},
         {"scope": "*", "version": "0"}, None),
        ("POST", TOKENS, {}, {}, "expires"),
        ("POST", TOKENS, TILL | {"expires": "soon"}, {}, "expires"),
        ("POST", TOKENS, TILL | {"expires": "59s"}, {}, "expires"),
        ("POST", TOKENS, TILL | {"expires": "367d"}, {}, "expires"),
        ("POST", TOKENS, TILL | {"expires": "999999999999999d"}, {}, "expires"),
        ("POST", TOKENS, TILL | {"expires": 60}, {}, "expires"),
        ("POST", TOKENS, TILL | {"scopes": None}, {}, "scopes"),
        ("POST", TOKENS, TILL | {"note": "a\nb"}, {}, "note"),
        ("POST", TOKENS, TILL | {"sha256": "00"}, {}, "sha256"),
        ("GET", TOKENS, None, {"limit": "0"}, "limit"),
        ("GET", TOKENS, None, {"prefix": "a"}, "prefix"),
        ("DELETE", f"{TOKENS}/cluster", None, {}, "id"),
        ("DELETE", f"{TOKENS}/a%3Fb", None, {}, "id"),
        ("DELETE", f"{TOKENS}/{'a' * 16}", {"x": 1}, {}, "x"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_field(
    method: str, path: str, body: Any, query: dict[str, str], field: str | None
) -> None:
    async def scenario(world: World) -> None:
        world.become(OPERATOR)
        said = await world.ask(method, path, body, 400, **query)
        assert said["code"] in ("invalid_argument", "unknown_field")
        assert said.get("field") == field
        assert world.tree.get(PATHS.grants) is None
        assert not world.tree.children(PATHS.access_tokens)

    run(scenario)


def test_a_proxy_that_drains_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        world.become(OPERATOR)
        world.is_draining = True
        said = await world.ask("POST", TOKENS, TILL, 503)
        assert said["code"] == "server_draining"
        assert not world.sequencer.asked

    run(scenario)
