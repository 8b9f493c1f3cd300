"""What a cluster is for good, and that no edit by hand of what runs decides it.

Everything that people can write into a workload is written into each in turn, and goes back. Then
the record and the permit: when they are made, that neither is made of what runs otherwise than
wished, and that no member is ever allowed an empty database where ZooKeeper has had a disk.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from duramen_operator.names import make_labels
from duramen_operator.plan.cluster.zookeeper import FOUNDING_VARIABLE
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Delete, Event, Status, Step
from tests.kubernetes.plan.world import NOW, World, make_bookie_set, make_cluster
from tests.tiers import sized

RECORD = Ref("v1", "ConfigMap", "main-foundation")
PERMIT = Ref("v1", "ConfigMap", "main-founding")
ZOOKEEPER = Ref("apps/v1", "StatefulSet", "main-zookeeper")
EXTERNAL = {"external": {"servers": "a:2181,b:2181"}}
WORKLOADS = ("StatefulSet", "Deployment")

Edit = Callable[[World], None]


@functools.cache
def make_once(kind: str = "bundled") -> World:
    security: dict[str, Any] = {}
    if kind == "secured":
        security = {"security": "on", "acceptAnybody": False}
    zookeeper = EXTERNAL if kind == "external" else {}
    world = World(make_cluster(zookeeper=zookeeper, **security), make_bookie_set(replicas=3))
    world.converge()
    return world


def make_world(kind: str = "bundled") -> World:
    """A cluster at rest."""
    return copy.deepcopy(make_once(kind))


def read_arguments(world: World, ref: Ref) -> list[str]:
    """The arguments of a workload, to be edited in place."""
    container = world.objects[ref]["spec"]["template"]["spec"]["containers"][0]
    found: list[str] = container["args"]
    return found


def list_edits(world: World) -> dict[str, Edit]:
    """Everything that decides a number or an identity, of each workload in turn."""
    edits: dict[str, Edit] = {}
    for ref in sorted(ref for ref in world.objects if ref.kind in WORKLOADS):
        for count in (0, 1, 2, 9):
            edits[f"{ref.name} scaled to {count}"] = functools.partial(scale, ref=ref, count=count)
        for index, argument in enumerate(read_arguments(world, ref)):
            name = f"{ref.name} argument {index} {argument}"
            edits[name] = functools.partial(edit_argument, ref=ref, index=index)
        for number, flag in enumerate(read_arguments(world, ref)[::2]):
            edits[f"{ref.name} without {flag}"] = functools.partial(cut, ref=ref, index=2 * number)
    return edits


def scale(world: World, ref: Ref, count: int) -> None:
    world.objects[ref]["spec"]["replicas"] = count


def edit_argument(world: World, ref: Ref, index: int) -> None:
    read_arguments(world, ref)[index] = "edited"


def cut(world: World, ref: Ref, index: int) -> None:
    del read_arguments(world, ref)[index : index + 2]


def scale_all(world: World) -> None:
    """`kubectl scale sts --all --replicas=0`."""
    for ref in world.objects:
        if ref.kind == "StatefulSet":
            scale(world, ref, 0)


@pytest.mark.parametrize("kind", ["bundled", "external"])
def test_whatever_is_edited_goes_back_at_the_next_look_and_changes_nothing_else(kind: str) -> None:
    whole = make_world(kind).manifests()
    edits = {**list_edits(make_world(kind)), "all scaled to 0": scale_all}
    assert len(edits) > 100
    for name, edit in edits.items():
        world = make_world(kind)
        edit(world)
        edited = {ref for ref, item in world.manifests().items() if item != whole[ref]}
        steps = world.plan().steps
        applied = {step.about for step in steps if isinstance(step, Apply)}
        assert applied == edited, name
        world.do(steps)
        assert world.manifests() == whole, name


def test_a_cluster_whose_zookeeper_was_scaled_down_is_not_ready_until_it_is_back() -> None:
    world = make_world()
    scale(world, ZOOKEEPER, 1)
    world.find("StatefulSet", "main-zookeeper")["status"]["readyReplicas"] = 1
    world.settle()
    ready = world.condition("LogCluster", "main", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NotServing")
    assert "1 of 3 are ready" in ready["message"]
    world.converge()
    assert world.condition("LogCluster", "main", "Ready")["status"] == "True"


# --- Record and permit ----------------------------------------------------------------------------


def test_the_record_says_what_was_wished_first_and_nobody_can_edit_it() -> None:
    record = make_world().objects[RECORD]
    assert record["data"] == {"cluster": "main", "zookeeper": "bundled", "members": "3"}
    assert record["immutable"] is True
    record = make_world("external").objects[RECORD]
    assert record["data"] == {"cluster": "here.main", "zookeeper": "external"}


def test_a_new_ensemble_has_its_permit_before_anything_that_needs_it_is_made() -> None:
    world = World(make_cluster(), make_bookie_set(replicas=3))
    plan = world.plan()
    assert [s.about for s in plan.steps if isinstance(s, Apply)] == [PERMIT]
    assert plan.again_at == NOW, "nothing wakes the worker for a ConfigMap"
    world.do(plan.steps)
    plan = world.plan()
    assert {RECORD, ZOOKEEPER} <= {s.about for s in plan.steps if isinstance(s, Apply)}
    assert plan.again_at is None


def test_members_read_the_permit_at_each_start_and_start_without_it() -> None:
    container = make_world().objects[ZOOKEEPER]["spec"]["template"]["spec"]["containers"][0]
    (variable,) = [one for one in container["env"] if one["name"] == FOUNDING_VARIABLE]
    wanted = {"name": PERMIT.name, "key": "founding", "optional": True}
    assert variable["valueFrom"] == {"configMapKeyRef": wanted}


@pytest.mark.parametrize(("members", "majority"), [(1, 1), (3, 2), (5, 3)])
def test_the_permit_goes_with_a_majority_that_serves(members: int, majority: int) -> None:
    world = World(make_cluster(zookeeper={"members": members}), make_bookie_set(replicas=3))
    world.settle()
    assert world.objects[PERMIT]["data"] == {"founding": "true"}
    for ready in range(majority + 1):
        world.objects[ZOOKEEPER]["status"] = {"readyReplicas": ready}
        deleted = [s.about for s in world.plan().steps if isinstance(s, Delete)]
        assert deleted == ([PERMIT] if ready == majority else [])
    world.converge()
    assert PERMIT not in world.objects


def test_an_external_ensemble_has_no_permit() -> None:
    world = World(make_cluster(zookeeper=EXTERNAL), make_bookie_set(replicas=3))
    for _ in range(4):
        assert PERMIT not in {step.about for step in world.plan().steps}
        world.do(world.plan().steps)
        world.run_controllers()


@pytest.mark.parametrize("seed", range(sized(fast=10, gate=20, night=400)))
def test_where_zookeeper_has_had_a_disk_nobody_is_allowed_an_empty_database(seed: int) -> None:
    """Whatever is lost of everything else, and however often, and after an uninstall too."""
    rng = random.Random(seed)
    world = make_world()
    claims = [ref for ref in world.objects if "data-main-zookeeper" in ref.name]
    del world.objects[rng.choice(claims)]
    for _ in range(4):
        others = [ref for ref in world.objects if ref.kind not in {"PersistentVolumeClaim"}]
        for ref in rng.sample(sorted(others), rng.randrange(1, len(others))):
            if ref.kind in {"LogCluster", "BookieSet"}:
                continue
            del world.objects[ref]
        if rng.random() < 0.3:
            world.add({**make_cluster(), "metadata": {"name": "main"}})
            for ref in [r for r in world.objects if r.kind in {*WORKLOADS, "ConfigMap", "Service"}]:
                del world.objects[ref]
        for _ in range(4):
            steps = world.plan().steps
            assert PERMIT not in {step.about for step in steps}
            world.do(steps)
        if rng.random() < 0.5:
            world.run_controllers()


def test_a_stranger_with_the_permits_name_keeps_it_and_the_cluster_waits() -> None:
    world = World(make_cluster(), make_bookie_set(replicas=3))
    world.add({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PERMIT.name}, "data": {},
    })  # fmt: skip
    world.settle()
    assert world.names("StatefulSet") == []
    assert world.plan().again_at is None
    progressing = world.condition("LogCluster", "main", "Progressing")
    assert progressing["reason"] == "NameTaken"
    assert f"ConfigMap {PERMIT.name}" in progressing["message"]


def test_a_record_that_is_none_holds_everything_up() -> None:
    for data in ({}, {"cluster": "main", "zookeeper": "bundled"}, {"cluster": "main"},
                 {"cluster": "main", "zookeeper": "external", "members": "3"},
                 {"cluster": "main", "zookeeper": "bundled", "members": "many"}):  # fmt: skip
        world = make_world()
        world.objects[RECORD]["data"] = data
        world.change("LogCluster", "main", image="localhost/duramen:next")
        check_held(world, "delete it")


# --- Without a record: an upgrade, a restored backup ----------------------------------------------


@pytest.mark.parametrize("kind", ["bundled", "external", "secured"])
def test_the_record_is_made_of_what_runs_where_it_agrees(kind: str) -> None:
    world = make_world(kind)
    record = world.objects.pop(RECORD)
    steps = world.plan().steps
    assert [step.about for step in steps if not isinstance(step, Status | Event)] == [RECORD]
    world.do(steps)
    assert world.objects[RECORD]["data"] == record["data"]


def scale_as_before(world: World, count: int) -> None:
    """As the operator of 0.1 took a scaled ensemble over: its members' list followed."""
    scale(world, ZOOKEEPER, count)
    arguments = read_arguments(world, ZOOKEEPER)
    index = arguments.index("--members") + 1
    hosts = [f"main-zookeeper-{number}.main-zookeeper.here.svc" for number in range(count)]
    arguments[index] = ",".join(hosts)


