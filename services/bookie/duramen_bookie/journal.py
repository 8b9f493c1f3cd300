"""The bookie's journal: one fdatasync for everything that waits.

`JournalWriter` is the logic on the disk port, without threads or clock: files, commits, marks; a
simulated disk can run it. `Journal` puts a thread around it: take everything that waits → pwritev →
fdatasync → hand the completions to the event loop in one call. There is no timer on that way.
After any failed write or sync the journal is poisoned: nothing is tried again and nothing
acknowledged any more, and the process must end.

Not here: reading at start (`replay.open_journal` makes the writer), what records mean (the bookie's
state). Called by the bookie's server. Source: 02-storage "Journal"; docs/protocol/journal.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duramen.ids import Incarnation
from duramen.limits import JOURNAL_FILE_BYTES, JOURNAL_QUEUE_BYTES_MAX
from duramen.wire.journal_format import (
    BLOCK_BYTES,
    FileHeader,
    JournalRecord,
    Kind,
    Location,
    align,
    encode_commit,
    encode_file_header,
    encode_mark,
    file_header_crc,
    record_bytes,
    seed_of,
)
from duramen_bookie.file_system import DiskFile, FileSystem

IDLE_BEFORE_MARK_S: Final = 0.05
"""Long enough that a client with one append in flight never pays for a mark's second sync."""

_RESERVE_RATIO: Final = 8
"""One part in eight on top of the bound is room for seals and recovery alone."""


class JournalPoisoned(Exception):
    """A write or sync failed: what is on the disk is unknown until the next start reads it."""


class JournalWriter:
    """Appends commits to journal files; every method has reached the disk when it returns.

    Args:
        fs: the disk.
        directory: where the files are; it exists.
        incarnation: of the bookie; stands in every file and in every CRC.
        files: the files that replay found, for reads.
        now_unix_us: wall clock, for the files' creation time only.
        file_bytes: what a file is preallocated with.

    Invariants:
        1. A commit lies in one file. 2. Commit numbers rise by one in a file and never repeat.
        3. Only blocks that hold nothing durable but of earlier commits of the same file are
        rewritten, and never a mark's. 4. After an error nothing is written any more.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        incarnation: Incarnation,
        *,
        files: dict[int, DiskFile],
        now_unix_us: Callable[[], int],
        file_bytes: int = JOURNAL_FILE_BYTES,
    ) -> None:
        assert file_bytes % BLOCK_BYTES == 0 and file_bytes >= 4 * BLOCK_BYTES, file_bytes
        self.files = files
        self.file_id = 0
        self.offset = 0
        self.next_commit = 1
        self.commit_count = 0
        self.record_count = 0
        self.written_bytes = 0
        self.owes_mark = False
        """Whether a commit is not yet covered by a mark."""
        self.is_poisoned = False
        self._fs = fs
        self._directory = directory
        self._incarnation = incarnation
        self._seed = seed_of(incarnation)
        self._now_unix_us = now_unix_us
        self._file_bytes = file_bytes
        self._size_bytes = 0
        self._previous_crc = 0
        self._has_end = False

    @property
    def room_bytes(self) -> int:
        """Bytes of records that the next commit may have without a new file."""
        # The last two blocks stay free: a mark and the end mark always have their place.
        return max(0, self._size_bytes - 2 * BLOCK_BYTES - self.offset)

    def create_file(
        self,
        file_id: int,
        *,
        first_commit: int,
        previous_file_id: int,
        previous_crc: int,
        is_recovery: bool = False,
        commit_bytes_min: int = 0,
    ) -> None:
        """Header → fsync file → fsync directory → use.

        Args:
            file_id: never used before.
            first_commit: number of the next commit, never used before.
            previous_file_id: the file written before, all of it durable unless `is_recovery`.
            previous_crc: CRC of the last record in it.
            is_recovery: opened at an unclean start.
            commit_bytes_min: the file has room for a commit of that size at least.
        """
        size = max(self._file_bytes, align(commit_bytes_min, BLOCK_BYTES) + 3 * BLOCK_BYTES)
        header = FileHeader(
            file_id, self._incarnation, self._now_unix_us(), first_commit, previous_file_id,
            previous_crc, size, is_recovery,
        )  # fmt: skip
        block = encode_file_header(header)
        with _Poisoning(self):
            file = self._fs.open(f"{self._directory}/{file_name(file_id)}", is_new=True)
            file.preallocate(size)
            file.pwritev([block], 0)
            file.fsync()
            self._fs.fsync_directory(self._directory)
        self.files[file_id] = file
        self.file_id, self.offset, self._size_bytes = file_id, BLOCK_BYTES, size
        self.next_commit = first_commit
        self._previous_crc = file_header_crc(block)
        self._has_end = False
        self.owes_mark = False

    def resume(self, file_id: int, *, offset: int, next_commit: int, previous_crc: int) -> None:
        """Go on behind the end mark of a cleanly stopped file."""
        self.file_id, self.offset = file_id, offset
        self._size_bytes = self.files[file_id].size_bytes()
        self.next_commit = next_commit
        self._previous_crc = previous_crc
        self._has_end = True

    def commit(self, records: Sequence[JournalRecord]) -> list[Location]:
        """Write records as one commit, in a new file if this one has no room, and sync once.

        Returns:
            Where each body lies, in order.

        Raises:
            JournalPoisoned: now or before; nothing of the commit may be acknowledged.
        """
        size = sum([record_bytes(len(record.body)) for record in records])
        if size > self.room_bytes:
            self.create_file(
                # Not file_id + 1: a crash may have left a file behind that was never in use.
                max(self.files) + 1,
                first_commit=self.next_commit,
                previous_file_id=self.file_id,
                previous_crc=self._previous_crc,
                commit_bytes_min=size,
            )
        encoded = encode_commit(
            records, file_id=self.file_id, offset=self.offset, commit=self.next_commit,
            previous_crc=self._previous_crc, seed=self._seed,
        )  # fmt: skip
        self._write(encoded.buffers)
        self.offset += encoded.size_bytes
        self.next_commit += 1
        self._previous_crc = encoded.last_crc
        self._has_end = False
        self.owes_mark = True
        self.commit_count += 1
        self.record_count += len(records)
        self.written_bytes += encoded.size_bytes
        return encoded.locations

    def write_mark(self) -> bool:
        """Say in a block of its own that the last commit is durable; False if there is no room."""
        self.owes_mark = False
        has_room = align(self.offset, BLOCK_BYTES) + 2 * BLOCK_BYTES <= self._size_bytes
        if has_room:
            self._write_block(Kind.COMMIT_MARK)
        return has_room

    def write_end(self) -> None:
        """Write the mark of a clean stop, unless it stands there already."""
        if not self._has_end:
            self._write_block(Kind.END)
            self._has_end = True
            self.owes_mark = False

    def read(self, location: Location) -> bytes:
        """The body at a location that replay or a commit gave; its checksum is not verified.

        Raises:
            OSError: the disk failed, or the file is shorter than it was.
        """
        data = self.files[location.file_id].pread(location.length_bytes, location.offset)
        if len(data) != location.length_bytes:
            raise OSError(errno.EIO, f"{location} is beyond the end of the file")
        return data

    def close(self) -> None:
        """Close all files, whatever state they are in."""
        for file in self.files.values():
            file.close()
        self.files.clear()

    def _write_block(self, kind: Kind) -> None:
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
    """Around everything that writes: any exception poisons the writer for good."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        if self._writer.is_poisoned:
            raise JournalPoisoned("an earlier write or sync failed")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._writer.is_poisoned = True
            raise JournalPoisoned(f"file {self._writer.file_id}: {error}") from error


