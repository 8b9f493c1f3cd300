"""Quiet tests have the machine for themselves, whichever run on it they belong to.

`tests.scheduling` keeps the workers of one run apart. People test in several checkouts, and on
Kubernetes beside `make test`: so each process that runs tests holds a lock in the user's cache
folder, a shared one, and for tests that are marked `quiet` the whole. It waits for that
outside of any test's time-out. Such a process picks free ports of its own too (`tests/ports.py`).
Loaded by `tests/conftest.py`.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.cache import cache_root
from tests.ports import keep_ports_apart

LOCK_NAME: Final = "machine.lock"


class MachineLock:
    """The lock of one process; it ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._held = fcntl.LOCK_UN

    def share(self) -> None:
        """Hold it with others; waits until nobody has the whole."""
        self._hold(fcntl.LOCK_SH)

    def take_whole(self) -> None:
        """Hold it alone; waits until nobody else holds it at all."""
        self._hold(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give it back for good, also where a copy of the descriptor is left somewhere."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def _hold(self, wanted: int) -> None:
        if self._held == wanted:
            return
        try:
            fcntl.flock(self._descriptor, wanted | fcntl.LOCK_NB)
        except BlockingIOError:
            # What was held is gone by now, so two that want the whole do not wait for each other.
            sys.stderr.write("waiting for other tests on this machine\n")
            fcntl.flock(self._descriptor, wanted)
        self._held = wanted


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Share the machine from the first test on; who only spreads tests over workers runs none."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses"):
        keep_ports_apart()
        lock = MachineLock(cache_root() / LOCK_NAME)
        session.config.stash[_LOCK] = lock
        session.config.add_cleanup(lock.release)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hold as much of it as the test needs, before its time begins to count."""
    lock = item.config.stash[_LOCK]
    if item.get_closest_marker("quiet") is not None:
        lock.take_whole()
    else:
        lock.share()
    return (yield)


_LOCK: Final = pytest.StashKey[MachineLock]()
