"""`POST /s/lac`: read proxies wait here for the LAC of a log that this process owns.

The LAC is the writer's own, so what is told stays true whoever owns the log later. A wait holds a
task and a timer; a log whose LAC moves wakes its own waits alone.

Called by `service`. Source: docs/protocol/owner-lac.md "Rules" 1 to 3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from duramen.ids import LogId
from duramen.runtime.http_server import Answer, Reply
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.wire.frame import RETRY_AFTER_HEADER
from duramen.wire.sequencer_calls import pack_open_lac, parse_lac_wait

WAIT_COUNT_MAX: Final = 4_096
_RETRY_AFTER_MS: Final = 30_000
_FRAME: Final = "application/octet-stream"


class LacWaits:
    """The waits of one process.

    Args:
        find_driver: of a log; None: it is not here.
    """

    def __init__(self, find_driver: Callable[[LogId], LogDriver | None]) -> None:
        self._find_driver = find_driver
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_stopping = False
        self._counts: Counter[str] = Counter()

    async def on_call(self, body: bytes) -> Answer:
        """Answer once there is something to tell, or the wait is over.

        Raises:
            FrameError: the body is no such request.
        """
        log_id, epoch, above, wait_ms = parse_lac_wait(body)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1_000
        self._counts["asked"] += 1
        while True:
            driver = self._find_driver(log_id)
            found = None if driver is None or self._is_stopping else driver.open_lac
            is_news = found is None or found.epoch != epoch or found.lac > above
            if is_news or driver is None or loop.time() >= deadline_s:
                self._counts["told"] += is_news
                return 200, _FRAME, pack_open_lac(found)
            if len(self._waiters) >= WAIT_COUNT_MAX:
                self._counts["refused"] += 1
                return _refuse()
            await self._wait(driver, deadline_s)

    def stop(self) -> None:
        """Answer all who wait: nothing is owned here any more."""
        self._is_stopping = True
        for waiter in self._waiters:
            _wake(waiter)

    def statistics(self) -> dict[str, int]:
        """Waits now and the most of them; asked, told of something and refused since the start."""
        counts = {name: self._counts[name] for name in ("asked", "told", "refused")}
        return {"waiting": len(self._waiters), "waiting_max": WAIT_COUNT_MAX, **counts}

    async def _wait(self, driver: LogDriver, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(deadline_s, _wake, waiter)
        self._waiters.add(waiter)
        try:
            with driver.waking_at_lac(waiter):
                await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _refuse() -> Reply:
    advice = (RETRY_AFTER_HEADER, str(_RETRY_AFTER_MS))
    return Reply(503, "text/plain", b"too many wait for LACs here", (advice,))
