"""Whose disk this is: the cookie, the lock and the DIRTY file of a data directory.

A bookie's identity stands twice, in `<data>/cookie.json` and in ZooKeeper's `bookies/<id>`. Both
and equal: go on. Neither, and the directory is empty: format, which begins a new incarnation.
Anything else is a named state (DiskLost, WrongCluster, StaleDisk) that a person decides about: a
bookie that formatted by itself would answer "no such entry" for what its lost disk held (R1,
BK#4812).

A cookie is written with `is_formatting` first, then the node, then the cookie without it: a crash
in between is finished by the next start, since such a disk holds nothing yet.
Called by the bookie's service at start and stop. Source: 02-storage "Identity".
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from duramen.ids import BookieId, Incarnation
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.metadata_store import Conflict, ConflictKind, MetadataStore, Stored
from duramen.runtime.role import StartRefusedError
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node, spell_node

FORMAT: Final = 1
"""Of the data directory: which files there are and what they mean."""

COOKIE: Final = "cookie.json"
DIRTY: Final = "DIRTY"
LOCK: Final = "LOCK"
_NOT_DATA: Final = frozenset({COOKIE + ".new", DIRTY, LOCK, "lost+found"})
"""What an empty directory may hold: the last one is a file system's own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cookie:
    """What `cookie.json` says."""

    cluster_uuid: str
    bookie_id: BookieId
    incarnation: Incarnation
    volume_uuid: str
    format: int = FORMAT
    is_formatting: bool = False


