"""The plan for LogGrants: given once, taken with its object, and never what others gave.

Each test is a world and what becomes of it; that the operator may die anywhere is
`test_grant_deaths`'. Source: docs/protocol/rights.md "Grants as objects of Kubernetes".
"""

from __future__ import annotations

import copy

import pytest

from duramen_operator.names import FINALIZER, PAUSED_ANNOTATION
from duramen_operator.plan.log_grants import CALL_OVER_AFTER
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import Call, Event, Patch, Status
from tests.kubernetes.plan.grants_world import ANN, GrantsWorld, Triple

BOB: Triple = ("user:corp/bob", "owner", "shop/ord*")


def describe(world: GrantsWorld) -> list[str]:
    return [type(step).__name__ for step in world.plan().steps]


def test_it_is_held_then_claimed_then_given_then_known() -> None:
    world = GrantsWorld()
    world.add("ann")
    assert describe(world) == ["Patch", "Status"]
    world.do_pass()
    assert (world.said("ann"), world.owns("ann")) == ("Unknown/Giving", None)
    world.do_pass()
    assert (world.calls, world.owns("ann")) == ([], True)
    world.do_pass()
    assert world.grants.names() == {ANN}
    world.do_pass()
    assert world.said("ann") == "True/AsWanted"
    assert world.objects["ann"]["status"]["by"] == "service:operator/kubernetes"
    assert (describe(world), len(world.calls)) == ([], 1)


def test_it_goes_with_its_object() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.do_pass()
    assert world.grants.names() == set()
    assert list(world.list_leaving()) == ["ann"], "it is seen to be gone before it is let go"
    world.settle()
    assert world.objects == {}
    assert world.reasons() == ["Taken"]


def test_what_was_there_before_stays() -> None:
    world = GrantsWorld()
    world.grants.give(*ANN)
    world.add("ann")
    world.settle()
    assert (world.said("ann"), world.owns("ann")) == ("True/GivenByOthers", False)
    assert "finalizers" not in world.objects["ann"]["metadata"]
    world.delete("ann")
    assert world.objects == {}
    assert (world.grants.names(), world.calls) == ({ANN}, [])


def test_what_was_taken_by_hand_is_given_again_and_told() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.grants.take(*ANN)
    world.do_pass()
    assert world.owns("ann") is True
    assert "by" not in world.objects["ann"]["status"], "the former mark would hide the new grant"
    world.settle()
    assert (world.grants.names(), world.said("ann")) == ({ANN}, "True/AsWanted")
    assert world.reasons() == ["GrantCorrected"]


def test_what_was_taken_and_given_anew_by_hand_is_no_longer_the_objects() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.grants.take(*ANN)
    world.grants.give(*ANN)
    world.settle()
    assert world.said("ann") == "True/GivenByOthers"
    world.delete("ann")
    world.settle()
    assert (world.grants.names(), world.objects) == ({ANN}, {})


def test_a_new_hand_is_seen_also_while_the_object_leaves() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.grants.take(*ANN)
    world.grants.give(*ANN)
    world.settle()
    assert (world.grants.names(), world.objects) == ({ANN}, {})
    assert world.reasons() == ["Retained"]


def test_two_objects_share_a_grant_and_the_last_one_takes_it() -> None:
    world = GrantsWorld()
    world.add("one")
    world.add("two")
    world.settle()
    assert len(world.calls) == 1
    assert (world.said("one"), world.said("two")) == ("True/AsWanted", "True/AsWanted")
    world.delete("one")
    world.settle()
    assert (world.grants.names(), list(world.objects)) == ({ANN}, ["two"])
    world.delete("two")
    world.settle()
    assert (world.grants.names(), world.objects) == (set(), {})


def test_a_later_object_inherits_before_the_first_is_let_go() -> None:
    world = GrantsWorld()
    world.add("one")
    world.settle()
    world.delete("one")
    world.add("two")
    world.do_pass()
    assert list(world.objects) == ["one", "two"]
    assert world.owns("two") is True
    world.settle()
    assert (list(world.objects), world.grants.names()) == (["two"], {ANN})
    assert len(world.calls) == 1, "the right was never away"
    world.delete("two")
    world.settle()
    assert world.grants.names() == set()


def test_both_objects_of_a_grant_may_leave_at_once() -> None:
    world = GrantsWorld()
    world.add("one")
    world.add("two")
    world.settle()
    world.add("bob", BOB)
    world.do_pass()
    world.do_pass()
    world.delete("one")
    world.delete("two")
    world.do_pass()
    assert world.grants.names() == {BOB}, "one call takes it, and the next one knows the version"
    world.settle()
    assert (world.grants.names(), list(world.objects)) == ({BOB}, ["bob"])
    assert len(world.calls) == 3


def test_many_are_given_in_one_pass_and_others_stay() -> None:
    world = GrantsWorld()
    others = ("group:corp/dev", "writer", "shop/orders")
    world.grants.give(*others)
    names: list[Triple] = [(f"user:corp/u{n}", "reader", f"shop{n % 2}") for n in range(9)]
    for number, triple in enumerate(names):
        world.add(f"g{number}", triple)
    world.add("bob", BOB)
    assert world.settle() == 4
    assert world.grants.names() == {others, BOB, *names}
    assert world.grants.version == 11


