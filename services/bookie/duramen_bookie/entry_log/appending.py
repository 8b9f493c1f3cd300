"""A new file that is written from its begin to its end, in large pieces.

Space is taken piece by piece before anything is written into it, so that a full disk is met as a
plain error and never as half a piece. What was written is synced every now and then: a journal's
sync on the same disk never waits behind all of a large file.

Not here: what is written. Called by the entry log's writers. Source: docs/protocol/entry-log.md
"Data file".
"""

from __future__ import annotations

from typing import Final

from duramen.units import MIB
from duramen_bookie.file_system import DiskFile, FileSystem

_PIECE_BYTES: Final = 1 * MIB
"""Large against a system call, small against memory."""

_SYNC_BYTES: Final = 32 * MIB
"""What may be unsynced: a tenth of a second for a slow disk."""


class FileAppender:
    """Appends to a new file; an error leaves a file that is to be abandoned.

    Args:
        fs: the disk.
        path: nothing is there yet.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.size_bytes = 0
        """Length of the file with what is not written yet."""
        self._file: DiskFile = fs.open(path, is_new=True)
        self._is_open = True
        self._buffers: list[bytes] = []
        self._written_bytes = 0
        self._synced_bytes = 0

    def append(self, buffers: list[bytes]) -> None:
        """Add bytes to the end.

        Raises:
            OSError: the disk is full or failed.
        """
        self._buffers += buffers
        self.size_bytes += sum(map(len, buffers))
        if self.size_bytes - self._written_bytes >= _PIECE_BYTES:
            self._write()

    def finish(self, first_block: bytes | None = None) -> None:
        """Write what waits, then perhaps the first block anew, make all of it durable and close.

        Raises:
            OSError: the disk is full or failed.
        """
        self._write()
        if first_block is not None:
            self._file.pwritev([first_block], 0)
        self._file.fsync()
        self.close()

    def close(self) -> None:
        """Give the file back as it is, unless that was done already."""
        if self._is_open:
            self._is_open = False
            self._file.close()

    def _write(self) -> None:
        if self._buffers:
            self._file.preallocate(self.size_bytes)
            self._file.pwritev(self._buffers, self._written_bytes)
            self._buffers = []
            self._written_bytes = self.size_bytes
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._file.fdatasync()
            self._synced_bytes = self._written_bytes
