"""Whose a name, a disk and a number are, where hands, other clusters and silences blur it.

Bookies that share a StatefulSet and those that have one each, of sets and domains with names like
one another's. A bookie counts once, no number is chosen for ever, and nobody drains for a label.
Source: docs/kubernetes/removal.md 4 and 5, docs/adr/0047-each-bookie-is-a-statefulset.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from duramen_operator.names import REGION_LABEL, ZONE_LABEL
from duramen_operator.plan.observed import NAME_TAKEN, AdminView, Problem, Ref
from duramen_operator.plan.steps import Apply, Call, Delete, Step
from tests.kubernetes.plan.removal_world import SECURED, SHARED, Removing
from tests.kubernetes.plan.surplus_world import (
    check_rest,
    do,
    make_rested,
    name_all,
    scale,
    see,
    sizes,
)
from tests.kubernetes.plan.world import (
    World,
    leave_disks,
    make_bookie_set,
    make_cluster,
    make_domains,
)

LIKE_NAMES = [("b", "b-1"), ("b-1", "b")]
"""Zones of a region `a`: a bookie of the one may be called as one of the other might be."""


def have_away(world: World, name: str) -> None:
    """Its pod runs nowhere."""
    pod = world.find("Pod", name)
    pod["status"]["containerStatuses"] = []
    pod["status"]["conditions"] = [
        {"type": kind, "status": "False"} for kind in ("ContainersReady", "Ready")
    ]


def strip(world: World, kind: str, name: str) -> None:
    """A hand takes the labels of its place off."""
    for label in (REGION_LABEL, ZONE_LABEL):
        world.find(kind, name)["metadata"]["labels"].pop(label)


def make_like(order: tuple[str, str], *, is_shared: bool) -> tuple[World, AdminView]:
    """Six bookies of two domains with names like one another's, all serving and full."""
    cluster = make_cluster(domains=[{"region": "a", "zone": zone} for zone in order])
    own = make_bookie_set(replicas=6)
    world = World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
    world.converge()
    rows = {
        name: {"id": name, "incarnation": "1", "duty": "serving", "state": "rw", "free_bytes": 1}
        for name in world.names("Bookie")
    }
    held = {name: {"bookie": name, "copies": 2, "bytes": 1 << 30} for name in rows}
    view = AdminView(True, "", rows, {}, {}, holdings=held, disruptions=())
    do(world, view)
    return world, view


def play(world: World, view: AdminView, passes: int = 5) -> list[Step]:
    """Passes of which the API server may refuse steps; gives all of them."""
    told: list[Step] = []
    for _ in range(passes):
        steps = world.plan(admin=view).steps
        applied = [(step.about.kind, step.about.name) for step in steps if isinstance(step, Apply)]
        assert len(applied) == len(set(applied)), "two manifests of one name"
        world.do(steps)
        told += steps
    return told


def test_a_disk_behind_one_that_goes_by_its_name_lets_nobody_grow_for_ever() -> None:
    world = make_rested(is_shared=True)
    view = see(*name_all(world))
    do(world, view)
    scale(world, "bookies", 4)  # by a hand: its pod never registers, and its claim stays
    do(world, view)
    world.objects.pop(Ref("v1", "Pod", "bookies-3"), None)
    world.change("Bookie", "bookies-2", decommission=True)
    for _ in range(12):
        world.do(world.plan(admin=view).steps)
        world.run_controllers()
        for name in name_all(world):  # new pods take minutes to be scheduled
            world.have_pod_serve(name, is_serving=name in (view.bookies or {}))
    assert sizes(world) == {"bookies": 3, "bookies-4": 1}
    check_rest(world, view)


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "leaving"])
def test_a_disk_behind_one_that_goes_makes_one_new_bookie_and_no_more(*, is_refused: bool) -> None:
    """Beside a new one whose object is refused, or one whose object does not leave."""
    world = make_rested(is_shared=True)
    view = see(*name_all(world))
    do(world, view)
    scale(world, "bookies", 4)
    do(world, view if is_refused else AdminView(reason="silent"), 2)
    if is_refused:
        world.objects.pop(Ref("v1", "Pod", "bookies-3"), None)
    else:
        leaving = world.find("Bookie", "bookies-3")["metadata"]
        leaving |= {"deletionTimestamp": "2026-01-02T03:00:00Z", "finalizers": ["x/y"]}
        world.have_pod_serve("bookies-3", is_serving=False)
    world.change("Bookie", "bookies-2", decommission=True)
    there = set(world.names("Bookie"))
    for _ in range(10):
        steps = world.plan(admin=view).steps
        if is_refused:
            steps = tuple(s for s in steps if s.about.kind != "Bookie" or s.about.name in there)
        world.do(steps)
        world.run_controllers()
        for name in name_all(world):
            world.have_pod_serve(name, is_serving=name in (view.bookies or {}))
    assert len(sizes(world)) == 2


