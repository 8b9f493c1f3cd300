"""Which row a request means by its text, and that no route runs which was judged as another one.

Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from duramen.errors import DuramenError
from duramen.runtime.admission import call_rows
from duramen.runtime.admission.call_rows import ROW_KEY, find_row, guard_route
from duramen.runtime.public.calls import CALLS, LOG_PATH, RECORDS_PATH, PublicCall
from duramen.runtime.public.serving import complete_app
from duramen.runtime.rest import add_route, make_public_app

NAMES: Final = {"namespace": "shop", "log": "orders.v1", "id": "abcdefgh234567ab"}
APPEND: Final = CALLS[0]


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row.name)
def test_each_call_is_found_by_its_method_and_path(row: PublicCall) -> None:
    found = find_row(row.method, row.path.format(**NAMES))
    assert found is not None and found.row is row
    assert found.log == (NAMES["log"] if "{log}" in row.path else None)
    assert found.namespace == (NAMES["namespace"] if "{namespace}" in row.path else None)


def test_a_head_is_the_get_that_it_stands_for() -> None:
    found = find_row("HEAD", "/v1/namespaces/shop")
    assert found is not None and found.row.name == "getNamespace"


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/v1/namespaces/", "/v1/namespaces/shop/", "/v1//namespaces", "/v1/namespaces\n",
        "/v1/namespaces/shop/logs/orders/records\n", "/v1/namespaces/shop/logs/orders/records/",
        "/v1/namespaces/shop/logs/a/b/records", "/v1/namespaces/shop/logs/orders:nothing",
        "/v1/namespaces/shop/logs/a:b:end", "/V1/namespaces", "x/v1/namespaces",
        "/v1/namespaces/shop/logs/orders/records:stream:stream", "/v1/grants/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "get", "BREW"])
def test_what_is_spelt_otherwise_is_no_call(method: str, path: str) -> None:
    assert find_row(method, path) is None


@pytest.mark.parametrize("name", ["No", "a b", "%61", "-a", "a\n", "a" * 64, "ä", "a."])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(DuramenError) as caught:
        find_row("GET", f"/v1/namespaces/{name}")
    assert (caught.value.code, caught.value.field) == ("invalid_name", "namespace")


def test_a_path_beyond_every_call_is_not_kept() -> None:
    before = call_rows._find_kept.cache_info().currsize
    for number in range(20):
        assert find_row("GET", "/" + "x" * 600 + str(number)) is None
    assert call_rows._find_kept.cache_info().currsize == before


def test_a_route_runs_as_what_was_judged_or_not_at_all() -> None:
    ran: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        ran.append(scope)

    guarded: Any = guard_route(app, APPEND)
    let_in: list[dict[str, Any]] = [{}, {ROW_KEY: APPEND}]
    for scope in let_in:
        asyncio.run(guarded(scope, None, None))
    assert len(ran) == 2, "without a door, and judged as this"
    shut_out: list[dict[str, Any]] = [{ROW_KEY: None}, {ROW_KEY: CALLS[1]}]
    for scope in shut_out:
        with pytest.raises(HTTPException):
            guarded(scope, None, None)
    assert len(ran) == 2


def test_every_call_that_is_served_has_its_guard() -> None:
    """What a router reads more kindly than the door does is no way around it."""
    app = make_public_app("a proxy")

    async def answer(_request: Request) -> Response:
        return Response(b"it ran")

    for row in CALLS:
        add_route(app, row.method, row.path, answer)
    complete_app(app, None)

    async def call(method: str, path: str, **more: Any) -> tuple[int, bytes]:
        said: list[Any] = []
        scope = {"type": "http", "method": method, "path": path, "headers": [],
                 "query_string": b"", **more}  # fmt: skip

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            said.append(message)

        await app(scope, receive, send)
        return said[0]["status"], said[1]["body"]

    async def scenario() -> None:
        for row in CALLS:
            path = row.path.format(**NAMES)
            assert await call(row.method, path, **{ROW_KEY: row}) == (200, b"it ran")
            assert (await call(row.method, path, **{ROW_KEY: None}))[0] == 404
        # The router takes a line's end for the end of the path.
        path = RECORDS_PATH.format(**NAMES) + "\n"
        assert find_row("POST", path) is None
        assert (await call("POST", path, **{ROW_KEY: None}))[0] == 404
        path = LOG_PATH.format(**NAMES) + ":end"
        assert (await call("DELETE", path, **{ROW_KEY: None}))[0] == 405

    asyncio.run(scenario())
