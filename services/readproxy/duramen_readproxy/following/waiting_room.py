"""Those who wait at the tail of one log, each until a time of its own: a future each, few timers.

A timer of the event loop takes more memory than all else that a waiting reader needs here. Readers
whose times end within the same `GRAIN_US` therefore share one, and wait until the grain ends. An
entry does not outlive its wait. Not here: what is waited for. Called by `feed`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from duramen.units import MS, SECOND

GRAIN_US: Final = 50 * MS
"""So much later than asked for a wait may end: far less than what people choose between."""


class _WaitingReader(NamedTuple):
    """Who waits until the same time."""

    timer: asyncio.TimerHandle
    waiters: dict[asyncio.Future[None], None]


class WaitingRoom:
    """Used within one event loop."""

    def __init__(self) -> None:
        self._rows: dict[int, _WaitingReader] = {}
        """By the number of their time's grain."""

    def enter(self, deadline_us: int, now_us: int) -> asyncio.Future[None]:
        """What is done when all are woken, or up to a grain after the deadline; `leave` follows."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        grain = _grain_of(deadline_us)
        row = self._rows.get(grain)
        if row is None:
            delay_s = (grain * GRAIN_US - now_us) / SECOND
            row = self._rows[grain] = _WaitingReader(loop.call_later(delay_s, self._end, grain), {})
        row.waiters[waiter] = None
        return waiter

    def leave(self, waiter: asyncio.Future[None], deadline_us: int) -> None:
        """It waits no more, for whatever reason."""
        grain = _grain_of(deadline_us)
        row = self._rows.get(grain)
        if row is not None:
            row.waiters.pop(waiter, None)
            if not row.waiters:
                row.timer.cancel()
                del self._rows[grain]

    def wake_all(self) -> None:
        """What all waited for is there."""
        for grain in list(self._rows):
            self._rows[grain].timer.cancel()
            self._end(grain)

    @property
    def waiting_count(self) -> int:
        """How many wait."""
        return sum(len(row.waiters) for row in self._rows.values())

    @property
    def timer_count(self) -> int:
        """How many timers that takes."""
        return len(self._rows)

    def _end(self, grain: int) -> None:
        for waiter in self._rows.pop(grain).waiters:
            if not waiter.done():
                waiter.set_result(None)


def _grain_of(deadline_us: int) -> int:
    return -(-deadline_us // GRAIN_US)
