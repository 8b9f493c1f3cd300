"""What is told of removals: which step is under way, or what blocks it, and the way out.

Nothing here moves by itself: how many copies are left stands in figures. Called by
`plan.cluster.bookie_status`. Pure. Source: docs/kubernetes/removal.md "What is said".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duramen.core.duty import Duty
from duramen.units import GIB, KIB, MIB, TIB, agree
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.conditions import Said, find_condition
from duramen_operator.plan.evictions.lives import is_running
from duramen_operator.plan.observed import KubeObject
from duramen_operator.plan.removal.course import count_room, know_set
from duramen_operator.plan.removal.record import (
    CANCELLING,
    DRAINING,
    STOPPING,
    KnownBookies,
    is_asked,
    read_removal,
)
from duramen_operator.resources.conditions import PROGRESSING

BLOCKED: Final = "Blocked"

_STEPS: Final = {
    DRAINING: "its copies move elsewhere",
    STOPPING: "no segment names it any more, and it is stopped when a grant is given",
    CANCELLING: "its removal is taken back",
}
_SHOWN_MAX: Final = 10
_UNITS: Final = {TIB: "TiB", GIB: "GiB", MIB: "MiB", KIB: "KiB"}
_STUCK: Final = "cannot leave it"
_WAYS_OUT: Final = {
    "place": "bring back the bookies that do not serve, or add some",
    "entries": "bring back a bookie that has them, or accept the loss of one that is gone for ever "
    "(duramen accept-loss)",
    "failing": "its repair fails again and again: duramen repair status says why",
}
"""By the kind of what is stuck; an auditor of another release may tell others."""


def judge_removal(own: SetFrame, item: KubeObject) -> Said | None:
    """What is told of a bookie; None: it is not removed, nor is that asked for."""
    record = read_removal(own.frame.observed, item.name)
    if not record and not is_asked(item) and item.name not in own.leaving:
        return _judge_foreign_drain(own, item)
    why = next(_list_blocks(own, item, know_set(own)), "")
    if why:
        return Said(PROGRESSING, "False", BLOCKED, why, is_event=True)
    said = _STEPS.get(record, "it is going to be removed")
    return Said(PROGRESSING, "True", record or DRAINING, said, is_event=True)


def _judge_foreign_drain(own: SetFrame, item: KubeObject) -> Said | None:
    duty = know_set(own).find_duty(item.name)
    if duty in {None, Duty.SERVING}:
        return None
    message = f"somebody else drains it, or drained it: duramen drain {item.name} --cancel"
    return Said(PROGRESSING, "False", "DrainedByOthers", message, is_event=True)


def judge_removals(own: SetFrame) -> Said | None:
    """What is told of a set: None where nobody of it is removed."""
    told = []
    for name in sorted({name for share in own.shares for name in share.bookies}):
        item = own.frame.observed.find("Bookie", name)
        said = None if item is None else judge_removal(own, item)
        if said is not None:
            told.append((name, said))
    if not told:
        return None
    # What is blocked is told first: somebody has to do something.
    told.sort(key=lambda one: (one[1].reason != BLOCKED, one[0]))
    message = "; ".join(f"{name}: {said.message}" for name, said in told[:_SHOWN_MAX])
    first = told[0][1]
    return Said(PROGRESSING, first.status, first.reason, message, is_event=True)


def _list_blocks(own: SetFrame, item: KubeObject, known: KnownBookies) -> Iterator[str]:
    observed, name = own.frame.observed, item.name
    record = read_removal(observed, name)
    if own.is_ambiguous:
        yield "two domains make one name: rename a region or a zone, and it goes on"
    elif name not in own.leaving and is_asked(item):
        yield (
            "it shares a StatefulSet, which has no gaps: have those behind it go as well, the last "
            "one first (kubectl duramen drain); or take decommission back"
        )
    if not observed.admin.is_reachable:
        yield f"the cluster does not answer: {observed.admin.reason}"
    elif not known.is_told:
        yield "the cluster knows no bookie of this set: nothing is decided until it does"
    problem = observed.refusals.get(item.ref)
    if problem is not None:
        yield f"{problem.code}: {problem.message}"
    if record == DRAINING and known.find_row(name).get("state") == "absent":
        yield (
            "it does not serve, and nobody knows whether it obeys a drain: bring it back. If its "
            "disks are gone for ever: duramen accept-loss; where status.copies is 0 nothing is lost"
        )
    pod = observed.find("Pod", name)
    is_unknown = known.is_told and not known.find_row(name)
    if record == DRAINING and is_unknown and pod is not None and is_running(pod):
        yield "it runs and is not registered, and cannot be drained: its log says what it waits for"
    if record == DRAINING and known.find_duty(name) is Duty.SERVING:
        yield from _describe_room(own, name)
    elif record == DRAINING:
        yield from _describe_stuck(own, item)
    if record == STOPPING and known.is_empty(name):
        held = [str(one["target"]) for one in observed.admin.disruptions or ()]
        others = sorted(target for target in held if target != f"bookie/{name}")
        if others:
            yield f"it waits for its turn: granted is {', '.join(others)}"
        if pod is not None and pod.is_leaving:
            yield f"its pod does not end: kubectl delete pod {name} --force, if its node is gone"


def _describe_room(own: SetFrame, name: str) -> Iterator[str]:
    """Why what lies on it is not asked to move."""
    room = count_room(own, name)
    if room is None and own.frame.observed.admin.holdings is None:
        yield "the auditor does not say what lies where: it is drained once it does"
    elif room is None:
        yield "the auditor has not counted yet what lies on it: it is drained after its next round"
    elif not room.suffices:
        yield (
            f"what lies on the bookies that go, {_round(room.moved_bytes)}, does not fit on the "
            f"others: they have {_round(room.free_bytes)} free, of which {_round(room.kept_bytes)} "
            "have to stay free; add bookies, or take another removal back"
        )


def _describe_stuck(own: SetFrame, item: KubeObject) -> Iterator[str]:
    """Why copies do not leave it, though they were asked to."""
    holdings = own.frame.observed.admin.holdings
    if holdings is None:
        # The auditor alone is silent for a moment: what it said last stands.
        told = find_condition(item, PROGRESSING) or {}
        if told.get("reason") == BLOCKED and _STUCK in str(told.get("message")):
            yield str(told["message"])
        return
    stuck = holdings.get(item.name, {}).get("stuck")
    if not stuck:
        return
    kind, logs = str(stuck.get("kind")), [str(one) for one in stuck.get("logs", ())]
    more = int(stuck.get("logs_count", 0)) - len(logs)
    of_logs = ", ".join(logs) + (f" and {_round_count(more)} more" if more > 0 else "")
    count = agree(f"{_round_count(int(stuck.get('fragments', 0)))} fragments")
    # What fails is told anew with each attempt; the other reasons stand until something changes.
    why = f": {stuck.get('reason')}" if kind in {"place", "entries"} else ""
    way_out = _WAYS_OUT.get(kind, _WAYS_OUT["failing"])
    yield f"{count} of {of_logs} {_STUCK}{why}; {way_out}; or take the removal back"


def _round_count(count: int) -> str:
    """Two digits of what is more: else it would be told anew with each one that gets on."""
    return str(count) if count < 100 else f"about {float(f'{count:.2g}'):,.0f}"


def _round(size_bytes: int) -> str:
    """Two digits of it: a figure that moved with each append would be written anew as often."""
    unit = next((size for size in (TIB, GIB, MIB) if size_bytes >= size), KIB)
    return f"{float(f'{size_bytes / unit:.2g}'):g}{_UNITS[unit]}"