def set_flag(world: World, flag: str, value: str) -> None:
    """As the operator of 0.1 carried an edited argument to every service."""
    for ref in world.objects:
        if ref.kind in WORKLOADS and flag in read_arguments(world, ref):
            arguments = read_arguments(world, ref)
            arguments[arguments.index(flag) + 1] = value


def keep_claims(world: World, *numbers: int) -> None:
    """Only the claims of ZooKeeper, and only these: as after an uninstall."""
    for ref in list(world.objects):
        if ref.kind not in {"LogCluster", "BookieSet"}:
            is_kept = ref.name in {f"data-main-zookeeper-{number}" for number in numbers}
            if not is_kept:
                del world.objects[ref]


def keep_claims_of_five(world: World) -> None:
    keep_claims(world, 0, 1, 2)
    for number in (3, 4):
        metadata = {
            "name": f"data-main-zookeeper-{number}", "labels": make_labels("main", "zookeeper"),
        }  # fmt: skip
        world.add({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})


OTHERWISE: dict[str, tuple[str, Edit, str]] = {
    "one member": ("bundled", lambda w: scale_as_before(w, 1), "main-zookeeper has 1 replicas"),
    "no member": ("bundled", lambda w: scale_as_before(w, 0), "main-zookeeper has 0 replicas"),
    "scaled": ("bundled", lambda w: scale(w, ZOOKEEPER, 5), "5 replicas that know of 3 members"),
    "name": ("bundled", lambda w: set_flag(w, "--cluster", "b"), "--cluster b, where"),
    "name outside": ("external", lambda w: set_flag(w, "--cluster", "b"), "--cluster b, where"),
    "outside": ("bundled", lambda w: set_flag(w, "--zookeeper", "c:1"), "--zookeeper c:1, where"),
    "bundled": (
        "external",
        lambda w: set_flag(w, "--zookeeper", "main-zookeeper-client.here.svc:2181"),
        "says external",
    ),
    "claims of five": ("bundled", keep_claims_of_five, "members 0, 1, 2, 3, 4 have"),
    "claims of one": ("bundled", lambda w: keep_claims(w, 0), "members 0 have claims"),
}


