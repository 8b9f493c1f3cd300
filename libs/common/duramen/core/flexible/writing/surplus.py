"""The surplus: what waves after the first may cost, so that they do not choke a slow network.

One budget for all logs of a process, in bytes of copies. Time refills it, and so does a part of
what first waves brought to completion. A wave may go while there is any, and takes its bytes, into
debt if need be: a wave of any size goes some time, and stops the others for a second or two.

Invariant (checked by `validate`): the budget is between its most and the greatest debt.
Pure: the time is given. Called by `wave_writer`. Source: R27, docs/protocol/waves.md "Surplus".
"""

from __future__ import annotations

from typing import Final

from duramen.units import MIB, SECOND

SURPLUS_BYTES_MAX: Final = 8 * MIB
DEBT_BYTES_MAX: Final = 8 * MIB
BYTES_PER_S: Final = 8 * MIB
_EARNED_PART: Final = 2
"""First waves earn one byte for so many."""


class SurplusBudget:
    """What further waves may cost in one process now."""

    def __init__(self) -> None:
        self._left_bytes = float(SURPLUS_BYTES_MAX)
        self._as_of_us: int | None = None
        self._taken_bytes = 0
        self._refused_count = 0

    def earn(self, first_wave_bytes: int) -> None:
        """An entry is complete whose first wave had so many bytes of copies."""
        self._add(first_wave_bytes / _EARNED_PART)

    def take(self, wave_bytes: int, now_us: int) -> bool:
        """Pay for a wave; False: wait until `ready_at_us`."""
        self._pass_time(now_us)
        if self._left_bytes <= 0:
            self._refused_count += 1
            return False
        self._left_bytes = max(self._left_bytes - wave_bytes, -DEBT_BYTES_MAX)
        self._taken_bytes += wave_bytes
        return True

    def ready_at_us(self, now_us: int) -> int:
        """When there is something again, at the latest."""
        self._pass_time(now_us)
        return now_us + int(max(-self._left_bytes, 0.0) * SECOND / BYTES_PER_S) + 1

    def statistics(self) -> dict[str, int]:
        """What is left, what was taken so far, and how often there was nothing."""
        return {
            "surplus_left_bytes": int(self._left_bytes),
            "surplus_taken_bytes": self._taken_bytes,
            "surplus_refused": self._refused_count,
        }

    def _pass_time(self, now_us: int) -> None:
        if self._as_of_us is not None and now_us > self._as_of_us:
            self._add((now_us - self._as_of_us) * BYTES_PER_S / SECOND)
        self._as_of_us = now_us

    def _add(self, count_bytes: float) -> None:
        self._left_bytes = min(self._left_bytes + count_bytes, SURPLUS_BYTES_MAX)

    def validate(self) -> None:
        """Assert the invariant."""
        assert -DEBT_BYTES_MAX <= self._left_bytes <= SURPLUS_BYTES_MAX, self._left_bytes
