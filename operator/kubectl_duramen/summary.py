"""The state of a cluster in one document, from everything that is known of it. Pure.

What the cluster's administration says of a bookie counts more than what the operator wrote into its
object a moment ago; the pod says why a process is not there at all. A log is shown where it is not
healthy, with the reason of the condition that says so. `trouble` gathers, worst first, why a person
may have to act.

Called by `status` (which renders or prints it) and `bundle`. Source: docs/kubernetes/kubectl.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from duramen.units import agree
from duramen_operator.names import (
    BOOKIE,
    BOOKIE_SET_LABEL,
    CAUGHT_UP_GATE,
    COMPONENT_LABEL,
    PAUSED_ANNOTATION,
    READ_PROXY,
    REGION_LABEL,
    SEQUENCER,
    WRITE_PROXY,
    ZONE_LABEL,
    ZOOKEEPER,
)
from kubectl_duramen.sources import OPERATOR, Document, Snapshot

SERVICES: Final = (SEQUENCER, WRITE_PROXY, READ_PROXY, ZOOKEEPER)
NOT_HEALTH: Final = frozenset(
    {"Progressing", "Secure", "Archived", "SafeToScaleDown", "EvictionsAllowed"}
)
"""Conditions that may be False on a good day."""


def summarize(snapshot: Snapshot) -> Document:
    """Everything that `kubectl duramen status` tells; what is not known is null."""
    cluster = snapshot.cluster
    pods = snapshot.objects.get("pods", [])
    bookies = _join_bookies(snapshot)
    summary: Document = {
        "cluster": snapshot.name,
        "namespace": cluster["metadata"].get("namespace"),
        "image": cluster.get("spec", {}).get("image"),
        "paused": cluster["metadata"].get("annotations", {}).get(PAUSED_ANNOTATION) == "true",
        "operator": {
            "serves": None if OPERATOR in snapshot.unknown else snapshot.silence is None,
            "why": snapshot.silence,
        },
        "conditions": list_conditions(cluster),
        "bookie_sets": [_encode_set(one) for one in snapshot.objects.get("bookiesets", [])],
        "bookies": bookies,
        "services": {role: _encode_service(role, pods, cluster) for role in SERVICES},
        "repair": _encode_repair(snapshot.admin.get("repair")),
        "logs": _encode_logs(snapshot),
        "grants": _encode_grants(snapshot.objects.get("loggrants")),
        "archive": [_encode_policy(one) for one in snapshot.objects.get("archivepolicies", [])],
        "unknown": dict(sorted(snapshot.unknown.items())),
    }
    summary["trouble"] = _list_trouble(summary)
    summary["ready"] = is_true(cluster, "Ready") and snapshot.silence is None
    return summary


def list_conditions(thing: Mapping[str, Any]) -> list[Document]:
    """Type, status, reason and message of each condition."""
    names = ("type", "status", "reason", "message")
    found = (thing.get("status") or {}).get("conditions") or []
    return [{name: condition.get(name) for name in names} for condition in found]


def is_true(thing: Mapping[str, Any], kind: str) -> bool:
    """Whether a condition is True."""
    return any(c["type"] == kind and c["status"] == "True" for c in list_conditions(thing))


def list_unhealthy(thing: Mapping[str, Any]) -> list[Document]:
    """Conditions that say that something is not as it should be, or not known."""
    return [
        condition
        for condition in list_conditions(thing)
        if condition["type"] not in NOT_HEALTH and condition["status"] != "True"
    ]


def explain_pod(pod: Mapping[str, Any]) -> str | None:
    """Why a pod does not serve; None: it does."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "is going"
    for container in (
        *status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()),
    ):  # fmt: skip
        state = container.get("state", {})
        waiting = state.get("waiting")
        if waiting and waiting.get("reason") not in ("PodInitializing", "ContainerCreating"):
            last = container.get("lastState", {}).get("terminated", {})
            ended = f", ended with {last['exitCode']}" if "exitCode" in last else ""
            return f"{waiting.get('reason')}{ended}: {waiting.get('message', '')}".rstrip(": ")
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    # With a node it says perhaps what failed for an earlier pod of that name.
    if scheduled.get("status") == "False" and not pod["spec"].get("nodeName"):
        return f"{scheduled.get('reason')}: {scheduled.get('message', '')}".rstrip(": ")
    if status.get("phase") != "Running":
        return f"{status.get('phase', 'Unknown')}: {status.get('reason', '')}".rstrip(": ")
    ready = conditions.get("Ready", {})
    # Held back by its gate alone it serves, and catches up.
    if ready.get("status") != "True" and ready.get("reason") != "ReadinessGatesNotReady":
        return f"runs, not ready: {ready.get('message') or ready.get('reason') or ''}".rstrip(": ")
    return None


# --- Parts ---------------------------------------------------------------------------------------


