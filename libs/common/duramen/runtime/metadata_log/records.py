"""Reads the records of a log's metadata log from bookies, and keeps them for a while.

What is read follows from one version of the log node: its marks say from where to where records may
count, and bodies up to there are durable, so nobody is asked for a LAC. What was read stays true of
those marks: whoever asks again with the same ones gets the same records, and one more move costs
its own records alone; of many who ask at once one reads. An entry that cannot be read, or is not
understood, makes everything unreadable: it might hold the last record of any epoch.

Not here: which records count (`core.metadata_log.listing`). Called by `segment_nodes`, keepers and
tools. Source: docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId, Lsn, lsn_of, metadata_log_of
from duramen.limits import READ_BYTES_MAX
from duramen.runtime.metadata_log.kept_records import KeptRecords, KeptRun, make_run
from duramen.runtime.shared_tasks import take_failure
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MIB
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_any_segment, read_log
from duramen.wire.nodes.metadata_entries import read_metadata_entry

KEPT_BYTES: Final = 64 * MIB
"""Of records that a process keeps, as they are in memory: some 20,000 segments."""

_BEGINNING: Final = lsn_of(Epoch(1), EntryId(0))

_LAST_ENTRY: Final = EntryId(0xFFFF_FFFF)

FetchRun = Callable[
    [SegmentBase, EntryId, EntryId, int], Awaitable[Sequence[tuple[EntryId, bytes]]]
]
"""Entries of a segment from the first on without a gap, one at least, none above the last, and so
many bytes. Raises DuramenError: nobody gives it now."""


class MetadataRecords:
    """Records of any number of metadata logs.

    Args:
        fetch_run: reads entries of striped segments.
        kept_bytes: of records; what was used longest ago goes first.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        fetch_run: FetchRun,
        *,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._store = store
        self._paths = paths
        self._fetch_run = fetch_run
        self._kept = KeptRecords(kept_bytes)
        self._reads: dict[tuple[LogId, Lsn | None, Lsn], asyncio.Task[KeptRun | None]] = {}
        self._entry_count = 0

    async def read(self, log: LogNode) -> tuple[PlacedRecord, ...] | None:
        """From the first record that may count by this version of the log node to the last one.

        Returns:
            None: the metadata log was trimmed above the first, so the log node has moved on.

        Raises:
            DuramenError: `metadata_unavailable`: a record cannot be read, now or for ever.
            MetadataError: the metadata store does not say.
        """
        run = await self._read_run(log)
        return None if run is None else run.records

    async def read_epoch(self, log: LogNode, epoch: Epoch) -> Sequence[PlacedRecord] | None:
        """Those of one epoch among them, in order.

        Returns, raises: as `read`.
        """
        run = await self._read_run(log)
        return None if run is None else run.by_epoch.get(epoch, ())

    async def read_closed(self, log: LogNode) -> list[PlacedRecord] | None:
        """All from the first that may count to the end of the last closed epoch, history as well.

        Returns, raises: as `read`.
        """
        metadata_log = await self._read_log(log.log_id)
        if metadata_log is None or not metadata_log.last_clean_epoch:
            return []
        end = lsn_of(Epoch(metadata_log.last_clean_epoch + 1), EntryId(0))
        return await self._read_range(log.log_id, log.metadata.first_lsn, Lsn(end - 1))

    async def salvage(self, log_id: LogId) -> tuple[list[PlacedRecord], list[Epoch]]:
        """Whatever can still be read, whether it may count or not: for a person who repairs.

        Returns:
            The records, and epochs of the metadata log of which some cannot be read.

        Raises:
            DuramenError: `metadata_unavailable`: there is no node of the metadata log.
            MetadataError, MetadataJsonError: the metadata store does not say.
        """
        metadata_log = await self._read_log(log_id)
        if metadata_log is None:
            detail = f"log {log_id} has no metadata log, or its node is lost"
            raise DuramenError("metadata_unavailable", detail)
        records: list[PlacedRecord] = []
        unreadable: list[Epoch] = []
        for epoch in range(metadata_log.first_live_epoch, metadata_log.last_clean_epoch + 1):
            begin = lsn_of(Epoch(epoch), EntryId(0))
            try:
                records += await self._read_entries(log_id, begin, Lsn(begin | _LAST_ENTRY))
            except (DuramenError, MetadataJsonError):
                unreadable.append(Epoch(epoch))
        return records, unreadable

    def statistics(self) -> dict[str, Any]:
        """What is kept, and entries that were read since the start."""
        return {**self._kept.statistics(), "entries_read": self._entry_count}

    async def _read_run(self, log: LogNode) -> KeptRun | None:
        marks = log.metadata
        if marks.lsn is None:
            return make_run(None, _BEGINNING, ())
        known = self._kept.find(log.log_id)
        if known is not None and (known.first, known.last) == (marks.first_lsn, marks.lsn):
            return known
        key = (log.log_id, marks.first_lsn, marks.lsn)
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(self._load(*key))
            task.add_done_callback(lambda _: self._reads.pop(key, None))
            task.add_done_callback(take_failure)
        return await asyncio.shield(task)

    async def _load(self, log_id: LogId, first: Lsn | None, last: Lsn) -> KeptRun | None:
        """Read what is not known yet, and keep it."""
        known = self._kept.find(log_id)
        if known is not None and known.first == first and known.last < last:
            behind = await self._read_range(log_id, Lsn(known.last + 1), last)
            found = None if behind is None else [*known.records, *behind]
        else:
            found = await self._read_range(log_id, first, last)
        if found is None:
            return None
        run = make_run(first, last, found)
        self._kept.put(log_id, run)
        return run

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        found = await self._store.get(self._paths.log(metadata_log_of(log_id)))
        return None if found is None else read_log(found.data)

    async def _read_range(
        self, log_id: LogId, first: Lsn | None, last: Lsn
    ) -> list[PlacedRecord] | None:
        """Raises: as `read`."""
        try:
            metadata_log = await self._read_log(log_id)
            if metadata_log is None or metadata_log.is_purged:
                raise DuramenError("data_unavailable", "the metadata log is not there")
            begin = lsn_of(metadata_log.first_live_epoch, EntryId(0)) if first is None else first
            if metadata_log.trim.lsn > begin:
                return None
            return await self._read_entries(log_id, begin, last)
        except (DuramenError, MetadataJsonError) as error:
            if await self._is_trimmed(log_id, _BEGINNING if first is None else first):
                return None
            detail = f"metadata of log {log_id} that have moved cannot be read: {error}"
            raise DuramenError("metadata_unavailable", detail) from error

    async def _is_trimmed(self, log_id: LogId, lsn: Lsn) -> bool:
        """Whether what lay at `lsn` counts for nothing by now, so that nobody has to give it."""
        try:
            metadata_log = await self._read_log(log_id)
        except MetadataJsonError:
            return False
        return metadata_log is not None and metadata_log.trim.lsn > lsn

    async def _read_entries(self, log_id: LogId, first: Lsn, last: Lsn) -> list[PlacedRecord]:
        records: list[PlacedRecord] = []
        for epoch in map(Epoch, range(first >> 32, (last >> 32) + 1)):
            stored = await self._store.get(self._paths.segment(metadata_log_of(log_id), epoch))
            if stored is None:
                raise DuramenError("data_unavailable", f"e{epoch} of the metadata log is gone")
            segment = read_any_segment(stored.data)
            begin = EntryId(max(first - lsn_of(epoch, EntryId(0)), 0))
            end = EntryId(min(last - lsn_of(epoch, EntryId(0)), _LAST_ENTRY))
            closed_at = segment.last_entry
            if end == _LAST_ENTRY:
                if closed_at is None:
                    raise DuramenError("data_unavailable", f"e{epoch} of it is not closed")
                end = closed_at
            elif closed_at is not None and closed_at < end:
                raise DuramenError("data_unavailable", f"e{epoch} of it ends below n{end}")
            records += await self._read_segment(log_id, segment, begin, end)
        return records

    async def _read_segment(
        self, log_id: LogId, segment: SegmentBase, first: EntryId, last: EntryId
    ) -> list[PlacedRecord]:
        records: list[PlacedRecord] = []
        at = first
        while at <= last:
            for entry_id, body in await self._fetch_run(segment, at, last, READ_BYTES_MAX):
                if entry_id != at:
                    break
                # Parsing 1 MiB of nodes takes 50 ms, which nobody else is to wait for.
                records += await asyncio.to_thread(read_metadata_entry, body, log_id)
                self._entry_count += 1
                at = EntryId(entry_id + 1)
        return records
