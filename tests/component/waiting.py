"""Waiting for what no event tells: tables, lists and statistics of things that run in this loop.

Used by the component tests. Not here: waiting for other processes (`tests/process/cluster`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WITHIN_S = 30


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; TimeoutError if it does not come true."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
