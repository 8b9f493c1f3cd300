"""Which bookies came back too lately to be trusted with new data while there are others.

A bookie whose process or network comes and goes costs each log that it is given an ensemble change
every time. So a bookie that left and registered again is *unsteady* until it has been there for a
while without a break. A bookie that was there at the first look, or joins for the first time, is
steady: nothing speaks against it. Unsteady bookies come last in every choice, and they are never a
reason to refuse one (`choice`).

Pure: the time is given. Called by `runtime.sequencer.surveyor`.
Source: docs/protocol/placement.md "Steadiness".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.ids import BookieId

LEFT_MAX: Final = 10_000
"""Bookies that are remembered as having left: more than any cluster has."""


class Steadiness:
    """What was seen of bookies' registrations, as one process saw it.

    Args:
        steady_after_us: how long a bookie that came back has to stay; 0: all are steady.

    Invariants:
        1. No bookie is both there and remembered as having left.
        2. An unsteady bookie is there, and becomes steady by time alone.
    """

    def __init__(self, steady_after_us: int) -> None:
        self._steady_after_us = steady_after_us
        self._there: dict[BookieId, int] = {}
        """With the transaction that made its registration."""
        self._back_us: dict[BookieId, int] = {}
        """Of those there, when one that had left was seen again."""
        self._left: dict[BookieId, None] = {}
        """The one that left first comes first."""

    def observe(self, registrations: Mapping[BookieId, int], now_us: int) -> None:
        """Who is there now.

        Args:
            registrations: with the transaction that made each: another number is another
                registration, also where nobody saw the bookie leave.
        """
        for bookie in self._there.keys() - registrations.keys():
            self._left.pop(bookie, None)
            self._left[bookie] = None
            self._back_us.pop(bookie, None)
        for bookie, made in registrations.items():
            if bookie in self._left or self._there.get(bookie, made) != made:
                self._back_us[bookie] = now_us
                self._left.pop(bookie, None)
        self._there = dict(registrations)
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def list_unsteady(self, now_us: int) -> dict[BookieId, int]:
        """The bookies that are unsteady, with how many µs are left until they are not, > 0."""
        left = {
            bookie: back_us + self._steady_after_us - now_us
            for bookie, back_us in sorted(self._back_us.items())
        }
        return {bookie: left_us for bookie, left_us in left.items() if left_us > 0}
