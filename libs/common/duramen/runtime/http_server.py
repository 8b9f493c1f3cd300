"""Servers of one process: granian for data and public ports, uvicorn for the admin port.

Both run inside the service's own event loop. The data plane is an RSGI handler that takes one
binary body and answers with one; public REST is FastAPI (ASGI) on granian, which speaks HTTP/1.1
and cleartext HTTP/2 with prior knowledge on the same port. Ports may be 0: read `port` then.

Limits hold before anything is allocated: connections that are read from, the size of one body (by
its announced length), and the bytes of all bodies that arrive at once; who finds those used up
waits its turn. Answers that a slow client does not take are the HTTP library's to keep: see
docs/critiques.md. Every server stands behind a gate (`wire.edge.gate`), which knows no name but
those of loopback and no page but its own unless it is told. Security comes as an issue of its own:
until then a service binds to loopback.
Source: docs/benchmarks.md "What shaped the design", docs/protocol/wire.md "what an answer's status
allows one to conclude" and "Limits".
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import resource
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import uvicorn
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings, HTTP2Settings
from granian.net import SocketSpec  # type: ignore[attr-defined]  # under its own name there
from granian.server.embed import Server

from duramen.limits import (
    BODIES_BYTES_MAX,
    BODIES_WAITING_COUNT_MAX,
    BODY_SMALL_BYTES,
    BODY_TIMEOUT_US,
    CONNECTION_COUNT_MAX,
    FRAME_BYTES_MAX,
    KEEP_ALIVE_INTERVAL_US,
    KEEP_ALIVE_TIMEOUT_US,
    PUBLIC_CONNECTION_COUNT_MAX,
)
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.edge.framing import CLOSING, ClearFraming, is_last
from duramen.runtime.edge.gated import GatedApp, encode_refusal, read_head
from duramen.runtime.public.calls import find_bodies
from duramen.units import KIB, MIB, MS, SECOND
from duramen.wire.edge.gate import Bodies, Gate
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, RETRY_AFTER_HEADER, FrameError

_STREAM_WINDOW_BYTES = FRAME_BYTES_MAX
"""One frame fits a stream's window, so that flow control never waits for a round trip."""

_SHUT: Final = Gate()
_ROOM_RETRY_AFTER_MS: Final = 200
_LISTEN: Final = "0A"


class Reply(NamedTuple):
    """An answer with headers of its own."""

    status: int
    media: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Answer = tuple[int, str, bytes] | Reply
"""HTTP status, content type, body."""

DataHandler = Callable[[str, bytes], Awaitable[Answer]]
"""Takes the path and the body of a POST."""

PeerHandler = Callable[[str, bytes, str], Awaitable[Answer]]
"""Takes the path and the body of a POST, and the address and port of who sent it."""


