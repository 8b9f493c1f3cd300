"""The whole plan for one cluster: the parts in the order in which they are done.

Each part is a pure function of what was observed and of the time, and knows nothing of the others.
Whose hands may write comes first: a cluster that a newer operator served, and one that is paused,
get next to nothing. Called by the worker; explained in ADR 0020 and docs/kubernetes/one-hand.md.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.cluster.plan import plan_cluster
from duramen_operator.plan.hands.edits import add_edits
from duramen_operator.plan.hands.pausing import keep_paused
from duramen_operator.plan.hands.versions import find_newer, report_newer
from duramen_operator.plan.log_grants import plan_grants
from duramen_operator.plan.log_namespaces import plan_namespaces
from duramen_operator.plan.logs import plan_logs
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Plan, Step

Part = Callable[[Observed, datetime], Plan]

PARTS: tuple[Part, ...] = (plan_cluster, plan_namespaces, plan_logs, plan_grants, plan_archive)
"""In order: what holds the cluster, its services, its namespaces, logs and grants, its archive."""


def make_plan(observed: Observed, now: datetime, parts: Iterable[Part] = PARTS) -> Plan:
    """What to do next, in order; an empty plan when everything is as it should be."""
    newer = find_newer(observed)
    if newer:
        return Plan(tuple(report_newer(observed, newer, now)))
    plans = [part(observed, now) for part in parts]
    steps = tuple(step for plan in plans for step in plan.steps)
    if observed.is_paused:
        # Next to nothing is done, so there is nothing to come back for at once.
        return Plan(tuple(keep_paused(observed, steps)))
    steps = tuple(add_edits(observed, steps, now))
    unsure = frozenset(path for plan in plans for path in plan.unsure)
    moments = [plan.again_at for plan in plans if plan.again_at is not None]
    if unsure or observed.admin.look_again_s is not None:
        moments.append(now + timedelta(seconds=observed.admin.look_again_s or 0.0))
    return Plan(steps, min(moments) if moments else None, unsure)


def collect(steps: Iterable[Step], again_at: datetime | None = None) -> Plan:
    """A part's plan of its steps."""
    return Plan(tuple(steps), again_at)
