"""Bookies that are none: disks beyond the wish, from which nobody ever registered.

They go again where the cluster answers and says so, and their claims stay. Whatever may hold data
stays a bookie: who is registered, who was, and everybody where none of a set is known.
Source: docs/kubernetes/one-hand.md 22; that registrations outlive their bookies: "Nodes" of
docs/protocol/metadata.md.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from duramen_operator.names import API_VERSION
from duramen_operator.plan.observed import AdminView, Ref
from duramen_operator.plan.steps import Delete
from tests.kubernetes.plan.surplus_world import (
    SECURED,
    check_rest,
    claims,
    do,
    make_rested,
    name_able,
    name_all,
    scale,
    see,
    sizes,
)
from tests.kubernetes.plan.world import (
    World,
    make_bookie_set,
    make_cluster,
    make_domains,
)
from tests.tiers import sized


def test_what_was_scaled_by_hand_goes_back_and_its_claims_stay() -> None:
    world = make_rested(is_shared=True)
    view = see(*name_all(world))
    do(world, view)
    scale(world, "bookies", 5)
    assert len(claims(world)) == 5
    done = do(world, view)
    assert sizes(world) == {"bookies": 3}
    assert world.names("Bookie") == ["bookies-0", "bookies-1", "bookies-2"]
    assert len(claims(world)) == 5
    assert [s for s in done if isinstance(s, Delete)] == []
    assert "EditedByHand" in [event.reason for event in world.events]
    progress = world.condition("BookieSet", "bookies", "Progressing")
    assert progress["reason"] == "Settled"
    check_rest(world, view)
    # That it is silent later makes no bookie of them either.
    check_rest(world, AdminView())
    world.settle()
    assert sizes(world) == {"bookies": 3}


def test_while_it_is_silent_they_count_and_their_objects_go_once_it_answers() -> None:
    world = make_rested(is_shared=True)
    view = see(*name_all(world))
    do(world, view)
    scale(world, "bookies", 5)
    world.settle()
    assert sizes(world) == {"bookies": 5}, "nobody knows what lies on them"
    assert len(world.names("Bookie")) == 5
    versions = {
        n: world.find("Bookie", n)["metadata"]["resourceVersion"] for n in world.names("Bookie")
    }
    deleted = [s for s in do(world, view) if isinstance(s, Delete)]
    assert [(s.about.name, s.resource_version) for s in deleted] == [
        (name, versions[name]) for name in ("bookies-3", "bookies-4")
    ]
    assert sizes(world) == {"bookies": 3}
    check_rest(world, view)


def test_those_that_share_a_statefulset_have_no_gaps() -> None:
    """The object of one in the middle was deleted by hand: the last one is not kept instead of it,
    since a StatefulSet of four has no fifth pod."""
    world = make_rested(is_shared=True)
    view = see(*name_all(world))
    do(world, view)
    scale(world, "bookies", 5)
    world.settle()
    del world.objects[Ref(API_VERSION, "Bookie", "bookies-3")]
    world.change("BookieSet", "bookies", replicas=4)
    do(world, view)
    assert sizes(world) == {"bookies": 4}
    assert world.names("Bookie") == [f"bookies-{index}" for index in range(4)]
    check_rest(world, view)


def test_who_registered_stays_and_so_does_everybody_below() -> None:
    world = make_rested(is_shared=True)
    scale(world, "bookies", 7)
    view = see("bookies-0", "bookies-1", "bookies-4")
    do(world, view)
    assert sizes(world) == {"bookies": 5}
    told = world.condition("BookieSet", "bookies", "Progressing")
    assert told["reason"] == "Blocked"
    check_rest(world, view)


def test_who_was_registered_once_stays_also_without_a_registration() -> None:
    """As after `accept-loss`, which takes the registration away until its empty disks start."""
    world = make_rested(replicas=5, is_shared=True)
    do(world, see(*name_all(world)))
    world.change("BookieSet", "bookies", replicas=3)
    do(world, see("bookies-0", "bookies-1", "bookies-2"))
    assert sizes(world) == {"bookies": 5}
    assert world.find("Bookie", "bookies-4")["status"]["incarnation"] == "bookies-4-1"


def test_a_wish_that_was_taken_back_before_anybody_registered_is_no_bookie() -> None:
    world = make_rested(zones=3)
    view = see(*name_all(world))
    do(world, view)
    world.change("BookieSet", "bookies", replicas=7)
    do(world, view)
    world.run_controllers()
    assert sum(sizes(world).values()) == 7
    world.change("BookieSet", "bookies", replicas=4)
    do(world, view)
    assert sum(sizes(world).values()) == 4
    check_rest(world, view)
    world.change("BookieSet", "bookies", replicas=7)
    do(world, view)
    assert sum(sizes(world).values()) == 7


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_zone_in_which_nobody_registered_has_none(is_declared: bool) -> None:
    world = make_rested(zones=3, is_shared=True)
    view = see("bookies-r0-r0-k0-0")
    world.change("BookieSet", "bookies", replicas=1)
    if not is_declared:
        world.change("LogCluster", "main", domains=make_domains(1, 1))
    do(world, view)
    assert sizes(world) == {"bookies-r0-r0-k0": 1, "bookies-r0-r0-k1": 0, "bookies-r0-r0-k2": 0}
    assert world.names("Bookie") == ["bookies-r0-r0-k0-0"]
    assert world.condition("BookieSet", "bookies", "Progressing")["reason"] != "NotYetSupported"
    check_rest(world, view)
    check_rest(world, AdminView())


def test_a_bookie_that_is_a_statefulset_by_itself_goes_too() -> None:
    world = make_rested(**SECURED)
    view = see(*name_all(world))
    do(world, view)
    world.change("BookieSet", "bookies", replicas=5)
    do(world, view)
    world.run_controllers()
    world.change("BookieSet", "bookies", replicas=3)
    do(world, view)
    assert sizes(world) == {f"bookies-{index}": int(index < 3) for index in range(5)}
    assert len(world.names("Bookie")) == 3
    assert len(claims(world)) == 5
    check_rest(world, view)
    check_rest(world, AdminView())
    world.settle()
    assert sum(sizes(world).values()) == 3
    world.change("BookieSet", "bookies", replicas=5)
    do(world, view)
    assert sum(sizes(world).values()) == 5


@pytest.mark.parametrize(
    "spec", [{"is_shared": True}, {}, SECURED], ids=["shared", "lone", "secured"]
)
@pytest.mark.parametrize("view", [AdminView(), see()], ids=["silent", "founded anew"])
def test_where_nothing_is_known_all_disks_bring_their_bookies_back(
    view: AdminView, spec: dict[str, Any]
) -> None:
    world = make_rested(replicas=5, **spec)
    disks = [o for ref, o in world.objects.items() if ref.kind == "PersistentVolumeClaim"]
    cluster = make_cluster(domains=[], **(SECURED if spec == SECURED else {}))
    cluster["metadata"]["annotations"] = read_uuid(world)
    again = World(cluster, make_bookie_set(replicas=3), *copy.deepcopy(disks))
    for _ in range(3):
        do(again, view)
        again.run_controllers()
    assert sum(sizes(again).values()) == 5
    assert len(again.names("Bookie")) == 5
    check_rest(again, view)


def test_a_reinstall_over_old_disks_brings_back_all_that_ever_registered() -> None:
    """ZooKeeper has its disks as well: before any bookie runs, all of them are registered."""
    world = make_rested(replicas=5, is_shared=True)
    view = see(*name_all(world))
    disks = [o for ref, o in world.objects.items() if ref.kind == "PersistentVolumeClaim"]
    again = World(make_cluster(domains=[]), make_bookie_set(replicas=3), *copy.deepcopy(disks))
    do(again, view)
    assert sizes(again) == {"bookies": 5}
    assert len(again.names("Bookie")) == 5


def test_a_reinstall_takes_no_number_of_a_lost_disk_while_nothing_is_known() -> None:
    world = make_rested(replicas=5, **SECURED)
    view = see(*name_all(world))
    disks = [
        item
        for ref, item in world.objects.items()
        if ref.kind == "PersistentVolumeClaim" and not ref.name.endswith("bookies-2-0")
    ]
    cluster = make_cluster(domains=[], **SECURED)
    cluster["metadata"]["annotations"] = read_uuid(world)
    again = World(cluster, make_bookie_set(replicas=5), *copy.deepcopy(disks))
    for _ in range(3):
        do(again, AdminView())
        again.run_controllers()
    assert sizes(again) == {f"bookies-{index}": 1 for index in (0, 1, 3, 4)}
    told = again.condition("BookieSet", "bookies", "Progressing")
    assert (told["status"], told["reason"]) == ("True", "ClusterUnreachable")
    assert told["message"].startswith("replicas says 5 and 4 are there: the others")
    do(again, view)
    assert sizes(again) == {f"bookies-{index}": 1 for index in (0, 1, 3, 4, 5)}


@pytest.mark.parametrize("seed", range(sized(fast=3, gate=6, night=200)))
def test_whatever_hands_and_answers_come_nobody_who_registered_is_left_out(seed: int) -> None:
    rng = random.Random(seed)
    spec = rng.choice([{"is_shared": True}, {}, SECURED])
    world = make_rested(replicas=rng.randrange(1, 5), zones=rng.choice([0, 2]), **spec)
    names = name_able(world)
    registered = set(rng.sample(names, rng.randrange(1, len(names) + 1)))
    for _ in range(8):
        act = rng.choice(["wish", "scale", "lose", "forget", "register", "forget objects"])
        if act == "wish":
            world.change("BookieSet", "bookies", replicas=rng.randrange(7))
        elif act == "scale":
            world.find("StatefulSet", rng.choice(list(sizes(world))))["spec"]["replicas"] = (
                rng.randrange(5)
            )
        elif act == "lose" and any(sizes(world).values()):
            # One without pods would be made anew in a silence: nothing says then that it was empty.
            name = rng.choice([name for name, count in sizes(world).items() if count])
            world.objects.pop(Ref("apps/v1", "StatefulSet", name))
        elif act == "forget objects" and world.names("Bookie"):
            world.objects.pop(Ref(API_VERSION, "Bookie", rng.choice(world.names("Bookie"))))
        elif act == "register":
            registered |= set(rng.sample(name_able(world), 1))
        if rng.random() < 0.7:
            world.run_controllers()
        before = claims(world)
        view = rng.choice([AdminView(), see(*sorted(registered))])
        for step in do(world, view):
            if isinstance(step, Delete):
                assert step.about.name not in registered
        assert claims(world) == before
        running = {
            f"{name}-{index}" for name, count in sizes(world).items() for index in range(count)
        }
        wanted = world.find("BookieSet", "bookies")["spec"]["replicas"]
        if view.is_reachable:  # what numbers are free is not known else
            assert len(running) >= wanted
        if view.is_reachable:
            assert registered <= running
            check_rest(world, view)
            world.run_controllers()
            check_rest(world, view)
            do(world, AdminView())
            assert sum(sizes(world).values()) == len(running), "a silence changes nothing"


def read_uuid(world: World) -> dict[str, str]:
    """What says which cluster the disks are of, where that matters."""
    data = world.objects[Ref("v1", "ConfigMap", "main-foundation")]["data"]
    return {"duramen.io/cluster-uuid": data["uuid"]} if "uuid" in data else {}


def test_what_is_known_of_a_bookie_outlives_the_answer() -> None:
    world = make_rested(is_shared=True)
    names = name_all(world)
    do(world, see(*names))
    before = world.find("Bookie", "bookies-1")["status"]
    assert (before["incarnation"], before["identity"]) == ("bookies-1-1", "serving")
    do(world, AdminView())
    after = world.find("Bookie", "bookies-1")["status"]
    assert (after["incarnation"], after["identity"]) == ("bookies-1-1", "serving")
    do(world, see("bookies-0", "bookies-2"))
    after = world.find("Bookie", "bookies-1")["status"]
    assert (after["incarnation"], after["identity"]) == ("bookies-1-1", ""), "it has no duty now"
    rows = dict(see(*names).bookies or {})
    rows["bookies-1"] = {**rows["bookies-1"], "incarnation": "new"}
    do(world, AdminView(True, "", rows, {}, {}))
    assert world.find("Bookie", "bookies-1")["status"]["incarnation"] == "new"
