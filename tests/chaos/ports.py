"""Ports of the harness's own servers: forwarders, and ZooKeeper's.

They are chosen before anything listens on them, and a forwarder listens only while its process
lives. So they come from a range of their own, where the supervisor never picks the services' ports
(it picks from 10000 on) and outgoing connections get none. Nobody gets a port twice.

Called by `cluster` and `ensemble`.
"""

from __future__ import annotations

import random
from typing import Final

from duramen.cluster.layout import LayoutError, is_free_port

RANGE: Final = range(4_000, 7_000)
"""Below what `duramen run` begins with by default."""

_TRIES_MAX: Final = 1_000


class PortPool:
    """Gives ports that are free now."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """One more.

        Raises:
            LayoutError: none was found.
        """
        for _ in range(_TRIES_MAX):
            port = random.choice(RANGE)
            if port not in self._given and is_free_port(port):
                self._given.add(port)
                return port
        raise LayoutError(f"no free port was found from {RANGE.start} to {RANGE.stop - 1}")