@dataclasses.dataclass(frozen=True)
class JournalStatistics:
    """What the journal did and what waits; bytes count records with their headers."""

    file_id: int
    file_count: int
    next_commit: int
    waiting_bytes: int
    waiting_count: int
    commit_count: int
    record_count: int
    written_bytes: int
    mark_count: int
    refused_count: int
    sync_us_total: int
    sync_us_last: int
    is_poisoned: bool


class _Append(NamedTuple):
    records: Sequence[JournalRecord]
    size_bytes: int
    done: Callable[[list[Location]], None]


class Journal:
    """Group commit on a thread of its own, for one event loop.

    Args:
        writer: ready to write, see `replay.open_journal`; belongs to the journal from now on.
        on_poisoned: called once, on the event loop, when a write or sync has failed; the process
            must end, non-zero, without another acknowledgement.
        queue_bytes_max: records that wait or are being written.
        idle_before_mark_s: how long nothing waits before a durable mark is written.
    """

    def __init__(
        self,
        writer: JournalWriter,
        *,
        on_poisoned: Callable[[JournalPoisoned], None],
        queue_bytes_max: int = JOURNAL_QUEUE_BYTES_MAX,
        idle_before_mark_s: float = IDLE_BEFORE_MARK_S,
    ) -> None:
        self._writer = writer
        self._on_poisoned = on_poisoned
        self._queue_bytes_max = queue_bytes_max
        self._idle_before_mark_s = idle_before_mark_s
        self._queue: deque[_Append] = deque()
        self._waiting_bytes = 0
        self._condition = threading.Condition(threading.Lock())
        self._is_closing = False
        self._is_clean = False
        self._error: JournalPoisoned | None = None
        self._mark_count = 0
        self._refused_count = 0
        self._sync_us_total = 0
        self._sync_us_last = 0
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Future[None]
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        """Start the thread; completions will come to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._thread.start()

    def append_nowait(
        self,
        records: Sequence[JournalRecord],
        done: Callable[[list[Location]], None],
        *,
        is_urgent: bool = False,
    ) -> bool:
        """Queue records for the next commit; all of them will be in the same one.

        Args:
            records: at least one; not to be changed any more.
            done: called on the event loop with the bodies' locations once all are durable, in the
                order of the appends; never called otherwise.
            is_urgent: may use the reserved room (seals and recovery).

        Returns:
            False if too much waits or the journal is closing: nothing was queued.

        Raises:
            JournalPoisoned: nothing will be written any more.
        """
        assert records
        size = sum([record_bytes(len(record.body)) for record in records])
        bound = self._queue_bytes_max
        if is_urgent:
            bound += bound // _RESERVE_RATIO
        with self._condition:
            if self._error is not None:
                raise self._error
            # One append is always let in when nothing waits: else one above the bound never would.
            is_full = self._waiting_bytes > 0 and self._waiting_bytes + size > bound
            if is_full or self._is_closing:
                self._refused_count += 1
                return False
            self._waiting_bytes += size
            self._queue.append(_Append(records, size, done))
            self._condition.notify()
        return True

    def read(self, file_id: int, offset: int, length_bytes: int) -> bytes:
        """A body whose location was handed out; verifying the entry's checksum is the caller's.

        Raises:
            OSError: the disk failed: the answer is UNKNOWN, never an absence.
        """
        return self._writer.read(Location(file_id, offset, length_bytes))

    async def close(self, *, clean: bool = True) -> None:
        """Commit what waits, write the end mark if `clean`, stop the thread, close the files.

        Raises:
            JournalPoisoned: the stop is not a clean one.
        """
        with self._condition:
            self._is_closing = True
            self._is_clean = clean
            self._condition.notify()
        await self._stopped
        self._thread.join()
        self._writer.close()
        if self._error is not None:
            raise self._error

    def statistics(self) -> JournalStatistics:
        """A snapshot for metrics and the admin API."""
        writer = self._writer
        with self._condition:
            return JournalStatistics(
                writer.file_id, len(writer.files), writer.next_commit, self._waiting_bytes,
                len(self._queue), writer.commit_count, writer.record_count, writer.written_bytes,
                self._mark_count, self._refused_count, self._sync_us_total, self._sync_us_last,
                self._error is not None,
            )  # fmt: skip

    # --- On the journal's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                batch = self._take()
                if batch is None:
                    break
                if batch:
                    self._commit(batch)
                else:
                    self._mark_count += self._writer.write_mark()
            if self._is_clean:
                self._writer.write_end()
        except Exception as error:
            self._poison(error)
        self._call_loop(self._on_stopped)

    def _take(self) -> list[_Append] | None:
        """Wait for the next commit's appends; none: write a mark; None: stop."""
        with self._condition:
            while not self._queue:
                if self._is_closing:
                    return None
                is_idle = not self._condition.wait(
                    self._idle_before_mark_s if self._writer.owes_mark else None
                )
                if is_idle and not self._queue and not self._is_closing:
                    return []
            room = self._writer.room_bytes
            batch = [self._queue.popleft()]
            size = batch[0].size_bytes
            while self._queue and size + self._queue[0].size_bytes <= room:
                size += self._queue[0].size_bytes
                batch.append(self._queue.popleft())
            return batch

    def _commit(self, batch: list[_Append]) -> None:
        began_ns = time.monotonic_ns()
        locations = self._writer.commit([record for append in batch for record in append.records])
        took_us = (time.monotonic_ns() - began_ns) // 1_000
        with self._condition:
            self._waiting_bytes -= sum([append.size_bytes for append in batch])
            self._sync_us_last = took_us
            self._sync_us_total += took_us
        self._call_loop(self._on_committed, batch, locations)

    def _poison(self, error: Exception) -> None:
        poisoned = error if isinstance(error, JournalPoisoned) else JournalPoisoned(repr(error))
        with self._condition:
            self._error = poisoned
            self._queue.clear()
        self._call_loop(self._on_poisoned, poisoned)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    # --- On the event loop's thread ---------------------------------------------------------------

    def _on_committed(self, batch: list[_Append], locations: list[Location]) -> None:
        first = 0
        for append in batch:
            last = first + len(append.records)
            try:
                append.done(locations[first:last])
            except Exception as error:  # one caller's mistake must not keep the others waiting
                self._loop.call_exception_handler(
                    {"message": "a journal completion failed", "exception": error}
                )
            first = last

    def _on_stopped(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)


def file_name(file_id: int) -> str:
    """Name of a journal file."""
    return f"{file_id:06d}.dj"
