"""HEAD beside every GET, 406 for what is not accepted, one Vary, and a page that needs no internet.

All GET calls of both public ports and all routes of their admin ports are walked over, with real
servers. Source: RFC 9110; docs/protocol/rest.md "Other statuses".
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
from fastapi.routing import APIRoute

from duramen.runtime.admin import make_admin_app
from duramen.runtime.edge.document_page import DOCS_PATH, format_page
from duramen.runtime.edge.negotiation import Negotiation
from duramen.runtime.edge.vary import add_vary
from duramen.runtime.http_server import AdminServer
from duramen.runtime.public.calls import CALLS
from duramen.runtime.public.openapi import make_document
from duramen.runtime.public.serving import DOCUMENT_PATHS
from duramen.runtime.role import ServiceOptions
from duramen.wire.edge.accept import choose_media
from tests.component import readproxy_world, writeproxy_world
from tests.component.still_clock import run_still
from tests.pauses import stay

PUBLIC: Final = [
    *(call.path for call in CALLS if call.method == "GET"), *DOCUMENT_PATHS, DOCS_PATH
]  # fmt: skip
OF_THIS_MOMENT: Final = {"date", "content-length", "connection", "transfer-encoding"}
"""Headers that may differ; the length of what tells of its own requests is one."""

EVENTS: Final = "text/event-stream"


def fill_in(path: str, namespace: str, log: str) -> str:
    path = path.replace("{namespace}", namespace).replace("{log}", log)
    return re.sub(r"{\w+}", "1", path)


async def check_head(http: httpx.AsyncClient, path: str, **headers: str) -> httpx.Response:
    """HEAD says what GET says; the answer to GET."""
    got = await http.get(path, headers=headers)
    head = await http.head(path, headers=headers)
    assert (head.status_code, head.content) == (got.status_code, b""), path
    for name in {*got.headers, *head.headers} - OF_THIS_MOMENT:
        assert head.headers.get(name) == got.headers.get(name), (path, name)
    return got


async def check_accept(http: httpx.AsyncClient, path: str) -> None:
    """Who accepts only what there is not is told what there is."""
    plain = await http.get(path)
    refused = await http.get(path, headers={"accept": "image/png"})
    if plain.status_code >= 300:
        assert refused.status_code in (plain.status_code, 406), path
        return
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (406, "not_acceptable"), path
    assert problem["field"] == "Accept" and problem["status"] == 406
    media = plain.headers["content-type"].partition(";")[0]
    assert media in problem["detail"]
    for accept in (media, f"image/png, {media};q=0.1", "*/*;q=0.1"):
        assert (await http.get(path, headers={"accept": accept})).status_code == 200, accept
    never = await http.get(path, headers={"accept": f"*/*, {media};q=0"})
    assert never.status_code in (200, 406) and never.headers["content-type"] != media


@asynccontextmanager
async def open_admin(service: Any, role: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[str]]]:
    """The admin port of a service, and its GET routes."""
    options = ServiceOptions(role, "c", "x", "127.0.0.1", 0, 0, "", "r", "r", "none", 4.0, None)
    app = make_admin_app(service, options, lambda: None)
    server = AdminServer("127.0.0.1", 0, app)
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    paths = [
        route.path for route in app.router.routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ())
    ]  # fmt: skip
    async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
        yield http, [*paths, "/openapi.json"]
    await server.stop()


async def check_all(
    http: httpx.AsyncClient, paths: list[str], namespace: str, log: str
) -> dict[str, int]:
    found = {}
    for template in paths:
        path = fill_in(template, namespace, log)
        found[template] = (await check_head(http, path)).status_code
        await check_accept(http, path)
    return found


def test_every_get_of_a_read_proxy_has_its_head_and_refuses_what_is_not_accepted() -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        found = await check_all(world.http, PUBLIC, "ns", "log")
        assert sum(status == 200 for status in found.values()) >= 7, found
        async with open_admin(world.proxy, "readproxy") as (http, paths):
            found = await check_all(http, paths, "ns", "log")
            assert found["/metrics"] == found[DOCS_PATH] == found["/v1/statistics"] == 200

    readproxy_world.run(scenario)


def test_every_get_of_a_write_proxy_has_its_head_and_refuses_what_is_not_accepted() -> None:
    async def scenario(world: writeproxy_world.World) -> None:
        url = f"http://127.0.0.1:{world.proxy.port}"
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
            found = await check_all(http, PUBLIC, "a", "l")
            assert sum(status == 200 for status in found.values()) >= 6, found
        async with open_admin(world.proxy, "writeproxy") as (http, paths):
            found = await check_all(http, paths, "a", "l")
            assert found["/readyz"] == found[DOCS_PATH] == 200

    writeproxy_world.run(scenario)


def test_the_head_of_a_stream_ends_and_names_no_body() -> None:
    """An endless stream of events, a wait at the tail, a refusal: each ends with its head."""

    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        records = readproxy_world.RECORDS
        head = await world.http.head(f"{records}?from=head", headers={"accept": EVENTS})
        assert head.status_code == 200 and head.headers["content-type"].startswith(EVENTS)
        assert head.content == b""
        assert (await world.http.head(f"{records}?nonsense=1")).status_code == 400
        refused = await world.http.post(f"{records}/tail")
        assert refused.status_code == 405
        assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}
        assert (await world.http.head(f"{records}:stream")).status_code == 405

    readproxy_world.run(scenario)


@pytest.mark.parametrize("origins", [(), ("http://localhost:8000",)])
def test_an_answer_has_one_vary(origins: tuple[str, ...]) -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        await world.close_segment()
        # Of no other origin is anything answered that a cache might keep.
        page = {"origin": origins[0]} if origins else {}
        for path in (*PUBLIC, f"{readproxy_world.RECORDS}?from=seq:0&count=1"):
            answer = await world.http.get(fill_in(path, "ns", "log"), headers=page)
            assert len(answer.headers.get_list("vary")) == 1, path
            names = answer.headers["vary"].split(", ")
            assert len(set(names)) == len(names) and "Accept-Encoding" in names
            assert ("Origin" in names) == bool(origins)
        answer = await world.http.get(f"{readproxy_world.RECORDS}?from=seq:0&count=1")
        names = answer.headers["vary"].split(", ")
        assert names[:3] == ["Accept", "Duramen-Format", "Accept-Encoding"]

    readproxy_world.run(scenario, cors_origins=origins)


def test_the_form_that_is_wanted_most_is_given() -> None:
    served = ["application/json", "application/x-ndjson", EVENTS]
    for accept, wanted in (
        ("", served[0]),
        ("*/*", served[0]),
        ("text/html, application/xhtml+xml, */*;q=0.8", served[0]),
        (EVENTS, EVENTS),
        (f"{EVENTS}, */*", EVENTS),
        (f"application/json;q=0.5, {EVENTS}", EVENTS),
        ("application/x-ndjson;q=0.2, application/json;q=0.1", served[1]),
        ("APPLICATION/JSON ; Q=1", served[0]),
        ("application/*", served[0]),
        ("application/*, application/json;q=0", served[1]),
        ("text/*", EVENTS),
        ("image/png", None),
        ("application/json;q=0", None),
        ("*/*;q=0", None),
        ("application/json;q=much", served[0]),
        (",, ;", served[0]),
    ):
        assert choose_media(accept, served) == wanted, accept


def play(
    app: Any, *, method: str = "GET", accept: bytes = b"*/*", is_gone: bool = False
) -> list[dict[str, Any]]:
    """What a server is told to send, whose client stays there for ever."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if is_gone:
            return {"type": "http.disconnect"}
        await stay()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "headers": [(b"accept", accept)]}

    async def call() -> None:
        await Negotiation(app)(scope, receive, send)

    run_still(call())
    return sent


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """An endless answer: it ends when its client goes."""
    assert scope["method"] == "GET"
    headers = [(b"content-type", EVENTS.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"1", "more_body": True})
    assert (await receive())["type"] == "http.disconnect"
    await send({"type": "http.response.body", "body": b"2", "more_body": False})


