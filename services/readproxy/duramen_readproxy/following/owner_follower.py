"""The LAC of a feed's log as its owner tells it: sooner than bookies do, and only beside them.

One call waits at the owner. Where there is no answer nobody is asked until something was delivered
again, after a pause that doubles.

Made by `feed`, one for each. Source: docs/protocol/owner-lac.md "Rules" 4 to 8.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

from duramen.ids import EntryId, Epoch, LogId
from duramen.wire.sequencer_calls import LAC_WAIT_MS_MAX, LacWait, OpenLac

CALL_COUNT_MAX: Final = 512
"""Calls that wait at owners, half of what one HTTP/2 connection carries: where no stream takes them
others still get through. Feeds beyond that learn of a LAC from bookies alone."""

PAUSE_FIRST_S: Final = 0.1
PAUSE_MOST_S: Final = 30.0
_WAITED_S: Final = 0.5 * LAC_WAIT_MS_MAX / 1_000
"""Whoever answers without news and sooner than that did not wait."""


class AskOwners(Protocol):
    """As of `OwnerWords`."""

    async def find(self, log_id: LogId, /) -> str | None: ...

    async def wait_lac(self, url: str, wait: LacWait, /) -> OpenLac | None: ...


class OwnerCalls:
    """The calls of one process: how many there are, and what came of them."""

    def __init__(self, owners: AskOwners) -> None:
        self.owners = owners
        self.open_count = 0
        self.told_count = 0
        self.ended_count = 0

    def statistics(self) -> dict[str, int]:
        """Calls at owners and the most of them; LACs told and calls in vain since the start."""
        return {
            "owner_calls": self.open_count,
            "owner_calls_max": CALL_COUNT_MAX,
            "owner_lacs": self.told_count,
            "owner_calls_ended": self.ended_count,
        }


class OwnerFollower:
    """The one call of a feed.

    Args:
        find_known: the epoch that is followed, and the LAC that is known of it.
        on_lac: takes a LAC of that epoch.
    """

    def __init__(
        self,
        log_id: LogId,
        calls: OwnerCalls,
        find_known: Callable[[], OpenLac],
        on_lac: Callable[[Epoch, EntryId], None],
    ) -> None:
        self._log_id = log_id
        self._calls = calls
        self._find_known = find_known
        self._on_lac = on_lac
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._next_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    def begin(self) -> None:
        """Ask the owner, unless that is done already, was in vain just now, or many do."""
        if self._task is not None or self._loop.time() < self._next_s:
            return
        if self._calls.open_count < CALL_COUNT_MAX:
            self._calls.open_count += 1
            self._task = self._loop.create_task(self._ask_on())
            self._task.add_done_callback(self._on_done)

    def end(self) -> None:
        """Ask nobody any more."""
        self._next_s = math.inf
        if self._task is not None:
            self._task.cancel()

    async def _ask_on(self) -> None:
        url = await self._calls.owners.find(self._log_id)
        while url is not None and await self._ask(url):
            self._pause_s = PAUSE_FIRST_S

    async def _ask(self, url: str) -> bool:
        """Whether the owner said something of the epoch that is followed."""
        epoch, known = self._find_known()
        asked_s = self._loop.time()
        wait = LacWait(self._log_id, epoch, known, LAC_WAIT_MS_MAX)
        found = await self._calls.owners.wait_lac(url, wait)
        if found is None or found.epoch != epoch:
            return False
        if found.lac > known:
            self._calls.told_count += 1
            self._on_lac(epoch, found.lac)
            return True
        return self._loop.time() - asked_s >= _WAITED_S

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._calls.open_count -= 1
        self._calls.ended_count += 1
        self._next_s = max(self._next_s, self._loop.time() + self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
        if not task.cancelled():
            task.result()  # a fault is told by the loop
