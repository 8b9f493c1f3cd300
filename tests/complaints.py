"""What an event loop complains of: exceptions that nobody took, tasks that were lost.

`hear_complaints` collects all that the loop's exception handler and the interpreter's hook for what
cannot be raised are told while a block runs, and what a collection of garbage brings up after it;
a coroutine that was never awaited is among it.
Used by tests of whoever starts tasks and may leave with some under way.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_TURN_COUNT = 20


@asynccontextmanager
async def hear_complaints() -> AsyncIterator[list[str]]:
    """A list that is whole once the block has ended."""
    loop, heard = asyncio.get_running_loop(), list[str]()

    def on_loop(_loop: object, about: dict[str, Any]) -> None:
        culprit = about.get("task") or about.get("future") or ""
        heard.append(f"{about['message']}: {about.get('exception')!r} {culprit!r}")

    def on_unraisable(about: Any) -> None:
        heard.append(f"unraisable: {about.exc_value!r} in {about.object!r}")

    before, hook = loop.get_exception_handler(), sys.unraisablehook
    loop.set_exception_handler(on_loop)
    sys.unraisablehook = on_unraisable
    # What was there before is not looked at: a worker that has run thousands of tests holds much.
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".* was never awaited", RuntimeWarning)
            yield heard
            for _ in range(_TURN_COUNT):
                # What is freed may end something, whose failure is seen a turn later.
                gc.collect()
                await asyncio.sleep(0)
    finally:
        gc.unfreeze()
        loop.set_exception_handler(before)
        sys.unraisablehook = hook
