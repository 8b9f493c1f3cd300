"""Waiting for a condition: the one loop of the tests, for coroutines and for threads.

`wait_for` is the coroutine. Without `rest_s` it looks in every turn of this event loop, so that a
state which soon passes is seen; with it, it rests between two looks, as befits a condition of
another process, which costs a call. `wait_in_thread` is the same where no loop runs. `comes_true`
says whether, where the end of the time is no failure.

Called by the tests of all layers. Rests and pauses themselves: `pauses`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final

from tests.pauses import LOOK_S, let_pass, look_again

WITHIN_S: Final = 30

_TURN_COUNT: Final = 50
_BREATH_S: Final = 0.001

Condition = Callable[[], bool | Awaitable[bool]]


async def wait_for(
    condition: Condition,
    within_s: float = WITHIN_S,
    what: str | Callable[[], str] = "",
    *,
    rest_s: float | None = None,
    passing: tuple[type[Exception], ...] = (),
) -> None:
    """Return once the condition holds.

    Args:
        what: the condition in words, for the failure; a callable says it when it is needed.
        rest_s: the rest between two looks; without it every turn of the loop is a look.
        passing: exceptions of a look that mean "not yet".

    Raises:
        AssertionError: it did not come true in time.
    """
    if not await _watch(condition, within_s, rest_s, passing):
        said = what if isinstance(what, str) else what()
        raise AssertionError(f"waited {within_s} s for {said or 'a condition'}")


def wait_in_thread(
    condition: Callable[[], bool], within_s: float, what: str, *, rest_s: float = LOOK_S
) -> None:
    """The same for a condition of another process, where no event loop runs."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        look_again(rest_s)


async def comes_true(condition: Condition, within_s: float) -> bool:
    """Whether a condition of the world outside comes true in that time."""
    return await _watch(condition, within_s, LOOK_S, ())


async def _watch(
    condition: Condition,
    within_s: float,
    rest_s: float | None,
    passing: tuple[type[Exception], ...],
) -> bool:
    turn_count = 0
    bound = asyncio.timeout(within_s)
    try:
        async with bound:
            while not await _look(condition, passing):
                turn_count += 1
                await _rest(turn_count, rest_s)
    except TimeoutError:
        if not bound.expired():  # a look's own, which is no "not yet" unless it is named so
            raise
        return False
    return True


async def _look(condition: Condition, passing: tuple[type[Exception], ...]) -> Any:
    try:
        found = condition()
        return await found if isawaitable(found) else found
    except passing:
        return False


async def _rest(turn_count: int, rest_s: float | None) -> None:
    """A loop that only spins gives the interpreter's lock away and takes it back so fast that the
    threads of the HTTP server and client may never get it: it breathes now and then.
    """
    if rest_s is not None:
        await let_pass(rest_s, what="between two looks")
    elif turn_count % _TURN_COUNT == 0:
        await let_pass(_BREATH_S, what="for the threads of HTTP server and client")
    else:
        await asyncio.sleep(0)