def test_one_that_is_refused_holds_up_no_other() -> None:
    world = GrantsWorld()
    for number in range(256):
        world.grants.give(f"user:corp/u{number}", "reader", "full")
    world.add("first", ("user:corp/ann", "reader", "full"))
    world.add("second", BOB)
    for _ in range(6):
        world.do_pass()
    assert world.said("second") == "True/AsWanted"
    assert world.said("first") == "False/ConfigurationRefused"
    (condition,) = world.objects["first"]["status"]["conditions"]
    assert "256 grants at most" in condition["message"]


def test_a_conflict_is_no_news_for_people() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.do_pass()
    world.do_pass()
    world.refuse("ann", "config_conflict")
    world.do_pass()
    assert world.said("ann") == "Unknown/Giving"
    world.settle()
    assert world.said("ann") == "True/AsWanted"


def test_one_that_has_asked_and_seen_nothing_waits_for_its_call() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.do_pass()
    world.do_pass()
    assert world.owns("ann") is True
    world.delete("ann")
    left_at = world.now
    world.do_pass()
    assert list(world.list_leaving()) == ["ann"]
    world.settle()
    assert world.objects == {}
    assert world.now >= left_at + CALL_OVER_AFTER


def test_where_grants_are_not_judged_nothing_happens() -> None:
    world = GrantsWorld()
    world.is_judged = False
    world.add("ann")
    world.settle()
    assert world.said("ann") == "False/NotJudged"
    assert "finalizers" not in world.objects["ann"]["metadata"]
    world.is_judged = True
    world.settle()
    assert world.said("ann") == "True/AsWanted"
    world.is_judged = False
    world.settle()
    assert (world.said("ann"), world.owns("ann")) == ("False/NotJudged", True)
    world.delete("ann")
    for _ in range(3):
        world.do_pass()
    assert world.said("ann") == "False/Deleting", "where grants are judged again it would count"
    world.is_judged = True
    world.settle()
    assert (world.objects, world.grants.names()) == ({}, set())


def test_a_silent_cluster_changes_nothing_and_no_deletion_is_forgotten() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.is_reachable = False
    world.settle()
    assert (world.said("ann"), world.owns("ann")) == ("Unknown/ClusterUnreachable", True)
    world.delete("ann")
    for _ in range(20):
        world.now += CALL_OVER_AFTER
        world.do_pass()
    assert list(world.list_leaving()) == ["ann"], "a right that nobody would take back"
    world.is_reachable = True
    world.settle()
    assert (world.objects, world.grants.names()) == ({}, set())


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_waits_for_a_cluster_that_goes(is_there: bool) -> None:
    world = GrantsWorld()
    world.add("ann")
    world.add("bob", BOB)
    world.settle()
    world.delete("ann")
    cluster = copy.deepcopy(world.cluster)
    assert cluster is not None
    cluster["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    world.cluster = cluster if is_there else None
    world.settle()
    assert list(world.objects) == ["bob"]
    assert world.said("bob") == f"False/{'ClusterLeaving' if is_there else 'ClusterMissing'}"
    assert world.reasons()[0] == "ClusterGone"


def test_a_paused_cluster_is_only_looked_at() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.add("bob", BOB)
    world.delete("ann")
    assert world.cluster is not None
    world.cluster["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    plan = make_plan(world.observe(), world.now)
    about = [step for step in plan.steps if step.about.kind == "LogGrant"]
    assert {type(step) for step in about} == {Status}
    for step in about:
        world.do(step)
    assert (world.said("bob"), world.owns("bob")) == ("False/Paused", None)
    assert world.said("ann") == "False/Deleting"
    assert not any(isinstance(step, Call | Patch | Event) for step in world.plan().steps)


@pytest.mark.parametrize(
    "facts",
    [
        {"version": 7, "grants": [], "unreadable": "no JSON"},
        {"problem": {"code": "forbidden", "detail": "grant on *: you may not"}},
        {"version": 7, "grants": [
            {"who": "user:corp/ann", "role": "reader", "scope": "region:eu", "by": "x",
             "given": "x"}]},
    ],
    ids=["unreadable", "forbidden", "newer"],
)  # fmt: skip
def test_a_list_that_is_not_known_whole_is_no_list(
    facts: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GrantsWorld()
    world.add("ann")
    world.settle()
    world.delete("ann")
    world.add("bob", BOB)
    monkeypatch.setattr(world.grants, "show", lambda _scope: facts)
    for _ in range(4):
        world.do_pass()
    assert (world.said("bob"), world.said("ann")) == ("Unknown/NotAnswered", "False/Deleting")
    assert len(world.calls) == 1


def test_roles_of_a_newer_cluster_are_handed_back_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = GrantsWorld()
    strange = {"who": "robot:r2", "role": "painter", "scope": "shop/x", "by": "x", "given": "x"}
    facts = {"version": 7, "grants": [strange]}
    monkeypatch.setattr(world.grants, "show", lambda _scope: facts)
    world.add("ann")
    world.do_pass()
    world.do_pass()
    (call,) = [step for step in world.plan().steps if isinstance(step, Call)]
    assert call.body is not None
    assert {"who": "robot:r2", "role": "painter", "scope": "shop/x"} in call.body["grants"]


def test_an_object_that_cannot_be_read_says_so_and_is_let_go() -> None:
    world = GrantsWorld()
    world.add("ann")
    world.objects["ann"]["spec"]["role"] = "painter"
    world.settle()
    assert world.said("ann") == "False/InvalidSpec"
    world.objects["ann"]["metadata"] |= {"finalizers": [FINALIZER]}
    world.delete("ann")
    world.settle()
    assert world.objects == {}
    assert world.events[-1].is_warning
