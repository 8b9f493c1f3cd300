"""A disk in memory that can lose what was not synced: a FileSystem for the journal's tests.

Each file has a durable and a volatile layer; names are durable once their directory was synced.
`hook` sees every operation before it happens, and may count, wait, fail or cut the power; `survive`
gives the disk as a power cut leaves it, sector by sector. Not the simulator's disk, which also
misdirects, slows and fills up. Used by the component tests of the bookie's storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duramen_bookie.file_system import DiskFile

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
Hook = Callable[[str], None]


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
        self.data.extend(bytes(size_bytes - len(self.data)))

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        self.disk.operate("pwritev")
        data = b"".join(buffers)
        assert offset + len(data) <= len(self.data), "the journal wrote beyond its file"
        self.data[offset : offset + len(data)] = data
        self.unsynced.append((offset, data))

    def pread(self, length_bytes: int, offset: int) -> bytes:
        blocks = range(offset // BLOCK_BYTES, -(-(offset + length_bytes) // BLOCK_BYTES))
        if self.bad_blocks and not self.bad_blocks.isdisjoint(blocks):
            raise OSError(5, "bad sector")
        return bytes(self.data[offset : offset + length_bytes])

    def fdatasync(self) -> None:
        self.disk.operate("fdatasync")
        self.durable = bytearray(self.data)
        self.unsynced.clear()

    def fsync(self) -> None:
        self.disk.operate("fsync")
        self.durable = bytearray(self.data)
        self.unsynced.clear()

    def close(self) -> None:
        pass

    def survive(self, disk: MemoryDisk, keep: Callable[[], bool]) -> MemoryFile:
        """The file after a power cut; `keep` is asked for each unsynced sector and for the size."""
        data = bytearray(self.durable)
        if len(data) < len(self.data) and keep():
            data.extend(bytes(len(self.data) - len(data)))
        for offset, written in self.unsynced:
            end = offset + len(written)
            first = offset // SECTOR_BYTES * SECTOR_BYTES
            for sector in range(first, end, SECTOR_BYTES):
                start, stop = max(sector, offset), min(sector + SECTOR_BYTES, end)
                if keep() and stop <= len(data):
                    data[start:stop] = written[start - offset : stop - offset]
        return MemoryFile(disk, bytes(data))


class MemoryDisk:
    """A FileSystem in memory; names, too, are durable only after their directory was synced."""

    def __init__(self, hook: Hook | None = None) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.unsynced_names: set[str] = set()
        self.hook = hook
        self.counts: dict[str, int] = {}

    def operate(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.hook is not None:
            self.hook(name)

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        assert (path not in self.files) is is_new, path
        if is_new:
            self.operate("create")
            self.files[path] = MemoryFile(self)
            self.unsynced_names.add(path)
        return self.files[path]

    def list_names(self, directory: str) -> list[str]:
        return sorted(path.removeprefix(f"{directory}/") for path in self.files)

    def make_directory(self, directory: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.operate("rename")
        self.files[new] = self.files.pop(old)
        self.unsynced_names.add(new)

    def fsync_directory(self, directory: str) -> None:
        self.operate("fsync_directory")
        self.unsynced_names.clear()

    def survive(self, keep: Callable[[], bool]) -> MemoryDisk:
        """The disk after a power cut; `keep` is asked for whatever was not synced."""
        disk = MemoryDisk()
        for path, file in self.files.items():
            if path not in self.unsynced_names or keep():
                disk.files[path] = file.survive(disk, keep)
        return disk

    def copy(self) -> MemoryDisk:
        """The same bytes on another disk, all of them durable."""
        return self.survive(lambda: True)

    @property
    def last(self) -> MemoryFile:
        """The file whose name sorts last."""
        return self.files[max(self.files)]
