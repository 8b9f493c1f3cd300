"""Removal of bookies: by count and by name, cancelled at any step, blocked with a way out.

Source: docs/kubernetes/removal.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen_operator.names import API_VERSION, REMOVAL_ANNOTATION
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Apply, Call, Delete, Stop
from tests.kubernetes.plan.removal_world import GIB, OTHERS, SECURED, SHARED, Removing

STATEFUL_SET = Ref("apps/v1", "StatefulSet", "bookies")
FORMS = pytest.mark.parametrize("spec", [SHARED, {}, SECURED], ids=["shared", "lone", "secured"])


def make(spec: dict[str, Any], replicas: int = 5, zones: int = 0) -> Removing:
    """A cluster of that form."""
    return Removing(replicas, zones, **spec)


def ask(own: Removing, name: str, *, is_asked: bool = True) -> None:
    """Somebody wants a bookie to go by its name, or no longer."""
    own.world.change("Bookie", name, decommission=is_asked)


def scale(own: Removing, replicas: int) -> None:
    own.world.change("BookieSet", "bookies", replicas=replicas)


def go_until(own: Removing, name: str, phase: str) -> None:
    """Until that is recorded of a bookie and seen."""
    for _ in range(20):
        if own.removal(name) == phase:
            return
        own.look()
        own.tick()
    raise AssertionError(f"{name} is {own.removal(name)!r}, and never {phase}")


def check_whole(own: Removing, count: int) -> None:
    """So many serve, nobody is on the way, nothing is granted, and a pass changes nothing."""
    assert len(own.pods) == count, own.pods
    assert [own.rows[name]["duty"] for name in own.pods] == ["serving"] * count
    assert own.world.names("Bookie") == own.pods
    assert sum(own.sizes.values()) == count
    assert own.grants == []
    assert own.is_at_rest()
    assert {own.removal(name) for name in own.pods} <= {""}


@FORMS
@pytest.mark.parametrize("zones", [0, 3])
def test_fewer_replicas_take_the_last_ones_of_the_fullest_domains(
    spec: dict[str, Any], zones: int
) -> None:
    own = make(spec, 8, zones)
    before = set(own.pods)
    claims = own.world.names("PersistentVolumeClaim")
    scale(own, 5)
    own.run()
    check_whole(own, 5)
    gone = before - set(own.pods)
    assert sorted(own.stopped) == sorted(gone)
    assert all(own.copies[name] == 0 and own.rows[name]["duty"] == "drained" for name in gone)
    assert own.world.names("PersistentVolumeClaim") == claims, "they stay"
    if zones:
        counts = [sum(pod.startswith(f"bookies-r0-r0-k{z}") for pod in own.pods) for z in range(3)]
        assert sorted(counts) == [1, 2, 2]
    else:
        assert [name for name in sorted(before) if name in gone] == sorted(before)[-3:]


def test_a_middle_one_goes_by_name_and_another_one_takes_its_place() -> None:
    own = make(SECURED)
    ask(own, "bookies-1-0")
    own.run()
    assert own.pods == [f"bookies-{index}-0" for index in (0, 2, 3, 4, 5)]
    check_whole(own, 5)
    scale(own, 6)
    own.run()
    assert "bookies-6-0" in own.pods, "it may have gone for its disk: its number stays free"
    check_whole(own, 6)


def test_a_middle_one_goes_by_name_and_none_takes_its_place_where_replicas_fall_too() -> None:
    own = make(SECURED)
    ask(own, "bookies-1-0")
    scale(own, 4)
    own.run()
    assert own.pods == [f"bookies-{index}-0" for index in (0, 2, 3, 4)]
    check_whole(own, 4)
    assert own.stopped == ["bookies-1-0"]


@FORMS
def test_what_is_recorded_comes_first_and_the_call_in_a_later_pass(spec: dict[str, Any]) -> None:
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    assert not [s for s in own.steps() if isinstance(s, Call) and s.method == "POST"]
    own.look()
    assert own.removal(last) == "Draining"
    (call,) = [s for s in own.steps() if isinstance(s, Call)]
    assert (call.method, call.path) == ("POST", f"/v1/cluster/bookies/{last}/drain")


@FORMS
def test_drains_run_side_by_side_and_stops_one_by_one(spec: dict[str, Any]) -> None:
    own = make(spec, 7)
    scale(own, 4)
    most = 0
    for name in own.pods:
        own.copies[name] = 6
    for _ in range(40):
        before = list(own.stopped)
        own.look()
        most = max(most, sum(row["duty"] == "draining" for row in own.rows.values()))
        assert len([s for s in own.steps() if isinstance(s, Stop)]) <= 1
        own.tick()
        assert len(own.stopped) - len(before) <= 1
    assert most == 3
    check_whole(own, 4)


@FORMS
@pytest.mark.parametrize("phase", ["Draining", "Stopping"])
def test_a_wish_that_is_taken_back_cancels(spec: dict[str, Any], phase: str) -> None:
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    go_until(own, last, phase)
    scale(own, 5)
    own.run()
    check_whole(own, 5)
    assert last in own.pods and own.stopped == []


@FORMS
def test_a_bookie_that_is_stopped_already_comes_back_with_its_disks(spec: dict[str, Any]) -> None:
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    go_until(own, last, "Stopping")
    while last in own.pods:
        own.look()
        own.tick()
    scale(own, 5)
    own.run()
    check_whole(own, 5)


def test_a_name_that_is_taken_back_stays_and_the_one_that_came_for_it_goes() -> None:
    own = make(SECURED)
    ask(own, "bookies-1-0")
    go_until(own, "bookies-1-0", "Stopping")
    assert "bookies-5-0" in own.pods
    ask(own, "bookies-1-0", is_asked=False)
    own.run()
    check_whole(own, 5)
    assert "bookies-1-0" in own.pods
    assert own.stopped == ["bookies-5-0"]


@FORMS
def test_who_would_stop_it_late_meets_another_state(spec: dict[str, Any]) -> None:
    """An operator took the grant, sleeps, and wakes after the removal was taken back."""
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    go_until(own, last, "Stopping")
    stops: list[Stop] = []
    seen = own.world.observe()
    while not stops:
        seen = own.world.observe()
        stops = [step for step in own.steps() if isinstance(step, Stop)]
        if not stops:
            own.look()
    (stop,) = stops
    assert stop.question is not None
    own.grants = [{**stop.question}]
    ref = Apply(stop.manifest).about
    assert last in seen.objects[ref].annotations[REMOVAL_ANNOTATION]
    scale(own, 5)
    for _ in range(2):
        own.look()
    assert own.grants, "first the StatefulSet is another one"
    assert own.world.objects[ref]["metadata"]["resourceVersion"] != (
        seen.objects[ref].resource_version
    )
    own.run()
    check_whole(own, 5)


@FORMS
def test_a_drain_that_was_cancelled_by_hand_is_asked_for_again_and_nothing_is_stopped(
    spec: dict[str, Any],
) -> None:
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    go_until(own, last, "Stopping")
    own.look()
    assert [step for step in own.steps() if isinstance(step, Stop)]
    own.rows[last]["duty"] = "serving"
    own.copies[last] = 3
    assert not [step for step in own.steps() if isinstance(step, Stop)]
    own.look()
    assert own.removal(last) == "Draining" and own.stopped == []
    own.run()
    check_whole(own, 4)


@FORMS
def test_while_another_grant_is_outstanding_nobody_is_stopped(spec: dict[str, Any]) -> None:
    own = make(spec)
    last = own.pods[-1]
    own.grants = [dict(OTHERS)]
    scale(own, 4)
    for _ in range(15):
        own.look()
        own.tick()
    assert own.stopped == [] and own.grants == [OTHERS]
    reason, message = own.progress(last)
    assert reason == "Blocked" and "granted is zookeeper/z" in message
    own.grants = []
    own.run()
    check_whole(own, 4)


@FORMS
def test_while_the_cluster_is_silent_nothing_is_begun_or_taken_back(spec: dict[str, Any]) -> None:
    own = make(spec)
    last = own.pods[-1]
    scale(own, 4)
    go_until(own, last, "Stopping")
    own.is_reachable = False
    scale(own, 5)
    for _ in range(4):
        own.look()
        assert own.is_at_rest()
    assert own.removal(last) == "Stopping"
    own.is_reachable = True
    own.run()
    check_whole(own, 5)


@FORMS
def test_what_the_cluster_refuses_is_told_with_its_numbers_and_the_rest_goes_on(
    spec: dict[str, Any],
) -> None:
    own = make(spec)
    scale(own, 1)
    for _ in range(25):
        own.look()
        own.tick()
    assert len(own.pods) == 3
    blocked = [name for name in own.pods if own.progress(name)[0] == "Blocked"]
    assert len(blocked) == (1 if spec == SHARED else 2), (
        "of those that share one the last comes first"
    )
    assert "placement_impossible: 2 are left: add bookies" in own.progress(blocked[0])[1]
    told = own.world.condition("BookieSet", "bookies", "Progressing")
    assert told["reason"] == "Blocked"
    scale(own, 3)
    own.run()
    check_whole(own, 3)


@FORMS
def test_what_does_not_fit_on_the_others_is_not_drained(spec: dict[str, Any]) -> None:
    own = make(spec)
    last = own.pods[-1]
    own.copies[last] = 1000
    scale(own, 4)
    for _ in range(4):
        own.look()
        assert own.rows[last]["duty"] == "serving"
    assert "does not fit" in own.progress(last)[1]
    own.copies[last] = 1
    for name in own.pods:
        own.rows[name]["free_bytes"] = GIB // 4
    own.look()
    assert own.rows[last]["duty"] == "serving"
    own.tick()
    own.run()
    check_whole(own, 4)


def test_several_that_go_at_once_have_to_fit_together() -> None:
    own = make(SECURED, 9)
    for name in own.pods:
        own.copies[name] = 40
        own.rows[name]["free_bytes"] = 25 * GIB
    scale(own, 3)
    for _ in range(3):
        own.look()
    moved = sum(own.copies[name] for name, row in own.rows.items() if row["duty"] != "serving")
    assert 0 < moved <= 25 * sum(row["duty"] == "serving" for row in own.rows.values())


@pytest.mark.parametrize("hand", ["delete", "scale"])
def test_a_bookie_behind_the_one_that_is_empty_is_not_stopped_by_a_hand(hand: str) -> None:
    """Of two that go from one StatefulSet the last one still has copies."""
    own = make(SHARED, 5)
    own.copies["bookies-4"] = 30
    scale(own, 3)
    go_until(own, "bookies-3", "Stopping")
    assert own.removal("bookies-4") == "Draining"
    if hand == "delete":
        del own.world.objects[STATEFUL_SET]
    else:
        own.world.objects[STATEFUL_SET]["spec"]["replicas"] = 4
    for _ in range(3):
        own.look()
    assert own.sizes == {"bookies": 5}
    assert own.grants == []
    own.run(80)
    check_whole(own, 3)


def test_while_it_is_silent_no_number_is_taken_that_may_be_used() -> None:
    own = make(SECURED)
    ask(own, "bookies-1-0")
    own.run()
    for kind in ("journal", "ledgers"):
        own.world.objects.pop(Ref("v1", "PersistentVolumeClaim", f"{kind}-bookies-1-0"))
    own.is_reachable = False
    scale(own, 6)
    own.look()
    assert "bookies-1" not in own.sizes and len(own.sizes) == 5
    own.is_reachable = True
    own.run()
    assert own.pods[-1] == "bookies-6-0"
    check_whole(own, 6)


def test_domains_that_make_one_name_stop_a_removal_and_take_none_back() -> None:
    own = make(SECURED, 6, zones=3)
    scale(own, 5)
    own.look()
    (gone,) = [name for name in own.pods if own.removal(name) == "Draining"]
    domains = own.world.find("LogCluster", "main")["spec"]["domains"]
    same = [{"region": "a", "zone": "b-c"}, {"region": "a-b", "zone": "c"}]
    own.world.change("LogCluster", "main", domains=[*domains, *same])
    own.look()
    assert own.removal(gone) == "Draining"
    own.world.change("LogCluster", "main", domains=domains)
    own.run()
    assert own.stopped == [gone]


def test_a_drain_of_somebody_is_kept_when_its_bookie_is_made_anew() -> None:
    own = make(SECURED)
    own.rows["bookies-2-0"]["duty"] = "drained"
    own.look()
    own.world.objects.pop(Ref(API_VERSION, "Bookie", "bookies-2-0"))
    for _ in range(4):
        own.look()
    assert own.rows["bookies-2-0"]["duty"] == "drained"
    assert own.progress("bookies-2-0")[0] == "DrainedByOthers"


def test_one_whose_statefulset_was_orphaned_is_stopped_all_the_same() -> None:
    own = make(SECURED)
    own.grants = [dict(OTHERS)]
    scale(own, 4)
    go_until(own, "bookies-4-0", "Stopping")
    del own.world.objects[Ref("apps/v1", "StatefulSet", "bookies-4")]
    own.look()
    assert own.sizes["bookies-4"] == 1, "it has its pod again"
    own.grants = []
    own.run()
    assert own.stopped == ["bookies-4-0"]
    check_whole(own, 4)


def test_a_set_of_none_stays_none_in_a_silence() -> None:
    own = make(SECURED, 4)
    own.least = 0
    scale(own, 0)
    for name in own.pods:
        own.copies[name] = 0
    own.run()
    assert own.pods == []
    own.is_reachable = False
    for _ in range(3):
        own.look()
        own.tick()
    assert own.pods == [] and own.sizes == {}


def test_a_duty_of_a_newer_service_takes_nothing() -> None:
    own = make(SECURED)
    own.rows["bookies-2-0"]["duty"] = "resting"
    own.look()
    assert own.progress("bookies-2-0")[0] == "DrainedByOthers"


def test_of_those_that_share_a_statefulset_names_go_from_the_last_one_on() -> None:
    own = make(SHARED)
    ask(own, "bookies-3")
    for _ in range(3):
        own.look()
        own.tick()
    reason, message = own.progress("bookies-3")
    assert reason == "Blocked" and "those behind it" in message
    assert own.is_at_rest() and len(own.pods) == 5
    ask(own, "bookies-4")
    own.run()
    assert own.pods == ["bookies-0", "bookies-1", "bookies-2", "bookies-5-0", "bookies-6-0"]
    assert own.stopped == ["bookies-4", "bookies-3"]
    check_whole(own, 5)


def test_a_cluster_moves_over_to_bookies_of_which_any_can_go() -> None:
    own = make(SHARED, 4, zones=2)
    for name in own.pods:
        ask(own, name)
    own.run(200)
    check_whole(own, 4)
    assert all(name.endswith("-0") and name.count("-") == 5 for name in own.pods), own.pods
    assert len(own.stopped) == 4
    ask(own, own.pods[0])
    scale(own, 3)
    own.run()
    check_whole(own, 3)


def test_who_is_taken_back_stays_where_another_one_can_go() -> None:
    own = make(SHARED, 4)
    ask(own, "bookies-3")
    go_until(own, "bookies-3", "Draining")
    ask(own, "bookies-3", is_asked=False)
    own.run()
    assert "bookies-3" in own.pods and "bookies-4-0" not in own.pods
    check_whole(own, 4)


def test_one_that_does_not_serve_is_blocked_until_its_loss_is_accepted() -> None:
    own = make(SECURED)
    ask(own, "bookies-1-0")
    own.look()
    own.world.have_pod_serve("bookies-1-0", is_serving=False)
    (status,) = own.world.find("Pod", "bookies-1-0")["status"]["containerStatuses"]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    own.rows["bookies-1-0"] |= {"state": "absent", "duty": "draining"}
    own.look()
    reason, message = own.progress("bookies-1-0")
    assert reason == "Blocked" and "accept-loss" in message
    del own.rows["bookies-1-0"]
    for _ in range(4):
        own.look()
    assert own.sizes["bookies-1"] == 0
    assert own.grants == [], "nobody is asked about what nobody knows"
    own.world.objects = {
        ref: item for ref, item in own.world.objects.items() if ref.name != "bookies-1-0" or
        ref.kind != "Pod"
    }  # fmt: skip
    own.run()
    assert "bookies-1-0" not in own.world.names("Bookie")


def test_a_drain_that_somebody_else_began_is_not_taken_back() -> None:
    own = make(SECURED)
    own.rows["bookies-2-0"]["duty"] = "drained"
    for _ in range(3):
        own.look()
    assert own.rows["bookies-2-0"]["duty"] == "drained" and own.is_at_rest()
    reason, message = own.progress("bookies-2-0")
    assert reason == "DrainedByOthers" and "duramen drain bookies-2-0 --cancel" in message
    scale(own, 4)
    own.run()
    assert own.stopped == ["bookies-2-0"], "it is the first to go"


def test_claims_of_a_removed_bookie_go_with_its_statefulset_where_the_set_says_so() -> None:
    own = make(SECURED)
    own.world.change("BookieSet", "bookies", claims="Delete")
    own.run()

    def list_fates() -> dict[str, str]:
        return {
            ref.name: item["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"]
            for ref, item in own.world.objects.items()
            if ref.kind == "StatefulSet" and ref.name.startswith("bookies")
        }

    assert {*list_fates().values()} == {"Retain"}, "whoever deletes the set keeps the data"
    scale(own, 4)
    go_until(own, "bookies-4-0", "Stopping")
    own.look()
    fates = list_fates()
    assert {name for name, fate in fates.items() if fate == "Delete"} == {"bookies-4"}
    deletes: list[Delete] = []
    while not deletes:
        own.tick()
        deletes = [step for step in own.steps() if isinstance(step, Delete)]
        if not deletes:
            own.look()
    assert [(d.about.kind, d.about.name) for d in deletes] == [("StatefulSet", "bookies-4")]
    own.look()
    scale(own, 5)
    own.look()
    assert "bookies-4" not in own.sizes, "past the point of coming back: its disks may be gone"
    own.run()
    assert own.pods[-1] == "bookies-5-0"
    check_whole(own, 5)
