"""Recovery of flexible segments: whatever dies, what was acknowledged is in the closed segment.

Owner, bookies, recoverers and metadata store are in `flexible_recovery_world`, which judges what is
closed. Source: docs/protocol/recovery.md "Recovery of a flexible segment", R23, R24.
"""

from __future__ import annotations

import random

import pytest

from duramen.core.flexible.property import ReplicationProperty
from duramen.units import MS, SECOND
from tests.unit.flexible_recovery_world import RecoveryWorld

RP = ReplicationProperty
SHAPES = [((2, 2, 2), RP(3, 2)), ((1, 1, 1, 1), RP(2, 2, 1, 1)), ((3, 2), RP(3, 2)), ((5,), RP(3)),
          ((3,), RP(2)), ((2, 2, 1), RP(2, 2, 1, 2))]  # fmt: skip


def recover(world: RecoveryWorld) -> None:
    """One recoverer, until it is done."""
    world.begin_recovery()
    world.run_for(60 * SECOND)
    assert world.segment.is_closed, world.recoveries
    world.judge()


def test_a_quiet_segment_is_closed_at_its_end() -> None:
    world = RecoveryWorld((2, 2, 2), RP(3, 2))
    for _ in range(10):
        world.append()
        world.run_for(10 * MS)
    recover(world)
    assert world.segment.last_entry == 9
    assert world.recoveries[0].recovered_count <= 1


def test_an_empty_segment_is_closed_empty() -> None:
    world = RecoveryWorld((3,), RP(2))
    recover(world)
    assert world.segment.last_entry == -1


@pytest.mark.parametrize("seed", [*range(60), 188, 191, 240, 367, 517, 550])
def test_whatever_happens_nothing_acknowledged_is_missing(seed: int) -> None:
    rng = random.Random(seed)
    racks, wanted = SHAPES[seed % len(SHAPES)]
    world = RecoveryWorld(
        racks, wanted, spare_racks=(1, 1), is_ordered=bool(seed // 6 % 2), seed=seed
    )
    tolerated = sum(racks) - wanted.node
    for _ in range(60):
        disk = rng.choice(world.disks[: world.own_count])
        match rng.randrange(12):
            case 0:
                disk.is_silent = not disk.is_silent
            case 1 if tolerated > 1 and not any(d.is_replaced for d in world.disks):
                disk.is_replaced = True
            case 2 if disk.entries and sum(bool(d.rotten) for d in world.disks) < 1:
                disk.rotten.add(rng.choice(list(disk.entries)))
            case 3 if len(world.recoveries) < 3 and rng.random() < 0.3:
                world.begin_recovery(needs_bound=rng.random() < 0.3)
            case _:
                world.append()
        world.run_for(rng.choice([0, MS, 3 * MS, 30 * MS]))
    for disk in world.disks:
        disk.is_silent = False
    world.run_for(5 * SECOND)
    world.begin_recovery()
    world.run_for(120 * SECOND)
    if world.has_cover():
        assert world.segment.is_closed, world.recoveries
    if world.segment.is_closed:
        world.judge()


def test_other_disks_take_back_what_was_done_before() -> None:
    """b0 reported entries that are done; then it turns out that its disks were replaced."""
    taken_back_count = 0
    for seed in range(40):
        world = RecoveryWorld((1, 1, 1), RP(2), seed=seed)
        world.disks[2].is_silent = True
        for _ in range(4):
            world.append()
        world.run_for(4 * MS)
        world.begin_recovery()
        world.disks[2].is_silent = False
        recovery = world.recoveries[0]
        for _ in range(200):
            world.run_for(MS // 2)
            if recovery.progress[2] in (2, 3):
                world.disks[0].is_replaced = True
        world.run_for(60 * SECOND)
        assert world.segment.is_closed
        world.judge()
        taken_back_count += bool(recovery._gone) and recovery.recovered_count > 4
    assert taken_back_count >= 3
