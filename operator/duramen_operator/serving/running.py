"""Puts the operator together and runs it until SIGTERM: API client, watches, workers, ports.

Called by `duramen-operator run`. The order of the start matters once: watches are opened when every
kind of ours is known to the API server, because kopf never looks for a kind a second time.
"""

import asyncio
import logging
import signal
import time

from duramen_operator.kinds import OURS
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.serving.cluster_admin import ClusterAdmin
from duramen_operator.serving.handlers import WATCHED, make_registry, watch
from duramen_operator.serving.health import HealthServer
from duramen_operator.serving.rights_check import RightsCheck
from duramen_operator.serving.watches import Watches
from duramen_operator.serving.worker import AdminApi, WorkerContext, Workers
from duramen_operator.settings import Settings
from duramen_operator.typed.client import TypedClient

_log = logging.getLogger(__name__)

STUCK_S = 300.0
"""A pass ends within a minute even when every request runs into its limit."""
RETRY_S = 2.0


class Operator:
    """One running operator."""

    def __init__(self, settings: Settings, kubeconfig: str | None = None) -> None:
        self._settings = settings
        self._kubeconfig = kubeconfig
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._watches = Watches((kind.name for kind in WATCHED), time.monotonic)
        self._workers: Workers | None = None

    def stop(self) -> None:
        """Come to an end soon; safe from a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped."""
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
        typed = TypedClient(kube)
        context = WorkerContext(kube, typed, self._settings, self._watches, self._make_admin)
        self._workers = workers = Workers(context)
        registry = make_registry(kube, workers, self._watches)
        check = asyncio.create_task(RightsCheck(typed, kube.namespace).run(), name="rights check")
        _log.info("serving namespace %s", kube.namespace)
        try:
            await watch(registry, kube.namespace, self._stop, self._ready)
        finally:
            check.cancel()
            await asyncio.gather(check, return_exceptions=True)
            await workers.stop()
            await typed.close()

    async def _connect(self) -> Kube | None:
        """The API server, once it answers and knows all kinds; None when stopped before."""
        while not self._stop.is_set():
            try:
                kube = await Kube.connect(self._settings.namespace, self._kubeconfig)
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

    def _make_admin(self, cluster_name: str) -> AdminApi:
        settings = self._settings
        return ClusterAdmin(
            settings.find_write_url(cluster_name), settings.find_admin_url(cluster_name)
        )

    def _find_sickness(self) -> str:
        late = self._watches.find_late()
        if late:
            return f"no event came for too long about changes of {', '.join(late)}"
        stuck = self._workers.find_stuck(STUCK_S) if self._workers is not None else ()
        return f"the worker of {', '.join(stuck)} hangs" if stuck else ""

    def _find_unreadiness(self) -> str:
        if self._workers is None or not self._ready.is_set():
            return "waiting for the API server and the custom resources"
        return self._find_sickness()


async def run_operator(settings: Settings, kubeconfig: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    operator = Operator(settings, kubeconfig)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, operator.stop)
    await operator.run()
