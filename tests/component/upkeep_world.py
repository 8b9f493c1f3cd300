"""What the tests of the bookie's upkeep share: a loop with a deadline.

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
