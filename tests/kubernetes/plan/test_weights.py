"""A bookie's share of new data: what its BookieSet says is set in the cluster, and only then.

The request is that of docs/protocol/placement.md, which `duramen bookies locate` makes as well;
tests/process asks it of real servers.
"""

from __future__ import annotations

import pytest

from duramen_operator.names import PAUSED_ANNOTATION
from duramen_operator.plan.observed import AdminView
from duramen_operator.plan.steps import Call
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster


def make_world(weight: float) -> World:
    world = World(make_cluster(), make_bookie_set(replicas=3, weight=weight))
    world.converge()
    return world


def find_calls(world: World, stored: float | None) -> list[tuple[str, str, object, bool]]:
    rows = {name: {"weight": stored} for name in world.names("Bookie")}
    view = AdminView(True, "", {} if stored is None else rows, {}, {})
    return [
        (step.method, step.path, step.body, step.is_admin_port)
        for step in world.plan(admin=view).steps
        if isinstance(step, Call)
    ]


@pytest.mark.parametrize(("weight", "stored"), [(1, 1.0), (2.5, 2.5), (0, 0.0), (3, None)])
def test_a_weight_that_is_there_or_cannot_be_yet_is_left(
    weight: float, stored: float | None
) -> None:
    assert find_calls(make_world(weight), stored) == []


@pytest.mark.parametrize(("weight", "stored"), [(2.5, 1.0), (0, 1.0), (1, 0.0)])
def test_another_weight_is_set(weight: float, stored: float) -> None:
    world = make_world(weight)
    assert find_calls(world, stored) == [
        ("PATCH", f"/v1/cluster/bookies/{name}", {"weight": weight}, True)
        for name in world.names("Bookie")
    ]


def test_the_newer_name_of_a_weight_counts_before_the_older_one() -> None:
    world = World(make_cluster(), make_bookie_set(replicas=3, storageCapacity=4))
    world.converge()
    bodies = [body for *_, body, _ in find_calls(world, 1.0)]
    assert bodies and all(body == {"weight": 4} for body in bodies)
    assert find_calls(world, 4.0) == []


def test_a_paused_cluster_keeps_the_weights_that_people_gave() -> None:
    world = make_world(2.5)
    world.find("LogCluster", "main")["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    assert find_calls(world, 1.0) == []
