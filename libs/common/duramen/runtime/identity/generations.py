"""Folders whose files change all at once: a generation beside the other, and a link to it.

The layout is a kubelet's: `..data` links to the folder of the generation that counts, and each file
to its name below `..data`. So a Secret that is mounted and a folder that we write are read alike.
The generation before stays until the next one, for who is about to read it.

Called by `folder`, `public_folder` and `authority`. Source: docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from duramen.runtime.folders import sync_folder
from duramen.runtime.identity.names import IdentityError

LINK: Final = "..data"
LEAF_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
BUNDLE_FILE: Final = "ca.crt"
LIST_FILE: Final = "ca.crl"
AUTHORITY_KEY_FILE: Final = "ca.key"
"""Of a CA's folder, in which no identity lies."""
_LOCK_FILE: Final = ".lock"
_OWN_MODE: Final = 0o700
_SETTLING_S: Final = 2.0
_SETTLING_LOOK_S: Final = 0.1
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


T = TypeVar("T")


class UnsettledError(IdentityError):
    """What is wrong may be right in a moment."""


def read_settled(read: Callable[[], T]) -> T:
    """What `read` gives, once nobody is copying any more; blocks for 2 s at most.

    Raises:
        IdentityError: that of the last try.
    """
    deadline_s = time.monotonic() + _SETTLING_S
    while True:
        try:
            return read()
        except UnsettledError as error:
            if time.monotonic() >= deadline_s:
                raise IdentityError(str(error)) from None
        time.sleep(_SETTLING_LOOK_S)


def resolve(folder: Path) -> Path:
    """Where the files of the generation that counts lie: looked up once.

    A kubelet links a folder within a volume into the volume's generation.

    Raises:
        UnsettledError: it has just gone.
        IdentityError: the link leads nowhere.
    """
    link = folder / LINK
    try:
        if link.is_symlink():
            return link.resolve(strict=True)
        return folder.resolve(strict=True) if folder.is_symlink() else folder
    except FileNotFoundError:
        at = link if link.is_symlink() else folder
        raise UnsettledError(f"{at} leads to nothing: write the folder anew") from None
    except (OSError, RuntimeError) as error:
        raise IdentityError(f"{link}: {error}: write the folder anew") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes the folder meanwhile; makes it, mode 0700.

    Raises:
        IdentityError: others may write it, so whatever it holds may be theirs.
        OSError: it cannot be made or locked.
    """
    if not folder.exists():
        folder.mkdir(parents=True, mode=_OWN_MODE)
        sync_folder(folder.parent)
    if folder.stat().st_mode & _OTHERS_WRITE:
        raise IdentityError(f"{folder} may be written by others: chmod 700 {folder}")
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_generation(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files beside those of before, sync them, and let one rename make them count.

    The caller holds the folder's lock. What root writes belongs to the folder's owner.

    Raises:
        OSError: it cannot be written; the generation before still counts.
    """
    link = folder / LINK
    before = link.readlink().name if link.is_symlink() else None
    number = 1 + max((_number_of(path) for path in folder.glob("..[0-9]*")), default=0)
    generation = folder / f"..{number}"
    owner = folder.stat()
    generation.mkdir(mode=_OWN_MODE)
    _give(generation, owner)
    for name, content in files.items():
        _write(generation / name, content, owner)
    sync_folder(generation)
    sync_folder(folder)
    _swap(link, generation.name)
    for name in files:
        if not (folder / name).is_symlink():
            _swap(folder / name, f"{LINK}/{name}")
    sync_folder(folder)
    for path in folder.glob("..[0-9]*"):
        if path.name not in (generation.name, before):
            shutil.rmtree(path, ignore_errors=True)


def _number_of(generation: Path) -> int:
    text = generation.name.removeprefix("..")
    return int(text) if text.isdecimal() else 0


def _write(path: Path, content: bytes, owner: os.stat_result) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _give(path, owner)


def _give(path: Path, owner: os.stat_result) -> None:
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _swap(link: Path, target: str) -> None:
    fresh = link.with_name(f"{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
