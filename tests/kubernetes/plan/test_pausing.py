"""A paused cluster: what is told, and what is let go although nothing is done.

Whoever deletes an object while its cluster is paused waits five minutes at most, as for a cluster
that does not answer; where nothing is needed of the cluster, nobody waits. A right is another
matter: its object waits for as long as the grant is there.
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen_operator.names import FINALIZER, PAUSED_ANNOTATION
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.releasing import RELEASE_AFTER
from duramen_operator.plan.steps import Event, Patch, Status
from tests.kubernetes.plan.grants_world import ANN, GrantsWorld
from tests.kubernetes.plan.worlds import (
    NOW,
    calls_of,
    make_cluster,
    make_log,
    make_space,
    observe,
    see_log,
    see_problem,
    steps_of,
)

PAUSED = {"annotations": {PAUSED_ANNOTATION: "true"}}
LEAVING = {"deletionTimestamp": "2026-11-22T12:00:00Z", "finalizers": ["a/b", FINALIZER]}
DELETE = {"deletionPolicy": "Delete"}
LET_GO = [{"metadata": {"finalizers": ["a/b"]}}]
PATH = "shop/orders"


def known(**spec: Any) -> dict[str, Any]:
    """A Log that is being deleted, and was seen to be log 1."""
    return make_log(spec={**DELETE, **spec}, metadata=LEAVING, status={"logId": "1"})


@pytest.mark.parametrize(
    ("log", "answer", "reason"),
    [
        (known(deletionPolicy="Retain"), see_log(), "Retained"),
        (known(), see_log("7"), "Retained"),
        (known(), see_problem("log_deleted"), "Deleted"),
    ],
)
def test_a_log_that_needs_nothing_of_the_cluster_is_let_go(
    log: dict[str, Any], answer: dict[str, Any], reason: str
) -> None:
    plan = make_plan(observe(make_cluster(metadata=PAUSED), log, logs={PATH: answer}), NOW)
    assert [step.patch for step in steps_of(plan, Patch)] == LET_GO
    assert reason in [event.reason for event in steps_of(plan, Event)]
    assert calls_of(plan) == []


def test_a_namespace_that_needs_nothing_of_the_cluster_is_let_go() -> None:
    gone = {"shop": see_problem("namespace_not_found")}
    space = make_space(spec=DELETE, metadata=LEAVING)
    plan = make_plan(observe(make_cluster(metadata=PAUSED), space, namespaces=gone), NOW)
    assert [step.patch for step in steps_of(plan, Patch)] == LET_GO


def test_what_needs_a_call_waits_five_minutes_and_is_told_once() -> None:
    space = make_space(spec=DELETE, metadata=LEAVING)
    there = {"shop": {"config": {}, "logs": 0}}
    seen = observe(
        make_cluster(metadata=PAUSED), known(), space, logs={PATH: see_log()}, namespaces=there
    )
    about = {"Log", "LogNamespace"}
    plan = make_plan(seen, NOW)
    assert [step for step in plan.steps if step.about.kind in about] == []
    plan = make_plan(seen, NOW + RELEASE_AFTER)
    assert [step.patch for step in steps_of(plan, Patch)] == LET_GO * 2
    told = [event for event in steps_of(plan, Event) if event.about.kind in about]
    assert [event.reason for event in told] == ["ReleasedLate"] * 2
    assert all("the cluster is paused" in event.message for event in told)
    assert calls_of(plan) == []


@pytest.mark.parametrize(
    ("spec", "finalizers"), [(DELETE, []), ({}, [FINALIZER])], ids=["not held", "held"]
)
def test_no_other_finalizer_comes_or_goes(spec: dict[str, Any], finalizers: list[str]) -> None:
    objects = (
        make_log(spec=spec, metadata={"finalizers": finalizers}),
        make_space(spec=spec, metadata={"finalizers": finalizers}),
    )
    seen = observe(make_cluster(metadata=PAUSED), *objects, logs={PATH: see_log()})
    assert {type(step) for step in make_plan(seen, NOW).steps} <= {Status, Event}


def pause(world: GrantsWorld) -> None:
    assert world.cluster is not None
    world.cluster["metadata"]["annotations"] = PAUSED["annotations"]


def do_passes(world: GrantsWorld, count: int = 6) -> None:
    """As the worker does them: the whole plan, of what is about grants."""
    for _ in range(count):
        for step in make_plan(world.observe(), world.now).steps:
            if step.about.kind == "LogGrant":
                world.do(step)
        world.now += RELEASE_AFTER


def test_a_right_that_is_there_keeps_its_object_for_as_long_as_it_takes() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.delete("ann")
    pause(world)
    do_passes(world)
    assert (world.grants.names(), world.said("ann")) == ({ANN}, "False/Deleting")
    (condition,) = world.objects["ann"]["status"]["conditions"]
    assert "paused" in condition["message"]
    assert world.reasons() == []


def test_a_right_that_is_gone_keeps_nobody() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.grants.take(*ANN)
    pause(world)
    do_passes(world)
    assert world.objects == {}
    assert world.reasons() == ["Taken"]


def test_a_right_of_somebody_elses_keeps_nobody() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.grants.take(*ANN)
    world.grants.give(*ANN)
    world.delete("ann")
    pause(world)
    do_passes(world)
    assert (world.objects, world.grants.names()) == ({}, {ANN})
    assert world.reasons() == ["Retained"]
