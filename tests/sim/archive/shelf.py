"""The cold store of a simulated cluster: whole segments by attempt, out of reach now and then.

What is put here stays as it is: rot is what the archiver says that it found. Its chance is its own,
so that what else a seed draws does not depend on it.

Filled by `archiver`, read by readers. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.units import MS, SECOND
from tests.sim.world import World

_CALM_US: Final = 8 * SECOND
_DOWN_US: Final = 3 * SECOND
"""Mean times between two outages, and of one: a reader gives up nothing, it asks again."""

Entries = Mapping[EntryId, bytes]
OnAnswer = Callable[[BookieStatus, list[tuple[EntryId, bytes]]], None]


class ColdShelf:
    """Copies of segments by attempt."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"shelf {seed}")
        self._copies: dict[str, Entries] = {}
        self._down_until_us = 0
        self._is_healed = False
        world.at(int(self._rng.expovariate(1 / _CALM_US)), self._go_down)

    def put(self, attempt: str, entries: Entries) -> None:
        """All files of an attempt, and its manifest."""
        assert attempt not in self._copies, attempt
        self._copies[attempt] = dict(entries)

    def remove(self, attempt: str) -> None:
        """The files of an attempt that nothing names any more."""
        self._copies.pop(attempt, None)

    def list_entries(self, attempt: str) -> list[EntryId]:
        """What an attempt holds, ascending; nothing if there is no such attempt."""
        return sorted(self._copies.get(attempt, ()))

    def heal(self) -> None:
        """No more outages."""
        self._is_healed = True
        self._down_until_us = 0

    def read(
        self, segment: Segment | None, first: EntryId, bytes_max: int, on_answer: OnAnswer
    ) -> None:
        """Entries from `first` on without a gap, of the copy that the segment names, later."""
        delay_us = int(self._rng.uniform(5 * MS, 60 * MS))
        if self._world.now_us < self._down_until_us:
            self._world.counts["cold store unreachable"] += 1
            self._world.at(delay_us, on_answer, BookieStatus.UNREACHABLE, [])
            return
        copy = None if segment is None or segment.cold_copy is None else segment.cold_copy.attempt
        entries = self._copies.get(copy or "", {})
        run: list[tuple[EntryId, bytes]] = []
        size_bytes = 0
        while first in entries and (not run or size_bytes < bytes_max):
            run.append((first, entries[first]))
            size_bytes += len(entries[first])
            first = EntryId(first + 1)
        self._world.counts["cold read"] += 1
        self._world.at(delay_us, on_answer, BookieStatus.OK if run else BookieStatus.UNKNOWN, run)

    def _go_down(self) -> None:
        if self._is_healed:
            return
        length_us = int(self._rng.expovariate(1 / _DOWN_US))
        self._down_until_us = self._world.now_us + length_us
        self._world.note("cold store", "down", str(length_us))
        calm_us = int(self._rng.expovariate(1 / _CALM_US))
        self._world.at(length_us + calm_us, self._go_down)
