"""Servers of one process: granian for data and public ports, uvicorn for the admin port.

Both run inside the service's own event loop. The data plane is an RSGI handler that takes one
binary body and answers with one; public REST is FastAPI (ASGI) on granian, which speaks HTTP/1.1
and cleartext HTTP/2 with prior knowledge on the same port. Ports may be 0: read `port` then.

Request bodies are bounded before they are kept. Security comes as an issue of its own: until then a
service binds to loopback unless its configuration says `security: none` in so many words.
Source: 00-overview "Measured facts", 08-interfaces "Processes and admin".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import uvicorn
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from duramen.limits import FRAME_BYTES_MAX
from duramen.units import KIB, MIB
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, FrameError

_STREAM_WINDOW_BYTES = FRAME_BYTES_MAX
"""One frame fits a stream's window, so that flow control never waits for a round trip."""

Answer = tuple[int, str, bytes]
"""HTTP status, content type, body."""

DataHandler = Callable[[str, bytes], Awaitable[Answer]]
"""Takes the path and the body of a POST."""


class StreamHandler(Protocol):
    """Answers a POST in several pieces; returns None if it did not take the path."""

    def __call__(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        """Take the call and `send` each piece, or give None."""


class BodyTooLargeError(ValueError):
    """A request body passes the bound; nothing of it was used."""


class DataServer:
    """RSGI server of binary calls: `handler` for whole answers, `streamer` for streamed ones."""

    def __init__(
        self, host: str, port: int, handler: DataHandler, streamer: StreamHandler | None = None
    ) -> None:
        self._handler = handler
        self._streamer = streamer
        self._embedded = _EmbeddedServer(host, port, Interfaces.RSGI, self._on_request)
        self.request_count = 0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._embedded.port

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        await self._embedded.start()

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        await self._embedded.stop()

    async def _on_request(self, scope: Any, protocol: Any) -> None:
        self.request_count += 1
        if scope.method != "POST":
            protocol.response_empty(405, [("allow", "POST")])
            return
        try:
            body = await read_body(scope, protocol, FRAME_BYTES_HARD_MAX)
        except BodyTooLargeError:
            protocol.response_empty(413, [])
            return
        try:
            if self._streamer is not None and await self._stream(scope.path, body, protocol):
                return
            status, media, answer = await self._handler(scope.path, body)
        except FrameError as error:
            status, media, answer = 400, "text/plain", str(error).encode()
        protocol.response_bytes(status, [("content-type", media)], answer)

    async def _stream(self, path: str, body: bytes, protocol: Any) -> bool:
        assert self._streamer is not None
        transport: Any = None

        async def send(piece: bytes) -> None:
            nonlocal transport
            if not piece:
                # HTTP/2 peers take a run of empty DATA frames for an attack and hang up.
                return
            if transport is None:
                headers = [("content-type", "application/octet-stream")]
                transport = protocol.response_stream(200, headers)
            await transport.send_bytes(piece)

        taken = self._streamer(path, body, send)
        if taken is None:
            return False
        await taken
        return True


class PublicServer:
    """ASGI server (FastAPI) for public REST, HTTP/1.1 and cleartext HTTP/2 on one port."""

    def __init__(self, host: str, port: int, app: Any) -> None:
        self._embedded = _EmbeddedServer(host, port, Interfaces.ASGINL, app)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._embedded.port

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        await self._embedded.start()

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        await self._embedded.stop()


class AdminServer:
    """ASGI server (FastAPI) for probes, metrics and administration: uvicorn, HTTP/1.1."""

    def __init__(self, host: str, port: int, app: Any) -> None:
        self._socket = socket.create_server((host, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        self._server = _QuietUvicorn(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        for _ in range(1000):
            if self._server.started or self._task.done():
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"port {self.port} did not come up")

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        self._server.should_exit = True
        self._server.force_exit = True
        if self._task is not None:
            await self._task


class _QuietUvicorn(uvicorn.Server):
    """Uvicorn that leaves the process's signals to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _EmbeddedServer:
    """Granian inside this event loop."""

    def __init__(self, host: str, port: int, interface: Interfaces, target: Any) -> None:
        self.port = port or _free_port(host)
        self._host = host
        self._server = Server(
            target,
            address=host,
            port=self.port,
            interface=interface,
            http=HTTPModes.auto,
            websockets=False,
            backlog=1024,
            backpressure=4096,
            http1_settings=HTTP1Settings(header_read_timeout=30_000, max_buffer_size=1 * MIB),
            http2_settings=HTTP2Settings(
                initial_connection_window_size=4 * _STREAM_WINDOW_BYTES,
                initial_stream_window_size=_STREAM_WINDOW_BYTES,
                max_frame_size=1 * MIB,
                max_concurrent_streams=1024,
                max_headers_size=64 * KIB,
            ),
            log_enabled=False,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve())
        for _ in range(1000):
            if self._task.done():
                await self._task
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._host, self.port)
                writer.close()
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"port {self.port} did not come up")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._server.stop()  # type: ignore[no-untyped-call]  # granian has no annotation there
        _, late = await asyncio.wait([self._task], timeout=5)
        for task in late:
            task.cancel()


async def read_body(scope: Any, protocol: Any, most_bytes: int) -> bytes:
    """The request's body, refused before it is kept if it is too large.

    Raises:
        BodyTooLargeError: over `most_bytes`, by the announced or by the real length.
    """
    announced = scope.headers.get("content-length")
    if announced is not None and announced.isdigit():
        if int(announced) > most_bytes:
            raise BodyTooLargeError
        return bytes(await protocol())
    pieces = []
    size = 0
    async for piece in protocol:
        size += len(piece)
        if size > most_bytes:
            raise BodyTooLargeError
        pieces.append(piece)
    return b"".join(pieces)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
