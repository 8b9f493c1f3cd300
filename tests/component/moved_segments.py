"""Segments whose nodes have left the store: a metadata log whose entries are a list of the test.

`MovedSegments` does at once what a keeper does in its rounds, and gives the entries to whoever
reads them. Used by the tests of jobs, tools and sequencers. Not a test itself.
Source: docs/protocol/metadata-logs.md "Changes", "Reading".
"""

from __future__ import annotations

from dataclasses import replace

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.configuring import metadata_log_config
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.stores.metadata_store import DeleteNode, MetadataStore, Set
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import Paths, encode_log, encode_segment, read_log
from duramen.wire.metadata_json import read_any_segment as read_segment
from duramen.wire.nodes.metadata_entries import pack_metadata_batches
from duramen.wire.record_batch import read_info

MEMBER = Member(BookieId("m0"), Incarnation("d" * 32))
FIRST = Epoch(1)
"""The only epoch of the metadata log."""


class MovedSegments:
    """The metadata log of one log."""

    def __init__(self, store: MetadataStore, paths: Paths, log_id: LogId) -> None:
        self._store = store
        self._paths = paths
        self._log_id = log_id
        self.entries: list[bytes] = []
        self.is_away = False
        """Its bookies answer nobody."""
        self.read_count = 0

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, _last: EntryId, _bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """As `BookieSource.read_run`."""
        self.read_count += 1
        if self.is_away or segment.log_id != metadata_log_of(self._log_id):
            raise DuramenError("data_unavailable", "no bookie gives it now")
        return [(first, self.entries[first])]

    def open_nodes(self) -> SegmentNodes:
        """What reads segments from both places."""
        records = MetadataRecords(self._store, self._paths, self.fetch_run)
        return SegmentNodes(self._store, self._paths, records)

    async def move(
        self,
        through: int,
        *,
        unrecorded: tuple[int, ...] = (),
        ensemble: tuple[Member, ...] = (MEMBER,),
    ) -> None:
        """Take the nodes of all epochs up to `through` out of the store; once.

        Args:
            unrecorded: of these no record is left, by some loss.
            ensemble: who holds the metadata log.
        """
        paths, log_path = self._paths, self._paths.log(self._log_id)
        found = await self._store.get(log_path)
        assert found is not None and not self.entries
        log = read_log(found.data)
        records: list[MetadataRecord] = []
        ops: list[Set | DeleteNode] = []
        for epoch in map(Epoch, range(log.first_live_epoch, through + 1)):
            path = paths.segment(self._log_id, epoch)
            stored = await self._store.get(path)
            assert stored is not None
            ops.append(DeleteNode(path, stored.version))
            if epoch not in unrecorded:
                segment = read_segment(stored.data)
                records.append(MetadataRecord(MetadataKind.MOVED, segment, stored.version, 1))
        self._append(records)
        await self._make(log, ensemble)
        marks = MetadataMarks(FIRST, through, None, lsn_of(FIRST, EntryId(len(self.entries) - 1)))
        moved = log.with_metadata(marks, "moved")
        await self._store.commit([Set(log_path, encode_log(moved), found.version), *ops])

    def _append(self, records: list[MetadataRecord]) -> None:
        ledger_id = ledger_of(metadata_log_of(self._log_id), FIRST)
        for batch in pack_metadata_batches(records, 1):
            count = read_info(batch).record_count
            entry = encode_entry(
                ledger_id=ledger_id, entry_id=EntryId(len(self.entries)), before=Totals(),
                batches=[batch], record_count=count, after=Totals(count, len(batch), None, 1),
            )  # fmt: skip
            self.entries.append(entry)

    async def _make(self, log: LogNode, ensemble: tuple[Member, ...]) -> None:
        log_id, totals = metadata_log_of(self._log_id), Totals(len(self.entries), 1)
        fragments = (Fragment(EntryId(0), ensemble, is_proved=True),)
        size = len(ensemble)
        segment = Segment(log_id, FIRST, Quorum(size, size, size // 2 + 1), fragments).closed(
            last_entry=EntryId(len(self.entries) - 1), totals=totals, start_seq_num=0,
            completed_unix_ms=1, nonce="m",
        )  # fmt: skip
        made = LogNode(
            log_id, log.namespace, log.name, metadata_log_config(log.config),
            next_epoch=Epoch(FIRST + 1), last_clean_epoch=FIRST, totals=totals,
        )  # fmt: skip
        path = self._paths.log(log_id)
        await self._store.create(path, encode_log(made), make_parents=True)
        await self._store.create(self._paths.segments(log_id), b"")
        await self._store.create(self._paths.segment(log_id, FIRST), encode_segment(segment))


def released(log: LogNode, through: int) -> LogNode:
    """The log with the hot copies of all epochs up to `through` gone."""
    stateless = log.with_snapshot(lsn_of(Epoch(log.last_clean_epoch + 1), EntryId(0)))
    return replace(stateless, first_hot_epoch=Epoch(through + 1)).validated()