def test_the_next_one_goes_where_the_loss_of_the_last_one_was_accepted() -> None:
    own = Removing(4, 0, **SHARED)
    del own.rows["bookies-3"], own.copies["bookies-3"]
    own.world.change("Bookie", "bookies-3", decommission=True)
    for _ in range(40):
        if "bookies-3" in own.pods:
            have_away(own.world, "bookies-3")
        own.look()
        own.tick()
        own.rows.pop("bookies-3", None)
    assert own.pods == ["bookies-0", "bookies-1", "bookies-2", "bookies-4-0"]
    own.world.change("Bookie", "bookies-2", decommission=True)
    for _ in range(10):
        own.look()
        own.world.run_controllers()
        for name in own.pods:
            own.world.have_pod_serve(name, is_serving=name in own.rows)
    assert len(own.sizes) == 3, "one is made for it, and no more"


@pytest.mark.parametrize("spec", [{}, SECURED], ids=["none", "secured"])
def test_the_last_bookie_of_a_domain_that_is_not_named_goes_with_its_claims(
    spec: Mapping[str, Any],
) -> None:
    own = Removing(4, 2, **spec)
    own.world.change("BookieSet", "bookies", claims="Delete")
    own.run()
    own.world.change("LogCluster", "main", domains=make_domains(1, 1))
    for name in own.world.names("Bookie"):
        if "k1" in name:
            own.world.change("Bookie", name, decommission=True)
    for _ in range(60):
        own.look()
        own.tick()
        collect_claims(own.world)
    assert own.world.names("Bookie") == own.pods and len(own.pods) == 4


def collect_claims(world: World) -> None:
    """Kubernetes: those go that belong to a StatefulSet which is gone."""
    uids = {item["metadata"]["uid"] for item in world.objects.values()}
    for ref, item in list(world.objects.items()):
        owners = {one["uid"] for one in item["metadata"].get("ownerReferences") or ()}
        if ref.kind == "PersistentVolumeClaim" and owners and not owners & uids:
            del world.objects[ref]


def test_a_silence_gives_nobody_a_disk_that_was_let_go() -> None:
    own = Removing(4, 0)
    own.world.change("BookieSet", "bookies", replicas=3)
    own.run()
    assert own.pods == ["bookies-0-0", "bookies-1-0", "bookies-2-0"]
    own.is_reachable = False
    own.world.change("BookieSet", "bookies", replicas=4)
    for _ in range(2):
        own.look()
        own.tick()
    assert own.world.condition("BookieSet", "bookies", "Progressing")["reason"] == (
        "ClusterUnreachable"
    )
    own.is_reachable = True
    own.run(30)
    assert own.pods == ["bookies-0-0", "bookies-1-0", "bookies-2-0", "bookies-4-0"]


def test_a_silence_brings_no_shared_statefulset_back_that_was_emptied_and_deleted() -> None:
    own = Removing(3, 0, **SHARED)
    for name in own.world.names("Bookie"):
        own.world.change("Bookie", name, decommission=True)
    own.run(80)
    moved = ["bookies-3-0", "bookies-4-0", "bookies-5-0"]
    assert own.pods == moved
    del own.world.objects[Ref("apps/v1", "StatefulSet", "bookies")]
    own.look()
    own.is_reachable = False
    own.look()
    own.tick()
    own.look()
    assert own.pods == moved


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "lone"])
def test_a_silence_gives_no_disk_to_a_set_of_which_all_was_let_go(*, is_shared: bool) -> None:
    other = make_bookie_set("other", replicas=3)
    own, cluster = make_bookie_set(replicas=3), make_cluster()
    world = World(cluster, own, other, *(leave_disks(cluster, own) if is_shared else []))
    world.converge()
    names = world.names("Bookie")
    mine = [name for name in names if name.startswith("bookies")]
    do(world, see(*names))
    world.change("BookieSet", "bookies", replicas=0)
    for ref in list(world.objects):
        is_mine = ref.name == "bookies" or ref.name.startswith("bookies-")
        if is_mine and ref.kind in {"Bookie", "Pod", "StatefulSet"}:
            del world.objects[ref]
    view = see(*names)
    assert view.bookies is not None
    rows = {
        name: {**row, "duty": "drained"} if name in mine else row
        for name, row in view.bookies.items()
    }
    do(world, AdminView(True, "", rows, {}, {}))
    world.change("BookieSet", "bookies", replicas=3)
    for _ in range(4):
        world.do(world.plan().steps)
        world.run_controllers()
    assert not [name for name in world.names("Bookie") if name in mine]


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "lone"])
def test_disks_that_come_one_after_the_other_in_a_silence_all_have_their_bookies(
    *, is_shared: bool
) -> None:
    """As a restore brings them, to a set whose cluster has not answered yet."""
    cluster, own = make_cluster(domains=make_domains(1, 2)), make_bookie_set(replicas=6)
    before = World(cluster, own, *(leave_disks(cluster, own) if is_shared else []))
    before.converge()
    disks = [
        item
        for ref, item in before.objects.items()
        if ref.kind == "PersistentVolumeClaim" and "bookies" in ref.name
    ]
    first = [item for item in disks if "k0" in item["metadata"]["name"]]
    world = World(make_cluster(domains=make_domains(1, 2)), make_bookie_set(replicas=6), *first)
    for _ in range(3):
        world.do(world.plan().steps)
        world.run_controllers()
    for item in disks:
        if item not in first:
            world.add(item)
    world.converge()
    assert sum(sizes(world).values()) == 6


