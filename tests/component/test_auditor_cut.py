"""An auditor that is killed at any point leaves no wrong metadata, and another finishes its work.

The first auditor's session is ended after its n-th call or write, for every n there is; then what
stands in the metadata must be true of the bookies, and a second auditor must come to the same end
as one that was left alone. Source: docs/protocol/metadata.md "Rules for every change",
docs/protocol/repair.md, R3, R9, R21.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duramen.runtime.stores.memory_store import WriteFate
from duramen.wire.metadata_json import read_segment
from tests.component.repair_world import PATHS, RepairWorld, Seat, repair_world
from tests.unit.repair_world import make_segment
from tests.waiting import wait_for

STEPS_MAX = 200


class Blade:
    """Cuts one auditor off after so many of its steps."""

    def __init__(self, world: RepairWorld, seat: Seat, steps: int) -> None:
        self.steps_left = steps
        self.has_cut = False
        self._world = world
        self._seat = seat
        for bookie in world.bookies.values():
            bookie.on_call = self._step
        seat.store.before_write = self._step
        seat.store.after_write = lambda: self._step(None)

    def _step(self, _what: Any) -> None:
        if not self._seat.auditor.is_leader or self.has_cut:
            return
        self.steps_left -= 1
        if self.steps_left < 0:
            self.has_cut = True
            # As a killed process: nothing of it goes on, and its session ends a while later.
            self._seat.auditor.on_leadership(is_held=False)


async def set_up(world: RepairWorld) -> None:
    """A lost bookie, an owed copy, a damaged one, and a fragment that nobody has compared."""
    first = make_segment([(0, "abc"), (5, "bcd")], 9, proved=True)
    second = make_segment([(0, "abd")], 9, epoch=2)
    third = make_segment([(0, "bcd"), (5, "bcd")], epoch=3, proved=True)
    await world.add(first, second, third)
    await world.owe(first, "c", 6, 7)
    await world.report(first, "d", 8)
    await world.lose("a")


async def is_finished(world: RepairWorld) -> bool:
    segments = [await world.segment(epoch=epoch) for epoch in (1, 2, 3)]
    settled = [f for s in segments for f in (s.fragments if s.is_closed else s.fragments[:-1])]
    names = {m.bookie for fragment in settled for m in fragment.ensemble}
    notes = [
        await world.setup.get(PATHS.owed(segments[0].ledger_id, world.bookies["c"].member)),
        await world.setup.get(PATHS.queued(segments[0].ledger_id)),
    ]
    is_proved = all(fragment.is_proved for fragment in settled)
    return is_proved and "a" not in names and notes == [None, None]


async def assert_right(world: RepairWorld) -> None:
    """What is named and proved is there, but for what was lost, owed or damaged at first."""
    for epoch in (1, 2, 3):
        segment = await world.segment(epoch=epoch)
        notes = [
            await world.setup.get(PATHS.owed(segment.ledger_id, world.bookies["c"].member)),
            await world.setup.get(PATHS.queued(segment.ledger_id)),
        ]
        gone = "a" + "".join(name for name, note in zip("cd", notes, strict=True) if note)
        world.assert_right(segment, gone)


async def play(steps: int, fate: WriteFate | None = None) -> bool:
    """One life cut short and one that finishes; whether there was anything left to cut."""
    async with repair_world("abcde") as world:
        await set_up(world)
        first = await world.seat("s0", interval_s=0.001)
        blade = Blade(world, first, steps)
        if fate is not None:
            first.store.doom_next_write(fate)

        async def is_over() -> bool:
            return blade.has_cut or await is_finished(world)

        await wait_for(is_over)
        await asyncio.sleep(0)
        await assert_right(world)
        if not blade.has_cut:
            return False
        await first.election.stop()
        second = await world.seat("s1", interval_s=0.001)
        first.store.deliver_late_writes()
        await wait_for(lambda: is_finished(world))
        await assert_right(world)
        await wait_for(lambda: not second.auditor.backlog.tasks)
        return True


def test_a_cut_after_any_step_leaves_nothing_wrong_and_nothing_undone() -> None:
    cut_count = 0
    for steps in range(STEPS_MAX):
        if not asyncio.run(play(steps)):
            break
        cut_count += 1
    assert 20 < cut_count < STEPS_MAX, "every step was cut once"


@pytest.mark.parametrize("fate", list(WriteFate))
@pytest.mark.parametrize("write", range(4))
def test_a_write_of_unknown_outcome_is_read_back(fate: WriteFate, write: int) -> None:
    async def act() -> None:
        async with repair_world("abcde") as world:
            await set_up(world)
            seat = await world.seat(interval_s=0.001)
            await wait_for(lambda: seat.election.is_held)
            writes = 0

            def doom(ops: Any) -> None:
                nonlocal writes
                if any("/segments/" in op.path for op in ops):
                    if writes == write:
                        seat.store.doom_next_write(fate)
                    writes += 1
                    for op in ops:
                        world.assert_right(read_segment(op.data), "acd")

            seat.store.before_write = doom
            await wait_for(lambda: is_finished(world))
            seat.store.deliver_late_writes()
            await wait_for(lambda: is_finished(world))
            await assert_right(world)

    asyncio.run(act())
