"""Objects that have our names and labels and another owner: none is taken over, read or removed.

They come from a namesake that was deleted without its objects, or from somebody who copied ours.
Every kind of object that the operator makes is made a stranger's in turn; then each thing that such
an object could wrongly decide has a test of its own.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from typing import Any, cast

import pytest

from duramen_operator.apply.executor import AdminCalls, Doing, do_plan
from duramen_operator.kube import Kube
from duramen_operator.names import CLUSTER_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from duramen_operator.plan.observed import Json, Ref
from duramen_operator.plan.steps import Apply, Delete, Event, Plan
from duramen_operator.typed.client import TypedClient
from tests.kubernetes.plan.world import PASSES_MAX, World, make_bookie_set, make_cluster

SCALING = {"writeProxies": {"autoscaling": {"minReplicas": 3, "maxReplicas": 6}}}
STRANGER = {"apiVersion": "v1", "kind": "Other", "name": "main", "uid": "uid-of-another"}
OWNERS = {"another's": [STRANGER], "nobody's": []}
SET = Ref("apps/v1", "StatefulSet", "bookies-0")
SEQUENCERS = Ref("apps/v1", "StatefulSet", "main-sequencer")
ZOOKEEPER = Ref("apps/v1", "StatefulSet", "main-zookeeper")
AUTOSCALER = Ref("autoscaling/v2", "HorizontalPodAutoscaler", "main-writeproxy")


def make_world(**spec: Any) -> World:
    return World(make_cluster(**{**SCALING, **spec}), make_bookie_set(replicas=3))


def list_sets(world: World) -> list[str]:
    """The StatefulSets of our bookies."""
    uid = world.find("BookieSet", "bookies")["metadata"]["uid"]
    sets = [world.find("StatefulSet", name) for name in world.names("StatefulSet")]
    return [one["metadata"]["name"] for one in sets if uid in str(one["metadata"])]


@functools.cache
def find_whole() -> World:
    """A cluster that has everything; not to be changed."""
    world = make_world()
    world.converge()
    return world


def list_made() -> list[Ref]:
    """Everything that the operator makes of a cluster with one set of bookies."""
    people = ("LogCluster", "BookieSet", "Pod", "PersistentVolumeClaim")
    return sorted(ref for ref in find_whole().objects if ref.kind not in people)


def make_strange(ref: Ref, owner: str = "another's", **spec: Any) -> dict[str, Any]:
    """An object as the operator makes it, but for its owner, its uid and some of its fields."""
    theirs = copy.deepcopy(find_whole().objects[ref])
    metadata = theirs["metadata"]
    theirs["metadata"] = {
        "name": ref.name, "labels": metadata["labels"], "uid": "uid-of-theirs",
        "ownerReferences": OWNERS[owner],
    }  # fmt: skip
    theirs["spec"] = {**theirs.get("spec", {}), **spec}
    return theirs


def settle_beside(world: World, ref: Ref) -> None:
    """Passes to the end, none of which may have a step about the stranger."""
    before = copy.deepcopy(world.objects[ref])
    for _ in range(PASSES_MAX):
        steps = world.plan().steps
        assert not [s for s in steps if s.about == ref and not isinstance(s, Event)], ref
        if not steps:
            break
        world.do(steps)
    assert world.plan().steps == ()
    assert world.objects[ref] == before


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("ref", list_made(), ids=lambda ref: f"{ref.kind}-{ref.name}")
def test_no_step_is_about_what_a_stranger_owns(ref: Ref, owner: str) -> None:
    world = make_world()
    world.add(make_strange(ref, owner, clusterName="another"))
    settle_beside(world, ref)


def test_a_stranger_with_the_name_of_a_new_bookie_keeps_it_and_others_are_made() -> None:
    world = make_world()
    world.add(make_strange(SET, replicas=9))
    settle_beside(world, SET)
    assert list_sets(world) == ["bookies-1", "bookies-2", "bookies-3"]
    assert world.names("Bookie") == ["bookies-1-0", "bookies-2-0", "bookies-3-0"]


def test_a_stranger_with_the_name_of_a_bookie_that_is_there_keeps_it_and_that_is_told() -> None:
    world = make_world()
    world.converge()
    del world.objects[SET]
    world.add(make_strange(SET, replicas=9))
    settle_beside(world, SET)
    ready = world.condition("BookieSet", "bookies", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "CannotBeMade")
    assert "the StatefulSet bookies-0 belongs to somebody else" in ready["message"]
    assert list_sets(world) == ["bookies-1", "bookies-2"]
    assert world.find("LogCluster", "main")["status"]["bookies"]["wanted"] == 3


@pytest.mark.parametrize(
    "ref",
    [r for r in list_made() if r.kind != "Bookie" and not r.name.startswith("bookies-")],
    ids=lambda r: r.kind + r.name,
)
def test_a_name_that_a_stranger_has_is_told_of_the_cluster(ref: Ref) -> None:
    world = make_world()
    world.add(make_strange(ref))
    world.settle()
    progressing = world.condition("LogCluster", "main", "Progressing")
    assert progressing["reason"] == "NameTaken"
    assert f"{ref.kind} {ref.name}" in progressing["message"]


def test_an_autoscaler_of_a_stranger_stays_where_none_is_wished() -> None:
    world = World(make_cluster(), make_bookie_set())
    world.add(make_strange(AUTOSCALER))
    settle_beside(world, AUTOSCALER)


def test_an_autoscaler_that_is_leaving_is_not_deleted_again() -> None:
    world = copy.deepcopy(find_whole())
    world.find(AUTOSCALER.kind, AUTOSCALER.name)["metadata"]["deletionTimestamp"] = "2026-01-01"
    world.change("LogCluster", "main", writeProxies={"replicas": 4})
    assert not any(isinstance(step, Delete) for step in world.plan().steps)


def test_bookies_of_a_stranger_make_a_set_no_larger() -> None:
    world = make_world()
    bookie = Ref("duramen.io/v1alpha1", "Bookie", "bookies-0-0")
    theirs = make_strange(bookie)
    theirs["metadata"]["name"] = "bookies-7-0"
    world.add(theirs)
    world.converge()
    assert len(list_sets(world)) == 3


def test_a_place_where_only_a_stranger_is_gets_no_bookies() -> None:
    """Its labels say that it is of our set; its owner says that it is not."""
    world = make_world()
    theirs = make_strange(SET, replicas=2)
    theirs["metadata"]["name"] = "bookies-r9-z9"
    theirs["metadata"]["labels"] |= {"duramen.io/region": "r9", "duramen.io/zone": "z9"}
    ref = world.add(theirs)
    settle_beside(world, ref)
    assert world.find("BookieSet", "bookies")["status"]["statefulSets"] == list_sets(world)
    assert list_sets(world) == ["bookies-0", "bookies-1", "bookies-2"]
    assert world.condition("BookieSet", "bookies", "Progressing")["reason"] != "NotYetSupported"


def test_an_object_is_changed_only_while_it_is_the_one_that_was_seen() -> None:
    """Made anew by somebody else in between, it has another uid, and the API server refuses."""
    world = copy.deepcopy(find_whole())
    for ref in (SET, SEQUENCERS, ZOOKEEPER):
        world.objects[ref]["spec"]["replicas"] = 99
        world.objects[ref]["spec"]["template"]["metadata"]["labels"] = {}
    applies = {step.about: step for step in world.plan().steps if isinstance(step, Apply)}
    for ref in (SET, SEQUENCERS, ZOOKEEPER):
        assert applies[ref].uid == world.objects[ref]["metadata"]["uid"]


# --- What a stranger would decide -----------------------------------------------------------------


def test_services_are_not_started_with_the_arguments_of_a_stranger() -> None:
    world = make_world()
    theirs = make_strange(SEQUENCERS)
    arguments = theirs["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments[arguments.index("--cluster") + 1] = "another"
    world.add(theirs)
    world.settle()
    assert "another" not in read_arguments(world, "bookies-0")


def test_an_ensemble_of_a_stranger_does_not_replace_the_external_one() -> None:
    world = make_world(zookeeper={"external": {"servers": "a:2181,b:2181"}})
    world.add(make_strange(ZOOKEEPER))
    world.settle()
    assert "a:2181,b:2181" in read_arguments(world, "bookies-0")


def read_arguments(world: World, name: str) -> list[str]:
    template = world.find("StatefulSet", name)["spec"]["template"]
    return list(template["spec"]["containers"][0]["args"])


# --- Where the plan could not see it --------------------------------------------------------------


class Namespace:
    """A namespace as `do_plan` asks it: what is there, and what was applied."""

    namespace = "here"

    def __init__(self, *there: Json) -> None:
        self.there = {one["metadata"]["name"]: one for one in there}
        self.applied: list[str] = []

    async def get(self, ref: Ref) -> Json | None:
        return self.there.get(ref.name)

    async def apply(self, manifest: Json, *, is_status: bool = False) -> Json:
        self.applied.append(manifest["metadata"]["name"])
        return manifest


@pytest.mark.parametrize(
    ("labels", "is_taken"),
    [
        ({}, True),
        ({MANAGED_BY_LABEL: "helm", CLUSTER_LABEL: "main"}, True),
        ({MANAGED_BY_LABEL: MANAGED_BY, CLUSTER_LABEL: "other"}, True),
        ({MANAGED_BY_LABEL: MANAGED_BY, CLUSTER_LABEL: "main"}, False),
    ],
)
def test_what_somebody_made_by_hand_under_a_name_of_ours_is_refused(
    labels: dict[str, str], is_taken: bool
) -> None:
    """Without our labels it is in no listing: the plan believes that the name is free."""
    world = make_world()
    world.do(world.plan().steps)
    manifests = [step for step in world.plan().steps if isinstance(step, Apply)]
    (apply,) = [step for step in manifests if step.about == SEQUENCERS]
    by_hand = {"metadata": {"name": SEQUENCERS.name, "labels": labels}}
    kube = Namespace(by_hand)
    plan = Plan((apply,))
    typed, admin = cast("TypedClient", None), cast("AdminCalls", None)
    doing = Doing(cast("Kube", kube), typed, admin)
    outcome = asyncio.run(do_plan(plan, world.observe(), doing))
    assert kube.applied == ([] if is_taken else [SEQUENCERS.name])
    assert [p.code for p in outcome.refusals.values()] == (["NameTaken"] if is_taken else [])
    assert outcome.stale_count == 0
