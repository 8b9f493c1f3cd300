"""SIGINT ends what tests start, wherever they were started themselves and whatever ran before.

A shell has what it starts in the background ignore SIGINT, and a process hands that on to all that
it starts: a test that interrupts a program would wait for ever. So it is in CI, and for whoever
types `make night &`. PySpark puts a handler of its own in place with each session, and leaves it.
Called first by what sends SIGINT: pytest before each test (`tests/conftest.py`), the night, the
benchmark, the soak.
"""

from __future__ import annotations

import signal


def heed() -> None:
    """Have this process, and what it starts from now on, heed SIGINT as a fresh Python does."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
