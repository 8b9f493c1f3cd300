"""Connections of an admin port: some from each address, none that is silent in the middle.

uvicorn ends a connection that rests between requests, and waits for ever for a request that has
begun. Here the head of a request, and then its body, arrive within a time; and an address has a
bounded number of connections, so that one client does not keep probes and people out. What a client
has shown of itself goes with each of its requests.

Used by `runtime.http_server`. Source: docs/critiques.md "Scale", RFC 9112
section 9.5.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from duramen.limits import ADMIN_CONNECTION_COUNT_PER_PEER, ADMIN_REQUEST_TIMEOUT_US
from duramen.runtime.edge.port_listener import ConnectionPlace, ConnectionPlaces
from duramen.runtime.security.shown_certificate import SHOWN, ShownCertificate
from duramen.units import SECOND


class AdminConnections(ConnectionPlaces):
    """The connections of one admin port.

    Args:
        per_peer_count: of one address; one more is closed at once.
        request_timeout_us: for a handshake, for a head, and for a body.
    """

    def __init__(
        self,
        per_peer_count: int = ADMIN_CONNECTION_COUNT_PER_PEER,
        request_timeout_us: int = ADMIN_REQUEST_TIMEOUT_US,
    ) -> None:
        super().__init__(per_peer_count)
        self.request_timeout_us = request_timeout_us

    def make(self, place: ConnectionPlace, **more: Any) -> asyncio.Protocol:
        """The protocol of one more connection, made as uvicorn makes its own."""
        return _Connection(self, place, **more)


class _Connection(H11Protocol):
    """One connection; the timer runs while something is to arrive, from when that began."""

    def __init__(self, connections: AdminConnections, place: ConnectionPlace, **more: Any) -> None:
        super().__init__(**more)
        self._connections = connections
        self._place = place
        self._phase: object = None
        """The last request that began, and what has arrived and left of it."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, with what its client has shown."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        der = None if tls is None else tls.getpeercert(binary_form=True)
        if der is not None:
            self.app_state = {**self.app_state, SHOWN: ShownCertificate(der)}
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give its place back."""
        self._place.give_back()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A piece of a request; what comes slowly has no more time than what does not come."""
        super().data_received(data)
        cycle = self.cycle
        phase = None if cycle is None else (cycle, cycle.more_body, cycle.response_complete)
        if phase != self._phase:
            self._phase = phase
            self._restart_timer()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        timeout_s = self._connections.request_timeout_us / SECOND
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._on_time_over)

    def _on_time_over(self) -> None:
        """Nothing is to arrive while a request is answered; what comes then has a timer again."""
        cycle = self.cycle
        is_answering = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if not is_answering and not self.transport.is_closing():
            self.transport.close()
