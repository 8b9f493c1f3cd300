"""Restarts of ZooKeeper's members, sequencers and bookies: one at a time, by grant and eviction.

Their StatefulSets are updated OnDelete, so a pod runs on as before the last change until it is
stopped here. The token of a grant is drawn from the pod's uid: an operator that is started anew
asks the same question, and knows which of its grants are over.

Called by `plan.cluster.plan` and `status`. Pure. Source: docs/kubernetes/restarts.md.
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from duramen_operator.names import BOOKIE, NOT_STOPPED_CONDITION, SEQUENCER, ZOOKEEPER
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.conditions import format_time
from duramen_operator.plan.evictions.lives import (
    find_pod_condition,
    has_no_process,
    is_ready,
    is_serving,
    knows_no_bookie,
    report_pod,
)
from duramen_operator.plan.evictions.workloads import Workload, list_workloads
from duramen_operator.plan.observed import Json, KubeObject, Ref
from duramen_operator.plan.steps import Call, Patch, Restart, Status

LIFE_MS: Final = 600_000
"""Of a grant, which is not renewed: what does not come up in that time is for people, and keeps
nothing else from its turn."""

RETRY_AFTER: Final = timedelta(minutes=1)
"""So long after a grant was given back the next one is asked for."""

ACCEPTED_OF_BOOKIES: Final = frozenset({"no_spare"})
"""A log that can never miss anybody would keep a node from being drained, and a change from ever
coming."""

_COMPONENTS: Final = frozenset({ZOOKEEPER, SEQUENCER, BOOKIE})
_TOKEN_DIGITS: Final = 32


def plan_restarts(
    frame: ClusterFrame, sets: Sequence[SetFrame] | None, now: datetime, *, may_miss_bookie: bool
) -> Iterator[Call | Restart | Status]:
    """The next step towards pods that run as their StatefulSets say; at most one pod is stopped,
    but for bookies of a cluster in which none ever registered.

    Args:
        sets: as of `list_workloads`.
        may_miss_bookie: whether a bookie may be evicted now, and none is stopped for good.
    """
    admin = frame.observed.admin
    own = [one for one in admin.disruptions or () if is_own_restart(frame, one)]
    workloads = list(list_workloads(frame, sets))
    for grant in own:
        yield from _go_on(frame, workloads, grant, now)
    broken = list(_list_broken(frame, workloads))
    for pod in broken:
        yield Restart(pod.ref, pod.uid, pod.resource_version)
    if broken or own:
        return
    standing = admin.standing
    is_of_before = standing is not None and standing.is_unknown_call
    servers = [one for one in workloads if one.component != BOOKIE]
    for workload in workloads:
        outdated = workload.outdated
        if is_of_before and workload.component != SEQUENCER:
            continue  # sequencers come first: they are whom a grant is asked of
        is_open = workload.component != BOOKIE or may_miss_bookie
        if outdated and is_open and (not is_of_before or all(one.is_whole for one in servers)):
            yield from _begin(frame, workload, outdated[0], now, is_asked=not is_of_before)
        if outdated or not (workload.is_seen and workload.is_whole):
            return


def list_outdated(frame: ClusterFrame, sets: Sequence[SetFrame] | None) -> tuple[str, ...]:
    """Names of pods that are to be restarted."""
    return tuple(sorted(pod.name for one in list_workloads(frame, sets) for pod in one.outdated))


def list_hindering(frame: ClusterFrame, sets: Sequence[SetFrame] | None) -> tuple[str, ...]:
    """Names of pods that are missing or do not serve, for which the next restart waits."""
    hindering: list[str] = []
    for workload in list_workloads(frame, sets):
        pods = workload.pods.items()
        hindering += [name for name, pod in pods if pod is None or not is_serving(pod)]
        if workload.outdated:
            break
    return tuple(sorted(hindering))


def lets_unready_members_go(frame: ClusterFrame) -> bool:
    """Whether members of ZooKeeper do not run, and would by their StatefulSet."""
    return any(
        has_no_process(pod)
        for workload in list_workloads(frame, None)
        if workload.component == ZOOKEEPER
        for pod in workload.outdated
    )


def lets_unready_bookies_go(frame: ClusterFrame, sets: Sequence[SetFrame] | None) -> bool:
    """Whether no bookie of the cluster ever registered, so that nobody misses any, and some are
    outdated: the first image was none that serves."""
    workloads = [one for one in list_workloads(frame, sets) if one.component == BOOKIE]
    return knows_no_bookie(frame.observed) and any(one.outdated for one in workloads)


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


def is_own_restart(frame: ClusterFrame, grant: Json) -> bool:
    """Whether a grant was taken here; `plan.removal` takes those to remove bookies."""
    component = str(grant.get("target")).partition("/")[0]
    is_restart = component in _COMPONENTS and grant.get("kind") == "restart"
    return is_restart and grant.get("holder") == name_holder(frame)


def _list_broken(frame: ClusterFrame, workloads: Sequence[Workload]) -> Iterator[KubeObject]:
    """Outdated pods that are stopped now without asking: one, but for bookies nobody ever knew."""
    for workload in workloads:
        if not workload.is_complete:
            continue
        if workload.component == BOOKIE and knows_no_bookie(frame.observed):
            yield from filter(_is_unready, workload.outdated)
            return
        found = [pod for pod in workload.outdated if _may_be_mended(frame, workload, pod)]
        if found:
            yield found[0]
            return


def _may_be_mended(frame: ClusterFrame, workload: Workload, pod: KubeObject) -> bool:
    """Whether an outdated pod does not serve and may be stopped without asking, the next one only
    when the one before is there again.

    Of a silent node nothing is known: its pods serve perhaps. One that runs may serve for all that
    its probe says, so no other grant may be outstanding; and a member may lack nothing but a
    quorum, so then the others have to serve.
    """
    if workload.component == BOOKIE:
        return _may_bookie_be_mended(frame, workload, pod)
    if has_no_process(pod):
        return True
    if not _is_unready(pod) or any(one.is_leaving for one in workload.there):
        return False
    target = f"{workload.component}/{pod.name}"
    if any(one.get("target") != target for one in frame.observed.admin.disruptions or ()):
        return False
    count, serving = len(workload.pods), workload.count_serving(but=pod)
    if workload.component == ZOOKEEPER:
        return count == 1 or serving > count // 2
    # Nobody beside one that is starting: it may be the first that serves again.
    unready = [one for one in workload.there if not is_serving(one)]
    return all(one in workload.outdated for one in unready)


def _may_bookie_be_mended(frame: ClusterFrame, workload: Workload, pod: KubeObject) -> bool:
    """Whether no process runs in it, it would be let go, and everybody serves who runs as after the
    change: what does not start is not given to those that crashed for a moment."""
    renewed = [one for one in workload.there if one not in workload.outdated]
    if not has_no_process(pod) or not all(map(is_serving, renewed)):
        return False
    # Of one that never started nobody asks a budget.
    return pod.status.get("phase") == "Pending" or _has_room(frame, workload, pod)


def _is_unready(pod: KubeObject) -> bool:
    """By its kubelet's word, or since it never found a node."""
    said = find_pod_condition(pod, "ContainersReady") or {}
    return has_no_process(pod) or said.get("status") == "False"


