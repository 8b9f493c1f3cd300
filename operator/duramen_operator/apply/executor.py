"""Does the steps of a plan, in order; a refused one does not keep the others from being tried.

What it gives back is for the next observation: which objects' steps were refused, and why. A
precondition that no longer holds is no refusal: the world moved on, and the next pass sees it so.
Before each step it asks whether this operator may write still, and whether what the plan rests on
is new enough; what changes an object names the state of it that was seen.
Called by the worker. Source: docs/kubernetes/one-hand.md 6 and 10 to 13.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from duramen_operator.kube import Kube, Refused
from duramen_operator.names import CLUSTER_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from duramen_operator.plan.observed import NAME_TAKEN, Json, Observed, Problem, Ref
from duramen_operator.plan.steps import (
    Apply,
    Call,
    Delete,
    Event,
    Patch,
    Plan,
    Restart,
    Status,
    Step,
    Stop,
)
from duramen_operator.typed.client import TypedClient
from duramen_operator.typed.events import report_event

_log = logging.getLogger(__name__)
Versions = dict[Ref, tuple[str, str]]
"""uid and resourceVersion of what was seen, and of what this pass made of it."""

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

    async def take(self, question: Json) -> None:
        """Take a grant of disruption.

        Raises:
            CallRefused: it was denied, with the reasons, or its fate is open: the same question may
                be asked again.
        """
        ...


@dataclass(slots=True)
class PlanOutcome:
    """What became of a plan's steps."""

    refusals: dict[Ref, Problem] = field(default_factory=dict)
    """Also those of the last pass whose steps had no turn in this one."""
    refused_now: set[Ref] = field(default_factory=set)
    """Those of this pass alone."""
    told: dict[Ref, tuple[str, str]] = field(default_factory=dict)
    """Objects whose status was written, with their uid and resourceVersion since."""
    done_count: int = 0
    stale_count: int = 0
    """Steps whose precondition no longer held: look again at once."""
    put_off: set[Ref] = field(default_factory=set)
    """Objects of which a step was left out because what was seen is too old by now."""

    @property
    def is_broken_off(self) -> bool:
        """Whether there are such: look again soon."""
        return bool(self.put_off)


@dataclass(frozen=True, slots=True)
class Doing:
    """What steps are done with.

    Attributes:
        check: raises HandLostError when this operator may not write any more.
        is_fresh: whether what the plan rests on is new enough for a step that names no state of
            what it changes.
        refused_at: objects whose steps were refused, and when, by any count: they come last, the
            latest last. What was refused may take long again, and must not keep the others from
            their turn for ever.
    """

    kube: Kube
    typed: TypedClient
    admin: AdminCalls
    check: Callable[[], None] = lambda: None
    is_fresh: Callable[[], bool] = lambda: True
    refused_at: Mapping[Ref, int] = field(default_factory=dict)


async def do_plan(plan: Plan, seen: Observed, doing: Doing) -> PlanOutcome:
    """Do what a plan of this observation says.

    Raises:
        Unreachable: the API server does not answer; what was left is planned anew.
        HandLostError: another operator writes by now.
    """
    outcome = PlanOutcome()
    versions = {ref: (item.uid, item.resource_version) for ref, item in seen.objects.items()}
    behind: set[Ref] = set()
    steps = sorted(plan.steps, key=lambda step: doing.refused_at.get(step.about, 0))
    for step in steps:
        if step.about in behind and isinstance(step, Event):
            continue  # nobody is told of what was not written; the next pass writes and tells it
        if _rests_on_the_list(step) and not doing.is_fresh():
            outcome.put_off.add(step.about)
            behind.add(step.about)
            if step.about in seen.refusals:
                outcome.refusals.setdefault(step.about, seen.refusals[step.about])
            continue
        doing.check()
        try:
            await _do(step, versions, doing)
            outcome.done_count += 1
            if isinstance(step, Status):
                outcome.told[step.about] = versions[step.about]
        except CallRefused as refused:
            behind.add(step.about)
            _note_refusal(outcome, step, refused.problem)
            _log.warning("%s refused: %s", _format(step), refused)
        except Refused as refused:
            if isinstance(step, Event) and refused.status == _CONFLICT:
                continue  # it was told already, perhaps by the operator before this one
            behind.add(step.about)
            if _is_stale(step, refused):
                outcome.stale_count += 1
                _log.info("%s: the object has changed: %s", _format(step), refused)
            else:
                _note_refusal(outcome, step, refused.problem)
                _log.warning("%s refused: %s", _format(step), refused)
        else:
            _log.info("%s", _format(step))
    return outcome


