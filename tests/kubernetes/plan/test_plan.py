"""The whole plan of a cluster: it comes to rest, from wherever, and does nothing then.

Whatever is missing, however far the last pass came, and however often a step is done: the same
world comes out. That is what makes it safe to kill the operator between any two requests.
"""

from __future__ import annotations

import copy
import random

import pytest

from duramen_operator.names import PAUSED_ANNOTATION, make_labels
from duramen_operator.plan.steps import Apply, Delete, Event, Status
from tests.kubernetes.plan.cases import SPECS, make_world
from tests.kubernetes.plan.surplus_world import see
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster
from tests.tiers import sized

MADE = ("ConfigMap", "StatefulSet", "Deployment", "Service", "PodDisruptionBudget", "Bookie")
LOOKS_COUNT = 12


@pytest.mark.parametrize("case", SPECS)
def test_a_plan_after_its_apply_is_empty(case: str) -> None:
    world = make_world(case)
    world.do(world.plan().steps)
    world.settle()
    world.converge()
    assert world.plan().steps == ()
    assert world.condition("LogCluster", "main", "Ready")["status"] == "True"


@pytest.mark.parametrize("case", SPECS)
def test_a_cluster_is_ready_after_few_passes(case: str) -> None:
    """One makes it, one tells what was made, one sees it ready: how fast it settles, in counts.
    Before them, one says that the cluster is to hold copies, and lets a bundled ZooKeeper be
    founded; behind them, one takes the job away that gave rights to the nodes of a secured one."""
    world = make_world(case)
    assert world.converge() == (5 if case == "secured" else 4)
    assert world.condition("LogCluster", "main", "Ready")["status"] == "True"


@pytest.mark.parametrize("case", SPECS)
def test_every_step_may_be_done_twice(case: str) -> None:
    world, twice = make_world(case), make_world(case)
    world.converge()
    for _ in range(2):
        for step in twice.plan().steps:
            twice.do([step])
            twice.do([step])
    twice.converge()
    assert twice.manifests() == world.manifests()


@pytest.mark.parametrize("case", ["plain", "three zones", "autoscaled", "secured"])
def test_a_pass_that_ends_anywhere_is_gone_on_with(case: str) -> None:
    world = make_world(case)
    world.converge()
    count = 0
    while do_steps(other := make_world(case), count):
        other.converge()
        assert other.manifests() == world.manifests(), count
        count += 1
    assert count > 20


def do_steps(world: World, count: int) -> bool:
    """So many steps, in as many passes as they take; False where there are not so many."""
    while steps := world.plan().steps:
        if count <= len(steps):
            world.do(steps[:count])
            return True
        world.do(steps)
        count -= len(steps)
        world.run_controllers()
    return False


@pytest.mark.parametrize("case", ["plain", "three zones"])
@pytest.mark.parametrize("seed", range(sized(fast=4, gate=10, night=400)))
def test_controllers_that_are_still_at_work_are_waited_for(case: str, seed: int) -> None:
    """They make claims and pods one by one, in any order, and a look may come between any two."""
    rng = random.Random(seed)
    whole, world = make_world(case), make_world(case)
    whole.converge()
    registered = set[str]()
    for _ in range(LOOKS_COUNT):
        steps = world.plan(admin=see(*registered)).steps
        world.do(steps[: rng.randrange(len(steps) + 1)])
        there = set(world.objects)
        world.run_controllers()
        made = sorted(world.objects.keys() - there)
        for ref in rng.sample(made, rng.randrange(len(made) + 1)):
            del world.objects[ref]
        registered |= set(list_founded(world))
    for _ in range(LOOKS_COUNT):
        world.run_controllers()
        world.do(world.plan(admin=see(*list_founded(world))).steps)
    assert world.names("StatefulSet") == whole.names("StatefulSet")
    assert world.names("Bookie") == whole.names("Bookie")


def list_founded(world: World) -> list[str]:
    """Bookies that could register: they run, and have both disks."""
    claims = set(world.names("PersistentVolumeClaim"))
    return [name for name in world.names("Pod") if {f"journal-{name}", f"ledgers-{name}"} <= claims]


@pytest.mark.parametrize("seed", range(sized(fast=8, gate=20, night=400)))
def test_whatever_is_missing_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    world = make_world(rng.choice(list(SPECS)))
    world.converge()
    whole = copy.deepcopy(world.manifests())
    made = sorted(ref for ref in world.objects if ref.kind in (*MADE, "Pod"))
    for ref in rng.sample(made, rng.randrange(1, len(made))):
        del world.objects[ref]
    world.converge()
    assert world.manifests() == whole


@pytest.mark.parametrize("seed", range(sized(fast=4, gate=10, night=200)))
def test_what_others_changed_is_set_right(seed: int) -> None:
    rng = random.Random(seed)
    world = make_world("three zones")
    world.converge()
    whole = copy.deepcopy(world.manifests())
    name = rng.choice(world.names("Service"))
    world.find("Service", name)["spec"]["selector"] = {"app": "another"}
    world.find("StatefulSet", "main-sequencer")["spec"]["replicas"] = 7
    world.find("Deployment", "main-readproxy")["spec"]["template"]["spec"]["containers"][0][
        "image"
    ] = "another"
    world.converge()
    assert world.manifests() == whole


