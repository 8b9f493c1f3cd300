"""Upkeep of a bookie under load, hurried: it settles, compacts and drops all the time.

`hurried` asks for rounds beside a load, and declares ledgers dead one log after the other; `Strike`
kills in the middle of a round; `finish` brings everything to its end. Most logs are cut off behind
the life before, a few never, so that entry log files come to hold little that is alive.
Used by the bookie's process tests, with a `hasty` bookie.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from duramen.ids import LedgerId, epoch_of, log_of
from duramen.limits import COMPACT_HOURLY_RATIO
from duramen.wire.disk.journal_format import BLOCK_BYTES
from tests.process.bookie import BookieProcess, Load
from tests.process.metadata_nodes import MetadataNodes
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

_LASTING: Final = 6
"""Of so many logs one is never truncated."""

_STEP_COUNT: Final = 20
"""Entries between two requests."""


@asynccontextmanager
async def hurried(bookie: BookieProcess, load: Load, nodes: MetadataNodes) -> AsyncIterator[None]:
    """Rounds of all upkeep within the context, which is that of the load's next life."""
    task = asyncio.create_task(_hurry(bookie, load, nodes, load.life))
    try:
        yield
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(end, Exception):
        raise end


async def _hurry(
    bookie: BookieProcess, load: Load, nodes: MetadataNodes, first_live_epoch: int
) -> None:
    """Until the bookie is dead."""
    dying = iter(list_dying(load) if first_live_epoch > 1 else ())
    async with httpx.AsyncClient(base_url=bookie.admin_url, timeout=30) as client:
        while True:
            for log_id in dying:
                await nodes.truncate([log_id], first_live_epoch)
                break
            try:
                for work in ("settling", "compaction"):
                    (await client.post(f"/v1/upkeep/{work}")).raise_for_status()
            except httpx.TransportError:
                return
            await load.wait_acknowledged(load.acknowledged_count + _STEP_COUNT)


class Strike:
    """Kills a bookie while it settles or compacts, a little earlier or later; on any thread.

    Args:
        rng: decides how much later.
        during: counts what was under way.
    """

    def __init__(self, bookie: BookieProcess, rng: random.Random, during: Counter[str]) -> None:
        self._bookie = bookie
        self._rng = rng
        self._during = during
        self._upkeep: dict[str, Any] = {}

    def __call__(self) -> None:
        wait_in_thread(self._is_carrying, HANG_S, "files to be carried")
        for _ in range(self._rng.randrange(4)):
            self._is_carrying()
        self._bookie.kill()
        for what in ("settling", "compaction"):
            self._during[what] += not self._upkeep[what]["rounds"]["is_resting"]
        self._during["drops"] += self._upkeep["deletion"]["drops"]

    def _is_carrying(self) -> bool:
        self._upkeep = self._bookie.ask("/v1/upkeep")
        return bool(self._upkeep["carrier"]["is_busy"])


async def finish(
    bookie: BookieProcess, load: Load, nodes: MetadataNodes, dying: Sequence[int]
) -> None:
    """Drop, settle and compact everything; the load is over.

    Args:
        dying: logs of which the last two lives remain.

    Raises:
        AssertionError: a round failed, or space of what is dead did not come back.
    """
    bound = max(1, load.life - 1)  # what is left shows the seals
    await nodes.truncate(dying, bound)
    dead = {x for x in load.ledgers() if epoch_of(x) < bound and log_of(x) in dying}
    await asyncio.to_thread(_finish_rounds, bookie, dead)
    load.drop(dead)


def list_dying(load: Load) -> list[int]:
    """Logs that are truncated."""
    return [log_id for log_id in load.log_ids if log_id % _LASTING]


def _finish_rounds(bookie: BookieProcess, dead: set[LedgerId]) -> None:
    def is_dropped() -> bool:
        return dead.isdisjoint(int(ledger["ledger_id"]) for ledger in bookie.list_ledgers())

    wait_in_thread(is_dropped, HANG_S, "dead ledgers to be dropped")
    for work in ("settling", "compaction"):
        finish_round(bookie, work)
    entry_log = bookie.ask("/v1/statistics")["storage"]["shelf"]
    record_bytes = entry_log["data_bytes"] - 2 * BLOCK_BYTES * entry_log["files"]
    assert entry_log["live_bytes"] >= COMPACT_HOURLY_RATIO * record_bytes, entry_log


def finish_round(bookie: BookieProcess, work: str) -> None:
    """One that began after this was called: a round that is under way may have begun before."""

    def is_over() -> bool:
        rounds = bookie.ask("/v1/upkeep")[work]["rounds"]
        assert rounds["failed_round_count"] == 0, bookie.log_tail()
        return bool(rounds["round_count"] > count)

    for _ in range(2):
        count = bookie.ask("/v1/upkeep")[work]["rounds"]["round_count"]
        bookie.report(f"/v1/upkeep/{work}")
        wait_in_thread(is_over, HANG_S, f"a round of {work}")
