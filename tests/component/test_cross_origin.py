"""Pages of other origins at both public ports, asked as a browser asks; off unless it is asked for.

What a page may do with it is played in `tests/process/test_browser_page.py` and in a real browser
(`test_strange_pages.py`), who is kept out at every port in `test_gates.py`.
Source: the Fetch standard "CORS protocol"; docs/protocol/rest.md "Pages of other origins".
"""

import asyncio
from typing import Any

import httpx
import pytest

from duramen.runtime.edge.cross_origin import (
    METHODS,
    SHOWN_HEADERS,
    TAKEN_HEADERS,
    allow_origins,
    parse_origin,
)
from duramen.runtime.http_server import PublicServer
from duramen.runtime.public.calls import CALLS
from duramen.runtime.public.openapi import make_document
from duramen.runtime.rest import add_route, make_public_app
from duramen.runtime.service import parse_options
from duramen.wire.edge.gate import Gate
from tests.component import readproxy_world, writeproxy_world
from tests.component.event_stream import EVENTS

PAGE, STRANGER = "http://page.example:8000", "http://stranger.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type",
}


def marks_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if "access-control" in name}


def is_varying(answer: httpx.Response) -> bool:
    return "Origin" in answer.headers.get("vary", "").split(", ")


def check_kept_out(answer: httpx.Response) -> None:
    """Of a page that nobody named: it asks for nothing, and is told nothing."""
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert not marks_of(answer)


def open_client(world: writeproxy_world.World) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{world.proxy.port}"
    return httpx.AsyncClient(base_url=url, timeout=20, trust_env=False)


def test_a_page_that_is_named_reads_every_answer_and_a_stranger_none() -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        for query, accept, status in (
            ("?from=head", "*/*", 200),
            ("?from=head&wait=0s", EVENTS, 200),
            ("?from=seq:1000", "*/*", 416),
            ("?nonsense=1", "*/*", 400),
            ("/nowhere", "*/*", 404),
        ):
            answer = await world.get(query, accept=accept, origin=PAGE)
            assert answer.status_code == status and is_varying(answer), query
            marks = marks_of(answer)
            assert marks.pop("access-control-allow-origin") == PAGE
            assert "Duramen-Next" in marks.pop("access-control-expose-headers")
            assert not marks, "no credentials, ever"
            for origin in (STRANGER, "null", f"{PAGE}0", PAGE.upper(), ""):
                check_kept_out(await world.get(query, accept=accept, origin=origin))
        answer = await world.http.get(readproxy_world.RECORDS)
        assert is_varying(answer), "a cache must keep what a page may read apart from this"
        twice = [("origin", PAGE), ("origin", STRANGER)]
        check_kept_out(await world.http.get(readproxy_world.RECORDS, headers=twice))
        own = str(world.http.base_url).removesuffix("/")
        answer = await world.get("?from=head", origin=own)
        assert answer.status_code == 200 and not marks_of(answer) and is_varying(answer)

    readproxy_world.run(scenario, cors_origins=(PAGE, "https://other.example"))


def test_a_preflight_is_answered_and_the_append_behind_it_works() -> None:
    async def scenario(world: writeproxy_world.World) -> None:
        async with open_client(world) as http:
            path = writeproxy_world.RECORDS
            answer = await http.options(path, headers=PREFLIGHT)
            assert (answer.status_code, answer.content) == (204, b"") and is_varying(answer)
            assert marks_of(answer) == {
                "access-control-allow-origin": PAGE,
                "access-control-allow-methods": ", ".join(METHODS),
                "access-control-allow-headers": ", ".join(TAKEN_HEADERS),
                "access-control-max-age": "600",
            }
            body = {"records": [{"body": "one"}]}
            answer = await http.post(path, json=body, headers={"origin": PAGE})
            assert answer.status_code == 200
            assert marks_of(answer)["access-control-allow-origin"] == PAGE
            check_kept_out(await http.options(path, headers={**PREFLIGHT, "origin": STRANGER}))
            check_kept_out(await http.post(path, json=body, headers={"origin": STRANGER}))
            answer = await http.options(path, headers={"origin": PAGE})
            assert answer.status_code == 405, "a question, but not of a browser"
        assert len(world.rows) == 1

    writeproxy_world.run(scenario, cors_origins=(PAGE,))