def test_an_endless_answer_ends_with_the_head_that_was_asked_for() -> None:
    head, body = play(stream, method="HEAD")
    assert head["status"] == 200 and (body["body"], body["more_body"]) == (b"", False)


def test_an_answer_that_is_refused_sends_nothing_of_itself() -> None:
    head, body = play(stream, accept=b"image/png", is_gone=True)
    assert head["status"] == 406 and b"not_acceptable" in body["body"]
    assert not body["more_body"]
    assert len(play(stream, is_gone=True)) == 3, "as it is, where it is accepted"


def test_vary_is_joined_without_doubles() -> None:
    given = [(b"vary", b"Accept, Duramen-Format"), (b"x", b"1"), (b"Vary", b"origin")]
    assert add_vary(given, b"Origin") == [
        (b"x", b"1"),
        (b"vary", b"Accept, Duramen-Format, origin"),
    ]
    assert add_vary([], b"Origin") == [(b"vary", b"Origin")]


def test_the_page_loads_nothing_and_has_every_call() -> None:
    """No script, and no address but links inside and the document beside it."""
    page = format_page(make_document(), DOCUMENT_PATHS[0])
    assert "<script" not in page and "http://" not in page and "https://" not in page
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    anchors = set(re.findall(r'id="([^"]*)"', page))
    assert links and all(
        link == DOCUMENT_PATHS[0] or link.removeprefix("#") in anchors for link in links
    )
    for call in CALLS:
        assert f"<code>{call.method} {call.path}</code></h2>" in page
        assert f"needs <code>{call.verb}</code>" in page
    get = {"summary": "&", "x-duramen-verb": "read"}
    odd = {"info": {"title": "<b>", "version": "1"}, "paths": {"/<x>": {"get": get}}}
    assert "<b>" not in format_page(odd, "/d").partition("</h1>")[0].partition("<h1>")[2]


def test_the_page_of_a_port_lets_a_browser_load_nothing() -> None:
    async def scenario(world: readproxy_world.World) -> None:
        async with open_admin(world.proxy, "readproxy") as (admin, _):
            for http, words in ((world.http, "/records/tail"), (admin, "/v1/drain-and-stop")):
                answer = await http.get(DOCS_PATH)
                assert answer.status_code == 200, words
                assert answer.headers["content-security-policy"].startswith("default-src 'none'")
                assert words in answer.text
            assert (await admin.get("/redoc")).status_code == 404

    readproxy_world.run(scenario)
