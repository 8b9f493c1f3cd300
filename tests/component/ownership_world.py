"""Two sequencers and a third, by name, and a scenario that is played with them.

Used by `test_ownership`, `test_held_appends` and `test_balancing`.
Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

from duramen.core.hashing import rank_nodes
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership.hand_over import HandOver
from tests.component.host_world import HostWorld, host_world
from tests.unit.nodes import make_log
from tests.waiting import wait_for

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


class Wire:
    """Control calls between hosts, without sockets."""

    def __init__(self) -> None:
        self.by_url: dict[str, HandOver] = {}
        self.is_cut = False

    def join(self, host: LogHost, url: str) -> HandOver:
        hand_over = self.by_url[url] = HandOver(host, cast(Any, self))
        return hand_over

    async def request_json(
        self, _method: str, url: str, body: bytes, _timeout_us: int
    ) -> tuple[int, bytes]:
        if self.is_cut:
            return 503, b"{}"
        request = json.loads(body)
        operations = self.by_url[url.removesuffix("/s/control")].operations
        return 200, json.dumps(await operations[request["op"]](request)).encode()


async def two_hosts(world: HostWorld) -> tuple[Wire, LogHost, LogHost, HandOver]:
    wire = Wire()
    first = await world.add_host(FIRST, {"data_url": "http://127.0.0.1:1"})
    second = await world.add_host(SECOND, {"data_url": "http://127.0.0.1:2"})
    wire.join(second, "http://127.0.0.1:2")
    await wait_for(lambda: len(first.claims.rank(make_log())) == 2)
    return wire, first, second, wire.join(first, "http://127.0.0.1:1")
