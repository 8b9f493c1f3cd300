"""The readiness gate of bookies' pods: a pod is Ready once its bookie has what it missed.

So the API server's own count of a budget waits for copies, also while no operator lives. Once said
of a process it stays: what a running bookie lacks later closes the budget, and is no reason to call
it unready. Every bookie's pod is told, whatever object stands for it, since without it would never
be Ready. Called by `plan.cluster.plan`. Pure. Source: docs/kubernetes/evictions.md 6, 7 and 9.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

from duramen_operator.names import CAUGHT_UP_GATE
from duramen_operator.plan.conditions import Truth
from duramen_operator.plan.evictions.lives import (
    find_pod_condition,
    has_gate,
    is_serving,
    life_of,
    list_bookie_pods,
    report_pod,
)
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.plan.steps import Status

_COPIES_MISSING: Final = "CopiesMissing"
_RUN: Final = "said of its containers' run"


class _Verdict(NamedTuple):
    status: Truth
    reason: str
    message: str


def plan_gates(observed: Observed, now: datetime) -> Iterator[Status]:
    """What bookies' pods are told: no step where they know, or where it is not known."""
    for pod in list_bookie_pods(observed):
        if not has_gate(pod):
            continue
        found = find_pod_condition(pod, CAUGHT_UP_GATE) or {}
        verdict = _judge(observed, pod, found)
        if verdict is None or _read(found) == verdict:
            continue
        yield report_pod(pod, _encode(verdict, found, now))


def _judge(observed: Observed, pod: KubeObject, found: Json) -> _Verdict | None:
    """None: what it was told stays."""
    admin = observed.admin
    row = (admin.bookies or {}).get(pod.name, {})
    is_away = admin.is_reachable and row.get("state", "absent") == "absent"
    if not is_serving(pod) or is_away:
        return _Verdict("False", "NotServing", "its bookie does not serve")
    standing = admin.standing
    if _is_told(found, pod):
        return None
    if standing is not None and standing.is_unknown_call:
        message = f"its services do not tell who is caught up, {_name_run(pod)}"
        return _Verdict("True", "NotJudged", message)
    row = {} if standing is None or standing.rows is None else standing.rows.get(pod.name, {})
    if not row or standing is None or standing.lives.get(pod.name) != life_of(pod):
        if found.get("reason") == _COPIES_MISSING:
            return None  # answers come and go while it waits
        # Not yet of this process, whatever was said of the one before.
        return _Verdict("False", "NotJudged", "it is not known yet whether its bookie lacks copies")
    if row["lacks_count"] or not row["there"]:
        message = "its bookie lacks copies that it is to hold, and gets them"
        return _Verdict("False", _COPIES_MISSING, message)
    return _Verdict("True", "CaughtUp", f"its bookie lacked no copy, {_name_run(pod)}")


def _is_told(found: Json, pod: KubeObject) -> bool:
    """Whether it was said True of this process; by a hand, which names no run, of any."""
    message = str(found.get("message") or "")
    is_of_now = message.endswith(_name_run(pod)) or _RUN not in message
    return found.get("status") == "True" and is_of_now


def _name_run(pod: KubeObject) -> str:
    """The condition remembers of which process it was said."""
    return f"{_RUN} {life_of(pod).restart_count}"


def _read(found: Json) -> _Verdict:
    reason, message = (str(found.get(name) or "") for name in ("reason", "message"))
    return _Verdict(found.get("status", "Unknown"), reason, message)


def _encode(verdict: _Verdict, found: Json, now: datetime) -> dict[str, str]:
    is_same = found.get("status") == verdict.status
    since = found.get("lastTransitionTime") if is_same else None
    return {
        "type": CAUGHT_UP_GATE,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message,
        "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
