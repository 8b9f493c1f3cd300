"""Repeats a call that was refused for now, until it succeeds or the time is up.

Repeated is only what cannot have happened (a refusal that is worth repeating and not uncertain, or
no connection) and what may be sent twice: reads, and appends of a producer, which the log knows
again. Another append of unknown fate is never repeated here: it could be stored twice.

Called by the command line. Source: 08-interfaces "Answers", column retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from duramen.errors import DuramenError, Retry
from duramen.runtime.http_client import NoAnswerError, UnreachableError

T = TypeVar("T")

FIRST_DELAY_S: Final = 0.1
LAST_DELAY_S: Final = 2.0


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
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """The call's answer, after as many tries as it takes.

    Pauses as long as the refusal advises, else 0.1 s doubling up to 2 s. `timeout_s` bounds the
    time until the last try begins, not that try itself.

    Raises:
        DuramenError, PeerError: those of the call that may not be repeated, or of the last try.
    """
    deadline = clock() + timeout_s
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return await call()
        except Exception as error:
            advised_ms = error.retry_after_ms if isinstance(error, DuramenError) else None
            pause_s = delay_s if advised_ms is None else advised_ms / 1000
            may_repeat = is_repeatable(error, is_read=is_read, has_producer=has_producer)
            if not may_repeat or clock() + pause_s > deadline:
                raise
        await sleep(pause_s)
        delay_s = min(delay_s * 2, LAST_DELAY_S)
