"""Whose disks these are: the cookies, locks and DIRTY file of a bookie's directories.

A bookie has a data directory, a journal and one or more ledger directories, each perhaps on a
device of its own. Each has a `cookie.json` with the bookie's identity, its own volume uuid and its
place; the data directory's also lists the volume uuids of all others, so that a directory that was
swapped, replaced or forgotten is noticed, and one that was moved with its cookie is not.

A cookie with `is_formatting` says that nothing was ever stored beside it. Whoever uses directories
holds them all by a lock, which ends with the process. Nothing is made or written by looking.

Not here: what a mismatch means (`identity`). Called by `identity`, the bookie's service and the
offline tools. Source: docs/bookie.md "Identity" and "Directories".
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from duramen.ids import BookieId, Incarnation
from duramen.runtime.folders import sync_folder
from duramen.runtime.role import StartRefusedError

FORMAT: Final = 2
"""Of a bookie's directories. 1: the journal stood in `<data>/journal`, without a cookie."""

NEWEST_FORMAT: Final = 3
"""Of directories in which there may be envelopes: a version that knows none refuses them."""

COOKIE: Final = "cookie.json"
DIRTY: Final = "DIRTY"
_NOT_DATA: Final = frozenset({COOKIE, COOKIE + ".new", DIRTY, "LOCK", "lost+found", "audit"})
"""What may stand where nothing is stored. LOCK: of format 1; lost+found: of a file
system; audit: records of its admin port."""

DATA: Final = "data"
JOURNAL: Final = "journal"
LEDGERS: Final = "ledgers"

_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")


class IdentityRefused(StartRefusedError):
    """A named state of identity that a person decides about; the name begins the sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"{type(self).__name__}: {sentence}")


class DiskLost(IdentityRefused):
    """A directory of a known bookie holds nothing."""


class StaleDisk(IdentityRefused):
    """A directory is another bookie's, another life's, in the wrong place, or cannot be read."""


class WrongCluster(IdentityRefused):
    """A directory belongs to another cluster."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cookie:
    """What a `cookie.json` says.

    `volumes`: place → volume uuid of every other directory; in the data directory's cookie alone.
    """

    cluster_uuid: str
    bookie_id: BookieId
    incarnation: Incarnation
    volume_uuid: str
    place: str = DATA
    volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    format: int = FORMAT
    is_formatting: bool = False


def encode_cookie(cookie: Cookie) -> bytes:
    """The bytes of a cookie of a present format."""
    assert FORMAT <= cookie.format <= NEWEST_FORMAT, cookie
    fields = dataclasses.asdict(cookie)
    if cookie.place != DATA:
        del fields["volumes"]
    return json.dumps(fields, sort_keys=True, indent=1).encode() + b"\n"


def parse_cookie(data: bytes) -> Cookie:
    """Read a cookie of the newest format or an older one.

    Raises:
        NewerFormat: it is of a newer one.
        ValueError: it is no cookie.
    """
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("no cookie") from error
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    version = _take(document, "format", int)
    if version > NEWEST_FORMAT:
        raise NewerFormat(version)
    if version < 1:
        raise ValueError(f"format {version}")
    cookie = Cookie(
        cluster_uuid=_take(document, "cluster_uuid", str),
        bookie_id=BookieId(_take(document, "bookie_id", str)),
        incarnation=Incarnation(_take(document, "incarnation", str)),
        volume_uuid=_take(document, "volume_uuid", str),
        place=_take(document, "place", str) if version > 1 else DATA,
        format=version,
        is_formatting=_take(document, "is_formatting", bool),
    )
    if not _INCARNATION.fullmatch(cookie.incarnation):
        raise ValueError(f"{cookie.incarnation!r} is no incarnation")
    if version == 1 or cookie.place != DATA:
        return cookie
    volumes = _take(document, "volumes", dict)
    if not all(isinstance(volume, str) for volume in volumes.values()):
        raise ValueError("a volume uuid is no text")
    return dataclasses.replace(cookie, volumes=volumes)


