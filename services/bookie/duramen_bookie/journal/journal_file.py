"""One journal file as it is read at start: its header, its records, what was never written in it.

In a fresh file what was never written is zeros. In a recycled one it is what stood there before, as
its sidecar tells block by block; without an intact sidecar nothing but zeros counts as untouched,
which errs to the safe side: a last commit then counts as durable, and damage in it as corruption.

Not here: what a gap or a bad body means (`file_pass`), which files there are (`replay`).
Source: docs/protocol/journal.md "Files", "Start" and "Recycling".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duramen.ids import Incarnation
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RECORD_MAGIC,
    FileHeader,
    Generation,
    RecordHeader,
    RecordKind,
    align,
    file_header_crc,
    parse_file_header,
    parse_generation,
    parse_header,
    seed_of,
)
from duramen.wire.disk.store_record import take_record
from duramen_bookie.file_system import DiskFile, FileSystem, FileWindow
from duramen_bookie.journal.findings import ADD_HEAD_BYTES, JournalMismatch, RecordSight
from duramen_bookie.journal.names import file_name, generation_name

_ZERO_BLOCK: Final = bytes(BLOCK_BYTES)


class JournalFile:
    """An open file, its header if that is intact, and its records.

    Args:
        file_id: from its name.
        disk: the file; is not closed here.
        incarnation: of the bookie.
        is_direct: read past the page cache.

    Raises:
        JournalMismatch: the file is of another incarnation.
        JournalFormatError: it is of a newer version.
    """

    def __init__(
        self, file_id: int, disk: DiskFile, incarnation: Incarnation, *, is_direct: bool
    ) -> None:
        self.file_id = file_id
        self.window = FileWindow(disk, is_direct=is_direct)
        self.size_bytes = self.window.size_bytes
        self.header: FileHeader | None = None
        self.header_crc: int | None = None
        self.commit_max = 0
        self._incarnation = incarnation
        self._seed = seed_of(incarnation)
        self._old: Generation | None = None
        self._read_header()

    @property
    def is_recovery(self) -> bool:
        """Whether an unclean start has opened it."""
        return self.header is not None and self.header.is_recovery

    @property
    def is_recycled(self) -> bool:
        """Whether old content stands behind what was written."""
        return self._old is not None or (self.header is not None and self.header.is_recycled)

    def read_generation(self, fs: FileSystem, directory: str) -> None:
        """Read the sidecar, if the file has one and it is intact.

        Raises:
            JournalFormatError: it is of a newer version.
        """
        path = f"{directory}/{generation_name(self.file_id)}"
        is_fresh = self.header is not None and not self.header.is_recycled
        if is_fresh or not fs.exists(path):
            return
        try:
            disk = fs.open(path)
            try:
                found = parse_generation(disk.pread(disk.size_bytes(), 0))
            finally:
                disk.close()
        except OSError:
            return
        if found and (found.file_id, found.incarnation) == (self.file_id, self._incarnation):
            self._old = found

    def records(self, start: int, limit: int) -> Iterator[RecordSight]:
        """Every header that verifies, with what became of its body.

        Raises:
            JournalFormatError: an intact record, or an envelope, of a version not known here.
        """
        offset = start
        show, file_id, seed = self.window.show, self.file_id, self._seed
        while offset + HEADER_BYTES <= limit:
            data, index = show(offset, HEADER_BYTES)
            header = parse_header(data, index, file_id=file_id, offset=offset, seed=seed)
            if header is None:
                offset = self._find_magic(offset + 8, limit)
                continue
            self.commit_max = max(self.commit_max, header.commit)
            length = HEADER_BYTES + header.body_bytes
            data, index = show(offset, length)
            body = data[index + HEADER_BYTES : index + length]
            yield _judge(header, body)
            offset = header.end

    def find_written_end(self, start: int, limit: int) -> int:
        """Offset behind the last byte of the range that may have been written in this life of the
        file; `start` if none was.

        The rest of the first block was padded with zeros by the commit before; every block behind
        is zeros or what the sidecar names.
        """
        end = self.window.find_last_byte(start, min(align(start, BLOCK_BYTES), limit))
        if self._old is None:
            return max(end, self.window.find_last_byte(start, limit))
        for offset in range(align(start, BLOCK_BYTES), limit, BLOCK_BYTES):
            block = self.window.slice(offset, min(BLOCK_BYTES, limit - offset))
            if block != _ZERO_BLOCK and not self._old.is_old(offset // BLOCK_BYTES, block):
                end = max(end, offset + len(block.rstrip(b"\0")))
        return end

    def _read_header(self) -> None:
        block = self.window.slice(0, BLOCK_BYTES)
        header = parse_file_header(block)
        if header is None or header.file_id != self.file_id:
            return
        if header.incarnation != self._incarnation:
            raise JournalMismatch(
                f"{file_name(self.file_id)} is of incarnation {header.incarnation}, "
                f"this bookie is {self._incarnation}"
            )
        self.header = header
        self.header_crc = file_header_crc(block)
        self.commit_max = header.first_commit - 1

    def _find_magic(self, start: int, limit: int) -> int:
        """First place from `start` on where a record of this file may begin; `limit` if none."""
        if self._old is None:
            return self.window.find(RECORD_MAGIC, start, limit)
        offset = start
        while offset < limit:
            stop = min(align(offset + 1, BLOCK_BYTES), limit)
            # A block of the old content is full of records, none of which is of this file.
            if offset % BLOCK_BYTES or not self._is_old_block(offset):
                found = self.window.find(RECORD_MAGIC, offset, stop)
                if found < stop:
                    return found
            offset = stop
        return limit

    def _is_old_block(self, offset: int) -> bool:
        assert self._old is not None
        return self._old.is_old(offset // BLOCK_BYTES, self.window.slice(offset, BLOCK_BYTES))


def _judge(header: RecordHeader, body: bytes) -> RecordSight:
    """What became of the body of a header that verifies."""
    head = body[:ADD_HEAD_BYTES] if header.kind.holds_entry else body
    if header.kind is not RecordKind.STORE:
        is_intact = header.is_body_intact(body)
        return RecordSight(header, head, is_intact, is_intact)
    taken = take_record(header, body)
    if taken is None:
        return RecordSight(header, head, False, False)
    return RecordSight(header, head, taken.is_whole, True, taken.content)
