"""Two versions of the operator: the newest that served a cluster alone goes on with it.

Source: docs/kubernetes/one-hand.md 19, 20.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from duramen import __version__
from duramen_operator.names import STEP_BACK_ANNOTATION
from duramen_operator.plan.hands.versions import find_newer
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import Event, Plan, Status, Step
from tests.kubernetes.plan.cases import make_world
from tests.kubernetes.plan.world import NOW, World, make_cluster
from tests.kubernetes.plan.worlds import steps_of


def make_served(version: str) -> World:
    """A cluster at rest that an operator of this version served."""
    world = make_world("plain", replicas=3)
    world.converge()
    world.find("LogCluster", "main")["status"]["operatorVersion"] = version
    return world


def find_first(world: World) -> Step:
    """What is written first; what is only told may come before."""
    return next(step for step in world.plan().steps if not isinstance(step, Event))


def plan_as(world: World, version: str) -> Plan:
    return make_plan(replace(world.observe(), version=version), NOW)


@pytest.mark.parametrize(
    ("stands", "own", "is_newer"),
    [
        ("0.2.0", "0.1.0", True), ("0.1.0", "0.2.0", False), ("0.10.0", "0.9.9", True),
        ("0.9.9", "0.10.0", False), ("0.1", "0.1.0", False), ("0.1.0", "0.1", False),
        ("0.1.1", "0.1", True), ("1.0", "0.99.99", True), ("0.2.0rc1", "0.2.0", False),
        ("0.2.0", "0.2.0rc1", True), ("0.2.0rc2", "0.2.0rc1", True), ("v0.2.0", "0.1.0", True),
        ("0.2.0rc1", "0.2.0rc2", False), ("0.2.0+abc", "0.2.0", False),
        ("0.2.0-rc.10", "0.2.0-rc.9", True),
        ("", "0.1.0", False), ("main", "0.1.0", True), ("main", "main", False),
    ],
)  # fmt: skip
def test_which_version_is_newer(stands: str, own: str, is_newer: bool) -> None:
    cluster = make_cluster()
    cluster["status"]["operatorVersion"] = stands
    seen = replace(World(cluster).observe(), version=own)
    assert find_newer(seen) == (stands if is_newer else "")


def test_who_serves_a_cluster_writes_its_version_before_anything_else() -> None:
    world = make_world("plain", replicas=3)
    first = find_first(world)
    assert isinstance(first, Status)
    assert (first.about.kind, first.status["operatorVersion"]) == ("LogCluster", __version__)
    world.converge()
    world.find("LogCluster", "main")["status"]["operatorVersion"] = "0.0.9"
    world.change("LogCluster", "main", image="localhost/duramen:next")
    first = find_first(world)
    assert isinstance(first, Status)
    assert (first.about.kind, first.status["operatorVersion"]) == ("LogCluster", __version__)


def test_an_invalid_cluster_says_all_the_same_who_serves_it() -> None:
    world = World(make_cluster(zookeeper={"members": 4}))
    world.settle()
    assert world.find("LogCluster", "main")["status"]["operatorVersion"] == __version__


@pytest.mark.parametrize(
    "edit", [{}, {"image": "localhost/duramen:old"}, {"zookeeper": {"members": 4}}]
)
def test_an_older_one_tells_and_does_nothing_else(edit: dict[str, Any]) -> None:
    world = make_served("9.0.0")
    world.change("LogCluster", "main", **edit)
    for name in ("main-sequencer", "main-zookeeper"):
        world.find("StatefulSet", name)["spec"]["replicas"] = 0
    before = copy.deepcopy(world.find("LogCluster", "main")["status"])
    plan = world.plan()
    (step,) = plan.steps
    assert isinstance(step, Status)
    world.do(plan.steps)
    after = world.find("LogCluster", "main")["status"]
    told = world.condition("LogCluster", "main", "Progressing")
    assert (told["status"], told["reason"]) == ("False", "NewerOperator")
    for text in (__version__, "9.0.0", "upgrade the chart", f"{STEP_BACK_ANNOTATION}=9.0.0"):
        assert text in told["message"]
    others = [one for one in before["conditions"] if one["type"] != "Progressing"]
    assert [one for one in after["conditions"] if one["type"] != "Progressing"] == others
    assert {**after, "conditions": ()} == {**before, "conditions": ()}
    assert world.plan().steps == ()


def test_the_newer_one_goes_on_as_if_nothing_had_been() -> None:
    world = make_served("9.0.0")
    world.do(world.plan().steps)
    world.do(plan_as(world, "9.0.0").steps)
    assert world.condition("LogCluster", "main", "Progressing")["reason"] == "Settled"
    assert plan_as(world, "9.0.0").steps == ()


@pytest.mark.parametrize("stands", ["9.0.0", "main"])
def test_a_step_back_is_for_good_and_for_that_version_alone(stands: str) -> None:
    world = make_served(stands)
    metadata = world.find("LogCluster", "main")["metadata"]
    metadata["annotations"] = {STEP_BACK_ANNOTATION: "8.0.0"}
    assert find_newer(world.observe()) == stands
    metadata["annotations"] = {STEP_BACK_ANNOTATION: stands}
    assert find_newer(world.observe()) == ""
    world.converge()
    assert world.find("LogCluster", "main")["status"]["operatorVersion"] == __version__
    assert world.condition("LogCluster", "main", "Progressing")["reason"] == "Settled"
    # It is spent: the next upgrade that is taken back asks anew.
    world.do(plan_as(world, "9.1.0").steps)
    assert find_newer(world.observe()) == "9.1.0"


def test_without_a_cluster_anybody_tells() -> None:
    world = make_served("9.0.0")
    del world.objects[next(ref for ref in world.objects if ref.kind == "LogCluster")]
    assert find_newer(world.observe()) == ""
    assert {step.about.kind for step in steps_of(world.plan(), Status)} == {"BookieSet", "Bookie"}
