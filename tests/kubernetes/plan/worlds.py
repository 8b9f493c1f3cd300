"""Observations for tests of the plan: objects and what the cluster says, in a line each.

Used by the tests of this folder; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from duramen.config import LogConfig
from duramen_operator.plan.observed import (
    AdminView,
    Json,
    Observed,
    Problem,
    name_own,
    observe_objects,
)
from duramen_operator.plan.steps import Call, Plan, Status, Step

NOW: Final = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
MADE: Final = "2026-11-22T10:00:00Z"

S = TypeVar("S")


def make_object(kind: str, name: str, spec: Json, **more: Any) -> dict[str, Any]:
    """An object of ours; `metadata` is added to, other members are taken as they are."""
    metadata = {
        "name": name, "namespace": "test", "uid": f"uid-{kind}-{name}", "resourceVersion": "7",
        "generation": 1, "creationTimestamp": MADE, **more.pop("metadata", {}),
    }  # fmt: skip
    return {
        "apiVersion": "duramen.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": dict(spec),
        **more,
    }  # fmt: skip


def make_cluster(spec: Json | None = None, **more: Any) -> dict[str, Any]:
    """A LogCluster `main`."""
    return make_object(
        "LogCluster", "main", {"security": "none", "acceptAnybody": True, **(spec or {})}, **more
    )


def make_log(name: str = "orders", spec: Json | None = None, **more: Any) -> dict[str, Any]:
    """A Log of namespace `shop`."""
    named = {"clusterName": "main", "namespace": "shop", **(spec or {})}
    return make_object("Log", name, named, **more)


def make_space(name: str = "shop", spec: Json | None = None, **more: Any) -> dict[str, Any]:
    """A LogNamespace."""
    return make_object("LogNamespace", name, {"clusterName": "main", **(spec or {})}, **more)


def see_log(log_id: str = "1", **more: Any) -> dict[str, Any]:
    """What the cluster says of a log that is there; `config` is added to."""
    config = LogConfig().to_json()
    for name, value in more.pop("config", {}).items():
        below = config.get(name)
        config[name] = {**below, **value} if isinstance(below, dict) else value
    log = {
        "namespace": "shop", "name": "orders", "log_id": log_id, "config": config,
        "config_version": 3, "ended": False, "head": {"seq_num": 0, "dlsn": "e1n0s0"},
        **more.pop("log", {}),
    }  # fmt: skip
    return {
        "log": log, "segments": [], "tail": 0, "owner": "main-sequencer-0", "violations": 0,
        "violation": "", **more,
    }  # fmt: skip


def see_segment(epoch: int, completed: datetime | None, **more: Any) -> dict[str, Any]:
    """A segment; open where `completed` is None."""
    return {
        "epoch": epoch, "state": "CLOSED" if completed else "OPEN", "status": "LIVE",
        "completed": completed.strftime("%Y-%m-%dT%H:%M:%S.000Z") if completed else None,
        "bytes": 1000 if completed else None, "records": 10 if completed else None,
        "cold_copy": None, **more,
    }  # fmt: skip


def see_problem(code: str) -> dict[str, Any]:
    """What is kept of a refused read."""
    return {"problem": {"code": code, "detail": f"told: {code}"}}


def observe(
    *objects: Json,
    logs: Mapping[str, Json] | None = None,
    namespaces: Mapping[str, Json] | None = None,
    refusals: Mapping[tuple[str, str], str] | None = None,
    is_reachable: bool = True,
) -> Observed:
    """Everything about cluster `main`."""
    admin = AdminView(reason="connection refused")
    if is_reachable:
        admin = AdminView(True, "", {}, namespaces or {}, logs or {})
    told = {
        name_own(kind, name): Problem(code, f"told: {code}", is_retryable=False)
        for (kind, name), code in (refusals or {}).items()
    }
    return observe_objects("test", "main", objects, admin=admin, refusals=told)


def steps_of(plan: Plan, kind: type[S]) -> list[S]:
    """The steps of one kind."""
    return [step for step in plan.steps if isinstance(step, kind)]


def calls_of(plan: Plan) -> list[tuple[str, str, Any]]:
    """Method, path and body of the calls."""
    return [(call.method, call.path, call.body) for call in steps_of(plan, Call)]


def condition_of(plan: Plan, name: str, condition_type: str = "Ready") -> tuple[str, str, str]:
    """Status, reason and message that an object's status is given."""
    for status in steps_of(plan, Status):
        if status.about.name == name:
            for one in status.status["conditions"]:
                if one["type"] == condition_type:
                    return one["status"], one["reason"], one["message"]
    raise AssertionError(f"nothing is said of {name}")


def apply_status(body: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The object with the status that the plan gives it."""
    found = [s.status for s in steps_of(plan, Status) if s.about.name == body["metadata"]["name"]]
    return {**body, "status": found[-1]} if found else body


def ago(**duration: float) -> datetime:
    """A moment before NOW."""
    return NOW - timedelta(**duration)


def describe(steps: tuple[Step, ...]) -> list[str]:
    """Kinds of the steps, in order."""
    return [type(step).__name__ for step in steps]