class DataDirectory:
    """A bookie's data directory, held by this process alone.

    Raises:
        StartRefusedError: another process holds it, or it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartRefusedError(f"{path} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StartRefusedError(
                f"{path} is held by another process: stop that one, or give this one its own "
                "--data-dir"
            ) from error

    def is_empty(self) -> bool:
        """Whether nothing of a bookie is here."""
        return all(name in _NOT_DATA for name in os.listdir(self.path))

    def is_dirty(self) -> bool:
        """Whether the last process here did not stop cleanly."""
        return (self.path / DIRTY).exists()

    def mark_dirty(self) -> None:
        """Durably say that a process is at work."""
        self._write(DIRTY, b"")

    def mark_clean(self) -> None:
        """Durably say that the process has stopped cleanly."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / DIRTY)
        _sync_directory(self.path)

    def read_cookie(self) -> Cookie | None:
        """The cookie, or None if there is none.

        Raises:
            StartRefusedError: it is unreadable or of a newer format.
        """
        file = self.path / COOKIE
        try:
            document = json.loads(file.read_bytes())
            version = int(document["format"])
            cookie = Cookie(**document) if version <= FORMAT else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StartRefusedError(
                f"StaleDisk: {file} cannot be read ({error!r}): restore it, or take this disk "
                "away and follow the way out of DiskLost"
            ) from error
        if cookie is None:
            raise StartRefusedError(
                f"StaleDisk: {self.path} has format {version}, newer than {FORMAT}: start the "
                "newer version of duramen-bookie that wrote it"
            )
        return cookie

    def write_cookie(self, cookie: Cookie) -> None:
        """Replace the cookie, durably."""
        document = json.dumps(dataclasses.asdict(cookie), sort_keys=True, indent=1)
        self._write(COOKIE + ".new", document.encode())
        os.replace(self.path / (COOKIE + ".new"), self.path / COOKIE)
        _sync_directory(self.path)

    def release(self) -> None:
        """Give the directory back."""
        os.close(self._lock)

    def _write(self, name: str, data: bytes) -> None:
        with (self.path / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(self.path)


async def establish_identity(
    directory: DataDirectory,
    store: MetadataStore,
    paths: Paths,
    bookie_id: BookieId,
    *,
    region: str,
    rack: str,
) -> Cookie:
    """Compare the cookie with ZooKeeper, or format an empty directory of an unknown bookie.

    Raises:
        StartRefusedError: DiskLost, WrongCluster or StaleDisk, with the way out.
        MetadataError: ZooKeeper gives no answer; try again.
    """
    cluster_uuid = await ensure_cluster(store, paths)
    path = f"{paths.bookies}/{bookie_id}"
    await store.sync(path)
    found = await store.get(path)
    known = _read_bookie(path, found)
    cookie = directory.read_cookie()
    if cookie is None:
        _refuse_without_cookie(directory, path, bookie_id, known)
        cookie = Cookie(
            cluster_uuid, bookie_id, Incarnation(uuid4().hex), uuid4().hex, is_formatting=True
        )
        directory.write_cookie(cookie)
    _refuse_mismatch(cookie, cluster_uuid, path, bookie_id, known)
    fields = {**(known or {"weight": 1.0}), "region": region, "rack": rack}
    fields["incarnation"] = cookie.incarnation
    if found is None:
        await _create(store, path, spell_node(fields))
    elif known is not None and (known.get("region"), known.get("rack")) != (region, rack):
        with contextlib.suppress(Conflict):  # somebody changes its weight: the next start tells it
            await store.set(path, spell_node(fields), version=found.version)
    if cookie.is_formatting:
        cookie = dataclasses.replace(cookie, is_formatting=False)
        directory.write_cookie(cookie)
    return cookie


def _read_bookie(path: str, found: Stored | None) -> dict[str, Any] | None:
    if found is None:
        return None
    try:
        return read_node(found.data)
    except MetadataJsonError as error:
        raise StartRefusedError(f"{path} in ZooKeeper cannot be read: {error}") from error


def _refuse_without_cookie(
    directory: DataDirectory, path: str, bookie_id: BookieId, known: dict[str, Any] | None
) -> None:
    if known is not None:
        raise StartRefusedError(
            f"DiskLost: {directory.path} has no cookie, but ZooKeeper knows {bookie_id} as "
            f"incarnation {known.get('incarnation')}: mount the disk that it had, or, if that is "
            f"gone for ever, delete {path} to start a new incarnation that holds nothing"
        )
    if not directory.is_empty():
        raise StartRefusedError(
            f"StaleDisk: {directory.path} has files but no cookie: give {bookie_id} an empty "
            "directory, or restore its cookie.json"
        )


def _refuse_mismatch(
    cookie: Cookie,
    cluster_uuid: str,
    path: str,
    bookie_id: BookieId,
    known: dict[str, Any] | None,
) -> None:
    if cookie.cluster_uuid != cluster_uuid:
        raise StartRefusedError(
            f"WrongCluster: the disk belongs to cluster {cookie.cluster_uuid}, and this is "
            f"{cluster_uuid}: check --cluster and --zookeeper, or use an empty directory"
        )
    if cookie.bookie_id != bookie_id:
        raise StartRefusedError(
            f"StaleDisk: the disk belongs to bookie {cookie.bookie_id}, not {bookie_id}: check "
            "--id and --data-dir"
        )
    if known is None and not cookie.is_formatting:
        raise StartRefusedError(
            f"StaleDisk: {path} is not in ZooKeeper, so {bookie_id} was removed from the cluster: "
            "use an empty directory to join as a new incarnation"
        )
    if known is not None and known.get("incarnation") != cookie.incarnation:
        raise StartRefusedError(
            f"StaleDisk: the disk holds incarnation {cookie.incarnation} of {bookie_id}, and "
            f"ZooKeeper knows {known.get('incarnation')}: use the disk of that one, or an empty "
            f"directory after deleting {path}"
        )


async def _create(store: MetadataStore, path: str, data: bytes) -> None:
    try:
        await store.create(path, data, make_parents=True)
    except Conflict as conflict:
        if conflict.kind is not ConflictKind.NODE_EXISTS:
            raise
        found = await store.get(path)  # perhaps one's own, after an answer was lost
        if found is None or found.data != data:
            raise StartRefusedError(
                f"StaleDisk: another bookie took {path} at the same moment: give each its own --id"
            ) from conflict


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
