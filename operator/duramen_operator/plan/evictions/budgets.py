"""Disruption budgets: open while one more may be missed, closed else.

The bookies' follows the copies and the grants; those of sequencers and of ZooKeeper's members close
for grants alone, since readiness says there whether the others suffice. Called by
`plan.cluster.plan` and `status`. Pure. Source: docs/kubernetes/evictions.md 4, 5, 7 and 8.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from duramen_operator.names import BOOKIE, CAUGHT_UP_GATE, make_selector, name_bookie_service
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.conditions import Said, Truth
from duramen_operator.plan.evictions.lives import (
    find_pod_condition,
    has_gate,
    is_ready,
    is_serving,
    life_of,
    list_bookie_pods,
)
from duramen_operator.plan.evictions.restarts import (
    ACCEPTED_OF_BOOKIES,
    is_own_restart,
    lets_unready_bookies_go,
    name_holder,
)
from duramen_operator.plan.manifests import is_foreign, make_manifest, plan_apply
from duramen_operator.plan.observed import Json, Observed, StandingView
from duramen_operator.plan.steps import Apply, Patch
from duramen_operator.resources.conditions import EVICTIONS_ALLOWED

BUDGET_KIND: Final = ("policy/v1", "PodDisruptionBudget")
_SHOWN_MAX: Final = 10
_FORMS: Final = frozenset({"minAvailable", "maxUnavailable"})
_POLICY: Final = "unhealthyPodEvictionPolicy"


def list_wanted(frame: ClusterFrame, sets: Sequence[SetFrame]) -> list[str]:
    """Bookies that count: those that the spec wants, and those that run."""
    wanted = {name for own in sets for name in own.present}
    return sorted({*wanted, *(pod.name for pod in list_bookie_pods(frame.observed))})


def judge_evictions(frame: ClusterFrame, sets: Sequence[SetFrame], *, is_whole: bool) -> Said:
    """Whether a bookie may be evicted now: True is an open budget.

    Args:
        is_whole: whether `sets` are all: none is invalid, leaves, or cannot be made.
    """
    observed = frame.observed
    admin = observed.admin
    names = list_wanted(frame, sets)
    away = [name for name in names if not is_ready(observed, name)]
    standing = admin.standing
    if observed.is_paused or frame.is_held:
        message = "nothing is changed now, as Progressing says: the budget stays as it is"
        return _say("Unknown", "NotChanged", message)
    if not admin.is_reachable:
        return _say("Unknown", "NotAnswered", f"the cluster says: {admin.reason}")
    if not is_whole:
        message = (
            "a BookieSet is not valid, or leaves, as its Ready says: it is not clear how many "
            "there are to be"
        )
        return _say("False", "SetsUnclear", message)
    if len(away) > 1 or not names:
        message = f"not ready: {_shorten(away)}" if names else "there are no bookies yet"
        return _say("False", "BookiesMissing", message)
    if standing is not None and standing.is_unknown_call:
        message = (
            "the cluster's services do not say who may be missed: have all of them be of this "
            "release, or delete one pod after the other by hand"
        )
        return _say("Unknown", "NotJudged", message)
    if admin.disruptions is None:
        return _say("Unknown", "NotAnswered", "the auditor does not say which grants there are")
    grants = [one for one in admin.disruptions if not _is_for_one_away(frame, one, away)]
    if grants:
        granted = [f"{one['kind']} {one['target']} by {one['holder']}" for one in grants]
        message = f"granted to somebody: {_shorten(granted)}; see duramen disruptions"
        return _say("False", "Granted", message)
    if standing is None or standing.rows is None:
        why = "has not said" if standing is None else f"does not say: {standing.why}"
        return _say("Unknown", "NotAnswered", f"how the bookies stand the auditor {why}")
    return _judge_rows(observed, names, away, standing)


def _judge_rows(
    observed: Observed, names: Sequence[str], away: Sequence[str], standing: StandingView
) -> Said:
    rows = standing.rows or {}
    registered = observed.admin.bookies or {}
    # One that does not serve and has a gate cannot become Ready before it is judged again: until
    # then the API server's count lets that one go and nobody else.
    lone = [name for name in away if _is_held_back(observed, name)]
    others = [name for name in names if name not in lone]
    gone = [
        name
        for name in others
        if not rows.get(name, {}).get("there")
        or registered.get(name, {}).get("state", "absent") == "absent"
    ]
    if gone:
        return _say("False", "BookiesMissing", f"not registered: {_shorten(gone)}")
    if any(standing.lives.get(name) != _find_life(observed, name) for name in others):
        message = "bookies were started since the auditor was asked"
        return _say("Unknown", "NotJudged", message)
    reasons = {
        str(reason["code"]): f"{reason['detail']} ({name})"
        for name in sorted(lone or rows, reverse=True)
        for reason in rows.get(name, {}).get("reasons", ())
        if reason["code"] not in ACCEPTED_OF_BOOKIES
    }
    if reasons:
        message = "; ".join(f"{code}: {detail}" for code, detail in sorted(reasons.items()))
        return _say("False", "CopiesMissing", message)
    if away:
        return _say("True", "OneMissing", f"only {away[0]} may be evicted: it is not ready")
    return _say("True", "CaughtUp", "nothing is owed: one bookie at a time may be evicted")


def _is_for_one_away(frame: ClusterFrame, grant: Json, away: Sequence[str]) -> bool:
    """Whether a grant of our own is for a bookie that was stopped, and cannot count before it is
    judged again: that one alone may go, as when its image is none that can be pulled."""
    is_its_own = [grant.get("target")] == [f"{BOOKIE}/{name}" for name in away]
    is_held_back = all(_is_held_back(frame.observed, name) for name in away)
    return is_its_own and is_held_back and is_own_restart(frame, grant)


def _is_held_back(observed: Observed, name: str) -> bool:
    pod = observed.find("Pod", name)
    if pod is None or not has_gate(pod) or is_serving(pod):
        return False
    # Started again in place it has its gate of before, until that is taken back.
    return (find_pod_condition(pod, CAUGHT_UP_GATE) or {}).get("status") != "True"


def plan_bookie_budget(
    frame: ClusterFrame, sets: Sequence[SetFrame], *, is_open: bool, is_whole: bool
) -> Iterator[Apply | Patch]:
    """The step that has the budget be open or closed.

    From one form to the other it goes in one patch: an apply leaves a field alone that somebody
    else wrote, and a budget with both is refused.

    Args:
        is_whole: as of `judge_evictions`.
    """
    count = len(list_wanted(frame, sets))
    is_lenient = lets_unready_bookies_go(frame, sets if is_whole else None)
    manifest = make_bookie_budget(frame, count, is_open=is_open, is_lenient=is_lenient)
    found = frame.observed.find("PodDisruptionBudget", manifest["metadata"]["name"])
    surplus = set() if found is None else (_FORMS & found.spec.keys()) - manifest["spec"].keys()
    if found is None or not surplus or found.is_leaving or is_foreign(found, manifest):
        yield from plan_apply(frame.observed, manifest)
        return
    form = {name: manifest["spec"].get(name) for name in sorted({*_FORMS, _POLICY})}
    metadata = {"annotations": dict(manifest["metadata"]["annotations"])}
    patch = {"metadata": metadata, "spec": form}
    yield Patch(found.ref, found.uid, found.resource_version, patch)


def make_bookie_budget(
    frame: ClusterFrame, count: int, *, is_open: bool, is_lenient: bool = False
) -> Json:
    """The budget of so many bookies of a cluster.

    Open it says how many have to be Ready: a StatefulSet whose only pod is missing would not count
    among those of which one may be unavailable.

    Args:
        is_lenient: whether pods that are not Ready may go all the same: none holds anything.
    """
    spec = {
        **({"minAvailable": max(0, count - 1)} if is_open else {"maxUnavailable": 0}),
        "selector": {"matchLabels": make_selector(frame.name, BOOKIE)},
        # Else: a pod that is not Ready may serve all the same, and be needed.
        _POLICY: "AlwaysAllow" if is_lenient else "IfHealthyBudget",
    }
    name = name_bookie_service(frame.name)
    return make_manifest(BUDGET_KIND, name, frame.make_labels(BOOKIE), frame.cluster, spec=spec)


def find_server_room(frame: ClusterFrame, name: str) -> int:
    """How many sequencers, or members of ZooKeeper, may be evicted: none while something is granted
    to others, or a bookie to us; as it stands while the auditor alone does not say. Whether the
    others suffice is counted by readiness, also of who is evicted by a grant of our own."""
    observed, admin = frame.observed, frame.observed.admin
    if not admin.is_reachable:
        return 1
    if admin.disruptions is not None:
        return 1 if all(_is_of_own_server(frame, one) for one in admin.disruptions) else 0
    found = observed.find("PodDisruptionBudget", name)
    return 0 if found is not None and found.spec.get("maxUnavailable") == 0 else 1


def _is_of_own_server(frame: ClusterFrame, grant: Json) -> bool:
    is_bookie = str(grant.get("target")).startswith(f"{BOOKIE}/")
    return grant.get("holder") == name_holder(frame) and not is_bookie


def _find_life(observed: Observed, name: str) -> object:
    pod = observed.find("Pod", name)
    return None if pod is None else life_of(pod)


def _say(status: Truth, reason: str, message: str) -> Said:
    return Said(EVICTIONS_ALLOWED, status, reason, message)


def _shorten(names: Iterable[str]) -> str:
    told = sorted(names)
    more = f" and {len(told) - _SHOWN_MAX} more" if len(told) > _SHOWN_MAX else ""
    return ", ".join(told[:_SHOWN_MAX]) + more
