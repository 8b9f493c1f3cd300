"""Simulated disk: the FileSystem port of the bookie with a durable and a volatile layer.

The production JournalWriter and replay run on it, so torn tails, lost unsynced data and flipped
bits reach the real parser. A power cut keeps or loses every unsynced 512-byte sector and every
unsynced name on its own; a kill keeps all. A failed sync leaves an unknown part of what was
written, as a kernel does.

Calls return at once: the time that a sync takes is added by the process (`processes.BookieNode`).
Called by `processes` and `nemesis`. Source: docs/protocol/journal.md, docs/testing.md.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duramen_bookie.file_system import DiskFile, DiskUsage

SECTOR_BYTES: Final = 512
BLOCK_BYTES: Final = 4096
TOTAL_BYTES: Final = 1 << 40
_USUALLY_FREE_BYTES: Final = TOTAL_BYTES // 2
_RECENT_BYTES: Final = 1500


class PowerCut(Exception):
    """The machine stops in the middle of an operation; nobody may handle it but the world."""


class SimFile:
    """A file: `data` is what is read, `durable` what a power cut leaves for certain."""

    def __init__(self, disk: SimDisk, *, is_finished_once: bool = False) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.proved_below = 0
        """Two synced writes were begun at or above: what is below stays proved durable."""
        self._disk = disk
        self._is_finished_once = is_finished_once
        self._unsynced: list[tuple[int, bytes]] = []
        self._last_write = 0
        self._synced_write = 0

    def size_bytes(self) -> int:
        return len(self.data)

    def preallocate(self, size_bytes: int) -> None:
        self._disk.operate()
        self._disk.take_space(size_bytes - len(self.data))
        self.data.extend(bytes(max(0, size_bytes - len(self.data))))

    def truncate(self, size_bytes: int) -> None:
        self._disk.operate()
        assert size_bytes >= len(self.data), "nothing here makes a file shorter"
        self.data.extend(bytes(size_bytes - len(self.data)))

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        self._disk.operate()
        data = b"".join(buffers)
        end = offset + len(data)
        if end > len(self.data):
            self._disk.take_space(end - len(self.data))
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = data
        self._unsynced.append((offset, data))
        self._last_write = offset

    def pread(self, length_bytes: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + length_bytes])

    def pread_direct(self, length_bytes: int, offset: int) -> bytes:
        # A failed sync here loses its writes for readers, too: the cache is never ahead of it.
        return self.pread(length_bytes, offset)

    def prefetch(self, length_bytes: int, offset: int) -> None:
        pass

    def fdatasync(self) -> None:
        self._sync()
        self._disk.on_synced()

    def fsync(self) -> None:
        self._sync()

    def close(self) -> None:
        pass

    def _sync(self) -> None:
        self._disk.operate()
        if self._disk.fails_next_sync:
            self._disk.fails_next_sync = False
            self.lose_unsynced(self._disk.rng)
            raise OSError(errno.EIO, "the sync failed")
        if len(self.durable) < len(self.data):
            self.durable.extend(bytes(len(self.data) - len(self.durable)))
        for offset, data in self._unsynced:
            self.durable[offset : offset + len(data)] = data
        if self._unsynced:
            self.proved_below = self._synced_write
            self._synced_write = self._last_write
        if self._is_finished_once:
            self.proved_below = len(self.durable)
        self._unsynced.clear()

    def forget_proofs(self) -> None:
        """The file has another name, and another use."""
        self.proved_below = self._last_write = self._synced_write = 0

    def lose_unsynced(self, rng: random.Random) -> bool:
        """Keep or lose each unsynced sector; whether a write was kept in part only."""
        kept = lost = 0
        if len(self.durable) < len(self.data) and rng.random() < 0.5:
            self.durable.extend(bytes(len(self.data) - len(self.durable)))
        ratio = rng.choice((0.0, 0.5, 0.9))
        for offset, data in self._unsynced:
            end = offset + len(data)
            for sector in range(offset // SECTOR_BYTES * SECTOR_BYTES, end, SECTOR_BYTES):
                start, stop = max(sector, offset), min(sector + SECTOR_BYTES, end)
                if rng.random() < ratio and stop <= len(self.durable):
                    self.durable[start:stop] = data[start - offset : stop - offset]
                    kept += 1
                else:
                    lost += 1
        self._unsynced.clear()
        self.data = bytearray(self.durable)
        return kept > 0 and lost > 0

    def flip_bit(self, offset: int, bit: int) -> None:
        """Rot: both layers change, nobody is told."""
        self.data[offset] ^= 1 << bit
        if offset < len(self.durable):
            self.durable[offset] ^= 1 << bit


class NameChange(NamedTuple):
    """A name that was made, given to another file, or (without a new one) removed."""

    old: str | None
    new: str | None
    file: SimFile
    replaced: SimFile | None


class SimDisk:
    """Files by path; one per bookie incarnation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.files: dict[str, SimFile] = {}
        self.fails_next_sync = False
        self.cut_in_operations: int | None = None
        """The power goes before so many operations more."""
        self.slow_us = 0
        self.free_bytes = _USUALLY_FREE_BYTES
        self.is_rotten = False
        """Whether a bit ever flipped here."""
        self.on_synced: Callable[[], None] = _ignore
        self._unsynced_names: list[NameChange] = []

    def operate(self) -> None:
        """Before every operation that changes something."""
        if self.cut_in_operations is not None:
            self.cut_in_operations -= 1
            if self.cut_in_operations < 0:
                raise PowerCut

    def take_space(self, size_bytes: int) -> None:
        """Before a file becomes longer; what others fill the disk with is all that fills it."""
        if size_bytes > self.free_bytes:
            raise OSError(errno.ENOSPC, "the disk is full")

    # --- FileSystem ------------------------------------------------------------------------------

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        assert (path not in self.files) is is_new, path
        if is_new:
            self.operate()
            is_cold_files = path.endswith((".de", ".idx"))
            self._change(None, path, SimFile(self, is_finished_once=is_cold_files))
        return self.files[path]

    def map(self, path: str) -> memoryview:
        return memoryview(bytes(self.files[path].data))

    def exists(self, path: str) -> bool:
        return path in self.files

    def size_bytes(self, path: str) -> int:
        return len(self.files[path].data)

    def usage(self, directory: str) -> DiskUsage:
        return DiskUsage(TOTAL_BYTES, self.free_bytes)

    def list_names(self, directory: str) -> list[str]:
        inside = [path for path in self.files if _directory_of(path) == directory]
        return sorted(path.removeprefix(f"{directory}/") for path in inside)

    def make_directory(self, directory: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.operate()
        file = self.files[old]
        file.forget_proofs()
        self._change(old, new, file)

    def remove(self, path: str) -> None:
        self.operate()
        self._change(path, None, self.files[path])

    def fsync_directory(self, directory: str) -> None:
        self.operate()
        self._unsynced_names = [
            change
            for change in self._unsynced_names
            if directory not in {_directory_of(path) for path in change[:2] if path is not None}
        ]

    # --- What befalls it -------------------------------------------------------------------------

    def fill(self, free_ratio: float) -> None:
        """Something else takes the space, up to this part of the disk."""
        self.free_bytes = int(TOTAL_BYTES * free_ratio)

    def empty(self) -> None:
        """There is space again."""
        self.free_bytes = _USUALLY_FREE_BYTES

    def cut_power(self) -> bool:
        """Lose what was not synced; whether a write is torn."""
        is_torn = False
        self._lose_names()
        for _, file in sorted(self.files.items()):
            is_torn |= file.lose_unsynced(self.rng)
        self.reset()
        return is_torn

    def _lose_names(self) -> None:
        """Keep or undo each unsynced change of a name."""
        for old, new, file, replaced in reversed(self._unsynced_names):
            if self.rng.random() < 0.5:
                continue
            if new is not None and self.files.get(new) is file:
                del self.files[new]
                if replaced is not None:
                    self.files[new] = replaced
            if old is not None:
                self.files.setdefault(old, file)
        self._unsynced_names.clear()

    def _change(self, old: str | None, new: str | None, file: SimFile) -> None:
        replaced = None if new is None else self.files.get(new)
        if old is not None:
            del self.files[old]
        if new is not None:
            self.files[new] = file
        self._unsynced_names.append(NameChange(old, new, file, replaced))

    def reset(self) -> None:
        """The machine is new: no fault is pending."""
        self.fails_next_sync = False
        self.cut_in_operations = None
        self.slow_us = 0
        self.on_synced = _ignore

    def rot(self, *, is_recent: bool = False) -> int | None:
        """Flip a bit below what is proved durable; its offset, None if there is nothing.

        Args:
            is_recent: in the newest journal file, not far from the end of what is proved.
        """
        files = [
            file
            for path, file in sorted(self.files.items())
            if file.proved_below > BLOCK_BYTES and (path.endswith(".dj") or not is_recent)
        ]
        if not files:
            return None
        file = files[-1] if is_recent else self.rng.choice(files)
        first = max(BLOCK_BYTES, file.proved_below - _RECENT_BYTES) if is_recent else BLOCK_BYTES
        offset = self.rng.randrange(first, file.proved_below)
        self.is_rotten = True
        file.flip_bit(offset, self.rng.randrange(8))
        return offset


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def _ignore() -> None:
    """Nobody listens."""
