"""Two sockets that share a port: new connections come to the one that they are led to.

That is what keeps a call from waiting at a server that closes. Linux alone can lead them.
Source: docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from duramen.runtime.edge.port_sockets import count_connections, find_listeners, lead_to

CONNECTION_COUNT = 64


@contextmanager
def listening(port: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(2 * CONNECTION_COUNT)
        listener.setblocking(False)
        yield listener


@contextmanager
def connected(port: int, count: int) -> Iterator[None]:
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield
    finally:
        for one in made:
            one.close()


def accept_all(listener: socket.socket) -> int:
    for count in range(2 * CONNECTION_COUNT):
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return count
        accepted.close()
    raise AssertionError("more than were made")


def test_new_connections_come_to_the_socket_that_they_are_led_to() -> None:
    with listening() as first:
        port = first.getsockname()[1]
        known = find_listeners(port)
        with listening(port) as second:
            with connected(port, CONNECTION_COUNT):
                assert count_connections(port) is not None
                counts = [accept_all(one) for one in (first, second)]
                assert min(counts) > 0, "the kernel spreads them"
            lead_to(find_listeners(port) - known, len(known))
            with connected(port, CONNECTION_COUNT):
                assert [accept_all(one) for one in (first, second)] == [0, CONNECTION_COUNT]
            # The place is nobody's once the other one is closed: they come to who is left.
            first.close()
            with connected(port, CONNECTION_COUNT):
                assert accept_all(second) == CONNECTION_COUNT
            with listening(port) as third:
                lead_to(find_listeners(port) - known, 1)
                with connected(port, CONNECTION_COUNT):
                    assert [accept_all(one) for one in (second, third)] == [0, CONNECTION_COUNT]
