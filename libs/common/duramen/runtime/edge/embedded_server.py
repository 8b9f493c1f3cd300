"""Granian inside this event loop: one port, its limits, and who takes it over after a renewal.

The library reads certificates once. So a renewed identity starts a second server on the same port,
which the kernel lets both listen on, leads new connections to it, and then stops the first, which
answers what it has and closes its connections; HTTP/2 tells callers before, so none of their calls
is lost.

Called by `runtime.http_server`. Source: docs/protocol/identity.md "TLS", docs/benchmarks.md "What
shaped the design".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.net import SocketSpec  # type: ignore[attr-defined]  # under its own name there
from granian.server.embed import Server

from duramen.limits import (
    BODIES_BYTES_MAX,
    BODIES_WAITING_COUNT_MAX,
    BODY_TIMEOUT_US,
    CONNECTION_COUNT_MAX,
    FRAME_BYTES_MAX,
    KEEP_ALIVE_INTERVAL_US,
    KEEP_ALIVE_TIMEOUT_US,
)
from duramen.runtime.edge.port_sockets import bound_unsent, find_listeners, lead_to
from duramen.runtime.security.private_copies import ServerFiles
from duramen.units import KIB, MIB, MS, SECOND

_STREAM_WINDOW_BYTES: Final = FRAME_BYTES_MAX
"""One frame fits a stream's window, so that flow control never waits for a round trip."""

_LOG: Final = logging.getLogger(__name__)
_STOP_S: Final = 5.0
_LEAVE_S: Final = 60.0
"""A server that was replaced has so long for the calls that it has: appends wait for as long."""

_SETTLE_S: Final = 1.0
"""A server that no new connection reaches serves on for so long, unless it is to be replaced once
more: what it had accepted, or what waited for that, comes to its first call, and is told properly
that this server leaves."""

_RETRY_S: Final = 5.0
_TAKE_OVER_LOOK_S: Final = 0.01
_TAKE_OVER_LOOK_COUNT: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one data server holds at most."""

    connection_count: int = CONNECTION_COUNT_MAX
    keep_alive_interval_us: int = KEEP_ALIVE_INTERVAL_US
    keep_alive_timeout_us: int = KEEP_ALIVE_TIMEOUT_US
    bodies_bytes: int = BODIES_BYTES_MAX
    bodies_waiting_count: int = BODIES_WAITING_COUNT_MAX
    body_timeout_us: int = BODY_TIMEOUT_US


class Certificates(Protocol):
    """Where a server has its certificate, and hears that there is another one."""

    def write_server_files(self) -> ServerFiles:
        """Files for one more server; to be given back."""

    def remove_server_files(self, files: ServerFiles) -> None:
        """A server has ended."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after files have changed."""