def check_held(world: World, told: str) -> None:
    """Nothing is done, and the LogCluster says why."""
    before = copy.deepcopy(world.manifests())
    steps: tuple[Step, ...] = world.plan().steps
    assert steps
    assert {type(step) for step in steps} <= {Status, Event}
    world.settle()
    assert world.manifests() == before
    for condition in ("Ready", "Progressing"):
        found = world.condition("LogCluster", "main", condition)
        assert (found["status"], found["reason"]) == ("False", "FoundationUnclear")
        assert told in found["message"]


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_runs_otherwise_than_wished_is_told_and_left_as_it_is(case: str) -> None:
    kind, edit, told = OTHERWISE[case]
    world = make_world(kind)
    del world.objects[RECORD]
    edit(world)
    check_held(world, told)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_scaled_ensemble_is_made_anew_when_people_say_so(count: int) -> None:
    """The way out that the message names."""
    world = make_world()
    whole = copy.deepcopy(world.manifests())
    del world.objects[RECORD]
    scale_as_before(world, count)
    world.settle()
    del world.objects[ZOOKEEPER]
    world.converge()
    assert world.manifests() == whole
    assert world.condition("LogCluster", "main", "Ready")["status"] == "True"


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 2), (1, 2)])
def test_claims_of_a_majority_bring_the_ensemble_back(numbers: tuple[int, ...]) -> None:
    world = make_world()
    whole = copy.deepcopy(world.manifests())
    keep_claims(world, *numbers)
    world.converge()
    assert world.manifests() == whole


def test_archive_runs_of_a_cluster_that_is_held_stay_as_they_are() -> None:
    world = World(
        make_cluster(zookeeper=EXTERNAL, coldStore={"url": "s3://bucket/x"}),
        make_bookie_set(replicas=3),
        make_policy(),
    )
    world.converge()
    before = copy.deepcopy(world.manifests())
    world.change("LogCluster", "main", zookeeper={"members": 3})
    before[next(r for r in before if r.kind == "LogCluster")] = world.manifests()[
        next(r for r in before if r.kind == "LogCluster")
    ]
    world.settle()
    assert world.manifests() == before
    assert world.condition("ArchivePolicy", "hourly", "Ready")["reason"] == "ClusterHeld"


def make_policy() -> dict[str, Any]:
    return {
        **make_cluster(), "kind": "ArchivePolicy", "status": {},
        "metadata": {"name": "hourly", "creationTimestamp": "2026-01-02T03:00:00Z"},
        "spec": {"clusterName": "main", "schedule": "@hourly"},
    }  # fmt: skip
