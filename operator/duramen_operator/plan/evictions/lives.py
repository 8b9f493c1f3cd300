"""States of pods: whether one serves, whether it counts for a budget, which process it runs.

A pod serves when its containers are ready. It is Ready when its readiness gate says so as well,
which is a word about copies: budgets ask for that, and nobody else does.

Called by the plan's parts and by `observe`. Pure. Source: docs/kubernetes/evictions.md 3 and 6.
"""

from collections.abc import Iterator
from typing import Final

from duramen_operator.names import (
    BOOKIE,
    CAUGHT_UP_GATE,
    COMPONENT_LABEL,
    NOT_STOPPED_CONDITION,
    name_bookie_service,
)
from duramen_operator.plan.observed import Json, KubeObject, Observed, PodLife
from duramen_operator.plan.steps import Status

_GATES_NOT_READY: Final = "ReadinessGatesNotReady"
"""The kubelet's word."""
_OURS: Final = (CAUGHT_UP_GATE, NOT_STOPPED_CONDITION)
_FIELDS: Final = ("type", "status", "reason", "message", "lastTransitionTime")


def find_pod_condition(pod: KubeObject, condition_type: str) -> Json | None:
    """A condition of a pod."""
    for condition in pod.status.get("conditions") or ():
        if condition.get("type") == condition_type:
            found: Json = condition
            return found
    return None


def report_pod(pod: KubeObject, said: Json) -> Status:
    """The step that says one condition of ours of a pod. The other one is said again as it is: an
    apply takes back what was said before and is left out."""
    told = [found for one in _OURS if (found := find_pod_condition(pod, one)) is not None]
    kept = [
        {name: one[name] for name in _FIELDS if one.get(name) is not None}
        for one in told
        if one["type"] != said["type"]
    ]
    return Status(pod.ref, pod.uid, {"conditions": [*kept, said]})


def has_no_process(pod: KubeObject) -> bool:
    """Whether nothing runs in it: by its kubelet's word, or since it never found a node.

    Of a silent node nothing is known: its pods serve perhaps.
    """
    said = find_pod_condition(pod, "ContainersReady") or {}
    is_placed = bool(pod.spec.get("nodeName"))
    return not is_running(pod) and (not is_placed or said.get("status") == "False")


def serves(observed: Observed, pod_name: str) -> bool:
    """Whether the pod of that name is there and its containers are ready."""
    pod = observed.find("Pod", pod_name)
    return pod is not None and is_serving(pod)


def is_serving(pod: KubeObject) -> bool:
    """Whether a pod's containers are ready, and it is not on its way out.

    Of a node that is silent Kubernetes says that its pods are not Ready, and leaves the rest as it
    was; the kubelet gives a reason where it is only the gate.
    """
    ready = find_pod_condition(pod, "Ready") or {}
    is_held = ready.get("reason") == _GATES_NOT_READY
    return _is_true(pod, "ContainersReady") and (ready.get("status") == "True" or is_held)


def is_running(pod: KubeObject) -> bool:
    """Whether a process runs in it, ready or not."""
    statuses = pod.status.get("containerStatuses") or ()
    return any("running" in (one.get("state") or {}) for one in statuses)


def is_ready(observed: Observed, pod_name: str) -> bool:
    """Whether the pod of that name counts as healthy for a budget."""
    pod = observed.find("Pod", pod_name)
    return pod is not None and _is_true(pod, "Ready")


def life_of(pod: KubeObject) -> PodLife:
    """Which process a pod runs now."""
    statuses = pod.status.get("containerStatuses") or ()
    return PodLife(pod.uid, sum(int(one.get("restartCount") or 0) for one in statuses))


def has_gate(pod: KubeObject) -> bool:
    """Whether a pod is not Ready before the operator says that it is caught up."""
    gates = pod.spec.get("readinessGates") or ()
    return any(gate.get("conditionType") == CAUGHT_UP_GATE for gate in gates)


def list_bookie_pods(observed: Observed) -> Iterator[KubeObject]:
    """Pods of bookies, whether an object stands for them or not; not those that leave."""
    for pod in observed.list("Pod"):
        if pod.labels.get(COMPONENT_LABEL) == BOOKIE and not pod.is_leaving:
            yield pod


def knows_no_bookie(observed: Observed) -> bool:
    """Whether the cluster says that no bookie ever registered, and none is noted to have."""
    admin = observed.admin
    is_told_so = admin.is_reachable and admin.bookies is not None and not admin.bookies
    return is_told_so and not any(one.status.get("incarnation") for one in observed.list("Bookie"))


def list_lives(observed: Observed) -> dict[str, PodLife]:
    """Bookies' pods that serve: whoever they are has registered by then."""
    return {pod.name: life_of(pod) for pod in list_bookie_pods(observed) if is_serving(pod)}


def is_waited_for(observed: Observed) -> bool:
    """Whether somebody waits for an answer: a pod for its gate, or all for the budget to open."""
    pods = list(list_bookie_pods(observed))
    unready = [pod for pod in pods if not _is_true(pod, "Ready")]
    if any(is_serving(pod) and has_gate(pod) for pod in unready):
        return True
    budget = observed.find("PodDisruptionBudget", name_bookie_service(observed.cluster_name))
    is_closed = budget is not None and budget.spec.get("maxUnavailable") == 0
    return is_closed and bool(pods) and len(unready) <= 1


def _is_true(pod: KubeObject, condition_type: str) -> bool:
    condition = find_pod_condition(pod, condition_type)
    return not pod.is_leaving and condition is not None and condition.get("status") == "True"
