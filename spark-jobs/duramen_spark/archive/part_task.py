"""One task of a run: read a range of entries, write it as a file, read the file back, compare.

A plain function over plain values, so that an executor of Spark, a thread of this process and a
test run the same code. What it gives back says what it saw; nothing that it does counts before the
driver has put the manifest. Memory: the row group that is being written or read, and two reads.

Called by `runner`. Source: docs/protocol/archive.md "From hot to cold: five steps", steps 1 and 2.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.errors import DuramenError
from duramen.ids import EntryId
from duramen.runtime.cold import AlreadyThere, ColdStore, NotThere, open_cold_store
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import SECOND
from duramen.wire.cold.chain import Chain, chain_identities
from duramen.wire.cold.manifest import FilePart
from duramen.wire.cold.part_writer import PartWriter
from duramen.wire.cold.paths import attempt_folder, part_name
from duramen.wire.cold.rebuild import ColdDataError
from duramen.wire.entry import EntryError
from duramen.wire.metadata_json import read_any_segment
from duramen.wire.record_batch import BatchError
from duramen_spark.archive.bookie_source import BookieSource, EntrySource
from duramen_spark.archive.digests import SourceError
from duramen_spark.archive.read_back import read_back
from duramen_spark.cluster_address import ClusterAddress

TRY_COUNT_MAX: Final = 100
"""Tries of one task: each has a file name of its own, since a killed one may still write."""

_steps = logging.getLogger("duramen.archive.steps")


@dataclass(frozen=True, slots=True)
class PartTask:
    """What a task needs to know; plain values, so that it can be sent anywhere.

    Attributes:
        segment: the segment's node, as it was read.
        index: of the part in its segment, from 0.
        stored: check this file, that an attempt has written before; None: write one.
        bytes_per_s: how fast entries are read at most; None: no limit.
    """

    address: ClusterAddress
    cold_store: str
    cluster_uuid: str
    segment: bytes
    attempt: str
    index: int
    first: EntryId
    last: EntryId
    size_bytes: int
    row_group_bytes: int
    read_bytes: int
    bytes_per_s: int | None = None
    stored: FilePart | None = None


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a task saw.

    Attributes:
        part: the file, whole and the same as the bookies' entries; None: see `failure`.
        failure: why there is none; `is_mismatch`: because what was read back is not what it was.
        entry_bytes: of the entries that were read from bookies.
    """

    task: PartTask
    part: FilePart | None
    entry_bytes: int = 0
    failure: str = ""
    is_mismatch: bool = False
    elapsed_us: int = 0


def run_tasks(tasks: Sequence[PartTask], try_index: int = 0) -> list[PartResult]:
    """Run tasks one after the other; what goes wrong is told in their results.

    Args:
        tasks: of one cluster.
        try_index: how often the runner has begun these tasks before.
    """
    return asyncio.run(_run_tasks(tasks, try_index))


async def _run_tasks(tasks: Sequence[PartTask], try_index: int) -> list[PartResult]:
    try:
        async with BookieSource(tasks[0].address) as source:
            return [await run_task(task, source, try_index) for task in tasks]
    except MetadataError as error:
        return [PartResult(task, None, failure=f"ZooKeeper: {error}") for task in tasks]


async def run_task(task: PartTask, source: EntrySource, try_index: int) -> PartResult:
    """Run one task."""
    began_us = _clock_us()
    segment = read_any_segment(task.segment)
    store = open_cold_store(task.cold_store)
    failure, is_mismatch, part, entry_bytes = "", False, task.stored, 0
    # Bookies read for it at their own pace: it takes as long as all the rest.
    reporting = asyncio.create_task(
        source.read_identities(segment, task.first, task.last, task.index)
    )
    try:
        if part is None:
            part, entry_bytes = await _write(task, segment, store, source, try_index)
        path = _folder_of(task, segment) + part.name
        await asyncio.to_thread(read_back, store, path, part, segment)
        _steps.debug("part read back: part %d", task.index)
        _compare(task, segment, part, await reporting)
        _steps.debug("part compared: part %d", task.index)
    except (ColdDataError, EntryError, BatchError, NotThere) as error:
        failure, is_mismatch = f"{type(error).__name__}: {error}", True
    except (DuramenError, SourceError, MetadataError, AlreadyThere) as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    return PartResult(
        task=task,
        part=None if failure else part,
        entry_bytes=entry_bytes,
        failure=failure,
        is_mismatch=is_mismatch,
        elapsed_us=_clock_us() - began_us,
    )


async def _write(
    task: PartTask, segment: AnySegment, store: ColdStore, source: EntrySource, try_index: int
) -> tuple[FilePart, int]:
    """Write the task's file; what the manifest is to say of it, and bytes of its entries."""
    assert segment.start_seq_num is not None, segment
    name = part_name(task.index * TRY_COUNT_MAX + try_index % TRY_COUNT_MAX)
    path = _folder_of(task, segment) + name
    file = await asyncio.to_thread(store.open_writer, path)
    _steps.debug("part begun: part %d", task.index)
    try:
        writer = PartWriter(
            file.write,
            name=name,
            ledger_id=segment.ledger_id,
            start_seq_num=segment.start_seq_num,
            row_group_bytes=task.row_group_bytes,
        )
        entry_bytes = 0
        began_us = _clock_us()
        async for run in _read_ahead(task, segment, source):
            await asyncio.to_thread(_add, writer, run)
            entry_bytes += sum(len(data) for _, data in run)
            _steps.debug("part growing: part %d", task.index)
            if task.bytes_per_s is not None:
                due_us = began_us + entry_bytes * SECOND // task.bytes_per_s
                await asyncio.sleep(max(0, due_us - _clock_us()) / SECOND)
        part = await asyncio.to_thread(writer.finish)
        _steps.debug("part written: part %d", task.index)
        await asyncio.to_thread(file.commit)
        _steps.debug("part committed: part %d", task.index)
    finally:
        file.abort()
    return part, entry_bytes


def _add(writer: PartWriter, run: Sequence[tuple[EntryId, bytes]]) -> None:
    for _, data in run:
        writer.add(data)


async def _read_ahead(
    task: PartTask, segment: AnySegment, source: EntrySource
) -> AsyncIterator[list[tuple[EntryId, bytes]]]:
    """Runs of entries, the next one on its way while the consumer works on the last."""
    for first, last in segment.list_present(task.first, task.last):
        at = first
        coming = asyncio.create_task(source.read_run(segment, at, last, task.read_bytes))
        try:
            while at <= last:
                run = await coming
                at = EntryId(run[-1][0] + 1)
                if at <= last:
                    coming = asyncio.create_task(
                        source.read_run(segment, at, last, task.read_bytes)
                    )
                yield run
        finally:
            # Not only told to end: whoever closes the source next finds nobody in it.
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def _compare(
    task: PartTask, segment: AnySegment, part: FilePart, identities: Sequence[tuple[EntryId, int]]
) -> None:
    """Compare what was read back with what bookies say that they hold.

    Raises:
        ColdDataError: they are different entries.
    """
    bookies: Chain = chain_identities(segment.ledger_id, identities)
    ends = (identities[0][0], identities[-1][0]) if identities else None
    if bookies != part.identities or ends != (part.first_entry, part.last_entry):
        raise ColdDataError(
            f"{part.name} has {part.identities.count} entries, and not those that bookies have: "
            f"{bookies.count} entries from {task.first} to {task.last}"
        )


def _folder_of(task: PartTask, segment: AnySegment) -> str:
    return attempt_folder(task.cluster_uuid, segment.log_id, segment.epoch, task.attempt)


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
