"""The 99th percentile of what was observed, followed without samples and without a clock.

It moves by small steps: up by 99 parts when something took longer, down by one part when it did
not. Where 99 of 100 lie below it, the steps cancel out.

Pure. Called by `reading.speculation` and `placement.store_times`.
"""

from __future__ import annotations

from typing import Final

_STEP: Final = 0.001


class Percentile99:
    """Of delays, in microseconds.

    Args:
        start_us: before anything was observed.
        least_us, most_us: it stays between them.
    """

    __slots__ = ("_least_us", "_most_us", "_value_us")

    def __init__(self, start_us: int, least_us: int, most_us: int) -> None:
        self._value_us = float(start_us)
        self._least_us = least_us
        self._most_us = most_us

    @property
    def value_us(self) -> int:
        """As it is now."""
        return int(self._value_us)

    def observe(self, took_us: int) -> None:
        """Something took so long."""
        step = 99 * _STEP if took_us > self._value_us else -_STEP
        self._value_us = min(max(self._value_us * (1 + step), self._least_us), self._most_us)
