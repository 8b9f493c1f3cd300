"""Two bookies of which one carries copies over from the other.

Used by `test_carrying` and `test_transfers`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from duramen.ids import EntryId, LedgerId
from duramen.units import MIB
from duramen_bookie.upkeep.checkpointing import begin_compaction, begin_settling
from duramen_bookie.upkeep.pacing import Pace
from duramen_bookie.upkeep.settling import Carrier
from duramen_bookie.upkeep.transfer import Transfer
from tests.component.upkeep_world import run
from tests.crash.disk import Disk
from tests.crash.promises import ledger, make_addition
from tests.crash.storage_engine import LAYOUT, StorageEngine

LEDGER = ledger(7, 3)
OTHER = ledger(8, 1)
ENTRY_COUNT = 6


class World:
    """A bookie's storage with entries, and a carrier."""

    def __init__(self) -> None:
        self.disk = Disk(random.Random(7))
        self.reported: list[tuple[LedgerId, EntryId]] = []
        self.added: set[tuple[LedgerId, EntryId]] = set()
        self.start()

    def start(self) -> None:
        """As after a restart."""
        self.engine = StorageEngine(self.disk)
        self.carrier = Carrier(self.engine.storage, self.reported.extend)

    def add(self, ledger_id: LedgerId) -> None:
        first = len(self.added)
        additions = [make_addition(ledger_id, n, 700) for n in range(first, first + ENTRY_COUNT)]
        self.engine.add(additions)
        self.added |= {addition.key for addition in additions}

    def begin_settling(self) -> Transfer:
        sealed: list[int] = []
        self.engine.storage.roll(sealed.append)
        return begin_settling(self.engine.storage, sealed[0])

    def begin_compaction(self) -> Transfer:
        oldest = min(self.engine.storage.entry_log.list_files(), key=lambda file: file.file_id)
        return begin_compaction(self.engine.storage, oldest)

    def carry_out(self, begin: Callable[[], Transfer]) -> bool:
        """One transfer in a loop of its own."""
        carried: list[bool] = []

        async def scenario() -> None:
            carried.append(await self.carrier.carry_out(begin, Pace(1_000 * MIB)))

        run(scenario)
        return carried[0]

    def validate(self) -> None:
        """Everything is served, nothing is reported, and no file is there that nobody needs."""
        self.engine.core.validate()
        view = self.engine.look()
        assert set(view.entries) == self.added and not view.unknown
        assert not self.reported
        files = {path for path in self.disk.list_files() if not path.startswith(LAYOUT.journal)}
        assert files <= self.engine.list_names()


def make_world() -> World:
    """Some entries in the entry log, more in the journal."""
    world = World()
    world.add(LEDGER)
    assert world.carry_out(world.begin_settling)
    world.add(OTHER)
    return world
