"""Objects and answers of one cluster, as Kubernetes and the administration give them.

The cluster `main` in the namespace `shop`: two zones, one bookie of which drains, one that crashes,
a log that is not healthy. Used by the tests beside this module.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

API_VERSION = "duramen.io/v1alpha1"
Json = dict[str, Any]


def condition(kind: str, status: str, reason: str = "Because", message: str = "") -> Json:
    """A condition."""
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    }  # fmt: skip


def custom(kind: str, name: str, spec: Json, *conditions: Json, **status: Any) -> Json:
    """An object of Duramen's."""
    found: Json = {
        "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "shop"},
        "spec": spec, "status": {"conditions": list(conditions), **status},
    }  # fmt: skip
    return found


def cluster(*conditions: Json) -> Json:
    """The LogCluster, ready unless said otherwise."""
    spec = {
        "security": "none", "acceptAnybody": True, "image": "localhost/duramen:test",
        "zookeeper": {"members": 1},
        "sequencers": {"replicas": 1}, "writeProxies": {"replicas": 1},
        "readProxies": {"replicas": 1},
    }  # fmt: skip
    return custom("LogCluster", "main", spec, *(conditions or (condition("Ready", "True"),)))


def pod(name: str, component: str, *, zone: str = "", is_ready: bool = True, **more: Any) -> Json:
    """A pod of the cluster; `more` goes over its container's status."""
    labels = {
        "app.kubernetes.io/name": "duramen", "app.kubernetes.io/component": component,
        "duramen.io/cluster": "main",
    }  # fmt: skip
    if zone:
        labels |= {"duramen.io/region": "eu", "duramen.io/zone": zone}
    status = {"name": "server", "restartCount": 0, "state": {"running": {}}, **more}
    ready = {"type": "Ready", "status": str(is_ready), "message": "" if is_ready else "not yet"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {
            "nodeName": f"node-{zone or 'x'}",
            "containers": [
                {
                    "name": "server", "image": "localhost/duramen:test",
                    "ports": [{"name": "admin", "containerPort": 7102}],
                    "env": [{"name": "COLD_STORE_KEY", "value": "planted-env-value-1"}],
                }
            ],
        },
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [status]},
    }  # fmt: skip


def crashing(name: str, zone: str) -> Json:
    """A bookie's pod that cannot start."""
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    last = {"terminated": {"exitCode": 3}}
    return pod(
        name, "bookie", zone=zone, is_ready=False, state=state, lastState=last, restartCount=7
    )


def registered(name: str, zone: str, **more: Any) -> Json:
    """A row of /v1/cluster/bookies."""
    row = {
        "id": name, "incarnation": "0" * 16, "region": "eu", "rack": zone, "state": "rw",
        "duty": "serving", "weight": 1.0, "free_bytes": 5 << 30, "doubtful": False,
        "takes_new_data": True, "steady_in_s": 0,
    }  # fmt: skip
    return row | more


def repair(**more: Any) -> Json:
    """The answer of /v1/cluster/repair."""
    backlog = {"tasks": 0, "left_bytes": 0, "running": 0, "running_max": 4}
    answer: Json = {
        "auditor": "main-sequencer-0", "backlog": backlog, "bytes_per_s": 0, "estimate_s": None,
        "unrepairable": [], "drains": [], "last_round": None,
    }  # fmt: skip
    return answer | more


def lease(renewed: str | None = None) -> Json:
    """The operator's Lease; renewed right now unless said otherwise."""
    told = renewed or datetime.now(UTC).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": "main-operator-x_a1b2", "leaseDurationSeconds": 15, "renewTime": told}
    return {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "duramen-operator", "namespace": "shop"}, "spec": spec,
    }  # fmt: skip


def grant(name: str, *conditions: Json) -> Json:
    """A LogGrant."""
    spec = {
        "clusterName": "main", "subject": {"user": f"corp/{name}"}, "role": "reader",
        "scope": "orders",
    }  # fmt: skip
    return custom("LogGrant", name, spec, *conditions, who=f"user:corp/{name}", owned=True)


def log(name: str, *conditions: Json, log_id: str = "7") -> Json:
    """A Log."""
    spec = {"clusterName": "main", "namespace": "orders"}
    return custom("Log", name, spec, *conditions, logId=log_id)
