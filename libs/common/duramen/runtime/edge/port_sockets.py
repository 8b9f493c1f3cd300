"""The sockets of a port, as Linux's table tells: who listens, and who waits to be accepted.

The HTTP library makes its sockets itself, tells nobody of them, and has no option for what is set
here. Elsewhere than on Linux nothing is known and nothing is set.

Called by `embedded_server`. Source: docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from duramen.runtime.edge.socket_table import HELD, LISTEN, list_sockets
from duramen.units import KIB

_UNSENT_BYTES: Final = 256 * KIB
"""What the kernel takes of an answer beyond what its peer's window lets it send. Without this it
takes up to 4 MiB for each peer that does not read, out of what all sockets of the machine share."""

_ATTACH_REUSEPORT_CBPF: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF, which Python does not name (asm-generic/socket.h)."""

_RETURN: Final = 0x06
"""The instruction that gives a constant: BPF_RET | BPF_K (linux/filter.h)."""


def count_connections(port: int) -> tuple[int, int] | None:
    """How many connections of a listening port are accepted, and how many wait for it.

    The kernel tells, for the HTTP library does not; None elsewhere than on Linux.
    """
    rows = list_sockets(port, LISTEN, *HELD)
    if rows is None:
        return None
    waiting = sum(row.waiting_count for row in rows if row.state == LISTEN)
    # The kernel has no owner yet for those that wait.
    return sum(row.state != LISTEN and row.inode != 0 for row in rows), waiting


def find_listeners(port: int) -> frozenset[int]:
    """The sockets that listen on a port, by inode; none where the system does not tell."""
    return frozenset(row.inode for row in list_sockets(port, LISTEN) or ())


def bound_unsent(listeners: frozenset[int]) -> None:
    """Have the connections that these sockets accept hold no more than `_UNSENT_BYTES` unsent.

    Accepted ones inherit it.
    """
    for listener in _copy_listeners(listeners):
        with contextlib.suppress(OSError):  # a kernel without it takes more
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def lead_to(listeners: frozenset[int], place: int) -> None:
    """Have new connections come to one of the sockets that share a port, and to no other.

    Without this the kernel spreads them, and those that wait at a socket that closes are reset.
    Once that one is closed the place names nobody, which the kernel takes as "spread them".

    Args:
        listeners: that one; any of those that share the port would do.
        place: its place among them, in the order in which they came to listen, from 0.
    """
    code = ctypes.create_string_buffer(struct.pack("=HBBI", _RETURN, 0, 0, place))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    for listener in _copy_listeners(listeners):
        with contextlib.suppress(OSError):  # a kernel without it spreads them
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)


def _copy_listeners(listeners: frozenset[int]) -> Iterator[socket.socket]:
    wanted = {f"socket:[{inode}]" for inode in listeners}
    for link in Path("/proc/self/fd").iterdir() if wanted else ():
        with contextlib.suppress(OSError):  # who listed the folder has closed it again
            if str(link.readlink()) in wanted:
                with copy_socket(int(link.name)) as listener:
                    yield listener


def copy_socket(descriptor: int) -> socket.socket:
    """A socket of this process by its number, for whoever did not open it.

    Raises:
        OSError: the number is no socket's, or none at all; nothing is left open.
    """
    copied = os.dup(descriptor)
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise
