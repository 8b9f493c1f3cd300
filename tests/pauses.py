"""Time that passes on purpose, each time with what it measures: the only pauses of the tests.

A test waits for a condition. Where it does not, time itself is the matter: a fault lasts so long by
its definition, a load has a pace, or nothing may happen for a while. `observe_for` and `let_pass`
say which. `look_again` and `look_again_soon` are rests between two looks at a condition of another
process, which tells nobody that it changes; the loop around them has a bound. `tests/style` finds
every other pause, however it is spelt. Called by the tests of all layers.
"""

from __future__ import annotations

import asyncio
import select
import threading
from contextlib import suppress
from typing import Final

LOOK_S: Final = 0.05


def observe_for(seconds: float, *, what: str) -> None:
    """Let time pass that is measured itself; the thread stands still.

    Args:
        what: is there, or goes on, for that time, in the words of a reader of the test.
    """
    assert what
    threading.Event().wait(seconds)


async def let_pass(seconds: float, *, what: str, until: asyncio.Event | None = None) -> None:
    """The same in a coroutine, so that others go on; shorter if the event is set."""
    assert what
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await (until or asyncio.Event()).wait()


async def look_again_soon() -> None:
    """Rest between two looks at a condition, in a coroutine."""
    await let_pass(LOOK_S, what="between two looks")


def look_again(rest_s: float = LOOK_S) -> None:
    """Rest between two looks at a condition, in a thread; longer where a look costs more."""
    observe_for(rest_s, what="between two looks")


def is_readable(descriptor: int, within_s: float) -> bool:
    """Whether something can be read there, or its end has come, within that time.

    Unlike `select.select` it takes descriptors above 1,023, which a long run of tests may have.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(within_s, 0.0) * 1_000))


async def stay() -> None:
    """Until it is cancelled: stands for who never answers."""
    await asyncio.Event().wait()
