"""Simulated disk: the FileSystem port of the bookie's journal with a durable and a volatile layer.

The production JournalWriter and replay run on it, so torn tails, lost unsynced data and flipped
bits reach the real parser. A power cut keeps or loses every unsynced 512-byte sector on its own;
a kill keeps all. A failed sync leaves an unknown part of what was written, as a kernel does.

Calls return at once: the time that a sync takes is added by the process (`processes.BookieNode`).
Called by `processes` and `nemesis`. Source: 02-storage "Journal", 06-testing.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Final

from duramen_bookie.file_system import DiskFile

SECTOR_BYTES: Final = 512
BLOCK_BYTES: Final = 4096
_RECENT_BYTES: Final = 1500


class PowerCut(Exception):
    """The machine stops in the middle of an operation; nobody may handle it but the world."""


class SimFile:
    """A file: `data` is what is read, `durable` what a power cut leaves for certain."""

    def __init__(self, disk: SimDisk) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.is_named_durably = False
        self.proved_below = 0
        """Two synced writes were begun at or above: what is below stays proved durable."""
        self._disk = disk
        self._unsynced: list[tuple[int, bytes]] = []
        self._last_write = 0
        self._synced_write = 0

    def size_bytes(self) -> int:
        return len(self.data)

    def preallocate(self, size_bytes: int) -> None:
        self._disk.operate()
        self.data.extend(bytes(size_bytes - len(self.data)))

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        self._disk.operate()
        data = b"".join(buffers)
        assert offset + len(data) <= len(self.data), "the journal wrote beyond its file"
        self.data[offset : offset + len(data)] = data
        self._unsynced.append((offset, data))
        self._last_write = offset

    def pread(self, length_bytes: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + length_bytes])

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
        self._unsynced.clear()

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


class SimDisk:
    """Files by path; one per bookie incarnation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.files: dict[str, SimFile] = {}
        self.fails_next_sync = False
        self.cut_in_operations: int | None = None
        """The power goes before so many operations more."""
        self.slow_us = 0
        self.is_rotten = False
        """Whether a bit ever flipped here."""
        self.on_synced: Callable[[], None] = _ignore

    def operate(self) -> None:
        """Before every operation that changes something."""
        if self.cut_in_operations is not None:
            self.cut_in_operations -= 1
            if self.cut_in_operations < 0:
                raise PowerCut

    # --- FileSystem ------------------------------------------------------------------------------

    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        assert (path not in self.files) is is_new, path
        if is_new:
            self.operate()
            self.files[path] = SimFile(self)
        return self.files[path]

    def list_names(self, directory: str) -> list[str]:
        return sorted(path.removeprefix(f"{directory}/") for path in self.files)

    def make_directory(self, directory: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.operate()
        self.files[new] = self.files.pop(old)

    def fsync_directory(self, directory: str) -> None:
        self.operate()
        for file in self.files.values():
            file.is_named_durably = True

    # --- What befalls it -------------------------------------------------------------------------

    def cut_power(self) -> bool:
        """Lose what was not synced; whether a write is torn."""
        is_torn = False
        for path, file in list(self.files.items()):
            if not file.is_named_durably and self.rng.random() < 0.5:
                del self.files[path]
                continue
            file.is_named_durably = True
            is_torn |= file.lose_unsynced(self.rng)
        self.reset()
        return is_torn

    def reset(self) -> None:
        """The machine is new: no fault is pending."""
        self.fails_next_sync = False
        self.cut_in_operations = None
        self.slow_us = 0
        self.on_synced = _ignore

    def rot(self, *, is_recent: bool = False) -> int | None:
        """Flip a bit below what is proved durable; its offset, None if there is nothing.

        Args:
            is_recent: in the newest file, not far from the end of what is proved.
        """
        files = [file for _, file in sorted(self.files.items()) if file.proved_below > BLOCK_BYTES]
        if not files:
            return None
        file = files[-1] if is_recent else self.rng.choice(files)
        first = max(BLOCK_BYTES, file.proved_below - _RECENT_BYTES) if is_recent else BLOCK_BYTES
        offset = self.rng.randrange(first, file.proved_below)
        self.is_rotten = True
        file.flip_bit(offset, self.rng.randrange(8))
        return offset


def _ignore() -> None:
    """Nobody listens."""
