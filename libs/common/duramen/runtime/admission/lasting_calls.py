"""Calls that last, judged anew: every 30 s, when a credential ends, and when a table has changed.

A look each second compares what judgements rest on with what it was; so a change is seen within a
second of this process's learning of it, whoever made it. Many are judged in steps, so that others
have their turn.

Called by `public_door`, owned by `admission`.
Source: docs/protocol/rights.md "How a call is judged", docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
LEAVE_S: Final = 30.0
"""Over this time calls leave a server that was replaced, which stays for a minute."""

_STEP_COUNT: Final = 50
"""Judgements in one go, well below a millisecond."""

_LOG: Final = logging.getLogger(__name__)


class LastingCalls:
    """The calls of one port that may go on for long.

    Args:
        judge: why a call may not go on; None: it may.
        find_basis: what judgements rest on; another value after each change.
    """

    def __init__(
        self,
        judge: Callable[[AdmittedCall], Awaitable[DuramenError | None]],
        find_basis: Callable[[], object],
    ) -> None:
        self._judge = judge
        self._find_basis = find_basis
        self._basis: object = None
        self._open: set[AdmittedCall] = set()
        self._judged_count = 0
        self._ended_count = 0
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Look from now on."""
        self._basis = self._find_basis()
        self._task = asyncio.create_task(self._look_for_ever())

    async def stop(self) -> None:
        """Look no more."""
        tasks = [*self._leaving] if self._task is None else [*self._leaving, self._task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, call: AdmittedCall) -> None:
        """It begins."""
        self._open.add(call)

    def discard(self, call: AdmittedCall) -> None:
        """It is over."""
        self._open.discard(call)

    def begin_leaving(self) -> None:
        """Their server was replaced: each goes on elsewhere, one after the other."""
        if self._open:
            task = asyncio.create_task(self._leave([*self._open]))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, calls: list[AdmittedCall]) -> None:
        for call in calls:
            if call in self._open:
                call.leave()
                await asyncio.sleep(LEAVE_S / len(calls))

    async def look(self) -> None:
        """Judge those that are to be judged now."""
        basis = self._find_basis()
        has_changed = basis != self._basis
        now_s = time.time()
        due = [call for call in self._open if has_changed or _is_due(call, now_s)]
        for number, call in enumerate(due, 1):
            if call in self._open and call.refusal is None:
                await self._judge_again(call)
            if number % _STEP_COUNT == 0:
                await asyncio.sleep(0)
        # Only now: what could not be judged is judged at the next look.
        self._basis = basis

    def statistics(self) -> dict[str, int]:
        """How many are open, and how many judgements ended one."""
        return {
            "open": len(self._open),
            "judged": self._judged_count,
            "ended": self._ended_count,
        }

    async def _judge_again(self, call: AdmittedCall) -> None:
        refusal = await self._judge(call)
        call.judged_s = time.time()
        self._judged_count += 1
        if refusal is not None:
            self._ended_count += 1
            call.end(refusal)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:
                # Whoever is revoked later has to be seen still.
                _LOG.exception("a look at the calls that last failed: another one follows")


def _is_due(call: AdmittedCall, now_s: float) -> bool:
    """Also if the clock went back."""
    is_old = not 0.0 <= now_s - call.judged_s < AGAIN_S
    return is_old or now_s >= call.bearer.until_s
