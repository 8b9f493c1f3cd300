"""Servers of one process: granian for data and public ports, uvicorn for the admin port.

Both run inside the service's own event loop. The data plane is an RSGI handler that takes one
binary body and answers with one; public REST is FastAPI (ASGI) on granian, which speaks HTTP/1.1
and cleartext HTTP/2 with prior knowledge on the same port. Ports may be 0: read `port` then.

Limits hold before anything is allocated: connections that are read from, the size of one body (by
its announced length), and the bytes of all bodies that arrive at once; who finds those used up
waits. Answers that a slow client does not take are the HTTP library's to keep: docs/critiques.md.
Every server stands behind a gate (`wire.edge.gate`), which knows no name but those of loopback and
no page but its own unless it is told. Data and admin ports of a process that has an identity speak
TLS and have a door (`security.door`, `security.admin_door`). After a renewal another server takes a
data port over, and an admin port shows the new certificate to the next connection.
Source: docs/benchmarks.md "What shaped the design", docs/protocol/wire.md "what an answer's status
allows one to conclude" and "Limits", docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import uvicorn
from granian.constants import Interfaces

from duramen.limits import (
    BODY_SMALL_BYTES,
    PUBLIC_CONNECTION_COUNT_MAX,
)
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.edge.embedded_server import EmbeddedServer, ServerLimits, fit_connections
from duramen.runtime.edge.framing import CLOSING, ClearFraming, is_last
from duramen.runtime.edge.gated import GatedApp, encode_refusal, read_head
from duramen.runtime.edge.port_listener import ConnectionPlace, PortListener
from duramen.runtime.edge.port_sockets import count_connections
from duramen.runtime.identity.names import Identity
from duramen.runtime.public.calls import find_bodies
from duramen.runtime.security.admin_door import AdminDoor
from duramen.runtime.security.door import Door, NotAdmittedError
from duramen.runtime.security.permitted_roles import Roles
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.security.public_certificate import PublicCertificate
from duramen.runtime.standing.process_name import is_process_name
from duramen.units import SECOND
from duramen.wire.edge.gate import Bodies, Gate
from duramen.wire.frame import (
    FRAME_BYTES_HARD_MAX,
    IDENTITY_HEADER,
    PROCESS_HEADER,
    RETRY_AFTER_HEADER,
    FrameError,
)

_SHUT: Final = Gate()
_LIMITS: Final = ServerLimits()
_ROOM_RETRY_AFTER_MS: Final = 200


class Reply(NamedTuple):
    """An answer with headers of its own."""

    status: int
    media: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Answer = tuple[int, str, bytes] | Reply
"""HTTP status, content type, body."""

DataHandler = Callable[[str, bytes, Identity | None], Awaitable[Answer]]
"""Takes the path and the body of a POST, and who calls; None: nobody is asked who it is."""

PeerHandler = Callable[[str, bytes, str, Identity | None], Awaitable[Answer]]
"""Takes the path and the body of a POST, and a name of the process that sent it."""


class StreamHandler(Protocol):
    """Answers a POST in several pieces; returns None if it did not take the path."""

    def __call__(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        """Take the call and `send` each piece, or give None."""


class Guard(NamedTuple):
    """What a data port asks for: `permitted` says which roles may call each path.

    `tls_port`: the port speaks plain text, and that one beside it TLS; None: the port speaks TLS.
    """

    security: ProcessSecurity
    permitted: Mapping[str, Roles]
    tls_port: int | None = None


def make_guard(
    security: ProcessSecurity | None, permitted: Mapping[str, Roles], tls_port: int | None = None
) -> Guard | None:
    """The guard of a process's data port; None: it has no identity, and asks nobody for one."""
    return None if security is None else Guard(security, permitted, tls_port)


class BodyTooLargeError(ValueError):
    """A request body passes the bound; nothing of it was used."""


class NoRoomError(Exception):
    """Too many bodies wait for room already; nothing of this one was read."""


PUBLIC_LIMITS: Final = ServerLimits(connection_count=PUBLIC_CONNECTION_COUNT_MAX)


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

    def __init__(
        self, host: str, port: int, limits: ServerLimits, gate: Gate, guard: Guard | None
    ) -> None:
        self._limits = limits
        self._gate = gate
        self._door = None if guard is None else guard.security.open_door(guard.permitted)
        self._connection_count_max = fit_connections(limits.connection_count)
        self._room = BodyRoom(limits.bodies_bytes, limits.bodies_waiting_count)
        is_pair = guard is not None and guard.tls_port is not None
        self._embedded = EmbeddedServer(
            host, port, Interfaces.RSGI, self._on_request, limits,
            certificates=None if guard is None or is_pair else guard.security,
        )  # fmt: skip
        self._beside: EmbeddedServer | None = None
        if guard is not None and guard.tls_port is not None:
            self._beside = EmbeddedServer(
                host, guard.tls_port, Interfaces.RSGI, self._on_request, limits,
                certificates=guard.security,
            )  # fmt: skip
        self.request_count = 0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._embedded.port

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        if self._beside is not None:
            # First: who finds the plain port alone would take it, and be counted.
            await self._beside.start()
        await self._embedded.start()

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        both = (self._embedded,) if self._beside is None else (self._embedded, self._beside)
        await asyncio.gather(*(one.stop() for one in both))

    def statistics(self) -> dict[str, int | None]:
        """Requests, bodies and connections (None where the system does not tell)."""
        accepted, waiting = count_connections(self.port) or (None, None)
        beside = None if self._beside is None else count_connections(self._beside.port)
        if accepted is not None and waiting is not None and beside is not None:
            accepted, waiting = accepted + beside[0], waiting + beside[1]
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
        caller: Identity | None = None
        if self._door is not None:
            try:
                caller = self._admit(self._door, scope)
            except NotAdmittedError as error:
                status, media, problem = encode_refusal(error.refusal)
                _send(protocol, Reply(status, media, problem, error.headers))
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
            answering = self._answer(scope, body, protocol, caller)
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

    @staticmethod
    def _admit(door: Door, scope: Any) -> Identity | None:
        now = dt.datetime.now(dt.UTC)
        address = scope.client.rpartition(":")[0]
        return door.admit(scope.path, scope.headers.get_all(IDENTITY_HEADER), now, address)

    @abc.abstractmethod
    def _answer(
        self, scope: Any, body: bytes, protocol: Any, caller: Identity | None
    ) -> Awaitable[Answer | None]:
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
        limits: ServerLimits = _LIMITS,
        gate: Gate = _SHUT,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(host, port, limits, gate, guard)
        self._handler = handler
        self._streamer = streamer

    def _answer(
        self, scope: Any, body: bytes, protocol: Any, caller: Identity | None
    ) -> Awaitable[Answer | None]:
        streaming = self._stream(scope.path, body, protocol)
        return self._handler(scope.path, body, caller) if streaming is None else streaming

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
        limits: ServerLimits = _LIMITS,
        gate: Gate = _SHUT,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(host, port, limits, gate, guard)
        self._handler = handler

    def _answer(
        self, scope: Any, body: bytes, protocol: Any, caller: Identity | None
    ) -> Awaitable[Answer | None]:
        return self._handler(scope.path, body, _name_peer(scope, caller), caller)


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


