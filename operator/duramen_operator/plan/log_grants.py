"""Grants: what is to be done so that the cluster has what its LogGrants say, and what to tell.

An object owns its grant if that was not there when the object asked for it: a claim is written down
before the cluster is asked (a finalizer, then `owned` without `by` and `given`), and who gave it
when the grant is first seen. What others gave is never taken. Objects that say the same share a
grant, which goes with the last of them; nobody who owns one is let go before it is taken, for as
long as there is a cluster that has it.

Called by `plan`. Source: docs/protocol/rights.md "Grants as objects of Kubernetes".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from duramen.core.rights.grants import Grant
from duramen_operator.names import FINALIZER
from duramen_operator.plan.conditions import Said, find_told, report
from duramen_operator.plan.logs import (
    LOOK_AGAIN,
    READY,
    not_ready,
    oldest_first,
    told_pause,
    told_refusal,
)
from duramen_operator.plan.observed import KubeObject, Observed, Problem
from duramen_operator.plan.releasing import change_finalizer, find_deletion
from duramen_operator.plan.seen_grants import (
    ClusterGrants,
    GivenMark,
    GrantDraft,
    GrantTexts,
    read_cluster_grants,
)
from duramen_operator.plan.steps import Event, Plan, Step
from duramen_operator.resources import LogGrant, ResourceError
from duramen_operator.resources.reading import parse_as

CALL_OVER_AFTER: Final = timedelta(seconds=30)
"""Longer than a call waits for its answer (20 s), and than a proxy tries."""

CONFLICT: Final = "config_conflict"
"""Others changed the grants in between, or a call before this one was refused: it is made again."""


@dataclass(frozen=True, slots=True)
class _Claimant:
    """One LogGrant, and what its status remembers."""

    item: KubeObject
    grant: Grant

    @property
    def is_owner(self) -> bool:
        return self.item.status.get("owned") is True

    @property
    def mark(self) -> GivenMark | None:
        """Of the grant that it owns; None: it has not seen it."""
        by, given = self.item.status.get("by"), self.item.status.get("given")
        return GivenMark(str(by), str(given)) if self.is_owner and by and given else None

    @property
    def has_asked(self) -> bool:
        """Whether a call may have been made for it, and what came of it was not seen."""
        return self.is_owner and self.mark is None and self.is_held

    @property
    def is_held(self) -> bool:
        return FINALIZER in self.item.finalizers


@dataclass(frozen=True, slots=True)
class _GrantsPass:
    """What one plan is made of."""

    observed: Observed
    seen: ClusterGrants
    draft: GrantDraft
    now: datetime

    def find_refusal(self, item: KubeObject) -> Problem | None:
        """Why the last call for an object was refused, unless it is only to be made again."""
        refusal = self.observed.refusals.get(item.ref)
        return None if refusal is None or refusal.code == CONFLICT else refusal

    def find_obstacle(self, item: KubeObject) -> Said | None:
        """Why nothing can be done about an object, if that is so."""
        cluster, admin, problem = self.observed.cluster, self.observed.admin, self.seen.problem
        if cluster is None:
            message = f"there is no LogCluster {item.spec.get('clusterName')} in this namespace"
            return not_ready("ClusterMissing", message)
        if cluster.is_leaving:
            return not_ready("ClusterLeaving", "the cluster is being deleted")
        if not admin.is_reachable:
            message = f"the cluster does not answer: {admin.reason}"
            return Said(READY, "Unknown", "ClusterUnreachable", message)
        if not self.seen.is_judged:
            message = (
                "the cluster runs with security none and asks nobody who calls, so grants count "
                "for nothing there: this waits until security is on"
            )
            return not_ready("NotJudged", message)
        if problem is not None:
            return Said(READY, "Unknown", "NotAnswered", f"{problem.code}: {problem.message}")
        return None


@dataclass(frozen=True, slots=True)
class _Group:
    """The objects that say one grant, the oldest first, and the grant as it is seen."""

    grant: Grant
    stays: tuple[_Claimant, ...]
    leaves: tuple[_Claimant, ...]
    row: GivenMark | None
    is_ours: bool
    """Whether the grant that is seen is that of one of these."""

    @property
    def name(self) -> str:
        return str(GrantTexts.of(self.grant))

    def find_sharer(self) -> _Claimant | None:
        """An object that stays, and takes the grant with it when it goes."""
        return next((one for one in self.stays if one.is_held and one.mark == self.row), None)


def plan_grants(observed: Observed, now: datetime) -> Plan:
    """The steps for all LogGrants of the cluster."""
    steps: list[Step] = []
    claimants: dict[Grant, list[_Claimant]] = {}
    for item in oldest_first(observed.list("LogGrant")):
        try:
            grant = parse_as(LogGrant, item.body).spec.grant
        except ResourceError as error:
            steps += _plan_unreadable(item, error, now)
        else:
            claimants.setdefault(grant, []).append(_Claimant(item, grant))
    seen = read_cluster_grants(observed.admin.grants)
    look = _GrantsPass(observed, seen, GrantDraft(seen), now)
    # A refused call leaves a version that those behind it do not expect: it comes last.
    for them in sorted(claimants.values(), key=lambda them: _is_refused(look, them)):
        group = _make_group(them, seen)
        for one in group.leaves:
            steps += _plan_leaving(look, group, one)
        for one in group.stays:
            steps += _plan_staying(look, group, one)
    if not observed.list("LogGrant"):
        return Plan()
    is_busy = any(not isinstance(step, Event) for step in steps) and not observed.refusals
    return Plan(tuple(steps), now if is_busy else now + LOOK_AGAIN)


def _is_refused(look: _GrantsPass, them: list[_Claimant]) -> bool:
    return any(look.find_refusal(one.item) is not None for one in them)


def _make_group(them: list[_Claimant], seen: ClusterGrants) -> _Group:
    grant = them[0].grant
    row = seen.rows.get(GrantTexts.of(grant))
    is_ours = row is not None and any(one.mark == row or one.has_asked for one in them)
    stays = tuple(one for one in them if not one.item.is_leaving)
    return _Group(grant, stays, tuple(one for one in them if one.item.is_leaving), row, is_ours)


# --- What is to be done ---------------------------------------------------------------------------


def _plan_staying(look: _GrantsPass, group: _Group, one: _Claimant) -> Iterator[Step]:
    item, now = one.item, look.now
    obstacle = look.find_obstacle(item)
    if obstacle is not None:
        yield from report(item, [obstacle], _figures(one), now)
    elif group.row is not None:
        yield from change_finalizer(item, is_wanted=group.is_ours)
        yield from _report_given(group, one, group.row, now)
    elif look.observed.is_paused:
        yield from report(item, [told_pause(_giving(group))], _figures(one), now)
    elif not one.is_held:
        yield from change_finalizer(item, is_wanted=True)
        yield from report(item, [_giving(group)], _figures(one), now)
    elif not one.has_asked:
        if one.mark is not None:
            message = f"{group.name}: taken outside of Kubernetes, and given again"
            yield Event(item.ref, item.uid, "GrantCorrected", message, find_told(item), now)
        yield from report(item, [_giving(group)], _claimed(one), now)
    else:
        if not look.draft.holds(group.grant):
            yield look.draft.change(item, group.grant, is_wanted=True)
        said = told_refusal(look.find_refusal(item)) or _giving(group)
        yield from report(item, [said], _claimed(one), now)


def _plan_leaving(look: _GrantsPass, group: _Group, one: _Claimant) -> Iterator[Step]:
    item, cluster, now = one.item, look.observed.cluster, look.now
    obstacle = look.find_obstacle(item)
    if not one.is_held:
        return
    if not one.is_owner:
        yield from _let_go(item, "Retained", f"{group.name}: not this object's, it stays", now)
    elif cluster is None or cluster.is_leaving:
        message = f"the cluster is gone: nothing is waited for ({group.name})"
        yield from _let_go(item, "ClusterGone", message, now, is_warning=True)
    elif obstacle is not None:
        yield from _wait(one, f"{group.name} is to be taken: {obstacle.message}", now)
    elif group.row is None:
        if one.has_asked and now < find_deletion(item) + CALL_OVER_AFTER:
            yield from _wait(one, f"{group.name}: a call may still be under way", now)
        else:
            yield from _let_go(item, "Taken", f"{group.name} is taken", now)
    elif one.mark != group.row and not one.has_asked:
        message = f"{group.name}: given by {group.row.by}, not by this object: it stays"
        yield from _let_go(item, "Retained", message, now, is_warning=True)
    elif group.stays:
        sharer = group.find_sharer()
        if sharer is None:
            yield from _wait(one, f"{group.name}: another LogGrant takes it over", now)
        else:
            message = f"{group.name}: LogGrant {sharer.item.name} says so, too: it stays"
            yield from _let_go(item, "Retained", message, now)
    elif look.observed.is_paused:
        yield from _wait(one, f"{group.name} is to be taken, and the cluster is paused", now)
    else:
        if look.draft.holds(group.grant):
            yield look.draft.change(item, group.grant, is_wanted=False)
        said = told_refusal(look.find_refusal(item))
        why = "" if said is None else f": {said.message}"
        yield from _wait(one, f"{group.name} is being taken{why}", now)


def _let_go(
    item: KubeObject, reason: str, message: str, now: datetime, *, is_warning: bool = False
) -> Iterator[Step]:
    since = find_deletion(item)
    yield Event(item.ref, item.uid, reason, message, since, now, is_warning=is_warning)
    yield from change_finalizer(item, is_wanted=False)


def _wait(one: _Claimant, message: str, now: datetime) -> Iterator[Step]:
    said = Said(READY, "False", "Deleting", message)
    yield from report(one.item, [said], _figures(one), now)


def _plan_unreadable(item: KubeObject, error: ResourceError, now: datetime) -> Iterator[Step]:
    """What no model of this operator reads: nobody can tell any more what it gave."""
    if not item.is_leaving:
        figures = {name: item.status[name] for name in _FIGURES if name in item.status}
        yield from report(item, [not_ready("InvalidSpec", str(error))], figures, now)
    elif FINALIZER in item.finalizers:
        message = f"let go, and its grant may be left: {error}"
        yield from _let_go(item, "InvalidSpec", message[:1024], now, is_warning=True)


# --- What is so -----------------------------------------------------------------------------------

_FIGURES: Final = ("who", "owned", "by", "given")


def _giving(group: _Group) -> Said:
    return Said(READY, "Unknown", "Giving", f"{group.name} is being given")


def _report_given(group: _Group, one: _Claimant, row: GivenMark, now: datetime) -> Iterator[Step]:
    message = f"{group.name}: given by {row.by}"
    said = Said(READY, "True", "AsWanted", message)
    if not group.is_ours:
        message += "; not by this object, so it stays when this one goes: `duramen grant take`"
        said = Said(READY, "True", "GivenByOthers", message)
    figures = {"who": str(group.grant.who), "owned": group.is_ours, **row._asdict()}
    yield from report(one.item, [said], figures, now)


def _figures(one: _Claimant) -> dict[str, Any]:
    """The status' figures as they are: nothing new is known."""
    kept = {name: one.item.status[name] for name in _FIGURES if name in one.item.status}
    return {**kept, "who": str(one.grant.who)}


def _claimed(one: _Claimant) -> dict[str, Any]:
    """Those of an object whose grant is not there, and is asked for."""
    return {"who": str(one.grant.who), "owned": True}