def test_what_was_noted_before_a_silence_is_made_again_though_fewer_are_wished_in_it() -> None:
    world = make_rested()
    do(world, see(*name_all(world)))
    for version, kind, name in (
        ("apps/v1", "StatefulSet", "bookies-1"),
        ("duramen.io/v1alpha1", "Bookie", "bookies-1-0"), ("v1", "Pod", "bookies-1-0"),
    ):  # fmt: skip
        del world.objects[Ref(version, kind, name)]
    world.change("BookieSet", "bookies", replicas=2)
    world.converge()
    assert sizes(world) == {"bookies-0": 1, "bookies-1": 1, "bookies-2": 1}


def test_what_was_noted_before_a_silence_is_made_whole_in_it() -> None:
    world = make_rested()
    do(world, see(*name_all(world)))
    world.find("StatefulSet", "bookies-1")["spec"]["replicas"] = 0
    for version, kind in (("duramen.io/v1alpha1", "Bookie"), ("v1", "Pod")):
        del world.objects[Ref(version, kind, "bookies-1-0")]
    world.converge()
    assert sizes(world) == {"bookies-0": 1, "bookies-1": 1, "bookies-2": 1}


@pytest.mark.parametrize("order", LIKE_NAMES)
@pytest.mark.parametrize("kind", ["Bookie", "StatefulSet", "PersistentVolumeClaim"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "lone"])
def test_labels_that_a_hand_takes_off_drain_nobody(
    kind: str, order: tuple[str, str], *, is_shared: bool
) -> None:
    world, view = make_like(order, is_shared=is_shared)
    bookies = world.names("Bookie")
    for name in [name for name in world.names(kind) if "bookies-" in name]:
        strip(world, kind, name)
        told = play(world, view)
        assert not [step for step in told if isinstance(step, Call | Delete)], name
        assert world.names("Bookie") == bookies
        check_rest(world, view)


@pytest.mark.parametrize("order", LIKE_NAMES)
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "lone"])
def test_a_bookie_without_any_label_of_its_place_counts_once(
    order: tuple[str, str], *, is_shared: bool
) -> None:
    """Its StatefulSet says where it is by its selector, which nobody can change."""
    world, view = make_like(order, is_shared=is_shared)
    name, before = "bookies-a-b-1-0", sizes(world)
    assert name in world.names("Bookie")
    for kind, one in (
        ("Bookie", name), ("Pod", name),
        ("PersistentVolumeClaim", f"ledgers-{name}"), ("PersistentVolumeClaim", f"journal-{name}"),
    ):  # fmt: skip
        strip(world, kind, one)
    told = play(world, AdminView(reason="silent"), 1)
    noted = world.find("BookieSet", "bookies")["status"]["statefulSets"]
    assert {*before} <= {*noted}, "a silence takes nothing out of it"
    told += play(world, view)
    assert not [step for step in told if isinstance(step, Call | Delete)]
    assert sizes(world) == before


def test_disks_of_another_cluster_take_their_numbers() -> None:
    other = make_cluster("other")
    disks = leave_disks(other, make_bookie_set("bookies-1", cluster="other", replicas=2))
    world = World(make_cluster(), make_bookie_set(replicas=3), *disks)
    world.converge()
    assert sizes(world) == {"bookies-0": 1, "bookies-2": 1, "bookies-3": 1}


