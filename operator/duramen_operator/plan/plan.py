"""The whole plan for one cluster: the parts in the order in which they are done.

Each part is a pure function of what was observed and of the time, and knows nothing of the others.
A paused cluster gets its statuses, and nothing else. Called by the worker; explained in ADR 0020.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from duramen_operator.plan.archive.plan import plan_archive
from duramen_operator.plan.cluster.plan import plan_cluster
from duramen_operator.plan.log_grants import plan_grants
from duramen_operator.plan.log_namespaces import plan_namespaces
from duramen_operator.plan.logs import plan_logs
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Event, Plan, Status, Step

Part = Callable[[Observed, datetime], Plan]

PARTS: tuple[Part, ...] = (plan_cluster, plan_namespaces, plan_logs, plan_grants, plan_archive)
"""In order: what holds the cluster, its services, its namespaces, logs and grants, its archive."""


def make_plan(observed: Observed, now: datetime, parts: Iterable[Part] = PARTS) -> Plan:
    """What to do next, in order; an empty plan when everything is as it should be."""
    plans = [part(observed, now) for part in parts]
    steps = tuple(step for plan in plans for step in plan.steps)
    if observed.is_paused:
        # Nothing is done, so there is nothing to come back for at once.
        return Plan(tuple(step for step in steps if isinstance(step, Status | Event)))
    moments = [plan.again_at for plan in plans if plan.again_at is not None]
    return Plan(steps, min(moments) if moments else None)


def collect(steps: Iterable[Step], again_at: datetime | None = None) -> Plan:
    """A part's plan of its steps."""
    return Plan(tuple(steps), again_at)
