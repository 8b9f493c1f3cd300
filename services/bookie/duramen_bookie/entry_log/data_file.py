"""A data file of the entry log: settled entries in the order of (ledger, entry), written once.

`DataFileWriter` writes one together with its index; `DataFile` reads runs of neighbouring entries
with one call; `scan` reads everything there is without an index, goes on behind damage, and says
what it could not read; `rebuild_index` makes the index anew from that.

Not here: which files are in force (`entry_log`), which entries are alive. Called by the entry log,
by settling and compaction, by the offline tools. Source: docs/protocol/entry-log.md "Data file" and
"Checkpoint".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.units import MIB
from duramen.wire.disk.entry_log_format import (
    NO_ENVELOPE,
    VERSION,
    VERSION_ENVELOPES,
    DataHeader,
    IndexRow,
    cut_entries,
    data_seed,
    encode_data_header,
    header_crc,
    identify_entry,
    parse_data_header,
)
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RECORD_MAGIC,
    JournalRecord,
    RecordHeader,
    RecordKind,
    align,
    encode_commit,
    encode_mark,
    parse_header,
)
from duramen.wire.disk.store_record import identity_in, take_record
from duramen.wire.entry import EntryError
from duramen.wire.flexible.envelope import ENVELOPE_BYTES_MAX, EnvelopeError, cut_content
from duramen_bookie.entry_log.appending import FileAppender
from duramen_bookie.entry_log.index_file import IndexWriter
from duramen_bookie.file_system import DiskFile, FileSystem, FileWindow

_PIECE_BYTES: Final = 1 * MIB
"""Records that are spelt and written at once."""


class FinishedFile(NamedTuple):
    """What a checkpoint has to know of a data file and its index."""

    file_id: int
    data_bytes: int
    index_crc: int
    row_count: int


class DataFileWriter:
    """Writes one data file and its index; neither counts before a checkpoint names them.

    Args:
        fs: the disk.
        path: of the data file; neither it nor its index is there yet.
        file_id: never used before by a file that a checkpoint named.
        incarnation: of the bookie.
        has_envelopes: whether there may be envelopes in it.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        file_id: int,
        incarnation: Incarnation,
        *,
        has_envelopes: bool = False,
    ) -> None:
        version = VERSION_ENVELOPES if has_envelopes else VERSION
        self.path = path
        self.file_id = file_id
        self._fs = fs
        self._seed = data_seed(incarnation)
        self._index = IndexWriter(fs, index_path(path), file_id, incarnation, version)
        try:
            self._file = FileAppender(fs, path)
        except OSError:
            self._index.close()
            fs.remove(index_path(path))
            raise
        header = encode_data_header(DataHeader(file_id, incarnation, version))
        self._file.append([header])
        self.size_bytes = BLOCK_BYTES
        """Length of the data file up to now."""
        self.row_count = 0
        """Entries up to now."""
        self._last_crc = header_crc(header)
        self._piece_count = 0
        self._records: list[JournalRecord] = []
        self._crcs: list[int] = []

    def put(self, record: JournalRecord) -> None:
        """Append an entry's record; records come in the order of (ledger, entry).

        Raises:
            EntryError: the body is not that entry, whole; nothing was appended.
            OSError: the disk is full or failed; the files are to be abandoned.
        """
        assert record.kind.holds_entry, record.kind
        crc = identify_entry(record.body, record.ledger_id, record.entry_id)
        if crc is None:
            raise EntryError(f"no entry {record.entry_id} of ledger {record.ledger_id}")
        self._records.append(record)
        self._crcs.append(crc)
        self.row_count += 1
        self.size_bytes += record.size_bytes
        if self.size_bytes - self._file.size_bytes >= _PIECE_BYTES:
            self._write()

    def finish(self) -> FinishedFile:
        """Data fsync → index fsync → directory fsync.

        Raises:
            OSError: the disk is full or failed; the files are to be abandoned.
        """
        self._write()
        offset = align(self.size_bytes, BLOCK_BYTES)
        end = encode_mark(
            RecordKind.END, file_id=self.file_id, offset=offset, commit=self.row_count,
            previous_crc=self._last_crc, seed=self._seed,
        )  # fmt: skip
        self._file.append([bytes(offset - self.size_bytes), end])
        self._file.finish()
        index_crc = self._index.finish(self._file.size_bytes)
        self._fs.fsync_directory(_directory_of(self.path))
        return FinishedFile(self.file_id, self._file.size_bytes, index_crc, self.row_count)

    def abandon(self) -> None:
        """Remove both files, whatever happened to them.

        Raises:
            OSError: they are still there, for the next start to remove.
        """
        self._file.close()
        self._index.close()
        self._fs.remove(self.path)
        self._fs.remove(index_path(self.path))

    def _write(self) -> None:
        """Encode what waits as one piece: nothing but speed depends on how records are grouped."""
        if not self._records:
            return
        self._piece_count += 1
        encoded = encode_commit(
            self._records, file_id=self.file_id, offset=self._file.size_bytes,
            commit=self._piece_count, previous_crc=self._last_crc, seed=self._seed,
        )  # fmt: skip
        self._file.append(encoded.buffers)
        self._last_crc = encoded.last_crc
        for record, location, crc in zip(self._records, encoded.locations, self._crcs, strict=True):
            row = IndexRow(record.ledger_id, record.entry_id, location[2], location[1], crc)
            self._index.add(row, record.envelope)
        self._records, self._crcs = [], []


