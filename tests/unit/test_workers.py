"""Many pieces of work, few at a time: `duramen_sequencer.life.workers`.

Of ten thousand logs that a round looks at, sixteen may take memory, and not all of them.
"""

from __future__ import annotations

import asyncio

import pytest

from duramen_sequencer.life.workers import for_each


def test_every_item_once_in_order_and_so_many_at_a_time() -> None:
    begun: list[int] = []
    running = most = tasks = 0

    async def work(item: int) -> None:
        nonlocal running, most, tasks
        begun.append(item)
        running += 1
        most, tasks = max(most, running), max(tasks, len(asyncio.all_tasks()))
        for _ in range(item % 3):
            await asyncio.sleep(0)
        running -= 1

    asyncio.run(for_each(iter(range(500)), work, 8))
    assert begun == list(range(500))
    assert most == 8
    assert tasks == 9, "no item has a task of its own"


def test_after_a_failure_nothing_is_begun_and_what_runs_ends() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        if item == 1:
            raise ValueError(item)
        await asyncio.sleep(0)
        ended.append(item)

    with pytest.raises(ValueError, match="1"):
        asyncio.run(for_each(range(100), work, 3))
    assert ended == [0, 2]
