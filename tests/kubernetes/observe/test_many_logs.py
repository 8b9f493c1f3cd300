"""What a cluster of many logs is asked at rest, and how old its facts become: counts, not times.

Smaller than the clusters that this is for, with the least of the budget smaller by as much. Source:
docs/kubernetes/one-hand.md "What a look costs" (16).
"""

from __future__ import annotations

from typing import Final

from duramen_operator.plan.steps import Call, Patch, Status
from duramen_operator.serving.cluster_admin import LOOK_S
from tests.component.still_clock import run_still
from tests.kubernetes.observe.pass_world import PassWorld
from tests.kubernetes.plan.archive_world import make_policy
from tests.pauses import let_pass

LOG_COUNT: Final = 300
LEAST_COUNT: Final = 60
PER_LOG_AND_MINUTE: Final = 2
ANSWER_S: Final = 0.15
MINUTES: Final = 10


def make_crowd() -> PassWorld:
    """A cluster that one look cannot read whole: its logs, all of them chosen by a policy."""
    world = PassWorld(least_count=LEAST_COUNT)
    world.add_logs(f"log-{index:03}" for index in range(LOG_COUNT))
    world.world.add(make_policy({"onClosedSegments": True}))
    world.asked.answer_s = ANSWER_S
    return world


def test_many_logs_are_learnt_look_by_look_and_then_rest() -> None:
    async def scenario() -> None:
        world = make_crowd()
        first = [await world.do_pass()]
        while first[-1].view.look_again_s is not None:
            assert first[-1].look_s <= LOOK_S
            assert first[-1].wait_s == 0
            first.append(await world.do_pass())
        assert 1 < len(first) <= 1 + LOG_COUNT * 4 * ANSWER_S / LOOK_S
        assert all(world.ready(name) == "True/AsWanted" for name in world.world.names("Log"))
        await world.settle()
        world.asked.forget()
        began_s = world.clock_s()
        read_s = dict.fromkeys(world.world.names("Log"), began_s)
        while world.clock_s() < began_s + MINUTES * 60:
            done = await world.do_pass()
            assert not done.steps(Status, Call, Patch)
            assert done.look_s < LOOK_S
            assert done.view.logs is not None
            for path in set(done.view.logs) - done.view.stale_logs:
                read_s[path.removeprefix("shop/")] = world.clock_s()
            assert world.clock_s() - min(read_s.values()) < 4 * 60
            await let_pass(done.wait_s, what="until the next pass")
        minutes = (world.clock_s() - began_s) / 60
        most = PER_LOG_AND_MINUTE * LOG_COUNT * minutes
        assert 0.8 * most < world.asked.count() <= most

    run_still(scenario())
