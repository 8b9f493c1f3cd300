"""Each process that runs tests picks free ports where no other one on this machine does.

A port is picked some seconds before its process listens. Of two that pick in one range at the same
moment, one finds its port taken now and then. Workers of one run are not the only ones: people test
in several checkouts, and on Kubernetes beside `make test`. So the range is divided, and each
process holds the lock of one share, in the user's cache folder, until it ends. Called by
`tests/machine.py` before the first test, and by who starts a Kubernetes or chaos by hand.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from duramen.cluster.layout import FREE_PORTS_VARIABLE, find_port_range
from tests.cache import cache_root

SHARES_COUNT: Final = 16
"""Processes that test at the same time on one machine: a share has 1,400 ports then."""


def keep_ports_apart(folder: Path | None = None) -> int | None:
    """Take a share that nobody holds, for this process and those that it starts.

    Args:
        folder: where the locks are; None: in the user's cache folder.

    Returns:
        The descriptor that holds the share; None where the environment says a range already.

    Raises:
        RuntimeError: every share is held.
    """
    if FREE_PORTS_VARIABLE in os.environ:
        return None
    folder = folder or cache_root() / "ports"
    folder.mkdir(parents=True, exist_ok=True)
    ports = find_port_range()
    size = len(ports) // SHARES_COUNT
    for index in range(SHARES_COUNT):
        held = _hold(folder / f"{index}.lock")
        if held is not None:
            first = ports[index * size]
            os.environ[FREE_PORTS_VARIABLE] = f"{first}-{first + size - 1}"
            return held
    raise RuntimeError(f"{SHARES_COUNT} processes test on this machine: see {folder}")


def _hold(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