def _rests_on_the_list(step: Step) -> bool:
    """Whether nothing but the list says that this is right to do: a call, or what is made anew.

    Every other change names the state that it was planned for, so it is refused when that is over.
    """
    is_made_anew = isinstance(step, Apply) and step.uid is None
    return is_made_anew or isinstance(step, Call | Restart | Stop)


def _note_refusal(outcome: PlanOutcome, step: Step, problem: Problem) -> None:
    outcome.refusals[step.about] = problem
    outcome.refused_now.add(step.about)


async def _do(step: Step, versions: Versions, doing: Doing) -> None:
    kube = doing.kube
    match step:
        case Apply():
            if step.uid is None:
                await _check_name_is_free(kube, step)
            _note(versions, step, await kube.apply(_as_seen(step.manifest, step, versions)))
        case Delete():
            await kube.delete(step.about, step.uid, _find_version(step, versions))
        case Patch():
            patch = _as_seen({"metadata": {}, **step.patch}, step, versions)
            _note(versions, step, await kube.merge(step.about, patch))
        case Call():
            await doing.admin.call(step)
        case Status():
            ref = step.about
            head: Json = {"apiVersion": ref.api_version, "kind": ref.kind}
            named = {**head, "metadata": {"name": ref.name}, "status": step.status}
            changed = await kube.apply(_as_seen(named, step, versions), is_status=True)
            _note(versions, step, changed)
        case Restart():
            if step.question is not None:
                await doing.admin.take(step.question)
            doing.check()
            await kube.evict(step.about, step.uid, step.resource_version)
        case Stop():
            if step.question is not None:
                await doing.admin.take(step.question)
            doing.check()
            change = Apply(step.manifest, step.uid)
            _note(versions, change, await kube.apply(_as_seen(step.manifest, change, versions)))
        case Event():
            await report_event(doing.typed, step, kube.namespace)
        case _:
            assert_never(step)


async def _check_name_is_free(kube: Kube, step: Apply) -> None:
    """Before making an object: one that somebody made by hand, or that is another cluster's, is
    not taken over.

    The plan does not see it, for want of our labels. Made in between, it would be taken; that takes
    the same name in the same millisecond. Names of two clusters can meet: the bookie `x-1-0` is the
    first of a set `x-1`, and the second set `x` has it too where its bookies stand apart.

    Raises:
        Refused: there is one.
    """
    found = await kube.get(step.about)
    if found is None:
        return
    labels = found["metadata"].get("labels", {})
    if labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        message = "there is one that the operator did not make; delete it, or rename the cluster"
        raise Refused(_CONFLICT, Problem(NAME_TAKEN, message))
    owner = labels.get(CLUSTER_LABEL)
    if owner != step.manifest["metadata"].get("labels", {}).get(CLUSTER_LABEL):
        message = f"there is one of the cluster {owner}; rename the set or the cluster"
        raise Refused(_CONFLICT, Problem(NAME_TAKEN, message))


def _is_stale(step: Step, refused: Refused) -> bool:
    if refused.problem.code == NAME_TAKEN:
        return False
    if isinstance(step, Apply):
        return refused.status == _CONFLICT
    return refused.status in {_GONE, _CONFLICT}


def _as_seen(manifest: Json, step: Apply | Patch | Status, versions: Versions) -> Json:
    """With a uid the API server refuses to make the object anew, or to touch another one; with a
    version it refuses to change what somebody else changed meanwhile."""
    if step.uid is None:
        return manifest
    state = {"uid": step.uid, "resourceVersion": _find_version(step, versions)}
    return {**manifest, "metadata": {**manifest["metadata"], **state}}


def _find_version(step: Apply | Delete | Patch | Status, versions: Versions) -> str:
    """The state that the plan saw, or that an earlier step of it made of that."""
    uid, version = versions[step.about]
    assert uid == step.uid, "a plan changes what was observed"
    return version


def _note(versions: Versions, step: Apply | Patch | Status, changed: Json) -> None:
    metadata = changed.get("metadata") or {}
    versions[step.about] = (str(metadata.get("uid")), str(metadata.get("resourceVersion")))


def _format(step: Step) -> str:
    what = type(step).__name__
    more = f" {step.method} {step.path}" if isinstance(step, Call) else ""
    more = f" {step.reason}" if isinstance(step, Event) else more
    return f"{what} {step.about.kind}/{step.about.name}{more}"
