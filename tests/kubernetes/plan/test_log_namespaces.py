"""The plan for LogNamespaces: made, changed, made again, deleted in bounded time.

Each test is an observation and what follows of it; `worlds` spells observations.
"""

from __future__ import annotations

from typing import Any

from duramen_operator.names import FINALIZER
from duramen_operator.plan.log_namespaces import plan_namespaces
from duramen_operator.plan.releasing import RELEASE_AFTER
from duramen_operator.plan.steps import Event, Patch
from tests.kubernetes.plan.worlds import (
    NOW,
    apply_status,
    calls_of,
    condition_of,
    make_cluster,
    make_space,
    observe,
    see_problem,
    steps_of,
)

URL = "/v1/namespaces/shop"
ABSENT = {"shop": see_problem("namespace_not_found")}


def seen(*, auto_create: bool = False, logs: int = 0) -> dict[str, Any]:
    return {"shop": {"config": {"auto_create": auto_create}, "logs": logs}}


def leaving(**spec: Any) -> dict[str, Any]:
    metadata = {"deletionTimestamp": "2026-11-22T12:00:00Z", "finalizers": [FINALIZER]}
    return make_space(spec={"deletionPolicy": "Delete", **spec}, metadata=metadata)


def test_it_is_made_with_what_is_named_or_the_clusters_default() -> None:
    default = make_cluster({"defaults": {"auto_create": True}})
    for cluster, spec, body in (
        (make_cluster(), {}, {}),
        (default, {}, {"auto_create": True}),
        (default, {"auto_create": False}, {"auto_create": False}),
    ):
        plan = plan_namespaces(observe(cluster, make_space(spec=spec), namespaces=ABSENT), NOW)
        assert calls_of(plan) == [("PUT", URL, body)]
        assert condition_of(plan, "shop")[:2] == ("Unknown", "Creating")


def test_only_what_is_named_is_changed() -> None:
    there = seen(auto_create=True, logs=3)
    space = make_space()
    plan = plan_namespaces(observe(make_cluster(), space, namespaces=there), NOW)
    assert calls_of(plan) == []
    assert condition_of(plan, "shop")[:2] == ("True", "AsWanted")
    status = apply_status(space, plan)["status"]
    assert (status["logs"], status["autoCreate"]) == (3, True)
    named = make_space(spec={"auto_create": False})
    plan = plan_namespaces(observe(make_cluster(), named, namespaces=there), NOW)
    assert calls_of(plan) == [("PATCH", URL, {"auto_create": False})]


def test_it_is_made_again_since_it_holds_nothing() -> None:
    space = make_space()
    good = plan_namespaces(observe(make_cluster(), space, namespaces=seen()), NOW)
    settled = apply_status(space, good)
    plan = plan_namespaces(observe(make_cluster(), settled, namespaces=ABSENT), NOW)
    assert calls_of(plan) == [("PUT", URL, {})]
    assert [event.reason for event in steps_of(plan, Event)] == ["ConfigCorrected"]


def test_it_goes_once_no_log_is_in_it() -> None:
    plan = plan_namespaces(observe(make_cluster(), leaving(), namespaces=seen()), NOW)
    assert calls_of(plan) == [("DELETE", URL, None)]
    plan = plan_namespaces(observe(make_cluster(), leaving(), namespaces=ABSENT), NOW)
    assert [event.reason for event in steps_of(plan, Event)] == ["Deleted"]
    assert len(steps_of(plan, Patch)) == 1


def test_it_waits_for_logs_and_not_for_names_of_deleted_ones() -> None:
    told = {("LogNamespace", "shop"): "namespace_not_empty"}
    full = observe(make_cluster(), leaving(), namespaces=seen(logs=1), refusals=told)
    plan = plan_namespaces(full, NOW)
    assert calls_of(plan) == [("DELETE", URL, None)]
    assert not steps_of(plan, Patch)
    late = plan_namespaces(full, NOW + RELEASE_AFTER)
    assert [event.reason for event in steps_of(late, Event)] == ["ReleasedLate"]
    assert "namespace_not_empty" in steps_of(late, Event)[0].message
    empty = observe(make_cluster(), leaving(), namespaces=seen(), refusals=told)
    plan = plan_namespaces(empty, NOW)
    assert [event.reason for event in steps_of(plan, Event)] == ["Retained"]
    assert len(steps_of(plan, Patch)) == 1


def test_retained_ones_are_let_go_at_once() -> None:
    world = observe(make_cluster(), leaving(deletionPolicy="Retain"), is_reachable=False)
    plan = plan_namespaces(world, NOW)
    assert calls_of(plan) == []
    assert [event.reason for event in steps_of(plan, Event)] == ["Retained"]
    assert len(steps_of(plan, Patch)) == 1
