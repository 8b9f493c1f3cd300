"""Restarts of members of ZooKeeper and of sequencers: one at a time, by a grant and an eviction.

Their StatefulSets are updated OnDelete, so a pod runs on as before the last change until it is
stopped here. The token of a grant is drawn from the pod's uid: an operator that is started anew
asks the same question, and knows which of its grants are over.

Called by `plan.cluster.plan` and `status`. Pure. Source: docs/kubernetes/restarts.md.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from duramen_operator.names import (
    NOT_STOPPED_CONDITION,
    SEQUENCER,
    ZOOKEEPER,
    name_component,
)
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.conditions import format_time
from duramen_operator.plan.evictions.lives import find_pod_condition, is_running, is_serving
from duramen_operator.plan.observed import Json, KubeObject, Ref
from duramen_operator.plan.steps import Call, Patch, Restart, Status

LIFE_MS: Final = 600_000
"""Of a grant, which is not renewed: what does not come up in that time is for people, and keeps
nothing else from its turn."""

_COMPONENTS: Final = (ZOOKEEPER, SEQUENCER)
"""In the order in which they are restarted."""
_TOKEN_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class _Workload:
    """A StatefulSet whose pods are restarted here.

    Attributes:
        pods: by ordinal; None where one is missing.
    """

    component: str
    stateful_set: KubeObject
    pods: tuple[KubeObject | None, ...]

    @property
    def outdated(self) -> Sequence[KubeObject]:
        """Pods that run as before the last change, from the highest ordinal down; none before the
        controller has seen that change."""
        status = self.stateful_set.status
        revision = status.get("updateRevision")
        if not revision or status.get("observedGeneration") != self.stateful_set.generation:
            return ()
        found = [pod for pod in self.pods if pod is not None and _is_of_another(pod, revision)]
        return found[::-1]

    @property
    def is_complete(self) -> bool:
        """Whether each ordinal has a pod that is to stay."""
        return all(pod is not None and not pod.is_leaving for pod in self.pods)

    def count_serving(self, but: KubeObject) -> int:
        """Of the others."""
        return sum(pod is not None and pod is not but and is_serving(pod) for pod in self.pods)


def plan_restarts(frame: ClusterFrame) -> Iterator[Call | Restart | Status]:
    """The next step towards pods that run as their StatefulSets say; at most one pod is stopped."""
    admin = frame.observed.admin
    own = [one for one in admin.disruptions or () if _is_ours(frame, one)]
    workloads = list(_list_workloads(frame))
    for grant in own:
        yield from _go_on(frame, workloads, grant)
    broken = [p for one in workloads for p in one.outdated if _may_be_mended(one, p)]
    if broken:
        yield Restart(broken[0].ref, broken[0].uid, broken[0].resource_version)
    if broken or own:
        return
    standing = admin.standing
    is_of_before = standing is not None and standing.is_unknown_call
    for workload in workloads:
        outdated = workload.outdated
        if is_of_before and workload.component == ZOOKEEPER:
            continue  # sequencers come first: they are whom a grant is asked of
        if outdated:
            yield from _begin(frame, workload, outdated[0], is_asked=not is_of_before)
            return


def list_outdated(frame: ClusterFrame) -> tuple[str, ...]:
    """Names of pods that are to be restarted."""
    return tuple(
        sorted(pod.name for workload in _list_workloads(frame) for pod in workload.outdated)
    )


def has_broken_members(frame: ClusterFrame) -> bool:
    """Whether members of ZooKeeper do not run, and would by their StatefulSet."""
    return any(
        not is_running(pod)
        for workload in _list_workloads(frame)
        if workload.component == ZOOKEEPER
        for pod in workload.outdated
    )


def plan_update_strategy(frame: ClusterFrame, manifest: Json) -> Iterator[Patch]:
    """What has a StatefulSet of before no longer restart its pods by itself.

    By a patch: an apply leaves the defaults of the old strategy alone, and with them the new one is
    refused.
    """
    found = frame.observed.find(manifest["kind"], manifest["metadata"]["name"])
    wanted = manifest["spec"].get("updateStrategy", {}).get("type")
    if found is None or found.is_leaving or frame.cluster.uid not in found.owner_uids:
        return
    if wanted == "OnDelete" and found.spec.get("updateStrategy", {}).get("rollingUpdate"):
        strategy = {"type": wanted, "rollingUpdate": None}
        patch = {"spec": {"updateStrategy": strategy}}
        yield Patch(found.ref, found.uid, found.resource_version, patch)


def name_holder(frame: ClusterFrame) -> str:
    """Who the operator is to whoever looks at grants: of this very LogCluster."""
    return f"operator {frame.namespace}/{frame.name} {frame.cluster.uid}"


def make_token(frame: ClusterFrame, pod: KubeObject) -> str:
    """The question whether this very pod may be stopped."""
    text = f"{frame.cluster.uid}/{pod.uid}/restart"
    return hashlib.sha256(text.encode()).hexdigest()[:_TOKEN_DIGITS]


def _is_ours(frame: ClusterFrame, grant: Json) -> bool:
    """Whether a grant was taken here; `plan.removal` takes those of bookies."""
    component = str(grant.get("target")).partition("/")[0]
    return component in _COMPONENTS and grant.get("holder") == name_holder(frame)


def _list_workloads(frame: ClusterFrame) -> Iterator[_Workload]:
    observed = frame.observed
    for component in _COMPONENTS:
        name = name_component(frame.name, component)
        found = observed.find("StatefulSet", name)
        if found is None or found.is_leaving or frame.cluster.uid not in found.owner_uids:
            continue
        count = int(found.spec.get("replicas", 1))
        pods = tuple(observed.find("Pod", f"{name}-{index}") for index in range(count))
        yield _Workload(component, found, pods)


def _is_of_another(pod: KubeObject, revision: object) -> bool:
    runs = pod.labels.get("controller-revision-hash")
    return bool(runs) and runs != revision


def _may_be_mended(workload: _Workload, pod: KubeObject) -> bool:
    """Whether an outdated pod does not serve and may be stopped without asking, the next one only
    when the one before is there again.

    Of a silent node nothing is known: its pods serve perhaps. A member that runs may lack nothing
    but a quorum, so then the others have to serve.
    """
    said = find_pod_condition(pod, "ContainersReady") or {}
    if not workload.is_complete or said.get("status") != "False":
        return False
    count = len(workload.pods)
    needed = count // 2 + 1 if workload.component == ZOOKEEPER else count - 1
    return not is_running(pod) or workload.count_serving(but=pod) >= needed


def _begin(
    frame: ClusterFrame, workload: _Workload, pod: KubeObject, *, is_asked: bool
) -> Iterator[Restart]:
    """Stop a pod that serves, where everybody else does and nobody else has a grant."""
    is_whole = workload.count_serving(but=pod) == len(workload.pods) - 1
    if not (is_whole and is_serving(pod) and _has_room(frame, workload)):
        return
    question = _make_question(frame, workload, pod) if is_asked else None
    if question is None or frame.observed.admin.disruptions == ():
        yield Restart(pod.ref, pod.uid, pod.resource_version, question)


def _has_room(frame: ClusterFrame, workload: _Workload) -> bool:
    """Whether the eviction would not be refused, so that no grant is taken for nothing."""
    budget = frame.observed.find("PodDisruptionBudget", workload.stateful_set.name)
    if budget is None or budget.status.get("observedGeneration") != budget.generation:
        return False
    return int(budget.status.get("disruptionsAllowed") or 0) > 0


def _make_question(frame: ClusterFrame, workload: _Workload, pod: KubeObject) -> Json:
    question: dict[str, object] = {
        "token": make_token(frame, pod),
        "target": f"{workload.component}/{pod.name}",
        "kind": "restart",
        "holder": name_holder(frame),
        "life_ms": LIFE_MS,
    }
    if workload.component == ZOOKEEPER:
        question["voters"] = frame.members
        question["others_serving"] = min(workload.count_serving(but=pod), frame.members - 1)
        return question | ({"accepts": ["quorum"]} if frame.members == 1 else {})
    is_lone = len(workload.pods) == frame.spec.sequencers.replicas == 1
    return question | ({"accepts": ["alone"]} if is_lone else {})


def _go_on(
    frame: ClusterFrame, workloads: Sequence[_Workload], grant: Json
) -> Iterator[Call | Status]:
    """End a grant whose pod serves again, or that stopped nothing."""
    token, target = str(grant["token"]), str(grant["target"])
    component, _, name = target.partition("/")
    names = {
        f"{one.stateful_set.name}-{index}"
        for one in workloads
        if one.component == component
        for index in range(len(one.pods))
    }
    pod = frame.observed.find("Pod", name)
    if name in names:
        if pod is None or pod.is_leaving:
            return  # it is on its way
        if token != make_token(frame, pod):
            if not is_serving(pod):
                return
        elif not _is_marked(pod, grant):
            # Whoever took the grant may be asleep right before the eviction: it is to meet another
            # state of the pod when it wakes, and only then may others have a grant.
            yield Status(pod.ref, pod.uid, {"conditions": [_make_mark(grant)]})
            return
    path = f"/v1/cluster/disruptions/{token}"
    yield Call(Ref("v1", "Pod", name), "DELETE", path, is_admin_port=True)


def _make_mark(grant: Json) -> dict[str, str]:
    granted_at = datetime.fromtimestamp(int(grant["granted_unix_ms"]) / 1000, UTC)
    return {
        "type": NOT_STOPPED_CONDITION,
        "status": "True",
        "reason": "GrantGivenBack",
        "message": f"not stopped by the grant {grant['token']} of {grant['granted_unix_ms']}",
        "lastTransitionTime": format_time(granted_at),
    }


def _is_marked(pod: KubeObject, grant: Json) -> bool:
    found = find_pod_condition(pod, NOT_STOPPED_CONDITION) or {}
    return found.get("message") == _make_mark(grant)["message"]
