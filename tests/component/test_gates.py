"""Every kind of port stands behind the gate, over either protocol, whatever its service forgets.

What the gate decides is `tests/unit/test_gate.py`'s table; here each server that `http_server` has
asks it, with the heads as they arrive. That no service has a port beside these is
`tests/process/test_strange_pages.py`'s matter. Source: ADR 0025.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any, Final

import httpx
import pytest

from duramen.runtime import http_server
from duramen.runtime.http_server import AdminServer, Answer, DataServer, PeerServer, PublicServer
from duramen.wire.edge.gate import Gate
from tests.component.raw_http import open_call

GATE: Final = Gate.of(["node-1.nodes"], ["http://page.example"])
PORTS: Final = ("admin", "public", "data", "peer")
APPEND: Final = "/v1/namespaces/a/logs/l/records"
JSON: Final = {"content-type": "application/json"}
STRANGE: Final[list[tuple[dict[str, str], int]]] = [
    ({"host": "rebound.example"}, 421),
    ({"host": "rebound.example", "origin": "http://rebound.example"}, 421),
    ({"origin": "http://stranger.example"}, 403),
    ({"origin": "null"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
]
KNOWN: Final[list[dict[str, str]]] = [
    {"host": "node-1.nodes:7101"},
    {"host": "localhost"},
    {"origin": "http://page.example", "sec-fetch-site": "cross-site"},
    {"host": "node-1.nodes", "origin": "http://node-1.nodes", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
]
UNASKED: Final[list[dict[str, str]]] = [
    {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "multipart/form-data; boundary=b"},
]

Port = AdminServer | PublicServer | DataServer | PeerServer


class Ports:
    """One server of each kind, all with one gate; `reached` counts what came through."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.reached = 0
        given: Any = {} if gate is None else {"gate": gate}
        self.servers: dict[str, Port] = {
            "admin": AdminServer("127.0.0.1", 0, self._serve, **given),
            "public": PublicServer("127.0.0.1", 0, self._serve, **given),
            "data": DataServer("127.0.0.1", 0, self._answer, **given),
            "peer": PeerServer("127.0.0.1", 0, self._answer, **given),
        }

    async def __aenter__(self) -> Ports:
        for server in self.servers.values():
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers.values():
            await server.stop()

    async def _answer(self, *_: object) -> Answer:
        self.reached += 1
        return 200, "text/plain", b"served"

    async def _serve(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.reached += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})


async def ask_by_two_names(port: int) -> int:
    """The status of a request that names another host, and one of ours behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hosts = b"host: rebound.example\r\nhost: localhost\r\n"
    writer.write(b"POST /x HTTP/1.1\r\n" + hosts + b"content-length: 0\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


def test_these_are_all_servers() -> None:
    found = {
        name
        for name, kind in inspect.getmembers(http_server, inspect.isclass)
        if kind.__module__ == http_server.__name__ and name.endswith("Server") and name[0] != "_"
    }
    assert found == {type(server).__name__ for server in Ports().servers.values()}


@pytest.mark.parametrize("kind", PORTS)
def test_a_port_refuses_strangers_and_serves_whom_it_knows(kind: str) -> None:
    async def scenario() -> None:
        async with Ports(gate=GATE) as ports, httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{ports.servers[kind].port}"
            methods = ("GET", "POST") if kind in ("admin", "public") else ("POST",)
            for method in methods:
                for headers, status in STRANGE:
                    answer = await http.request(method, f"{url}/x", headers=headers | JSON)
                    assert answer.status_code == status, (method, headers)
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["status"] == status
                    if kind in ("admin", "public"):
                        assert answer.headers["cache-control"] == "no-store"
            assert ports.reached == 0
            for headers in KNOWN:
                answer = await http.post(f"{url}/x", headers=headers | JSON, content=b"{}")
                assert answer.status_code == 200, headers
            assert ports.reached == len(KNOWN)
            if kind != "admin":  # whose library refuses it itself
                assert await ask_by_two_names(ports.servers[kind].port) == 421
            twice = [("origin", "http://stranger.example"), ("origin", "http://page.example")]
            assert (await http.post(url, headers=twice)).status_code == 403
            assert ports.reached == len(KNOWN)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", PORTS)
def test_a_port_that_was_told_nothing_knows_loopback_and_its_own_pages_alone(kind: str) -> None:
    async def scenario() -> None:
        async with Ports() as ports, httpx.AsyncClient(trust_env=False) as http:
            port = ports.servers[kind].port
            for headers in (
                {},
                {"host": "localhost"},
                {"origin": f"http://127.0.0.1:{port}"},
            ):
                answer = await http.post(f"http://127.0.0.1:{port}", headers=headers)
                assert answer.status_code == 200, headers
            for headers in ({"host": "node-1.nodes"}, {"origin": "http://page.example"}):
                answer = await http.post(f"http://127.0.0.1:{port}", headers=headers)
                assert answer.status_code in (403, 421), headers

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", PORTS)
def test_what_a_page_may_send_unasked_is_refused(kind: str) -> None:
    async def scenario() -> None:
        async with Ports() as ports, httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{ports.servers[kind].port}/x"
            for headers in UNASKED:
                for body in (b"{}", b""):
                    answer = await http.post(url, headers=headers, content=body)
                    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media")

            async def pieces() -> Any:
                yield b"{}"

            assert ports.reached == 0
            is_typed = kind in ("data", "peer")
            for content in (b"{}", pieces()):
                answer = await http.post(url, content=content)
                assert answer.status_code == (200 if is_typed else 415), "a body without a type"
            assert (await http.post(url)).status_code == 200, "no body needs none"

    asyncio.run(scenario())


def test_an_append_has_its_own_types_and_a_page_does_not() -> None:
    """`text/plain` is one record, for whoever is no page of others."""

    async def scenario() -> None:
        async with Ports() as ports, httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{ports.servers['public'].port}{APPEND}"
            for headers in UNASKED:
                assert (await http.post(url, headers=headers, content=b"x")).status_code == 200
                for strange, status in STRANGE:
                    answer = await http.post(url, headers=headers | strange, content=b"x")
                    assert answer.status_code == status

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["public", "data", "peer"])
def test_http2_is_no_way_around(kind: str) -> None:
    async def scenario() -> None:
        async with Ports(gate=GATE) as ports:
            port = ports.servers[kind].port
            cases = [(headers, str(status)) for headers, status in STRANGE]
            cases += [(headers, "served") for headers in KNOWN]
            cases += [(headers, "415") for headers in UNASKED]
            for headers, expected in cases:
                named = {name.replace("-", "_"): value for name, value in headers.items()}
                call = await open_call("h2", port, "/x", **named)
                await call.end()
                body = (await call.read_line()).decode()
                got = body if body == "served" else str(json.loads(body)["status"])
                assert got == expected, headers
                call.close()

    asyncio.run(scenario())
