"""Recovery of flexible segments: whatever dies, what was acknowledged is in the closed segment.

Owner, bookies, recoverers and metadata store are in `flexible_recovery_world`, which judges what is
closed. Source: docs/protocol/recovery.md "Recovery of a flexible segment", R23, R24.
"""

from __future__ import annotations

import random

import pytest

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.status import BookieStatus
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


def lose_unproved(world: RecoveryWorld) -> bool:
    """Appends, of which the first disk loses, unnoticed, what lies above its LNG; if any does."""
    for pause_us in (20 * MS, 20 * MS, 20 * MS, 4 * MS):
        world.append()
        world.run_for(pause_us)
    disk = world.disks[0]
    disk.rotten.update(entry for entry in disk.entries if entry > disk.lac)
    return bool(disk.rotten)


def find_missed(world: RecoveryWorld) -> bool:
    """Whether recovery met a body above LNG that is lost still."""
    return any(entry > world.recoveries[0]._lac for entry in world.disks[0].noticed)


def test_who_lost_a_body_gets_it_again_where_nobody_else_is() -> None:
    """All three have to have it."""
    healed_count = 0
    for seed in range(12):
        world = RecoveryWorld((1, 1, 1), RP(3), seed=seed)
        was_lost = lose_unproved(world)
        world.lost_answers_ratio = 0
        recover(world)
        assert not find_missed(world)
        healed_count += was_lost and not world.disks[0].rotten
    assert healed_count >= 3


def test_who_lost_a_body_is_no_copy_for_having_answered_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its book says "here", its disk does not: recovery waits for what others may have."""
    waiting_count = 0
    for seed in range(12):
        world = RecoveryWorld((1, 1, 1), RP(3), seed=seed)
        lose_unproved(world)
        world.lost_answers_ratio = 0  # who was not heard to have lost it is believed to have it
        monkeypatch.setattr(world.disks[0], "store", lambda effect: BookieStatus.OK)
        world.begin_recovery()
        world.run_for(60 * SECOND)
        waiting_count += not world.segment.is_closed
        assert world.segment.is_closed != find_missed(world)
    assert waiting_count >= 3


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
