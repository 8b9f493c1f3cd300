"""Private copies of certificates and keys, for a server that reads its files late.

The HTTP server reads them when a connection comes, and ends when they have gone. It gets copies of
what was judged, never the folder itself, in a folder that nobody else may enter. A process holds a
lock in its folder as long as it lives, and removes the folders of those that were killed.

Called by `process_security` and `public_certificate`. Source: docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.identity.folder import HeldIdentity, encode_bundle, encode_key
from duramen.runtime.identity.public_folder import HeldCertificate

_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"
_BUNDLE: Final = "ca.crt"
_PREFIX: Final = "duramen-identity-"
_LOCK: Final = "lock"


class ServerFiles(NamedTuple):
    """What a server is started with.

    `bundle` is by what it judges the certificates of its callers, None: it asks for none; `lists`
    has one for each anchor.
    """

    certificate: Path
    key: Path
    bundle: Path | None = None
    lists: tuple[Path, ...] = ()


class PrivateCopies:
    """The copies of one process; `close` removes them."""

    def __init__(self) -> None:
        _remove_left_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _hold(self._folder)
        self._number = 0

    def write(self, held: HeldIdentity) -> ServerFiles:
        """Another set of files for a server that asks for certificates."""
        place = self._make_place()
        lists = []
        try:
            _write(place / _CERTIFICATE, held.leaf.public_bytes(Encoding.PEM))
            _write(place / _KEY, encode_key(held.key))
            _write(place / _BUNDLE, encode_bundle(held.bundle)[_BUNDLE])
            for index, revoked in enumerate(held.bundle.lists):
                lists.append(place / f"{index}.crl")
                _write(lists[-1], revoked.public_bytes(Encoding.PEM))
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return ServerFiles(place / _CERTIFICATE, place / _KEY, place / _BUNDLE, tuple(lists))

    def write_public(self, held: HeldCertificate) -> ServerFiles:
        """Another set of files for a server that asks for none."""
        place = self._make_place()
        try:
            _write(place / _CERTIFICATE, held.chain)
            _write(place / _KEY, held.key)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return ServerFiles(place / _CERTIFICATE, place / _KEY)

    def _make_place(self) -> Path:
        self._number += 1
        place = self._folder / str(self._number)
        place.mkdir()
        return place

    def remove(self, files: ServerFiles) -> None:
        """No server reads these any more."""
        shutil.rmtree(files.key.parent, ignore_errors=True)

    def close(self) -> None:
        """Nobody serves or calls any more."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()


def _hold(folder: Path) -> IO[bytes]:
    """Lock a folder for as long as this process lives.

    The file has its name once it is locked: nobody finds it in between. A folder without it holds
    no key.
    """
    unnamed = folder / f"{_LOCK}.new"
    lock = unnamed.open("xb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return lock


def _remove_left_folders() -> None:
    """Remove what processes of this user left when they were killed: keys that may still count."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it goes this moment, is somebody else's, or its process lives
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