def fit_connections(wanted_count: int) -> int:
    """So many connections, or fewer: half of the files that the process may open are for others."""
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return wanted_count
    return max(1, min(wanted_count, most_files // 2))


class _Granian(Server):
    """Granian without the socket that it binds to see whether it can, and never closes.

    Whether the port can be had is known: it is reserved. What a worker listens on it binds itself.
    """

    def _init_shared_socket(self) -> None:
        spec = SocketSpec(self.bind_addr, self.bind_port, self.backlog)
        self._ssp = spec  # type: ignore[assignment]  # granian says None there


class _Running(NamedTuple):
    """A server of the port, and the files that it was started with."""

    server: _Granian
    task: asyncio.Task[None]
    files: ServerFiles | None


class EmbeddedServer:
    """Granian inside this event loop; with certificates it speaks TLS, and renews itself.

    Args:
        on_replaced: another server has taken the port over; what lasts has a minute to end.
    """

    def __init__(
        self,
        host: str,
        port: int,
        interface: Interfaces,
        target: Any,
        limits: ServerLimits,
        *,
        certificates: Certificates | None = None,
        on_replaced: Callable[[], None] | None = None,
    ) -> None:
        self._reserved = _reserve_port(host, port)
        self.port: int = self._reserved.getsockname()[1]
        self._host = host
        self._interface = interface
        self._target = target
        self._limits = limits
        self._certificates = certificates
        self._on_replaced = on_replaced
        self._running: _Running | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._renewing = asyncio.Lock()
        self._is_stopping = False
        self._next = asyncio.Event()
        """Another renewal is due, or the end has come: whoever takes its time hurries."""
        if certificates is not None:
            certificates.on_change(self._want_renewal)

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._running = running = self._launch()
        for _ in range(1000):
            if running.task.done():
                await running.task
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._host, self.port)
                writer.close()
                self._reserved.close()
                bound_unsent(find_listeners(self.port))
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"port {self.port} did not come up")

    async def stop(self) -> None:
        """Stop listening and end the open requests."""
        self._is_stopping = True
        self._next.set()
        self._reserved.close()
        async with self._renewing:
            running = self._running
        if running is not None:
            await self._end(running, _STOP_S)
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _launch(self) -> _Running:
        files = None if self._certificates is None else self._certificates.write_server_files()
        server = _Granian(
            self._target,
            address=self._host,
            port=self.port,
            interface=self._interface,
            http=HTTPModes.auto,
            websockets=False,
            backlog=1024,
            # Granian accepts so many connections and leaves the rest to the kernel's queue.
            backpressure=fit_connections(self._limits.connection_count),
            http1_settings=HTTP1Settings(header_read_timeout=30_000, max_buffer_size=1 * MIB),
            http2_settings=HTTP2Settings(
                initial_connection_window_size=4 * _STREAM_WINDOW_BYTES,
                initial_stream_window_size=_STREAM_WINDOW_BYTES,
                max_frame_size=1 * MIB,
                max_concurrent_streams=1024,
                max_headers_size=64 * KIB,
                keep_alive_interval=self._limits.keep_alive_interval_us // MS,
                keep_alive_timeout=max(1, self._limits.keep_alive_timeout_us // SECOND),
            ),
            log_enabled=False,
            **({} if files is None else _read_tls_options(files)),
        )
        return _Running(server, asyncio.create_task(server.serve()), files)

    # --- Renewal ---------------------------------------------------------------------------------

    def _want_renewal(self) -> None:
        if self._next.is_set():
            return  # it waits for its turn, and reads what there is then
        self._next.set()
        task = asyncio.create_task(self._renew())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _renew(self) -> None:
        """Have another server take the port over, then let the one before end its calls."""
        is_over = False
        while not is_over:
            is_over = await self._take_over()
            if not is_over:
                # The one before serves on: a certificate that is old is better than none.
                await asyncio.sleep(_RETRY_S)

    async def _take_over(self) -> bool:
        """Whether another server serves now, or none is to any more."""
        async with self._renewing:
            if self._is_stopping:
                return True
            self._next.clear()
            before = self._running
            if before is None:
                return True  # what starts reads what there is then
            known = find_listeners(self.port)
            try:
                after = self._launch()
            except OSError:
                _LOG.exception("port %d keeps its certificate for now", self.port)
                return False
            if not await _is_listening(after, self.port, known):
                _LOG.error("port %d keeps its certificate: no other server came up", self.port)
                await self._end(after, _STOP_S)
                return False
            self._running = after
            added = find_listeners(self.port) - known
            bound_unsent(added)
            lead_to(added, len(known))
            if self._on_replaced is not None:
                self._on_replaced()
            # The next one waits for this: of three that listen the kernel would lose the place.
            await self._settle()
            leaving = asyncio.create_task(self._end(before, _LEAVE_S))
            await _comes_true(lambda: not known & find_listeners(self.port))
        await leaving
        return True

    async def _settle(self) -> None:
        """Let the server before come to the calls of whom it had accepted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._next.wait()

    async def _end(self, running: _Running, most_s: float) -> None:
        running.server.stop()  # type: ignore[no-untyped-call]  # granian has no annotation there
        try:
            _, late = await asyncio.wait([running.task], timeout=most_s)
            for task in late:
                task.cancel()
        finally:
            if self._certificates is not None and running.files is not None:
                self._certificates.remove_server_files(running.files)


def _read_tls_options(files: ServerFiles) -> dict[str, Any]:
    options = {
        "ssl_cert": files.certificate,
        "ssl_key": files.key,
        "ssl_protocol_min": SSLProtocols.tls13,
    }
    if files.bundle is None:
        return options
    return options | {
        "ssl_ca": files.bundle,
        # No list at all is another thing to the library than a list that is empty.
        "ssl_crl": list(files.lists) or None,
        "ssl_client_verify": True,
    }


async def _is_listening(running: _Running, port: int, known: frozenset[int]) -> bool:
    """Whether a server comes to listen beside those that were known to."""
    has_come = await _comes_true(lambda: running.task.done() or bool(find_listeners(port) - known))
    # Elsewhere than on Linux nobody tells; it had its time.
    return not running.task.done() and (has_come or not known)


async def _comes_true(condition: Callable[[], bool]) -> bool:
    """Whether it becomes so in time."""
    for _ in range(_TAKE_OVER_LOOK_COUNT):
        if condition():
            return True
        await asyncio.sleep(_TAKE_OVER_LOOK_S)
    return False


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
