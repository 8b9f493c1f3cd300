"""Does the steps of a plan, in order; a refused one does not keep the others from being tried.

What it gives back is for the next observation: which objects' steps were refused, and why. A
precondition that no longer holds is no refusal: the world moved on, and the next pass sees it so.
Called by the worker.
"""

import logging
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from duramen_operator.kube import Kube, Refused
from duramen_operator.names import MANAGED_BY, MANAGED_BY_LABEL
from duramen_operator.plan.observed import Json, Problem, Ref
from duramen_operator.plan.steps import Apply, Call, Delete, Event, Patch, Plan, Status, Step
from duramen_operator.typed.client import TypedClient
from duramen_operator.typed.events import report_event

_log = logging.getLogger(__name__)
_GONE = 404
_CONFLICT = 409


class CallRefused(Exception):
    """The cluster's admin API said no, or did not answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.message}")
        self.problem = problem


class AdminCalls(Protocol):
    """Whoever can make the calls of a plan."""

    async def call(self, step: Call) -> None:
        """Make one call.

        Raises:
            CallRefused: it was refused, or its fate is open; doing it again is safe.
        """
        ...


@dataclass(slots=True)
class PlanOutcome:
    """What became of a plan's steps."""

    refusals: dict[Ref, Problem] = field(default_factory=dict)
    done_count: int = 0
    stale_count: int = 0
    """Steps whose precondition no longer held: look again at once."""


async def do_plan(plan: Plan, kube: Kube, typed: TypedClient, admin: AdminCalls) -> PlanOutcome:
    """Do what a plan says.

    Raises:
        Unreachable: the API server does not answer; what was left is planned anew.
    """
    outcome = PlanOutcome()
    for step in plan.steps:
        try:
            await _do(step, kube, typed, admin)
            outcome.done_count += 1
        except CallRefused as refused:
            outcome.refusals[step.about] = refused.problem
            _log.warning("%s refused: %s", _format(step), refused)
        except Refused as refused:
            if _is_stale(step, refused):
                outcome.stale_count += 1
                _log.info("%s: the object has changed: %s", _format(step), refused)
            else:
                outcome.refusals[step.about] = refused.problem
                _log.warning("%s refused: %s", _format(step), refused)
        else:
            _log.info("%s", _format(step))
    return outcome


async def _do(step: Step, kube: Kube, typed: TypedClient, admin: AdminCalls) -> None:
    match step:
        case Apply():
            if step.uid is None:
                await _check_name_is_free(kube, step.about)
            await kube.apply(_with_uid(step.manifest, step.uid))
        case Delete():
            await kube.delete(step.about, step.uid, step.resource_version)
        case Patch():
            metadata = dict(step.patch.get("metadata") or {})
            metadata |= {"uid": step.uid, "resourceVersion": step.resource_version}
            await kube.merge(step.about, {**step.patch, "metadata": metadata})
        case Call():
            await admin.call(step)
        case Status():
            ref = step.about
            head: Json = {"apiVersion": ref.api_version, "kind": ref.kind}
            named = {**head, "metadata": {"name": ref.name}, "status": step.status}
            await kube.apply(_with_uid(named, step.uid), is_status=True)
        case Event():
            await report_event(typed, step, kube.namespace)
        case _:
            assert_never(step)


async def _check_name_is_free(kube: Kube, ref: Ref) -> None:
    """Before making an object: one that somebody made by hand is not taken over.

    The plan does not see it, for want of our label. Made in between, it would be taken; that takes
    the same name in the same millisecond.

    Raises:
        Refused: there is one.
    """
    found = await kube.get(ref)
    labels = found["metadata"].get("labels", {}) if found is not None else None
    if labels is not None and labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        message = "there is one that the operator did not make; delete it, or rename the cluster"
        raise Refused(_CONFLICT, Problem("NameTaken", message))


def _is_stale(step: Step, refused: Refused) -> bool:
    if refused.problem.code == "NameTaken":
        return False
    if isinstance(step, Event):
        return refused.status in {_GONE, _CONFLICT}  # 409: it has been told already
    if isinstance(step, Apply):
        return refused.status == _CONFLICT
    return refused.status in {_GONE, _CONFLICT}


def _with_uid(manifest: Json, uid: str | None) -> Json:
    """With a uid the API server refuses to make the object anew, or to touch another one."""
    if uid is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}


def _format(step: Step) -> str:
    what = type(step).__name__
    more = f" {step.method} {step.path}" if isinstance(step, Call) else ""
    more = f" {step.reason}" if isinstance(step, Event) else more
    return f"{what} {step.about.kind}/{step.about.name}{more}"
