"""A client of the HTTP library with a certificate and anchors of its own, renewed with their files.

What needs X.509 is loaded where there is an identity or an anchor: most programs have none.

Called by `rest_client`. Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyreqwest.client import Client, ClientBuilder

from duramen.client.credentials.credential import Credential
from duramen.errors import DuramenError
from duramen.runtime.http_client import close_client
from duramen.runtime.identity.generations import BUNDLE_FILE, KEY_FILE, LEAF_FILE
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.sole_anchors import trusting_alone

_LOG: Final = logging.getLogger(__name__)
_FILE_BYTES_MAX: Final = 1 << 20

_Stamp = tuple[tuple[int, ...], ...]


class Connections:
    """The connections of one client of ours.

    Args:
        make_builder: gives the library's builder, with all but what TLS needs.
        credential: its identity and anchors are used.

    Raises:
        DuramenError: `unauthenticated`: the identity or the anchors cannot be used.
    """

    def __init__(self, make_builder: Callable[[], ClientBuilder], credential: Credential) -> None:
        self._make_builder = make_builder
        self._credential = credential
        self._files = _list_files(credential)
        self._seen = self._look()
        self._client = _build(make_builder(), credential)
        self._former: Client | None = None
        """Calls that began on it are still answered there; a renewal is days before the next."""
        self._closing: set[asyncio.Task[None]] = set()

    def find(self) -> Client:
        """The library's client for a call that begins now."""
        if self._files and (seen := self._look()) != self._seen:
            self._seen = seen
            self._renew()
        return self._client

    async def close(self) -> None:
        """Close every connection."""
        clients = [self._client] if self._former is None else [self._former, self._client]
        await asyncio.gather(*self._closing, *map(close_client, clients))

    def _renew(self) -> None:
        try:
            client = _build(self._make_builder(), self._credential)
        except DuramenError as error:
            _LOG.warning("connections stay as they were: %s", error.detail)
            return
        if self._former is not None:
            task = asyncio.create_task(close_client(self._former))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._former, self._client = self._client, client

    def _look(self) -> _Stamp:
        found: list[tuple[int, ...]] = []
        for path in self._files:
            try:
                seen = path.stat()
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
            except OSError:
                found.append(())
        return tuple(found)


def _list_files(credential: Credential) -> tuple[Path, ...]:
    files = [] if credential.ca is None else [credential.ca]
    if credential.identity is not None:
        files += [credential.identity / name for name in (LEAF_FILE, KEY_FILE, BUNDLE_FILE)]
    return tuple(files)


def _build(builder: ClientBuilder, credential: Credential) -> Client:
    anchors = None if credential.ca is None else _read_anchors(credential.ca)
    if credential.identity is not None:
        from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

        from duramen.runtime.identity.folder import (  # noqa: PLC0415
            encode_bundle,
            encode_key,
            read_folder,
        )

        try:
            held = read_folder(credential.identity, dt.datetime.now(dt.UTC))
        except IdentityError as error:
            raise DuramenError("unauthenticated", str(error)) from None
        own = encode_key(held.key) + held.leaf.public_bytes(Encoding.PEM)
        builder = builder.identity_pem(own)
        anchors = anchors or encode_bundle(held.bundle)[BUNDLE_FILE]
    if anchors is None:
        return builder.build()
    with trusting_alone(anchors):
        return builder.build()


def _read_anchors(path: Path) -> bytes:
    from cryptography import x509  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX)
        x509.load_pem_x509_certificates(content)
    except OSError as error:
        detail = f"{path}: {error.strerror}: certificates of who is trusted are expected there"
        raise DuramenError("unauthenticated", detail) from None
    except ValueError:
        raise DuramenError("unauthenticated", f"{path} holds no certificates in PEM") from None
    return content
