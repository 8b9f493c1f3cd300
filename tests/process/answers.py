"""Answers that say "come again" are counted for each test, and only so many are borne.

On a machine that stands still for seconds a session with ZooKeeper is suspended, and any call may
be refused for that, with advice; after a kill, readers are until the log has a new owner. A service
that goes on refusing is none of both: whoever is sent away too often fails the test, however fast
that went. Used by the tests of this folder. Source: docs/protocol/errors.md "Retry".
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import httpx

from duramen.client.retry import is_repeatable
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from tests.pauses import let_pass, observe_for

T = TypeVar("T")

COME_AGAINS_MAX: Final = 8
"""In one test, where nothing is broken: one is unusual, and the session of a machine that stood
still is back after five. Pauses double from 50 ms to a second: eight take four seconds."""

COME_AGAINS_AFTER_A_FAULT_MAX: Final = 24
"""In one test that kills or stops a process: a session of 4 s ends, and a log gets a new owner."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

_counts: Counter[str] = Counter()


def note_come_again(why: str, at_most: int = COME_AGAINS_MAX) -> float:
    """Count one more for the test that runs; gives the seconds to rest before the next try.

    Raises:
        AssertionError: there were too many.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    _counts[test] += 1
    print(f"come again, for the {_counts[test]}. time: {why}")
    assert _counts[test] <= at_most, f"sent away {_counts[test]} times, at last by {why}"
    return float(min(_FIRST_PAUSE_S * 2 ** (_counts[test] - 1), _LONGEST_PAUSE_S))


def ask_until_settled(send: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is not a refusal for now."""
    while True:
        answer = send()
        if answer.status_code != 503:
            return answer
        problem = answer.json()
        if problem["uncertain"] or not problem["retryable"]:
            return answer
        observe_for(note_come_again(problem["code"]), what="before a client comes back")


async def repeat_safely(
    call: Callable[[], Awaitable[T]],
    at_most: int = COME_AGAINS_AFTER_A_FAULT_MAX,
    *,
    is_read: bool = True,
    has_producer: bool = False,
) -> T:
    """What a call gives, repeated as every client does.

    Args:
        is_read, has_producer: whether it may be made twice, as of `is_repeatable`; another one is
            repeated only where it certainly did not happen.

    Raises:
        DuramenError, PeerError: it failed for another reason.
        AssertionError: it was refused too often.
    """
    while True:
        try:
            return await call()
        except (DuramenError, PeerError) as error:
            if not is_repeatable(error, is_read=is_read, has_producer=has_producer):
                raise
            pause_s = note_come_again(getattr(error, "code", "unreachable"), at_most)
        await let_pass(pause_s, what="before a client comes back")
