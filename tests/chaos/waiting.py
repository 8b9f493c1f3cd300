"""Time that passes: the pace of a load, the length of a fault, polls of other people's processes.

A chaos run is made of durations (a pause lasts 7 s by its definition); where something can be
waited for, it is, and a duration is only its bound. Nothing here is for tests of other layers.

Called by every module of this folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_POLL_S: Final = 0.05


async def wait_at_most(seconds: float, event: asyncio.Event | None = None) -> bool:
    """Let time pass, shorter if the event is set; whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await (event or asyncio.Event()).wait()
    return event is not None and event.is_set()


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition of the world outside; whether it came true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline:
            return False
        await wait_at_most(_POLL_S)
    return True
