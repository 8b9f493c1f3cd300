"""A peer with a data port and a stream port, and a client of both, over loopback.

The peer's handler answers `echo` at once, and holds `hold…` until it is told. Used by the tests of
standing streams. Source: docs/protocol/standing-streams.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from duramen.runtime.http_client import PeerClient
from duramen.runtime.http_server import Answer, Guard, PeerServer, refuse_overloaded
from duramen.runtime.identity.names import Identity
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.standing.call_streams import CallStreams
from duramen.runtime.standing.process_name import STREAM_URL, make_process_name
from duramen.runtime.standing.stream_server import Send, StreamServer
from duramen.units import SECOND
from duramen.wire.edge.gate import Gate
from duramen.wire.frame import FrameError
from tests.waiting import wait_for

WAIT_US = 10 * SECOND
HOST = "127.0.0.1"


def run_as_services_do(scenario: Coroutine[Any, Any, None]) -> None:
    """On the event loop that services have, within a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    uvloop.run(bounded())


def run_on_both_loops(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On that one, and on asyncio's own, which embedded clients may have."""
    run_as_services_do(scenario())
    asyncio.run(scenario())


@dataclass
class Peer:
    """What was asked of it, by which way, and by whom."""

    data: PeerServer
    streams: StreamServer
    process: str
    scheme: str = "http"
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)
    callers: set[Identity | None] = field(default_factory=set)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{HOST}:{self.data.port}"

    def describe(self) -> dict[str, str]:
        """As it registers itself."""
        at = f"{self.scheme}://{HOST}:{self.streams.port}/standing/{self.process}"
        return {"data_url": self.url, STREAM_URL: at}

    def count(self, way: str) -> int:
        return sum(one[0] == way for one in self.asked)

    async def answer(self, path: str, body: bytes) -> Answer:
        if body.startswith(b"hold"):
            await self.released.wait()
        if body == b"full":
            return refuse_overloaded("no room", 250)
        if body == b"odd":
            raise FrameError("no frame")
        if body == b"broken":
            raise ValueError("a fault of the handler")
        return 200, "application/octet-stream", path.encode() + b" " + body


@asynccontextmanager
async def running_peer(
    guard: Guard | None = None, *, connection_count: int = 64
) -> AsyncIterator[Peer]:
    """One that serves; with a guard it speaks TLS."""

    async def on_call(path: str, body: bytes, peer: str, caller: Identity | None) -> Answer:
        made.asked.append(("call", path, body))
        made.peers.add(peer)
        return await made.answer(path, body)

    async def on_request(
        path: str, body: bytes, peer: str, caller: Identity | None, send: Send
    ) -> Answer | None:
        made.asked.append(("stream", path, body))
        made.peers.add(peer)
        made.callers.add(caller)
        if path == "/s/append":
            for piece in body.split(b","):
                await send(piece)
            if body.startswith(b"hold"):
                await made.released.wait()
            if body.endswith(b"fault"):
                raise ValueError("a fault of the handler")
            return None
        return await made.answer(path, body)

    process = make_process_name()
    data = PeerServer(HOST, 0, on_call, guard=guard)
    streams = StreamServer(
        HOST, 0, process, on_request,
        gate=Gate(), guard=guard, connection_count=connection_count,
    )  # fmt: skip
    made = Peer(data, streams, process, "http" if guard is None else "https")
    await data.start()
    await streams.start()
    try:
        yield made
    finally:
        made.released.set()
        await streams.stop()
        await data.stop()


@dataclass
class Caller:
    """A client whose roster is told by the test."""

    client: PeerClient
    streams: CallStreams

    def learn(self, *peers: Peer) -> None:
        self.streams.learn({str(number): peer.describe() for number, peer in enumerate(peers)})

    async def call(self, peer: Peer, body: bytes, path: str = "/b/add") -> bytes:
        return await self.client.call(peer.url + path, body, WAIT_US)

    async def open(self, peer: Peer) -> None:
        """Have a stream to the peer: a call asks for it."""
        before = self.streams.statistics()["streams"]
        await self.call(peer, b"opening")
        await wait_for(lambda: self.streams.statistics()["streams"] > before, what="a stream")


@asynccontextmanager
async def calling(*peers: Peer, security: ProcessSecurity | None = None) -> AsyncIterator[Caller]:
    """A client that knows these peers."""
    streams = CallStreams(security)
    caller = Caller(PeerClient(security, streams), streams)
    caller.learn(*peers)
    try:
        yield caller
    finally:
        await caller.client.close()