class DataFile:
    """A finished data file, open for reading; on any thread.

    Args:
        has_envelopes: its index is of a version whose rows say where envelopes stand.
    """

    def __init__(
        self,
        file: DiskFile,
        file_id: int,
        incarnation: Incarnation,
        *,
        has_envelopes: bool = False,
    ) -> None:
        self._file = file
        self._has_envelopes = has_envelopes
        self._file_id = file_id
        self._seed = data_seed(incarnation)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def read_entries(self, rows: Sequence[IndexRow]) -> list[tuple[EntryId, memoryview]]:
        """The entries of rows that lie side by side, up to the first that is not intact.

        One read for all of them, of which the entries are views. If it fails they are read one by
        one, so that a bad sector costs what stands in it and nothing else.

        Args:
            rows: at least one.
        """
        first, last = rows[0], rows[-1]
        span = last.offset + last.length_bytes - first.offset
        try:
            return cut_entries(self._file.pread(span, first.offset), rows)
        except OSError:
            entries = []
            for row in rows:
                try:
                    data = self._file.pread(row.length_bytes, row.offset)
                except OSError:
                    break
                found = cut_entries(data, [row])
                if not found:
                    break
                entries += found
            return entries

    def read_records(
        self, rows: Sequence[IndexRow], *, is_direct: bool = False
    ) -> list[JournalRecord | None]:
        """The whole records of rows that lie side by side, None for each that is damaged; without
        its envelope one that has lost nothing else.

        Args:
            rows: at least one; their bodies are in memory at once.
            is_direct: read past the page cache.

        Raises:
            JournalFormatError: an intact record of a version that is not known here.
        """
        read = self._file.pread_direct if is_direct else self._file.pread
        base = rows[0].offset - HEADER_BYTES
        size = rows[-1].offset + rows[-1].length_bytes - base
        for more in self._list_rests(rows[-1]):
            with contextlib.suppress(OSError):
                data = read(size + more, base)
                return [self._cut_record(data, row.offset - base, row) for row in rows]
        if len(rows) == 1:
            return [None]
        return [self.read_records([row], is_direct=is_direct)[0] for row in rows]

    def read_content(self, row: IndexRow) -> bytes | None:
        """The content of the envelope that stands behind a row's entry; None: none can be read."""
        try:
            data = self._file.pread(ENVELOPE_BYTES_MAX, row.offset + row.length_bytes)
            return cut_content(data, row.ledger_id, row.entry_id, row.crc)
        except (OSError, EnvelopeError):
            return None

    def prefetch(self, length_bytes: int, offset: int) -> None:
        """Say that this range will be read soon."""
        self._file.prefetch(length_bytes, offset)

    def _list_rests(self, row: IndexRow) -> tuple[int, ...]:
        """How much to read behind an entry, for its envelope; nothing where that is in vain."""
        if self._has_envelopes and row.content_row != NO_ENVELOPE:
            return ENVELOPE_BYTES_MAX, 0
        return (0,)

    def _cut_record(self, data: bytes, start: int, row: IndexRow) -> JournalRecord | None:
        header = parse_header(
            data, start - HEADER_BYTES, file_id=self._file_id,
            offset=row.offset - HEADER_BYTES, seed=self._seed,
        )  # fmt: skip
        if header is None or not header.kind.holds_entry:
            return None
        if (header.ledger_id, header.entry_id, header.entry_bytes) != row[:3]:
            return None
        taken = take_record(header, data[start : start + header.body_bytes])
        if taken is None or identity_in(taken.record.body) != row.crc:
            return None
        return taken.record


# --- Without an index ----------------------------------------------------------------------------


class ScannedRecord(NamedTuple):
    """A record that verifies; without its envelope one that has lost nothing else."""

    header: RecordHeader
    body: bytes
    envelope: bytes = b""

    @property
    def has_lost_envelope(self) -> bool:
        """Whether there was one, which is damaged."""
        return self.header.envelope_bytes > len(self.envelope)


