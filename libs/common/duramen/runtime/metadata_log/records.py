"""Reads the records of a log's metadata log from bookies, and keeps them for a while.

What is read follows from one version of the log node: its marks say from where to where records may
count, and bodies up to there are durable, so nobody is asked for a LAC. What was read stays true of
those marks: whoever asks again with the same ones gets the same records, and one more move costs
its own records alone. An entry that cannot be read, or is not understood, makes everything
unreadable: it might hold the last record of any epoch.

Not here: which records count (`core.metadata_log.listing`). Called by `segment_nodes`, keepers and
tools. Source: docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId, Lsn, lsn_of, metadata_log_of
from duramen.limits import READ_BYTES_MAX
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MIB
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_any_log, read_any_segment
from duramen.wire.nodes.metadata_entries import read_metadata_entry

KEPT_BYTES: Final = 64 * MIB
"""Of records that a process keeps, as they are in memory: some 20,000 segments."""

_RECORD_BYTES: Final = 3_000
"""What a record takes in memory, about."""

_LAST_ENTRY: Final = EntryId(0xFFFF_FFFF)

FetchRun = Callable[
    [SegmentBase, EntryId, EntryId, int], Awaitable[Sequence[tuple[EntryId, bytes]]]
]
"""Entries of a segment from the first on without a gap, one at least, none above the last, and so
many bytes. Raises DuramenError: nobody gives it now."""


@dataclass(frozen=True, slots=True)
class _KnownRecords:
    """What was read of one metadata log."""

    first: Lsn | None
    last: Lsn
    records: tuple[PlacedRecord, ...]
    by_epoch: Mapping[Epoch, Sequence[PlacedRecord]]
    """The same: who wants one segment after the other would look through all of them each time."""

    @property
    def size_bytes(self) -> int:
        return _RECORD_BYTES * len(self.records)


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
        self._kept_bytes = kept_bytes
        self._known: OrderedDict[LogId, _KnownRecords] = OrderedDict()
        self._known_bytes = 0
        self._entry_count = 0

    async def read(self, log: LogNode) -> tuple[PlacedRecord, ...] | None:
        """From the first record that may count by this version of the log node to the last one.

        Returns:
            None: the metadata log was trimmed above the first, so the log node has moved on.

        Raises:
            DuramenError: `metadata_unavailable`: a record cannot be read, now or for ever.
            MetadataError: the metadata store does not say.
        """
        if log.metadata.lsn is None:
            return ()
        known = await self._read_known(log)
        return None if known is None else known.records

    async def read_epoch(self, log: LogNode, epoch: Epoch) -> Sequence[PlacedRecord] | None:
        """Those of one epoch. Returns, raises: as `read`."""
        if log.metadata.lsn is None:
            return ()
        known = await self._read_known(log)
        return None if known is None else known.by_epoch.get(epoch, ())

    async def read_closed(self, log: LogNode) -> list[PlacedRecord] | None:
        """All from the first that may count to the end of the last closed epoch, history as well.

        Returns, raises: as `read`.
        """
        metadata_log = await self._read_log(log.log_id)
        if metadata_log is None or not metadata_log.last_clean_epoch:
            return []
        end = lsn_of(Epoch(metadata_log.last_clean_epoch + 1), EntryId(0))
        return await self._read_range(log.log_id, log.metadata.first_lsn, Lsn(end - 1))

    async def read_kept(self, log_id: LogId) -> tuple[list[PlacedRecord], list[Epoch]]:
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
        return {
            "logs": len(self._known),
            "bytes": self._known_bytes,
            "entries_read": self._entry_count,
        }

    async def _read_known(self, log: LogNode) -> _KnownRecords | None:
        """Raises: as `read`."""
        marks = log.metadata
        assert marks.lsn is not None, log
        known = self._known.get(log.log_id)
        if known is not None and known.first == marks.first_lsn and known.last <= marks.lsn:
            self._known.move_to_end(log.log_id)
            if known.last == marks.lsn:
                return known
            behind = await self._read_range(log.log_id, Lsn(known.last + 1), marks.lsn)
            records = None if behind is None else (*known.records, *behind)
        else:
            found = await self._read_range(log.log_id, marks.first_lsn, marks.lsn)
            records = None if found is None else tuple(found)
        if records is None:
            return None
        read = _KnownRecords(marks.first_lsn, marks.lsn, records, _index(records))
        self._keep(log.log_id, read)
        return read

    def _keep(self, log_id: LogId, known: _KnownRecords) -> None:
        before = self._known.pop(log_id, None)
        self._known_bytes -= 0 if before is None else before.size_bytes
        self._known[log_id] = known
        self._known_bytes += known.size_bytes
        while self._known_bytes > self._kept_bytes and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= oldest.size_bytes

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        found = await self._store.get(self._paths.log(metadata_log_of(log_id)))
        return None if found is None else read_any_log(found.data)

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
            again = await self._read_log(log_id)
            if again is not None and first is not None and again.trim.lsn > first:
                return None
            detail = f"metadata of log {log_id} that have moved cannot be read: {error}"
            raise DuramenError("metadata_unavailable", detail) from error

    async def _read_entries(self, log_id: LogId, first: Lsn, last: Lsn) -> list[PlacedRecord]:
        records: list[PlacedRecord] = []
        for epoch in map(Epoch, range(first >> 32, (last >> 32) + 1)):
            stored = await self._store.get(self._paths.segment(metadata_log_of(log_id), epoch))
            if stored is None:
                raise DuramenError("data_unavailable", f"e{epoch} of the metadata log is gone")
            segment = read_any_segment(stored.data)
            begin = EntryId(max(first - lsn_of(epoch, EntryId(0)), 0))
            end = EntryId(min(last - lsn_of(epoch, EntryId(0)), _LAST_ENTRY))
            if segment.last_entry is not None:
                end = min(end, segment.last_entry)
            elif end == _LAST_ENTRY:
                raise DuramenError("data_unavailable", f"e{epoch} of it is not closed")
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


def _index(records: Iterable[PlacedRecord]) -> dict[Epoch, list[PlacedRecord]]:
    """Records by their epoch, each epoch's in the order in which they lie."""
    by_epoch: defaultdict[Epoch, list[PlacedRecord]] = defaultdict(list)
    for placed in records:
        by_epoch[placed.record.epoch].append(placed)
    return dict(by_epoch)