def test_without_a_list_nothing_is_said() -> None:
    async def reading(world: readproxy_world.World) -> None:
        await world.fill()
        check_kept_out(await world.get("?from=head", origin=PAGE))
        answer = await world.get("?from=head")
        assert answer.status_code == 200 and not marks_of(answer) and not is_varying(answer)

    async def writing(world: writeproxy_world.World) -> None:
        async with open_client(world) as http:
            check_kept_out(await http.options(writeproxy_world.RECORDS, headers=PREFLIGHT))

    readproxy_world.run(reading)
    writeproxy_world.run(writing)
    app = make_public_app("test")
    assert allow_origins(app, ()) is app, "and nothing is done"


def test_what_nobody_foresaw_is_readable_and_a_peer_is_not_believed() -> None:
    """The page sees a 500 as it is; what a peer says about pages does not come through."""

    async def scenario() -> None:

        async def fail(_request: Any) -> Any:
            raise RuntimeError("nobody foresaw it")

        app = make_public_app("test")
        add_route(app, "GET", "/fails", fail)

        async def peer(scope: Any, receive: Any, send: Any) -> None:
            async def send_marked(message: Any) -> None:
                if message["type"] == "http.response.start":
                    mark = (b"access-control-allow-origin", b"*")
                    message["headers"] = [*message["headers"], mark]
                await send(message)

            await app(scope, receive, send_marked)

        server = PublicServer("127.0.0.1", 0, allow_origins(peer, [PAGE]), Gate.of((), [PAGE]))
        await server.start()
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{server.port}/fails"
            answer = await http.get(url, headers={"origin": PAGE})
            assert (answer.status_code, answer.json()["code"]) == (500, "internal")
            assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
            assert not marks_of(await http.get(url))
        await server.stop()

    asyncio.run(scenario())


def test_pages_may_use_all_of_the_contract() -> None:
    components = make_document()["components"]
    described = components["parameters"].values()
    headers = {p["name"].lower() for p in described if p["in"] == "header"}
    assert headers | {"content-type", "content-encoding", "authorization"} == {
        n.lower() for n in TAKEN_HEADERS
    }
    # The first is always shown; redirects are followed by the browser, which shows a page none.
    of_browsers = {"Cache-Control", "Location"}
    assert set(components["headers"]) - of_browsers <= set(SHOWN_HEADERS)
    assert {call.method for call in CALLS} == set(METHODS)


@pytest.mark.parametrize("role", ["writeproxy", "readproxy"])
def test_proxies_are_told_of_origins_one_by_one(role: str) -> None:
    arguments = [
        "--cluster", "c", "--id", "p", "--data-port", "1", "--admin-port", "2",
        "--zookeeper", "zk:2181", "--security", "none",
    ]  # fmt: skip
    assert parse_options(role, arguments).cors_origins == ()
    asked = [*arguments, "--cors-origin", PAGE, "--cors-origin=https://b.example"]
    assert parse_options(role, asked).cors_origins == (PAGE, "https://b.example")
    with pytest.raises(SystemExit):
        parse_options(role, [*arguments, "--cors-origin", "*"])


def test_an_origin_is_written_as_browsers_write_it() -> None:
    for text in ("http://localhost:8000", "https://a.b-c.example", "http://[::1]:8000"):
        assert parse_origin(text) == text
    for text in (
        "*", "null", "localhost:8000", "http://", "http://a/", "http://a/b", "http://A",
        "http://a:80", "https://a:443", "http://a:0", "http://a\r\nx", "ftp://a", "http://a,b",
        "http://a b", "http://u@a",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no origin"):
            parse_origin(text)
