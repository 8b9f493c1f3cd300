"""Calls that last, judged anew: every 30 s, when a credential ends, and when a table has changed.

A look each second compares what judgements rest on with what it was; so a change is seen within a
second of this process's learning of it, whoever made it. Many are judged in steps, so that others
have their turn. A look waits for nobody: where an issuer has to be asked about a credential, that
is a review of its own, and what the caller may do is judged meanwhile by who it was.

Called by `public_door`, owned by `admission`.
Source: docs/protocol/rights.md "How a call is judged", docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.admission.refusals import refuse_unknown

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
LEAVE_S: Final = 30.0
"""Over this time calls leave a server that was replaced, which stays for a minute."""

_STEP_COUNT: Final = 50
"""Judgements in one go, well below a millisecond."""

REVIEW_COUNT_MAX: Final = 128
"""Under way at once: fewer than wait for one issuer, so that calls that begin find a place."""

REVIEW_S_MAX: Final = 15.0
"""An issuer's keys, then its word on the token, 5 s for each."""

TURN_S_MAX: Final = 30.0
"""How long a call may wait for its review to begin; then nobody has said that it may go on."""

_LOG: Final = logging.getLogger(__name__)


class Judgement(NamedTuple):
    """What can be said of a call at once.

    `refusal` is why it may not go on. `is_known`: its credential was judged; else only what its
    caller may do.
    """

    refusal: DuramenError | None
    is_known: bool


class LastingCalls:
    """The calls of one port that may go on for long.

    Args:
        judge: what can be said of a call without waiting.
        review: why a call may not go on, its issuer having been asked; None: it may.
        find_basis: what judgements rest on; another value after each change.
    """

    def __init__(
        self,
        judge: Callable[[AdmittedCall], Judgement],
        review: Callable[[AdmittedCall], Awaitable[DuramenError | None]],
        find_basis: Callable[[], object],
    ) -> None:
        self._judge = judge
        self._review = review
        self._find_basis = find_basis
        self._basis: object = None
        self._open: set[AdmittedCall] = set()
        self._waiting: OrderedDict[AdmittedCall, float] = OrderedDict()
        self._reviews: dict[AdmittedCall, asyncio.Task[None]] = {}
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
        self._waiting.clear()
        tasks = [*self._leaving, *self._reviews.values()]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, call: AdmittedCall) -> None:
        """It begins."""
        self._open.add(call)

    def discard(self, call: AdmittedCall) -> None:
        """It is over."""
        self._open.discard(call)
        self._waiting.pop(call, None)
        if (review := self._reviews.get(call)) is not None:
            review.cancel()

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
        """Judge those that are to be judged now, and have those reviewed that are to be."""
        basis = self._find_basis()
        has_changed = basis != self._basis
        now_s = time.time()
        due = [call for call in self._open if has_changed or _is_due(call, now_s)]
        is_whole = True
        for number, call in enumerate(due, 1):
            if call in self._open and not call.is_ended:
                is_whole &= self._judge_again(call)
            if number % _STEP_COUNT == 0:
                await asyncio.sleep(0)
        self._begin_reviews()
        self._end_waiting()
        if is_whole:
            # Only now: what could not be judged is judged at the next look.
            self._basis = basis

    def statistics(self) -> dict[str, int]:
        """How many are open, under review and waiting for one; and how judgements ended."""
        return {
            "open": len(self._open),
            "judged": self._judged_count,
            "ended": self._ended_count,
            "reviewing": len(self._reviews),
            "reviewing_max": REVIEW_COUNT_MAX,
            "waiting_for_review": len(self._waiting),
        }

    def _judge_again(self, call: AdmittedCall) -> bool:
        """Whether it could be judged."""
        try:
            refusal, is_known = self._judge(call)
        except Exception:
            # Whoever is judged behind it has to be judged still.
            _LOG.exception("a call that lasts could not be judged: the next look tries again")
            return False
        if refusal is not None or is_known:
            self._note(call, refusal)
        elif call not in self._reviews:
            # Also if it is not due: what it was believed by may be what has changed.
            self._waiting.setdefault(call, time.monotonic())
        return True

    def _begin_reviews(self) -> None:
        while self._waiting and len(self._reviews) < REVIEW_COUNT_MAX:
            call, _ = self._waiting.popitem(last=False)
            if not call.is_ended:
                task = asyncio.create_task(self._review_one(call))
                self._reviews[call] = task
                task.add_done_callback(partial(self._on_reviewed, call))

    def _on_reviewed(self, call: AdmittedCall, _done: asyncio.Task[None]) -> None:
        del self._reviews[call]
        self._begin_reviews()

    def _end_waiting(self) -> None:
        """Who waits for too long was believed for too long; the one that waits longest is first."""
        now_s = time.monotonic()
        for call, since_s in [*self._waiting.items()]:
            if now_s - since_s < TURN_S_MAX:
                return
            del self._waiting[call]
            self._note(call, refuse_unknown())

    async def _review_one(self, call: AdmittedCall) -> None:
        try:
            async with asyncio.timeout(REVIEW_S_MAX):
                refusal = await self._review(call)
        except TimeoutError:
            refusal = refuse_unknown()
        except Exception:
            # It is still due, so the next look has it reviewed again.
            _LOG.exception("the credential of a call that lasts could not be reviewed")
            return
        self._note(call, refusal)

    def _note(self, call: AdmittedCall, refusal: DuramenError | None) -> None:
        call.judged_s = time.time()
        self._judged_count += 1
        if refusal is not None and not call.is_ended:
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
