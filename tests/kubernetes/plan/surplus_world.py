"""Worlds of bookies at rest, and a cluster that says who is registered.

Passes are played with what it answers; hands scale, and it is counted what StatefulSets make. Used
by `test_surplus` and `test_whose_is_it`.
"""

from __future__ import annotations

from typing import Any

from duramen_operator.names import BOOKIE_LABEL
from duramen_operator.plan.observed import AdminView
from duramen_operator.plan.steps import Apply, Delete, Step
from tests.kubernetes.plan.world import (
    World,
    leave_disks,
    make_bookie_set,
    make_cluster,
    make_domains,
)

SECURED: dict[str, Any] = {"security": "on", "acceptAnybody": False}


def make_rested(
    replicas: int = 3, zones: int = 0, *, is_shared: bool = False, **spec: Any
) -> World:
    domains = make_domains(1, zones) if zones else []
    cluster, own = make_cluster(domains=domains, **spec), make_bookie_set(replicas=replicas)
    world = World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
    world.converge()
    return world


def see(*names: str) -> AdminView:
    """A cluster that answers, with these registrations; some are of bookies that are away."""
    rows = {
        name: {"id": name, "incarnation": f"{name}-1", "duty": "serving", "state": "absent"}
        for name in names
    }
    return AdminView(True, "", rows, {}, {})


def name_all(world: World, end: str = "") -> list[str]:
    names = world.names("Pod")
    return [name for name in names if name.startswith("bookies") and name.endswith(end)]


def name_able(world: World) -> list[str]:
    """Those that could register: no second pod of a StatefulSet that is for one bookie alone."""
    pods = [world.find("Pod", name) for name in name_all(world)]
    named = [(one["metadata"]["name"], one["metadata"]["labels"]) for one in pods]
    return [name for name, labels in named if labels.get(BOOKIE_LABEL) in {None, name}]


def do(world: World, view: AdminView, passes: int = 3) -> list[Step]:
    """Passes of a cluster that says so; calls about weights are not the matter here."""
    done: list[Step] = []
    judge_pods(world, view)
    for _ in range(passes):
        steps = world.plan(admin=view).steps
        world.do(steps)
        done += steps
    return done


def judge_pods(world: World, view: AdminView) -> None:
    """A bookie's pod is Ready once it has registered; of a silent cluster pods stay as they are."""
    if not view.is_reachable:
        return
    for name in name_all(world):
        world.have_pod_serve(name, is_serving=name in (view.bookies or {}))


def scale(world: World, name: str, count: int) -> None:
    """By hand; the StatefulSet's controller makes disks at once."""
    world.find("StatefulSet", name)["spec"]["replicas"] = count
    world.run_controllers()


def sizes(world: World) -> dict[str, int]:
    names = [name for name in world.names("StatefulSet") if name.startswith("bookies")]
    return {name: world.find("StatefulSet", name)["spec"]["replicas"] for name in names}


def claims(world: World) -> list[str]:
    return [name for name in world.names("PersistentVolumeClaim") if "ledgers-bookies" in name]


def check_rest(world: World, view: AdminView) -> None:
    assert [s for s in world.plan(admin=view).steps if isinstance(s, Apply | Delete)] == []
