"""What the tests of the bookie's upkeep share: a loop with a deadline, waiting for a condition.

Nothing of the product is here. Used by test_pacing, test_space, test_deletion, test_scrub.
Not here: clocks and fakes, which each of them has its own of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 30


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in a loop of its own."""

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario()

    asyncio.run(limited())


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the scenario's deadline is the wait's."""
    # Tables and statistics have no event to wait for.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
