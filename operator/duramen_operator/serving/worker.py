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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from duramen.backoff import Backoff
from duramen.units import SECOND
from duramen_operator.apply.executor import AdminCalls, Doing, PlanOutcome, do_plan
from duramen_operator.issuing.driver import CertificateIssuer
from duramen_operator.issuing.requests import look_at_requests
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.leading.hand import Hand, HandLostError
from duramen_operator.observe.listing import list_around
from duramen_operator.plan.hands.versions import find_newer
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
FRESH_S = 5.0
"""No step begins later than this after the list began that its plan rests on."""
_UNKNOWN_CAUSE = ("", "")
_FIGURED = frozenset({"Log", "Bookie"})
"""Kinds with figures that move by themselves: with many of them one is due in each pass, and a
worker that every writing wakes would never rest."""
FRESH_MIN_S = 1.0
LISTED_S = 1.0
"""A list that is older than this when the cluster has answered is made again."""
BACKOFF = Backoff(1 * SECOND, 30 * SECOND)


class AdminApi(AdminCalls, Protocol):
    """A cluster's own API, as the worker needs it."""

    def renew(self, paths: frozenset[str]) -> None:
        """Have the next look read these logs, whatever is known of them."""
        ...

    async def look(self, seen: Observed) -> AdminView:
        """What the cluster says of itself; unreachable is an answer, not an exception."""
        ...

    async def close(self) -> None:
        """Close every connection; nobody looks or calls any more."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all workers share."""

    kube: Kube
    typed: TypedClient
    settings: Settings
    watches: Watches
    make_admin: Callable[[str], AdminApi]
    hand: Hand
    step_aside: Callable[[], None] = lambda: None
    """This operator is older than one that served here: a newer one that waits is to have the
    Lease."""


