"""Reads of a log through the core client, over a cluster in memory.

Used by `test_core_reads` and `test_growing_log`. Source: docs/sdk.md.
"""

from __future__ import annotations

from typing import Any

from duramen.client.core.parts import ReadParts
from duramen.client.core.read_log import ReadLog
from tests.component.readproxy_world import World


def open_log(world: World) -> ReadLog:
    proxy = world.proxy
    reading = ReadParts(proxy._bookies, proxy.fetcher, proxy.catalog, proxy.tails, proxy.positions)
    return ReadLog(reading, "ns", "log")


async def read(log: ReadLog, *arguments: Any, **options: Any) -> list[int]:
    """Sequence numbers, after a look at the bodies."""
    batches = [batch async for batch in log.read(*arguments, **options)]
    for batch in batches:
        assert batch.bodies == [b"r%d" % number for number in range(batch.first, batch.end)]
    return [record.seq_num for batch in batches for record in batch]