def test_a_field_that_the_server_filled_in_is_no_change() -> None:
    world = make_world("plain")
    world.converge()
    template = world.find("Deployment", "main-readproxy")["spec"]["template"]["spec"]
    template["restartPolicy"] = "Always"
    template["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    world.find("Service", "main-readproxy")["spec"]["clusterIP"] = "10.0.0.1"
    assert world.plan().steps == ()


def test_a_paused_cluster_is_only_looked_at() -> None:
    cluster = make_cluster()
    cluster["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    world = World(cluster, make_bookie_set())
    assert {type(step) for step in world.plan().steps} <= {Status, Event}
    world.settle()
    assert world.names("StatefulSet") == []
    assert world.find("LogCluster", "main")["status"]["phase"] == "Paused"
    assert world.condition("LogCluster", "main", "Progressing")["reason"] == "Paused"
    del world.find("LogCluster", "main")["metadata"]["annotations"]
    world.converge()
    own = [f"bookies-{index}" for index in range(3)]
    assert world.names("StatefulSet") == [*own, "main-sequencer", "main-zookeeper"]
    assert world.find("LogCluster", "main")["status"]["phase"] == "Running"


def test_nothing_is_made_for_a_cluster_that_leaves() -> None:
    world = make_world("plain")
    world.converge()
    world.find("LogCluster", "main")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for name in world.names("StatefulSet"):
        del world.objects[
            next(r for r in world.objects if (r.kind, r.name) == ("StatefulSet", name))
        ]
    assert not any(isinstance(step, Apply | Delete) for step in world.plan().steps)


def test_a_set_without_its_cluster_says_so() -> None:
    world = World(make_bookie_set())
    world.settle()
    ready = world.condition("BookieSet", "bookies", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ClusterMissing")
    assert [event.reason for event in world.events] == ["ClusterMissing"]


def test_an_invalid_cluster_changes_nothing_but_its_status() -> None:
    world = make_world("plain")
    world.converge()
    before = copy.deepcopy(world.manifests())
    world.change("LogCluster", "main", zookeeper={"members": 4})
    world.settle()
    assert world.condition("LogCluster", "main", "Ready")["reason"] == "InvalidSpec"
    assert "zookeeper" in world.condition("LogCluster", "main", "Ready")["message"]
    before[next(r for r in before if r.kind == "LogCluster")] = world.manifests()[
        next(r for r in before if r.kind == "LogCluster")
    ]
    assert world.manifests() == before


def test_an_invalid_set_holds_up_no_other() -> None:
    bad = make_bookie_set("bad", replicas=-1)
    world = World(make_cluster(), bad, make_bookie_set("good"))
    world.converge()
    assert "good-0" in world.names("StatefulSet")
    assert world.condition("BookieSet", "bad", "Ready")["reason"] == "InvalidSpec"


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment", "Service"])
def test_what_belongs_to_somebody_else_is_left_alone(kind: str) -> None:
    name = {"StatefulSet": "main-sequencer"}.get(kind, "main-readproxy")
    versions = {"Service": "v1"}
    owner = {"apiVersion": "v1", "kind": "Other", "name": "other", "uid": "another"}
    theirs = {
        "apiVersion": versions.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": make_labels("main", "other"),
            "ownerReferences": [owner],
        },
        "spec": {"replicas": 1},
    }
    world = World(make_cluster(), make_bookie_set(), theirs)
    world.settle()
    assert world.find(kind, name)["spec"] == {"replicas": 1}
    progressing = world.condition("LogCluster", "main", "Progressing")
    assert progressing["reason"] == "NameTaken"
    assert f"{kind} {name}" in progressing["message"]


def test_an_object_that_is_leaving_is_made_again_only_when_it_has_gone() -> None:
    world = make_world("plain")
    world.converge()
    leaving = world.find("Deployment", "main-readproxy")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    leaving["spec"]["template"]["metadata"]["labels"] = {}
    assert not any(isinstance(step, Apply) for step in world.plan().steps)


def test_every_condition_is_told_from_the_first_pass_and_keeps_its_time() -> None:
    from duramen_operator.resources.conditions import CONDITIONS

    world = make_world("plain")
    world.settle()
    for kind, name in (("LogCluster", "main"), ("BookieSet", "bookies"), ("Bookie", "bookies-0-0")):
        status = world.find(kind, name)["status"]
        assert [c["type"] for c in status["conditions"]] == list(CONDITIONS[kind]), kind
        assert status["observedGeneration"] == 1
    first = world.condition("LogCluster", "main", "Secure")
    assert (first["status"], first["reason"]) == ("False", "NoSecurity")
    world.run_controllers()
    from datetime import timedelta

    from tests.kubernetes.plan.world import NOW

    world.settle(NOW + timedelta(hours=1))
    assert world.condition("LogCluster", "main", "Secure") == first
    ready = world.condition("LogCluster", "main", "Ready")
    assert ready["lastTransitionTime"] == "2026-01-02T04:04:05Z"


def test_events_tell_of_changes_once() -> None:
    world = make_world("plain")
    world.converge()
    reasons = [event.reason for event in world.events]
    assert reasons.count("AsWanted") == 1
    assert reasons.count("Serving") == 1
    told = len(world.events)
    world.converge()
    assert len(world.events) == told
