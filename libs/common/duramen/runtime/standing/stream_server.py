"""The port of standing streams: requests of many callers to the handler of the data port.

Each request is judged by the header of identity in force, and handed on before anything is awaited:
so `last` names exactly what was begun. A handler's answer goes out as it comes; what the caller
does not take keeps its window shut, and this process's memory bounded.

Called by the wiring of bookie and sequencer. Source: docs/protocol/standing-streams.md "Rules" 5 to
12, docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from duramen.limits import CONNECTION_COUNT_MAX
from duramen.runtime.edge.embedded_server import fit_connections
from duramen.runtime.edge.port_listener import (
    ConnectionPlace,
    ConnectionPlaces,
    PortListener,
)
from duramen.runtime.http_server import Answer, Guard, Reply, make_guard
from duramen.runtime.identity.names import Identity
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.door import Door, NotAdmittedError
from duramen.runtime.security.permitted_roles import Roles
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.standing.call_stream import OPEN_COUNT_MAX
from duramen.runtime.standing.connection import StandingConnection
from duramen.runtime.standing.process_name import is_process_name
from duramen.units import KIB, MIB, SECOND
from duramen.wire.edge.gate import Bodies, Gate
from duramen.wire.frame import RETRY_AFTER_HEADER, FrameError
from duramen.wire.standing.messages import (
    ADVICE_MS_MAX,
    ANSWER_BYTES_MAX,
    HEAD_BYTES,
    PATHS,
    Message,
    MessageError,
    MessageKind,
    pack_message,
    pack_refusal,
)
from duramen.wire.standing.opening import make_answer, read_request

_LOG: Final = logging.getLogger(__name__)

_OPEN_AGAIN_BYTES: Final = 256 * KIB
_UNSENT_BYTES: Final = 1 * MIB
"""Of answers that a caller does not take: beyond it nothing more of it is read, or made for it."""

_STOP_S: Final = 5.0
_FAREWELL_S: Final = 1.0
"""For callers to read that nothing follows."""

_OPENING: Final = "/standing"
"""How the opening of a stream is judged, among the paths of requests."""

_LEAVE_TICKS: Final = 60
STREAM_COUNT_MAX: Final = 1_024
"""Callers of one port: sequencers of a bookie, write proxies of a sequencer."""

_HANDSHAKE_US: Final = 5 * SECOND
_BACKLOG: Final = 1_024
_TEXT: Final = "text/plain"

Send = Callable[[bytes], Awaitable[None]]


StandingHandler = Callable[[str, bytes, str, Identity | None, Send], Awaitable[Answer | None]]
"""Answers what a call of the data port would be; None: it has sent its answer in pieces. It takes
the path, the body, which process asks, and who that is (None: nobody is asked)."""


class StreamServer:
    """Serves standing streams, by HTTP/2 in clear or over TLS.

    Args:
        process: of this life of the process; streams are asked for under it.
        guard: None: nobody is asked who it is, and it speaks no TLS.
    """

    def __init__(
        self,
        host: str,
        port: int,
        process: str,
        handler: StandingHandler,
        *,
        gate: Gate,
        guard: Guard | None,
        connection_count: int = CONNECTION_COUNT_MAX,
    ) -> None:
        self.path = f"/standing/{process}"
        self.handler = handler
        self.gate = gate
        self.door: Door | None = None
        self.port = port
        self.request_count = 0
        self.refused_count = 0
        self._host = host
        self._security = None if guard is None else guard.security
        if guard is not None:
            # Who may ask for something may open a stream; each request is judged by its own path.
            callers = Roles().union(*(guard.permitted.get(path, ()) for path in PATHS.values()))
            self.door = guard.security.open_door({**guard.permitted, _OPENING: callers})
            guard.security.on_change(self._renew)
        # Those of data ports have the other files. All callers may be behind one address.
        count = min(STREAM_COUNT_MAX, fit_connections(connection_count) // 2)
        self._places = ConnectionPlaces(count, count)
        self._streams: set[ServedStream] = set()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: PortListener | None = None
        self.context: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._find_certificate()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self.port), family=family, backlog=_BACKLOG)
        self.port = listening.getsockname()[1]
        self._listener = PortListener(
            listening, self._places, self.make_stream, lambda: self.context,
            handshake_timeout_us=_HANDSHAKE_US, name="stream port",
        )  # fmt: skip
        self._listener.start()

    async def stop(self) -> None:
        """Begin nothing more, answer what was begun, within 5 s, and close."""
        if self._listener is not None:
            await self._listener.stop()
        for stream in self.list_streams():
            stream.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in self._tasks:
            task.cancel()
        for stream in self.list_streams():
            stream.end("this process stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._all_gone.wait()
        for stream in self.list_streams():
            stream.break_off("this process stops")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        """Streams, their requests, and what waits to be sent."""
        return {
            "streams": len(self._streams),
            "streams_max": self._places.per_peer_count,
            "requests": self.request_count,
            "requests_open": len(self._tasks),
            "requests_refused": self.refused_count,
            "unsent_bytes": sum(stream.unsent_bytes for stream in self._streams),
        }

    def make_stream(self, place: ConnectionPlace) -> ServedStream:
        """For a connection that has its place."""
        return ServedStream(self, place)

    def list_streams(self) -> list[ServedStream]:
        """Those that are connected."""
        return list(self._streams)

    def add(self, stream: ServedStream) -> None:
        """A connection was made."""
        self._streams.add(stream)
        self._all_gone.clear()

    def remove(self, stream: ServedStream) -> None:
        """A connection has ended."""
        self._streams.discard(stream)
        if not self._streams:
            self._all_gone.set()

    def run(self, work: Any) -> None:
        """Run a handler to its end, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _renew(self) -> None:
        """Callers come again, and are shown the new certificate."""
        try:
            self._find_certificate()
        finally:
            for stream in self.list_streams():
                stream.leave()

    def _find_certificate(self) -> None:
        if self._security is not None:
            self.context = self._security.make_stream_context()


