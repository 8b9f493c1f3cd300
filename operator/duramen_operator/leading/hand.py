"""Whether this process may still write: asked before every write, answered by its own clock alone.

The clock goes on while the machine sleeps. The time counts from before a renewal was sent, since
that is the earliest moment at which the API server can have stored it. So it ends before anybody
else's patience does, whatever this process was kept from in between.

Asked by `apply.executor` and `kube`, moved by `keeper`. No I/O. Source: docs/kubernetes/one-hand.md
5 and 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LEASE_S: Final = 15
"""How long others wait for a holder that says nothing."""

RENEW_EVERY_S: Final = 3.0
"""How often a holder says something."""

HELD_S: Final = 10.0
"""How long a holder may write after the start of a renewal: others wait longer."""

assert HELD_S < LEASE_S

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_boot_clock_s() -> float:
    """Seconds that go on while the machine sleeps; elsewhere than on Linux they may stand still."""
    return time.clock_gettime(_CLOCK)


class HandLostError(Exception):
    """This operator may not write any more: what it wanted to do, another one does by now."""


class Hand:
    """What of the time is left in which this process may write."""

    def __init__(self, clock_s: Callable[[], float] = read_boot_clock_s) -> None:
        self._clock_s = clock_s
        self._until_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether a write may begin now."""
        return self._until_s is not None and self._clock_s() < self._until_s

    @property
    def left_s(self) -> float:
        """How long that stays so without another renewal; 0: it is over."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - self._clock_s())

    def note_renewal(self, began_s: float) -> None:
        """The API server stored a renewal that was begun then, by `clock_s`."""
        self._until_s = began_s + HELD_S

    def give_up(self) -> None:
        """Write nothing any more."""
        self._until_s = None

    def check(self) -> None:
        """Ask before a write.

        Raises:
            HandLostError: it must not be made.
        """
        if not self.is_held:
            raise HandLostError("the operator's Lease is not held any more")