def _join_bookies(snapshot: Snapshot) -> list[Document]:
    """Every bookie that anybody knows of, by place."""
    objects = {one["metadata"]["name"]: one for one in snapshot.objects.get("bookies", [])}
    pods = {
        pod["metadata"]["name"]: pod
        for pod in snapshot.objects.get("pods", [])
        if _labels(pod).get(COMPONENT_LABEL) == BOOKIE
    }
    registered = {row["id"]: row for row in snapshot.admin.get("registered", {}).get("bookies", [])}
    drains = {row["bookie"]: row for row in (snapshot.admin.get("repair") or {}).get("drains", [])}
    rows = [
        _encode_bookie(
            name, objects.get(name), pods.get(name), registered.get(name), drains.get(name),
            knows_pods="pods" in snapshot.objects, knows_registered="registered" in snapshot.admin,
        )
        for name in sorted({*objects, *pods, *registered})
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["region"] or "", row["zone"] or "", row["bookie"]))


def _encode_bookie(
    name: str,
    thing: Document | None,
    pod: Document | None,
    row: Document | None,
    drain: Document | None,
    *,
    knows_pods: bool,
    knows_registered: bool,
) -> Document:
    labels = {**_labels(thing or {}), **_labels(pod or {})}
    status = (thing or {}).get("status") or {}
    row = row or {}
    why: list[str] = []
    if pod is not None:
        why += filter(None, [explain_pod(pod)])
    elif knows_pods:
        why.append("has no pod")
    if knows_registered and not row:
        why.append("is not registered")
    elif row.get("state") == "ro":
        why.append("takes no new data: read-only")
    elif row.get("state") == "absent":
        why.append("is registered and not there")
    if row.get("doubtful"):
        why.append("is doubtful: writers found it slow or failing")
    return {
        "bookie": name,
        "region": labels.get(REGION_LABEL) or status.get("region") or row.get("region"),
        "zone": labels.get(ZONE_LABEL) or status.get("zone") or row.get("rack"),
        "bookie_set": labels.get(BOOKIE_SET_LABEL),
        "state": row.get("state") or status.get("identity") or None,
        "duty": row.get("duty"),
        "free_bytes": row.get("free_bytes", status.get("freeBytes")),
        "takes_new_data": row.get("takes_new_data", status.get("writable")),
        "node": (pod or {}).get("spec", {}).get("nodeName") or status.get("node") or None,
        "restarts": None if pod is None else _count_restarts(pod),
        "caught_up": None if pod is None else _is_caught_up(pod),
        "drain": None if drain is None else {
            name: drain.get(name) for name in ("duty", "fragments", "bytes", "waits_for")
        },
        "why": why or [_format_condition(c) for c in list_unhealthy(thing or {})],
    }  # fmt: skip


