"""Repair that yields: its rate falls while clients' adds wait longer than when it is idle.

`Yielding` decides the rate. It learns, while no repair is under way, how long 19 of 20 adds of
clients wait until they are durable; while repair is under way it counts those that wait longer. If
they are twice as many as at rest, the rate is halved; else it grows step by step to what is
configured. It never falls below a floor, so that repair ends whatever else happens. An add's wait
covers all that repair can delay: the event loop (a timer's lateness, `probe`), the interpreter, the
CPU, the journal and its disk. Whoever reads what others pull, or verifies,
is in the way of clients too: one rate for all of it. `YieldingPace` is the gate with that rate.

Not here: what a piece of repair is. Made by `calls`, told of waits by the data plane.
Source: docs/protocol/wire.md "what an answer's status allows one to conclude",
docs/protocol/repair.md "Yielding".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from duramen.limits import (
    REPAIR_BYTES_PER_S,
    REPAIR_BYTES_PER_S_FIRST,
    REPAIR_BYTES_PER_S_MIN,
    REPAIR_BYTES_PER_S_RISE,
)
from duramen.units import MS, SECOND
from duramen_bookie.upkeep.pacing import Pace, monotonic_us

PROBE_US: Final = 50 * MS
"""How often the event loop's lateness is looked at: 20 timers a second cost a thousandth of it."""

REST_US: Final = 10 * SECOND
"""Without a piece for so long repair is at rest: what clients wait then is what they wait alone."""

GAP_US: Final = 250 * MS
"""What clients wait so long after a piece is not its doing: it was read, stored and synced by then.
At the floor every other add comes in such a gap."""

WINDOW_US: Final = 1 * SECOND
WINDOW_COUNT_MIN: Final = 40
"""What is judged at once: at rest 2 of 40 are late on average, 5 or more once in 20 windows."""

LEARNT_COUNT_MIN: Final = 256
"""Adds that are learnt from before anything is judged, repair or not."""

NOT_LATE_US: Final = 1 * MS
"""Nobody is disturbed by less, however short the waits at rest are."""

BURST_RATIO: Final = 8
"""What may go through at once after a gap: an eighth of a second of the rate."""

_LATE_PART: Final = 0.05
_STRAINED_PART: Final = 2 * _LATE_PART
_LEARN_STEP: Final = 0.05
"""The limit grows by a twentieth with each add that is late, and falls by a 380th with each that is
not: the two even out when 1 of 20 is late. From half a second to 20 ms it is 1,300 adds."""

_GAP_STEP: Final = 0.05
"""Likewise for each second with gaps while repair is under way, by the part that is late in them:
2 % if it is half. So clients that wait twice as long for a reason of their own are followed within
a minute, and repair does not stay at its floor because of them; what the repair of others does to a
machine that is shared with them is a smaller part, and not taken for rest so soon."""


