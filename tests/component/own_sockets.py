"""The sockets of this process, as the kernel lists them.

What is no socket is not copied: a copy of a locked file that nobody closes keeps its lock, though
its owner has given that back, and the tests that wait for it wait for ever.
Called by tests that ask what a server in this process holds.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from duramen.runtime.edge.port_sockets import copy_socket


def copy_own_sockets() -> Iterator[socket.socket]:
    """Each of them as a copy, which is closed when the next one is asked for."""
    for link in Path("/proc/self/fd").iterdir():
        if not link.is_socket():
            continue
        # It may have been closed meanwhile.
        with suppress(OSError), copy_socket(int(link.name)) as copy:
            yield copy
