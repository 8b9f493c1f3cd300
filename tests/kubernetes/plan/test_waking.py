"""What wakes a worker: changes by others, and never the figures that it wrote itself.

With hundreds of busy logs some figures are due in each pass, and a worker that each writing wakes
would look again at once, for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from duramen_operator.apply.executor import PlanOutcome
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Plan
from duramen_operator.serving import worker as module
from duramen_operator.serving.worker import ClusterWorker, Workers
from tests.kubernetes.plan.lone_worker import make_context
from tests.kubernetes.plan.world import NOW

LOG: Final = Ref("duramen.io/v1alpha1", "Log", "orders")
CLUSTER: Final = Ref("duramen.io/v1alpha1", "LogCluster", "main")
WRITTEN: Final = ("uid-1", "7")


class Rest(Exception):
    """The worker rests."""


def play(monkeypatch: pytest.MonkeyPatch, told: dict[Ref, tuple[str, str]], *events: Any) -> int:
    """How many passes there are until it rests, if the first one writes this and such events come
    while it does."""
    passes = 0
    worker = ClusterWorker("main", make_context())

    async def do_pass() -> float:
        nonlocal passes
        passes += 1
        outcome = PlanOutcome()
        if passes == 1:
            outcome.told = told
            for event in events:
                worker.wake(event)
        return worker._judge(Plan(), outcome, NOW)

    async def rest(woken: asyncio.Event, _: float) -> None:
        if not woken.is_set():
            raise Rest

    monkeypatch.setattr(worker, "do_pass", do_pass)
    monkeypatch.setattr(module, "_rest", rest)
    with pytest.raises(Rest):
        asyncio.run(worker.run())
    return passes


def test_its_own_figures_do_not_wake_it_however_early_their_event_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert play(monkeypatch, {LOG: WRITTEN}, WRITTEN) == 1


@pytest.mark.parametrize("other", [("uid-1", "8"), ("uid-2", "7"), None])
def test_what_others_changed_wakes_it(
    monkeypatch: pytest.MonkeyPatch, other: tuple[str, str] | None
) -> None:
    assert play(monkeypatch, {LOG: WRITTEN}, WRITTEN, other) == 2


def test_a_status_on_which_another_step_may_wait_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(monkeypatch, {CLUSTER: WRITTEN}, WRITTEN) == 2


def test_an_event_of_its_own_figures_that_comes_later_does_not_wake_it() -> None:
    worker = ClusterWorker("main", make_context())
    outcome = PlanOutcome(told={LOG: WRITTEN})
    worker._judge(Plan(), outcome, NOW)
    worker.wake(WRITTEN)
    assert not worker.is_woken
    worker.wake(("uid-1", "8"))
    assert worker.is_woken


def test_nobody_is_made_once_all_are_stopped() -> None:
    async def scenario() -> dict[str, int]:
        workers = Workers(make_context())
        await workers.stop()
        workers.wake("main")
        return workers.statistics()

    assert asyncio.run(scenario()) == {"workers": 0}