class ServedStream(StandingConnection):
    """One caller's stream."""

    def __init__(self, server: StreamServer, place: ConnectionPlace) -> None:
        super().__init__(is_client=False)
        self._server = server
        self._place = place
        self._peer = ""
        self._named: list[str] = []
        self._caller: Identity | None = None
        self._last_number = 0
        self._open_count = 0
        self._taken_bytes = 0
        self._is_leaving = False
        self._leaving_ticks = 0
        self._writable: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Begin nothing more; the stream ends with its last answer."""
        if self._is_leaving or self.is_over:
            return
        self._is_leaving = True
        if not self._peer:
            self.break_off("nothing was asked yet")
            return
        self.write(pack_message(MessageKind.LAST, self._last_number, 0, b""))
        self._close_if_done()

    def end(self, why: str) -> None:
        """Nobody waits any longer for what was begun."""
        if self._open_count:
            self.break_off(why)
        else:
            self.close_soon()

    # --- StandingConnection ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._server.add(self)
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is not self._server.context:
            self.break_off("the certificate was renewed during the handshake")

    def on_headers(self, headers: list[tuple[str, str]]) -> None:
        """Take the stream, or refuse it."""
        status = self._judge(headers)
        if status != 200:
            self._server.refused_count += 1
            self._pipe.answer(make_answer(status), is_end=True)
            self.close_soon()
            return
        self._pipe.answer(make_answer(status))

    def on_message(self, message: Message) -> None:
        """Hand a request to its handler, or note who calls from now on."""
        if message.kind is MessageKind.IDENTITY:
            self._named = [message.body.decode("utf-8", "replace")]
        elif message.number != self._last_number + 1 and not self._is_leaving:
            raise MessageError(f"request {message.number} behind {self._last_number}")
        elif not self._is_leaving:
            self._begin(message)
        self._taken_bytes += HEAD_BYTES + len(message.body)
        self._open_again()

    def on_writable(self) -> None:
        """Answers have left: read on, and make more of them."""
        self._open_again()
        waiting = self._writable
        if waiting is not None and not waiting.done() and self.unsent_bytes <= _UNSENT_BYTES:
            waiting.set_result(None)

    def on_tick(self) -> None:
        """Nobody who takes its answers drop by drop stays for ever."""
        if self._is_leaving:
            self._leaving_ticks += 1
            if self._leaving_ticks > _LEAVE_TICKS:
                self.break_off("it was to end")

    def on_end(self, why: str) -> None:
        """Handlers run on; nobody hears their answers."""
        self._place.give_back()
        self._server.remove(self)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # --- Requests --------------------------------------------------------------------------------

    def _judge(self, headers: list[tuple[str, str]]) -> int:
        """The status of the answer."""
        request = read_request(headers)
        refusal = self._server.gate.judge(request.head, Bodies.FRAMES)
        if refusal is not None:
            return refusal.kind.status
        if (request.head.method, request.path) != ("POST", self._server.path):
            return 404
        process = request.process
        if not request.is_of_version or process is None or not is_process_name(process):
            return 400
        self._named = request.identities
        try:
            self._caller = self._admit(_OPENING)
        except NotAdmittedError as error:
            return error.refusal.kind.status
        self._peer = process if self._caller is None else str(self._caller)
        return 200

    def _admit(self, path: str) -> Identity | None:
        if self._server.door is None:
            return None
        now = dt.datetime.now(dt.UTC)
        return self._server.door.admit(path, self._named, now, self._place.peer)

    def _begin(self, message: Message) -> None:
        if self._open_count >= OPEN_COUNT_MAX:
            raise MessageError(f"more than {OPEN_COUNT_MAX} open calls")
        path = PATHS.get(message.what)
        if path is None:
            # Of a later release: its caller asks by a call.
            self._last_number = message.number
            self._send_parts(message.number, 404, b"", has_more=False)
            return
        try:
            caller = self._admit(path)
        except NotAdmittedError:
            self._server.refused_count += 1
            self.leave()
            return
        if caller != self._caller:
            raise MessageError(f"{caller} on a stream of {self._caller}")
        self._last_number = message.number
        self._open_count += 1
        self._server.request_count += 1
        self._server.run(self._answer(message.number, path, message.body))

    async def _answer(self, number: int, path: str, body: bytes) -> None:
        has_part = False

        async def send(piece: bytes) -> None:
            nonlocal has_part
            has_part = True
            self._send_parts(number, 200, piece, has_more=True)
            await self._wait_writable()

        answer: Answer | None = (500, _TEXT, b"the handler ended")
        try:
            answering = self._server.handler(path, body, self._peer, self._caller, send)
            del body  # it is the handler's now, to be dropped as soon as it was read
            answer = await answering
        except FrameError as error:
            answer = 400, _TEXT, str(error).encode()
        except Exception:
            _LOG.exception("%s failed", path)
        finally:
            self._open_count -= 1
            self._send_last(number, answer, has_part=has_part)
            self._close_if_done()

    # --- Answers ---------------------------------------------------------------------------------

    def _send_last(self, number: int, answer: Answer | None, *, has_part: bool) -> None:
        if answer is None:
            self._send_parts(number, 200, b"", has_more=False)
            return
        status, _, body, headers = Reply(*answer)
        advice = _find_advice(status, headers)
        if advice is None or has_part:
            self._send_parts(number, status, body, has_more=False)
        elif not self.is_over:
            sentence = body.decode(errors="replace")
            refusal = pack_refusal(min(advice, ADVICE_MS_MAX), sentence)
            self.write(pack_message(MessageKind.REFUSAL, number, status, refusal))

    def _send_parts(self, number: int, status: int, body: bytes, *, has_more: bool) -> None:
        while not self.is_over:
            part, body = body[:ANSWER_BYTES_MAX], body[ANSWER_BYTES_MAX:]
            is_more = has_more or bool(body)
            message = pack_message(MessageKind.ANSWER, number, status, part, has_more=is_more)
            # The last part mostly comes in the same turn, and takes the others along.
            (self.write_later if is_more else self.write)(message)
            if not body:
                return

    async def _wait_writable(self) -> None:
        """Return once the caller has taken what it was sent, or is gone."""
        while not self.is_over and self.unsent_bytes > _UNSENT_BYTES:
            if self._writable is None or self._writable.done():
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

    def _open_again(self) -> None:
        if self._taken_bytes < _OPEN_AGAIN_BYTES or self.unsent_bytes > _UNSENT_BYTES:
            return
        if not self.is_over:
            self.open_window(self._taken_bytes)
            self._taken_bytes = 0

    def _close_if_done(self) -> None:
        if self._is_leaving and not self._open_count:
            self.close_soon()


def describe_server(server: StreamServer | None) -> dict[str, int] | None:
    """Its statistics; None: there is none."""
    return None if server is None else server.statistics()


def make_stream_server(
    options: ServiceOptions,
    process: str,
    handler: StandingHandler,
    security: ProcessSecurity | None,
    permitted: Mapping[str, Roles],
) -> StreamServer | None:
    """The stream port that a service is started with; None: it has none."""
    if options.stream_port is None or not options.serves_streams:
        return None
    return StreamServer(
        options.host, options.stream_port, process, handler,
        gate=options.make_gate(), guard=make_guard(security, permitted),
        connection_count=options.connection_count,
    )  # fmt: skip


def _find_advice(status: int, headers: tuple[tuple[str, str], ...]) -> int | None:
    """When to ask again, in ms, of an answer that promises that nothing was done."""
    if status not in (429, 503):
        return None
    advice: Mapping[str, str] = dict(headers)
    text = advice.get(RETRY_AFTER_HEADER, "")
    return int(text) if text.isdecimal() else None
