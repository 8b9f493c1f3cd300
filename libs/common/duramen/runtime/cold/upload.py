"""A file sent to a server while it is being written: a thread that sends, a short queue before it.

Clients of object stores and of HDFS pull what they send from an iterator, and writers push. So each
large file has a thread of its own, and at most a few parts wait for it, however fast the writer is.

Called by `s3` and `webhdfs`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

PART_COUNT: Final = 3
"""Parts that wait at most."""

_LOOK_S: Final = 0.1
"""How often a writer with a full queue looks whether the sender has failed."""


class _Aborted(Exception):
    """Ends the sender from within its iterator."""


class Upload:
    """One file on its way; for one writer thread.

    Args:
        send: takes the parts as they come and returns when the server has them all. If taking one
            raises, it must give the file up.
    """

    def __init__(self, send: Callable[[Iterator[bytes]], None]) -> None:
        self._send = send
        self._parts: queue.Queue[bytes | None] = queue.Queue(PART_COUNT)
        self._is_aborted = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="cold-upload", daemon=True)
        self._thread.start()

    def put(self, part: bytes) -> None:
        """Hand a part over; waits while the queue is full.

        Raises:
            Exception: what `send` raised.
        """
        self._put(part)

    def finish(self) -> None:
        """No more parts; returns when the server has them all.

        Raises:
            Exception: what `send` raised.
        """
        self._put(None)
        self._thread.join()
        self._check()

    def abort(self) -> None:
        """Give up; returns when the sender has ended. Never raises."""
        self._is_aborted = True
        while self._thread.is_alive():
            with suppress(queue.Full):  # then it takes a part of those that wait, and sees the flag
                self._parts.put_nowait(None)
            self._thread.join(_LOOK_S)

    def _put(self, part: bytes | None) -> None:
        while True:
            self._check()
            try:
                return self._parts.put(part, timeout=_LOOK_S)
            except queue.Full:
                continue

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._send(iter(self._take, None))
        except Exception as error:  # whatever it was: the writer raises it
            self._error = error

    def _take(self) -> bytes | None:
        part = self._parts.get()
        if self._is_aborted:
            raise _Aborted
        return part
