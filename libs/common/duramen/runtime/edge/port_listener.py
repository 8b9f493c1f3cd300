"""The socket of a port: connections are counted as they come, before a byte of TLS is read.

A server of uvicorn's or asyncio's would hear of a connection when its handshake is over: whoever
never finishes one would have as many as it likes, each for a minute. Here an address has its places
from the first packet on, a handshake has its time, and each connection gets the TLS context of now,
so that a renewed certificate is shown by the next one. Without an identity there is no TLS, and the
same path.

Used by admin ports (`runtime.http_server`) and stream ports (`runtime.standing`).
Source: docs/protocol/identity.md "TLS", docs/critiques.md "Scale".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from duramen.runtime.security.refusals import Refusals
from duramen.units import SECOND

_LOG: Final = logging.getLogger(__name__)
_REST_S: Final = 1.0
"""Where the system has no descriptor for another connection, as asyncio's own servers rest."""


class ConnectionPlace:
    """One connection's place among those of its address, from when it was accepted.

    Attributes:
        peer: the address.
    """

    __slots__ = ("_count_of", "_is_taken", "peer")

    def __init__(self, peer: str, count_of: Counter[str]) -> None:
        self.peer = peer
        self._count_of = count_of
        self._is_taken = True
        count_of[peer] += 1

    def give_back(self) -> None:
        """The connection is over; it may be said twice."""
        if self._is_taken:
            self._is_taken = False
            self._count_of[self.peer] -= 1
            if not self._count_of[self.peer]:
                del self._count_of[self.peer]


class ConnectionPlaces:
    """The places of one port.

    Args:
        per_peer_count: of one address; one more is closed at once.
        count: of all; None: of as many addresses as there are.
    """

    def __init__(self, per_peer_count: int, count: int | None = None) -> None:
        self.per_peer_count = per_peer_count
        self.count_of: Counter[str] = Counter()
        self._count = count

    def take_place(self, peer: str) -> ConnectionPlace | None:
        """A place for one more connection of an address; None: it has as many as it may."""
        if self.count_of[peer] >= self.per_peer_count:
            return None
        if self._count is not None and self.count_of.total() >= self._count:
            return None
        return ConnectionPlace(peer, self.count_of)


MakeProtocol = Callable[[ConnectionPlace], asyncio.Protocol]


class PortListener:
    """Accepts the connections of one port.

    Args:
        listening: taken over; does not block.
        places: how many each address may have.
        make: the protocol of a connection that has its place.
        find_context: the TLS of the next connection; None: it speaks none.
        handshake_timeout_us: for TLS to begin, and to end.
        name: of the port, for the log.
    """

    def __init__(
        self,
        listening: socket.socket,
        places: ConnectionPlaces,
        make: MakeProtocol,
        find_context: Callable[[], ssl.SSLContext | None],
        *,
        handshake_timeout_us: int,
        name: str,
    ) -> None:
        self._socket = listening
        self._places = places
        self._timeout_s = handshake_timeout_us / SECOND
        self._name = name
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
                _LOG.error("the %s accepts nobody for %g s: %s", self._name, _REST_S, error)
                await asyncio.sleep(_REST_S)
                continue
            place = self._places.take_place(str(address[0]))
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
        timeout_s = self._timeout_s
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
            why = f"{self._name}: {place.peer} is not let in by TLS: {error}"
            self._refusals.tell("handshake", why, dt.datetime.now(dt.UTC))
        elif error is not None:
            _LOG.error("a connection to the %s failed", self._name, exc_info=error)
