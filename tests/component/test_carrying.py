"""A transfer to the entry log whose disk fails once, at every one of its operations: the next round
is as if nothing had happened, without a restart, and so is the next start.

The production carrier, storage and core on the disk model. Crashes at every operation are in
`tests/crash`; a full disk under a running service is in `tests/process`.
Source: docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from duramen_bookie.upkeep.transfer import Transfer
from tests.component.carrying_world import OTHER, World, make_world
from tests.crash.disk import Operation
from tests.crash.storage_engine import LAYOUT


def transfer_of(world: World, kind: str) -> Callable[[], Transfer]:
    return world.begin_settling if kind == "settling" else world.begin_compaction


def is_upkeeps(operation: Operation) -> bool:
    """The journal's own failures poison it; they are not the carrier's to survive."""
    return not operation.path.startswith(LAYOUT.journal)


def count_operations(kind: str) -> int:
    world = make_world()
    operations: list[Operation] = []
    world.disk.hook = operations.append
    assert world.carry_out(transfer_of(world, kind))
    return sum(map(is_upkeeps, operations))


@pytest.mark.parametrize("kind", ["settling", "compaction"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_operation_that_fails_costs_a_round_and_nothing_else(kind: str, code: int) -> None:
    failed_count = 0
    for nth in range(count_operations(kind)):
        world = make_world()
        failed_count += not carry_out_failing(world, kind, nth, code)
        world.disk.hook = None
        world.add(OTHER)
        assert world.carry_out(transfer_of(world, "settling"))
        world.validate()
        world.engine.abandon()
        world.start()
        world.validate()
    assert failed_count > 10


def carry_out_failing(world: World, kind: str, nth: int, code: int) -> bool:
    """Carry a transfer out whose nth operation fails; whether it was not needed."""
    seen: list[Operation] = []

    def fail(operation: Operation) -> None:
        if is_upkeeps(operation):
            seen.append(operation)
            if len(seen) == nth + 1:
                raise OSError(code, f"injected into {operation.name}", operation.path)

    world.disk.hook = fail
    try:
        return world.carry_out(transfer_of(world, kind))
    except OSError as error:
        if "injected" not in str(error):
            raise
        return False
