"""Two sequencers and a third, by name, and a scenario that is played with them.

Used by `test_ownership` and `test_held_appends`. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from duramen.core.hashing import rank_nodes
from duramen.errors import DuramenError
from duramen.ids import LogId
from tests.component.host_world import HostWorld, host_world

LOG = LogId(9)
FIRST, SECOND, THIRD = rank_nodes("ns/log", {"s0": 1.0, "s1": 1.0, "s2": 1.0})
GONE = "http://127.0.0.1:1"
"""Nothing listens there: connections are refused."""
Scenario = Callable[[HostWorld], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with host_world() as world:
            await world.add_log(LOG)
            await scenario(world)

    asyncio.run(run())


def code_of(result: Any) -> str:
    assert isinstance(result, DuramenError), result
    return result.code