class NewerFormat(ValueError):
    """The format is newer than this code."""

    def __init__(self, version: int) -> None:
        super().__init__(f"format {version} is newer than {NEWEST_FORMAT}")
        self.version = version


class DirectorySight(NamedTuple):
    """What stands in a directory, as far as identity is concerned."""

    path: Path
    place: str
    cookie: Cookie | None
    has_files: bool
    """Whether anything beside the cookie stands there; empty directories do not count."""

    @property
    def settled(self) -> Cookie | None:
        """The cookie, if something may have been stored beside it."""
        return None if self.cookie is None or self.cookie.is_formatting else self.cookie

    @property
    def holds_nothing(self) -> bool:
        """Whether it is as good as empty."""
        return not self.has_files and self.settled is None


class Directory:
    """One directory of a bookie, held by this process alone from the beginning if it exists.

    Args:
        path: need not exist.
        place: `data`, `journal` or `ledgers-<index from 0>`.

    Raises:
        StartRefusedError: another process holds it, or it cannot be used.
    """

    def __init__(self, path: Path, place: str) -> None:
        self.path = path
        self.place = place
        self._lock: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self._hold()

    def make(self) -> None:
        """Make it with its parents, durably, and hold it.

        Raises:
            StartRefusedError: as the constructor.
        """
        if self._lock is not None:
            return
        try:
            missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                sync_folder(path.parent)
            self._hold()
        except OSError as error:
            raise StartRefusedError(f"{self.path} cannot be made: {error}") from error

    def look(self, neighbours: Sequence[Path] = ()) -> DirectorySight:
        """What stands here.

        Args:
            neighbours: directories of the bookie that may lie inside this one.

        Raises:
            StaleDisk: the cookie cannot be read, or is of a newer format.
            StartRefusedError: the directory cannot be read.
        """
        try:
            has_files = self._has_files({path.resolve() for path in neighbours})
        except OSError as error:
            raise StartRefusedError(f"{self.path} cannot be used: {error}") from error
        return DirectorySight(self.path, self.place, self.read_cookie(), has_files)

    def read_cookie(self) -> Cookie | None:
        """The cookie, None if there is none.

        Raises:
            StaleDisk: it cannot be read, or is of a newer format.
        """
        file = self.path / COOKIE
        try:
            return parse_cookie(file.read_bytes())
        except FileNotFoundError:
            return None
        except NewerFormat as error:
            raise StaleDisk(
                f"{self.path} has format {error.version}, newer than {NEWEST_FORMAT}: start the "
                "newer version of duramen-bookie that wrote it"
            ) from error
        except (OSError, ValueError) as error:
            raise StaleDisk(
                f"{file} cannot be read ({error}): restore it, or treat the disk as lost: empty "
                "every directory and start with --accept-new-incarnation"
            ) from error

    def write_cookie(self, cookie: Cookie) -> None:
        """Replace the cookie, durably."""
        self.write(COOKIE + ".new", encode_cookie(cookie))
        os.replace(self.path / (COOKIE + ".new"), self.path / COOKIE)
        sync_folder(self.path)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, durably."""
        with (self.path / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path)

    def remove(self, name: str) -> None:
        """Remove a file if it is there, durably."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / name)
        sync_folder(self.path)

    def release(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> None:
        # The directory itself is locked: that writes nothing, and works on a read-only mount.
        try:
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StartRefusedError(f"{self.path} cannot be used: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StartRefusedError(
                f"{self.path} is held by another process: stop that one, or give this one its own "
                f"{option_of(self.place)}"
            ) from error
        self._lock = lock

    def _has_files(self, neighbours: set[Path]) -> bool:
        if self._lock is None:
            return False
        for name in os.listdir(self.path):
            path = self.path / name
            if name in _NOT_DATA or path.resolve() in neighbours:
                continue
            if path.is_symlink() or not path.is_dir() or _has_files_below(path, neighbours):
                return True
        return False


class Directories:
    """All directories of a bookie, held by this process alone.

    Args:
        data: cookies of all, DIRTY, checkpoints.
        journal: None: `<data>/journal`.
        ledgers: none: `<data>/ledgers` alone. Their order is part of the identity.

    Raises:
        StartRefusedError: two are the same, another process holds one, or one cannot be used.
    """

    def __init__(
        self, data: Path, journal: Path | None = None, ledgers: Sequence[Path] = ()
    ) -> None:
        places = {DATA: data, JOURNAL: journal or data / "journal"}
        for index, path in enumerate(ledgers or (data / "ledgers",)):
            places[place_of_ledgers(index)] = path
        _refuse_same(places)
        self.every: tuple[Directory, ...] = ()
        """The data directory first, then the journal, then the ledger directories in order."""
        try:
            for place, path in places.items():
                self.every = (*self.every, Directory(path, place))
        except StartRefusedError:
            self.release()
            raise

    @property
    def data(self) -> Directory:
        """The directory that knows all others."""
        return self.every[0]

    @property
    def journal(self) -> Directory:
        """Where journal files are."""
        return self.every[1]

    @property
    def ledgers(self) -> tuple[Directory, ...]:
        """Where entry log files are; the index is the one that checkpoints name."""
        return self.every[2:]

    def look(self) -> tuple[DirectorySight, ...]:
        """What stands in each, in the order of `every`. Raises: as `Directory.look`."""
        paths = [directory.path for directory in self.every]
        return tuple(directory.look(paths) for directory in self.every)

    def secure_newest_format(self) -> None:
        """Have every cookie say the newest format, each durably; may be repeated.

        Raises:
            OSError: one cannot be written; others may say it by then, which is safe.
            StaleDisk: one cannot be read.
        """
        for directory in self.every:
            cookie = directory.read_cookie()
            assert cookie is not None, directory.path
            if cookie.format < NEWEST_FORMAT:
                directory.write_cookie(dataclasses.replace(cookie, format=NEWEST_FORMAT))
            else:  # a process that was killed may have left its name in the page cache only
                sync_folder(directory.path)

    def is_dirty(self) -> bool:
        """Whether the last process here did not stop cleanly."""
        return (self.data.path / DIRTY).exists()

    def mark_dirty(self) -> None:
        """Durably say that a process is at work."""
        self.data.write(DIRTY, b"")

    def mark_clean(self) -> None:
        """Durably say that the process has stopped cleanly."""
        self.data.remove(DIRTY)

    def release(self) -> None:
        """Give all of them back."""
        for directory in self.every:
            directory.release()


def place_of_ledgers(index: int) -> str:
    """Place of the ledger directory with that index, from 0."""
    return f"{LEDGERS}-{index}"


def option_of(place: str) -> str:
    """The option that names the directory of a place, for people."""
    if place in (DATA, JOURNAL):
        return f"--{place}-dir"
    number = place.removeprefix(f"{LEDGERS}-")
    return f"--ledger-dir (number {int(number) + 1})" if number.isdecimal() else place


def _refuse_same(places: Mapping[str, Path]) -> None:
    seen: dict[Path, str] = {}
    for place, path in places.items():
        other = seen.setdefault(path.resolve(), place)
        if other != place:
            raise StartRefusedError(
                f"{option_of(other)} and {option_of(place)} are both {path}: give each its own "
                "directory"
            )


def _has_files_below(root: Path, neighbours: set[Path]) -> bool:
    """Whether a tree holds anything but directories; a bookie's other directories are left out."""
    for folder, folders, files in os.walk(root, onerror=_raise):
        paths = [Path(folder, name) for name in folders]
        if files or any(path.is_symlink() and path.resolve() not in neighbours for path in paths):
            return True
        folders[:] = [path.name for path in paths if path.resolve() not in neighbours]
    return False


def _raise(error: OSError) -> None:
    raise error


def _take(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}")
    return value
