"""The little that the bookie needs from a disk, as a port, with its production implementation.

A simulated disk (durable and volatile layer, torn writes, failing syncs, renames undone) stands in
behind the same two Protocols. All calls block; writes to one file come from one thread at a time,
reads from any. Errors are `OSError` and never retried here: what a failed write or sync left behind
is unknown.

Not here: which files there are and what is in them (`journal`, `entry_log`, `checkpoint`).
Source: docs/protocol/journal.md "Files" and "Failure".
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

WINDOW_BYTES: Final = 8 << 20
"""What sequential reading asks for at once: large against an entry, small against memory."""

_IOV_MAX: Final = 1024
"""Linux's limit of buffers in one pwritev (UIO_MAXIOV)."""

_BLOCK_BYTES: Final = 4096
_ZEROS: Final = bytes(WINDOW_BYTES)
_NO_SPACE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskUsage(NamedTuple):
    """How large a file system is, and how much of it is free for us."""

    total_bytes: int
    free_bytes: int


class DiskFile(Protocol):
    """An open file."""

    def size_bytes(self) -> int:
        """Its length."""

    def preallocate(self, size_bytes: int) -> None:
        """Make it that long if it is shorter: zeros where nothing was, with their space taken."""

    def truncate(self, size_bytes: int) -> None:
        """Make it exactly that long; what is added reads as zeros and takes no space yet."""

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write the buffers side by side; all of them or an error."""

    def pread(self, length_bytes: int, offset: int) -> bytes:
        """Read; fewer bytes only at the end of the file."""

    def pread_direct(self, length_bytes: int, offset: int) -> bytes:
        """As `pread`, from the disk itself: neither believing the page cache nor filling it."""

    def prefetch(self, length_bytes: int, offset: int) -> None:
        """A hint that these bytes will be read soon."""

    def fdatasync(self) -> None:
        """Make written data durable; on return it is."""

    def fsync(self) -> None:
        """The same with all metadata, for a new file."""

    def close(self) -> None:
        """Give the file back."""


class FileSystem(Protocol):
    """Files by name; a path that is not there is FileNotFoundError."""

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        """Open for reading and writing; `is_new`: make it, it must not exist."""

    def map(self, path: str) -> memoryview:
        """All bytes of a file that is written no more, read-only; given back with the last view.

        A read error of the disk kills the process where it is touched (SIGBUS).
        """

    def exists(self, path: str) -> bool:
        """Whether there is something of that name."""

    def size_bytes(self, path: str) -> int:
        """Length of a file."""

    def list_names(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""

    def make_directory(self, directory: str) -> None:
        """Make it with its parents, if it is not there."""

    def rename(self, old: str, new: str) -> None:
        """Rename; replaces `new`."""

    def remove(self, path: str) -> None:
        """Remove a file's name; its bytes go when nobody has it open."""

    def fsync_directory(self, directory: str) -> None:
        """Make names that were made, renamed or removed durable."""

    def usage(self, directory: str) -> DiskUsage:
        """Of the disk that a directory is on."""


def is_no_space(error: OSError) -> bool:
    """Whether nothing is wrong with the disk but that it is full."""
    return error.errno in _NO_SPACE_ERRORS


class PosixFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def preallocate(self, size_bytes: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        for first in range(0, len(buffers), _IOV_MAX):
            part = buffers[first : first + _IOV_MAX]
            size = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, offset)
            if written < size:
                self._write_rest(b"".join(part)[written:], offset + written)
            offset += size

    def pread(self, length_bytes: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, length_bytes, offset)
        while len(data) < length_bytes:
            more = os.pread(self._descriptor, length_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_direct(self, length_bytes: int, offset: int) -> bytes:
        try:
            # A description of its own, so that reads and writes of others stay as they are.
            flags = os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        except OSError:
            return self._pread_dropped(length_bytes, offset)
        try:
            return _read_aligned(descriptor, length_bytes, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self._pread_dropped(length_bytes, offset)
        finally:
            os.close(descriptor)

    def prefetch(self, length_bytes: int, offset: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length_bytes, os.POSIX_FADV_WILLNEED)

    def fdatasync(self) -> None:
        os.fdatasync(self._descriptor)

    def fsync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _pread_dropped(self, length_bytes: int, offset: int) -> bytes:
        """For file systems without direct reads: the next best is an empty cache."""
        os.posix_fadvise(self._descriptor, offset, length_bytes, os.POSIX_FADV_DONTNEED)
        return self.pread(length_bytes, offset)

    def _write_rest(self, data: bytes, offset: int) -> None:
        # A limit or a full disk may cut a write short; the next one succeeds or says why not.
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            if written == 0:
                raise OSError(errno.EIO, "a write made no progress")
            data = data[written:]
            offset += written


class PosixFileSystem:
    """The operating system's files."""

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        return PosixFile(os.open(path, flags, 0o600))

    def map(self, path: str) -> memoryview:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def list_names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def fsync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def usage(self, directory: str) -> DiskUsage:
        found = os.statvfs(directory)
        # As df counts: what is kept for others (root, quotas) is not there at all.
        block_count = found.f_blocks - found.f_bfree + found.f_bavail
        return DiskUsage(block_count * found.f_frsize, found.f_bavail * found.f_frsize)


def _read_aligned(descriptor: int, length_bytes: int, offset: int) -> bytes:
    """What O_DIRECT asks for: whole blocks, into memory that begins at a page."""
    start = offset // _BLOCK_BYTES * _BLOCK_BYTES
    size = -(-(offset + length_bytes - start) // _BLOCK_BYTES) * _BLOCK_BYTES
    if length_bytes == 0:
        return b""
    done = 0
    with contextlib.closing(mmap.mmap(-1, size)) as buffer:
        with memoryview(buffer) as view:
            while done < size:
                with view[done:] as rest:
                    count = os.preadv(descriptor, [rest], start + done)
                done += count
                if count == 0 or count % _BLOCK_BYTES:
                    break  # the end of the file
        return buffer[offset - start : min(done, offset - start + length_bytes)]


class FileWindow:
    """Sequential reading of a file: bytes by offset, searches, and what could not be read.

    A block that fails to read counts as zeros and is remembered in `unreadable`, so that one bad
    sector costs what stands in it and nothing else.

    Args:
        file: is not closed by the window.
        is_direct: read past the page cache.
    """

    def __init__(self, file: DiskFile, *, is_direct: bool = False) -> None:
        self.size_bytes = file.size_bytes()
        self.unreadable: list[tuple[int, int]] = []
        """(start, end) of blocks, in the order in which they were met."""
        self._pread = file.pread_direct if is_direct else file.pread
        self._base = 0
        self._data = b""

    def show(self, offset: int, length_bytes: int) -> tuple[bytes, int]:
        """Bytes that hold the range, as far as the file does, and the range's index in them."""
        index = offset - self._base
        if index < 0 or index + length_bytes > len(self._data):
            self._base = offset
            self._data = self._read(offset, max(length_bytes, WINDOW_BYTES))
            index = 0
        return self._data, index

    def slice(self, offset: int, length_bytes: int) -> bytes:
        """The bytes of a range, fewer at the end of the file."""
        data, index = self.show(offset, length_bytes)
        return data[index : index + length_bytes]

    def find(self, wanted: bytes, start: int, limit: int) -> int:
        """First multiple of 8 in start … limit − 1 where `wanted` begins; `limit` if none does."""
        offset = start
        while offset < limit:
            data, index = self.show(offset, len(wanted))
            at = data.find(wanted, index, index + limit - offset)
            if at < 0:
                # It may lie across the end of the window: the last few bytes are looked at again.
                offset = max(offset + 8, self._base + (len(data) - len(wanted)) // 8 * 8)
            else:
                offset += at - index
                if offset % 8 == 0:
                    return offset
                offset += -offset % 8
        return limit

    def find_last_byte(self, start: int, limit: int) -> int:
        """Offset behind the last byte of the range that is not zero; `start` if all are."""
        end = start
        for offset in range(start, limit, WINDOW_BYTES):
            data = self.slice(offset, min(WINDOW_BYTES, limit - offset))
            if data != _ZEROS[: len(data)]:
                end = offset + len(data.rstrip(b"\0"))
        return end

    def _read(self, offset: int, length_bytes: int) -> bytes:
        try:
            return self._pread(length_bytes, offset)
        except OSError:
            end = min(offset + length_bytes, self.size_bytes)
            first = offset // _BLOCK_BYTES * _BLOCK_BYTES
            blocks = [
                self._read_block(max(at, offset), min(at + _BLOCK_BYTES, end))
                for at in range(first, end, _BLOCK_BYTES)
            ]
            return b"".join(blocks)

    def _read_block(self, start: int, end: int) -> bytes:
        try:
            return self._pread(end - start, start)
        except OSError:
            block = start // _BLOCK_BYTES * _BLOCK_BYTES
            bad = (block, min(block + _BLOCK_BYTES, self.size_bytes))
            if bad not in self.unreadable:
                self.unreadable.append(bad)
            return bytes(end - start)
