"""Asks every registered bookie every two seconds whether it is reached, and says so in the roster.

The question is a frame of LACs without rows, over the connection that appends take; an answer that
the bookie has no room will do too. What `core.ownership.reach` makes of the answers is published in
this process's roster node whenever it changes, so that a sequencer that is cut off learns through
ZooKeeper who is not, whether or not the two reach one another.

Called by `service`. Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from duramen.core.ownership.reach import PROBE_US, Reach
from duramen.ids import BookieId, Incarnation
from duramen.runtime.http_client import OverloadedError, PeerClient, PeerError
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND
from duramen.wire.bookie_calls import pack_lacs

_LOG = logging.getLogger(__name__)

_QUESTION = pack_lacs(Incarnation("0" * 32), [])


class Reaching:
    """The questions of one process.

    Args:
        urls: where the registered bookies are; read anew each time.
        publish: makes what is not reached known.
    """

    def __init__(
        self,
        client: PeerClient,
        urls: Callable[[], Mapping[BookieId, str]],
        publish: Callable[[list[str]], None],
        *,
        interval_us: int = PROBE_US,
    ) -> None:
        self.reach = Reach()
        self._client = client
        self._urls = urls
        self._publish = publish
        self._interval_us = interval_us
        self._published: tuple[BookieId, ...] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask from now on."""
        self._task = asyncio.create_task(self._ask_for_ever())

    async def stop(self) -> None:
        """Ask nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def statistics(self) -> dict[str, Any]:
        """Which bookies are not reached."""
        return {"unreached_bookies": list(self.reach.unreached)}

    async def ask(self) -> None:
        """One question to each bookie; returns when all are answered or over."""
        urls = dict(self._urls())
        self.reach.learn(urls, now_us())
        await asyncio.gather(*(self._ask(bookie, url) for bookie, url in sorted(urls.items())))
        unreached = self.reach.unreached
        if unreached != self._published:
            if unreached or self._published:
                _LOG.info("bookies that are not reached: %s", ", ".join(unreached) or "none")
            self._published = unreached
            self._publish(list(unreached))

    async def _ask_for_ever(self) -> None:
        while True:
            begun_us = now_us()
            await self.ask()
            rest_us = max(self._interval_us - (now_us() - begun_us), 0)
            await asyncio.sleep(rest_us / SECOND)

    async def _ask(self, bookie: BookieId, url: str) -> None:
        try:
            await self._client.call(f"{url}/b/lac", _QUESTION, self._interval_us)
        except OverloadedError:
            is_heard = True
        except PeerError:
            is_heard = False
        else:
            is_heard = True
        self.reach.on_answer(bookie, is_heard=is_heard, now_us=now_us())
