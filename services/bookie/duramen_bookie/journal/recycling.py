"""Files for the journal to go on in: made ahead of their use, of retired files where there are any.

A recycled file keeps its blocks, so that a commit changes no metadata of the file system and its
sync is one write. What stood in the blocks is told by a sidecar: it is durable before the file
gets its new name, so that replay can tell "never written in this life" from "written and torn".
Every step can be cut off: what is left is a file that was never begun, a sidecar without a file,
or a spare, and the next start clears them away. A full disk is no fault of what is written already:
it is `NoSpaceError`, and remembered until a file could be made.

Files may begin small and grow with use: one that is more than half full is followed by one of twice
its length, up to the usual length. Only files of that length are recycled: before, the blocks of a
retired file are too few for what follows it.

Not here: headers and commits (`writer`), when to prepare (`group_commit`). Called by the writer, on
any thread. Source: docs/protocol/journal.md "Recycling".
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from duramen.ids import Incarnation
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    Generation,
    block_crcs,
    encode_generation,
)
from duramen_bookie.file_system import DiskFile, FileSystem, is_no_space
from duramen_bookie.journal.names import (
    Listing,
    file_name,
    generation_name,
    spare_name,
)

SPARE_COUNT_MAX: Final = 2
"""One for the next file, one for the file after it: settling gives them back as fast as they go."""

_CHUNK_BYTES: Final = 1 << 20
"""Old content is read in such pieces: each holds the interpreter for a quarter millisecond."""

_LEFT_FREE_RATIO: Final = 16
"""A new file leaves one part in so many of its size free: entry log and checkpoint need a
little."""


class NoSpaceError(Exception):
    """The disk has no room for another journal file; nothing that is written has suffered."""


class ReadyFile(NamedTuple):
    """A durable file in which nothing was written yet, not even its header."""

    file_id: int
    file: DiskFile
    size_bytes: int
    is_recycled: bool


class FileSupply:
    """Spares, and the next file.

    Args:
        fs: the disk.
        directory: of the journal; it exists.
        incarnation: of the bookie; stands in every sidecar.
        listing: what is in the directory.
        file_bytes: what a file is preallocated with; only files of that size become spares.
        first_file_bytes: what the first one is preallocated with, where files grow with use;
            `file_bytes` if that is less, or if left out.
        id_min: ids below were used in files that may be gone.

    Invariants:
        1. A file id is greater than every id in the listing.
        2. `next` is set by `prepare` only, and only the writer takes it.
        3. A file is made with `first_file_bytes` to `file_bytes`, and more only if a commit needs
        it; what files are made with never falls, not over a restart either while one is there.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        incarnation: Incarnation,
        listing: Listing,
        *,
        file_bytes: int,
        id_min: int,
        first_file_bytes: int | None = None,
    ) -> None:
        first_file_bytes = min(file_bytes, first_file_bytes or file_bytes)
        for size_bytes in (first_file_bytes, file_bytes):
            assert size_bytes % BLOCK_BYTES == 0 and size_bytes >= 4 * BLOCK_BYTES, size_bytes
        self.file_bytes = file_bytes
        self.fresh_bytes = first_file_bytes
        """What a file that is made now is preallocated with."""
        self.next: ReadyFile | None = None
        self.is_out_of_space = False
        """Whether the last try to make a file found the disk full."""
        self.recycled_count = 0
        self._fs = fs
        self._directory = directory
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._listing = listing
        self._spare_ids: list[int] = []
        self._next_id = max(listing.id_max + 1, id_min)

    @property
    def spare_count(self) -> int:
        """Retired files that wait for their next use."""
        return len(self._spare_ids)

    def clear(self) -> None:
        """Take over the spares of the life before, and remove what its end has left behind.

        Raises:
            OSError: the disk failed.
        """
        listing = self._listing
        self._resume_growth()
        gone = [
            generation_name(file_id)
            for file_id in listing.generation_ids
            if file_id not in listing.file_ids
        ]
        for file_id in listing.spare_ids:
            size_bytes = self._fs.size_bytes(self._path(spare_name(file_id)))
            if size_bytes == self.file_bytes and len(self._spare_ids) < SPARE_COUNT_MAX:
                self._spare_ids.append(file_id)
            else:
                gone.append(spare_name(file_id))
        if gone:
            # The listing may tell of renames that a killed process did not sync: a sidecar whose
            # file comes back under its old name is needed.
            self._fs.fsync_directory(self._directory)
        for name in gone:
            self._fs.remove(self._path(name))

    def grow(self, filled_bytes: int) -> None:
        """A file of that length is more than half full: the next ones are twice as long."""
        self.fresh_bytes = max(self.fresh_bytes, min(2 * filled_bytes, self.file_bytes))

    def prepare(self) -> None:
        """Make the next file, unless it is there.

        Raises:
            NoSpaceError: the disk is full; everything is as it was.
            OSError: the disk failed.
        """
        with self._lock:
            if self.next is None:
                self.next = self._make(self.fresh_bytes)

    def take(self, size_bytes_min: int, *, may_be_small: bool = False) -> ReadyFile:
        """The next file, made now if it is not there; at least that long.

        Args:
            size_bytes_min: a multiple of the block size.
            may_be_small: on a full disk, a file that is no longer than that will do.

        Raises:
            NoSpaceError: the disk is full.
            OSError: the disk failed.
        """
        size_bytes = max(self.fresh_bytes, size_bytes_min)
        if self.next is None:
            with self._lock:
                if self.next is None:
                    self.next = self._make_any(size_bytes, size_bytes_min if may_be_small else 0)
        ready = self.next
        if ready.size_bytes < size_bytes_min:
            with self._watching_space():
                ready.file.preallocate(size_bytes)
                ready.file.fsync()
            ready = ready._replace(size_bytes=size_bytes)
        self.next = None
        return ready

    def recycle(self, file_ids: Sequence[int]) -> None:
        """Keep retired files as spares while there is room for them, remove the others.

        Args:
            file_ids: files that no start needs any more and that nobody reads; missing ones count
                as removed.

        Raises:
            OSError: the disk failed.
        """
        if not file_ids:
            return
        with self._lock:
            for file_id in file_ids:
                path = self._path(file_name(file_id))
                if not self._fs.exists(path):
                    continue
                is_usual = self._fs.size_bytes(path) == self.file_bytes
                if is_usual and len(self._spare_ids) < SPARE_COUNT_MAX:
                    self._fs.rename(path, self._path(spare_name(file_id)))
                    self._spare_ids.append(file_id)
                else:
                    self._fs.remove(path)
            self._fs.fsync_directory(self._directory)
            # Only now: a file that came back without its sidecar would look like a damaged one.
            for file_id in file_ids:
                self._remove_if_there(generation_name(file_id))

    def close(self) -> None:
        """Close the next file; the next start makes a spare of it."""
        if self.next is not None:
            self.next.file.close()
            self.next = None

    def _resume_growth(self) -> None:
        """Go on with the length of the life before: its longest file has been followed by use."""
        if self.fresh_bytes == self.file_bytes:
            return
        names = [file_name(file_id) for file_id in self._listing.file_ids]
        names += [spare_name(file_id) for file_id in self._listing.spare_ids]
        sizes = [self._fs.size_bytes(self._path(name)) for name in names]
        self.fresh_bytes = min(max([self.fresh_bytes, *sizes]), self.file_bytes)
        self.fresh_bytes -= self.fresh_bytes % BLOCK_BYTES

    # --- Under the lock --------------------------------------------------------------------------

    def _make_any(self, size_bytes: int, small_bytes: int) -> ReadyFile:
        try:
            return self._make(size_bytes)
        except NoSpaceError:
            if not small_bytes:
                raise
        ready = self._make_fresh(small_bytes, left_free_bytes=0)
        self.is_out_of_space = True
        return ready

    def _make(self, size_bytes: int) -> ReadyFile:
        while self._spare_ids:
            spare_id = self._spare_ids[0]
            path = self._path(spare_name(spare_id))
            crcs = self._read_crcs(path)
            if crcs is not None:
                with self._watching_space():
                    ready = self._make_of(spare_id, crcs)
                self._spare_ids.pop(0)
                self.recycled_count += 1
                return ready
            # What stands in it cannot be told, and writing over a bad sector is no good idea.
            self._spare_ids.pop(0)
            self._fs.remove(path)
        return self._make_fresh(size_bytes, left_free_bytes=size_bytes // _LEFT_FREE_RATIO)

    def _make_of(self, spare_id: int, crcs: array[int]) -> ReadyFile:
        """Sidecar → fsync → directory → new name → directory: each step durable before the next."""
        file_id = self._take_id()
        assert file_id > spare_id, "records of the old content must not verify in the new file"
        generation = Generation(file_id, spare_id, self._incarnation, crcs)
        self._write_whole(generation_name(file_id), encode_generation(generation))
        self._fs.fsync_directory(self._directory)
        path = self._path(file_name(file_id))
        self._fs.rename(self._path(spare_name(spare_id)), path)
        self._fs.fsync_directory(self._directory)
        return ReadyFile(file_id, self._fs.open(path), self.file_bytes, is_recycled=True)

    def _make_fresh(self, size_bytes: int, *, left_free_bytes: int) -> ReadyFile:
        # A preallocation that fails has filled the disk for a moment: look before.
        if self._fs.usage(self._directory).free_bytes < size_bytes + left_free_bytes:
            self.is_out_of_space = True
            raise NoSpaceError(f"no room for a journal file of {size_bytes} bytes")
        file_id = self._take_id()

        def fill(file: DiskFile) -> None:
            file.preallocate(size_bytes)

        with self._watching_space():
            file = self._create(file_name(file_id), fill)
            self._fs.fsync_directory(self._directory)
        return ReadyFile(file_id, file, size_bytes, is_recycled=False)

    def _write_whole(self, name: str, data: bytes) -> None:
        def fill(file: DiskFile) -> None:
            file.truncate(len(data))
            file.pwritev([data], 0)

        self._create(name, fill).close()

    def _create(self, name: str, fill: Callable[[DiskFile], None]) -> DiskFile:
        """A new file with durable content; its name is not durable yet. All of it, or nothing."""
        file = self._fs.open(self._path(name), is_new=True)
        try:
            fill(file)
            file.fsync()
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._fs.remove(self._path(name))
            raise
        return file

    def _read_crcs(self, path: str) -> array[int] | None:
        """Past the page cache: what counts is what the disk holds. None: it cannot be read."""
        crcs = array("I")
        file = self._fs.open(path)
        try:
            for offset in range(0, self.file_bytes, _CHUNK_BYTES):
                length = min(_CHUNK_BYTES, self.file_bytes - offset)
                crcs.extend(block_crcs(file.pread_direct(length, offset)))
        except OSError:
            return None
        finally:
            file.close()
        return crcs

    @contextlib.contextmanager
    def _watching_space(self) -> Iterator[None]:
        """Tell a full disk from one that failed."""
        try:
            yield
        except OSError as error:
            if not is_no_space(error):
                raise
            self.is_out_of_space = True
            raise NoSpaceError(str(error)) from error
        self.is_out_of_space = False

    def _take_id(self) -> int:
        file_id, self._next_id = self._next_id, self._next_id + 1
        return file_id

    def _remove_if_there(self, name: str) -> None:
        if self._fs.exists(self._path(name)):
            self._fs.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
