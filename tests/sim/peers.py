"""Calls between simulated processes: `http_client.PeerClient` over the simulated network.

A call ends as there: with an answer, OverloadedError (nothing was done), UnreachableError (nobody
took it) or NoAnswerError (somebody may have). Frames to bookies are `frames.SimFrame`; control
calls are JSON.

Used by `sequencers` and `exact_clients`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.status import BookieStatus
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.units import MS
from tests.sim.frames import SimFrame
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.world import Node

_GRAIN_US: Final = 100 * MS
"""What is left of a time-out is cut to this: the network keeps a queue for each length."""


class SimPeers:
    """Calls of one process; addresses are names of processes."""

    def __init__(self, network: Network, node: Node, peers: Mapping[str, Node]) -> None:
        self._network = network
        self._node = node
        self._peers = peers

    async def call(self, url: str, body: SimFrame, timeout_us: int) -> Any:
        """Ask the bookie that the url names; raises as the production client does."""
        name, _, kind = url.partition("/b/")
        timeout_us = max(timeout_us // _GRAIN_US, 1) * _GRAIN_US
        answer = await self._ask(name, kind, body, timeout_us, is_stream=False)
        if kind == "add":
            refused_count = answer.count(BookieStatus.SEALED)
            self._node.world.counts["zombie add refused"] += refused_count
        return answer

    async def request_json(
        self, method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        """Ask the sequencer that the url names; raises as the production client does."""
        name = url.removesuffix("/s/control")
        # As a stream: a connection never doubles what it carries.
        status, answer = await self._ask(name, "control", body, timeout_us, is_stream=True)
        return status, answer

    async def _ask(
        self, name: str, kind: str, body: Any, timeout_us: int, *, is_stream: bool
    ) -> Any:
        promise: Promise[tuple[BookieStatus, Any]] = Promise()

        def on_answer(status: BookieStatus, value: Any) -> None:
            promise.settle((status, value))

        peer = self._peers[name]
        self._network.call(self._node, peer, kind, body, timeout_us, on_answer, is_stream)
        status, value = await promise
        if status is BookieStatus.UNREACHABLE:
            raise UnreachableError(name)
        if status is BookieStatus.OVERLOADED:
            raise OverloadedError(name, value.retry_after_us)
        if status is not BookieStatus.OK:
            raise NoAnswerError(name)
        return value
