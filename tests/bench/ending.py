"""A run of a benchmark ends: at its time limit, or when the process is told to.

Either comes as an exception in the main thread, so that every `with` block on the way stops what
it has started. Called by `python -m tests.bench` and `python -m tests.bench.compare`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tests.bench.cluster import BenchError


@contextmanager
def bounded(run_s_max: int) -> Iterator[None]:
    """Ends what runs inside by an exception.

    Raises:
        BenchError: the time is over, or a signal came.
    """

    def on_alarm(*_: object) -> NoReturn:
        raise BenchError(f"not done within {run_s_max} s")

    def on_end(*_: object) -> NoReturn:
        raise BenchError("ended by a signal")

    signal.signal(signal.SIGALRM, on_alarm)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_end)
    signal.alarm(run_s_max)
    try:
        yield
    finally:
        # Whatever comes now must not disturb the stopping; it is bounded by itself.
        signal.alarm(0)
