"""A cold store in a folder of this machine, or on a file system that all machines mount.

A file is written under a name of its own in `.incoming`, made durable, and linked to its path:
`link` refuses a name that is taken, at once for everybody, where `rename` would replace it. The
folder itself is never made here: an absent one is a disk that is not mounted, and files written
beneath its mount point would vanish with the next mount. The file system has to know hard links.

Called by `opening` for `file://`. Source: docs/cold-store.md.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from duramen.runtime.cold.store import (
    AlreadyThere,
    ColdFile,
    ColdStore,
    ColdStoreDown,
    NotThere,
    check_path,
    check_prefix,
)
from duramen.runtime.folders import sync_folder

_INCOMING: Final = ".incoming"

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FolderStore(ColdStore):
    """Files under one existing folder."""

    def __init__(self, root: Path) -> None:
        self.url = root.as_uri()
        self._root = root

    def put_new(self, path: str, data: bytes) -> None:
        """See the port."""
        writer = self.open_writer(path)
        try:
            writer.write(data)
            writer.commit()
        finally:
            writer.abort()

    def open_writer(self, path: str) -> FolderWriter:
        """See the port."""
        target = self._root / check_path(path)
        with self._translated(path):
            self._check_root()
            if target.exists():
                raise AlreadyThere(path)
            _make_folder(self._root / _INCOMING, self._root)
            incoming = self._root / _INCOMING / uuid4().hex
            file = incoming.open("xb")
        return FolderWriter(self, path, incoming, file)

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See the port."""
        with self._translated(path), (self._root / check_path(path)).open("rb") as file:
            return os.pread(file.fileno(), size_bytes, offset)

    def size(self, path: str) -> int:
        """See the port."""
        with self._translated(path):
            found = (self._root / check_path(path)).stat()
        if not stat.S_ISREG(found.st_mode):
            raise NotThere(path)
        return found.st_size

    def list(self, prefix: str) -> Iterator[ColdFile]:
        """See the port."""
        top = self._root / check_prefix(prefix)
        with self._translated(prefix):
            self._check_root()
            for folder, folders, names in os.walk(top, onerror=_raise_unless_gone):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    found = self._look(Path(folder, name))
                    if found is not None:
                        yield found

    def delete(self, path: str) -> None:
        """See the port. Folders stay: another writer may be about to use them."""
        target = self._root / check_path(path)
        with self._translated(path):
            self._check_root()
            with suppress(FileNotFoundError):
                target.unlink()
                sync_folder(target.parent)

    def drop_unfinished(self, before_unix_ms: int) -> int:
        """See the port."""
        count = 0
        with self._translated(_INCOMING):
            self._check_root()
            if not (self._root / _INCOMING).exists():
                return 0
            for incoming in sorted((self._root / _INCOMING).iterdir()):
                with suppress(FileNotFoundError):
                    if _modified_unix_ms(incoming.stat()) < before_unix_ms:
                        incoming.unlink()
                        count += 1
        return count

    def link(self, incoming: Path, path: str) -> None:
        """Give a durable file of `.incoming` its path; for `FolderWriter`."""
        target = self._root / path
        with self._translated(path):
            self._check_root()
            _make_folder(target.parent, self._root)
            try:
                os.link(incoming, target)
            except FileExistsError:
                raise AlreadyThere(path) from None
            sync_folder(target.parent)

    def _look(self, path: Path) -> ColdFile | None:
        with suppress(FileNotFoundError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                name = path.relative_to(self._root).as_posix()
                return ColdFile(name, found.st_size, _modified_unix_ms(found))
        return None

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise ColdStoreDown(f"the folder {self._root} is not there: mount it, or make it")

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """What the file system raises, in the port's words."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self._check_root()
            raise NotThere(path) from error
        except OSError as error:
            hint = ": it needs hard links" if error.errno in _NO_LINKS else ""
            raise ColdStoreDown(f"{self._root}: {error.strerror or error}{hint}") from error


class FolderWriter:
    """A file in `.incoming`."""

    def __init__(self, store: FolderStore, path: str, incoming: Path, file: BinaryIO) -> None:
        self._store = store
        self._path = path
        self._incoming = incoming
        self._file = file

    def write(self, data: bytes) -> None:
        """See the port."""
        try:
            self._file.write(data)
        except OSError as error:
            raise ColdStoreDown(f"{self._store.url}: {error.strerror or error}") from error

    def commit(self) -> None:
        """See the port."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ColdStoreDown(f"{self._store.url}: {error.strerror or error}") from error
        self._store.link(self._incoming, self._path)
        self.abort()  # the other name of the same file

    def abort(self) -> None:
        """See the port."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._incoming.unlink()


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder beneath `root`, each new level durable in the one above."""
    missing = []
    while not folder.is_dir() and folder != root:
        missing.append(folder)
        folder = folder.parent
    for level in reversed(missing):
        level.mkdir(exist_ok=True)
        sync_folder(level.parent)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _modified_unix_ms(found: os.stat_result) -> int:
    return found.st_mtime_ns // 1_000_000