def _begin(
    frame: ClusterFrame,
    workload: Workload,
    pod: KubeObject,
    now: datetime,
    *,
    is_asked: bool,
) -> Iterator[Restart]:
    """Stop a pod by a grant, where everybody else serves and nobody else has one. A bookie that
    runs and does not serve is stopped so, too: it may replay its journal."""
    others = [one for one in workload.there if one is not pod]
    is_calm = workload.is_complete and workload.is_settled and not _is_paused_for(pod, now)
    if workload.component == BOOKIE:
        is_calm = is_calm and all(is_ready(frame.observed, one.name) for one in others)
    else:
        is_calm = is_calm and workload.is_whole
    if not (is_calm and _has_room(frame, workload, pod)):
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


def _has_room(frame: ClusterFrame, workload: Workload, pod: KubeObject) -> bool:
    """Whether the eviction would not be refused, so that no grant is taken for nothing."""
    budget = frame.observed.find("PodDisruptionBudget", workload.budget_name)
    if budget is None or budget.status.get("observedGeneration") != budget.generation:
        return False
    counts = budget.status
    if workload.component == BOOKIE and not is_ready(frame.observed, pod.name):
        healthy, desired = (counts.get(name) or 0 for name in ("currentHealthy", "desiredHealthy"))
        return int(healthy) >= int(desired) > 0
    return int(counts.get("disruptionsAllowed") or 0) > 0


def _make_question(frame: ClusterFrame, workload: Workload, pod: KubeObject) -> Json:
    question: dict[str, object] = {
        "token": make_token(frame, pod),
        "target": f"{workload.component}/{pod.name}",
        "kind": "restart",
        "holder": name_holder(frame),
        "life_ms": LIFE_MS,
    }
    if workload.component == BOOKIE:
        return question | {"accepts": sorted(ACCEPTED_OF_BOOKIES)}
    if workload.component == ZOOKEEPER:
        question["voters"] = frame.members
        question["others_serving"] = min(workload.count_serving(but=pod), frame.members - 1)
        return question | ({"accepts": ["quorum"]} if frame.members == 1 else {})
    is_lone = len(workload.pods) == frame.spec.sequencers.replicas == 1
    return question | ({"accepts": ["alone"]} if is_lone else {})


def _go_on(
    frame: ClusterFrame, workloads: Sequence[Workload], grant: Json, now: datetime
) -> Iterator[Call | Status]:
    """End a grant whose pod serves again, or that stopped nothing."""
    target = str(grant["target"])
    component, _, name = target.partition("/")
    workload = next((one for one in workloads if one.component == component), None)
    pod = frame.observed.find("Pod", name)
    if workload is None or (pod is not None and pod.is_leaving):
        return  # it is on its way, or nobody knows whether it is
    if name in workload.pods:
        if pod is None:
            return
        if not _is_marked(pod, grant):
            if grant["token"] == make_token(frame, pod):
                # Whoever took the grant may be asleep right before the eviction: it is to meet
                # another state of the pod when it wakes, and only then may others have a grant.
                yield report_pod(pod, _make_mark(grant, now))
                return
            if not _is_back(frame, workload, pod):
                return
    path = f"/v1/cluster/disruptions/{grant['token']}"
    yield Call(Ref("v1", "Pod", name), "DELETE", path, is_admin_port=True)


def _is_back(frame: ClusterFrame, workload: Workload, pod: KubeObject) -> bool:
    """Whether a pod that was made anew serves; a bookie's is registered, too."""
    row = (frame.observed.admin.bookies or {}).get(pod.name, {})
    is_there = workload.component != BOOKIE or row.get("state", "absent") != "absent"
    return is_there and is_serving(pod)


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