class DataDamage(NamedTuple):
    """Bytes that held something and cannot be read; `header` if at least that is intact.

    An end that is missing is damage of no bytes at the end of the file.
    """

    start: int
    end: int
    header: RecordHeader | None = None


def scan(
    file: DiskFile, file_id: int, incarnation: Incarnation
) -> Iterator[ScannedRecord | DataDamage]:
    """Everything that a data file holds, in its order.

    Raises:
        JournalFormatError: an intact record of a version that is not known here.
    """
    window = FileWindow(file)
    seed = data_seed(incarnation)
    first_block = window.slice(0, BLOCK_BYTES)
    last_crc = header_crc(first_block) if len(first_block) == BLOCK_BYTES else 0
    offset = damage_start = BLOCK_BYTES
    while True:
        header = _find_record(window, offset, file_id, seed)
        if header is None:
            yield DataDamage(min(offset, window.size_bytes), window.size_bytes)
            return
        # What names the last record as its own previous proves that nothing stood between.
        if header.offset > damage_start and header.previous_crc != last_crc:
            yield DataDamage(damage_start, header.offset)
        if header.kind is RecordKind.END:
            return
        body = window.slice(header.offset + HEADER_BYTES, header.body_bytes)
        taken = take_record(header, body) if header.kind.holds_entry else None
        if taken is not None:
            yield ScannedRecord(header, taken.record.body, taken.record.envelope)
        else:
            yield DataDamage(header.offset, min(header.end, window.size_bytes), header)
        last_crc = header.crc
        offset = damage_start = header.end


def _find_record(window: FileWindow, offset: int, file_id: int, seed: int) -> RecordHeader | None:
    """The first record at or behind an offset whose header verifies in its place."""
    while offset < window.size_bytes:
        data, index = window.show(offset, HEADER_BYTES)
        header = parse_header(data, index, file_id=file_id, offset=offset, seed=seed)
        if header is not None:
            return header
        offset = window.find(RECORD_MAGIC, offset + 8, window.size_bytes)
    return None


class RebuiltIndex(NamedTuple):
    """An index that was made anew; what is damaged in the data file is not in it."""

    finished: FinishedFile
    damages: list[DataDamage]


def rebuild_index(
    fs: FileSystem, path: str, file_id: int, incarnation: Incarnation
) -> RebuiltIndex:
    """Make the index of a data file from that file alone, and put it in place of the old one.

    From an intact data file it comes out as it was, byte for byte.

    Args:
        path: of the data file; its present index must not be written to, but may be open.

    Raises:
        JournalFormatError: an intact record of a version that is not known here.
        EntryLogFormatError: so is the file.
        OSError: the data file is missing, the disk is full or failed; the old index is in its
            place, or all of the new one.
    """
    new_path = f"{index_path(path)}.new"
    if fs.exists(new_path):
        fs.remove(new_path)
    file = fs.open(path)
    try:
        version = _find_version(file, file_id, incarnation)
        index = IndexWriter(fs, new_path, file_id, incarnation, version)
        try:
            damages = _index_records(file, index, file_id, incarnation)
            data_bytes = file.size_bytes()
            index_crc = index.finish(data_bytes)
        except Exception:
            index.close()
            fs.remove(new_path)
            raise
    finally:
        file.close()
    fs.rename(new_path, index_path(path))
    fs.fsync_directory(_directory_of(path))
    finished = FinishedFile(file_id, data_bytes, index_crc, index.row_count)
    return RebuiltIndex(finished, damages)


def _index_records(
    file: DiskFile, index: IndexWriter, file_id: int, incarnation: Incarnation
) -> list[DataDamage]:
    damages = []
    last: tuple[LedgerId, EntryId] | None = None
    for item in scan(file, file_id, incarnation):
        if isinstance(item, DataDamage):
            damages.append(item)
            continue
        header, body, envelope = item
        key = header.ledger_id, header.entry_id
        if last is not None and key <= last:
            # A write that was lost showed what an abandoned file of the same number had left there.
            damages.append(DataDamage(header.offset, header.end))
            continue
        last = key
        _, offset, length = header.location
        index.add(IndexRow(*key, length, offset, identity_in(body)), envelope)
    return damages


def _find_version(file: DiskFile, file_id: int, incarnation: Incarnation) -> int:
    """A data file's version: as its header says, or, if that is damaged, as its records show."""
    try:
        header = parse_data_header(file.pread(BLOCK_BYTES, 0))
    except OSError:
        header = None
    if header is not None:
        return header.version
    items = scan(file, file_id, incarnation)
    has_envelopes = any(isinstance(item, ScannedRecord) and item.envelope for item in items)
    return VERSION_ENVELOPES if has_envelopes else VERSION


def index_path(path: str) -> str:
    """Where the index of a data file is."""
    return path.removesuffix(".de") + ".idx"


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]