class StreamHandler(Protocol):
    """Answers a POST in several pieces; returns None if it did not take the path."""

    def __call__(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        """Take the call and `send` each piece, or give None."""


class BodyTooLargeError(ValueError):
    """A request body passes the bound; nothing of it was used."""


class NoRoomError(Exception):
    """Too many bodies wait for room already; nothing of this one was read."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one data server holds at most."""

    connection_count: int = CONNECTION_COUNT_MAX
    keep_alive_interval_us: int = KEEP_ALIVE_INTERVAL_US
    keep_alive_timeout_us: int = KEEP_ALIVE_TIMEOUT_US
    bodies_bytes: int = BODIES_BYTES_MAX
    bodies_waiting_count: int = BODIES_WAITING_COUNT_MAX
    body_timeout_us: int = BODY_TIMEOUT_US


PUBLIC_LIMITS: Final = ServerLimits(connection_count=PUBLIC_CONNECTION_COUNT_MAX)


def fit_connections(wanted_count: int) -> int:
    """So many connections, or fewer: half of the files that the process may open are for others."""
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return wanted_count
    return max(1, min(wanted_count, most_files // 2))


def refuse_overloaded(sentence: str, retry_after_ms: int) -> Reply:
    """A 503 that promises that nothing was done, and says when to ask again."""
    headers = (
        ("retry-after", str(-(-retry_after_ms // 1000))),
        (RETRY_AFTER_HEADER, str(retry_after_ms)),
    )
    return Reply(503, "text/plain; charset=utf-8", sentence.encode(), headers)


class BodyRoom:
    """Bytes of the bodies that arrive at this moment, within a bound; first come, first served.

    Small bodies count but never wait. A body that is larger than all the room gets in alone.
    """

    def __init__(self, bytes_max: int, waiting_count_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting_count_max = waiting_count_max
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._refused_count = 0

    async def enter(self, size_bytes: int) -> None:
        """Wait until the body may be read; every return is followed by one `leave`.

        Raises:
            NoRoomError: too many wait already.
        """
        if size_bytes <= BODY_SMALL_BYTES or (not self._waiting and self._fits(size_bytes)):
            self._bytes += size_bytes
            return
        if len(self._waiting) >= self._waiting_count_max:
            self._refused_count += 1
            raise NoRoomError
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int) -> None:
        """The body was read, or given up: let in who waits."""
        self._bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._bytes += size_bytes
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return self._bytes == 0 or self._bytes + size_bytes <= self._bytes_max

    def statistics(self) -> dict[str, int]:
        """What arrives and what waits."""
        return {
            "bodies_bytes": self._bytes,
            "bodies_bytes_max": self._bytes_max,
            "bodies_waiting": len(self._waiting),
            "bodies_waiting_max": self._waiting_count_max,
            "bodies_refused": self._refused_count,
        }


class _BodyServer(abc.ABC):
    """RSGI server of POSTs with one binary body; takes the body in, within the limits."""

    def __init__(self, host: str, port: int, limits: ServerLimits, gate: Gate) -> None:
        self._limits = limits
        self._gate = gate
        self._connection_count_max = fit_connections(limits.connection_count)
        self._room = BodyRoom(limits.bodies_bytes, limits.bodies_waiting_count)
        self._embedded = _EmbeddedServer(host, port, Interfaces.RSGI, self._on_request, limits)
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

    def statistics(self) -> dict[str, int | None]:
        """Requests, bodies and connections (None where the system does not tell)."""
        accepted, waiting = count_connections(self.port) or (None, None)
        return {
            "requests": self.request_count,
            **self._room.statistics(),
            "connections": accepted,
            "connections_waiting": waiting,
            "connections_max": self._connection_count_max,
        }

    async def _on_request(self, scope: Any, protocol: Any) -> None:
        self.request_count += 1
        if is_last(scope.http_version, scope.headers.keys()):
            protocol = _Closing(protocol)
        refusal = self._gate.judge(read_head(scope), Bodies.FRAMES)
        if refusal is not None:
            _send(protocol, encode_refusal(refusal))
            return
        if scope.method != "POST":
            protocol.response_empty(405, [("allow", "POST")])
            return
        try:
            body = await self._take_in(scope, protocol)
        except BodyTooLargeError:
            protocol.response_empty(413, [])
            return
        except TimeoutError:
            protocol.response_empty(408, [])
            return
        except NoRoomError:
            _send(protocol, refuse_overloaded("too many frames arrive", _ROOM_RETRY_AFTER_MS))
            return
        try:
            answering = self._answer(scope, body, protocol)
            del body  # it is the handler's now, to be dropped as soon as it was read
            answer = await answering
        except FrameError as error:
            answer = 400, "text/plain", str(error).encode()
        if answer is not None:
            _send(protocol, answer)

    async def _take_in(self, scope: Any, protocol: Any) -> bytes:
        """The body, once there is room for it.

        Raises:
            BodyTooLargeError, NoRoomError: nothing was read. TimeoutError: it did not arrive.
        """
        text = scope.headers.get("content-length")
        announced = int(text) if text is not None and text.isdecimal() else None
        size_bytes = FRAME_BYTES_HARD_MAX if announced is None else announced
        if size_bytes > FRAME_BYTES_HARD_MAX:
            raise BodyTooLargeError
        await self._room.enter(size_bytes)
        try:
            if size_bytes <= BODY_SMALL_BYTES:
                return bytes(await protocol())
            async with asyncio.timeout(self._limits.body_timeout_us / SECOND):
                if announced is not None:
                    return bytes(await protocol())
                return await _gather(protocol, FRAME_BYTES_HARD_MAX)
        finally:
            self._room.leave(size_bytes)

    @abc.abstractmethod
    def _answer(self, scope: Any, body: bytes, protocol: Any) -> Awaitable[Answer | None]:
        """Handle a request; None: the answer was sent already."""


class DataServer(_BodyServer):
    """Binary calls: `handler` for whole answers, `streamer` for streamed ones."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: DataHandler,
        streamer: StreamHandler | None = None,
        *,
        limits: ServerLimits = ServerLimits(),
        gate: Gate = _SHUT,
    ) -> None:
        super().__init__(host, port, limits, gate)
        self._handler = handler
        self._streamer = streamer

    def _answer(self, scope: Any, body: bytes, protocol: Any) -> Awaitable[Answer | None]:
        streaming = self._stream(scope.path, body, protocol)
        return self._handler(scope.path, body) if streaming is None else streaming

    def _stream(self, path: str, body: bytes, protocol: Any) -> Awaitable[None] | None:
        if self._streamer is None:
            return None
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

        return self._streamer(path, body, send)


class PeerServer(_BodyServer):
    """Binary calls whose handler also learns who asks, so that it can share its room out."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: PeerHandler,
        *,
        limits: ServerLimits = ServerLimits(),
        gate: Gate = _SHUT,
    ) -> None:
        super().__init__(host, port, limits, gate)
        self._handler = handler

    def _answer(self, scope: Any, body: bytes, protocol: Any) -> Awaitable[Answer | None]:
        return self._handler(scope.path, body, scope.client)


class _Closing:
    """The protocol of a request behind which nothing is read (`edge.framing`)."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def __call__(self) -> Any:
        return self._protocol()

    def __aiter__(self) -> Any:
        return self._protocol.__aiter__()

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self._protocol.response_empty(status, [*headers, CLOSING])

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._protocol.response_bytes(status, [*headers, CLOSING], body)

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any:
        return self._protocol.response_stream(status, [*headers, CLOSING])


def _send(protocol: Any, answer: Answer) -> None:
    status, media, body, headers = Reply(*answer)
    protocol.response_bytes(status, [("content-type", media), *headers], body)


class PublicServer:
    """ASGI server (FastAPI) for public REST, HTTP/1.1 and cleartext HTTP/2 on one port."""

    def __init__(
        self,
        host: str,
        port: int,
        app: Any,
        gate: Gate = _SHUT,
        *,
        limits: ServerLimits = PUBLIC_LIMITS,
    ) -> None:
        gated = GatedApp(app, gate, find_bodies)
        self._embedded = _EmbeddedServer(host, port, Interfaces.ASGINL, ClearFraming(gated), limits)

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

    def __init__(
        self,
        host: str,
        port: int,
        app: Any,
        gate: Gate = _SHUT,
        *,
        connections: AdminConnections | None = None,
    ) -> None:
        gated = GatedApp(app, gate, lambda _path: Bodies.JSON)
        connections = connections or AdminConnections()
        self._socket = socket.create_server((host, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            ClearFraming(gated),
            interface="asgi3",
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
        )
        config.load()
        config.http_protocol_class = connections.make  # type: ignore[assignment]  # only called
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


class _Granian(Server):
    """Granian without the socket that it binds to see whether it can, and never closes.

    Whether the port can be had is known: it is reserved. What a worker listens on it binds itself.
    """

    def _init_shared_socket(self) -> None:
        spec = SocketSpec(self.bind_addr, self.bind_port, self.backlog)
        self._ssp = spec  # type: ignore[assignment]  # granian says None there


class _EmbeddedServer:
    """Granian inside this event loop."""

    def __init__(
        self, host: str, port: int, interface: Interfaces, target: Any, limits: ServerLimits
    ) -> None:
        self._reserved = _reserve_port(host, port)
        self.port: int = self._reserved.getsockname()[1]
        self._host = host
        self._server = _Granian(
            target,
            address=host,
            port=self.port,
            interface=interface,
            http=HTTPModes.auto,
            websockets=False,
            backlog=1024,
            # Granian accepts so many connections and leaves the rest to the kernel's queue.
            backpressure=fit_connections(limits.connection_count),
            http1_settings=HTTP1Settings(header_read_timeout=30_000, max_buffer_size=1 * MIB),
            http2_settings=HTTP2Settings(
                initial_connection_window_size=4 * _STREAM_WINDOW_BYTES,
                initial_stream_window_size=_STREAM_WINDOW_BYTES,
                max_frame_size=1 * MIB,
                max_concurrent_streams=1024,
                max_headers_size=64 * KIB,
                keep_alive_interval=limits.keep_alive_interval_us // MS,
                keep_alive_timeout=max(1, limits.keep_alive_timeout_us // SECOND),
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
                self._reserved.close()
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"port {self.port} did not come up")

    async def stop(self) -> None:
        self._reserved.close()
        if self._task is None:
            return
        self._server.stop()  # type: ignore[no-untyped-call]  # granian has no annotation there
        _, late = await asyncio.wait([self._task], timeout=5)
        for task in late:
            task.cancel()


async def _gather(protocol: Any, most_bytes: int) -> bytes:
    """A body of unknown length, given up as soon as it is too large."""
    pieces = []
    size = 0
    async for piece in protocol:
        size += len(piece)
        if size > most_bytes:
            raise BodyTooLargeError
        pieces.append(piece)
    return b"".join(pieces)


def count_connections(port: int) -> tuple[int, int] | None:
    """How many connections of a listening port are accepted, and how many wait for it.

    Read from Linux's own tables, for the HTTP library does not tell; None elsewhere.
    """
    accepted = waiting = 0
    try:
        tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return None
    for line in [line for table in tables for line in table.splitlines()[1:]]:
        _, local, _, state, queues, _, _, _, _, inode, *_ = line.split()
        if int(local.rpartition(":")[2], 16) != port:
            continue
        if state == _LISTEN:
            waiting += int(queues.partition(":")[2], 16)
        elif inode != "0":  # the kernel has no owner yet for those that wait
            accepted += 1
    return accepted, waiting


def _reserve_port(host: str, port: int) -> socket.socket:
    """A socket that keeps a port (0: any that is free) for the server until the server listens.

    Granian shares its port with whoever else does: without this, two servers that were given the
    same port would both start, and calls would reach either.

    Raises:
        OSError: the port is taken.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
        # Only from here on, so that the bind itself found out whether somebody listens already.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        reserved.close()
        raise
    return reserved
