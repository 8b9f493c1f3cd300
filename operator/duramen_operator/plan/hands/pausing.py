"""What is done of a plan while people have the operator keep its hands off a cluster.

Statuses and events are told. Objects that are being deleted are let go once they need nothing of
the cluster, or have waited long enough: nobody is to wait for a person who has gone home. No other
step is done. A part that would tell of a step says nothing where that step is dropped here.

Called by `plan.plan`. Pure. Source: docs/kubernetes/one-hand.md 21.
"""

from collections.abc import Iterable, Iterator

from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Event, Patch, Status, Step


def keep_paused(observed: Observed, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps that are done of a cluster that is paused."""
    return (step for step in steps if _is_kept(observed, step))


def _is_kept(observed: Observed, step: Step) -> bool:
    if isinstance(step, Patch):
        # A finalizer that goes, of an object that goes: it is the only patch of such a one.
        return observed.objects[step.about].is_leaving
    return isinstance(step, Status | Event)
