"""Reads row groups of an archived file: nothing is given out whose SHA-256 is not the manifest's.

The footer is read once, each row group in one ranged read, so a reader of a range pays for its
range only. What is damaged, short or exchanged ends in `ColdDataError`.

Not here: caching, read-ahead and stores (`duramen.runtime.cold`, whose `read` is handed in). Called
by cold reads, the data source, verify, restore, compaction and the archive job's read-back.
Source: docs/protocol/archive.md "Files".
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from duramen.ids import EntryId, LedgerId
from duramen.wire.cold.manifest import FilePart, RowGroup
from duramen.wire.cold.rebuild import ColdDataError, RebuiltEntry, rebuild_entries
from duramen.wire.cold.schema import SCHEMA, SCHEMA_KEY, SCHEMA_VERSION

Read = Callable[[int, int], bytes]
"""(offset, size in bytes) → these bytes of the file; fewer where the file ends."""


class PartReader:
    """One file of a manifest. Not thread-safe: one a thread.

    Args:
        read: of the file; its errors pass through.
        part: what the manifest says of the file.
    """

    def __init__(
        self, read: Read, part: FilePart, *, ledger_id: LedgerId, start_seq_num: int
    ) -> None:
        self._read = read
        self._part = part
        self._ledger_id = ledger_id
        self._start_seq_num = start_seq_num
        self._metadata: pq.FileMetaData | None = None

    @property
    def part(self) -> FilePart:
        """What the manifest says of the file."""
        return self._part

    def find_groups(self, first: EntryId, last: EntryId) -> range:
        """Indices of the row groups that may hold entries from `first` to `last`."""
        groups = self._part.row_groups
        begin = bisect_left(groups, first, key=lambda group: group.last_entry)
        end = begin
        while end < len(groups) and groups[end].first_entry <= last:
            end += 1
        return range(begin, end)

    def read_table(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of one row group, in their order; all columns, or those that are named.

        Raises:
            ColdDataError: the bytes are not those that were written, or are no such rows.
        """
        group = self._part.row_groups[index]
        data = self._read_section(group.offset, group.size_bytes, group.sha256)
        return self.decode_table(index, data, columns)

    def decode_table(
        self, index: int, data: bytes, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Rows of a row group whose bytes were read and checked already (`check_group`)."""
        metadata = self._load_metadata()
        group = self._part.row_groups[index]
        section = _SectionFile(data, offset=group.offset, file_bytes=self._part.size_bytes)
        try:
            opened = pq.ParquetFile(
                pa.PythonFile(section, mode="r"), metadata=metadata, pre_buffer=False
            )
            names = None if columns is None else list(columns)
            at = self._part.first_group + index
            table = opened.read_row_group(at, columns=names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ColdDataError(f"{self._part.name}: row group {index}: {error}") from error
        if table.num_rows != group.row_count:
            raise ColdDataError(f"{self._part.name}: row group {index} has other rows")
        return table

    def read_footer(self) -> None:
        """Read and check the footer, unless that was done.

        Raises:
            ColdDataError: it is not what was written, or of another schema or other row groups.
        """
        self._load_metadata()

    def check_group(self, index: int, data: bytes) -> None:
        """Compare bytes of a row group with the manifest.

        Raises:
            ColdDataError: they are others.
        """
        group = self._part.row_groups[index]
        self._check(data, group.offset, group.size_bytes, group.sha256)

    def read_entries(self, index: int) -> Iterator[RebuiltEntry]:
        """Entries of one row group, ascending.

        Raises:
            ColdDataError: see `read_table`, or rows that are not the entries of the manifest.
        """
        return self.rebuild(index, self.read_table(index))

    def rebuild(self, index: int, table: pa.Table) -> Iterator[RebuiltEntry]:
        """Entries of a row group whose rows were read already.

        Raises:
            ColdDataError: rows that are not the entries of the manifest.
        """
        group = self._part.row_groups[index]
        last: RebuiltEntry | None = None
        count = 0
        for entry in rebuild_entries(
            table,
            ledger_id=self._ledger_id,
            totals_before=group.totals_before,
            start_seq_num=self._start_seq_num,
        ):
            if last is None and entry.entry_id != group.first_entry:
                raise ColdDataError(f"{self._part.name}: row group {index} begins elsewhere")
            last = entry
            count += 1
            yield entry
        assert last is not None
        if _ends(group) != (last.entry_id, count, last.totals):
            raise ColdDataError(f"{self._part.name}: row group {index} ends elsewhere")

    def _load_metadata(self) -> pq.FileMetaData:
        """What the footer says, read once; it names the schema's version, which is checked."""
        if self._metadata is not None:
            return self._metadata
        part = self._part
        size_bytes = part.size_bytes - part.footer_offset
        footer = self._read_section(part.footer_offset, size_bytes, part.footer_sha256)
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowException, OSError) as error:
            raise ColdDataError(f"{part.name}: the footer cannot be read: {error}") from error
        version = (metadata.metadata or {}).get(SCHEMA_KEY, b"").decode("latin-1")
        if version != str(SCHEMA_VERSION):
            raise ColdDataError(f"{part.name}: schema {version!r}, not {SCHEMA_VERSION}")
        if metadata.schema.to_arrow_schema().names != SCHEMA.names:
            raise ColdDataError(f"{part.name}: other columns than those of its schema")
        if metadata.num_row_groups != part.group_count:
            raise ColdDataError(f"{part.name}: other row groups than the manifest says")
        self._metadata = metadata
        return metadata

    def _read_section(self, offset: int, size_bytes: int, sha256: str) -> bytes:
        data = self._read(offset, size_bytes)
        self._check(data, offset, size_bytes, sha256)
        return data

    def _check(self, data: bytes, offset: int, size_bytes: int, sha256: str) -> None:
        if len(data) != size_bytes:
            raise ColdDataError(
                f"{self._part.name}: {len(data)} bytes at {offset}, not {size_bytes}"
            )
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ColdDataError(f"{self._part.name}: other bytes at {offset} than were written")


def _ends(group: RowGroup) -> tuple[object, ...]:
    return group.last_entry, group.entry_count, group.totals_after


class _SectionFile(io.RawIOBase):
    """A file of which one section is known; the rest is never to be asked for."""

    def __init__(self, data: bytes, *, offset: int, file_bytes: int) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._offset = offset
        self._file_bytes = file_bytes
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As files do."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file_bytes}
        self._at = bases[whence] + offset
        return self._at

    def tell(self) -> int:
        """As files do."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Bytes of the section.

        Raises:
            OSError: they are not in it: the footer points elsewhere.
        """
        left = max(0, self._file_bytes - self._at)
        wanted = left if size < 0 else min(size, left)
        begin = self._at - self._offset
        if begin < 0 or begin + wanted > len(self._data):
            raise OSError(f"{wanted} bytes at {self._at} are outside of the row group")
        self._at += wanted
        return bytes(self._data[begin : begin + wanted])

    def readable(self) -> bool:
        """As files do."""
        return True

    def seekable(self) -> bool:
        """As files do."""
        return True
