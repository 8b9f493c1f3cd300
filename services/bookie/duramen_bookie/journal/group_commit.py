"""The journal's thread: one fdatasync for everything that waits, for one event loop.

Take everything that waits → pwritev → fdatasync → hand the completions to the event loop in one
call. There is no timer on that way. What takes long and can be done beside it, on a second thread,
is: the next file is made while this one is written, retired files are recycled.

A failed write or sync poisons the journal: nothing more is acknowledged, the process must end. A
full disk does not: while there is no next file, what does not fit in this one is refused, with a
part of it kept for seals and recovery, and the disk is asked again every second.

Not here: what is written (`writer`), what records mean. Called by the bookie's storage.
Source: docs/protocol/journal.md "Records" and "Failure".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from duramen.limits import JOURNAL_QUEUE_BYTES_MAX
from duramen.wire.disk.journal_format import BLOCK_BYTES, JournalRecord, Location
from duramen_bookie.journal.recycling import NoSpaceError
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter

IDLE_BEFORE_MARK_S: Final = 0.05
"""Long enough that a client with one append in flight never pays for a mark's second sync."""

SPACE_RETRY_S: Final = 1.0
"""How often a full disk is asked for the next file: as often as its free space is looked at."""

_RESERVE_RATIO: Final = 8
"""One part in eight on top of the bound is room for seals and recovery alone."""

