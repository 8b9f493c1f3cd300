"""Gives up logs that stand still here because of bookies, where another sequencer reaches them.

Looks every second. Which log, and to whom, is decided by `core.ownership.relief`; giving up is a
release: what was sent is uncertain, what was not waits here until the owner node is gone, and is
then redirected to the pending owner, which takes the log over as from a dead owner. Nobody
has to be told: pending owners find the log by the append, or by their next scan.

Called by `service`; its `look` also by the simulator, in virtual time.
Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from duramen.core.ownership.relief import Reliefs
from duramen.core.sequencer.context import SequencerContext
from duramen.limits import GIVE_UP_AFTER_US
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.stores.metadata_store import MetadataError
from duramen_sequencer.log_host import LogHost

_LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0


class LogReliefs:
    """The logs of one process that others could serve better."""

    def __init__(
        self, host: LogHost, context: SequencerContext, grace_us: int = GIVE_UP_AFTER_US
    ) -> None:
        self.chosen = Reliefs(grace_us)
        self._host = host
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def start(self, own: Callable[[], Collection[str]]) -> None:
        """Look from now on; `own` tells the bookies that this process does not reach."""
        self._task = asyncio.create_task(self._look_for_ever(own))

    async def stop(self) -> None:
        """Give nothing up any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        """Logs that stand still, and those that were given up."""
        return self.chosen.statistics()

    async def _look_for_ever(self, own: Callable[[], Collection[str]]) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.look(own(), now_us())
            except MetadataError as error:
                _LOG.info("logs are not given up now: %s", error)
            except Exception:
                _LOG.exception("a look for logs that stand still failed")

    async def look(self, own: Collection[str], now_us: int) -> None:
        """Give up what is due, one log after the other: each is two calls to ZooKeeper."""
        host, context = self._host, self._context
        if not host.has_session() or context.is_rolling_suspended:
            return
        cores = [driver.core for driver in list(host.drivers.values())]
        others = host.claims.list_unreached()
        for log_id, able in self.chosen.choose(cores, context.candidates, own, others, now_us):
            driver = host.drivers.get(log_id)
            view = None if driver is None else driver.core.view
            if view is None or host.is_leaving(log_id):
                continue
            candidates = host.claims.rank_able(view.log, able)
            if candidates:
                self.chosen.note_gift(log_id, now_us)
                await host.give_up(log_id, candidates[0])
