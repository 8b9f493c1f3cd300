"""What repair did during a run: counters of all sequencers, summed over the lives of each.

A process that is killed takes its counters along, so they are looked at every while; what one did
after the last look at it is not counted. Figures for people, judged by nobody.

Called by `run`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tests.chaos.cluster import ChaosCluster
from tests.chaos.waiting import wait_at_most

_LOOK_S: Final = 2.0

_COUNTERS: Final = {
    "repairs": ("backlog", "done"),
    "failed tries": ("backlog", "failed"),
    "said to be unrepairable": ("backlog", "unrepairable_reported"),
    "swaps": ("commits", "swaps"),
    "proofs": ("commits", "proofs"),
    "entries compared": ("copying", "entries_compared"),
    "entries copied": ("copying", "entries_copied"),
    "bytes copied": ("copying", "bytes_copied"),
    "terms of leadership": ("terms",),
}


class RepairTally:
    """Looks at the sequencers of one cluster; to be started and stopped."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[str, int], dict[str, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every while."""
        self._task = asyncio.create_task(self._look_for_ever())

    async def stop(self) -> dict[str, int]:
        """Look once more; the sums by name."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.look()
        total: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        for counts in self._seen.values():
            total.update(counts)
        return dict(total)

    async def look(self) -> None:
        """Note what every sequencer that answers has counted since its start."""
        for node_id in self._cluster.ids("sequencer"):
            pid = self._cluster.pid(node_id)
            if pid is None:
                continue
            statistics = await self._cluster.ask(node_id, "/v1/statistics")
            if statistics is not None and pid == self._cluster.pid(node_id):
                self._seen[node_id, pid] = _read_counters(statistics.get("repair", {}))

    async def _look_for_ever(self) -> None:
        while True:
            await self.look()
            await wait_at_most(_LOOK_S)


def _read_counters(repair: Mapping[str, Any]) -> dict[str, int]:
    counts = {}
    for name, path in _COUNTERS.items():
        value: Any = repair
        for step in path:
            value = value.get(step, {})
        counts[name] = value if isinstance(value, int) else 0
    return counts
