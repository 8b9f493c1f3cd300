"""What is sent again, after which pause, and how often at most.

Repeated is only what cannot have happened (a refusal that is worth repeating and not uncertain, or
no connection) and what may be sent twice: reads, and appends of a producer, which the log knows
again. Another append of unknown fate is never repeated here: it could be stored twice.

A `RetryBudget` is shared by everything that one client does, so that an outage meets a bounded
number of repetitions a second, whatever the number of logs and tasks. Pauses have jitter.
Called by the SDK and the command line. Source: docs/protocol/errors.md "Retry".
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from duramen.backoff import Backoff
from duramen.errors import DuramenError, Retry
from duramen.runtime.http_client import NoAnswerError, UnreachableError
from duramen.units import MS, SECOND

T = TypeVar("T")

FIRST_DELAY_S: Final = 0.1
LAST_DELAY_S: Final = 2.0

_SPREAD: Final = (1.0, 1.25)
"""A pause is up to so much longer than planned: clients that failed together come back apart."""

_TOKENS_PER_S: Final = 20.0
"""Repetitions a second that one client allows itself in the long run: a takeover of 100 logs asks
each of them twice within ten seconds, and 50 clients send a proxy 1,000 a second at most."""

_TOKEN_COUNT: Final = 200.0
"""What may be repeated at once after a quiet time."""


class Repeat(enum.Enum):
    """Which calls are sent again."""

    NONE = "none"
    """None: every failure is the caller's."""

    SAFE = "safe"
    """What certainly did not happen, and what may be done twice (reads, `ensure`, `truncate`…)."""

    ALL = "all"
    """Also appends of unknown fate, which all have a producer then: the log knows them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When calls are repeated, and until when.

    Attributes:
        repeat: which calls; `Repeat.ALL` by default.
        within_s: seconds from a call's first try to the beginning of its last at most, from 0; 60.
        first_pause_s, longest_pause_s: seconds, above 0; 0.1 and 2. Pauses double from the first
            to the longest; one that the server advises counts instead. All are up to a quarter
            longer.
    """

    repeat: Repeat = Repeat.ALL
    within_s: float = 60.0
    first_pause_s: float = FIRST_DELAY_S
    longest_pause_s: float = LAST_DELAY_S


class RetryBudget:
    """A bucket of tokens, one for each repetition; it fills at a steady rate."""

    def __init__(
        self,
        *,
        tokens_per_s: float = _TOKENS_PER_S,
        token_count: float = _TOKEN_COUNT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The bucket begins full, with `token_count` tokens."""
        self._per_s = tokens_per_s
        self._most = token_count
        self._clock = clock
        self._tokens = token_count
        self._filled_at = clock()
        self.taken_count = 0
        self.delayed_count = 0

    def take(self) -> float:
        """Take a token; gives the seconds to wait until it is there, 0 where it is already."""
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        self._tokens -= 1
        self.taken_count += 1
        if self._tokens >= 0:
            return 0.0
        self.delayed_count += 1
        return -self._tokens / self._per_s

    def give_back(self) -> None:
        """A token that was taken is not used: its repetition would come too late."""
        self._tokens += 1
        self.taken_count -= 1

    def statistics(self) -> dict[str, float]:
        """Tokens that are left (below 0: promised), repetitions so far, and those that waited."""
        return {
            "tokens": self._tokens,
            "taken": self.taken_count,
            "delayed": self.delayed_count,
        }


class Pauses:
    """The pauses between the tries of one call, and the time at which it is given up."""

    def __init__(
        self,
        policy: RetryPolicy,
        budget: RetryBudget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._clock = clock
        self._rng = rng or _RNG
        self._deadline = clock() + policy.within_s
        self._backoff = _read_backoff(policy)
        self._pause_count = 0

    def next_s(self, error: Exception) -> float | None:
        """How long to wait before the next try after `error`; None: the time would be up."""
        if self._clock() >= self._deadline:
            return None
        advised_ms = error.retry_after_ms if isinstance(error, DuramenError) else None
        planned_us = self._backoff.pause_us(self._pause_count)
        self._pause_count += 1
        pause_us = planned_us if advised_ms is None else advised_ms * MS
        pause_s = self._backoff.spread_us(pause_us, self._rng) / SECOND
        if self._budget is not None:
            pause_s = max(pause_s, self._budget.take())
        if self._clock() + pause_s <= self._deadline:
            return pause_s
        if self._budget is not None:
            self._budget.give_back()
        return None


_RNG: Final = random.Random()
"""For jitter alone."""


_LONGEST_S: Final = 86_400.0
"""Of a pause that has no bound: nobody waits so long, and a number of it exists."""


def _read_backoff(policy: RetryPolicy) -> Backoff:
    first_us, limit_us = (
        max(1, round(min(pause_s, _LONGEST_S) * SECOND))
        for pause_s in (policy.first_pause_s, policy.longest_pause_s)
    )
    return Backoff(first_us, limit_us, _SPREAD)


def is_repeatable(error: Exception, *, is_read: bool, has_producer: bool = False) -> bool:
    """Whether the same call may be sent again without a doubt."""
    match error:
        case DuramenError(uncertain=True):
            return has_producer
        case DuramenError():
            return error.kind.retry is Retry.AFTER
        case UnreachableError():
            return True
        case NoAnswerError():
            return is_read
        case _:
            return False


async def repeat_while_refused(
    call: Callable[[], Awaitable[T]],
    *,
    timeout_s: float,
    is_read: bool,
    has_producer: bool = False,
) -> T:
    """The call's answer, after as many tries as it takes within `timeout_s`.

    Raises:
        As `repeat`.
    """
    pauses = Pauses(RetryPolicy(within_s=timeout_s))
    return await repeat(call, pauses, is_read=is_read, has_producer=has_producer)


async def repeat(
    call: Callable[[], Awaitable[T]],
    pauses: Pauses,
    *,
    is_read: bool,
    has_producer: bool = False,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """The call's answer, after as many tries as `pauses` allow.

    Pauses as long as the refusal advises, else as the policy says. The policy bounds the time until
    the last try begins, not that try itself.

    Raises:
        DuramenError, PeerError: those of the call that may not be repeated, or of the last try.
    """
    while True:
        try:
            return await call()
        except Exception as error:
            if not is_repeatable(error, is_read=is_read, has_producer=has_producer):
                raise
            pause_s = pauses.next_s(error)
            if pause_s is None:
                raise
        await sleep(pause_s)
