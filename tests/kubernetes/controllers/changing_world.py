"""A namespace that people change all the while, and what becomes of it: the calm and the disturbed.

The changes are the same wherever they are made. `finish` says what there is once an operator that
nobody disturbs has nothing left to do: objects with status and owners, and the twin's record.

Used by test_restarts and test_faults. Source: ADR 0020.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duramen_operator.names import COMPONENT_LABEL, PAUSED_ANNOTATION
from duramen_operator.resources.conditions import NOT_YET_SUPPORTED, PLACEMENT_SATISFIED
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    running_operator,
    wait_for_objects,
)
from tests.kubernetes.controllers.outcomes import Outcome, describe_objects
from tests.kubernetes.controllers.twin_state import make_bookie
from tests.process.times import HANG_S

CALLS_OF_THREE_PASSES: Final = 120
"""Of this cluster's namespaces and logs: two or three calls for each."""

NOT_ANSWERED: Final = "NotAnswered"
"""The reason of a condition of which the cluster said nothing when it was asked last."""

END_S: Final = HANG_S
BOOKIES: Final = 3
ZOOKEEPERS: Final = 3
BY_HAND: Final = ("corp/ann", "reader", "shop")
CLUSTER: Final = {"security": "none", "acceptAnybody": True, "coldStore": {"url": "s3://b/a"}}
SIZES: Final = {"journal": {"size": "1Gi"}, "ledgers": {"size": "1Gi"}}
MADE: Final = (
    "statefulsets,deployments,services,poddisruptionbudgets,cronjobs,configmaps,"
    "lognamespaces,logs,loggrants,archivepolicies,logclusters,bookiesets,bookies"
)


class Ground(NamedTuple):
    """One namespace, its twin, and the operator of it."""

    objects: Objects
    twin: AdminTwin
    operator: OperatorProcess


class Change(NamedTuple):
    """What somebody does, once something is so."""

    do: Callable[[Ground], None]
    is_time: Callable[[Ground], bool]


