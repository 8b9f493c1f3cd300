"""Requests with `Transfer-Encoding` on every kind of port: nothing is read behind them.

Two requests are sent at once, of which the first one's end can be seen in two places. What HTTP
libraries refuse by themselves is in tests/process/test_hostile_input.py. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fastapi import FastAPI, Request

from duramen.runtime.http_server import AdminServer, Answer, DataServer, PeerServer, PublicServer

CHUNKED = "transfer-encoding: chunked"
BODY = b"3\r\nabc\r\n0\r\n\r\n"
TYPED = "content-type: application/json"
SECOND = (
    b"POST /x HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: 6\r\n\r\nsecond"
)

Servers = AdminServer | DataServer | PublicServer | PeerServer


def make_servers(seen: list[bytes]) -> dict[str, Callable[[], Servers]]:
    """Each kind of server; they note the bodies that they serve."""
    app = FastAPI()

    @app.post("/x")
    async def take(request: Request) -> str:
        seen.append(await request.body())
        return "taken"

    async def handle(_path: str, body: bytes, *_peer: object) -> Answer:
        seen.append(body)
        return 200, "text/plain", b"taken"

    def stream(
        path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        seen.append(body)
        return send(b"taken")

    return {
        "admin": lambda: AdminServer("127.0.0.1", 0, app),
        "public": lambda: PublicServer("127.0.0.1", 0, app),
        "data": lambda: DataServer("127.0.0.1", 0, handle),
        "streamed": lambda: DataServer("127.0.0.1", 0, handle, stream),
        "peer": lambda: PeerServer("127.0.0.1", 0, handle),
    }


KINDS = list(make_servers([]))


async def exchange(port: int, sent: bytes) -> bytes:
    """Everything that is answered until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    return answer


def run(kind: str, sent: bytes) -> tuple[bytes, list[bytes]]:
    """The answers to what is sent, and the bodies that were served."""
    seen: list[bytes] = []

    async def scenario() -> bytes:
        server = make_servers(seen)[kind]()
        async with asyncio.timeout(30):
            await server.start()
            try:
                return await exchange(server.port, sent)
            finally:
                await server.stop()

    return asyncio.run(scenario()), seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[CHUNKED], [CHUNKED, "content-length: 4"],
                                   ["content-length: 13", CHUNKED]])  # fmt: skip
def test_a_chunked_request_is_the_last_one_of_its_connection(kind: str, lines: list[str]) -> None:
    head = "\r\n".join(["POST /x HTTP/1.1", "host: 127.0.0.1", TYPED, *lines, "", ""]).encode()
    answer, seen = run(kind, head + BODY + SECOND)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()
    if kind == "admin" and len(lines) > 1:
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"field":"Transfer-Encoding"' in answer
        assert seen == []
    else:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert seen == [b"abc"]


@pytest.mark.parametrize("kind", ["data", "peer"])
def test_a_refused_chunked_request_is_the_last_one_too(kind: str) -> None:
    head = f"PUT /x HTTP/1.1\r\nhost: 127.0.0.1\r\n{CHUNKED}\r\n\r\n".encode()
    answer, seen = run(kind, head + BODY + SECOND)
    assert answer.startswith(b"HTTP/1.1 405 ") and answer.count(b"HTTP/1.1 ") == 1
    assert seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_requests_whose_length_is_announced_share_a_connection(kind: str) -> None:
    last = SECOND.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    answer, seen = run(kind, SECOND + last)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert seen == [b"second"] * 2