class ClusterWorker:
    """Serves one cluster, until nothing names it any more."""

    def __init__(self, cluster_name: str, context: WorkerContext) -> None:
        self.cluster_name = cluster_name
        self._context = context
        self._admin = context.make_admin(cluster_name)
        self._woken = asyncio.Event()
        self._causes: set[tuple[str, str]] = set()
        """Objects and their versions that woke it; empty: something else did."""
        self._told: frozenset[tuple[str, str]] = frozenset()
        """Logs and bookies whose status the last pass wrote: that they changed is no news."""
        self._refusals: dict[Ref, Problem] = {}
        self._refused_at: dict[Ref, int] = {}
        """Objects whose steps were refused when they last had a turn, and in which pass."""
        self._pass_count = 0
        self._is_whole = True
        self._failures = 0
        self._issuer = CertificateIssuer(context.kube, time.monotonic)
        self._series = metrics.ClusterSeries(cluster_name)
        self.passed_at_s = time.monotonic()

    def wake(self, cause: tuple[str, str] | None = None) -> None:
        """Something has changed: look again.

        Args:
            cause: uid and resourceVersion of an object; None: whatever it is.
        """
        if cause is not None and cause in self._told:
            return
        self._causes.add(cause or _UNKNOWN_CAUSE)
        self._woken.set()

    @property
    def is_woken(self) -> bool:
        """Whether it has yet to look at a change."""
        return self._woken.is_set()

    async def run(self) -> None:
        """Pass after pass; returns when there is nothing left to serve."""
        try:
            await self._do_passes()
        finally:
            self._series.forget()  # whoever waits for the Lease tells nothing
            await self._admin.close()

    async def _do_passes(self) -> None:
        while True:
            self._woken.clear()
            self._causes.clear()
            again_s = await self._try_pass()
            # An event may come before the answer to the write that it tells of.
            if self._causes and self._causes <= self._told:
                self._woken.clear()
            self.passed_at_s = time.monotonic()
            if again_s is None:
                return
            await _rest(self._woken, again_s)

    async def _try_pass(self) -> float | None:
        """One pass; gives when to do the next at the latest, or None when it was the last."""
        began_s = time.monotonic()
        try:
            again_s = await self.do_pass()
        except HandLostError as error:
            _log.warning("%s: pass broken off: %s", self.cluster_name, error)
            return self._context.settings.resync_s  # somebody ends this worker, or it goes on then
        except (ApiUnreachable, Refused) as error:
            _log.warning("%s: pass broken off: %s", self.cluster_name, error)
            return self._back_off("broken_off")
        except Exception:
            # A fault of ours must not end the worker: another state may not trip over it.
            _log.exception("%s: pass failed", self.cluster_name)
            return self._back_off("failed")
        metrics.PASS_SECONDS.labels(self.cluster_name).observe(time.monotonic() - began_s)
        if again_s is not None and self._is_whole:
            metrics.LAST_PASS.labels(self.cluster_name).set_to_current_time()
        return again_s

    async def do_pass(self) -> float | None:
        """Observe, plan, apply.

        Raises:
            Unreachable, Refused: the API server did not let it see everything, or went away.
            HandLostError: another operator writes by now.
        """
        listed_s = time.monotonic()
        seen = await self._list()
        fresh_until_s = listed_s + FRESH_S
        if find_newer(seen):
            return await self._report_newer(seen)
        if not seen.objects:
            self._series.forget()
            return None
        self._series.report_conditions((*seen.list("LogCluster"), *seen.list("BookieSet")))
        self._series.report_archive(seen.list("ArchivePolicy"))
        now = datetime.now(UTC)
        # First: a cluster whose certificates have ended does not answer, and pods wait for theirs.
        certificates = await self._issuer.look(seen, now)
        if certificates is None:
            certificates = await look_at_requests(self._context.kube, seen, now)
        self._series.report_certificates(certificates)
        admin = AdminView() if seen.cluster is None else await self._admin.look(seen)
        if time.monotonic() > listed_s + LISTED_S:
            listed_s = time.monotonic()
            seen = await self._list()
            # However long lists take, something is done by each: else nothing would ever be.
            fresh_until_s = max(listed_s + FRESH_S, time.monotonic() + FRESH_MIN_S)
        seen = replace(seen, admin=admin, certificates=certificates)
        plan = make_plan(seen, now)
        self._admin.renew(plan.unsure)
        outcome = await do_plan(plan, seen, self._doing(fresh_until_s))
        return self._judge(plan, outcome, now)

    async def _report_newer(self, seen: Observed) -> float:
        """Nothing is done but that: no certificate is issued, and the cluster is not asked."""
        now = datetime.now(UTC)
        plan = make_plan(seen, now)
        outcome = await do_plan(plan, seen, self._doing(time.monotonic() + FRESH_S))
        if not outcome.stale_count:
            self._context.step_aside()
        return self._judge(plan, outcome, now)

    def _doing(self, fresh_until_s: float) -> Doing:
        context = self._context
        return Doing(
            context.kube,
            context.typed,
            self._admin,
            check=context.hand.check,
            is_fresh=lambda: time.monotonic() < fresh_until_s,
            refused_at=self._refused_at,
        )

    async def _list(self) -> Observed:
        """The objects around the cluster; nobody was asked yet."""
        found = await list_around(self._context.kube, self.cluster_name)
        for kind, items in found.objects.items():
            self._context.watches.on_list(kind, items, self.cluster_name)
        settings = self._context.settings
        return observe_objects(
            settings.namespace,
            self.cluster_name,
            found.everything,
            images=settings.images,
            refusals=self._refusals,
            taken=found.taken,
        )

    def _judge(self, plan: Plan, outcome: PlanOutcome, now: datetime) -> float:
        self._refusals = outcome.refusals
        self._is_whole = not outcome.is_broken_off
        self._pass_count += 1
        waiting = {ref: at for ref, at in self._refused_at.items() if ref in outcome.put_off}
        self._refused_at = waiting | dict.fromkeys(outcome.refused_now, self._pass_count)
        told = outcome.told.items()
        self._told = frozenset(state for ref, state in told if ref.kind in _FIGURED)
        metrics.REFUSED_STEPS.labels(self.cluster_name).set(len(outcome.refusals))
        for step in plan.steps:
            metrics.STEPS.labels(self.cluster_name, type(step).__name__).inc()
        if outcome.is_broken_off:
            metrics.PASSES.labels(self.cluster_name, "too_long").inc()
            return STALE_S
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


async def _rest(woken: asyncio.Event, at_most_s: float) -> None:
    """Until it is woken or its time has come, and while events of one burst come in."""
    # Not by wait_for: Python 3.11 may lose a cancellation in it that comes with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await woken.wait()
    await asyncio.sleep(GATHER_S)


class Workers:
    """The workers of all clusters of the namespace."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._workers: dict[str, ClusterWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False

    def wake(self, cluster_name: str, cause: tuple[str, str] | None = None) -> None:
        """Something has changed around a cluster; its worker is made if there is none.

        Args:
            cause: as of `ClusterWorker.wake`.
        """
        if not cluster_name or self._is_stopped:
            return
        worker = self._workers.get(cluster_name)
        if worker is None:
            worker = self._workers[cluster_name] = ClusterWorker(cluster_name, self._context)
            task = asyncio.create_task(worker.run(), name=f"worker of {cluster_name}")
            self._tasks[cluster_name] = task
            task.add_done_callback(lambda _: self._end(cluster_name, worker))
        worker.wake(cause)

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
        if worker.is_woken:
            self.wake(cluster_name)  # something came between its last look and its end
