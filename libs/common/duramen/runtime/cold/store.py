"""The port to a cold store: immutable files by name, written once, read in ranges.

The archive needs little: a file that appears whole or not at all, a name that only one writer can
take, ranged reads, a listing. What a cluster believes about its archive stands in the manifest and
in the segment's node, so nothing here is updated in place, and no listing is ever a proof.

Calls block and may come from any thread. Each ends within a bound (`limits.COLD_STORE_TIMEOUT_US`
a request) whatever the network does. Paths are relative to the store's root, with `/` between
names that do not begin with a dot, such as `v1/<uuid>/0000002a/e0000000003/manifest.json`.

Not here: what the files hold (`duramen.wire.cold`). Implementations: `folder`, `s3`, `webhdfs`, and
`memory` for tests; all pass tests/component/test_cold_stores.py.
"""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple, Protocol, cast

from duramen.errors import DuramenError

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}")

_READ_BYTES: Final = 64 << 10
"""Least that `open_file` asks for: the footer of a Parquet file, in one go."""


class NotThere(Exception):
    """Definite: no file has this name now."""


class AlreadyThere(Exception):
    """Definite: a file has this name, whole, and nothing was changed.

    It may be one's own, where an answer was lost and the request repeated (by oneself or beneath
    the store): who has to know compares what it holds. Manifests name their attempt for that.
    """


class ColdStoreDown(DuramenError):
    """The store cannot be reached, refuses us, or fails: `cold_store_unavailable`, worth a retry.

    From `put_new` and `ColdWriter.commit` it is uncertain: the file may be there, or appear later,
    but then it is whole.
    """

    def __init__(self, detail: str) -> None:
        super().__init__("cold_store_unavailable", detail)


class ColdFile(NamedTuple):
    """A file as the store lists it."""

    path: str
    size_bytes: int
    modified_unix_ms: int
    """By the store's clock."""


class ColdWriter(Protocol):
    """A file being written: nothing can be read under its path before `commit` has returned.

    Use by one thread. A writer that is dropped or killed leaves nothing under the path.
    """

    def write(self, data: bytes) -> None:
        """Take the next bytes (any size; memory stays bounded).

        Raises:
            ColdStoreDown: the file cannot be finished; abort.
        """

    def commit(self) -> None:
        """Make the file readable and durable, whole.

        Raises:
            ColdStoreDown: it may or may not be there.
            AlreadyThere: a file has the path. Stores promise this only for files that were there
                when the writer was opened: choose names that nobody else takes.
        """

    def abort(self) -> None:
        """Give up and free what was stored so far. Never raises; no effect after `commit`."""


class ColdStore(Protocol):
    """A place for immutable files. One instance serves all threads of a process."""

    url: str
    """As it was opened, without secrets: for messages and `statistics`."""

    @abstractmethod
    def put_new(self, path: str, data: bytes) -> None:
        """Store a small file under a name that has none: atomic, and durable on return.

        Of any number of callers with one path exactly one succeeds, ever, and readers see its whole
        content or `NotThere`.

        Raises:
            AlreadyThere: see there.
            ColdStoreDown: uncertain.
        """

    @abstractmethod
    def open_writer(self, path: str) -> ColdWriter:
        """Begin a file of any size.

        Raises:
            AlreadyThere: a file has the path.
            ColdStoreDown: nothing was begun.
        """

    @abstractmethod
    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """The bytes `offset` … `offset + size_bytes` that exist: fewer (or none) at the end.

        Raises:
            NotThere: no such file.
            ColdStoreDown: retry later.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Size of a file in bytes.

        Raises:
            NotThere: no such file.
            ColdStoreDown: retry later.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ColdFile]:
        """Every file beneath a folder ("" for the root), in no order; none where it is absent.

        Files that come or go meanwhile may be listed or not.

        Raises:
            ColdStoreDown: the listing is not complete.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, or do nothing where there is none.

        Raises:
            ColdStoreDown: it may or may not be gone.
        """

    @abstractmethod
    def drop_unfinished(self, before_unix_ms: int) -> int:
        """Free what killed writers left that was last written before a moment; how many.

        Stores that clean up by themselves (a bucket's rule for multipart uploads) return 0.
        """

    def open_file(self, path: str) -> BinaryIO:
        """A seekable file to read from, buffered, for pyarrow; each read may block.

        Raises:
            NotThere: no such file.
            ColdStoreDown: also from its reads.
        """
        return cast("BinaryIO", io.BufferedReader(_RangedFile(self, path), _READ_BYTES))


class _RangedFile(io.RawIOBase):
    """A file as a sequence of ranged reads."""

    def __init__(self, store: ColdStore, path: str) -> None:
        self._store = store
        self._path = path
        self._size_bytes = store.size(path)
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size_bytes}[whence]
        if start + offset < 0:
            raise ValueError("a position before the file's start")
        self._offset = start + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._size_bytes - self._offset))
        data = self._store.read(self._path, self._offset, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


def check_path(path: str) -> str:
    """The path, if it is one.

    Raises:
        ValueError: empty, absolute, with "..", or with characters that some store would change.
    """
    if not path or not all(_NAME.fullmatch(name) for name in path.split("/")):
        raise ValueError(f"not a path within a cold store: {path!r}")
    return path


def check_prefix(prefix: str) -> str:
    """A folder's path without the last "/", or "" for the root.

    Raises:
        ValueError: as `check_path`.
    """
    return check_path(prefix.removesuffix("/")) if prefix else ""