_MARK_BYTES_MAX: Final = 2 * BLOCK_BYTES
"""What a mark takes of a file's room at most: the rest of a block, and its own."""


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
    is_out_of_space: bool
    is_next_ready: bool
    room_bytes: int
    spare_count: int
    recycled_count: int


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
        space_retry_s: rest between two tries to make a file on a full disk.
    """

    def __init__(
        self,
        writer: JournalWriter,
        *,
        on_poisoned: Callable[[JournalPoisoned], None],
        queue_bytes_max: int = JOURNAL_QUEUE_BYTES_MAX,
        idle_before_mark_s: float = IDLE_BEFORE_MARK_S,
        space_retry_s: float = SPACE_RETRY_S,
    ) -> None:
        self._writer = writer
        self._on_poisoned = on_poisoned
        self._queue_bytes_max = queue_bytes_max
        self._idle_before_mark_s = idle_before_mark_s
        self._space_retry_s = space_retry_s
        self._queue: deque[_Append] = deque()
        self._waiting_bytes = 0
        self._rolls: list[Callable[[int], None]] = []
        self._is_preparing = False
        self._prepare_at_s = 0.0
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
        self._beside = ThreadPoolExecutor(1, "journal-files")

    def start(self) -> None:
        """Start the thread; completions will come to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._thread.start()

    def has_room(self, size_bytes: int, *, is_urgent: bool = False) -> bool:
        """Whether so much more may be appended now.

        Args:
            is_urgent: may use the reserved room (seals, recovery, drops).
        """
        with self._condition:
            is_full = self._is_full(size_bytes, is_urgent)
            self._refused_count += is_full
            return not is_full

    def append_nowait(
        self, records: Sequence[JournalRecord], done: Callable[[list[Location]], None]
    ) -> bool:
        """Queue records for the next commit; all of them will be in the same one.

        Args:
            records: at least one; not to be changed any more.
            done: called on the event loop with the bodies' locations once all are durable, in the
                order of the appends; never called otherwise.

        Returns:
            False if the journal is closing: nothing was queued. Whether there is room was asked of
            `has_room`; if the disk has filled up since, on the journal's thread, they wait.

        Raises:
            JournalPoisoned: nothing will be written any more.
        """
        assert records
        size = sum([record.size_bytes for record in records])
        with self._condition:
            if self._error is not None:
                raise self._error
            if self._is_closing:
                return False
            self._waiting_bytes += size
            self._queue.append(_Append(records, size, done))
            self._condition.notify()
        return True

    def request_roll(self, done: Callable[[int], None]) -> bool:
        """Have the active file sealed, unless it is empty or there is no space for another one.

        Args:
            done: called on the event loop with the last sealed file's id (0: none): every file up
                to it is sealed, and all that was acknowledged before the request and is not in one
                of them was kept back by lack of space. Never called if the journal is poisoned.

        Returns:
            False if the journal is closing: `done` will not be called.

        Raises:
            JournalPoisoned: nothing will be written any more.
        """
        with self._condition:
            if self._error is not None:
                raise self._error
            if not self._is_closing:
                self._rolls.append(done)
                self._condition.notify()
            return not self._is_closing

    def recycle(self, file_ids: Sequence[int], done: Callable[[], None]) -> None:
        """Give sealed files up, beside the commits; see `JournalWriter.recycle` for when.

        May be called on any thread, also while garbage is collected: it takes no lock, since
        a collection may begin where this thread holds one.

        Args:
            file_ids: files that the durable checkpoint covers and that nobody reads any more.
            done: called on the event loop when they are spares or gone; never if the journal is
                poisoned or closing: the next start recycles them.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin_recycling, tuple(file_ids), done)

    def read(self, file_id: int, offset: int, length_bytes: int) -> bytes:
        """A body whose location was handed out; verifying the entry's checksum is the caller's.

        Raises:
            OSError: the disk failed: the answer is UNKNOWN, never an absence. Or the file was
                recycled since: look for the entry in the entry log.
        """
        return self._writer.read(Location(file_id, offset, length_bytes))

    def sealed_file_ids(self) -> list[int]:
        """Files that are not written any more and not given up yet, ascending."""
        return self._writer.sealed_file_ids

    async def close(self, *, clean: bool = True) -> None:
        """Commit what waits, write the end mark if `clean`, stop the threads, close the files.

        What waits for space is dropped: nobody was told that it is stored.

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
                self._error is not None, writer.is_out_of_space, writer.supply.next is not None,
                writer.room_bytes, writer.supply.spare_count, writer.supply.recycled_count,
            )  # fmt: skip

    def _is_full(self, size_bytes: int, is_urgent: bool) -> bool:
        """Under the lock."""
        if self._writer.is_out_of_space:
            room = self._writer.room_bytes - self._waiting_bytes - _MARK_BYTES_MAX
            if size_bytes > room - (0 if is_urgent else self._writer.reserve_bytes):
                return True
        bound = self._queue_bytes_max
        if is_urgent:
            bound += bound // _RESERVE_RATIO
        # One append is always let in when nothing waits: else one above the bound never would.
        return self._waiting_bytes > 0 and self._waiting_bytes + size_bytes > bound

    # --- On the journal's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._want_next()
            while (work := self._take()) is not None:
                work()
                self._want_next()
            self._beside.shutdown()
            if self._is_clean:
                self._writer.write_end()
        except Exception as error:
            self._poison(error)
        self._beside.shutdown()
        self._call_loop(self._on_stopped)

    def _take(self) -> Callable[[], None] | None:
        """Wait for something to do; None: stop."""
        with self._condition:
            while True:
                if self._error is not None:
                    return None
                if self._rolls:
                    return self._roll
                is_out = self._writer.is_out_of_space
                # What was let in before the disk was full may not fit any more: it waits for space.
                room = self._writer.room_bytes
                if self._queue and not (is_out and self._queue[0].size_bytes > room):
                    return partial(self._commit, self._take_batch(room))
                if self._is_closing:
                    return None
                # Marks take room, and there will be no more: they wait, too.
                timeout_s = self._idle_before_mark_s if self._writer.owes_mark else None
                if self._condition.wait(self._space_retry_s if is_out else timeout_s):
                    continue
                if is_out:
                    return self._want_next
                if not self._queue and not self._is_closing:
                    return self._mark

    def _take_batch(self, room: int) -> list[_Append]:
        batch = [self._queue.popleft()]
        size = batch[0].size_bytes
        while self._queue and size + self._queue[0].size_bytes <= room:
            size += self._queue[0].size_bytes
            batch.append(self._queue.popleft())
        return batch

    def _commit(self, batch: list[_Append]) -> None:
        began_ns = time.monotonic_ns()
        try:
            locations = self._writer.commit([r for append in batch for r in append.records])
        except NoSpaceError:
            with self._condition:
                self._queue.extendleft(reversed(batch))
            return
        took_us = (time.monotonic_ns() - began_ns) // 1_000
        with self._condition:
            self._waiting_bytes -= sum([append.size_bytes for append in batch])
            self._sync_us_last = took_us
            self._sync_us_total += took_us
            if self._error is not None:
                return
        self._call_loop(self._on_committed, batch, locations)

    def _mark(self) -> None:
        self._mark_count += self._writer.write_mark()

    def _roll(self) -> None:
        with self._condition:
            rolls, self._rolls = self._rolls, []
        sealed_file_id = self._writer.roll()
        for done in rolls:
            self._call_loop(done, sealed_file_id)

    def _want_next(self) -> None:
        """Have the next file made if it is time for it."""
        with self._condition:
            is_due = time.monotonic() >= self._prepare_at_s and self._writer.wants_next
            if is_due and not self._is_preparing and not self._is_closing and self._error is None:
                self._is_preparing = True
                self._beside.submit(self._prepare)

    def _poison(self, error: Exception) -> None:
        poisoned = error if isinstance(error, JournalPoisoned) else JournalPoisoned(repr(error))
        with self._condition:
            if self._error is not None:
                return
            self._error = poisoned
            self._queue.clear()
            self._condition.notify()
        self._call_loop(self._on_poisoned, poisoned)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    # --- On the thread beside it ------------------------------------------------------------------

    def _prepare(self) -> None:
        try:
            is_ready = self._writer.prepare_next()
        except Exception as error:
            self._poison(error)
            return
        with self._condition:
            self._is_preparing = False
            self._prepare_at_s = 0.0 if is_ready else time.monotonic() + self._space_retry_s
            self._condition.notify()

    def _recycle(self, file_ids: Sequence[int], done: Callable[[], None]) -> None:
        try:
            self._writer.recycle(file_ids)
        except Exception as error:
            self._poison(error)
            return
        with self._condition:
            self._prepare_at_s = 0.0
        self._call_loop(done)
        self._want_next()

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

    def _begin_recycling(self, file_ids: tuple[int, ...], done: Callable[[], None]) -> None:
        with self._condition:
            if self._error is None and not self._is_closing:
                self._beside.submit(self._recycle, file_ids, done)

    def _on_stopped(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)
