"""The kernel's table of sockets: what it says of one port is what this process has open.

Linux alone tells. Source: sock_diag(7).
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

from duramen.runtime.edge import socket_table
from duramen.runtime.edge.port_sockets import count_connections
from duramen.runtime.edge.socket_table import ANY_PORT, HELD, LISTEN, TcpSocket, list_sockets

CONNECTION_COUNT = 700
"""So many rows come in several answers."""

WAITING_COUNT = 3


def inode_of(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_every_socket_of_a_port_is_told_with_what_waits_at_it(family: int, host: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server((host, 0), family=family, backlog=CONNECTION_COUNT)
        )
        port = server.getsockname()[1]
        clients, accepted = [], []
        for _ in range(CONNECTION_COUNT):
            clients.append(stack.enter_context(socket.create_connection((host, port))))
            if len(clients) > WAITING_COUNT:
                accepted.append(stack.enter_context(server.accept()[0]))
        clients[0].sendall(b"five!")
        listening = TcpSocket(LISTEN, port, 0, WAITING_COUNT, inode_of(server))
        assert list_sockets(port, LISTEN) == [listening]
        held = list_sockets(port, *HELD) or []
        assert {one.inode for one in held} == {0, *map(inode_of, accepted)}
        assert sum(one.inode == 0 for one in held) == WAITING_COUNT
        assert {one.remote_port for one in held} == {one.getsockname()[1] for one in clients}
        assert sum(one.waiting_count for one in held) == len(b"five!")
        assert count_connections(port) == (len(accepted), WAITING_COUNT)
        everybody = {one.inode for one in list_sockets(ANY_PORT, *HELD) or ()}
        assert everybody >= {inode_of(one) for one in (*clients, *accepted)}
    assert list_sockets(port, LISTEN) == []


def test_a_system_that_does_not_tell_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_NETLINK")
    assert list_sockets(1, LISTEN) is None
    assert count_connections(1) is None


@pytest.mark.parametrize(
    ("name", "value"), [("_SOCK_DIAG_BY_FAMILY", 1), ("_TCP", 200)], ids=["at once", "at the end"]
)
def test_a_request_that_the_kernel_refuses_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    """Of a protocol that it does not know it tells at the end of a list that is empty."""
    monkeypatch.setattr(socket_table, name, value)
    assert list_sockets(1, LISTEN) is None
