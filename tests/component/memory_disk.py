"""A disk in memory that can lose what was not synced: a FileSystem for the storage's tests.

Each file has a durable and a volatile layer, each directory names that are durable and operations
that no sync covers yet. `hook` sees every operation before it happens, and may count, wait, fail or
cut the power; `survive` gives the disk as a power cut leaves it, sector by sector and name by name.
A sync that fails loses what it was for: it stays readable, but not past the page cache.

Not the simulator's disk, which also misdirects, slows and fills up. Used by the component tests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duramen_bookie.file_system import DiskFile, DiskUsage

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
TOTAL_BYTES = 1 << 40
Hook = Callable[[str], None]


class Change(NamedTuple):
    """A name that was made, given to another file, or (without a new one) removed."""

    old: str | None
    new: str | None
    file: MemoryFile
    replaced: MemoryFile | None


class PowerCut(Exception):
    """The machine stops here; not an OSError, nobody may handle it."""


class MemoryFile:
    """Bytes with a durable layer and the writes that are not in it yet."""

    def __init__(self, disk: MemoryDisk, data: bytes = b"") -> None:
        self.disk = disk
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.unsynced: list[tuple[int, bytes]] = []
        self.bad_blocks: set[int] = set()

    def size_bytes(self) -> int:
        return len(self.data)

    def preallocate(self, size_bytes: int) -> None:
        self.disk.operate("preallocate")
        self._extend(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self.disk.operate("truncate")
        del self.data[size_bytes:]
        self._extend(size_bytes)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        self.disk.operate("pwritev")
        data = b"".join(buffers)
        self._extend(offset + len(data))
        self.data[offset : offset + len(data)] = data
        self.unsynced.append((offset, data))

    def pread(self, length_bytes: int, offset: int) -> bytes:
        return self._read(self.data, length_bytes, offset)

    def pread_direct(self, length_bytes: int, offset: int) -> bytes:
        """What is dirty is written first; what a failed sync has lost is not dirty any more."""
        data = self.durable.ljust(len(self.data), b"\0")
        for start, written in self.unsynced:
            data[start : start + len(written)] = written
        return self._read(data, length_bytes, offset)

    def prefetch(self, length_bytes: int, offset: int) -> None:
        pass

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")

    def close(self) -> None:
        pass

    def spoil(self, offset: int, data: bytes) -> None:
        """Rot: other bytes stand there, on the disk and in what is read."""
        self.data[offset : offset + len(data)] = data
        self.durable[offset : offset + len(data)] = data

    def survive(self, disk: MemoryDisk, keep: Callable[[], bool]) -> MemoryFile:
        """The file after a power cut; `keep` is asked for each unsynced sector and for the size."""
        data = bytearray(self.durable)
        if len(data) != len(self.data) and keep():
            del data[len(self.data) :]
            data.extend(bytes(len(self.data) - len(data)))
        for offset, written in self.unsynced:
            end = offset + len(written)
            first = offset // SECTOR_BYTES * SECTOR_BYTES
            for sector in range(first, end, SECTOR_BYTES):
                start, stop = max(sector, offset), min(sector + SECTOR_BYTES, end)
                if keep() and stop <= len(data):
                    data[start:stop] = written[start - offset : stop - offset]
        return MemoryFile(disk, bytes(data))

    def _sync(self, name: str) -> None:
        try:
            self.disk.operate(name)
        except OSError:
            self.unsynced.clear()
            raise
        if len(self.durable) != len(self.data):
            del self.durable[len(self.data) :]
            self.durable.extend(bytes(len(self.data) - len(self.durable)))
        for offset, written in self.unsynced:
            self.durable[offset : offset + len(written)] = written[: len(self.data) - offset]
        self.unsynced.clear()

    def _extend(self, size_bytes: int) -> None:
        more_bytes = max(0, size_bytes - len(self.data))
        if more_bytes > self.disk.usage("").free_bytes:
            raise OSError(errno.ENOSPC, "the disk is full")
        self.data.extend(bytes(more_bytes))

    def _read(self, data: bytearray, length_bytes: int, offset: int) -> bytes:
        blocks = range(offset // BLOCK_BYTES, -(-(offset + length_bytes) // BLOCK_BYTES))
        if self.bad_blocks and not self.bad_blocks.isdisjoint(blocks):
            raise OSError(errno.EIO, "bad sector")
        return bytes(data[offset : offset + length_bytes])


class MemoryDisk:
    """A FileSystem in memory; names, too, are durable only after their directory was synced."""

    def __init__(self, hook: Hook | None = None) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.hook = hook
        self.counts: dict[str, int] = {}
        self.total_bytes = TOTAL_BYTES
        self.unsynced_names: list[Change] = []

    def operate(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.hook is not None:
            self.hook(name)

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        if is_new:
            assert path not in self.files, path
            self.operate("create")
            self._change(None, path, MemoryFile(self))
        return self._find(path)

    def map(self, path: str) -> memoryview:
        return memoryview(bytes(self._find(path).data))

    def exists(self, path: str) -> bool:
        return path in self.files

    def size_bytes(self, path: str) -> int:
        return len(self._find(path).data)

    def list_names(self, directory: str) -> list[str]:
        inside = [path for path in self.files if _directory_of(path) == directory]
        return sorted(path.removeprefix(f"{directory}/") for path in inside)

    def make_directory(self, directory: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.operate("rename")
        self._change(old, new, self._find(old))

    def remove(self, path: str) -> None:
        self.operate("remove")
        self._change(path, None, self._find(path))

    def fsync_directory(self, directory: str) -> None:
        self.operate("fsync_directory")
        self.unsynced_names = [
            change
            for change in self.unsynced_names
            if directory not in {_directory_of(path) for path in change[:2] if path is not None}
        ]

    def usage(self, directory: str) -> DiskUsage:
        # Other threads make files meanwhile: the list is taken at once.
        used_bytes = sum(len(file.data) for file in list(self.files.values()))
        return DiskUsage(self.total_bytes, max(0, self.total_bytes - used_bytes))

    def survive(self, keep: Callable[[], bool]) -> MemoryDisk:
        """The disk after a power cut; `keep` is asked for whatever was not synced."""
        disk = MemoryDisk()
        disk.total_bytes = self.total_bytes
        names = dict(self.files)
        for old, new, file, replaced in reversed(self.unsynced_names):
            if keep():
                continue
            if new is not None and names.get(new) is file:
                del names[new]
                if replaced is not None:
                    names[new] = replaced
            if old is not None:
                names.setdefault(old, file)
        for path, file in names.items():
            disk.files[path] = file.survive(disk, keep)
        return disk

    def copy(self) -> MemoryDisk:
        """The same bytes on another disk, all of them durable."""
        return self.survive(lambda: True)

    @property
    def last(self) -> MemoryFile:
        """The journal file with the highest number."""
        names = [path.rpartition("/") for path in self.files if path.endswith(".dj")]
        return self.files["".join(max(name for name in names if name[2][0].isdigit()))]

    def _find(self, path: str) -> MemoryFile:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        return self.files[path]

    def _change(self, old: str | None, new: str | None, file: MemoryFile) -> None:
        replaced = None if new is None else self.files.get(new)
        if old is not None:
            del self.files[old]
        if new is not None:
            self.files[new] = file
        self.unsynced_names.append(Change(old, new, file, replaced))


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]
