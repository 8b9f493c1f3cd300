"""One entry log file that is open: data, index, how much of it is alive, and who is reading it.

Whoever reads pins the file first; a retired file closes when nobody has it pinned. The scrub reads
files in units of some MiB and compaction goes through their records ledger by ledger, both here.

Not here: which files are in force (`entry_log`), bytes and rows (`data_file`, `index_file`).
Called by the entry log and by the bookie's upkeep. Source: docs/protocol/entry-log.md,
docs/bookie.md "Space".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.units import MIB
from duramen.wire.disk.checkpoint_format import EntryLogFileRef
from duramen.wire.disk.entry_log_format import NO_ENVELOPE, ROWS_PER_BLOCK, IndexRow
from duramen.wire.disk.journal_format import JournalRecord
from duramen_bookie.entry_log.data_file import DataFile, index_path
from duramen_bookie.entry_log.index_file import IndexDamaged, IndexFile
from duramen_bookie.file_system import FileSystem

PART_BYTES: Final = 4 * MIB
"""What is read at once by whoever goes through a file; one entry may be larger."""


_ROW_COUNT: Final = 8 * ROWS_PER_BLOCK
"""Rows that are looked at together: with the most frequent entries, of some KiB, some MiB."""


class EntryLogFile:
    """An open file.

    Attributes:
        ref: what the checkpoint says of it.
        live_bytes: of its records that belong to ledgers that were not dropped.
        is_index_damaged: a lookup failed, or the scrub found damage: the index is to be made anew.
    """

    def __init__(self, path: str, ref: EntryLogFileRef, index: IndexFile, data: DataFile) -> None:
        self.path = path
        self.ref = ref
        self.index = index
        self.data = data
        self.live_bytes = 0
        self.is_index_damaged = False
        self._lock = threading.Lock()
        self._pin_count = 0
        self._is_retired = False

    @classmethod
    def open(
        cls, fs: FileSystem, path: str, ref: EntryLogFileRef, incarnation: Incarnation
    ) -> EntryLogFile:
        """Open data and index; errors as `EntryLog.open_file`."""
        disk = fs.open(path)
        try:
            index = IndexFile.open(fs, index_path(path), incarnation)
        except BaseException:
            disk.close()
            raise
        data = DataFile(disk, ref.file_id, incarnation, has_envelopes=index.has_envelopes)
        header = index.header
        found = EntryLogFileRef(header.file_id, ref.directory_index, header.data_bytes, index.crc)
        if found != ref:
            index.close()
            data.close()
            raise IndexDamaged(f"{path}: its index is another one: {found}, not {ref}")
        return cls(path, ref, index, data)

    @property
    def file_id(self) -> int:
        """The file's number."""
        return self.ref.file_id

    @property
    def row_count(self) -> int:
        """Entries in it, alive or not."""
        return self.index.header.row_count

    def pin(self) -> bool:
        """Keep it open until `unpin`; False if it is retired already."""
        with self._lock:
            self._pin_count += not self._is_retired
            return not self._is_retired

    def unpin(self) -> None:
        """What was pinned is not read any more."""
        with self._lock:
            self._pin_count -= 1
            is_last = self._is_retired and not self._pin_count
        if is_last:
            self._close()

    def retire(self) -> None:
        """Close it as soon as nobody reads it; to be called once."""
        with self._lock:
            assert not self._is_retired, self.path
            self._is_retired = True
            is_last = not self._pin_count
        if is_last:
            self._close()

    def list_records(
        self, first_row: int, end_row: int, *, is_direct: bool = False
    ) -> Iterator[tuple[IndexRow, JournalRecord | None]]:
        """Rows with their records, None for each that is damaged; the file is pinned meanwhile.

        Blocks for the disk; some MiB are in memory at once.

        Args:
            first_row, end_row: row numbers, `end_row` exclusive, as a `LedgerRow` has them.
            is_direct: read the records past the page cache.

        Raises:
            IndexDamaged: from there on it is not known what the file holds.
            JournalFormatError: an intact record of a version that is not known here.
        """
        for first in range(first_row, end_row, _ROW_COUNT):
            rows = self.index.list_rows(first, min(end_row, first + _ROW_COUNT))
            for part in _split(rows):
                records = self.data.read_records(part, is_direct=is_direct)
                yield from zip(part, records, strict=True)

    def list_contents(self, rows: Sequence[IndexRow]) -> Iterator[tuple[EntryId, bytes]]:
        """Entries with the contents of their envelopes, empty for each without one.

        Reads one envelope for neighbours with one content; where that is damaged each one's own.

        Raises:
            IndexDamaged: the row that a content stands beside cannot be read.
        """
        number, content = NO_ENVELOPE, b""
        for row in rows:
            if not self.index.has_envelopes or row.content_row == NO_ENVELOPE:
                yield row.entry_id, b""
                continue
            if row.content_row != number or not content:
                number = row.content_row
                [beside] = self.index.list_rows(number, number + 1)
                content = self.data.read_content(beside) or b""
            yield row.entry_id, content or self.data.read_content(row) or b""

    def scrub_units(
        self, is_newest: Callable[[IndexRow], bool] = lambda _: True
    ) -> Iterator[IndexPart | RecordPart]:
        """Everything in it, in parts that are verified one by one; does not block.

        Args:
            is_newest: whether a damaged row is the one that would be read; may block.
        """
        yield IndexPart(self, self.index.header.index_bytes)
        mean_bytes = max(1, self.ref.data_bytes // max(1, self.row_count))
        step = max(1, PART_BYTES // mean_bytes)
        for first in range(0, self.row_count, step):
            end = min(first + step, self.row_count)
            yield RecordPart(self, first, end, (end - first) * mean_bytes, is_newest)

    def _close(self) -> None:
        self.index.close()
        self.data.close()


class IndexPart(NamedTuple):
    """The index of a file, for the scrub; `size_bytes` is what verifying reads."""

    file: EntryLogFile
    size_bytes: int

    def verify(self) -> Sequence[tuple[LedgerId, EntryId]]:
        """Note in the file whether its index is damaged; no entry is. Blocks for the disk."""
        if self.file.pin():
            try:
                self.file.index.verify()
            except IndexDamaged:
                self.file.is_index_damaged = True
            finally:
                self.file.unpin()
        return ()


class RecordPart(NamedTuple):
    """Some records of a file, for the scrub; `size_bytes` is what verifying reads, about."""

    file: EntryLogFile
    first_row: int
    end_row: int
    size_bytes: int
    is_newest: Callable[[IndexRow], bool]

    def verify(self) -> Sequence[tuple[LedgerId, EntryId]]:
        """The entries that are damaged and in no newer file; blocks, past the page cache."""
        damaged: list[tuple[LedgerId, EntryId]] = []
        if not self.file.pin():
            return damaged
        try:
            records = self.file.list_records(self.first_row, self.end_row, is_direct=True)
            damaged += [
                (row.ledger_id, row.entry_id)
                for row, record in records
                if record is None and self.is_newest(row)
            ]
        except IndexDamaged:
            self.file.is_index_damaged = True
        finally:
            self.file.unpin()
        return damaged


def _split(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Rows that lie side by side, in parts that are read at once."""
    start = size = 0
    for index, row in enumerate(rows):
        size += row.length_bytes
        if size >= PART_BYTES:
            yield rows[start : index + 1]
            start, size = index + 1, 0
    if start < len(rows):
        yield rows[start:]