def make_changes() -> list[Change]:
    """What people do, in order; the same in every ground."""

    def apply(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> Change:
        return Change(
            lambda ground: ground.objects.apply(kind, name, spec, **metadata), lambda _: True
        )

    def log(name: str, **spec: Any) -> Change:
        return apply("Log", name, {"clusterName": "main", "namespace": "shop", **spec})

    def grant(name: str, user: str, scope: str) -> Change:
        subject = {"clusterName": "main", "subject": {"user": user}, "role": "reader"}
        return apply("LogGrant", name, {**subject, "scope": scope})

    def delete(kind: str, name: str) -> Change:
        # What was never made cannot go: the two worlds would differ for that reason alone.
        return Change(
            lambda ground: ground.objects.delete(kind, name),
            lambda ground: ground.objects.condition(kind, name).startswith("True/"),
        )

    upgraded = {**CLUSTER, "sequencers": {"replicas": 3}, "image": "localhost/duramen:next"}
    return [
        apply("LogCluster", "main", CLUSTER),
        apply("BookieSet", "main", {"clusterName": "main", "replicas": 2, **SIZES}),
        apply("LogNamespace", "shop", {"clusterName": "main"}),
        apply("LogNamespace", "fair", {"clusterName": "main", "deletionPolicy": "Delete"}),
        *[log(f"log-{n}", deletionPolicy="Delete" if n % 2 else "Retain") for n in range(8)],
        Change(give_by_hand, lambda _: True),
        *[grant(f"grant-{n}", f"corp/u{n // 2}", "shop/log-*") for n in range(6)],
        grant("by-hand", *BY_HAND[::2]),
        apply("ArchivePolicy", "all", {"clusterName": "main", "schedule": "0 0 1 1 *"}),
        *[log(f"log-{n}", deletionPolicy="Delete" if n % 2 else "Retain",
              retention={"age": f"{n + 1}h"}, sealed=n > 5) for n in range(8)],
        apply("BookieSet", "main", {"clusterName": "main", "replicas": BOOKIES, **SIZES}),
        *[delete("Log", f"log-{n}") for n in (1, 2, 3)],
        *[delete("LogGrant", f"grant-{n}") for n in (0, 2, 3)],
        apply("LogNamespace", "shop", {"clusterName": "main", "auto_create": True}),
        log("late", truncation="seq:0"),
        apply("ArchivePolicy", "all", {"clusterName": "main", "schedule": "0 3 * * *"}),
        apply("LogCluster", "main", {**CLUSTER, "sequencers": {"replicas": 3}}),
        delete("LogNamespace", "fair"),
        apply("LogCluster", "main", upgraded, annotations={PAUSED_ANNOTATION: "true"}),
        log("late", truncation="seq:0", retention={"age": "9h"}),
        apply("LogCluster", "main", upgraded),
    ]  # fmt: skip


def give_by_hand(ground: Ground) -> None:
    """Somebody gives what an object will say, too."""
    user, role, scope = BY_HAND
    with ground.twin.lock:
        ground.twin.state.grants.give(f"user:{user}", role, scope)


def list_unsettled(ground: Ground) -> list[str]:
    """What is not as wanted yet, or has not gone yet; pods of fake nodes may take their time."""
    objects = ground.objects
    found = []
    for item in objects.list("lognamespaces,logs,loggrants,archivepolicies"):
        kind, name = item["kind"], item["metadata"]["name"]
        said = {
            one["type"]: f"{one['status']}/{one['reason']}"
            for one in item.get("status", {}).get("conditions", ())
            if one["observedGeneration"] == item["metadata"]["generation"]
        }
        is_ready = said.get("Ready", "").startswith("True/")
        # A call that ended with its operator, or found a busy machine, is asked again by the next.
        is_heard = not any(one.endswith(f"/{NOT_ANSWERED}") for one in said.values())
        if "deletionTimestamp" in item["metadata"] or not (is_ready and is_heard):
            found.append(f"{kind} {name}: {said}")
    return found


def settle(ground: Ground, what: str) -> None:
    """Wait until nothing is left to be done: all is told to be so, and passes change nothing.

    What was told before the last life ended says nothing of what was disturbed since.
    """
    last: list[str] = []
    twin = ground.twin

    def is_settled() -> bool:
        last[:] = list_unsettled(ground)
        return not last and len(ground.objects.list("bookies")) == BOOKIES

    def is_at_rest() -> bool:
        calls, changes = twin.call_count + CALLS_OF_THREE_PASSES, len(twin.changes)
        wait_for_objects(lambda: twin.call_count >= calls, END_S, "three more passes")
        return len(twin.changes) == changes and is_settled()

    try:
        wait_for_objects(is_settled, END_S, f"{what} to settle")
        wait_for_objects(is_at_rest, END_S, f"{what} to come to rest")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


def list_unfinished(ground: Ground) -> list[str]:
    """What Kubernetes or the operator still does to pods, or has not told yet."""
    found = []
    for item in ground.objects.list("statefulsets,deployments"):
        status, wanted = item.get("status", {}), item["spec"]["replicas"]
        counts = [status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")]
        is_seen = status.get("observedGeneration") == item["metadata"]["generation"]
        if counts != [wanted] * 3 or not is_seen:
            found.append(f"{item['kind']} {item['metadata']['name']}: {counts} of {wanted}")
    for item in ground.objects.list("logclusters,bookiesets,bookies"):
        told = {one["type"]: one for one in item.get("status", {}).get("conditions", ())}
        ready, progress = told.get("Ready", {}), told.get("Progressing", {})
        is_seen = ready.get("observedGeneration") == item["metadata"]["generation"]
        if not is_seen or ready["status"] != "True" or progress.get("status") == "True":
            found.append(f"{item['kind']} {item['metadata']['name']}: {ready} {progress}")
        elif told.get("EvictionsAllowed", {"status": "True"})["status"] != "True":
            found.append(f"{item['kind']} {item['metadata']['name']}: {told['EvictionsAllowed']}")
        elif told.get(PLACEMENT_SATISFIED, {"status": "True"})["status"] != "True":
            # A pod that was made anew had no node yet when it was looked at last.
            found.append(f"{item['kind']} {item['metadata']['name']}: {told[PLACEMENT_SATISFIED]}")
        elif progress.get("reason") == NOT_YET_SUPPORTED:
            found.append(f"{item['kind']} {item['metadata']['name']}: {progress['message']}")
    for item in ground.objects.list("poddisruptionbudgets"):
        status = item.get("status", {})
        if status.get("currentHealthy", 0) != status.get("expectedPods"):
            found.append(f"PodDisruptionBudget {item['metadata']['name']}: {status}")
    return found


def register_bookies(ground: Ground) -> None:
    """The bookies are there and lack nothing, so that the operator restarts the outdated ones.

    Until now the cluster knew none: which ones are older than the last change depends on when an
    operator lived to make it.
    """
    pods = ground.objects.cluster.list(
        "pods", ground.objects.namespace, f"{COMPONENT_LABEL}=bookie"
    )
    with ground.twin.lock:
        ground.twin.state.bookies[:] = [
            make_bookie(name, "r", name) for name in sorted(one["metadata"]["name"] for one in pods)
        ]


def describe_twin(twin: AdminTwin) -> dict[str, Any]:
    """What became of the cluster."""
    state = twin.state
    return {
        "grants": sorted(state.grants.names()),
        "namespaces": {name: one.to_json() for name, one in sorted(state.namespaces.items())},
        "logs": sorted(
            (log.namespace, log.name, log.is_ended, log.deleted_ms is not None,
             json.dumps(log.config.to_json()["retention"]))
            for log in state.logs.values()
        ),
    }  # fmt: skip


def make_twin() -> AdminTwin:
    """Of a cluster that judges by grants."""
    twin = AdminTwin()
    twin.state.security = "on"
    return twin


def live_calmly(cluster: ClusterHandle) -> Outcome:
    """What becomes of the changes where nobody kills."""
    with running_twin(make_twin()) as twin, cluster.namespace() as namespace:
        operator = OperatorProcess(cluster.kubeconfig, namespace, twin.url)
        ground = Ground(Objects(cluster, namespace), twin, operator)
        with running_operator(operator):
            return finish(ground, make_changes(), "the calm world")


def do_all(ground: Ground, changes: list[Change]) -> None:
    """What is left of the changes, each at its time."""
    for change in changes:
        ready = functools.partial(change.is_time, ground)
        wait_for_objects(ready, END_S, "the next change to have its time")
        change.do(ground)


def list_left(objects: Objects) -> list[str]:
    """What is ours and still there, but for claims."""
    names = [item["metadata"]["name"] for item in objects.list(f"{MADE},pods")]
    return [name for name in names if name != "kube-root-ca.crt"]


def list_faults(log: str) -> list[str]:
    """Lines with a traceback that an operator is to answer for.

    Not that kopf's generators complain of being closed when a process ends.
    """
    ending = '"message":"an error occurred during closing of asynchronous generator'
    return [line for line in log.splitlines() if "Traceback" in line and ending not in line]


def finish(ground: Ground, changes: list[Change], what: str) -> Outcome:
    """What there is once the changes that are left were made and nothing is left to be done."""
    do_all(ground, changes)
    settle(ground, what)
    register_bookies(ground)
    left: list[str] = []

    def is_finished() -> bool:
        left[:] = list_unfinished(ground)
        return not left

    try:
        wait_for_objects(is_finished, END_S, f"{what} to be finished")
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from None
    settle(ground, what)
    items = [
        item for item in ground.objects.list(MADE) if item["metadata"]["name"] != "kube-root-ca.crt"
    ]
    ids = {str(log.log_id): log.name for log in ground.twin.state.logs.values()}
    objects = describe_objects(items, ground.objects.namespace, ids)
    return {**objects, **describe_twin(ground.twin)}


def check_calls(twin: AdminTwin) -> None:
    """Nothing was made twice, deleted twice with effect, or asked of what nobody named."""
    made = Counter(call.path for call in twin.changes if call.status == 201)
    assert set(made.values()) == {1}, made
    # An answer that nobody heard may be asked for once more, and finds it done.
    assert not [call for call in twin.changes if call.status >= 500]
    deleted = {log.name for log in twin.state.logs.values() if log.deleted_ms is not None}
    assert deleted == {"log-1", "log-3"}
    named = {f"/v1/namespaces/shop/logs/{name}" for name in
             (*(f"log-{n}" for n in range(8)), "late")}  # fmt: skip
    named |= {f"{path}{verb}" for path in named for verb in (":end", ":truncate")}
    named |= {"/v1/namespaces/shop", "/v1/namespaces/fair", "/v1/grants"}
    grants = "/v1/cluster/disruptions"
    assert {call.path for call in twin.changes if not call.path.startswith(grants)} <= named
    assert not twin.state.disruptions, "each grant was ended, whoever took it"
