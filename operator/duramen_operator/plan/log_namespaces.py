"""Namespaces: what is to be done so that each is as its LogNamespace says, and what to tell.

A namespace holds nothing itself, so one that was deleted outside is made again. With
`deletionPolicy: Delete` it goes with its object once no log is in it; the name of a deleted log
counts until it is purged, and for that alone nobody waits.

Called by `plan`. Source: docs/kubernetes/resources.md "LogNamespace", docs/protocol/rest.md.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from duramen_operator.names import FINALIZER
from duramen_operator.plan.conditions import Said, find_told, report
from duramen_operator.plan.logs import (
    LOOK_AGAIN,
    READY,
    not_ready,
    oldest_first,
    told_pause,
    told_refusal,
    was_ready,
)
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.plan.releasing import Release, change_finalizer, plan_release
from duramen_operator.plan.seen_logs import read_problem
from duramen_operator.plan.steps import Call, Event, Plan, Step
from duramen_operator.resources import LogCluster, LogNamespace, ResourceError
from duramen_operator.resources.reading import parse_as


def plan_namespaces(observed: Observed, now: datetime) -> Plan:
    """The steps for all LogNamespaces of the cluster."""
    steps: list[Step] = []
    again_at = None
    taken: dict[str, KubeObject] = {}
    for item in oldest_first(observed.list("LogNamespace")):
        found = list(_plan_namespace(observed, item, taken, now))
        steps += found
        is_busy = any(isinstance(step, Call) for step in found)
        moment = now if is_busy and item.ref not in observed.refusals else now + LOOK_AGAIN
        again_at = moment if again_at is None else min(again_at, moment)
    return Plan(tuple(steps), again_at)


def _plan_namespace(
    observed: Observed, item: KubeObject, taken: dict[str, KubeObject], now: datetime
) -> Iterator[Step]:
    name = str(item.spec.get("name") or item.name)
    winner = taken.setdefault(name, item)
    seen = None if observed.admin.namespaces is None else observed.admin.namespaces.get(name)
    if item.is_leaving:
        if FINALIZER in item.finalizers:
            release = _judge_release(observed, item, seen, is_ours=winner is item)
            yield from plan_release(observed, item, release, now)
        return
    try:
        wanted = parse_as(LogNamespace, item.body)
    except ResourceError as error:
        yield from report(item, [not_ready("InvalidSpec", str(error))], {}, now)
        return
    if winner is not item:
        message = f"namespace {name} belongs to LogNamespace {winner.name}, which is older"
        yield from change_finalizer(item, is_wanted=False)
        yield from report(item, [not_ready("NameTaken", message)], {}, now)
        return
    is_to_go = wanted.spec.deletion_policy == "Delete"
    finalizing = list(change_finalizer(item, is_wanted=is_to_go))
    yield from finalizing
    judged = _judge(observed, item, wanted, seen)
    if judged is None:
        return
    call, said = judged
    if call is not None and observed.is_paused:
        call, said = None, told_pause(said)
    if call is not None and not (finalizing and is_to_go):
        yield call
        if was_ready(item):
            message = "it was changed outside of Kubernetes, and is set again as this object says"
            yield Event(item.ref, item.uid, "ConfigCorrected", message, find_told(item), now)
    yield from report(item, [said], _figures(item, seen), now)


def _judge(
    observed: Observed, item: KubeObject, wanted: LogNamespace, seen: Json | None
) -> tuple[Call | None, Said] | None:
    """What is to be done about a LogNamespace that stays; None: no look came to it yet."""
    if observed.cluster is None:
        message = f"there is no LogCluster {wanted.spec.cluster_name} in this namespace"
        return None, not_ready("ClusterMissing", message)
    if observed.cluster.is_leaving:
        return None, not_ready("ClusterLeaving", "the cluster is being deleted")
    if not observed.admin.is_reachable:
        message = f"the cluster does not answer: {observed.admin.reason}"
        return None, Said(READY, "Unknown", "ClusterUnreachable", message)
    if seen is None:
        return None
    url = f"/v1/namespaces/{quote(wanted.namespace_name)}"
    problem = read_problem(seen)
    refused = told_refusal(observed.refusals.get(item.ref))
    if problem is not None and problem.code != "namespace_not_found":
        message = f"{problem.code}: {problem.message}"
        return None, Said(READY, "Unknown", "NotAnswered", message)
    if problem is not None:
        auto_create = wanted.spec.auto_create
        if auto_create is None:
            auto_create = _default_of(observed.cluster)
        body = {} if auto_create is None else {"auto_create": auto_create}
        said = refused or Said(READY, "Unknown", "Creating", "it is being made")
        return Call(item.ref, "PUT", url, body), said
    there = seen.get("config", {}).get("auto_create")
    if wanted.spec.auto_create is not None and there != wanted.spec.auto_create:
        change = {"auto_create": wanted.spec.auto_create}
        said = refused or Said(READY, "False", "Changing", "being changed: auto_create")
        return Call(item.ref, "PATCH", url, change), said
    return None, Said(READY, "True", "AsWanted", "the namespace is as this object says")


def _default_of(cluster: KubeObject) -> bool | None:
    try:
        return parse_as(LogCluster, cluster.body).spec.defaults.auto_create
    except ResourceError:
        return None


def _judge_release(
    observed: Observed, item: KubeObject, seen: Json | None, *, is_ours: bool
) -> Release:
    name = str(item.spec.get("name") or item.name)
    if item.spec.get("deletionPolicy") != "Delete" or not is_ours:
        return Release.let_go("Retained", f"namespace {name} stays")
    if seen is None:
        return Release.wait(f"namespace {name}: not known yet what became of it")
    problem = read_problem(seen)
    if problem is not None and problem.code == "namespace_not_found":
        return Release.let_go("Deleted", f"namespace {name} is deleted")
    if problem is not None:
        return Release.wait(f"namespace {name}: {problem.code}: {problem.message}")
    refusal = observed.refusals.get(item.ref)
    is_not_empty = refusal is not None and refusal.code == "namespace_not_empty"
    if is_not_empty and seen.get("logs") == 0:
        message = f"namespace {name} stays until its deleted logs are purged, an hour from now"
        return Release.let_go("Retained", message, is_warning=True)
    url = f"/v1/namespaces/{quote(name)}"
    return Release.call(Call(item.ref, "DELETE", url), f"namespace {name} is being deleted")


def _figures(item: KubeObject, seen: Json | None) -> dict[str, Any]:
    if seen is None or read_problem(seen) is not None:
        kept = ("logs", "autoCreate")
        return {name: item.status[name] for name in kept if name in item.status}
    figures = {"logs": seen.get("logs"), "autoCreate": seen.get("config", {}).get("auto_create")}
    return {name: value for name, value in figures.items() if value is not None}
