"""The directories of a bookie that does not run: held, known to belong together, read past caches.

While a tool holds them no bookie starts on them. Reading goes to the disk itself, not to what the
page cache remembers, and a disk that is meant to be read only cannot be written to by mistake.

Not here: what the files say (`check`, `inspect`). Called by the offline commands.
Source: docs/bookie.md "Identity" and "Tools for a stopped bookie".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duramen.ids import Incarnation
from duramen.runtime.role import StartRefusedError
from duramen.wire.disk.checkpoint_format import Checkpoint, CheckpointFormatError
from duramen.wire.disk.journal_format import JournalFormatError
from duramen_bookie.checkpoint import CheckpointMismatch, read_checkpoint
from duramen_bookie.cookie import Cookie, Directories
from duramen_bookie.file_system import DiskFile, FileSystem, PosixFile, PosixFileSystem
from duramen_bookie.identity import check_cookies
from duramen_bookie.journal.findings import JournalMismatch, OnRecord, ReplayResult
from duramen_bookie.journal.replay import replay


class CannotTell(Exception):
    """Nothing can be said about this bookie; the text says why and what to do."""


class StoppedBookie:
    """A bookie's directories, held by this process.

    Args:
        directories: all of them, released by whoever opened them.
        cookie: of the data directory.
        fs: how they are read.
    """

    def __init__(self, directories: Directories, cookie: Cookie, fs: FileSystem) -> None:
        self.cookie = cookie
        self.fs = fs
        self.was_clean = not directories.is_dirty()
        self.data_directory = str(directories.data.path)
        self.journal_directory = str(directories.journal.path)
        self.ledger_directories = tuple(str(one.path) for one in directories.ledgers)

    @property
    def incarnation(self) -> Incarnation:
        """Of the bookie."""
        return self.cookie.incarnation

    def read_checkpoint(self) -> Checkpoint | None:
        """The newest whole copy, None if there never was one.

        Raises:
            CheckpointDamaged: there is none that is whole.
            CannotTell: it is another bookie's or of a newer version.
        """
        try:
            return read_checkpoint(self.fs, self.data_directory, self.incarnation)
        except (CheckpointMismatch, CheckpointFormatError) as error:
            raise CannotTell(f"the checkpoint cannot be used: {error}") from error

    def replay_journal(self, covered_file_id: int, on_record: OnRecord) -> ReplayResult:
        """Read the journal above a file as a start would; the result's files are open.

        Raises:
            CannotTell: it is another bookie's or of a newer version.
        """
        if not self.fs.exists(self.journal_directory):
            return ReplayResult()  # of format 1, before its first record
        try:
            return replay(
                self.journal_directory,
                self.fs,
                self.incarnation,
                on_record,
                covered_file_id=covered_file_id,
            )
        except (JournalMismatch, JournalFormatError) as error:
            raise CannotTell(f"the journal cannot be used: {error}") from error


@contextmanager
def open_stopped(
    data: Path, journal: Path | None, ledgers: Sequence[Path], *, can_write: bool = False
) -> Iterator[StoppedBookie]:
    """Hold a bookie's directories and see that they belong together.

    Args:
        data, journal, ledgers: as `Directories`.
        can_write: files may be written too; otherwise every attempt is an OSError.

    Raises:
        CannotTell: the bookie runs, or these are not the directories of one.
    """
    try:
        directories = Directories(data, journal, ledgers)
    except StartRefusedError as error:
        raise CannotTell(str(error)) from error
    try:
        try:
            cookie = check_cookies(directories.look())
        except StartRefusedError as error:
            raise CannotTell(str(error)) from error
        yield StoppedBookie(directories, cookie, WritableDisk() if can_write else ReadOnlyDisk())
    finally:
        directories.release()


class UncachedFile(PosixFile):
    """A file that is read from the disk itself."""

    def pread(self, length_bytes: int, offset: int) -> bytes:
        return self.pread_direct(length_bytes, offset)

    def _pread_dropped(self, length_bytes: int, offset: int) -> bytes:
        os.posix_fadvise(self._descriptor, offset, length_bytes, os.POSIX_FADV_DONTNEED)
        return super().pread(length_bytes, offset)


class WritableDisk(PosixFileSystem):
    """The operating system's files, read past the page cache."""

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        return UncachedFile(os.open(path, flags, 0o600))


class ReadOnlyDisk(PosixFileSystem):
    """The same without any way to write: open files refuse it themselves."""

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        if is_new:
            _refuse(path)
        return UncachedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def make_directory(self, directory: str) -> None:
        _refuse(directory)

    def rename(self, old: str, new: str) -> None:
        _refuse(new)

    def remove(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> None:
    raise OSError(errno.EROFS, "this tool only reads", path)
