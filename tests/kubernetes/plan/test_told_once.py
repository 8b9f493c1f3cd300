"""What is told of one state of the world is one event, however many passes tell it.

A pass may end behind an event, and the write that would have been its end may be refused: the next
pass plans the same again, seconds later. So each observation of these tests is planned twice, and
the API server, which knows an event by its name, must see the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from duramen_operator.names import FINALIZER, PAUSED_ANNOTATION
from duramen_operator.plan.conditions import Said, format_time, report
from duramen_operator.plan.observed import KubeObject, Observed, Problem, name_own
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.releasing import RELEASE_AFTER
from duramen_operator.plan.steps import Event, Plan, Status
from duramen_operator.typed.events import make_event
from tests.kubernetes.plan import archive_world
from tests.kubernetes.plan.cases import SPECS, make_world
from tests.kubernetes.plan.grants_world import ANN, GrantsWorld
from tests.kubernetes.plan.world import NOW as CLUSTER_NOW
from tests.kubernetes.plan.world import World, make_bookie_set
from tests.kubernetes.plan.worlds import (
    NOW,
    ago,
    apply_status,
    make_cluster,
    make_log,
    make_space,
    observe,
    see_log,
    see_problem,
    see_segment,
    steps_of,
)

LATER = timedelta(seconds=7)
PATH = "shop/orders"
DELETE = {"deletionPolicy": "Delete"}


def name_events(plan: Plan) -> list[str]:
    """As the API server knows them."""
    made = [make_event(step, "here").metadata for step in steps_of(plan, Event)]
    return [str(one.name) for one in made if one is not None]


def check_twice(seen: Observed, now: datetime) -> set[str]:
    """Plan twice; gives the reasons that were told."""
    first, second = make_plan(seen, now), make_plan(seen, now + LATER)
    assert name_events(first) == name_events(second)
    return {event.reason for event in steps_of(first, Event)}


@pytest.mark.parametrize("case", SPECS)
def test_of_clusters(case: str) -> None:
    world, reasons = make_world(case, replicas=3), set()
    for _ in range(6):
        reasons |= check_twice(world.observe(), CLUSTER_NOW)
        world.do(world.plan().steps)
        world.run_controllers()
    assert {"Serving", "AsWanted", "AllReady"} <= reasons
    world.find("StatefulSet", "main-sequencer")["spec"]["replicas"] = 7
    assert check_twice(world.observe(), CLUSTER_NOW) == {"EditedByHand"}


def test_of_clusters_that_are_refused_or_missing() -> None:
    world = make_world("plain", replicas=3)
    world.converge()
    refusals = {name_own("Bookie", "bookies-0-0"): Problem("Forbidden", "quota")}
    assert "ApplyRefused" in check_twice(world.observe(refusals=refusals), CLUSTER_NOW)
    world.change("BookieSet", "bookies", replicas=1)
    assert check_twice(world.observe(), CLUSTER_NOW) == {"Blocked"}
    world.change("LogCluster", "main", zookeeper={"members": 4})
    assert check_twice(world.observe(), CLUSTER_NOW) == {"InvalidSpec"}
    assert check_twice(World(make_bookie_set()).observe(), CLUSTER_NOW) == {"ClusterMissing"}


def make_leaving(**more: Any) -> dict[str, Any]:
    metadata = {"deletionTimestamp": "2026-11-22T12:00:00Z", "finalizers": [FINALIZER]}
    return make_log(spec=DELETE, metadata=metadata, status={"logId": "1"}, **more)


def list_log_views() -> Iterator[tuple[Observed, timedelta]]:
    cluster = make_cluster()
    for paused in ({}, {"annotations": {PAUSED_ANNOTATION: "true"}}):
        held = make_cluster(metadata=paused)
        for answer in (see_log("1"), see_log("7"), see_problem("log_deleted")):
            yield observe(held, make_leaving(), logs={PATH: answer}), timedelta()
            yield observe(held, make_leaving(), logs={PATH: answer}), RELEASE_AFTER
        yield observe(held, make_leaving(), is_reachable=False), RELEASE_AFTER
    yield observe(make_leaving()), timedelta()
    gone = make_log(status={"logId": "1"})
    yield observe(cluster, gone, logs={PATH: see_problem("log_deleted")}), timedelta()
    log = make_log(spec={"retention": {"age": "1h"}})
    good = observe(cluster, log, logs={PATH: see_log(config={"retention": {"age": "1h"}})})
    settled = apply_status(log, make_plan(good, NOW))
    yield observe(cluster, settled, logs={PATH: see_log()}), timedelta()
    space = make_space(spec={"auto_create": True, **DELETE}, metadata={"finalizers": [FINALIZER]})
    there = {"shop": {"config": {"auto_create": True}, "logs": 0}}
    fine = apply_status(space, make_plan(observe(cluster, space, namespaces=there), NOW))
    other = {"shop": {"config": {"auto_create": False}, "logs": 0}}
    yield observe(cluster, fine, namespaces=other), timedelta()
    leaving = {**fine, "metadata": {**fine["metadata"], **make_leaving()["metadata"]}}
    yield (
        observe(cluster, leaving, namespaces={"shop": see_problem("namespace_not_found")}),
        (timedelta()),
    )


def test_of_logs_and_namespaces() -> None:
    reasons = set()
    for seen, after in list_log_views():
        reasons |= check_twice(seen, NOW + after)
    wanted = {"Retained", "Deleted", "ClusterGone", "ReleasedLate", "ConfigCorrected"}
    assert wanted <= reasons


def test_of_grants() -> None:
    world = GrantsWorld()
    reasons: set[str] = set()
    world.add("ann")
    for change in ("give", "take", "delete"):
        if change == "take":
            world.grants.take(*ANN)
        if change == "delete":
            world.delete("ann")
        for _ in range(6):
            reasons |= check_twice(world.observe(), world.now)
            world.do_pass()
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.cluster = None
    reasons |= check_twice(world.observe(), world.now)
    assert {"GrantCorrected", "Taken", "ClusterGone"} <= reasons


def test_of_archives() -> None:
    late = see_segment(1, ago(hours=2))
    logs = {PATH: archive_world.tiered(late)}
    reasons = set()
    for spec in (archive_world.CLOSED, archive_world.HOURLY, {"schedule": "never"}):
        reasons |= check_twice(archive_world.world(spec, logs=logs), NOW + timedelta(minutes=5))
    assert {"ClosedSegmentsRun", "MissedScheduleRun", "InvalidSpec"} <= reasons


def test_a_status_that_was_not_written_makes_no_second_event() -> None:
    world = make_world("plain", replicas=3)
    world.converge()
    world.find("StatefulSet", "main-sequencer")["status"]["readyReplicas"] = 0
    plan = world.plan(CLUSTER_NOW + LATER)
    world.do(step for step in plan.steps if not isinstance(step, Status))
    again = world.plan(CLUSTER_NOW + 2 * LATER)
    assert name_events(again) == name_events(plan) != []
    world.do(again.steps)
    assert name_events(world.plan(CLUSTER_NOW + 3 * LATER)) == []


def test_what_comes_again_later_is_told_again() -> None:
    item = KubeObject(make_cluster())
    names = []
    for number, reason in enumerate(("One", "Other", "One")):
        now = NOW + number * LATER
        steps = list(report(item, [Said("Ready", "False", reason, "so", is_event=True)], {}, now))
        names += name_events(Plan(tuple(steps)))
        (status,) = [step for step in steps if isinstance(step, Status)]
        stamp = {"manager": "duramen-operator", "subresource": "status", "time": format_time(now)}
        metadata = {**item.metadata, "managedFields": [stamp]}
        item = KubeObject({**item.body, "metadata": metadata, "status": status.status})
    assert len(set(names)) == 3


def test_people_see_when_it_was_told_and_not_since_when_all_was_well() -> None:
    world = make_world("plain", replicas=3)
    world.converge()
    world.find("StatefulSet", "main-sequencer")["status"]["readyReplicas"] = 0
    moment = CLUSTER_NOW + timedelta(days=30)
    events = steps_of(world.plan(moment), Event)
    assert {event.reason for event in events} == {"NotServing"}
    assert {make_event(event, "here").event_time for event in events} == {moment}


def test_two_tellings_at_other_times_have_one_name() -> None:
    event = Event(name_own("LogCluster", "main"), "uid", "Serving", "it serves", NOW, NOW)
    later = replace(event, at=NOW + LATER)
    assert name_events(Plan((event,))) == name_events(Plan((later,)))
    other = replace(event, since=NOW + LATER)
    assert name_events(Plan((event,))) != name_events(Plan((other,)))
