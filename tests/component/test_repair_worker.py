"""A worker whose view changes under it: what it judged by is told with what it concludes.

A task is set aside while the facts of its finding stay; so what a worker saw must be known,
and not those of the round that gave it the task. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio

from duramen.limits import REPAIR_BACKOFF
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import MS
from duramen_sequencer.repair.auditor import AuditPace
from duramen_sequencer.repair.worker import Done, Unrepairable
from tests.component.repair_world import RepairWorld, Seat, repair_world
from tests.unit.repair_world import make_segment


def test_what_a_worker_judged_by_a_view_that_passed_is_tried_again() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        await world.lose("a")
        seat = Seat(world, "s0", AuditPace(60_000 * MS, 1 * MS, 0))  # no leader: nothing by itself
        await seat.store.start()
        auditor, backlog = seat.auditor, seat.auditor.backlog
        await auditor.audit()
        task = backlog.take(now_us())
        assert task is not None
        given = task.finding.facts
        # While it waits for its turn nobody is there to take the copy, as in a restart of all.
        await world.lose("d")
        await auditor.audit()
        outcome = await auditor._worker.run(task)
        assert isinstance(outcome, Unrepairable) and "no bookie can take" in outcome.reason
        world.bookies["d"].is_silent = False
        await world.publish("d")
        await auditor.audit()
        assert task.finding.facts == given != task.judged_facts
        auditor._conclude(task, outcome)
        assert backlog.list_unrepairable() == [], "no round would ever find other facts"
        await auditor.audit()
        assert backlog.take(now_us() + REPAIR_BACKOFF.first_us) is task
        assert isinstance(await auditor._worker.run(task), Done)
        await world.wait_ensembles("dbc")
        world.assert_right(await world.segment())
        await seat.store.close()

    async def play() -> None:
        async with repair_world("abcd") as world:
            await act(world)

    asyncio.run(play())
