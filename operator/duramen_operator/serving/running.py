"""Puts the operator together and runs it until SIGTERM: API client, Lease, watches, workers, ports.

Watches and workers live as long as the Lease is held, and are made anew when it is again (ADR
0041). Called by `duramen-operator run`. The order of the start matters once: watches are opened
when every kind of ours is known to the API server, because kopf never looks for a kind a second
time.
"""

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from duramen_operator.kinds import OURS
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.leading.claim import Claimant
from duramen_operator.leading.hand import Hand
from duramen_operator.leading.keeper import LEASE_REQUEST_S, LeaseKeeper
from duramen_operator.serving import metrics
from duramen_operator.serving.cluster_admin import ClusterAdmin
from duramen_operator.serving.cluster_identity import ClusterIdentity
from duramen_operator.serving.handlers import WATCHED, make_registry, watch
from duramen_operator.serving.health import HealthServer
from duramen_operator.serving.rights_check import RightsCheck
from duramen_operator.serving.watches import Watches
from duramen_operator.serving.worker import AdminApi, WorkerContext, Workers
from duramen_operator.settings import Settings
from duramen_operator.typed.client import TypedClient
from duramen_operator.typed.leases import OperatorLease

_log = logging.getLogger(__name__)

STUCK_S = 300.0
"""A pass ends within a minute even when every request runs into its limit."""
RETRY_S = 2.0
ASIDE_S = 60.0
"""How long an older operator leaves the Lease to others: longer than those wait for it."""
ASIDE_EVERY_S = 600.0
"""So often at most: other clusters of the namespace may be this operator's to serve."""


class Operator:
    """One running operator."""

    def __init__(self, settings: Settings, kubeconfig: str | None = None) -> None:
        self._settings = settings
        self._kubeconfig = kubeconfig
        self._stop = asyncio.Event()
        self._hand = Hand()
        self._keeper: LeaseKeeper | None = None
        self._term: Term | None = None
        self._aside_again_s = 0.0

    def stop(self) -> None:
        """Come to an end soon; safe from a signal handler of the loop."""
        self._stop.set()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def run(self) -> None:
        """Serve until stopped, by SIGTERM or SIGINT too."""
        self._listen()
        health = HealthServer(self._find_sickness, self._find_unreadiness)
        settings = self._settings
        await health.start(settings.host, settings.health_port, settings.metrics_port)
        try:
            kube = await self._connect()
            if kube is not None:
                await self._serve(kube)
        finally:
            await health.stop()

    async def _serve(self, kube: Kube) -> None:
        """Wait for the Lease and serve while it is held, again and again."""
        typed = TypedClient(kube)
        # By connections of its own: a renewal waits behind nobody, and not for long.
        calls = TypedClient(kube, timeout_s=LEASE_REQUEST_S)
        lease = OperatorLease(calls, kube.namespace)
        claimant = Claimant(self._settings.identity, secrets.token_hex(4))
        self._keeper = keeper = LeaseKeeper(lease, claimant, self._hand)
        check = asyncio.create_task(RightsCheck(typed, kube.namespace).run(), name="rights check")
        try:
            while not self._stop.is_set() and await self._unless_stopped(keeper.acquire()):
                metrics.LEADING.set(1)
                is_aside = await self._serve_term(kube, typed, keeper)
                metrics.LEADING.set(0)
                if is_aside:
                    _log.warning("a newer operator served here: this one gives its Lease up")
                    await keeper.give_back()
                    await self._pause(ASIDE_S)
        finally:
            check.cancel()
            await asyncio.gather(check, return_exceptions=True)
            await keeper.give_back()
            await calls.close()
            await typed.close()

    async def _serve_term(self, kube: Kube, typed: TypedClient, keeper: LeaseKeeper) -> bool:
        """Serve until stopped, until the Lease is lost, or until a newer operator is to have it,
        which is told."""
        self._term = term = Term()
        make_admin = partial(self._make_admin, kube)
        context = WorkerContext(
            kube, typed, self._settings, term.watches, make_admin, self._hand, self._step_aside
        )
        workers = term.workers = Workers(context)
        registry = make_registry(kube, workers, term.watches)

        async def keep() -> None:
            try:
                await self._unless_stopped(keeper.keep(), term.aside)
            except Exception:
                _log.exception("the Lease cannot be kept")  # a fault of ours
            finally:
                await workers.stop()
                term.ended.set()

        async def listen() -> None:
            await term.ready.wait()
            self._listen()  # kopf took the signals at its start, and would end before workers do

        tasks = [asyncio.create_task(work()) for work in (keep, listen)]
        _log.info("serving namespace %s", kube.namespace)
        try:
            await watch(registry, kube.namespace, term.ended, term.ready)
            if self._hand.is_held and not term.aside.is_set():
                self.stop()  # nothing else ended it: kopf heard a signal, or failed
        finally:
            self._listen()
            self._term = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await workers.stop()
            metrics.LATE_WATCHES.set(0)
        return term.aside.is_set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None], *also: asyncio.Event) -> bool:
        """Whether the operator was not told to stop; then, or at another event, it is cancelled."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work)]
        tasks += [asyncio.create_task(event.wait()) for event in (self._stop, *also)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            found, *_ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(found, Exception):
            raise found
        return not self._stop.is_set()

    async def _connect(self) -> Kube | None:
        """The API server, once it answers and knows all kinds; None when stopped before."""
        namespace, check = self._settings.namespace, self._hand.check
        while not self._stop.is_set():
            try:
                kube = await Kube.connect(namespace, self._kubeconfig, check)
                for kind in OURS:
                    await kube.list(kind)
            except (ApiUnreachable, Refused) as error:
                _log.warning("waiting for the API server and the custom resources: %s", error)
                await self._pause(RETRY_S)
            else:
                return kube
        return None

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _step_aside(self) -> None:
        """Leave the Lease to a newer operator, if one waits; not again soon, for others' sake."""
        now_s = time.monotonic()
        if self._term is not None and now_s >= self._aside_again_s:
            self._aside_again_s = now_s + ASIDE_EVERY_S
            self._term.aside.set()

    def _make_admin(self, kube: Kube, cluster_name: str) -> AdminApi:
        identity = ClusterIdentity(kube, cluster_name)
        return ClusterAdmin(cluster_name, self._settings, identity, self._hand.check)

    def _find_sickness(self) -> str:
        term = self._term
        if term is None:
            return ""
        late = term.watches.find_late()
        if late:
            return f"no event came for too long about changes of {', '.join(late)}"
        stuck = term.workers.find_stuck(STUCK_S) if term.workers is not None else ()
        return f"the worker of {', '.join(stuck)} hangs" if stuck else ""

    def _find_unreadiness(self) -> str:
        if self._keeper is None:
            return "waiting for the API server and the custom resources"
        if self._keeper.fault:
            return self._keeper.fault
        if self._term is not None and not self._term.ready.is_set():
            return "its watches have not begun"
        # Who waits for the Lease is as ready as can be: it takes over when that is free.
        return self._find_sickness()


class Term:
    """What lives as long as this operator holds the Lease."""

    def __init__(self) -> None:
        self.watches = Watches((kind.name for kind in WATCHED), time.monotonic)
        self.workers: Workers | None = None
        self.aside = asyncio.Event()
        self.ended = asyncio.Event()
        self.ready = asyncio.Event()


async def run_operator(settings: Settings, kubeconfig: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    await Operator(settings, kubeconfig).run()
