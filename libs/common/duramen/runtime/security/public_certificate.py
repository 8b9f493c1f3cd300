"""The certificate of a public port, as its folder has it now.

A look every two seconds reads the folder anew; what is good takes the place of what was there, and
servers are told. What is not is told once, and the former one stays, also past its end: clients
see that by themselves, and other clients may come another way.

Called by the wiring of both proxies. Source: docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client import Counter, Gauge

from duramen.runtime.identity.folder_watch import FolderWatch
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.public_folder import HeldCertificate, read_public_folder
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.held_identity import notify_all
from duramen.runtime.security.private_copies import PrivateCopies, ServerFiles

_REFUSED: Final = Counter(
    "duramen_public_certificate_refused",
    "Generations of the folder of the public port's certificate that could not be used",
)
_EXPIRES: Final = Gauge(
    "duramen_public_certificate_expires_seconds",
    "Until the public port's certificate ends",
    ["serial"],
)
"""A process that shows none has no series."""


class PublicCertificate:
    """What a public port shows.

    Args:
        folder: it lies there.
        held: as it was read at the start.
    """

    def __init__(self, folder: Path, held: HeldCertificate) -> None:
        self.held = held
        self._folder = folder
        self._copies = PrivateCopies()
        self._listeners: list[Callable[[], None]] = []
        self._watch = FolderWatch(folder, self.look, "the public port's certificate", _REFUSED)
        self._show_end()

    def start(self) -> None:
        """Look at the folder from now on."""
        self._watch.start()

    async def stop(self) -> None:
        """The end: no server shows it any more."""
        await self._watch.stop()
        self._copies.close()

    def list_anchors(self) -> list[bytes]:
        """What proxies trust for one another's certificates, each as PEM; none: the cluster's CA
        alone."""
        anchors = x509.load_pem_x509_certificates(self.held.anchors) if self.held.anchors else []
        return [anchor.public_bytes(Encoding.PEM) for anchor in anchors]

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after there is another certificate."""
        self._listeners.append(listener)

    def write_server_files(self) -> ServerFiles:
        """Files for one more server; to be given back."""
        return self._copies.write_public(self.held)

    def remove_server_files(self, files: ServerFiles) -> None:
        """A server has ended."""
        self._copies.remove(files)

    async def look(self) -> None:
        """Take over what the folder holds now, if it can be used."""
        try:
            found = await asyncio.to_thread(read_public_folder, self._folder, _now())
        except IdentityError as error:
            self._watch.tell(str(error))
        else:
            self._watch.tell(None)
            if found != self.held:
                self.held = found
                self._watch.note_change()
        self._show_end()
        self._watch.hand_on(self._notify)

    def statistics(self) -> dict[str, int]:
        """As of `FolderWatch`."""
        return self._watch.statistics()

    def _notify(self) -> None:
        notify_all(self._listeners)

    def _show_end(self) -> None:
        leaf = self.held.leaf
        _EXPIRES.clear()
        left = leaf.not_valid_after_utc - _now()
        _EXPIRES.labels(f"{leaf.serial_number:x}").set(left.total_seconds())


def open_public_certificate(options: ServiceOptions) -> PublicCertificate | None:
    """The certificate of a proxy's public port; None: it speaks HTTP in clear.

    Raises:
        StartRefusedError: its folder gives none.
    """
    folder = options.public_tls_dir
    if folder is None:
        return None
    try:
        return PublicCertificate(folder, read_public_folder(folder, _now()))
    except IdentityError as error:
        raise StartRefusedError(str(error)) from None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
