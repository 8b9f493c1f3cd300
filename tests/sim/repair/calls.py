"""Repair's calls between simulated processes: `client.bookie_client` over the simulated network.

Frames are objects here. Every way of not answering becomes a status, as there, and entries that
were read are verified by the production function.

Called by `desk` (a bookie that pulls) and `seat` (the auditor). Source: docs/protocol/wire.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from duramen.core.status import BookieStatus
from duramen.ids import NOTHING
from duramen.limits import READ_TIMEOUT_US
from duramen.units import SECOND
from duramen.wire.bookie_calls import ReadAnswer, ReadRange, verify_read
from duramen.wire.flexible.filtered_answers import FilteredAnswer, verify_filtered
from duramen.wire.flexible.filtered_reads import READ_VERSION_FILTERED, FilteredRange
from duramen.wire.repair_calls import Inventory, InventoryAnswer, Pull, PullAnswer, Source
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.world import Node

_SILENCE_US: Final = 6 * SECOND
"""When a call is given up: a connection to a process that died is reset long before its time-out,
and the network here resets none."""


class SimBookieClient:
    """Calls of one process to bookies."""

    def __init__(self, network: Network, node: Node, bookies: Mapping[str, Node]) -> None:
        self._network = network
        self._node = node
        self._bookies = bookies

    async def close(self) -> None:
        """Nothing is open."""

    async def read(
        self, source: Source, ranges: Sequence[ReadRange], timeout_us: int = READ_TIMEOUT_US
    ) -> list[ReadAnswer]:
        """One answer for each range, verified."""
        status, answers = await self._call(source, "read", list(ranges), timeout_us)
        if status is not BookieStatus.OK:
            return [ReadAnswer(status, NOTHING, NOTHING, False, [])] * len(ranges)
        return [verify_read(*pair) for pair in zip(answers, ranges, strict=True)]

    async def read_filtered(
        self, source: Source, ranges: Sequence[FilteredRange], timeout_us: int = READ_TIMEOUT_US
    ) -> list[FilteredAnswer]:
        """One answer for each range of a flexible segment, verified."""
        version = READ_VERSION_FILTERED
        status, answers = await self._call(source, "read", list(ranges), timeout_us, version)
        if status is not BookieStatus.OK:
            return [
                FilteredAnswer(status, NOTHING, NOTHING, False, one.filter_number, one.wanted.first)
                for one in ranges
            ]
        return [verify_filtered(*pair) for pair in zip(answers, ranges, strict=True)]

    async def take_inventory(
        self, source: Source, inventory: Inventory, timeout_us: int
    ) -> InventoryAnswer:
        """What the bookie holds of a range."""
        status, answer = await self._call(source, "inventory", inventory, timeout_us)
        return answer if status is BookieStatus.OK else InventoryAnswer(status)

    async def pull(self, target: Source, pull: Pull, timeout_us: int) -> PullAnswer:
        """Have the target fetch entries."""
        status, answer = await self._call(target, "pull", pull, timeout_us)
        return answer if status is BookieStatus.OK else PullAnswer(status)

    async def _call(
        self, source: Source, kind: str, body: Any, timeout_us: int, version: int = 1
    ) -> tuple[BookieStatus, Any]:
        self._node.world.counts[f"repair {kind}"] += 1
        answer: Promise[tuple[BookieStatus, Any]] = Promise()

        def on_answer(status: BookieStatus, value: Any) -> None:
            answer.settle((status, value))

        # Whole seconds: the network keeps a queue for each length.
        timeout_us = min((timeout_us + SECOND - 1) // SECOND * SECOND, _SILENCE_US)
        bookie = self._bookies[source.member.bookie]
        body = (source.member.incarnation, body, version)
        self._network.call(self._node, bookie, kind, body, timeout_us, on_answer)
        return await answer
