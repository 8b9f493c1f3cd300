"""Many small pieces of work, so many at a time, with a task for each worker and not for each piece.

Ten thousand tasks that wait for sixteen places are tens of MiB. The pieces are taken from an
iterator when a worker is free, so nothing waits in memory either.

Called by the rounds of the sequencer: the scan for orphans, retention, audits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], count: int) -> None:
    """Do `work` on every item, at most `count` ≥ 1 at once, begun in their order.

    Raises:
        Exception: the first that `work` raised. No other item is begun after it, and those that
            were under way have ended.
    """
    left, failures = iter(items), list[Exception]()

    async def work_on() -> None:
        for item in left:
            if failures:
                return
            try:
                await work(item)
            except Exception as error:
                failures.append(error)

    await asyncio.gather(*(work_on() for _ in range(count)))
    if failures:
        raise failures[0]
