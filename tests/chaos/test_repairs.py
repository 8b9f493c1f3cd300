"""The tally of repairs survives the processes that counted.

Sequencers are made up: no process is started.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.chaos.cluster import ChaosCluster
from tests.chaos.repairs import RepairTally


class Sequencers:
    """Stands for the cluster: two sequencers, their processes and what they have counted."""

    def __init__(self) -> None:
        self.pids: dict[str, int | None] = {"sequencer-0": 1, "sequencer-1": 2}
        self.done = {"sequencer-0": 0, "sequencer-1": 0}
        self.is_silent = False

    def ids(self, role: str) -> list[str]:
        return sorted(self.pids)

    def pid(self, node_id: str) -> int | None:
        return self.pids[node_id]

    async def ask(self, node_id: str, path: str) -> Any:
        backlog = {"done": self.done[node_id], "failed": 1}
        return None if self.is_silent else {"repair": {"backlog": backlog, "terms": 2}}


def test_counters_are_summed_over_the_lives_of_every_sequencer() -> None:
    async def play() -> None:
        world = Sequencers()
        tally = RepairTally(cast(ChaosCluster, world))
        world.done["sequencer-0"] = 4
        await tally.look()
        world.done["sequencer-0"] = 6
        await tally.look()
        world.pids["sequencer-0"], world.done["sequencer-0"] = 9, 1
        world.done["sequencer-1"] = 2
        await tally.look()
        world.pids["sequencer-1"] = None
        total = await tally.stop()
        assert total["repairs"] == 6 + 1 + 2
        assert total["failed tries"] == total["terms of leadership"] / 2 == 3
        assert total["bytes copied"] == 0, "what is not told counts for nothing"

    asyncio.run(play())


def test_who_does_not_answer_keeps_what_was_seen() -> None:
    async def play() -> None:
        world = Sequencers()
        tally = RepairTally(cast(ChaosCluster, world))
        world.done["sequencer-1"] = 3
        await tally.look()
        world.is_silent = True
        assert (await tally.stop())["repairs"] == 3

    asyncio.run(play())
