"""The plan for Logs: what is asked of the cluster, what is told, and what is never done.

Each test is an observation and what follows of it; `worlds` spells observations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen_operator.names import FINALIZER
from duramen_operator.plan.logs import LOOK_AGAIN, plan_logs
from duramen_operator.plan.releasing import RELEASE_AFTER
from duramen_operator.plan.steps import Event, Patch
from tests.kubernetes.plan.worlds import (
    NOW,
    ago,
    apply_status,
    calls_of,
    condition_of,
    describe,
    make_cluster,
    make_log,
    make_space,
    observe,
    see_log,
    see_problem,
    see_segment,
    steps_of,
)

PATH = "shop/orders"
URL = "/v1/namespaces/shop/logs/orders"
ABSENT = {PATH: see_problem("log_not_found")}
DELETE = {"deletionPolicy": "Delete"}
TOLD = {"observedGeneration": 1, "logId": "1"}


def known(log_id: str = "1", **more: Any) -> dict[str, Any]:
    """A Log that has been seen to be log 1, and asks to be deleted."""
    metadata = {"deletionTimestamp": "2026-11-22T12:00:00Z", "finalizers": [FINALIZER]}
    return make_log(spec=DELETE, metadata=metadata, status={"logId": log_id}, **more)


def test_missing_log_is_made_from_all_defaults() -> None:
    cluster = make_cluster({"defaults": {"log": {"retention": {"age": "24h"}, "commit": "lac"}}})
    space = make_space(spec={"defaults": {"retention": {"age": "48h"}, "roll": {"size": "1MiB"}}})
    log = make_log(spec={"retention": {"bytes": "1GiB"}})
    plan = plan_logs(observe(cluster, space, log, logs=ABSENT), NOW)
    body = {"commit": "lac", "retention": {"age": "2d", "bytes": "1GiB"}, "roll": {"size": "1MiB"}}
    assert calls_of(plan) == [("PUT", URL, body)]
    assert condition_of(plan, "orders")[:2] == ("Unknown", "Creating")
    assert plan.again_at == NOW


def test_a_log_as_wanted_is_left_alone_and_told() -> None:
    segments = [
        see_segment(1, ago(hours=2), cold_copy={"bytes": 900}),
        see_segment(2, ago(hours=1)),
        see_segment(3, None),
    ]
    seen = see_log(tail=25, segments=segments, config={"tiering": {"policy": "copy"}})
    log = make_log(spec={"retention": {"age": "72h"}})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: seen}), NOW)
    assert describe(plan.steps) == ["Status"]
    status = apply_status(log, plan)["status"]
    assert (status["logId"], status["tail"], status["sizeBytes"]) == ("1", 25, 2000)
    assert status["segments"] == {"open": 1, "closed": 2, "archived": 1, "truncated": 0}
    assert condition_of(plan, "orders")[:2] == ("True", "AsWanted")
    assert condition_of(plan, "orders", "Archived")[:2] == ("False", "Waiting")
    again = plan_logs(observe(make_cluster(), apply_status(log, plan), logs={PATH: seen}), NOW)
    assert again.steps == ()
    assert again.again_at == NOW + LOOK_AGAIN


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "NotTiered"),
        ({"tiering": {"policy": "copy"}}, "Waiting"),
        ({"retention": {"require_cold_copy": True}}, "Waiting"),
    ],
)
def test_a_log_says_whether_its_segments_wait_for_a_run_or_for_a_decision(
    config: dict[str, Any], reason: str
) -> None:
    segments = [see_segment(1, ago(hours=2), status="TRUNCATED"), see_segment(2, ago(hours=1))]
    log = make_log(spec={})
    seen = see_log(segments=segments, config=config)
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: seen}), NOW)
    status, found, message = condition_of(plan, "orders", "Archived")
    assert (status, found) == ("False", reason)
    if "retention" in config:
        assert message == "2 of 2 closed segments are not archived yet", "truncated ones wait too"


def test_only_named_fields_are_changed() -> None:
    log = make_log(spec={"retention": {"age": "1h"}, "window": {"entries": 2000}})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == [("PATCH", f"{URL}?config_version=3", {"retention": {"age": "1h"}})]
    assert condition_of(plan, "orders") == ("False", "Changing", "being changed: retention.age")
    assert not steps_of(plan, Event)


def test_drift_is_set_again_with_an_event() -> None:
    log = make_log(spec={"retention": {"age": "1h"}})
    good = plan_logs(
        observe(make_cluster(), log, logs={PATH: see_log(config={"retention": {"age": "1h"}})}), NOW
    )
    settled = apply_status(log, good)
    plan = plan_logs(observe(make_cluster(), settled, logs={PATH: see_log()}), NOW)
    assert [call[0] for call in calls_of(plan)] == ["PATCH"]
    assert [event.reason for event in steps_of(plan, Event)] == ["ConfigCorrected"]
    # A change of the object itself is no drift.
    changed = {**settled, "metadata": {**settled["metadata"], "generation": 2}}
    plan = plan_logs(observe(make_cluster(), changed, logs={PATH: see_log()}), NOW)
    assert [event.reason for event in steps_of(plan, Event)] == []


@pytest.mark.parametrize("code", ["invalid_argument", "placement_impossible"])
def test_refusals_are_told_in_the_servers_words(code: str) -> None:
    told = {("Log", "orders"): code}
    plan = plan_logs(observe(make_cluster(), make_log(), logs=ABSENT, refusals=told), NOW)
    reason, message = condition_of(plan, "orders")[1:]
    assert (reason, message) == ("ConfigurationRefused", f"{code}: told: {code}")
    assert [event.is_warning for event in steps_of(plan, Event)] == [True]
    assert plan.again_at == NOW + LOOK_AGAIN


@pytest.mark.parametrize("code", ["log_not_found", "log_deleted"])
def test_a_log_that_was_there_is_not_made_again(code: str) -> None:
    log = make_log(status={"logId": "1"})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: see_problem(code)}), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "orders")[:2] == ("False", "DeletedOutside")
    assert "duramen log undelete shop/orders" in condition_of(plan, "orders")[2]
    assert apply_status(log, plan)["status"]["logId"] == "1"


def test_another_log_of_the_name_is_not_touched() -> None:
    log = make_log(spec={"retention": {"age": "1h"}, "sealed": True}, status={"logId": "1"})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: see_log("2")}), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "orders")[:2] == ("False", "OtherLog")


def test_sealing_happens_once_and_cannot_be_taken_back() -> None:
    log = make_log(spec={"sealed": True})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == [("POST", f"{URL}:end", {})]
    ended = {PATH: see_log(log={"ended": True})}
    assert calls_of(plan_logs(observe(make_cluster(), log, logs=ended), NOW)) == []
    plan = plan_logs(observe(make_cluster(), make_log(), logs=ended), NOW)
    assert condition_of(plan, "orders")[:2] == ("True", "Ended")


@pytest.mark.parametrize(
    ("wanted", "is_due"),
    [
        ("seq:5", False), ("seq:6", True), ("6", True), ("dlsn:e2n0s0", False),
        ("dlsn:e2n0s1", True), ("lsn:e2n0", False), ("lsn:e2n1", True),
    ],
)  # fmt: skip
def test_truncation_moves_forward_only(wanted: str, is_due: bool) -> None:
    seen = {PATH: see_log(log={"head": {"seq_num": 5, "dlsn": "e2n0s0"}})}
    log = make_log(spec={"truncation": wanted})
    plan = plan_logs(observe(make_cluster(), log, logs=seen), NOW)
    due = [("POST", f"{URL}:truncate", {"to": wanted})] if is_due else []
    assert calls_of(plan) == due


@pytest.mark.parametrize("wanted", ["txid:5", "time:2026-11-22T00:00:00Z", "tail"])
def test_truncation_to_a_place_that_moves_is_refused(wanted: str) -> None:
    log = make_log(spec={"truncation": wanted})
    plan = plan_logs(observe(make_cluster(), log, logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == []
    # The API server refuses it as well; this is an object from before it did.
    assert condition_of(plan, "orders")[:2] == ("False", "InvalidSpec")


def test_a_silent_cluster_makes_nothing_untrue() -> None:
    log = make_log()
    good = plan_logs(observe(make_cluster(), log, logs={PATH: see_log(tail=9)}), NOW)
    plan = plan_logs(observe(make_cluster(), apply_status(log, good), is_reachable=False), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "orders")[:2] == ("Unknown", "ClusterUnreachable")
    assert condition_of(plan, "orders", "PlacementSatisfied")[0] == "True"
    assert apply_status(log, plan)["status"]["tail"] == 9


def test_what_is_missing_is_told() -> None:
    plan = plan_logs(observe(make_log()), NOW)
    assert condition_of(plan, "orders")[:2] == ("False", "ClusterMissing")
    nowhere = {PATH: see_problem("namespace_not_found")}
    plan = plan_logs(observe(make_cluster(), make_log(), logs=nowhere), NOW)
    assert condition_of(plan, "orders")[:2] == ("False", "NamespaceMissing")
    assert calls_of(plan) == []


def test_one_log_belongs_to_the_older_object() -> None:
    younger = make_log(
        "copy", {"name": "orders", "sealed": True, **DELETE},
        metadata={"creationTimestamp": "2026-11-22T11:00:00Z", "finalizers": [FINALIZER]},
    )  # fmt: skip
    plan = plan_logs(observe(make_cluster(), younger, make_log(), logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "copy")[:2] == ("False", "NameTaken")
    assert [patch.patch for patch in steps_of(plan, Patch)] == [{"metadata": {"finalizers": []}}]


def test_broken_objects_are_told_and_left_alone() -> None:
    log = make_log(spec={"retention": {"age": "soon"}})
    plan = plan_logs(observe(make_cluster(), log, logs=ABSENT), NOW)
    assert calls_of(plan) == []
    status, reason, message = condition_of(plan, "orders")
    assert (status, reason) == ("False", "InvalidSpec")
    assert "retention.age" in message


def test_a_paused_cluster_is_told_and_not_touched() -> None:
    cluster = make_cluster(metadata={"annotations": {"duramen.io/paused": "true"}})
    plan = plan_logs(observe(cluster, make_log(), logs=ABSENT), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "orders")[1] == "Paused"
    assert plan.again_at == NOW + LOOK_AGAIN


def test_figures_alone_are_written_now_and_then() -> None:
    log = make_log()
    first = plan_logs(observe(make_cluster(), log, logs={PATH: see_log(tail=1)}), NOW)
    for seconds, kinds in ((5, []), (20, ["Status"])):
        stamp = ago(seconds=seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
        field = {"manager": "duramen-operator", "subresource": "status", "time": stamp}
        told = apply_status(log, first)
        told["metadata"] = {**told["metadata"], "managedFields": [field]}
        plan = plan_logs(observe(make_cluster(), told, logs={PATH: see_log(tail=2)}), NOW)
        assert describe(plan.steps) == kinds


# --- Old facts, or none ---------------------------------------------------------------------------


def test_a_log_that_no_look_came_to_is_left_as_it_was_told() -> None:
    log = make_log()
    told = apply_status(log, plan_logs(observe(make_cluster(), log, logs={PATH: see_log()}), NOW))
    for logs in ({}, {PATH: see_problem("not_asked")}):
        plan = plan_logs(observe(make_cluster(), told, logs=logs), NOW)
        assert not plan.steps
        assert plan.unsure == {PATH}


@pytest.mark.parametrize(
    ("spec", "seen", "status"),
    [
        ({"retention": {"age": "1h"}}, see_log(), TOLD),
        ({"sealed": True}, see_log(), TOLD),
        ({"truncation": "seq:4"}, see_log(), TOLD),
        ({}, see_problem("log_not_found"), {"observedGeneration": 1}),
    ],
)
def test_no_call_rests_on_old_facts(
    spec: dict[str, Any], seen: dict[str, Any], status: dict[str, Any]
) -> None:
    log = make_log(spec=spec, status=status)
    fresh = observe(make_cluster(), log, logs={PATH: seen})
    assert calls_of(plan_logs(fresh, NOW))
    old = replace(fresh, admin=replace(fresh.admin, stale_logs=frozenset({PATH})))
    plan = plan_logs(old, NOW)
    assert not plan.steps
    assert plan.unsure == {PATH}


def test_old_facts_of_a_log_as_wanted_are_told() -> None:
    log = make_log()
    told = apply_status(log, plan_logs(observe(make_cluster(), log, logs={PATH: see_log()}), NOW))
    seen = observe(make_cluster(), told, logs={PATH: see_log(tail=7)})
    plan = plan_logs(replace(seen, admin=replace(seen.admin, stale_logs=frozenset({PATH}))), NOW)
    assert (describe(plan.steps), plan.unsure) == (["Status"], frozenset())


@pytest.mark.parametrize("seen", [see_log(), see_problem("log_not_found")])
def test_a_deletion_waits_for_facts_of_its_own_look(seen: dict[str, Any]) -> None:
    fresh = observe(make_cluster(), known(), logs={PATH: seen})
    assert plan_logs(fresh, NOW).steps
    old = replace(fresh, admin=replace(fresh.admin, stale_logs=frozenset({PATH})))
    plan = plan_logs(old, NOW)
    assert not plan.steps
    assert plan.unsure == {PATH}
    late = plan_logs(old, NOW + RELEASE_AFTER)
    assert [event.reason for event in steps_of(late, Event)] == ["ReleasedLate"]


def test_what_the_cluster_did_not_say_stays_as_it_was_told() -> None:
    log = make_log()
    segments = [see_segment(1, ago(hours=2))]
    seen = {PATH: see_log(tail=9, segments=segments)}
    told = apply_status(log, plan_logs(observe(make_cluster(), log, logs=seen), NOW))
    silent = {PATH: see_log(tail=None, segments=None)}
    status = apply_status(told, plan_logs(observe(make_cluster(), told, logs=silent), NOW))[
        "status"
    ]
    assert (status["tail"], status["sizeBytes"], status["segments"]["closed"]) == (9, 1000, 1)
    new = plan_logs(observe(make_cluster(), log, logs=silent), NOW)
    assert not {"tail", "sizeBytes", "segments"} & set(apply_status(log, new)["status"])


# --- Deletion -------------------------------------------------------------------------------------


def test_the_finalizer_comes_before_the_log() -> None:
    plan = plan_logs(observe(make_cluster(), make_log(spec=DELETE), logs=ABSENT), NOW)
    assert calls_of(plan) == []
    assert [patch.patch for patch in steps_of(plan, Patch)] == [
        {"metadata": {"finalizers": [FINALIZER]}}
    ]
    held = make_log(spec=DELETE, metadata={"finalizers": [FINALIZER]})
    plan = plan_logs(observe(make_cluster(), held, logs=ABSENT), NOW)
    assert [call[0] for call in calls_of(plan)] == ["PUT"]
    assert not steps_of(plan, Patch)
    # Whoever changes the mind before the deletion loses nothing.
    kept = make_log(metadata={"finalizers": ["a/b", FINALIZER]})
    plan = plan_logs(observe(make_cluster(), kept, logs=ABSENT), NOW)
    assert [patch.patch for patch in steps_of(plan, Patch)] == [
        {"metadata": {"finalizers": ["a/b"]}}
    ]


def test_deletion_deletes_the_log_and_lets_go() -> None:
    plan = plan_logs(observe(make_cluster(), known(), logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == [("DELETE", URL, None)]
    assert not steps_of(plan, Patch)
    for code in ("log_deleted", "log_not_found", "namespace_not_found"):
        plan = plan_logs(observe(make_cluster(), known(), logs={PATH: see_problem(code)}), NOW)
        assert calls_of(plan) == []
        assert [event.reason for event in steps_of(plan, Event)] == ["Deleted"]
        assert [patch.patch for patch in steps_of(plan, Patch)] == [
            {"metadata": {"finalizers": []}}
        ]


@pytest.mark.parametrize("log_id", ["", "7"])
def test_a_log_that_is_not_known_to_be_ours_stays(log_id: str) -> None:
    plan = plan_logs(observe(make_cluster(), known(log_id), logs={PATH: see_log()}), NOW)
    assert calls_of(plan) == []
    assert [event.reason for event in steps_of(plan, Event)] == ["Retained"]
    assert len(steps_of(plan, Patch)) == 1


def test_nobody_waits_for_a_cluster_that_is_gone() -> None:
    leaving = make_cluster(metadata={"deletionTimestamp": "2026-11-22T12:00:00Z"})
    for world in (observe(known()), observe(leaving, known(), logs={PATH: see_log()})):
        plan = plan_logs(world, NOW)
        assert calls_of(plan) == []
        assert [event.reason for event in steps_of(plan, Event)] == ["ClusterGone"]
        assert len(steps_of(plan, Patch)) == 1


def test_a_silent_cluster_is_waited_for_in_bounded_time() -> None:
    world = observe(make_cluster(), known(), is_reachable=False)
    assert plan_logs(world, NOW).steps == ()
    plan = plan_logs(world, NOW + RELEASE_AFTER)
    assert [event.reason for event in steps_of(plan, Event)] == ["ReleasedLate"]
    assert len(steps_of(plan, Patch)) == 1


def test_a_flexible_log_for_which_there_is_no_nodeset_is_not_placed() -> None:
    log = make_log(status={"logId": "1"})
    for refusal, told in (("2 bookies are less", "NoNodeset"), (None, "AsWanted")):
        plan = plan_logs(observe(log, logs={PATH: see_log(refusal=refusal)}), NOW)
        assert condition_of(plan, "orders", "PlacementSatisfied")[1] == told


def test_defaults_of_one_form_are_dropped_for_a_log_of_the_other() -> None:
    striped = {"replication": {"ensemble_size": 5}, "roll": {"size": "1MiB"}}
    cluster = make_cluster({"defaults": {"log": striped}})
    log = make_log(spec={"copysets": "flexible", "replication": {"node": 4}})
    ((_, _, body),) = calls_of(plan_logs(observe(cluster, log, logs=ABSENT), NOW))
    assert isinstance(body, dict) and body["copysets"] == "flexible"
    assert body["replication"]["node"] == 4 and "ensemble_size" not in body["replication"]
    assert body["roll"] == {"size": "1MiB"}