def test_a_statefulset_of_another_cluster_takes_its_number() -> None:
    theirs = World(make_cluster(), make_bookie_set(replicas=2))
    theirs.converge()
    foreign = theirs.find("StatefulSet", "bookies-1")
    foreign["metadata"]["labels"]["duramen.io/cluster"] = "other"
    world = World(make_cluster(), make_bookie_set(replicas=3), foreign)
    world.converge()
    assert [name for name in sizes(world) if name != "bookies-1"] == [
        "bookies-0", "bookies-2", "bookies-3",
    ]  # fmt: skip


def test_a_name_that_was_refused_is_not_tried_for_ever() -> None:
    world = make_rested(replicas=1)
    world.change("BookieSet", "bookies", replicas=3)
    refused = {Ref("apps/v1", "StatefulSet", "bookies-1"): Problem(NAME_TAKEN, "there is one")}
    world.do(world.plan(admin=see("bookies-0-0"), refusals=refused).steps)
    assert set(sizes(world)) == {"bookies-0", "bookies-2", "bookies-3"}


def test_a_name_that_somebody_takes_in_between_makes_no_bookie() -> None:
    """Its StatefulSet is refused; the object of its bookie, which was in the same plan, goes."""
    world, view = make_rested(replicas=1), see("bookies-0-0")
    world.change("BookieSet", "bookies", replicas=3)
    taken = Ref("apps/v1", "StatefulSet", "bookies-1")
    steps = world.plan(admin=view).steps
    assert taken in {step.about for step in steps if isinstance(step, Apply)}
    foreign = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": taken.name}}
    world.add({**foreign, "spec": {"replicas": 0, "template": {"metadata": {}, "spec": {}}}})
    world.do(step for step in steps if step.about != taken)
    refused = {taken: Problem(NAME_TAKEN, "there is one")}
    for _ in range(4):
        world.do(world.plan(admin=view, refusals=refused).steps)
        refused = {}
    assert world.names("Bookie") == ["bookies-0-0", "bookies-2-0", "bookies-3-0"]


def test_two_sets_with_like_names_are_made_though_the_operator_dies_between_them() -> None:
    sets = (make_bookie_set(replicas=3), make_bookie_set("bookies-1", replicas=2))
    world, view = World(make_cluster(), *sets), AdminView(True, "", {})
    last = Ref("apps/v1", "StatefulSet", "bookies-1-0")
    for _ in range(6):
        steps = world.plan(admin=view).steps
        made = [step.about for step in steps if isinstance(step, Apply)]
        if last in made:
            places = [isinstance(step, Apply) and step.about == last for step in steps]
            world.do(steps[: places.index(True) + 1])
            break
        world.do(steps)
    assert last in world.objects
    for _ in range(3):
        world.do(world.plan(admin=view).steps)
        world.run_controllers()
    own = [name for name in world.names("StatefulSet") if name.startswith("bookies-1-")]
    assert own == ["bookies-1-0", "bookies-1-1"]


def test_who_is_registered_and_made_by_nobody_is_told() -> None:
    """As where somebody brought the disks of a shared StatefulSet back without their labels."""
    world = make_rested()
    view = see(*name_all(world), "bookies-0", "bookies-1")
    do(world, view)
    told = world.condition("BookieSet", "bookies", "Progressing")
    assert "a name like it, and not here: bookies-0, bookies-1:" in told["message"]
    do(world, see(*name_all(world)))
    assert "registered" not in world.condition("BookieSet", "bookies", "Progressing")["message"]


def test_where_two_domains_make_one_name_nobody_is_said_to_share_a_statefulset() -> None:
    world = World(make_cluster(domains=[{"region": "a", "zone": "b-c"}]), make_bookie_set())
    world.converge()
    both = [{"region": "a", "zone": "b-c"}, {"region": "a-b", "zone": "c"}]
    world.change("LogCluster", "main", domains=both)
    name = world.names("Bookie")[0]
    world.change("Bookie", name, decommission=True)
    world.settle()
    told = world.condition("Bookie", name, "Progressing")
    assert told["message"].startswith("two domains make one name")


def test_what_was_refused_of_another_sets_statefulset_is_not_told_of_this_one() -> None:
    sets = (make_bookie_set(replicas=3), make_bookie_set("bookies-1", replicas=2))
    world = World(make_cluster(), *sets)
    world.converge()
    theirs = Ref("apps/v1", "StatefulSet", "bookies-1-0")
    assert theirs in world.objects and "bookies-1-0" in world.names("Bookie")
    world.do(world.plan(refusals={theirs: Problem("quota", "no room")}).steps)
    assert world.condition("BookieSet", "bookies", "Progressing")["reason"] != "ApplyRefused"
    assert world.condition("BookieSet", "bookies-1", "Progressing")["reason"] == "ApplyRefused"
