"""The index of an entry log file: rows by (ledger, entry), found by bisection over a map of the
file.

Opening reads the header and the directory of ledgers, not the rows, and no row ever becomes an
object of its own except those that are asked for. A block is verified when it is first touched, and
then it is read, not mapped: a sector that fails is an error to be caught there, whereas behind a
map it would end the process, at every start anew.

What is damaged raises `IndexDamaged`; it proves nothing about any entry. An index can always be
made anew from its data file (`data_file.rebuild_index`). Called by the entry log.
Source: docs/protocol/entry-log.md "Index".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import google_crc32c

from duramen.ids import NOTHING, EntryId, Incarnation, LedgerId
from duramen.wire.disk.entry_log_format import (
    ROW_BYTES,
    ROW_COUNT_MAX,
    ROWS_PER_BLOCK,
    VERSION,
    VERSION_ENVELOPES,
    IndexHeader,
    IndexLedgerRow,
    IndexRow,
    block_crc,
    count_blocks,
    encode_block,
    encode_index_header,
    encode_ledger_row,
    encode_row,
    header_crc,
    index_seed,
    is_block_intact,
    parse_index_header,
    row_position,
    unpack_entry_id,
    unpack_ledger_id,
    unpack_ledger_rows,
    unpack_rows,
)
from duramen.wire.disk.journal_format import BLOCK_BYTES, record_bytes
from duramen.wire.flexible.envelope import ENVELOPE_BYTES_MAX, content_of
from duramen_bookie.entry_log.appending import FileAppender
from duramen_bookie.entry_log.contents import ContentRows
from duramen_bookie.file_system import DiskFile, FileSystem

_ROWS_BYTES: Final = ROWS_PER_BLOCK * ROW_BYTES
_CHECK_BLOCK_COUNT: Final = 256
"""Blocks that are verified with one read: 1 MiB."""


class IndexDamaged(Exception):
    """The index cannot say: every answer that it was to give is UNKNOWN until it is made anew."""


class IndexWriter:
    """Writes an index while its data file is written; memory does not grow with the rows.

    Args:
        fs: the disk.
        path: of the index; nothing is there yet.
        file_id: of the data file.
        incarnation: of the bookie.
        version: the data file's.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        file_id: int,
        incarnation: Incarnation,
        version: int = VERSION,
    ) -> None:
        self.row_count = 0
        self._file_id = file_id
        self._incarnation = incarnation
        self._version = version
        self._contents = ContentRows() if version >= VERSION_ENVELOPES else None
        self._seed = index_seed(incarnation, file_id)
        self._rows = bytearray()
        self._directory = bytearray()
        self._ledger_id = LedgerId(-1)
        self._first_row = 0
        self._first_entry = self._last_entry = NOTHING
        self._record_bytes = 0
        self._block_count = 1
        self._blocks_crc = int(google_crc32c.value(b""))
        self._file = FileAppender(fs, path)
        self._file.append([bytes(BLOCK_BYTES)])

    def add(self, row: IndexRow, envelope: bytes = b"") -> None:
        """Append a row; rows come in the order of (ledger, entry).

        Args:
            row: its `content_row` is found here.
            envelope: what stands behind its entry.

        Raises:
            OSError: the disk is full or failed.
        """
        ledger_id, entry_id, length, *_ = row
        assert self._contents is not None or not envelope, "version 1 has none"
        if self._contents is not None:
            place = self._contents.place(ledger_id, content_of(envelope))
            row = row._replace(content_row=place)
        if ledger_id != self._ledger_id:
            assert ledger_id > self._ledger_id, (row, self._ledger_id)
            self._end_ledger()
            self._ledger_id, self._first_entry = ledger_id, entry_id
        else:
            assert entry_id > self._last_entry, (row, self._last_entry)
        assert self.row_count < ROW_COUNT_MAX, "a file has 2^32 − 1 rows at most"
        self._last_entry = entry_id
        self._record_bytes += record_bytes(length + len(envelope))
        self.row_count += 1
        self._rows += encode_row(row)
        if len(self._rows) == _ROWS_BYTES:
            self._write_block(bytes(self._rows))
            self._rows.clear()

    def finish(self, data_bytes: int) -> int:
        """Write what is left, header last, and make the file durable.

        Args:
            data_bytes: length of the data file, which is durable already.

        Returns:
            The header's CRC, which stands for all of the index.

        Raises:
            OSError: the disk is full or failed.
        """
        self._end_ledger()
        if self._rows:
            self._write_block(bytes(self._rows))
        for start in range(0, len(self._directory), _ROWS_BYTES):
            self._write_block(bytes(self._directory[start : start + _ROWS_BYTES]))
        block = encode_index_header(
            IndexHeader(
                self._file_id, self._incarnation, data_bytes, self.row_count,
                len(self._directory) // ROW_BYTES, self._blocks_crc, self._version,
            )
        )  # fmt: skip
        self._file.finish(block)
        return header_crc(block)

    def close(self) -> None:
        """Close the file as it is; it is to be removed, unless `finish` was called."""
        self._file.close()

    def _end_ledger(self) -> None:
        count = self.row_count - self._first_row
        if count:
            self._directory += encode_ledger_row(
                IndexLedgerRow(
                    self._ledger_id, self._first_row, count, self._record_bytes,
                    self._first_entry, self._last_entry,
                )
            )  # fmt: skip
        self._first_row = self.row_count
        self._record_bytes = 0

    def _write_block(self, rows: bytes) -> None:
        block = encode_block(rows, self._block_count, self._seed)
        self._block_count += 1
        self._blocks_crc = google_crc32c.extend(self._blocks_crc, block_crc(block))
        self._file.append([block])


