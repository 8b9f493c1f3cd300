"""What tests build and keep from run to run, in the user's cache folder, shared by all checkouts.

`cache_folder` gives a folder that is named by what it is made from: there already, or made now.
It appears only when it is whole, one process makes it while others wait, and of each kind the two
that were used last are kept. What a process was given stays until that process ends, however many
others are made meanwhile. `XDG_CACHE_HOME` moves it all; it may be removed at any time while no
tests run.

Not for what differs from test to test: that is `tmp_path`. Called by what makes environments,
programs and image parts for tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KEPT_PER_KIND: Final = 2
"""The folders of a kind that are kept: a branch and the one that it is compared with."""

_HASH_CHARACTERS: Final = 16
_KIND: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ATTEMPTS_MAX: Final = 100

# Path → descriptor with a shared lock, held until this process ends: what is in use is not removed.
_in_use: dict[Path, int] = {}


def cache_root() -> Path:
    """Where all kinds are: `duramen-tests` in `XDG_CACHE_HOME`, or else in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    # A relative path there is to be ignored, says the XDG specification.
    folder = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return folder / "duramen-tests"


def cache_folder(kind: str, *made_of: str | bytes, make: Callable[[Path], None]) -> Path:
    """The folder of this kind made of exactly this; made now unless it is there.

    Args:
        kind: names what it holds: small letters, digits and hyphens.
        made_of: everything that what is in the folder depends on: texts of locks, versions, flags,
            names of machines. Their number and order count.
        make: fills the folder that it is given, which is empty and has another name than the
            result: nothing in it may hold its own path. What it raises is raised here, and
            nothing is kept.

    Returns:
        The folder. It belongs to all checkouts: only read it.
    """
    folder = cached_path(kind, *made_of)
    root = folder.parent
    root.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS_MAX):
        if _take(folder):
            _forget_old(root, kind)
            return folder
        with _alone(folder):
            if not folder.is_dir():
                _make(folder, make)
    raise RuntimeError(f"{folder} is removed again and again: by whom?")


def cached_path(kind: str, *made_of: str | bytes) -> Path:
    """Where `cache_folder` has it, or would: for those who only look whether it is there.

    Who only looks does not hold it, so another process may forget it meanwhile.
    """
    assert _KIND.fullmatch(kind), f"{kind!r}: small letters, digits, single hyphens"
    return cache_root() / f"{kind}-{_hash(made_of)}"


def _hash(parts: tuple[str | bytes, ...]) -> str:
    """Of each part with its length, so that no two lists look alike."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:_HASH_CHARACTERS]


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    """Make it under another name first. Whoever was killed here before left a part behind."""
    part = _part(folder)
    _remove(part)
    part.mkdir()
    try:
        make(part)
        part.rename(folder)
    finally:
        _remove(part)


def _take(folder: Path) -> bool:
    """Hold the folder for as long as this process lives, if it is there; it counts as used now."""
    if folder not in _in_use:
        descriptor = _lock(folder, fcntl.LOCK_SH)
        if not folder.is_dir():
            os.close(descriptor)
            return False
        _in_use[folder] = descriptor
    elif not folder.is_dir():
        # Somebody removed it by hand. Our own lock must not keep us from making it again.
        os.close(_in_use.pop(folder))
        return False
    os.utime(folder)
    return True


def _forget_old(root: Path, kind: str) -> None:
    """Remove what was used longest ago, and parts of makers that died, unless held by anybody."""
    # Under a lock of the kind: two that forget at once could each count the other's as kept.
    with _alone(root / kind):
        found = [path for path in root.iterdir() if _is_of(path, kind)]
        whole = sorted((p for p in found if not p.suffix), key=lambda p: p.stat().st_mtime_ns)
        parts = [path.with_suffix("") for path in found if path.suffix == _part(path).suffix]
        for folder in (*whole[:-KEPT_PER_KIND], *parts):
            _remove_unless_held(folder, is_part=folder in parts)


def _is_of(path: Path, kind: str) -> bool:
    pattern = rf"{re.escape(kind)}-[0-9a-f]{{{_HASH_CHARACTERS}}}(\.part)?"
    return path.is_dir() and re.fullmatch(pattern, path.name) is not None


def _remove_unless_held(folder: Path, *, is_part: bool) -> None:
    try:
        descriptor = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    try:
        _remove(_part(folder))
        if not is_part:
            # First another name, at once: nobody sees half a folder under its own.
            folder.rename(_part(folder))
            _remove(_part(folder))
            _lock_path(folder).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _part(folder: Path) -> Path:
    return folder.with_suffix(".part")


def _lock_path(folder: Path) -> Path:
    return folder.with_suffix(".lock")


def _remove(folder: Path) -> None:
    """Remove a tree; folders that may not be written to, as Go's modules are, are opened first."""
    if not folder.exists():
        return
    for path, folders, _ in os.walk(folder):
        for name in (".", *folders):
            inner = Path(path) / name
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(folder)


def _lock(folder: Path, operation: int) -> int:
    """A descriptor that holds the lock of a folder.

    Whoever removes a folder removes its lock too, so the file that was locked must still be the
    one under that name.
    """
    path = _lock_path(folder)
    for _ in range(_ATTEMPTS_MAX):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise RuntimeError(f"{path} is removed again and again: by whom?")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = _lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)
