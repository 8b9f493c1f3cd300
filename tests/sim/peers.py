"""Calls between simulated processes: `http_client.PeerClient` over the simulated network.

A call ends as there: with an answer, OverloadedError (nothing was done), UnreachableError (nobody
took it) or NoAnswerError (somebody may have). Frames to bookies are `frames.SimFrame`; control
calls are JSON.

Used by `sequencers`, `write_proxy`, `members` and `reading`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from duramen.core.status import BookieStatus
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.units import MS, SECOND
from duramen.wire.sequencer_calls import LAC_PATH
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

    async def call(self, url: str, body: SimFrame | bytes, timeout_us: int) -> Any:
        """Ask the bookie that the url names, or an owner; raises as the production client does."""
        if url.endswith(LAC_PATH):
            # Only of a stream: a connection never doubles what it carries.
            owner = url.removesuffix(LAC_PATH)
            return await self.ask(owner, LAC_PATH, body, timeout_us, is_stream=True)
        name, _, kind = url.partition("/b/")
        timeout_us = max(timeout_us // _GRAIN_US, 1) * _GRAIN_US
        answer = await self.ask(name, kind, body, timeout_us, is_stream=False)
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
        status, answer = await self.ask(name, "control", body, timeout_us, is_stream=True)
        return status, answer

    async def stream(self, url: str, body: bytes, timeout_us: int) -> AsyncGenerator[bytes]:
        """Send a frame of appends, give the pieces of its answer as they come.

        On a connection no piece overtakes another, so one that comes early waits; where one is
        lost the connection is broken, which shows when the time is over.
        """
        pieces: dict[int, bytes] = {}
        ended: list[BookieStatus] = []
        news = asyncio.Event()

        def on_answer(status: BookieStatus, value: Any) -> None:
            if status is BookieStatus.OK:
                pieces.update([value])
            else:
                ended.append(status)
            news.set()

        peer = self._peers[url.removesuffix("/s/append")]
        # Whole seconds: the network keeps a queue for each length.
        timeout_us = timeout_us // SECOND * SECOND + SECOND
        call = self._network.call(self._node, peer, "append", body, timeout_us, on_answer, True)
        number = 0
        try:
            while True:
                while number in pieces:
                    if not pieces[number]:
                        return
                    yield pieces[number]
                    number += 1
                if ended:
                    is_refused = ended[0] is BookieStatus.UNREACHABLE
                    raise UnreachableError(url) if is_refused else NoAnswerError(url)
                news.clear()
                await news.wait()
        finally:
            call.is_done = True

    async def ask(
        self, name: str, kind: str, body: Any, timeout_us: int, *, is_stream: bool
    ) -> Any:
        """Ask a process by name; raises as the production client does."""
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