class IndexFile:
    """A finished index, open for reading; on any thread.

    Invariants:
        1. Nothing is taken from a block that was not verified. 2. Rows that `run` gives lie side
        by side in the data file, with nothing but their envelopes between.
    """

    def __init__(
        self, file: DiskFile, view: memoryview, header: IndexHeader, header_block: bytes
    ) -> None:
        self.header = header
        self.crc = header_crc(header_block)
        """The header's CRC, which stands for all of the index."""
        self.has_envelopes = header.version >= VERSION_ENVELOPES
        """Whether `content_row` of its rows says anything."""
        self._gap_bytes_max = ENVELOPE_BYTES_MAX if self.has_envelopes else 0
        self._file = file
        self._view = view
        self._seed = index_seed(header.incarnation, header.file_id)
        self._directory_block = 1 + header.row_block_count
        self._is_checked = bytearray(header.index_bytes // BLOCK_BYTES)
        self._is_checked[0] = 1
        self._first_ledgers = array("Q")
        """Of each block of the directory."""

    @classmethod
    def open(cls, fs: FileSystem, path: str, incarnation: Incarnation) -> IndexFile:
        """Open an index and read its directory.

        Raises:
            IndexDamaged: it is missing, cut short, another bookie's, or header or directory are
                damaged.
            EntryLogFormatError: intact, but of a version that is not known here.
            OSError: the system refused to open or map it.
        """
        try:
            file = fs.open(path)
        except FileNotFoundError:
            raise IndexDamaged(f"{path}: it is missing") from None
        try:
            block = _read(file, 0, BLOCK_BYTES)
            header = parse_index_header(block)
            if header is None or header.incarnation != incarnation:
                raise IndexDamaged(f"{path}: no header")
            if file.size_bytes() != header.index_bytes:
                raise IndexDamaged(f"{path}: {file.size_bytes()} bytes, not {header.index_bytes}")
            view = fs.map(path)
        except BaseException:
            file.close()
            raise
        index = cls(file, view, header, block)
        try:
            index._check(index._directory_block, len(index._is_checked))
        except IndexDamaged:
            index.close()
            raise
        for number in range(index._directory_block, len(index._is_checked)):
            index._first_ledgers.append(unpack_ledger_id(view, number * BLOCK_BYTES, 0))
        return index

    def close(self) -> None:
        """Give file and map back."""
        self._view.release()
        self._file.close()

    def ledgers(self) -> Iterator[IndexLedgerRow]:
        """Every ledger, ascending."""
        for position, count in self._parts(self._directory_block, 0, self.header.ledger_count):
            yield from unpack_ledger_rows(self._view, position, count)

    def find_ledger(self, ledger_id: LedgerId) -> IndexLedgerRow | None:
        """A ledger's row of the directory, None if nothing of it is in this file."""
        part = max(0, bisect_right(self._first_ledgers, ledger_id) - 1)
        start = row_position(self._directory_block + part, 0)
        count = min(ROWS_PER_BLOCK, self.header.ledger_count - part * ROWS_PER_BLOCK)
        view = self._view
        found = bisect_left(
            range(count), int(ledger_id), key=lambda row: unpack_ledger_id(view, start, row)
        )
        if found >= count:
            return None
        [ledger] = unpack_ledger_rows(view, start + found * ROW_BYTES, 1)
        return ledger if ledger.ledger_id == ledger_id else None

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        """The row of an entry, None if it is not in this file.

        Raises:
            IndexDamaged: the block where it would stand is damaged.
        """
        rows = self.run(ledger_id, entry_id, 1, 0)
        return rows[0] if rows else None

    def next_entry(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryId | None:
        """The least entry of a ledger in this file that is not below `entry_id`.

        Raises:
            IndexDamaged: as `find`.
        """
        ledger = self.find_ledger(ledger_id)
        if ledger is None or entry_id > ledger.last_entry:
            return None
        return self._entry_at(self._seek(ledger, entry_id))

    def run(
        self, ledger_id: LedgerId, first: EntryId, count: int, bytes_max: int
    ) -> list[IndexRow]:
        """Rows of first, first + 1, …: without a gap, up to `count`, one at least, while they fit.

        Args:
            bytes_max: of the bodies together.

        Returns:
            No row if the entry `first` is not in this file.

        Raises:
            IndexDamaged: as `find`, and no row was found before.
        """
        ledger = self.find_ledger(ledger_id)
        if ledger is None or not ledger.first_entry <= first <= ledger.last_entry:
            return []
        start = self._seek(ledger, first)
        end = min(ledger.first_row + ledger.row_count, start + count)
        rows: list[IndexRow] = []
        entry_id, offset = int(first), 0
        try:
            for position, part_count in self._parts(1, start, end):
                for row in unpack_rows(self._view, position, part_count):
                    found_ledger, found_entry, length, at, *_ = row
                    bytes_max -= length
                    if found_entry != entry_id or (bytes_max < 0 and rows):
                        return rows
                    is_beside = 0 <= at - offset <= self._gap_bytes_max
                    if found_ledger != ledger_id or (rows and not is_beside):
                        raise IndexDamaged(f"file {self.header.file_id}: {row} does not belong")
                    rows.append(row)
                    entry_id += 1
                    offset = at + record_bytes(length)
        except IndexDamaged:
            if not rows:
                raise
        return rows

    def list_rows(self, first: int, end: int) -> list[IndexRow]:
        """Rows by their numbers, for whoever goes through a file.

        Raises:
            IndexDamaged: one of their blocks is damaged.
        """
        assert 0 <= first <= end <= self.header.row_count, (first, end, self.header)
        rows: list[IndexRow] = []
        for position, count in self._parts(1, first, end):
            rows += unpack_rows(self._view, position, count)
        return rows

    def verify(self) -> None:
        """Read all of it past the page cache and compare it with its checksums.

        Raises:
            IndexDamaged: something is damaged.
        """
        block = _read(self._file, 0, BLOCK_BYTES, is_direct=True)
        if parse_index_header(block) != self.header:
            raise IndexDamaged(f"file {self.header.file_id}: no header")
        total = int(google_crc32c.value(b""))
        for first in range(1, len(self._is_checked), _CHECK_BLOCK_COUNT):
            end = min(first + _CHECK_BLOCK_COUNT, len(self._is_checked))
            for block in self._read_blocks(first, end, is_direct=True):
                total = google_crc32c.extend(total, block_crc(block))
        if total != self.header.blocks_crc:
            raise IndexDamaged(f"file {self.header.file_id}: its blocks are not of one index")

    # --- Blocks ----------------------------------------------------------------------------------

    def _seek(self, ledger: IndexLedgerRow, entry_id: EntryId) -> int:
        """Number of the first row of a ledger whose entry is not below `entry_id`."""
        first, count = ledger.first_row, ledger.row_count
        if entry_id <= ledger.first_entry:
            return first
        if ledger.last_entry - ledger.first_entry == count - 1:
            return first + entry_id - ledger.first_entry
        return bisect_left(range(first + count), entry_id, lo=first, key=self._entry_at)

    def _entry_at(self, row: int) -> EntryId:
        block = 1 + row // ROWS_PER_BLOCK
        if not self._is_checked[block]:
            self._check(block, block + 1)
        return EntryId(unpack_entry_id(self._view, row_position(1, row)))

    def _parts(self, first_block: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(position, count) of the rows first … end − 1 of a table, block by block, verified."""
        while first < end:
            number = first_block + first // ROWS_PER_BLOCK
            if not self._is_checked[number]:
                self._check_ahead(number, first_block + count_blocks(end))
            count = min(end - first, ROWS_PER_BLOCK - first % ROWS_PER_BLOCK)
            yield row_position(first_block, first), count
            first += count

    def _check_ahead(self, number: int, end: int) -> None:
        """Verify a block, and those behind it with the same read if they are intact too."""
        try:
            self._check(number, min(end, number + _CHECK_BLOCK_COUNT))
        except IndexDamaged:
            if not self._is_checked[number]:
                self._check(number, number + 1)

    def _check(self, first: int, end: int) -> None:
        """Verify blocks first … end − 1."""
        while first < end:
            for _ in self._read_blocks(first, min(end, first + _CHECK_BLOCK_COUNT)):
                self._is_checked[first] = 1
                first += 1

    def _read_blocks(self, first: int, end: int, *, is_direct: bool = False) -> Iterator[bytes]:
        size = (end - first) * BLOCK_BYTES
        data = _read(self._file, first * BLOCK_BYTES, size, is_direct=is_direct)
        for number in range(first, end):
            start = (number - first) * BLOCK_BYTES
            block = data[start : start + BLOCK_BYTES]
            if not is_block_intact(block, number, self._row_count_of(number), self._seed):
                raise IndexDamaged(f"file {self.header.file_id}: block {number} of its index")
            yield block

    def _row_count_of(self, number: int) -> int:
        """Rows that a block must have: all are full but the last one of each table."""
        before = number - 1
        if number < self._directory_block:
            total = self.header.row_count
        else:
            total = self.header.ledger_count
            before = number - self._directory_block
        return min(ROWS_PER_BLOCK, total - before * ROWS_PER_BLOCK)


def _read(file: DiskFile, offset: int, length_bytes: int, *, is_direct: bool = False) -> bytes:
    try:
        read = file.pread_direct if is_direct else file.pread
        data = read(length_bytes, offset)
    except OSError as error:
        raise IndexDamaged(f"block {offset // BLOCK_BYTES} of an index: {error}") from error
    if len(data) != length_bytes:
        raise IndexDamaged(f"an index ends before {offset + length_bytes}")
    return data
