"""What a BookieSet and a LogCluster say of the copies that they hold, so that they are not deleted.

That they say so whenever an entry lies on a bookie `removal_world` watches in every test and walk.
Source: docs/kubernetes/deletion.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen_operator.names import ABANDON_ANNOTATION, API_VERSION, PAUSED_ANNOTATION
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Status
from tests.kubernetes.plan.removal_world import SECURED, SHARED, Removing
from tests.kubernetes.plan.world import World, make_bookie_set, make_cluster

FORMS = pytest.mark.parametrize("spec", [SHARED, {}, SECURED], ids=["shared", "lone", "secured"])
SET, CLUSTER = Ref(API_VERSION, "BookieSet", "bookies"), Ref(API_VERSION, "LogCluster", "main")


def says(own: Removing) -> tuple[bool, bool]:
    return own.says_held("BookieSet", "bookies"), own.says_held("LogCluster", "main")


def add_others(own: Removing) -> None:
    """Bookies of another set, which can hold all that lies on those of the first."""
    own.world.add(make_bookie_set("bookies-more", replicas=4))
    own.run()


def first_pods(own: Removing) -> list[str]:
    return [name for name in own.pods if not name.startswith("bookies-more")]


def empty(own: Removing) -> None:
    """Nobody of the set is wished any more."""
    own.world.change("BookieSet", "bookies", replicas=0)


EXTERNAL: dict[str, Any] = {"zookeeper": {"external": {"servers": "a:2181,b:2181"}}}


@pytest.mark.parametrize("spec", [{}, SECURED, EXTERNAL], ids=["lone", "secured", "external"])
def test_it_is_said_before_the_first_bookie_is_made(spec: dict[str, Any]) -> None:
    """Of an external ZooKeeper nothing else has to be awaited."""
    world = World(make_cluster(**spec), make_bookie_set(replicas=3))
    for _ in range(6):
        steps = world.plan().steps
        if any(isinstance(s, Apply) and s.about.name.startswith("bookies") for s in steps):
            break
        world.do(steps)
        world.run_controllers()
    else:
        raise AssertionError("no bookie is made")
    for about in (SET, CLUSTER):
        assert world.find(about.kind, about.name)["status"]["holdsCopies"] is True


@FORMS
def test_it_is_taken_back_once_all_were_let_go(spec: dict[str, Any]) -> None:
    own = Removing(4, **spec)
    add_others(own)
    assert says(own) == (True, True)
    empty(own)
    for _ in range(100):
        own.look()
        own.tick()
        if not first_pods(own):
            break
        assert says(own) == (True, True)
    own.run()
    assert says(own) == (False, True), "the other set holds them now"
    assert own.world.names("PersistentVolumeClaim"), "its disks are there, and empty"
    own.world.change("BookieSet", "bookies", replicas=3)
    own.look()
    assert says(own) == (True, True)
    assert not first_pods(own), "it says so first"


@FORMS
def test_the_last_bookies_of_a_cluster_are_not_emptied(spec: dict[str, Any]) -> None:
    """Nobody could take what lies on them: that it is left is the only way then."""
    own = Removing(4, **spec)
    empty(own)
    for _ in range(60):  # their drains are asked for again and again, and refused
        own.look()
        own.tick()
    assert len(own.pods) >= own.least
    assert says(own) == (True, True)


@FORMS
def test_bookies_whose_set_has_gone_are_the_clusters(spec: dict[str, Any]) -> None:
    """As after a deletion that left them behind (`--cascade=orphan`)."""
    own = Removing(3, **spec)
    own.world.objects.pop(SET)
    own.look()
    assert own.says_held("LogCluster", "main")


def test_a_set_that_never_had_a_bookie_holds_nothing() -> None:
    world = World(make_cluster(), make_bookie_set(replicas=0))
    world.converge()
    assert world.find("BookieSet", "bookies")["status"]["holdsCopies"] is False
    assert world.find("LogCluster", "main")["status"]["holdsCopies"] is False


@FORMS
def test_while_nobody_answers_it_stays(spec: dict[str, Any]) -> None:
    """Even where hands took all that can be seen but the disks."""
    own = Removing(3, **spec)
    own.run()
    own.is_reachable = False
    empty(own)
    for ref in list(own.world.objects):
        if ref.kind in {"Bookie", "Pod"}:
            own.world.objects.pop(ref)
        elif ref.kind == "StatefulSet" and ref.name.startswith("bookies"):
            own.world.objects[ref]["spec"]["replicas"] = 0
    for _ in range(3):
        made = [s for s in own.steps() if isinstance(s, Apply) and s.manifest["kind"] == "Bookie"]
        assert not made, "nothing says that there is one"
        own.look()
        assert says(own) == (True, True)
    own.is_reachable = True
    own.look()
    assert says(own) == (True, True), "registered, and not drained"


def test_paused_and_held_it_stays() -> None:
    own = Removing(3)
    cluster = own.world.find("LogCluster", "main")
    cluster["metadata"].setdefault("annotations", {})[PAUSED_ANNOTATION] = "true"
    for ref in [r for r in own.world.objects if r.kind in {"Bookie", "Pod", "StatefulSet"}]:
        own.world.objects.pop(ref)
    empty(own)
    own.look()
    assert says(own) == (True, True)
    del cluster["metadata"]["annotations"][PAUSED_ANNOTATION]
    own.world.change("LogCluster", "main", security="on")
    own.look()
    assert says(own) == (True, True)


def test_a_set_that_cannot_be_read_keeps_its_word() -> None:
    own = Removing(3)
    own.world.change("BookieSet", "bookies", replicas=-1)
    for ref in [r for r in own.world.objects if r.kind in {"Bookie", "Pod", "StatefulSet"}]:
        own.world.objects.pop(ref)
    own.look()
    assert own.world.condition("BookieSet", "bookies", "Ready")["reason"] == "InvalidSpec"
    assert says(own) == (True, True)


def test_a_cluster_holds_what_one_of_its_sets_does() -> None:
    own = Removing(4)
    own.world.add(make_bookie_set("others", replicas=0))
    own.look()
    said = {
        name: own.world.find("BookieSet", name)["status"]["holdsCopies"]
        for name in own.world.names("BookieSet")
    }
    assert said == {"bookies": True, "others": False}
    assert own.world.find("LogCluster", "main")["status"]["holdsCopies"] is True


def test_that_it_may_go_all_the_same_is_told() -> None:
    """So that whoever said it of the wrong one sees it; a word about another object is none."""
    own = Removing(3)
    own.run()
    for ref in (SET, CLUSTER):
        metadata = own.world.objects[ref]["metadata"]
        metadata.setdefault("annotations", {})[ABANDON_ANNOTATION] = metadata["uid"]
    own.run()
    for ref in (SET, CLUSTER):
        said = own.world.condition(ref.kind, ref.name, "Progressing")["message"]
        assert "it may be deleted with its copies" in said
        own.world.objects[ref]["metadata"]["annotations"][ABANDON_ANNOTATION] = "another-uid"
    own.run()
    for ref in (SET, CLUSTER):
        said = own.world.condition(ref.kind, ref.name, "Progressing")["message"]
        assert "may be deleted" not in said


def test_what_is_said_is_said_once() -> None:
    own = Removing(3)
    own.run()
    assert not [s for s in own.steps() if isinstance(s, Status)]
