"""One worker for each cluster: observe, plan, apply, and again when something has changed.

It remembers nothing that matters: killed between any two requests, the next one sees the same world
and goes on. Handlers wake it; its own clock does, too, so that a lost event costs half a minute.
Called by `handlers.py`; explained in ADR 0020.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from duramen.backoff import Backoff
from duramen.units import SECOND
from duramen_operator.apply.executor import AdminCalls, PlanOutcome, do_plan
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.observe.listing import list_around
from duramen_operator.plan.observed import AdminView, Observed, Problem, Ref, observe_objects
from duramen_operator.plan.plan import make_plan
from duramen_operator.plan.steps import Plan
from duramen_operator.serving import metrics
from duramen_operator.serving.watches import Watches
from duramen_operator.settings import Settings
from duramen_operator.typed.client import TypedClient

_log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Events come in bursts (a StatefulSet and its three pods): one pass for all of them."""
STALE_S = 0.5
"""What was written meanwhile by somebody else is looked at again so soon."""
BACKOFF = Backoff(1 * SECOND, 30 * SECOND)


class AdminApi(AdminCalls, Protocol):
    """A cluster's own API, as the worker needs it."""

    async def look(self, seen: Observed) -> AdminView:
        """What the cluster says of itself; unreachable is an answer, not an exception."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all workers share."""

    kube: Kube
    typed: TypedClient
    settings: Settings
    watches: Watches
    make_admin: Callable[[str], AdminApi]


class ClusterWorker:
    """Serves one cluster, until nothing names it any more."""

    def __init__(self, cluster_name: str, context: WorkerContext) -> None:
        self.cluster_name = cluster_name
        self._context = context
        self._admin = context.make_admin(cluster_name)
        self._woken = asyncio.Event()
        self._refusals: dict[Ref, Problem] = {}
        self._failures = 0
        self._series = metrics.ClusterSeries(cluster_name)
        self.passed_at_s = time.monotonic()

    def wake(self) -> None:
        """Something has changed: look again."""
        self._woken.set()

    @property
    def is_woken(self) -> bool:
        """Whether it has yet to look at a change."""
        return self._woken.is_set()

    async def run(self) -> None:
        """Pass after pass; returns when there is nothing left to serve."""
        while True:
            self._woken.clear()
            again_s = await self._try_pass()
            self.passed_at_s = time.monotonic()
            if again_s is None:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), again_s)
            await asyncio.sleep(GATHER_S)

    async def _try_pass(self) -> float | None:
        """One pass; gives when to do the next at the latest, or None when it was the last."""
        began_s = time.monotonic()
        try:
            again_s = await self.do_pass()
        except (ApiUnreachable, Refused) as error:
            _log.warning("%s: pass broken off: %s", self.cluster_name, error)
            return self._back_off("broken_off")
        except Exception:
            # A fault of ours must not end the worker: another state may not trip over it.
            _log.exception("%s: pass failed", self.cluster_name)
            return self._back_off("failed")
        metrics.PASS_SECONDS.labels(self.cluster_name).observe(time.monotonic() - began_s)
        if again_s is not None:
            metrics.LAST_PASS.labels(self.cluster_name).set_to_current_time()
        return again_s

    async def do_pass(self) -> float | None:
        """Observe, plan, apply.

        Raises:
            Unreachable, Refused: the API server did not let it see everything, or went away.
        """
        observed = await self._observe()
        if not observed.objects:
            self._series.forget()
            return None
        self._series.report_conditions((*observed.list("LogCluster"), *observed.list("BookieSet")))
        self._series.report_archive(observed.list("ArchivePolicy"))
        now = datetime.now(UTC)
        plan = make_plan(observed, now)
        outcome = await do_plan(plan, self._context.kube, self._context.typed, self._admin)
        return self._judge(plan, outcome, now)

    async def _observe(self) -> Observed:
        found = await list_around(self._context.kube, self.cluster_name)
        for kind, items in found.items():
            self._context.watches.on_list(kind, items, self.cluster_name)
        objects = [item for items in found.values() for item in items]
        settings = self._context.settings
        seen = observe_objects(
            settings.namespace,
            self.cluster_name,
            objects,
            images=settings.images,
            refusals=self._refusals,
        )
        if seen.cluster is None:
            return seen
        admin = await self._admin.look(seen)
        return observe_objects(
            settings.namespace,
            self.cluster_name,
            objects,
            images=settings.images,
            refusals=self._refusals,
            admin=admin,
        )

    def _judge(self, plan: Plan, outcome: PlanOutcome, now: datetime) -> float:
        self._refusals = outcome.refusals
        metrics.REFUSED_STEPS.labels(self.cluster_name).set(len(outcome.refusals))
        for step in plan.steps:
            metrics.STEPS.labels(self.cluster_name, type(step).__name__).inc()
        if outcome.refusals:
            return self._back_off("refused")
        self._failures = 0
        metrics.PASSES.labels(self.cluster_name, "done").inc()
        waits = [self._context.settings.resync_s]
        if outcome.stale_count:
            waits.append(STALE_S)
        if plan.again_at is not None:
            waits.append(max(0.0, (plan.again_at - now).total_seconds()))
        return min(waits)

    def _back_off(self, outcome: str) -> float:
        metrics.PASSES.labels(self.cluster_name, outcome).inc()
        wait_s = BACKOFF.pause_us(self._failures) / SECOND
        self._failures += 1
        return min(wait_s, self._context.settings.resync_s)


class Workers:
    """The workers of all clusters of the namespace."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._workers: dict[str, ClusterWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False

    def wake(self, cluster_name: str) -> None:
        """Something has changed around a cluster; its worker is made if there is none."""
        if not cluster_name:
            return
        worker = self._workers.get(cluster_name)
        if worker is None:
            worker = self._workers[cluster_name] = ClusterWorker(cluster_name, self._context)
            task = asyncio.create_task(worker.run(), name=f"worker of {cluster_name}")
            self._tasks[cluster_name] = task
            task.add_done_callback(lambda _: self._end(cluster_name, worker))
        worker.wake()

    def find_stuck(self, limit_s: float) -> tuple[str, ...]:
        """Clusters whose worker has not ended a pass for this long: a request that never ends."""
        now_s = time.monotonic()
        late = (n for n, w in self._workers.items() if now_s - w.passed_at_s > limit_s)
        return tuple(sorted(late))

    async def stop(self) -> None:
        """End them all, wherever they are: that is safe at any place."""
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        """How many clusters are served."""
        return {"workers": len(self._workers)}

    def _end(self, cluster_name: str, worker: ClusterWorker) -> None:
        del self._workers[cluster_name]
        del self._tasks[cluster_name]
        if worker.is_woken and not self._is_stopped:
            self.wake(cluster_name)  # something came between its last look and its end
