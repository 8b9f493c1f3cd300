"""Segments' metadata from wherever they are: the metadata store, or the log's metadata log.

The rules are those of `core.metadata_log.lookup`, which is told what it wants. A missing node is no
answer to anybody: either the log node says that the epoch was given up or is yet to come, or its
record is found, or nothing is known, which is an error that can be tried again. Nobody takes such
an epoch for empty, truncated or superfluous.

Called by followers of logs, the archive, audits and tools.
Source: docs/protocol/metadata-logs.md "Reading", R4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.history import ToldEpoch, report_epochs
from duramen.core.metadata_log.listing import (
    SegmentListing,
    Whereabouts,
    find_counting,
)
from duramen.core.metadata_log.lookup import (
    LOOK_COUNT_MAX,
    ListingLookup,
    LookupStep,
    SegmentLookup,
    Unreadable,
)
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths, read_any_segment, read_log

_READ_COUNT: Final = 32
"""Nodes that one listing reads at a time, of the store's 128 requests."""


class SegmentNodes:
    """The segments of logs, in both places."""

    def __init__(self, store: MetadataStore, paths: Paths, records: MetadataRecords) -> None:
        self._store = store
        self._paths = paths
        self.records = records

    async def find(self, log_id: LogId, epoch: Epoch) -> AnySegment | None:
        """The metadata of one epoch; None: the log node says that there is none, or none any more.

        Raises:
            DuramenError: `metadata_unavailable`: nothing is known of it, or not now;
                `log_not_found`.
            MetadataError: the metadata store does not say.
            MetadataJsonError: a node is not understood.
        """
        lookup = SegmentLookup(epoch)
        while lookup.wanted is not LookupStep.NOTHING:
            match lookup.wanted:
                case LookupStep.NODE:
                    lookup.on_node(await self._read_node(log_id, epoch))
                case LookupStep.LOG:
                    lookup.on_log(await self._read_log(log_id))
                case LookupStep.RECORDS:
                    assert lookup.log is not None, "records are asked for by a log node"
                    lookup.on_records(await self.records.read_epoch(lookup.log, epoch))
        result = lookup.result
        assert result is not None
        if isinstance(result, Unreadable):
            raise _unreadable(log_id, result, f"e{epoch} of log {log_id}")
        return None if isinstance(result, Whereabouts) else result

    async def list_all(self, log_id: LogId) -> SegmentListing:
        """The metadata of all epochs that live, of one moment.

        Raises: as `find`; epochs of which no record is found are `unreadable` in what is returned.
        """
        lookup = ListingLookup()
        while lookup.wanted is not LookupStep.NOTHING:
            match lookup.wanted:
                case LookupStep.LOG:
                    lookup.on_log(await self._read_log(log_id))
                case LookupStep.NODES:
                    lookup.on_nodes(await self._read_nodes(log_id, lookup.list_stored()))
                case LookupStep.RECORDS:
                    assert lookup.log is not None, "records are asked for by a log node"
                    lookup.on_records(await self.records.read(lookup.log))
        result = lookup.result
        assert result is not None
        if isinstance(result, Unreadable):
            raise _unreadable(log_id, result, f"the segments of log {log_id}")
        return result

    async def report_epochs(self, log_id: LogId) -> tuple[LogNode, list[ToldEpoch]]:
        """The log, and the history of its epochs, as far as anybody can tell it.

        Raises: as `find`.
        """
        for _ in range(LOOK_COUNT_MAX):
            listing = await self.list_all(log_id)
            records = await self.records.read_closed(listing.log)
            if records is not None:
                return listing.log, report_epochs(listing, records)
        raise _unreadable(log_id, Unreadable.TOO_MANY_CHANGES, f"the epochs of log {log_id}")

    async def read_moved(self, log: LogNode) -> dict[Epoch, AnySegment] | None:
        """The segments that have moved by this very version of the log node, as far as a record
        of them is found; None: its metadata log was trimmed since, so it is not the newest.

        For who changes that version, or nothing. An existing node beats what this returns.

        Raises: as `find`.
        """
        records = await self.records.read(log)
        if records is None:
            return None
        return {epoch: record.segment for epoch, record in find_counting(log, records).items()}

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        path = self._paths.log(log_id)
        await self._store.sync(path)
        stored = await self._store.get(path)
        return None if stored is None else read_log(stored.data)

    async def _read_node(self, log_id: LogId, epoch: Epoch) -> AnySegment | None:
        stored = await self._store.get(self._paths.segment(log_id, epoch))
        return None if stored is None else read_any_segment(stored.data)

    async def _read_nodes(self, log_id: LogId, epochs: Iterable[int]) -> dict[Epoch, AnySegment]:
        """Those that are there, of these and of any that was put back."""
        names = await self._store.children(self._paths.segments(log_id)) or ()
        wanted = sorted({*epochs, *(int(name) for name in names if name.isdecimal())})
        limit = asyncio.Semaphore(_READ_COUNT)

        async def read(epoch: Epoch) -> AnySegment | None:
            async with limit:
                return await self._read_node(log_id, epoch)

        found = await asyncio.gather(*(read(Epoch(epoch)) for epoch in wanted))
        pairs = zip(wanted, found, strict=True)
        return {Epoch(epoch): segment for epoch, segment in pairs if segment is not None}


def _unreadable(log_id: LogId, why: Unreadable, what: str) -> DuramenError:
    if why is Unreadable.NO_LOG:
        return DuramenError("log_not_found", f"there is no log with id {log_id}", field="log")
    return DuramenError("metadata_unavailable", f"{what}: {why.value}")