def _is_caught_up(pod: Document) -> bool | None:
    """None: nothing was said of it, as of a pod of before the gate."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == CAUGHT_UP_GATE:
            return bool(condition["status"] == "True")
    return None


def _encode_service(role: str, pods: Iterable[Document], cluster: Document) -> Document:
    mine = [pod for pod in pods if _labels(pod).get(COMPONENT_LABEL) == role]
    spec = cluster.get("spec", {})
    wanted = {
        SEQUENCER: spec.get("sequencers", {}).get("replicas"),
        WRITE_PROXY: spec.get("writeProxies", {}).get("replicas"),
        READ_PROXY: spec.get("readProxies", {}).get("replicas"),
        ZOOKEEPER: None if _has_servers(spec) else spec.get("zookeeper", {}).get("members"),
    }[role]
    why = {pod["metadata"]["name"]: explain_pod(pod) for pod in mine}
    return {
        "wanted": wanted,
        "pods": len(mine),
        "ready": sum(reason is None for reason in why.values()),
        "restarts": sum(map(_count_restarts, mine)),
        "not_ready": {name: reason for name, reason in sorted(why.items()) if reason is not None},
        "external": role == ZOOKEEPER and _has_servers(spec),
    }


def _has_servers(spec: Mapping[str, Any]) -> bool:
    return bool((spec.get("zookeeper", {}).get("external") or {}).get("servers"))


def _encode_set(thing: Document) -> Document:
    status = thing.get("status") or {}
    return {
        "bookie_set": thing["metadata"]["name"],
        "wanted": thing.get("spec", {}).get("replicas"),
        "replicas": status.get("replicas"),
        "ready": status.get("readyReplicas"),
        "why": [_format_condition(condition) for condition in list_unhealthy(thing)],
    }


def _encode_repair(answer: Mapping[str, Any] | None) -> Document | None:
    if answer is None:
        return None
    backlog = answer.get("backlog", {})
    return {
        "auditor": answer.get("auditor"),
        "fragments": backlog.get("tasks"),
        "left_bytes": backlog.get("left_bytes"),
        "bytes_per_s": answer.get("bytes_per_s"),
        "estimate_s": answer.get("estimate_s"),
        "unrepairable": [
            {name: one.get(name) for name in ("log_id", "epoch", "first_entry", "reason")}
            for one in answer.get("unrepairable", ())
        ],
        "misplaced": (answer.get("last_round") or {}).get("placement_violations"),
    }


def _encode_logs(snapshot: Snapshot) -> Document:
    """How many there are, and those that are not healthy."""
    things = snapshot.objects.get("logs")
    lost = {
        one.get("log_id") for one in (snapshot.admin.get("repair") or {}).get("unrepairable", ())
    }
    unhealthy = []
    for thing in things or []:
        why = [_format_condition(condition) for condition in list_unhealthy(thing)]
        log_id = (thing.get("status") or {}).get("logId")
        if log_id and log_id in lost:
            why.append("some of its entries cannot be repaired: kubectl duramen status --json")
        if why:
            unhealthy.append({"log": format_log(thing), "why": why})
    owners = snapshot.admin.get("owners")
    for silent in (owners or {}).get("silent", ()):
        unhealthy.append(
            {"log": f"all of {silent}", "why": [f"sequencer {silent} gives no answer"]}
        )
    return {
        "objects": None if things is None else len(things),
        "open": None if owners is None else len(owners.get("logs", ())),
        "unhealthy": sorted(unhealthy, key=lambda row: str(row["log"])),
    }


def format_log(thing: Mapping[str, Any]) -> str:
    """`namespace/log` as its users name it."""
    spec = thing.get("spec", {})
    return f"{spec.get('namespace', '?')}/{spec.get('name') or thing['metadata']['name']}"


def _encode_grants(things: list[Document] | None) -> Document:
    """How many LogGrants there are, and those whose grant is not there."""
    found = [(thing, _list_missing(thing)) for thing in things or []]
    unhealthy = [
        {"grant": _format_grant(thing), "why": [_format_condition(one) for one in why]}
        for thing, why in found
        if why
    ]
    return {
        "objects": None if things is None else len(things),
        "unhealthy": sorted(unhealthy, key=lambda row: str(row["grant"])),
    }


def _list_missing(thing: Document) -> list[Document]:
    """Why a grant is not there, though it would count: a cluster that asks nobody has none."""
    return [one for one in list_unhealthy(thing) if one.get("reason") != "NotJudged"]


def _format_grant(thing: Document) -> str:
    spec, who = thing.get("spec", {}), (thing.get("status") or {}).get("who")
    name = thing["metadata"]["name"]
    return f"{name}: {spec.get('role', '?')} on {spec.get('scope', '?')} to {who or '?'}"


def _encode_policy(thing: Document) -> Document:
    status = thing.get("status") or {}
    last = status.get("lastRun") or {}
    why = [_format_condition(condition) for condition in list_unhealthy(thing)]
    if status.get("mismatches"):
        why.insert(0, agree(f"not as at the bookies: {status['mismatches']} copies"))
    if status.get("failedRuns"):
        why.append(agree(f"{status['failedRuns']} runs failed since the last good one"))
    return {
        "policy": thing["metadata"]["name"],
        "suspended": bool(thing.get("spec", {}).get("suspend")),
        "last_run": {name: last.get(name) or None for name in ("name", "result", "finished")},
        "last_success": status.get("lastSuccess") or None,
        "lag_segments": status.get("lagSegments"),
        "lag_seconds": status.get("lagSeconds"),
        "why": why,
    }


def _list_trouble(summary: Document) -> list[str]:
    """Why somebody may have to act, worst first."""
    found = []
    if summary["operator"]["why"]:
        found.append(f"{summary['operator']['why']}: conditions are those of its last pass")
    repair = summary["repair"]
    if repair is not None and repair["unrepairable"]:
        count = len(repair["unrepairable"])
        found.append(agree(f"{count} fragments cannot be repaired: duramen repair status"))
    found += [
        f"{row['bookie']} {'; '.join(row['why'])}" for row in summary["bookies"] if row["why"]
    ]
    for role, service in summary["services"].items():
        found += [f"{name} {why}" for name, why in service["not_ready"].items()]
        if service["wanted"] and not service["pods"] and "pods" not in summary["unknown"]:
            found.append(f"{role} has no pod")
    count = len(summary["logs"]["unhealthy"])
    if count:
        found.append(f"{count} {'log is' if count == 1 else 'logs are'} not healthy")
    count = len(summary["grants"]["unhealthy"])
    if count:
        found.append(f"{count} {'grant is' if count == 1 else 'grants are'} not there")
    if summary["paused"]:
        found.append(f"the operator only looks: annotation {PAUSED_ANNOTATION}")
    return found


def _format_condition(condition: Mapping[str, Any]) -> str:
    head = f"{condition['type']} {condition['status']}"
    reason = f" ({condition['reason']})" if condition.get("reason") else ""
    return f"{head}{reason}: {condition.get('message') or ''}".rstrip(": ")


def _labels(thing: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = thing.get("metadata", {}).get("labels") or {}
    return labels


def _count_restarts(pod: Mapping[str, Any]) -> int:
    found = pod.get("status", {}).get("containerStatuses", ())
    return sum(container.get("restartCount", 0) for container in found)
