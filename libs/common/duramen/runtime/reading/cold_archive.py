"""Manifests and row groups of one cluster's archive, read and verified; every call blocks.

A manifest counts if its SHA-256 is that of the segment's node and it tells of the same segment; a
row group if its SHA-256 is the manifest's and its rows give the entries back that they were made
of. So what a flipped bit, a short file or another attempt's file holds is never given out: it is
`data_unavailable`, and counted.

Files are read in ranges: the footer once, each row group in one go. Called by `cold_reads`, in
threads.
Source: docs/protocol/archive.md "Reading".
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

from duramen.core.segment_base import SegmentBase, Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, LedgerId
from duramen.runtime.cold import ColdStore, NotThere, find_manifest
from duramen.wire.cold.manifest import Manifest, ManifestError, RowGroup
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.rebuild import ColdDataError

_READER_COUNT_MAX: Final = 64
"""Opened files that are kept: a footer each, some 10 KiB for a gigabyte of rows."""

Entries = list[tuple[EntryId, bytes]]


class ColdDamaged(DuramenError):
    """What the cold store has is not what was written: `data_unavailable`, and never served."""

    def __init__(self, detail: str) -> None:
        super().__init__("data_unavailable", f"the cold copy is damaged: {detail}")


class ColdLayout:
    """Which row groups a segment has in the archive, in the order of their entries."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._places = [
            (part, index) for part, file in enumerate(manifest.files)
            for index in range(len(file.row_groups))
        ]  # fmt: skip
        self._groups = [manifest.files[part].row_groups[index] for part, index in self._places]

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def ledger_id(self) -> LedgerId:
        """The segment's ledger."""
        return self.manifest.ledger_id

    def find(self, entry: EntryId) -> int | None:
        """Index of the row group with an entry; None: it is in none."""
        index = bisect_left(self._groups, entry, key=lambda group: group.last_entry)
        if index == len(self._groups) or self._groups[index].first_entry > entry:
            return None
        return index

    def group(self, index: int) -> RowGroup:
        """What the manifest says of a row group."""
        return self._groups[index]

    def place(self, index: int) -> tuple[int, int]:
        """(file, row group in it)."""
        return self._places[index]

    def list_points(self) -> list[tuple[EntryId, Totals]]:
        """The first entry of each row group, and the totals before it."""
        return [(group.first_entry, group.totals_before) for group in self._groups]


class Archive:
    """The archive of one cluster; for any number of threads.

    Args:
        cluster: the cluster's uuid.
    """

    def __init__(self, store: ColdStore, cluster: str) -> None:
        self._store = store
        self._cluster = cluster
        self._readers: OrderedDict[tuple[str, LedgerId], PartReader] = OrderedDict()
        self._lock = threading.Lock()

    def load_layout(self, segment: SegmentBase) -> ColdLayout:
        """The row groups of a CLOSED segment with a cold copy.

        Raises:
            ColdDamaged: the manifest is not there, or another one.
            ColdStoreDown: retry later.
        """
        copy = segment.cold_copy
        assert copy is not None and segment.totals is not None, segment
        name = f"e{segment.epoch} of log {segment.log_id}"
        try:
            manifest = find_manifest(
                self._store,
                self._cluster,
                segment.log_id,
                segment.epoch,
                attempt=copy.attempt,
                sha256=copy.manifest_sha256,
            )
        except NotThere as error:
            raise ColdDamaged(f"{name}: {error} is not there") from None
        except ManifestError as error:
            raise ColdDamaged(f"{name}: {error}") from error
        totals = segment.totals
        said = (manifest.start_seq_num, manifest.last_entry, manifest.totals.record_count)
        known = (segment.start_seq_num, segment.last_entry, totals.record_count)
        if said != known:
            raise ColdDamaged(f"{name}: the manifest tells of {said}, not of {known}")
        return ColdLayout(manifest)

    def read_group(self, layout: ColdLayout, index: int) -> Entries:
        """The entries of one row group, verified.

        Raises:
            ColdDamaged: its bytes or rows are others than were written, or the file is not there.
            ColdStoreDown: retry later.
        """
        part, group_index = layout.place(index)
        file = layout.manifest.files[part]
        path = layout.manifest.path_of(file)
        key = (path, layout.ledger_id)  # a shared file has a part for each of its segments
        with self._lock:
            reader = self._readers.pop(key, None)
        if reader is None:
            reader = PartReader(
                lambda offset, size_bytes: self._store.read(path, offset, size_bytes),
                file,
                ledger_id=layout.ledger_id,
                start_seq_num=layout.manifest.start_seq_num,
            )
        try:
            rebuilt = reader.read_entries(group_index)
            entries = [(entry.entry_id, entry.data) for entry in rebuilt]
        except NotThere:
            raise ColdDamaged(f"{path} is not there") from None
        except ColdDataError as error:
            raise ColdDamaged(f"{path}: {error}") from error
        with self._lock:
            self._readers[key] = reader
            while len(self._readers) > _READER_COUNT_MAX:
                self._readers.popitem(last=False)
        return entries
