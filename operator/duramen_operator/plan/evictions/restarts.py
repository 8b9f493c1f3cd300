"""Restarts of members of ZooKeeper and of sequencers: one at a time, by a grant and an eviction.

Their StatefulSets are updated OnDelete, so a pod runs on as before the last change until it is
stopped here. The token of a grant is drawn from the pod's uid: an operator that is started anew
asks the same question, and knows which of its grants are over.

Called by `plan.cluster.plan` and `status`. Pure. Source: docs/kubernetes/restarts.md.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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

RETRY_AFTER: Final = timedelta(minutes=1)
"""So long after a grant was given back the next one is asked for."""

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
        """Pods that run as before the last change and are to stay, from the highest ordinal down;
        none before the controller has seen that change."""
        status = self.stateful_set.status
        revision = status.get("updateRevision")
        if not revision or status.get("observedGeneration") != self.stateful_set.generation:
            return ()
        there = [pod for pod in self.pods if pod is not None and not pod.is_leaving]
        return [pod for pod in there if _is_of_another(pod, revision)][::-1]

    @property
    def is_whole(self) -> bool:
        """Whether each ordinal has a pod that serves."""
        return all(pod is not None and is_serving(pod) for pod in self.pods)

    def count_serving(self, but: KubeObject) -> int:
        """Of the others."""
        return sum(pod is not None and pod is not but and is_serving(pod) for pod in self.pods)


def plan_restarts(frame: ClusterFrame, now: datetime) -> Iterator[Call | Restart | Status]:
    """The next step towards pods that run as their StatefulSets say; at most one pod is stopped."""
    admin = frame.observed.admin
    own = [one for one in admin.disruptions or () if _is_ours(frame, one)]
    workloads = list(_list_workloads(frame))
    for grant in own:
        yield from _go_on(frame, workloads, grant, now)
    broken = [p for one in workloads for p in one.outdated if _may_be_mended(frame, one, p)]
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
        if outdated and (not is_of_before or all(one.is_whole for one in workloads)):
            yield from _begin(frame, workload, outdated[0], now, is_asked=not is_of_before)
        if outdated:
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
    """The question whether this very pod may be stopped. Once a grant was given back it is another
    one: an end of that grant that comes late does not hit the next."""
    said = find_pod_condition(pod, NOT_STOPPED_CONDITION) or {}
    return draw_token(frame, f"{pod.uid}/restart{said.get('message', '')}")


def draw_token(frame: ClusterFrame, question: str) -> str:
    """A token of this LogCluster's for a question: the same for whoever asks it."""
    text = f"{frame.cluster.uid}/{question}"
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


def _may_be_mended(frame: ClusterFrame, workload: _Workload, pod: KubeObject) -> bool:
    """Whether an outdated pod does not serve and may be stopped without asking, the next one only
    when the one before is there again.

    Of a silent node nothing is known: its pods serve perhaps. One that runs may serve for all that
    its probe says, so no other grant may be outstanding; and a member may lack nothing but a
    quorum, so then the others have to serve.
    """
    said = find_pod_condition(pod, "ContainersReady") or {}
    is_placed = bool(pod.spec.get("nodeName"))
    if None in workload.pods or (is_placed and said.get("status") != "False"):
        return False
    if not is_running(pod):
        return True
    if any(one is not None and one.is_leaving for one in workload.pods):
        return False
    target = f"{workload.component}/{pod.name}"
    if any(one.get("target") != target for one in frame.observed.admin.disruptions or ()):
        return False
    count, serving = len(workload.pods), workload.count_serving(but=pod)
    if workload.component == ZOOKEEPER:
        return count == 1 or serving > count // 2
    # Nobody beside one that is starting: it may be the first that serves again.
    unready = [one for one in workload.pods if one is not None and not is_serving(one)]
    return all(one in workload.outdated for one in unready)


def _begin(
    frame: ClusterFrame,
    workload: _Workload,
    pod: KubeObject,
    now: datetime,
    *,
    is_asked: bool,
) -> Iterator[Restart]:
    """Stop a pod that serves, where everybody else does and nobody else has a grant."""
    wanted = frame.members if workload.component == ZOOKEEPER else frame.spec.sequencers.replicas
    is_settled = workload.is_whole and len(workload.pods) == wanted
    if not (is_settled and _has_room(frame, workload)) or _is_paused_for(pod, now):
        return
    question = _make_question(frame, workload, pod) if is_asked else None
    if question is None or frame.observed.admin.disruptions == ():
        yield Restart(pod.ref, pod.uid, pod.resource_version, question)


def _is_paused_for(pod: KubeObject, now: datetime) -> bool:
    """Whether a grant for it was given back just now: what refused the eviction may last."""
    said = find_pod_condition(pod, NOT_STOPPED_CONDITION)
    if said is None:
        return False
    return now < datetime.fromisoformat(str(said["lastTransitionTime"])) + RETRY_AFTER


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
    frame: ClusterFrame, workloads: Sequence[_Workload], grant: Json, now: datetime
) -> Iterator[Call | Status]:
    """End a grant whose pod serves again, or that stopped nothing."""
    target = str(grant["target"])
    component, _, name = target.partition("/")
    workload = next((one for one in workloads if one.component == component), None)
    pod = frame.observed.find("Pod", name)
    if workload is None or (pod is not None and pod.is_leaving):
        return  # it is on its way, or nobody knows whether it is
    names = {f"{workload.stateful_set.name}-{index}" for index in range(len(workload.pods))}
    if name in names:
        if pod is None:
            return
        if not _is_marked(pod, grant):
            if grant["token"] == make_token(frame, pod):
                # Whoever took the grant may be asleep right before the eviction: it is to meet
                # another state of the pod when it wakes, and only then may others have a grant.
                yield Status(pod.ref, pod.uid, {"conditions": [_make_mark(grant, now)]})
                return
            if not is_serving(pod):
                return
    path = f"/v1/cluster/disruptions/{grant['token']}"
    yield Call(Ref("v1", "Pod", name), "DELETE", path, is_admin_port=True)


def _make_mark(grant: Json, now: datetime) -> dict[str, str]:
    return {
        "type": NOT_STOPPED_CONDITION,
        "status": "True",
        "reason": "GrantGivenBack",
        "message": _name_mark(grant),
        "lastTransitionTime": format_time(now),
    }


def _name_mark(grant: Json) -> str:
    return f"not stopped by the grant {grant['token']} of {grant['granted_unix_ms']}"


def _is_marked(pod: KubeObject, grant: Json) -> bool:
    found = find_pod_condition(pod, NOT_STOPPED_CONDITION) or {}
    return found.get("message") == _name_mark(grant)
