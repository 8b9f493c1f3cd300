"""Writing the bookie's journal: files, commits and marks, each on the disk when its call returns.

`JournalWriter` is the logic on the disk port, without threads of its own or a clock; a simulated
disk can run it. After any failed write or sync the journal is poisoned: nothing is tried again and
nothing acknowledged any more, and the process must end. A full disk is different: it costs the next
file, never what is in this one.

Not here: who waits for a commit (`group_commit`), where files come from (`recycling`), reading at
start (`replay.open_journal` makes the writer), what records mean (the bookie's state).
Source: docs/protocol/journal.md.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import Final

from duramen.ids import Incarnation
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    FileHeader,
    JournalRecord,
    Location,
    RecordKind,
    align,
    encode_commit,
    encode_file_header,
    encode_mark,
    file_header_crc,
    seed_of,
)
from duramen_bookie.file_system import DiskFile
from duramen_bookie.journal.recycling import FileSupply, NoSpaceError

_RESERVE_RATIO: Final = 8
"""When there will be no next file, one part in eight of this one is for seals and recovery."""


class JournalPoisoned(Exception):
    """A write or sync failed: what is on the disk is unknown until the next start reads it."""


class JournalWriter:
    """Appends commits to journal files; every method has reached the disk when it returns.

    All of it belongs to one thread, but for `prepare_next`, `recycle` and `read`, which may be
    called on others, and the properties, which may be looked at from anywhere.

    Args:
        supply: gives the files, and takes those that are retired.
        incarnation: of the bookie; stands in every file and in every CRC.
        files: the files that replay found, for reads.
        now_unix_us: wall clock, for the files' creation time only.

    Invariants:
        1. A commit lies in one file. 2. Commit numbers rise by one in a file and never repeat.
        3. Only blocks that hold nothing durable but of earlier commits of the same file are
        rewritten, and never a mark's. 4. After an error nothing is written any more. 5. Behind the
        last commit its block holds zeros; behind that block nothing was written in this file.
    """

    def __init__(
        self,
        supply: FileSupply,
        incarnation: Incarnation,
        *,
        files: dict[int, DiskFile],
        now_unix_us: Callable[[], int],
    ) -> None:
        self.files = files
        self.supply = supply
        self.file_id = 0
        self.offset = 0
        self.next_commit = 1
        self.commit_count = 0
        self.record_count = 0
        self.written_bytes = 0
        self.owes_mark = False
        """Whether a commit is not yet covered by a mark."""
        self.is_poisoned = False
        self._incarnation = incarnation
        self._seed = seed_of(incarnation)
        self._now_unix_us = now_unix_us
        self._size_bytes = 0
        self._previous_crc = 0
        self._has_end = False
        self._has_records = False

    # --- What there is ---------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """Bytes of records that the next commit may have without a new file."""
        # The last two blocks stay free: a mark and the end mark always have their place.
        return max(0, self._size_bytes - 2 * BLOCK_BYTES - self.offset)

    @property
    def reserve_bytes(self) -> int:
        """How much of the room is for seals and recovery while there is no space for more."""
        return self._size_bytes // _RESERVE_RATIO

    @property
    def is_out_of_space(self) -> bool:
        """Whether this file is the last one for now: the disk was full when another was tried."""
        return self.supply.is_out_of_space and self.supply.next is None

    @property
    def wants_next(self) -> bool:
        """Whether it is time for `prepare_next`: it costs no space, or this file is half full, or
        another one was asked for in vain."""
        supply = self.supply
        is_time = self._is_half_full or supply.spare_count > 0
        return supply.next is None and (is_time or supply.is_out_of_space)

    @property
    def _is_half_full(self) -> bool:
        return 2 * self.offset > self._size_bytes

    @property
    def sealed_file_ids(self) -> list[int]:
        """Files that are not written any more, ascending."""
        return sorted(file_id for file_id in list(self.files) if file_id != self.file_id)

    # --- Files -----------------------------------------------------------------------------------

    def begin_file(
        self,
        *,
        first_commit: int,
        previous_file_id: int,
        previous_crc: int,
        is_recovery: bool = False,
        commit_bytes_min: int = 0,
    ) -> None:
        """Go on in a new file: its header reaches the disk, then it is used.

        Args:
            first_commit: number of the next commit, never used before.
            previous_file_id: the file written before, all of it durable unless `is_recovery`.
            previous_crc: CRC of the last record in it.
            is_recovery: opened at an unclean start; on a full disk it may be a small one.
            commit_bytes_min: the file has room for a commit of that size at least.

        Raises:
            NoSpaceError: there is no file and no room for one; nothing has changed.
            JournalPoisoned: the disk failed.
        """
        size = align(commit_bytes_min, BLOCK_BYTES) + 3 * BLOCK_BYTES
        self._report_growth()
        with _Poisoning(self):
            ready = self.supply.take(size, may_be_small=is_recovery)
        header = FileHeader(
            ready.file_id, self._incarnation, self._now_unix_us(), first_commit, previous_file_id,
            previous_crc, ready.size_bytes, is_recovery, ready.is_recycled,
        )  # fmt: skip
        block = encode_file_header(header)
        with _Poisoning(self):
            ready.file.pwritev([block], 0)
            ready.file.fsync()
        self.files[ready.file_id] = ready.file
        self.file_id, self.offset, self._size_bytes = ready.file_id, BLOCK_BYTES, ready.size_bytes
        self.next_commit = first_commit
        self._previous_crc = file_header_crc(block)
        self._has_end = self._has_records = False
        self.owes_mark = False

    def resume(self, file_id: int, *, offset: int, next_commit: int, previous_crc: int) -> None:
        """Go on behind the end mark of a cleanly stopped file."""
        self.file_id, self.offset = file_id, offset
        self._size_bytes = self.files[file_id].size_bytes()
        self.next_commit = next_commit
        self._previous_crc = previous_crc
        self._has_end = True
        self._has_records = offset > 2 * BLOCK_BYTES

    def sync_again(self, file_id: int) -> None:
        """Make durable what replay found in a file of an unclean stop and was not synced yet.

        Raises:
            JournalPoisoned: the disk failed.
        """
        with _Poisoning(self):
            self.files[file_id].fsync()

    def roll(self) -> int:
        """Seal the active file and go on in a new one; if nothing is in it, or there is no space
        for another one, it stays the active one.

        Returns:
            The last sealed file's id, 0 if there is none: everything up to it is sealed.

        Raises:
            JournalPoisoned: the disk failed.
        """
        if self._has_records:
            with contextlib.suppress(NoSpaceError):  # `is_out_of_space` tells
                self._roll(commit_bytes_min=0)
        return max(self.sealed_file_ids, default=0)

    def prepare_next(self) -> bool:
        """Make the next file ready, so that going on in it costs one header.

        Takes long (a recycled file is read through): for a thread beside the one that commits.

        Returns:
            Whether it is ready; if not, the disk is full.

        Raises:
            JournalPoisoned: the disk failed.
        """
        self._report_growth()
        try:
            with _Poisoning(self):
                self.supply.prepare()
        except NoSpaceError:
            return False
        return True

    def recycle(self, file_ids: Sequence[int]) -> None:
        """Give sealed files up: their blocks serve again, or go back to the disk.

        The checkpoint that covers them is durable, and nobody reads them any more: a read that is
        still under way could meet other bytes.

        Raises:
            JournalPoisoned: the disk failed.
        """
        assert self.file_id not in file_ids, self.file_id
        for file_id in file_ids:
            file = self.files.pop(file_id, None)
            if file is not None:
                file.close()
        with _Poisoning(self):
            self.supply.recycle(file_ids)

    # --- Records ---------------------------------------------------------------------------------

    def commit(self, records: Sequence[JournalRecord]) -> list[Location]:
        """Write records as one commit, in a new file if this one has no room, and sync once.

        Returns:
            Where each body lies, in order.

        Raises:
            NoSpaceError: there is no room in this file and none for another one; nothing was
                written, and it may be tried again.
            JournalPoisoned: now or before; nothing of the commit may be acknowledged.
        """
        size = sum([record.size_bytes for record in records])
        if size > self.room_bytes:
            self._roll(commit_bytes_min=size)
        encoded = encode_commit(
            records, file_id=self.file_id, offset=self.offset, commit=self.next_commit,
            previous_crc=self._previous_crc, seed=self._seed,
        )  # fmt: skip
        # Zeros to the end of the block: what an older generation left there is gone, and the disk
        # need not be read for it. The next commit begins right behind the records all the same.
        encoded.buffers.append(bytes(-(self.offset + encoded.size_bytes) % BLOCK_BYTES))
        self._write(encoded.buffers)
        self.offset += encoded.size_bytes
        self.next_commit += 1
        self._previous_crc = encoded.last_crc
        self._has_end = False
        self._has_records = self.owes_mark = True
        self.commit_count += 1
        self.record_count += len(records)
        self.written_bytes += encoded.size_bytes
        return encoded.locations

    def write_mark(self) -> bool:
        """Say in a block of its own that the last commit is durable; False if there is no room."""
        self.owes_mark = False
        has_room = align(self.offset, BLOCK_BYTES) + 2 * BLOCK_BYTES <= self._size_bytes
        if has_room:
            self._write_block(RecordKind.COMMIT_MARK)
        return has_room

    def write_end(self) -> None:
        """Write the mark of a clean stop, unless it stands there already."""
        if not self._has_end:
            self._write_block(RecordKind.END)
            self._has_end = True
            self.owes_mark = False

    def read(self, location: Location) -> bytes:
        """The body at a location that replay or a commit gave; its checksum is not verified.

        Raises:
            OSError: the disk failed, the file is shorter than it was, or it is retired.
        """
        file = self.files.get(location.file_id)
        if file is None:
            raise OSError(errno.ESTALE, f"{location} is in a file that is not there")
        data = file.pread(location.length_bytes, location.offset)
        if len(data) != location.length_bytes:
            raise OSError(errno.EIO, f"{location} is beyond the end of the file")
        return data

    def close(self) -> None:
        """Close all files, whatever state they are in."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.supply.close()

    def _report_growth(self) -> None:
        """A file that was sealed early, or never used, is no reason for a longer one."""
        if self._size_bytes and self._is_half_full:
            self.supply.grow(self._size_bytes)

    def _roll(self, *, commit_bytes_min: int) -> None:
        self.begin_file(
            first_commit=self.next_commit,
            previous_file_id=self.file_id,
            previous_crc=self._previous_crc,
            commit_bytes_min=commit_bytes_min,
        )

    def _write_block(self, kind: RecordKind) -> None:
        self.offset = align(self.offset, BLOCK_BYTES)
        block = encode_mark(
            kind, file_id=self.file_id, offset=self.offset, commit=self.next_commit - 1,
            previous_crc=self._previous_crc, seed=self._seed,
        )  # fmt: skip
        self._write([block])
        self.offset += BLOCK_BYTES

    def _write(self, buffers: list[bytes]) -> None:
        with _Poisoning(self):
            file = self.files[self.file_id]
            file.pwritev(buffers, self.offset)
            file.fdatasync()


class _Poisoning:
    """Around everything that writes: any error but a full disk poisons the writer for good."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        if self._writer.is_poisoned:
            raise JournalPoisoned("an earlier write or sync failed")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, NoSpaceError):
            self._writer.is_poisoned = True
            raise JournalPoisoned(f"file {self._writer.file_id}: {error}") from error
