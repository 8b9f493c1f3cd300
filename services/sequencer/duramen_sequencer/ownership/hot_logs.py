"""Looks every few seconds which logs of this process are too hot for it, and names them.

They are named in the log host (for `owned`, and so for `duramen top`) and in a metric for an alert.
The metric has names of logs in its labels, so it holds few at a time, and drops one that has cooled
down. How busy the process is is the time that its event loop's thread had a processor.

Called by `service`. The decision is `core.ownership.hot_logs`'.
Source: docs/protocol/ownership.md "Hot logs".
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from prometheus_client import Gauge

from duramen.core.ownership.balance import LogLoad
from duramen.core.ownership.hot_logs import LogStrain, find_hot_logs
from duramen.core.sequencer.log_state import LogState
from duramen.ids import LogId
from duramen.runtime.sequencer.loads import WINDOW_US
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND
from duramen_sequencer.log_host import LogHost

_LOG = logging.getLogger(__name__)

HOT_LOG: Final = Gauge(
    "duramen_sequencer_hot_log",
    "1 for each log that its owner cannot carry; at most 8 of a sequencer are named",
    ["log", "reason"],
)


class HotLogs:
    """The hot logs of one process."""

    def __init__(self, host: LogHost) -> None:
        self._host = host
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._look_for_ever())

    async def stop(self) -> None:
        """Name none any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._host.hot = {}
        HOT_LOG.clear()

    async def _look_for_ever(self) -> None:
        while True:
            began_us, began_work_us = now_us(), _read_work_us()
            await asyncio.sleep(WINDOW_US / SECOND)
            passed_us = max(now_us() - began_us, 1)
            try:
                self.look((_read_work_us() - began_work_us) / passed_us)
            except Exception:
                _LOG.exception("a look for hot logs failed")

    def look(self, busy_ratio: float) -> None:
        """Name the logs that are hot now, and no others."""
        at_us = now_us()
        strains = []
        for log_id, driver in self._host.drivers.items():
            if driver.core.state is LogState.ACTIVE:
                load = LogLoad(str(log_id), self._host.sequencer_id, *driver.load.rates(at_us))
                strains.append(LogStrain(load, driver.load.refused_per_s(at_us)))
        hot = find_hot_logs(strains, busy_ratio)
        known = self._host.hot
        self._host.hot = {LogId(int(log_id)): reason.value for log_id, reason in hot.items()}
        for log_id in self._host.hot.keys() - known.keys():
            _LOG.warning("log %d is too hot for this sequencer: %s", log_id, self._host.hot[log_id])
        HOT_LOG.clear()
        for log_id, reason in self._host.hot.items():
            HOT_LOG.labels(self._name(log_id), reason).set(1)

    def _name(self, log_id: LogId) -> str:
        view = self._host.drivers[log_id].core.view
        return f"id {log_id}" if view is None else f"{view.log.namespace}/{view.log.name}"


def _read_work_us() -> int:
    """Time that a processor has worked for this thread, which is the event loop's."""
    return time.thread_time_ns() // 1_000