class Yielding:
    """Decides how many bytes a second repair may move at one bookie, from what clients wait.

    Slow to rise and fast to fall: it begins a while of work with `bytes_per_s_first`, rises by
    `rise_bytes_per_s` each second, and halves with each window that is strained.

    Args:
        bytes_per_s_max: > 0; without clients it is reached.
        bytes_per_s_min: > 0; what is left to repair however long clients wait.
        bytes_per_s_first: what a while of work begins with after a rest.
        rise_bytes_per_s: by how much the rate grows in a second.
        now_us: a monotonic clock.

    Invariants:
        1. min ≤ rate ≤ max.
    """

    def __init__(
        self,
        bytes_per_s_max: int = REPAIR_BYTES_PER_S,
        *,
        bytes_per_s_min: int = REPAIR_BYTES_PER_S_MIN,
        bytes_per_s_first: int = REPAIR_BYTES_PER_S_FIRST,
        rise_bytes_per_s: int = REPAIR_BYTES_PER_S_RISE,
        now_us: Callable[[], int],
    ) -> None:
        assert 0 < bytes_per_s_min <= bytes_per_s_first <= bytes_per_s_max
        self._max = bytes_per_s_max
        self._min = bytes_per_s_min
        self._first = bytes_per_s_first
        self._rise = rise_bytes_per_s
        self._now_us = now_us
        self._rate = bytes_per_s_max
        self._rate_us = now_us()
        self._worked_us: int | None = None
        self._limit_us = 0.0
        self._learnt_count = 0
        self._fall_count = 0
        self._loop_late_us = 0
        self._begin_window()

    @property
    def bytes_per_s(self) -> int:
        """The rate by now."""
        risen = (self._now_us() - self._rate_us) * self._rise // SECOND
        return min(self._rate + risen, self._max)

    @property
    def limit_us(self) -> int:
        """An add that waits longer is late; 0: nothing is known yet."""
        return max(round(self._limit_us), NOT_LATE_US) if self._limit_us else 0

    def on_piece(self) -> None:
        """A piece of repair is let through, or was carried out right now."""
        now_us = self._now_us()
        if self._worked_us is None or now_us - self._worked_us >= REST_US:
            self._set_rate(min(self.bytes_per_s, self._first))
            self._begin_window()
        self._worked_us = now_us

    def on_loop_late(self, late_us: int) -> None:
        """A timer ran so much after it was due: as long does what arrives wait to be seen."""
        self._loop_late_us = max(late_us, 0)

    def on_client_waited(self, seen_us: int) -> None:
        """An add of a client has become durable so long after it was seen."""
        waited_us = seen_us + self._loop_late_us
        began_us = self._now_us() - waited_us
        since_us = REST_US if self._worked_us is None else began_us - self._worked_us
        if since_us >= REST_US or self._learnt_count < LEARNT_COUNT_MIN:
            self._learn(waited_us)
            return
        is_late = waited_us > self.limit_us
        self._count += 1
        self._late_count += is_late
        if since_us >= GAP_US:
            self._gap_count += 1
            self._gap_late_count += is_late
        is_over = self._now_us() - self._window_us >= WINDOW_US
        if is_over and self._count >= WINDOW_COUNT_MIN:
            self._judge()
            self._begin_window()

    def statistics(self) -> dict[str, int]:
        """The rate, its bounds, what counts as late, and how often the rate fell."""
        return {
            "bytes_per_s": self.bytes_per_s,
            "bytes_per_s_max": self._max,
            "bytes_per_s_min": self._min,
            "late_beyond_us": self.limit_us,
            "fall_count": self._fall_count,
        }

    def _learn(self, waited_us: int) -> None:
        """Move the limit towards where 1 of 20 waits longer: by what fraction, not by how much."""
        if not self._limit_us:
            self._limit_us = float(max(waited_us, 1))
        elif waited_us > self._limit_us:
            self._limit_us *= 1 + _LEARN_STEP * (1 - _LATE_PART)
        else:
            self._limit_us = max(1.0, self._limit_us * (1 - _LEARN_STEP * _LATE_PART))
        self._learnt_count += 1

    def _judge(self) -> None:
        if self._late_count > _STRAINED_PART * self._count:
            self._fall_count += 1
            self._set_rate(max(self.bytes_per_s // 2, self._min))
        if self._gap_count:
            part = self._gap_late_count / self._gap_count
            self._limit_us *= 1 + _GAP_STEP * (part - _LATE_PART)

    def _set_rate(self, bytes_per_s: int) -> None:
        self._rate = bytes_per_s
        self._rate_us = self._now_us()

    def _begin_window(self) -> None:
        self._window_us = self._now_us()
        self._count = self._late_count = 0
        self._gap_count = self._gap_late_count = 0


class YieldingPace(Pace):
    """The gate in front of every piece of one bookie's repair, at the rate of a `Yielding`."""

    def __init__(
        self, yielding: Yielding | None = None, *, now_us: Callable[[], int] = monotonic_us
    ) -> None:
        self._yielding = yielding or Yielding(now_us=now_us)
        rate = self._yielding.bytes_per_s
        super().__init__(rate, burst_bytes=rate // BURST_RATIO, now_us=now_us)

    async def admit(self, size_bytes: int, *, patience_us: int | None = None) -> bool:
        """As `Pace.admit`, at the rate of now."""
        self._yielding.on_piece()
        self._follow()
        is_admitted = await super().admit(size_bytes, patience_us=patience_us)
        self._yielding.on_piece()
        return is_admitted

    def on_client_waited(self, seen_us: int) -> None:
        """As `Yielding.on_client_waited`."""
        self._yielding.on_client_waited(seen_us)

    async def probe(self) -> None:
        """Look at how late the event loop is, until cancelled."""
        while True:
            due_us = self._now_us() + PROBE_US
            await asyncio.sleep(PROBE_US / SECOND)
            self._yielding.on_loop_late(self._now_us() - due_us)

    def statistics(self) -> dict[str, Any]:
        """As `Pace.statistics`, and why the rate is what it is."""
        return {**super().statistics(), **self._yielding.statistics()}

    def _follow(self) -> None:
        rate = self._yielding.bytes_per_s
        self.change_rate(rate, burst_bytes=rate // BURST_RATIO)
