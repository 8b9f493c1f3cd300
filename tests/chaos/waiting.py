"""Time that passes: the pace of a load, the length of a fault.

A chaos run is made of durations (a pause lasts 7 s by its definition); where something can be
waited for, it is, and a duration is only its bound. Nothing here is for tests of other layers.

Called by every module of this folder.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def wait_at_most(seconds: float, event: asyncio.Event | None = None) -> bool:
    """Let time pass, shorter if the event is set; whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await (event or asyncio.Event()).wait()
    return event is not None and event.is_set()
