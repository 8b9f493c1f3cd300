"""The kernel's table of TCP sockets, asked by netlink as `ss` does.

/proc/net/tcp says the same, but the kernel prints the whole table for each reader: on a node with
60,000 connections in TIME_WAIT an event loop stands still for 0.1 s. Here the kernel picks the rows
itself. Elsewhere than on Linux, and in a sandbox that has no such netlink, nothing is known.

Called by `port_sockets`. Source: linux/inet_diag.h, sock_diag(7).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

LISTEN: Final = 10
"""The state of a socket that listens (linux/tcp_states.h)."""

HELD: Final = (1, 4, 5, 8, 9, 11)
"""States of a connection that a process may hold: all but those before it is established, and
after both ends have closed it."""

ANY_PORT: Final = 0

_TCP: Final = socket.IPPROTO_TCP
_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""

_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, process."""

_WANTED: Final = struct.Struct("=BBBxI")
"""inet_diag_req_v2 up to its id: family, protocol, extensions, states as bits."""

_PORTS: Final = struct.Struct(">HH44x")
"""inet_diag_sockid: local and remote port; addresses, interface and cookie are anybody's."""

_ROW: Final = struct.Struct("=BBxx48x4xII4xI")
"""inet_diag_msg: family, state; its id; what waits to be read, and to be sent; the inode."""

_ANSWER_BYTES_MAX: Final = 1 << 16
_WAIT_S: Final = 5.0
"""The kernel answers within the call that asks it; this is for one that does not."""


class TcpSocket(NamedTuple):
    """One row of the table.

    Attributes:
        remote_port: 0 where it listens.
        waiting_count: bytes that wait to be read; of one that listens, connections that wait to be
            accepted.
        inode: 0 while no process holds it.
    """

    state: int
    local_port: int
    remote_port: int
    waiting_count: int
    inode: int


def list_sockets(port: int, *states: int) -> list[TcpSocket] | None:
    """The sockets of this network namespace with a local port, in one of some states.

    Args:
        port: 1 to 65535, or `ANY_PORT`.

    Returns:
        None where the system does not tell.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            asked.settimeout(_WAIT_S)
            return [
                row
                for family in (socket.AF_INET, socket.AF_INET6)
                for row in _ask(asked, family, port, states)
            ]
    except (AttributeError, OSError):
        return None


def _ask(
    asked: socket.socket, family: int, port: int, states: tuple[int, ...]
) -> Iterator[TcpSocket]:
    wanted = sum(1 << state for state in states)
    body = _WANTED.pack(family, _TCP, 0, wanted) + _PORTS.pack(port, 0)
    length = _HEADER.size + len(body)
    asked.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + body)
    while True:
        answer = asked.recv(_ANSWER_BYTES_MAX)
        at = 0
        while at < len(answer):
            length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
            content = at + _HEADER.size
            if kind in {_NLMSG_DONE, _NLMSG_ERROR}:
                (code,) = struct.unpack_from("=i", answer, content)
                if code or kind == _NLMSG_ERROR:
                    raise OSError(-code, errno.errorcode.get(-code, "netlink"))
                return
            yield _read_row(answer, content)
            at += (length + 3) & ~3


def _read_row(answer: bytes, at: int) -> TcpSocket:
    _, state, waiting_count, _, inode = _ROW.unpack_from(answer, at)
    local_port, remote_port = struct.unpack_from(">HH", answer, at + 4)
    return TcpSocket(state, local_port, remote_port, waiting_count, inode)
