"""The cold store of a simulated cluster: whole segments by attempt, out of reach now and then.

What is put here stays as it is: rot is what the archiver says that it found. Its chance is its own,
so that what else a seed draws does not depend on it.

Filled by `archiver`, read by readers. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

from duramen.ids import EntryId
from duramen.units import SECOND
from tests.sim.world import World

_CALM_US: Final = 8 * SECOND
_DOWN_US: Final = 3 * SECOND
"""Mean times between two outages, and of one: a reader gives up nothing, it asks again."""

Entries = Mapping[EntryId, bytes]


class ColdFiles:
    """Copies of segments by attempt."""

    url: Final = "shelf"

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

    @property
    def is_down(self) -> bool:
        """Whether it is out of reach."""
        return self._world.now_us < self._down_until_us

    @property
    def counts(self) -> Counter[str]:
        """What happened in this run."""
        return self._world.counts

    def find(self, attempt: str) -> Entries | None:
        """What an attempt holds; None if there is no such attempt."""
        return self._copies.get(attempt)

    def _go_down(self) -> None:
        if self._is_healed:
            return
        length_us = int(self._rng.expovariate(1 / _DOWN_US))
        self._down_until_us = self._world.now_us + length_us
        self._world.note("cold store", "down", str(length_us))
        calm_us = int(self._rng.expovariate(1 / _CALM_US))
        self._world.at(length_us + calm_us, self._go_down)
