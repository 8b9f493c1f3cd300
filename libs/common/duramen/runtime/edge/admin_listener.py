"""The socket of an admin port: connections are counted as they come, before a byte of TLS is read.

uvicorn would accept by itself, and hear of a connection when its handshake is over: whoever never
finishes one would have as many as it likes, each for a minute. Here an address has its places from
the first packet on, a handshake has its time, and each connection gets the TLS context of now, so
that a renewed certificate is shown by the next one. Without an identity there is no TLS, and the
same path.

Used by `runtime.http_server`. Source: docs/protocol/identity.md "TLS", docs/critiques.md "Scale".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from duramen.runtime.edge.admin_connections import AdminConnections, ConnectionPlace
from duramen.runtime.security.refusals import Refusals
from duramen.units import SECOND

_LOG: Final = logging.getLogger(__name__)
_REST_S: Final = 1.0
"""Where the system has no descriptor for another connection, as asyncio's own servers rest."""

MakeProtocol = Callable[[ConnectionPlace], asyncio.Protocol]


class AdminListener:
    """Accepts the connections of one admin port.

    Args:
        listening: taken over; does not block.
        connections: how many each address may have, and how long each may be silent.
        make: the protocol of a connection that has its place.
        find_context: the TLS of the next connection; None: it speaks none.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: AdminConnections,
        make: MakeProtocol,
        find_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._make = make
        self._find_context = find_context
        self._refusals = Refusals()
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept from now on."""
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept_for_ever())

    async def stop(self) -> None:
        """Accept no more, and let go of who has not finished its handshake."""
        tasks = list(self._opening)
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except ConnectionError:
                continue  # who came has gone already
            except OSError as error:
                _LOG.error("the admin port accepts nobody for %g s: %s", _REST_S, error)
                await asyncio.sleep(_REST_S)
                continue
            place = self._connections.take_place(str(address[0]))
            if place is None:
                accepted.close()
                continue
            task = loop.create_task(self._open(accepted, place))
            self._opening.add(task)
            task.add_done_callback(partial(self._on_opened, accepted, place))

    async def _open(self, accepted: socket.socket, place: ConnectionPlace) -> None:
        """See a connection through until its protocol has it."""
        # An answer is several writes, and a client that acknowledges late would wait for each.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        context = self._find_context()
        timeout_s = self._connections.request_timeout_us / SECOND
        await loop.connect_accepted_socket(
            lambda: self._make(place),
            accepted,
            ssl=context,
            ssl_handshake_timeout=None if context is None else timeout_s,
            # What was written before a close still goes out in this time, to a slow reader too.
            ssl_shutdown_timeout=None if context is None else timeout_s,
        )

    def _on_opened(
        self, accepted: socket.socket, place: ConnectionPlace, task: asyncio.Task[None]
    ) -> None:
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        place.give_back()
        accepted.close()  # where the loop's own part was not even begun
        if isinstance(error, OSError):
            why = f"admin port: {place.peer} is not let in by TLS: {error}"
            self._refusals.tell("handshake", why, dt.datetime.now(dt.UTC))
        elif error is not None:
            _LOG.error("a connection to the admin port failed", exc_info=error)
