"""Finalizers: how an object of ours that is being deleted is let go, in bounded time.

What a deletion waits for is judged by the kind's own part; here is what holds for all of them. The
cluster is gone, or going itself: nothing is waited for. It does not answer, refuses, or is paused:
the object is let go `RELEASE_AFTER` after it was deleted, and an event says what may be left. So an
uninstall never hangs on the operator, and a plan is right whenever it is made.

Called by `logs` and `log_namespaces`. Source: docs/kubernetes/operations.md "Delete".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from duramen_operator.names import FINALIZER
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.plan.steps import Call, Event, Patch, Step

RELEASE_AFTER = timedelta(minutes=5)
"""Longer than a proxy takes to come back after a drain, shorter than anybody waits for kubectl."""


@dataclass(frozen=True, slots=True)
class Release:
    """What the deletion of an object still waits for."""

    step: Call | None
    reason: str
    message: str
    is_over: bool = False
    is_warning: bool = False
    is_unsure: bool = False
    """Whether it waits for a look alone."""

    @classmethod
    def let_go(cls, reason: str, message: str, *, is_warning: bool = False) -> "Release":
        """Nothing is to be done any more."""
        return cls(None, reason, message, is_over=True, is_warning=is_warning)

    @classmethod
    def wait(cls, message: str) -> "Release":
        """Nothing can be done now."""
        return cls(None, "Deleting", message)

    @classmethod
    def look(cls, message: str) -> "Release":
        """What is known is too little, or too old, to do anything."""
        return cls(None, "Deleting", message, is_unsure=True)

    @classmethod
    def call(cls, step: Call, message: str) -> "Release":
        """This is to be done, and looked at again."""
        return cls(step, "Deleting", message)


def plan_release(
    observed: Observed, item: KubeObject, release: Release, now: datetime
) -> Iterator[Step]:
    """The steps for an object that is being deleted and has our finalizer."""
    refusal = observed.refusals.get(item.ref)
    if release.is_over:
        yield _report(item, release.reason, release.message, now, is_warning=release.is_warning)
        yield from change_finalizer(item, is_wanted=False)
    elif observed.cluster is None or observed.cluster.is_leaving:
        message = f"the cluster is gone: nothing is waited for ({release.message})"
        yield _report(item, "ClusterGone", message, now, is_warning=True)
        yield from change_finalizer(item, is_wanted=False)
    elif now >= deadline_of(item):
        why = f"{refusal.code}: {refusal.message}" if refusal else observed.admin.reason
        why = "the cluster is paused" if observed.is_paused else why or "it was not done yet"
        minutes = int(RELEASE_AFTER.total_seconds() // 60)
        message = f"let go after {minutes} minutes, and it may be left: {release.message} ({why})"
        yield _report(item, "ReleasedLate", message, now, is_warning=True)
        yield from change_finalizer(item, is_wanted=False)
    elif release.step is not None and observed.admin.is_reachable and not observed.is_paused:
        yield release.step


def deadline_of(item: KubeObject) -> datetime:
    """When an object that is being deleted is let go, whatever became of it."""
    return find_deletion(item) + RELEASE_AFTER


def find_deletion(item: KubeObject) -> datetime:
    """When an object that is being deleted was deleted."""
    return datetime.fromisoformat(str(item.metadata["deletionTimestamp"]))


def change_finalizer(item: KubeObject, *, is_wanted: bool) -> Iterator[Patch]:
    """The step that makes our finalizer be there, or not; none where that is so already."""
    if is_wanted == (FINALIZER in item.finalizers):
        return
    others = [name for name in item.finalizers if name != FINALIZER]
    finalizers = [*others, FINALIZER] if is_wanted else others
    patch = {"metadata": {"finalizers": finalizers}}
    yield Patch(item.ref, item.uid, item.resource_version, patch)


def _report(
    item: KubeObject, reason: str, message: str, now: datetime, *, is_warning: bool
) -> Event:
    since = find_deletion(item)
    return Event(item.ref, item.uid, reason, message, since, now, is_warning=is_warning)
