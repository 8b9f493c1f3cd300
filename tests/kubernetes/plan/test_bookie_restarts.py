"""Bookies are restarted one at a time, each by a grant, and what cannot start goes no further.

Source: docs/kubernetes/restarts.md "Bookies".
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen_operator.names import PAUSED_ANNOTATION
from duramen_operator.plan.steps import Restart, Stop
from tests.kubernetes.plan.restarting_world import BAD, OTHERS, Restarting
from tests.kubernetes.plan.world import make_bookie_set, make_domains

NAMES = ("bookies-0-0", "bookies-1-0", "bookies-2-0")
SECURED: dict[str, Any] = {"security": "on", "acceptAnybody": False}


def change_image(own: Restarting, image: str) -> None:
    """Of everything; members of ZooKeeper and sequencers have it already."""
    own.world.change("LogCluster", "main", image=image)
    for _ in range(2):
        own.look()
        own.tick()
    servers = [name for name in own.world.names("Pod") if "sequencer" in name]
    for name in servers:
        revision = own.world.find("StatefulSet", "main-sequencer")["status"]["updateRevision"]
        own.world.find("Pod", name)["metadata"]["labels"]["controller-revision-hash"] = revision
    for _ in range(6):
        if not own.stops():
            own.look()
            own.tick()
    assert own.outdated == set(own.pods) and not own.stopped


@pytest.mark.parametrize("spec", [{}, SECURED, {"domains": make_domains(3, 1)}])
def test_each_is_restarted_once_and_by_its_grant(spec: dict[str, Any]) -> None:
    own = Restarting(**spec)
    before = own.pods
    change_image(own, "two")
    own.run()
    assert not own.outdated and not own.grants
    assert sorted(own.stopped) == [(name, True) for name in before]
    assert own.told()[0] == "Settled" and own.told("BookieSet", "bookies")[0] == "Settled"
    assert own.look() == 0, "and nothing is written"


def test_the_highest_number_is_first() -> None:
    own = Restarting()
    change_image(own, "two")
    own.run()
    assert [name for name, _ in own.stopped] == list(NAMES[::-1])


def test_the_next_one_waits_until_the_one_before_is_caught_up() -> None:
    own = Restarting()
    change_image(own, "two")
    own.look()
    assert own.stopped == [(NAMES[2], True)]
    for _ in range(5):
        own.tick()
        own.look()
    assert own.stopped == [(NAMES[2], True)] and not own.grants, "it serves, and lacks copies"
    assert own.look() == 0, "nobody who waits writes"
    assert own.told()[0] == "Restarting" and own.told("Bookie", NAMES[0])[0] == "Restarting"
    own.catch_up()
    for _ in range(4):
        own.look()
        own.tick()
    assert own.stopped == [(NAMES[2], True), (NAMES[1], True)]


@pytest.mark.parametrize(
    "hinder",
    ["granted", "silent", "paused", "one is away", "one lacks copies", "another set is not valid",
     "a set leaves", "its set is gone", "members of ZooKeeper do not serve"],
)  # fmt: skip
def test_nobody_that_serves_is_stopped_while(hinder: str) -> None:
    own = Restarting()
    change_image(own, "two")
    assert own.stops() == [(NAMES[2], True)]
    world = own.world
    match hinder:
        case "granted":
            own.grants = [dict(OTHERS)]
        case "silent":
            own.is_reachable = False
        case "paused":
            paused = {PAUSED_ANNOTATION: "true"}
            world.find("LogCluster", "main")["metadata"]["annotations"] = paused
        case "one is away":
            own.hung.add(NAMES[0])
            own.tick()
        case "one lacks copies":
            own.lacking.add(NAMES[0])
        case "another set is not valid":
            world.add(make_bookie_set("more", replicas=-1))
        case "a set leaves":
            gone = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["x/y"]}
            world.find("BookieSet", world.add(make_bookie_set("more")).name)["metadata"] |= gone
        case "its set is gone":
            own.world.objects.pop(
                next(
                    ref
                    for ref in world.objects
                    if (ref.kind, ref.name) == ("StatefulSet", "bookies-1")
                )
            )
        case _:
            world.have_pod_serve("main-zookeeper-1", is_serving=False)
    assert own.stops() == []


def test_a_grant_of_its_own_keeps_servers_from_being_drained_beside_it() -> None:
    own = Restarting()
    change_image(own, "two")
    own.look()
    own.look()
    for name in ("main-sequencer", "main-zookeeper"):
        assert own.world.find("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 0
    own.tick()
    own.catch_up()
    own.look()
    own.look()
    for name in ("main-sequencer", "main-zookeeper"):
        assert own.world.find("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


def test_a_grant_is_kept_until_the_bookie_is_registered_again() -> None:
    own = Restarting()
    change_image(own, "two")
    own.look()
    own.tick()
    own.rows[NAMES[2]]["state"] = "absent"
    for _ in range(3):
        own.look()
    assert own.grants
    own.tick()
    own.look()
    assert not own.grants


def test_a_grant_to_remove_is_not_taken_for_one_to_restart() -> None:
    own = Restarting()
    holder = f"operator here/main {own.world.find('LogCluster', 'main')['metadata']['uid']}"
    own.grants = [{**OTHERS, "target": f"bookie/{NAMES[0]}", "holder": holder, "kind": "remove"}]
    (end,) = [step for step in own.steps() if "disruptions" in getattr(step, "path", "")]
    assert end.about.kind == "Bookie", "its removal ends it: nothing of that is left to be done"


def test_one_that_was_not_let_go_keeps_its_gate_and_is_asked_about_anew() -> None:
    """The operator died right behind the grant: what it said of the pod before stays said."""
    own = Restarting()
    change_image(own, "two")
    (stop,) = [step for step in own.steps() if isinstance(step, Restart)]
    assert stop.question is not None
    own.grants = [{**stop.question, "granted_unix_ms": 1}]
    own.look()
    assert own.is_ready(NAMES[2]), "the mark takes nothing back"
    own.run()
    assert sorted(own.stopped) == [(name, True) for name in NAMES] and not own.outdated
    assert all(map(own.is_ready, NAMES))


def test_an_image_that_does_not_start_stops_with_the_first_one() -> None:
    own = Restarting()
    change_image(own, BAD)
    for _ in range(20):
        own.look()
        own.tick()
        own.catch_up()
    assert own.stopped == [(NAMES[2], True)] and own.outdated == {*NAMES[:2]}
    own.crash(NAMES[0])
    assert own.stops() == [], "one that crashes is not given what does not start"
    own.grants = []  # it is over
    for _ in range(5):
        own.look()
        own.tick()
        own.catch_up()
    assert own.stopped == [(NAMES[2], True)]
    assert own.told()[1].endswith(f"until these serve, or are deleted: {NAMES[0]}, {NAMES[2]}")


@pytest.mark.parametrize("is_granted", [True, False])
def test_a_better_image_replaces_one_that_does_not_start(*, is_granted: bool) -> None:
    """At once, while the grant is outstanding by which it came as well."""
    own = Restarting()
    change_image(own, BAD)
    for _ in range(4):
        own.look()
        own.tick()
        own.catch_up()
    assert own.grants and own.stopped == [(NAMES[2], True)]
    own.grants = own.grants if is_granted else []
    own.world.change("LogCluster", "main", image="three")
    own.run()
    assert own.stopped[1] == (NAMES[2], False) and not own.outdated and not own.grants
    assert sorted(own.stopped[2:]) == [(name, True) for name in NAMES[:2]]


def test_one_that_runs_and_does_not_serve_is_the_first() -> None:
    own = Restarting()
    own.hung.add(NAMES[0])
    own.tick()
    own.world.change("LogCluster", "main", image="two")
    own.run()
    assert own.stopped[0] == (NAMES[0], True) and not own.outdated


def test_a_first_image_that_does_not_start_is_replaced() -> None:
    own = Restarting(image=BAD)
    assert not own.rows and own.pods == list(NAMES)
    assert own.budget()["unhealthyPodEvictionPolicy"] == "IfHealthyBudget", "nothing is outdated"
    own.world.change("LogCluster", "main", image="two")
    own.run()
    assert sorted(own.stopped) == [(name, False) for name in NAMES] and not own.outdated
    assert own.budget()["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_a_bookie_that_is_stopped_for_good_comes_first() -> None:
    own = Restarting(replicas=5)
    change_image(own, "two")
    own.world.change("BookieSet", "bookies", replicas=4)
    item = own.world.find("Bookie", "bookies-4-0")
    item["status"]["removal"] = "Stopping"
    own.rows["bookies-4-0"]["duty"] = "drained"
    own.grants = [dict(OTHERS)]
    own.look()  # its StatefulSet names it
    own.grants = []
    own.look()  # the budget is open again
    own.tick()
    assert own.refusals and own.stops() == [("bookies-3-0", True)], "what was denied keeps nobody"
    own.refusals = {}
    assert any(isinstance(step, Stop) for step in own.steps()) and own.stops() == []
