"""Reads all partitions at once: whichever has a batch gives it; no order across them is made up.

One batch of each partition waits at most, beside the answer that its reader has asked for. A
partition that fails ends the whole read: who goes on without it would not know what it missed.

Used by `partitioned.log`. Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from duramen.client.sdk.read_batch import ReadBatch
from duramen.errors import DuramenError

Place = str | int | datetime
"""A position in one log, as `Log.read` takes it."""

Positions = Mapping[int, Place]
"""Partition → position; every partition has one."""


class PartitionBatch(NamedTuple):
    """Consecutive records of one partition.

    Attributes:
        partition: its number, from 0.
        batch: the records; `batch.end` is the position from which this partition goes on.
    """

    partition: int
    batch: ReadBatch


def spread_position(from_: str | datetime | Positions, partition_count: int) -> list[Place]:
    """The position of each partition.

    Raises:
        DuramenError: `invalid_argument`, field `from_`: one number for all, or a partition is
            missing or unknown.
    """
    if isinstance(from_, str | datetime):
        return [from_] * partition_count
    if not isinstance(from_, Mapping):
        detail = "a sequence number means another record in each partition: give a mapping"
        raise DuramenError("invalid_argument", detail, field="from_")
    if from_.keys() != set(range(partition_count)):
        detail = f"positions of the partitions 0 to {partition_count - 1}, not of {sorted(from_)}"
        raise DuramenError("invalid_argument", detail, field="from_")
    return [from_[partition] for partition in range(partition_count)]


async def merge_batches(
    readers: Sequence[AsyncGenerator[ReadBatch, None]],
) -> AsyncGenerator[PartitionBatch, None]:
    """The batches of all readers, each reader's in its order, until all have ended.

    Raises:
        DuramenError: of the first reader that failed.
    """
    waiting = {
        asyncio.ensure_future(_next_batch(reader)): partition
        for partition, reader in enumerate(readers)
    }
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # A partition that was given comes behind those that are ready: none starves.
            for task in sorted(done, key=waiting.__getitem__):
                partition = waiting.pop(task)
                batch = task.result()
                if batch is not None:
                    waiting[asyncio.ensure_future(_next_batch(readers[partition]))] = partition
                    yield PartitionBatch(partition, batch)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for reader in readers:
            await reader.aclose()


async def _next_batch(reader: AsyncGenerator[ReadBatch, None]) -> ReadBatch | None:
    """None: the reader has ended."""
    return await anext(reader, None)
