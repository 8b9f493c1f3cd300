"""Waiting for what no event tells: tables, lists and statistics of things that run in this loop.

Used by the component tests. Not here: waiting for other processes (`tests/process/cluster`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tests.pauses import let_pass

WITHIN_S: Final = 30

_TURN_COUNT: Final = 50
_REST_S: Final = 0.001


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; TimeoutError if it does not come true.

    Looks in every turn of the loop, so that a state which soon passes is seen, and rests now and
    then: a loop that only spins gives the interpreter's lock away and takes it back so fast that
    the threads of the HTTP server and client may never get it.
    """
    turn_count = 0
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            turn_count += 1
            if turn_count % _TURN_COUNT == 0:
                await let_pass(_REST_S, what="for the threads of HTTP server and client")
            else:
                await asyncio.sleep(0)
