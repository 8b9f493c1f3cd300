"""Bookies in the plan: spread evenly, told their place, never restarted or moved.

No cluster answers here, so their number only grows, their disks stay, and what is wished beyond
that is told (`test_removal` has those that go). Worlds that are wished at random show that no step
ever takes anything with data away.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from duramen_operator.names import API_VERSION, CONSENT_ANNOTATION, ZONE_LABEL
from duramen_operator.plan.cluster.spread import add_evenly
from duramen_operator.plan.observed import AdminView, Ref
from duramen_operator.plan.steps import Apply, Call, Delete
from tests.kubernetes.plan.world import (
    World,
    leave_disks,
    make_bookie_set,
    make_cluster,
    make_domains,
)
from tests.tiers import sized


def make_world(replicas: int = 3, zones: int = 3, *, is_shared: bool = False, **spec: Any) -> World:
    cluster = make_cluster(domains=make_domains(1, zones) if zones else [])
    own = make_bookie_set(replicas=replicas, **spec)
    world = World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
    world.converge()
    return world


def grow(world: World, replicas: int) -> None:
    """More are wished while the cluster answers: which numbers are free is not known else."""
    world.change("BookieSet", "bookies", replicas=replicas)
    world.do(world.plan(admin=AdminView(True, "", {})).steps)
    world.converge()


def read_sizes(world: World) -> dict[str, int]:
    names = [name for name in world.names("StatefulSet") if name.startswith("bookies")]
    return {name: world.find("StatefulSet", name)["spec"]["replicas"] for name in names}


def read_arguments(world: World, name: str) -> list[str]:
    spec = world.find("StatefulSet", name)["spec"]["template"]["spec"]
    return list(spec["containers"][0]["args"])


def read_progress(world: World) -> tuple[str, str]:
    found = world.condition("BookieSet", "bookies", "Progressing")
    return str(found["reason"]), str(found["message"])


@pytest.mark.parametrize("seed", range(sized(fast=8, gate=15, night=300)))
def test_bookies_are_added_evenly_and_none_is_taken(seed: int) -> None:
    rng = random.Random(seed)
    there = [rng.randrange(5) for _ in range(rng.randrange(1, 9))]
    wanted = rng.randrange(40)
    counts = add_evenly(there, wanted)
    assert all(after >= before for before, after in zip(there, counts, strict=True))
    assert sum(counts) == max(sum(there), wanted)
    grown = [after for before, after in zip(there, counts, strict=True) if after > before]
    assert max(grown, default=0) - min(grown, default=0) <= 1
    assert not grown or max(grown) <= min(counts) + 1


def test_growing_by_steps_ends_where_growing_at_once_does() -> None:
    counts = [0] * 4
    for wanted in range(30):
        counts = add_evenly(counts, wanted)
        assert counts == add_evenly([0] * 4, wanted)


def test_each_zone_has_a_set_that_is_pinned_there_and_told_so() -> None:
    world = make_world(replicas=7)
    names = [f"bookies-r0-r0-k{z}-{i}" for z, count in enumerate([3, 2, 2]) for i in range(count)]
    assert read_sizes(world) == dict.fromkeys(names, 1)
    arguments = read_arguments(world, "bookies-r0-r0-k1-1")
    assert arguments[arguments.index("--region") + 1] == "r0"
    assert arguments[arguments.index("--rack") + 1] == "r0-k1"
    affinity = world.find("StatefulSet", "bookies-r0-r0-k1-1")["spec"]["template"]["spec"][
        "affinity"
    ]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [(e["key"], e["values"]) for e in term["matchExpressions"]] == [
        ("topology.kubernetes.io/region", ["r0"]),
        ("topology.kubernetes.io/zone", ["r0-k1"]),
    ]


def test_no_bookie_starts_without_a_place() -> None:
    for zones in (0, 1, 3):
        world = make_world(zones=zones)
        for name in read_sizes(world):
            arguments = read_arguments(world, name)
            assert arguments[arguments.index("--rack") + 1] not in {"", "default"}
            assert ("--region" in arguments) == bool(zones)
    arguments = read_arguments(make_world(zones=0, is_shared=True), "bookies")
    assert arguments[arguments.index("--rack") + 1] == "$(POD_NAME)"


def test_a_second_pod_by_a_hand_is_the_same_bookie_and_so_none() -> None:
    """Of two pods with one name the one with other disks is refused by the cluster."""
    arguments = read_arguments(make_world(zones=0), "bookies-1")
    assert [arguments[arguments.index(flag) + 1] for flag in ("--id", "--rack", "--advertise")] == [
        "bookies-1-0", "bookies-1-0", "bookies-1-0.main-bookie.here.svc:7101",
    ]  # fmt: skip


def test_journal_and_entries_have_claims_of_their_own_that_stay() -> None:
    spec = make_world().find("StatefulSet", "bookies-r0-r0-k0-0")["spec"]
    assert [c["metadata"]["name"] for c in spec["volumeClaimTemplates"]] == ["journal", "ledgers"]
    policy = spec["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("consent", ["", "uid-of-another", "own", "own, policy taken back"])
def test_claims_go_with_their_set_by_a_word_about_this_very_set_alone(consent: str) -> None:
    world = make_world(claims="Delete")
    item = world.find("BookieSet", "bookies")
    uid = item["metadata"]["uid"]
    said = uid if consent.startswith("own") else consent
    item["metadata"]["annotations"] = {CONSENT_ANNOTATION: said}
    if consent.endswith("back"):
        world.change("BookieSet", "bookies", claims="Retain")
    world.converge()
    found = world.find("StatefulSet", "bookies-r0-r0-k0-0")["spec"]
    fate = found["persistentVolumeClaimRetentionPolicy"]["whenDeleted"]
    assert fate == ("Delete" if consent == "own" else "Retain")
    assert ("its claims go" in read_progress(world)[1]) == (consent == "own")
    assert found["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"


def test_that_claims_go_is_told_once_their_statefulset_owns_them() -> None:
    """Whoever deleted the set before Kubernetes knew the policy kept the claims."""
    world = make_world(claims="Delete")
    item = world.find("BookieSet", "bookies")
    item["metadata"]["annotations"] = {CONSENT_ANNOTATION: item["metadata"]["uid"]}
    world.settle()
    found = world.find("StatefulSet", "bookies-r0-r0-k0-0")["spec"]
    assert found["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert "its claims go" not in read_progress(world)[1]
    world.run_controllers()
    world.settle()
    assert "its claims go" in read_progress(world)[1]


@pytest.mark.parametrize("wanted", [0, 1, 4])
def test_fewer_bookies_are_told_and_nothing_is_done_while_nobody_answers(wanted: int) -> None:
    world = make_world(replicas=5)
    sizes = read_sizes(world)
    world.change("BookieSet", "bookies", replicas=wanted)
    world.converge()
    assert read_sizes(world) == sizes
    reason, message = read_progress(world)
    assert reason == "Blocked"
    assert "the cluster does not answer" in message
    assert world.condition("LogCluster", "main", "Progressing")["reason"] == "Blocked"
    grow(world, 6)
    assert sum(read_sizes(world).values()) == 6
    assert read_progress(world)[0] == "Settled"


def test_a_lost_statefulset_comes_back_as_large_as_it_was() -> None:
    world = make_world(replicas=6, is_shared=True)
    world.change("BookieSet", "bookies", replicas=3)
    world.converge()
    del world.objects[Ref("apps/v1", "StatefulSet", "bookies-r0-r0-k1")]
    world.converge()
    assert read_sizes(world)["bookies-r0-r0-k1"] == 2


@pytest.mark.parametrize("is_shared", [True, False])
def test_disks_that_are_there_bring_their_bookies_back(is_shared: bool) -> None:
    world = make_world(replicas=6, is_shared=is_shared)
    claims = [o for ref, o in world.objects.items() if ref.kind == "PersistentVolumeClaim"]
    again = World(make_cluster(domains=make_domains(1, 3)), make_bookie_set(replicas=3), *claims)
    again.converge()
    assert Counter(read_sizes(again).values()) == ({2: 3} if is_shared else {1: 6})
    assert read_progress(again)[0] == "Blocked"


def test_bookies_of_a_zone_that_is_not_named_any_more_stay() -> None:
    world = make_world(replicas=3)
    world.change("LogCluster", "main", domains=make_domains(1, 2))
    world.converge()
    assert sum(read_sizes(world).values()) == 3
    reason, message = read_progress(world)
    assert reason == "NotYetSupported"
    assert "r0/r0-k2" in message
    grow(world, 5)
    names = [f"bookies-r0-r0-k{z}-{i}" for z, count in enumerate([2, 2, 1]) for i in range(count)]
    assert read_sizes(world) == dict.fromkeys(names, 1)


def test_zones_that_are_named_later_get_only_new_bookies() -> None:
    world = make_world(replicas=3, zones=0, is_shared=True)
    world.change("LogCluster", "main", domains=make_domains(1, 3))
    world.converge()
    assert read_sizes(world) == {"bookies": 3}
    grow(world, 6)
    assert read_sizes(world) == {"bookies": 3} | {f"bookies-r0-r0-k{z}-0": 1 for z in range(3)}


def test_a_set_whose_bookies_share_a_statefulset_grows_by_some_that_do_not() -> None:
    world = make_world(replicas=3, zones=0, is_shared=True)
    before = world.find("StatefulSet", "bookies")["metadata"]["generation"]
    grow(world, 5)
    assert read_sizes(world) == {"bookies": 3, "bookies-3": 1, "bookies-4": 1}
    assert world.find("StatefulSet", "bookies")["metadata"]["generation"] == before


def test_sets_with_names_like_one_another_keep_their_own_disks_and_numbers() -> None:
    """A bookie of one set may have the name that a StatefulSet of the other one would have."""
    cluster, like = make_cluster(), make_bookie_set("bookies-1", replicas=2)
    disks = leave_disks(cluster, like)
    world = World(cluster, make_bookie_set(replicas=3), like, *disks)
    world.converge()
    assert read_sizes(world) == {"bookies-0": 1, "bookies-2": 1, "bookies-3": 1, "bookies-1": 2}
    (own,) = world.find("StatefulSet", "bookies-1")["metadata"]["ownerReferences"]
    assert own["uid"] == world.find("BookieSet", "bookies-1")["metadata"]["uid"]
    assert world.condition("BookieSet", "bookies", "Ready")["status"] == "True"


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("replicas", [2, 4, 6])
def test_domains_with_names_like_one_another_have_bookies_of_their_own(
    replicas: int, is_shared: bool
) -> None:
    """The first bookie of a/b-1 is named as the second one of a/b might be, or its StatefulSet."""
    cluster = make_cluster(domains=[{"region": "a", "zone": zone} for zone in ("b", "b-1")])
    own = make_bookie_set(replicas=replicas)
    world = World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
    world.converge()
    grow(world, replicas + 2)
    assert sum(read_sizes(world).values()) == replicas + 2
    zones = [
        world.find("Bookie", n)["metadata"]["labels"][ZONE_LABEL] for n in world.names("Bookie")
    ]
    assert Counter(zones) == dict.fromkeys(("b", "b-1"), replicas // 2 + 1)
    assert read_progress(world)[0] == "Settled"


def test_an_operator_that_dies_between_a_statefulset_and_its_bookie_makes_no_other_one() -> None:
    world = World(make_cluster(), make_bookie_set(replicas=3))
    for _ in range(4):
        steps = world.plan(admin=AdminView(True, "", {})).steps
        made = [s for s in steps if not (isinstance(s, Apply) and s.about.kind == "Bookie")]
        world.do([step for step in made if not isinstance(step, Call)])
    assert read_sizes(world) == {"bookies-0": 1, "bookies-1": 1, "bookies-2": 1}


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_bookie_whose_claim_and_object_a_hand_took_away_runs_on(is_shared: bool) -> None:
    world = make_world(zones=0, is_shared=is_shared)
    rows = {n: {"id": n, "incarnation": "1", "duty": "serving"} for n in world.names("Bookie")}
    sizes, last = read_sizes(world), world.names("Bookie")[-1]
    del world.find("PersistentVolumeClaim", f"ledgers-{last}")["metadata"]["labels"]
    del world.objects[Ref(API_VERSION, "Bookie", last)]
    for _ in range(3):
        world.do(world.plan(admin=AdminView(True, "", rows)).steps)
    assert read_sizes(world) == sizes
    assert last in world.names("Bookie")


@pytest.mark.parametrize("field", ["journal", "ledgers"])
def test_other_disks_are_refused(field: str) -> None:
    world = make_world()
    world.change("BookieSet", "bookies", **{field: {"size": "999Gi"}})
    world.converge()
    reason, message = read_progress(world)
    assert reason == "NotYetSupported"
    assert f"{field}.size stays" in message
    # Written in another way it is the same.
    sizes = {"journal": "20480Mi", "ledgers": "102400Mi"}
    world.change("BookieSet", "bookies", **{field: {"size": sizes[field]}})
    world.converge()
    assert read_progress(world)[0] == "Settled"


def test_a_changed_template_waits_for_its_turn() -> None:
    """Which none has while the auditor does not say who may be missed."""
    world = make_world()
    uids = {ref.name: o["metadata"]["uid"] for ref, o in world.objects.items() if ref.kind == "Pod"}
    world.change("LogCluster", "main", image="localhost/duramen:next")
    world.converge()
    now = {ref.name: o["metadata"]["uid"] for ref, o in world.objects.items() if ref.kind == "Pod"}
    assert now == uids
    reason, message = read_progress(world)
    assert reason == "Restarting"
    assert "bookies-r0-r0-k0-0-0" in message
    bookie = world.condition("Bookie", "bookies-r0-r0-k0-0-0", "Progressing")
    assert bookie["reason"] == "Restarting"
    for name in [name for name in uids if name.startswith("bookies")]:
        del world.objects[Ref("v1", "Pod", name)]
    world.converge()
    assert read_progress(world)[0] == "Settled"


def test_intents_of_a_bookie_are_refused_and_stay_written() -> None:
    world = make_world()
    world.change("Bookie", "bookies-r0-r0-k0-0-0", repairAction="ReplaceDisk")
    world.converge()
    found = world.condition("Bookie", "bookies-r0-r0-k0-0-0", "Progressing")
    assert (found["status"], found["reason"]) == ("False", "NotYetSupported")
    assert "repairAction" in found["message"]
    assert world.find("Bookie", "bookies-r0-r0-k0-0-0")["spec"]["repairAction"] == "ReplaceDisk"


def test_two_domains_with_one_name_are_refused_before_anything_is_made() -> None:
    same = [{"region": "a", "zone": "b-c"}, {"region": "a-b", "zone": "c"}]
    world = World(make_cluster(domains=same), make_bookie_set())
    world.settle()
    assert not [name for name in world.names("StatefulSet") if name.startswith("bookies")]
    assert world.condition("BookieSet", "bookies", "Ready")["reason"] == "CannotBeMade"


def test_two_sets_serve_one_cluster() -> None:
    sets = [make_bookie_set("one", replicas=3), make_bookie_set("two", replicas=3)]
    world = World(make_cluster(domains=make_domains(1, 3)), *sets)
    world.converge()
    assert len(world.names("Bookie")) == 6
    assert world.find("LogCluster", "main")["status"]["bookies"] == {"wanted": 6, "ready": 6}
    assert world.names("PodDisruptionBudget").count("main-bookie") == 1


def test_a_bookie_that_says_another_place_is_told() -> None:
    world = make_world()
    row = {"region": "r0", "rack": "r0-k2", "weight": 1.0, "duty": "serving"}
    world.do(world.plan(admin=AdminView(True, "", {"bookies-r0-r0-k0-0-0": row})).steps)
    placement = world.condition("LogCluster", "main", "PlacementSatisfied")
    assert (placement["status"], placement["reason"]) == ("False", "WrongPlace")


def test_a_bookie_without_a_node_is_told_until_it_has_one() -> None:
    """A scheduler writes what failed for a pod that is gone on the next one of its name, late."""
    world = make_world()
    pod = world.find("Pod", "bookies-r0-r0-k0-0-0")
    said = {"type": "PodScheduled", "status": "False", "message": "no claim is bound"}
    pod["status"]["conditions"] = [*pod["status"].get("conditions", ()), said]
    world.settle()
    assert world.condition("LogCluster", "main", "PlacementSatisfied")["status"] == "True"
    pod["spec"].pop("nodeName")
    world.settle()
    placement = world.condition("LogCluster", "main", "PlacementSatisfied")
    assert (placement["status"], placement["reason"]) == ("False", "Unschedulable")
    assert "no claim is bound" in placement["message"]


def test_two_bookies_on_one_node_are_told_where_there_are_no_zones() -> None:
    world = make_world(zones=0)
    for name in ("bookies-0-0", "bookies-1-0"):
        world.find("Pod", name)["spec"]["nodeName"] = "only"
    world.settle()
    placement = world.condition("BookieSet", "bookies", "PlacementSatisfied")
    assert (placement["status"], placement["reason"]) == ("False", "SharedNode")


@pytest.mark.parametrize(
    ("copies", "count", "expected"),
    [
        ([5, 5, 5, 5], 4, ("False", "CopiesHeld")),
        ([5, 5, 5, 0], 4, ("True", "Empty")),
        ([5, 5, 0], 3, ("False", "NotEnoughBookies")),
        (None, 4, ("Unknown", "NotCounted")),
    ],
)
def test_safe_to_scale_down_is_what_the_auditor_counted(
    copies: list[int] | None, count: int, expected: tuple[str, str]
) -> None:
    world = make_world(replicas=count, zones=0)
    rows = (
        None
        if copies is None
        else {f"bookies-{index}-0": {"copies": number} for index, number in enumerate(copies)}
    )
    world.do(world.plan(admin=AdminView(True, "", holdings=rows)).steps)
    found = world.condition("BookieSet", "bookies", "SafeToScaleDown")
    assert (found["status"], found["reason"]) == expected


def test_of_a_silent_cluster_the_reason_is_told() -> None:
    world = make_world(replicas=4, zones=0)
    world.do(world.plan(admin=AdminView(reason="http://w:1 takes longer than 60 s")).steps)
    found = world.condition("BookieSet", "bookies", "SafeToScaleDown")
    assert (found["status"], found["reason"]) == ("Unknown", "NotAnswered")
    assert found["message"].endswith("takes longer than 60 s")


@pytest.mark.parametrize("seed", range(sized(fast=5, gate=12, night=250)))
def test_whatever_is_wished_nothing_with_data_is_taken_away(seed: int) -> None:
    rng = random.Random(seed)
    is_shared = rng.random() < 0.5
    world = make_world(replicas=rng.randrange(1, 6), zones=rng.randrange(4), is_shared=is_shared)
    for _ in range(6):
        sizes = read_sizes(world)
        wish = rng.choice(["replicas", "domains", "journal", "image", "zookeeper", "lose"])
        if wish == "replicas":
            world.change("BookieSet", "bookies", replicas=rng.randrange(9))
        elif wish == "domains":
            world.change("LogCluster", "main", domains=make_domains(1, rng.randrange(4)))
        elif wish == "journal":
            world.change("BookieSet", "bookies", journal={"size": f"{rng.randrange(1, 9)}Gi"})
        elif wish == "image":
            world.change("LogCluster", "main", image=f"localhost/duramen:{rng.randrange(9)}")
        elif wish == "zookeeper":
            wanted = rng.choice([{"members": 5}, {"external": {"servers": "far:2181"}}])
            world.change("LogCluster", "main", zookeeper=wanted)
        else:
            name = rng.choice(list(sizes))
            world.objects.pop(Ref("apps/v1", "StatefulSet", name))
        for _ in range(3):
            steps = world.plan().steps
            assert not any(isinstance(step, Delete) for step in steps)
            for step in steps:
                if isinstance(step, Apply) and step.about.kind == "StatefulSet":
                    before = sizes.get(step.about.name, 0)
                    assert step.manifest["spec"]["replicas"] >= before
            world.do(steps)
        world.converge()
        after = read_sizes(world)
        assert all(after[name] >= size for name, size in sizes.items())
