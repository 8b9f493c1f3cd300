"""A cold store in this process's memory, for tests: the port's contract without a disk.

It passes the tests of the port that the real ones pass. Tests may take it away and bring it back
(`is_down`), damage its files (`files`), count its reads, and hold readers at a gate.

Called by tests alone; no URL opens it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count

from duramen.runtime.cold.store import (
    AlreadyThere,
    ColdFile,
    ColdStore,
    ColdStoreDown,
    NotThere,
    check_path,
    check_prefix,
)


class MemoryColdStore(ColdStore):
    """Files in a dictionary."""

    def __init__(self) -> None:
        self.url = "memory:"
        self.files: dict[str, bytes] = {}
        """Content by path: what readers see. Tests may change it."""
        self.unfinished: dict[int, int] = {}
        """When each unfinished file was last written, Unix ms, by the writer's number."""
        self.is_down = False
        self.read_count = 0
        self.gate = threading.Event()
        """Cleared, reads wait at it."""
        self.gate.set()
        self._modified_unix_ms: dict[str, int] = {}
        self._numbers = count()
        self._lock = threading.Lock()

    def put_new(self, path: str, data: bytes) -> None:
        """See the port."""
        self.check_up()
        with self._lock:
            if check_path(path) in self.files:
                raise AlreadyThere(path)
            self.files[path] = bytes(data)
            self._modified_unix_ms[path] = _read_unix_ms()

    def open_writer(self, path: str) -> MemoryWriter:
        """See the port."""
        self.check_up()
        if check_path(path) in self.files:
            raise AlreadyThere(path)
        return MemoryWriter(self, path, next(self._numbers))

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See the port."""
        self.gate.wait()
        self.read_count += 1
        return self._find(path)[offset : offset + size_bytes]

    def size(self, path: str) -> int:
        """See the port."""
        return len(self._find(path))

    def list(self, prefix: str) -> Iterator[ColdFile]:
        """See the port."""
        self.check_up()
        start = check_prefix(prefix) + "/" if prefix else ""
        for path, data in sorted(self.files.items()):
            if path.startswith(start):
                yield ColdFile(path, len(data), self._modified_unix_ms.get(path, 0))

    def delete(self, path: str) -> None:
        """See the port."""
        self.check_up()
        self.files.pop(check_path(path), None)

    def drop_unfinished(self, before_unix_ms: int) -> int:
        """See the port."""
        self.check_up()
        old = [number for number, at in self.unfinished.items() if at < before_unix_ms]
        for number in old:
            self.unfinished.pop(number, None)
        return len(old)

    def check_up(self) -> None:
        """Raise what a store that cannot be reached raises, if a test says so."""
        if self.is_down:
            raise ColdStoreDown(f"{self.url} is down")

    def _find(self, path: str) -> bytes:
        self.check_up()
        data = self.files.get(check_path(path))
        if data is None:
            raise NotThere(path)
        return data


class MemoryWriter:
    """A file that nobody sees yet."""

    def __init__(self, store: MemoryColdStore, path: str, number: int) -> None:
        self._store = store
        self._path = path
        self._number = number
        self._parts: list[bytes] = []
        store.unfinished[number] = _read_unix_ms()

    def write(self, data: bytes) -> None:
        """See the port."""
        self._store.check_up()
        self._parts.append(bytes(data))
        self._store.unfinished[self._number] = _read_unix_ms()

    def commit(self) -> None:
        """See the port."""
        self._store.put_new(self._path, b"".join(self._parts))
        self.abort()

    def abort(self) -> None:
        """See the port."""
        self._store.unfinished.pop(self._number, None)


def _read_unix_ms() -> int:
    return time.time_ns() // 1_000_000
