"""A ZooKeeper that asks for identities: a CA, the folders of who it issued to, and the server.

Used by tests of this tier and of the contract. Source: docs/protocol/metadata-access.md.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper
from duramen.runtime.identity.authority import begin_authority, open_authority
from duramen.runtime.identity.certificates import NOWHERE, Authority, Places
from duramen.runtime.identity.folder import read_folder, write_bundle, write_folder
from duramen.runtime.identity.names import make_identity
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.unit.identities import DOMAIN
from tests.zookeeper_fixture import run

HERE: Final = Places((), (ipaddress.ip_address("127.0.0.1"),))
CALL_TIMEOUT_S: Final = 20.0
"""No case runs into it. A busy machine may need as long."""

REFUSED_S: Final = 1.0
"""Of a store that is refused again and again: it is told why at its first attempt."""


class Issuer:
    """A CA, and one folder for each identity that it issued."""

    def __init__(
        self, folder: Path, *, domain: str = DOMAIN, parent: Authority | None = None
    ) -> None:
        self.folder = folder
        self.domain = domain
        self.ca = folder / "ca"
        begin_authority(self.ca, domain, _now(), parent=parent)

    def issue(self, role: str, name: str, places: Places | None = None) -> Path:
        """The folder of an identity, with another certificate if it was there."""
        identity = make_identity(self.domain, role, name)
        wanted = places if places is not None else HERE if identity.role.is_node else NOWHERE
        with open_authority(self.ca, _now()) as authority:
            held = authority.issue(identity, _now(), places=wanted)
        out = self.folder / f"{role}-{name}"
        write_folder(out, held)
        return out

    def revoke(self, folder: Path, told: Path) -> None:
        """Name what an identity has in the list, and tell the holder of another folder."""
        serial = read_folder(folder, _now()).leaf.serial_number
        with open_authority(self.ca, _now()) as authority:
            authority.revoke([serial], _now())
            write_bundle(told, self.domain, authority.bundle, _now())


class SecuredServer(EmbeddedZooKeeper):
    """One server, with the issuer of whoever may connect."""

    def __init__(
        self, folder: Path, issuer: Issuer | None = None, places: Places | None = None
    ) -> None:
        self.issuer = issuer or Issuer(folder / "issued")
        self.port = pick_free_port()
        self.data_dir = folder / "data"
        self.identity_dir = self.issuer.issue("zookeeper", "zookeeper-0", places)
        self.log_file = folder / "zookeeper.log"
        super().__init__(
            self.data_dir, self.port, log_file=self.log_file, identity_dir=self.identity_dir
        )

    def store(
        self, role: str, name: str, *, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> ZooKeeperStore:
        """A store of an identity that is issued for it; not started."""
        return ZooKeeperStore(
            self.address, identity_dir=self.issuer.issue(role, name), call_timeout_s=call_timeout_s
        )

    @contextlib.asynccontextmanager
    async def opened(self, role: str, name: str) -> AsyncIterator[ZooKeeperStore]:
        """A store of an identity, for as long as the context lasts."""
        store = self.store(role, name)
        try:
            await store.start()
            yield store
        finally:
            await store.close()


@contextlib.contextmanager
def running_secured(folder: Path) -> Iterator[SecuredServer]:
    """A server with its data and log in `folder`, stopped at the end."""
    server = SecuredServer(folder)
    run(server.start())
    try:
        yield server
    finally:
        run(server.stop())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