def _name_peer(scope: Any, caller: Identity | None) -> str:
    """Which process calls, by all its connections and streams; else, which connection."""
    if caller is not None:
        return str(caller)
    name = scope.headers.get(PROCESS_HEADER)
    return name if name is not None and is_process_name(name) else str(scope.client)


def _send(protocol: Any, answer: Answer) -> None:
    status, media, body, headers = Reply(*answer)
    protocol.response_bytes(status, [("content-type", media), *headers], body)


class PublicServer:
    """ASGI server (FastAPI) for public REST: HTTP/1.1 and HTTP/2 on one port, in clear or TLS.

    Args:
        tls_port: the port speaks plain text, and that one beside it TLS, by the certificate.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app: Any,
        gate: Gate = _SHUT,
        *,
        limits: ServerLimits = PUBLIC_LIMITS,
        certificate: PublicCertificate | None = None,
        tls_port: int | None = None,
        on_replaced: Callable[[], None] | None = None,
    ) -> None:
        framed = ClearFraming(GatedApp(app, gate, find_bodies))
        self._certificate = certificate
        self._embedded = EmbeddedServer(
            host, port, Interfaces.ASGINL, framed, limits,
            certificates=certificate if tls_port is None else None, on_replaced=on_replaced,
        )  # fmt: skip
        self._beside = None if tls_port is None else EmbeddedServer(
            host, tls_port, Interfaces.ASGINL, framed, limits,
            certificates=certificate, on_replaced=on_replaced,
        )  # fmt: skip

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._embedded.port

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        if self._beside is not None:
            # First: who finds the plain port alone would take it, and be counted.
            await self._beside.start()
        await self._embedded.start()
        if self._certificate is not None:
            self._certificate.start()

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        both = (self._embedded,) if self._beside is None else (self._embedded, self._beside)
        await asyncio.gather(*(one.stop() for one in both))
        if self._certificate is not None:
            await self._certificate.stop()

    def statistics(self) -> dict[str, int] | None:
        """Changes of the certificate; None: there is none."""
        return None if self._certificate is None else self._certificate.statistics()


class AdminServer:
    """ASGI server (FastAPI) for probes, metrics and administration: uvicorn, HTTP/1.1.

    Args:
        security: it lets in whose identity may do what a route does; None: it answers anybody.
        has_tls: whether it speaks TLS, where it has an identity.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app: Any,
        gate: Gate = _SHUT,
        *,
        connections: AdminConnections | None = None,
        security: ProcessSecurity | None = None,
        has_tls: bool = True,
    ) -> None:
        behind = app if security is None else AdminDoor(app, security, security.rights.may)
        gated = GatedApp(behind, gate, lambda _path: Bodies.JSON)
        self._connections = connections or AdminConnections()
        listening = socket.create_server((host, port), backlog=128)
        self.port: int = listening.getsockname()[1]
        self._config = uvicorn.Config(
            ClearFraming(gated),
            interface="asgi3",
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
        )
        self._config.load()
        self._server = _QuietUvicorn(self._config)
        self._context: ssl.SSLContext | None = None
        if security is not None and has_tls:
            self._renew(security)
            security.on_change(lambda: self._renew(security))
        self._listener = PortListener(
            listening, self._connections, self._make_connection, lambda: self._context,
            handshake_timeout_us=self._connections.request_timeout_us, name="admin port",
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[]))
        for _ in range(1000):
            if self._server.started or self._task.done():
                self._listener.start()
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"port {self.port} did not come up")

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        await self._listener.stop()
        self._server.should_exit = True
        self._server.force_exit = True
        if self._task is not None:
            await self._task

    def _make_connection(self, place: ConnectionPlace) -> asyncio.Protocol:
        return self._connections.make(
            place, config=self._config, server_state=self._server.server_state, app_state={}
        )

    def _renew(self, security: ProcessSecurity) -> None:
        """Connections that are there keep theirs: whoever showed a certificate is judged anew."""
        self._context = security.make_admin_context()


class _QuietUvicorn(uvicorn.Server):
    """Uvicorn that leaves the process's signals to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
