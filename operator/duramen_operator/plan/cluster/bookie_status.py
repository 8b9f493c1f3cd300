"""What is told of BookieSets and Bookies: counts, places, what is refused, whether one could go.

Called by `plan`. Pure. Source: `resources.conditions` says what each condition means.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from duramen.config import FlexibleReplication, Replication
from duramen_operator.names import BOOKIE, BOOKIE_SET_LABEL, make_selector
from duramen_operator.plan.claims import are_owned
from duramen_operator.plan.cluster.bookies import (
    SetFrame,
    find_refusals,
    is_consented,
    list_sets,
)
from duramen_operator.plan.cluster.counting import find_misplaced
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.spread import DomainShare
from duramen_operator.plan.conditions import Said, Truth, report
from duramen_operator.plan.evictions.lives import serves
from duramen_operator.plan.evictions.workloads import is_outdated, list_outdated_bookies
from duramen_operator.plan.observed import Json, KubeObject, Ref
from duramen_operator.plan.removal.course import record_cause, record_next
from duramen_operator.plan.removal.holding import holds_copies, is_abandoned, is_told
from duramen_operator.plan.removal.record import read_removal
from duramen_operator.plan.removal.words import judge_removal, judge_removals
from duramen_operator.plan.steps import Event, Status
from duramen_operator.resources import BookieResourceStatus, BookieSetStatus
from duramen_operator.resources.conditions import (
    AVAILABLE,
    CONDITIONS,
    NOT_YET_SUPPORTED,
    PLACEMENT_SATISFIED,
    PROGRESSING,
    READY,
    SAFE_TO_SCALE_DOWN,
)

NAMES_SHOWN_MAX = 10
MOVING = ("freeBytes", "copies")
"""They change with every append somewhere, and that alone is no reason to write at once."""

_RESTARTED = "runs as before the last change, and is restarted once EvictionsAllowed is True"

_CONDITION_FIELDS = frozenset({"observedGeneration", "conditions"})


def report_set(own: SetFrame, impossible: Sequence[str], now: datetime) -> Iterator[Status | Event]:
    """The status of a BookieSet."""
    observed = own.frame.observed
    names = own.present
    running = [name for name in names if observed.find("Pod", name) is not None]
    ready = [name for name in names if serves(observed, name)]
    selector = make_selector(own.frame.name, BOOKIE) | {BOOKIE_SET_LABEL: own.bookie_set.name}
    is_answered = observed.admin.knows_bookies
    status = BookieSetStatus(
        replicas=len(running),
        ready_replicas=len(ready),
        draining=len(own.leaving),
        selector=",".join(f"{key}={value}" for key, value in selector.items()),
        stateful_sets=_note_sets(own, is_answered=is_answered),
        was_answered=is_answered or own.bookie_set.status.get("wasAnswered") is True,
        holds_copies=holds_copies(own),
    )
    said = [
        judge_ready(len(ready), len(names), impossible),
        judge_available(own.frame, len(ready)),
        _judge_progress(own, impossible, len(ready), len(names)),
        judge_placement([own], is_whole=len(ready) == len(names)),
        judge_scale_down(own.frame, names),
    ]
    yield from report(own.bookie_set, said, figures_of(status), now)


def _note_sets(own: SetFrame, *, is_answered: bool) -> tuple[str, ...]:
    """Its StatefulSets, and while the cluster is silent those that were noted before as well: what
    is left out here was let go."""
    sets = list_sets(own)
    noted = () if is_answered else tuple(own.bookie_set.status.get("statefulSets", ()))
    return (*sets, *(name for name in noted if name not in sets))


def report_bookie(
    own: SetFrame, share: DomainShare, item: KubeObject, now: datetime
) -> Iterator[Status | Event]:
    """The status of a Bookie."""
    observed = own.frame.observed
    pod = observed.find("Pod", item.name)
    row = (observed.admin.bookies or {}).get(item.name, {})
    free = row.get("free_bytes")
    status = BookieResourceStatus(
        identity=str(
            row.get("duty") or _recall(item, "identity", is_gone=observed.admin.knows_bookies)
        ),
        # Who was registered once is a bookie for good, whoever answers and whatever they know.
        incarnation=str(row.get("incarnation") or _recall(item, "incarnation")),
        removal=record_next(own, item),
        removal_by=record_cause(own, item),
        region=share.region,
        zone=share.zone or item.name,
        node=str(pod.spec.get("nodeName") or "") if pod is not None else "",
        is_writable=row.get("takes_new_data"),
        free_bytes=free if isinstance(free, int) and free >= 0 else None,
        copies=(observed.admin.holdings or {}).get(item.name, {}).get("copies"),
    )
    said = [
        _judge_bookie_ready(own, item.name, pod),
        _judge_intents(own, share, item),
        judge_scale_down(own.frame, [item.name]),
    ]
    yield from report(item, said, figures_of(status), now, MOVING)


def _recall(item: KubeObject, field: str, *, is_gone: bool = False) -> str:
    """What was told of an object before, unless it is known to be so no more."""
    return "" if is_gone else str(item.status.get(field) or "")


def report_orphan(item: KubeObject, cluster: str, now: datetime) -> Iterator[Status | Event]:
    """What a BookieSet or Bookie is told whose cluster is not there; what it has runs on."""
    message = f"there is no LogCluster {cluster} in this namespace"
    truth: Truth = "False"
    said = [
        Said(
            type=condition,
            status=truth if condition == READY else "Unknown",
            reason="ClusterMissing",
            message=message,
            is_event=condition == READY,
        )
        for condition in CONDITIONS[item.ref.kind]
    ]
    yield from report(item, said, keep_figures(item), now)


def keep_figures(item: KubeObject) -> Json:
    """The figures that an object has, where there are no newer ones."""
    return {k: v for k, v in item.status.items() if k not in _CONDITION_FIELDS}


def figures_of(status: BookieSetStatus | BookieResourceStatus | Any) -> Json:
    """A status without what `report` adds."""
    return {k: v for k, v in status.to_json().items() if k not in _CONDITION_FIELDS}


def judge_ready(ready: int, wanted: int, faults: Sequence[str]) -> Said:
    """Whether all bookies serve."""
    if faults:
        return Said(READY, "False", "CannotBeMade", "; ".join(faults), is_event=True)
    if ready < wanted:
        return Said(READY, "False", "BookiesMissing", f"{ready} of {wanted} bookies are ready")
    return Said(READY, "True", "AllReady", f"{ready} bookies are ready", is_event=True)


def judge_available(frame: ClusterFrame, ready: int) -> Said:
    """Whether a new segment finds its bookies."""
    needed = count_needed(frame)
    message = f"{ready} bookies are ready, and a segment of the cluster's defaults needs {needed}"
    if ready < needed:
        return Said(AVAILABLE, "False", "NotEnoughBookies", message)
    return Said(AVAILABLE, "True", "EnoughBookies", message)


def count_needed(frame: ClusterFrame) -> int:
    """Bookies that a segment of a log needs that says nothing about it."""
    defaults = frame.spec.defaults.log
    named = {} if defaults.replication is None else defaults.replication.config(defaults.copysets)
    if defaults.copysets == "flexible":
        wave = {**FlexibleReplication().model_dump(), **named}
        return int(wave["node"] + wave["extras"])
    return int(named.get("ensemble_size", Replication().ensemble_size))


def judge_placement(sets: Sequence[SetFrame], *, is_whole: bool) -> Said:
    """Whether each bookie runs in its domain and says so."""
    found = [fault for own in sets for fault in find_misplaced(own)]
    if found:
        message = "; ".join(sentence for _, sentence in found[:NAMES_SHOWN_MAX])
        return Said(PLACEMENT_SATISFIED, "False", found[0][0], message, is_event=True)
    if not is_whole:
        message = "not all bookies run yet; those that do are where they ought to be"
        return Said(PLACEMENT_SATISFIED, "Unknown", "NotAllRun", message)
    message = "each bookie runs in its failure domain and says so"
    return Said(PLACEMENT_SATISFIED, "True", "AsDeclared", message)


def judge_scale_down(frame: ClusterFrame, names: Sequence[str]) -> Said:
    """Whether one of these bookies could go: whether the auditor counts no copy there."""
    admin, kind = frame.observed.admin, SAFE_TO_SCALE_DOWN
    holdings = admin.holdings
    if not admin.is_reachable:
        return Said(kind, "Unknown", "NotAnswered", f"the cluster says: {admin.reason}")
    if holdings is None:
        return Said(kind, "Unknown", "NotCounted", "the auditor has not told what lies where")
    empty = [n for n in names if n in holdings and holdings[n].get("copies") == 0]
    left = sum(serves(frame.observed, name) for name in holdings) - 1
    needed = count_needed(frame)
    if left < needed:
        message = f"{max(left, 0)} bookies would be left, and a new segment needs {needed}"
        return Said(kind, "False", "NotEnoughBookies", message)
    if not empty:
        return Said(kind, "False", "CopiesHeld", "each of them holds copies, which would be missed")
    shown = ", ".join(empty[:NAMES_SHOWN_MAX])
    return Said(kind, "True", "Empty", f"no copy lies on {shown}")


def _judge_progress(own: SetFrame, impossible: Sequence[str], ready: int, wanted: int) -> Said:
    refusals = tuple(find_refusals(own))
    if impossible:
        return Said(PROGRESSING, "False", "CannotBeMade", "; ".join(impossible))
    told = _find_refused_step(own)
    if told:
        return Said(PROGRESSING, "False", "ApplyRefused", told, is_event=True)
    if refusals:
        message = "; ".join(refusals)
        return Said(PROGRESSING, "False", NOT_YET_SUPPORTED, message, is_event=True)
    removals = judge_removals(own)
    if removals is not None:
        return removals
    if not is_told(own):
        message = (
            "the first bookie is made once status.holdsCopies is true here and of the LogCluster; "
            "if that stays so, the definitions are older than the operator: upgrade them"
        )
        return Said(PROGRESSING, "True", "BookiesStart", message)
    if own.spec.replicas > wanted:
        message = (
            f"replicas says {own.spec.replicas} and {wanted} are there: the others are made once "
            "the cluster answers, since while it is silent nobody knows which numbers were used"
        )
        return Said(PROGRESSING, "True", "ClusterUnreachable", message)
    if outdated := sorted(list_outdated_bookies(own)):
        message = f"{_RESTARTED}: {', '.join(outdated)}"
        return Said(PROGRESSING, "True", "Restarting", message)
    if ready < wanted:
        return Said(PROGRESSING, "True", "BookiesStart", f"{wanted - ready} bookies are starting")
    claims = "; when this is deleted its claims go" if _do_claims_go(own) else ""
    may_go = "; it may be deleted with its copies" if is_abandoned(own.bookie_set) else ""
    missing = _format_missing(own)
    message = f"nothing is left to be done{missing}{may_go}{claims}"
    return Said(PROGRESSING, "False", "Settled", message)


def _format_missing(own: SetFrame) -> str:
    """Who is registered and made by nobody, as where claims came back without their labels."""
    missing = sorted({name for share in own.shares for name in share.missing})
    if not missing:
        return ""
    shown = ", ".join(missing[:NAMES_SHOWN_MAX])
    return (
        f"; registered, of this set or one with a name like it, and not here: {shown}: label their "
        "claims as others of their set are, or accept their loss (duramen accept-loss)"
    )


def _do_claims_go(own: SetFrame) -> bool:
    """Whether Kubernetes deletes the claims with the set by now: told earlier, it might not."""
    groups = (group for share in own.shares for group in share.groups)
    sets = ((own.frame.observed.find("StatefulSet", one.name), one.bookies) for one in groups)
    return is_consented(own) and all(
        found is not None and are_owned(own.frame.observed, found, bookies)
        for found, bookies in sets
    )


def _find_refused_step(own: SetFrame) -> str:
    """What the API server refused of the set's objects in the last pass."""
    names = {"StatefulSet": {*list_sets(own)}, "Bookie": {*own.present}}
    for ref, problem in sorted(own.frame.observed.refusals.items(), key=lambda item: item[0]):
        is_removed = ref.kind == "Bookie" and read_removal(own.frame.observed, ref.name)
        if ref.name in names.get(ref.kind, ()) and not is_removed:
            return format_refusal(ref, problem.code, problem.message)
    return ""


def format_refusal(ref: Ref, code: str, message: str) -> str:
    """A refused step for people."""
    return f"{ref.kind} {ref.name}: {code}: {message}"


def _judge_bookie_ready(own: SetFrame, name: str, pod: KubeObject | None) -> Said:
    if pod is None:
        return Said(READY, "False", "NoPod", "its pod is not there")
    if serves(own.frame.observed, name):
        return Said(READY, "True", "Serves", "it serves")
    return Said(READY, "False", "NotReady", f"its pod is {pod.status.get('phase', 'Pending')}")


def _judge_intents(own: SetFrame, share: DomainShare, item: KubeObject) -> Said:
    if item.spec.get("repairAction", "None") != "None":
        message = "repairAction: not done by the operator yet; take it back"
        return Said(PROGRESSING, "False", NOT_YET_SUPPORTED, message, is_event=True)
    removal = judge_removal(own, item)
    if removal is not None:
        return removal
    if is_outdated(own, share, item.name):
        return Said(PROGRESSING, "True", "Restarting", _RESTARTED)
    if not serves(own.frame.observed, item.name):
        return Said(PROGRESSING, "True", "Starting", "it is starting")
    return Said(PROGRESSING, "False", "Settled", "nothing is left to be done")
