"""A control beside a load: what the machine did not give is no fault of the product.

A process of its own wakes every 5 ms and syncs a block to the disk of the load every 50 ms. What it
does late, nobody could have done in time: those are the machine's stalls. The product's part of an
interval is its length without the stalls that overlap it, and that is what a strict bound judges.
The control is no part of the load and shares no lock, file or interpreter with it, so that a
product that stands still does not stop it. What it does not see: a machine that gives everybody
less and nobody nothing; bounds leave room for half the speed, or count what is done.

Used by tests that bound times, on any layer with processes. Runs by its path, with nothing but the
standard library. Not here: the bounds, which are in `tests.process.times`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple

TICK_S: Final = 0.005
SYNC_EVERY_S: Final = 0.05

LATE_S: Final = 0.005
"""A tick that comes as late as that is a stall; a scheduler alone costs a fifth of it."""

SYNC_LATE_S: Final = 0.05
"""What a sync of one block may take, on a disk that others use as well."""

_MARK_EVERY_S: Final = 0.02
_SEEN_S_MAX: Final = 120.0


class Stall(NamedTuple):
    """From when to when the machine gave nothing; instants of the monotonic clock in seconds."""

    begin_s: float
    end_s: float


class Ticker:
    """The stalls of a machine, and the product's part of an interval."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self._seen_s = {"cpu": 0.0, "disk": 0.0}
        self._changed = threading.Condition()
        self._is_over = False

    def stalled_s(self, begin_s: float, end_s: float) -> float:
        """For how long of an interval the machine gave no CPU or no disk; waits until it is known.

        Raises:
            AssertionError: the control has ended, or does not reach the end of the interval.
        """
        with self._changed:
            is_seen = self._changed.wait_for(
                lambda: self._is_over or min(self._seen_s.values()) >= end_s, _SEEN_S_MAX
            )
            assert is_seen and not self._is_over, "the control does not tick"
            found = sorted(self.stalls)
        stalled_s, counted_to_s = 0.0, begin_s
        for stall in found:
            first_s, last_s = max(stall.begin_s, counted_to_s), min(stall.end_s, end_s)
            if first_s < last_s:
                stalled_s += last_s - first_s
                counted_to_s = last_s
        return stalled_s

    def product_s(self, begin_s: float, end_s: float) -> float:
        """The product's part of an interval: its length without the machine's stalls."""
        return end_s - begin_s - self.stalled_s(begin_s, end_s)

    def longest_s(self, moments_s: Sequence[float]) -> float:
        """The product's part of the longest silence between neighbours of a rising sequence."""
        return max(self.product_s(before, after) for before, after in pairwise(moments_s))

    def require_within(self, begin_s: float, bound_s: float, what: str) -> None:
        """Assert that what is done now, and was to be done since a moment, took less than a bound.

        Prints the figure: a bound is kept near to what is measured (`tests.process.times`).
        """
        end_s = time.monotonic()
        took_s = self.product_s(begin_s, end_s)
        said = f"{what}: {took_s:.2f} s, and {end_s - begin_s - took_s:.2f} s of the machine's"
        print(said)
        assert took_s < bound_s, f"{said}; at most {bound_s} s are allowed"

    def note(self, kind: str, begin_s: float, end_s: float) -> None:
        """Take in what the control did: a tick or sync that was in time is as long as none."""
        with self._changed:
            if begin_s < end_s:
                self.stalls.append(Stall(begin_s, end_s))
            self._seen_s[kind] = max(self._seen_s[kind], end_s)
            self._changed.notify_all()

    def follow(self, told: IO[str]) -> None:
        """Take in what the control tells, until it ends."""
        for line in told:
            kind, begin_s, end_s = line.split()
            self.note(kind, float(begin_s), float(end_s))
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


@contextmanager
def running_ticker(folder: Path) -> Iterator[Ticker]:
    """A control that has begun to tick.

    Args:
        folder: where it syncs its block, on the disk of the load.
    """
    with ticking(folder) as (ticker, _):
        yield ticker


@contextmanager
def ticking(folder: Path) -> Iterator[tuple[Ticker, int]]:
    """The same, with the control's process id."""
    file = folder / f"control-{os.getpid()}"
    command = [sys.executable, "-IS", __file__, str(file)]
    # In a session of its own, as each server is: Linux shares processors out by session, and
    # pytest's may weigh more.
    control = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    assert control.stdin is not None and control.stdout is not None
    ticker = Ticker()
    follower = threading.Thread(target=ticker.follow, args=(control.stdout,), daemon=True)
    follower.start()
    try:
        ticker.stalled_s(0.0, time.monotonic())
        yield ticker, control.pid
    finally:
        control.stdin.close()  # it ends with it, and with a test that dies
        try:
            control.wait(10)
        except subprocess.TimeoutExpired:
            control.kill()
            control.wait(10)
        follower.join(10)
        file.unlink(missing_ok=True)


# --- The control's own process -------------------------------------------------------------------


def _tick() -> None:
    due_s = told_s = time.monotonic()
    while True:
        due_s += TICK_S
        time.sleep(max(due_s - time.monotonic(), 0.0))
        now_s = time.monotonic()
        if now_s - due_s >= LATE_S:
            _report("cpu", due_s, now_s)
            due_s = told_s = now_s
        elif now_s - told_s >= _MARK_EVERY_S:
            _report("cpu", now_s, now_s)
            told_s = now_s


def _sync(file: Path) -> None:
    with file.open("wb", buffering=0) as block:
        while True:
            began_s = time.monotonic()
            os.pwrite(block.fileno(), b"." * 4096, 0)
            os.fdatasync(block.fileno())
            ended_s = time.monotonic()
            is_late = ended_s - began_s >= SYNC_LATE_S
            _report("disk", began_s if is_late else ended_s, ended_s)
            time.sleep(SYNC_EVERY_S)


def _report(kind: str, begin_s: float, end_s: float) -> None:
    os.write(1, f"{kind} {begin_s:.6f} {end_s:.6f}\n".encode())


def _main() -> None:
    for work in (_tick, lambda: _sync(Path(sys.argv[1]))):
        threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _main()
