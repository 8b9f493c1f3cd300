"""Every status that a plan writes is one that the definitions know, whole.

The API server drops what a definition does not name, without a word: a status that is not as it was
written would be written again and again. So is one that lacks a condition of its kind never told
of. Also here: under which name a cluster stands in a ZooKeeper of somebody else's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest

from duramen_operator.names import CAUGHT_UP_GATE
from duramen_operator.plan.cluster.foundation import read_argument
from duramen_operator.plan.conditions import format_time
from duramen_operator.plan.observed import AdminView, KubeObject
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import Plan, Status
from duramen_operator.resources.conditions import CONDITIONS
from duramen_operator.resources.definitions import define_all
from tests.kubernetes.plan import archive_world, worlds
from tests.kubernetes.plan.cases import SPECS, make_world
from tests.kubernetes.plan.grants_world import GrantsWorld
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster
from tests.kubernetes.plan.worlds import NOW, make_log, make_space, observe, see_log, see_problem


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, refusing what the API server would drop."""
    closed = copy.deepcopy(schema)
    if "properties" in closed:
        closed["additionalProperties"] = False
        closed["properties"] = {k: close(v) for k, v in closed["properties"].items()}
    if "items" in closed:
        closed["items"] = close(closed["items"])
    return closed


KINDS = {"Log", "LogNamespace", "LogGrant", "ArchivePolicy"}
CLOSED = {
    kind: jsonschema_rs.Draft202012Validator(
        close(
            definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        )
    )
    for kind, definition in define_all({}).items()
}


def check_status(kind: str, status: dict[str, Any]) -> None:
    if kind == "Pod":
        (gate,) = status["conditions"]
        assert gate["type"] == CAUGHT_UP_GATE and set(status) == {"conditions"}
        assert set(gate) == {"type", "status", "reason", "message", "lastTransitionTime"}
        return
    CLOSED[kind].validate(status)
    assert {c["type"] for c in status["conditions"]} == set(CONDITIONS[kind])


def statuses_of(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    for ref, item in world.objects.items():
        if ref.kind in CONDITIONS and item.get("status"):
            yield ref.kind, item["status"]


@pytest.mark.parametrize("case", SPECS)
def test_statuses_of_clusters_are_known_in_each_moment(case: str) -> None:
    world = make_world(case)
    for _ in range(4):
        for step in world.plan().steps:
            if isinstance(step, Status):
                check_status(step.about.kind, dict(step.status))
        world.do(world.plan().steps)
        world.run_controllers()
    world.converge()
    assert {kind for kind, _ in statuses_of(world)} == {"LogCluster", "BookieSet", "Bookie"}
    for kind, status in statuses_of(world):
        check_status(kind, status)


def test_statuses_of_what_is_wrong_are_known() -> None:
    world = World(make_bookie_set())
    world.settle()
    check_status("BookieSet", world.find("BookieSet", "bookies")["status"])
    world = World(make_cluster(zookeeper={"members": 4}), make_bookie_set())
    world.settle()
    for kind, status in statuses_of(world):
        check_status(kind, status)


def list_log_plans() -> Iterator[Plan]:
    cluster, log, space = worlds.make_cluster(), make_log(), make_space()
    answers = (see_log(), see_problem("log_not_found"), see_problem("metadata_unavailable"))
    for answer in answers:
        seen = observe(cluster, log, space, logs={"shop/orders": answer}, namespaces={})
        yield make_plan(seen, NOW)
    yield make_plan(observe(cluster, log, space, is_reachable=False), NOW)
    yield make_plan(observe(log, space), NOW)
    there = {"shop": {"config": {"auto_create": True}, "logs": 3}}
    yield make_plan(observe(cluster, space, namespaces=there), NOW)


def list_grant_plans() -> Iterator[Plan]:
    world = GrantsWorld()
    world.add("ann")
    for _ in range(4):
        yield world.plan()
        world.do_pass()
    world.is_judged = False
    yield world.plan()


def list_policy_plans() -> Iterator[Plan]:
    done = archive_world.make_job("all-1", NOW - timedelta(hours=2), NOW, due="29000000")
    failed = archive_world.make_job("all-2", NOW - timedelta(hours=1), NOW, is_good=False)
    for jobs in ((), (done,), (done, failed)):
        yield make_plan(archive_world.world(archive_world.HOURLY, *jobs), NOW)
    yield make_plan(archive_world.world(archive_world.CLOSED, is_reachable=False), NOW)
    yield make_plan(archive_world.world({"schedule": "never"}), NOW)


def test_statuses_of_what_is_in_a_cluster_are_known() -> None:
    told = [
        step
        for plan in (*list_log_plans(), *list_grant_plans(), *list_policy_plans())
        for step in plan.steps
        if isinstance(step, Status) and step.about.kind in KINDS
    ]
    assert {step.about.kind for step in told} == KINDS
    for step in told:
        check_status(step.about.kind, dict(step.status))


@pytest.mark.parametrize(
    ("zookeeper", "name"),
    [
        ({}, "main"),
        ({"external": {"servers": "a:2181"}}, "here.main"),
        ({"external": {"servers": "a:2181", "cluster": "old"}}, "old"),
    ],
)
def test_clusters_of_one_name_stay_apart_in_one_ensemble(zookeeper: Any, name: str) -> None:
    world = World(make_cluster(zookeeper=zookeeper), make_bookie_set())
    world.converge()
    found = {
        read_argument(KubeObject(item), "--cluster")
        for ref, item in world.objects.items()
        if ref.kind in {"StatefulSet", "Deployment"} and not ref.name.endswith("-zookeeper")
    }
    assert found == {name}


def test_free_space_alone_is_written_now_and_then() -> None:
    """It changes with every append: each writing wakes the worker, which would never rest."""

    def plan(free: int, copies: int, moment: datetime) -> list[str]:
        rows = {name: {"free_bytes": free, "duty": "serving"} for name in world.names("Bookie")}
        held = {name: {"copies": copies} for name in rows}
        view = AdminView(True, "", rows, {}, {}, holdings=held)
        steps = world.plan(moment, admin=view).steps
        world.do(step for step in steps if isinstance(step, Status))
        return [step.about.kind for step in steps if isinstance(step, Status)]

    world = make_world("plain", replicas=3)
    world.converge()
    plan(1000, 1, NOW)
    stamp = {"manager": "duramen-operator", "subresource": "status", "time": format_time(NOW)}
    for name in world.names("Bookie"):
        item = world.find("Bookie", name)
        assert (item["status"]["freeBytes"], item["status"]["copies"]) == (1000, 1)
        item["metadata"]["managedFields"] = [stamp]
    assert plan(900, 2, NOW + timedelta(seconds=5)) == []
    assert plan(800, 3, NOW + timedelta(seconds=20)) == ["Bookie"] * 3
