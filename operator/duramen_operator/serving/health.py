"""The operator's small HTTP ports: `/healthz` and `/readyz` for the kubelet, `/metrics` for
Prometheus.

Unhealthy is what a restart helps against: a watch that has died silently, a worker that hangs. An
API server that does not answer is neither. Called by `running.py`.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from duramen_operator.serving import metrics

Check = Callable[[], str]
"""Gives why it is not so; empty when it is."""


class HealthServer:
    """Serves both ports inside the operator's own loop: a loop that hangs fails its probe."""

    def __init__(self, find_sickness: Check, find_unreadiness: Check) -> None:
        self._find_sickness = find_sickness
        self._find_unreadiness = find_unreadiness
        self._runners: list[web.AppRunner] = []

    async def start(self, host: str, health_port: int, metrics_port: int) -> None:
        """Open both ports.

        Raises:
            OSError: a port is taken.
        """
        health = web.Application()
        health.router.add_get("/healthz", self._answer_healthz)
        health.router.add_get("/readyz", self._answer_readyz)
        pages = web.Application()
        pages.router.add_get("/metrics", _answer_metrics)
        for application, port in ((health, health_port), (pages, metrics_port)):
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, host, port).start()

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are open: of health, of metrics."""
        return tuple(int(address[1]) for runner in self._runners for address in runner.addresses)

    async def stop(self) -> None:
        """Close both ports."""
        for runner in self._runners:
            await runner.cleanup()

    async def _answer_healthz(self, _: web.Request) -> web.Response:
        return _answer(self._find_sickness())

    async def _answer_readyz(self, _: web.Request) -> web.Response:
        return _answer(self._find_unreadiness())


def _answer(fault: str) -> web.Response:
    return _close(web.Response(status=503 if fault else 200, text=f"{fault or 'ok'}\n"))


async def _answer_metrics(_: web.Request) -> web.Response:
    page = generate_latest(metrics.registry)
    return _close(web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST}))


def _close(response: web.Response) -> web.Response:
    """An answer after which the connection ends: kopf waits 5 s at its end for the task of each
    that is kept, and meanwhile nobody renews the Lease."""
    response.force_close()
    return response
