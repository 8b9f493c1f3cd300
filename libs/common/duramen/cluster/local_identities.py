"""Identities of a local cluster: a CA in its folder, a folder for each process, renewed in time.

The CA's key lies beside what it issues, which is right for a laptop and for nothing else. What is
there and valid is used again; a process finds a renewed certificate by itself.

Called by `supervisor`. Source: docs/protocol/identity.md "Certificates", "The folder".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from duramen.cluster.layout import HOST, ProcessPlan
from duramen.runtime.identity.authority import (
    begin_authority,
    open_authority,
    read_former_domain,
)
from duramen.runtime.identity.certificates import NOWHERE, Places
from duramen.runtime.identity.folder import BUNDLE_FILE, read_folder, write_folder
from duramen.runtime.identity.names import Identity, IdentityError, make_identity
from duramen.runtime.identity.zookeeper_files import make_client_context

RENEWAL_LOOK_S: Final = 600.0
_HERE: Final = Places(("localhost",), (ipaddress.ip_address(HOST),))


class LocalIdentities:
    """The CA and the identities in the folder of a local cluster."""

    def __init__(self, folder: Path) -> None:
        self._authority = folder / "ca"
        self._folder = folder / "identities"
        self._domain = ""

    def prepare(self, uuid: str | None, plans: Sequence[ProcessPlan]) -> None:
        """Have an identity for each process.

        Args:
            uuid: of the cluster in ZooKeeper; None: there is none yet.

        Raises:
            IdentityError: the CA cannot be read, or is of another cluster.
            OSError: something cannot be written.
        """
        former = read_former_domain(self._authority)
        if former is None:
            self._domain = uuid or uuid4().hex
            begin_authority(self._authority, self._domain, _now())
        elif uuid not in (None, former):
            raise IdentityError(
                f"{self._authority} is the CA of the cluster {former}, and ZooKeeper holds {uuid}: "
                "`duramen ca init --replace` makes another one"
            )
        else:
            self._domain = former
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.renew_due(plans)

    def renew_due(self, plans: Sequence[ProcessPlan]) -> None:
        """Issue where there is nothing, nothing valid, or what is to be renewed.

        Raises:
            IdentityError, OSError: as `prepare`.
        """
        now = _now()
        wanted = {
            plan.node_id: make_identity(self._domain, plan.role, plan.node_id)
            for plan in plans
            if plan.role != "zookeeper"
        }
        due = {name: one for name, one in wanted.items() if self._is_due(name, one, now)}
        if not due:
            return
        refusals = []
        with open_authority(self._authority, now) as authority:
            for name, identity in due.items():
                places = _HERE if identity.role.is_node else NOWHERE
                held = authority.issue(identity, now, places=places)
                try:
                    write_folder(self.folder_of(name), held)
                except (IdentityError, OSError) as error:
                    # The others have theirs in time.
                    refusals.append(str(error))
        if refusals:
            raise IdentityError("; ".join(refusals))

    def make_probe_context(self) -> ssl.SSLContext:
        """TLS for who asks the processes whether they are ready: it shows nobody's certificate.

        Raises:
            OSError: the CA's certificate cannot be read.
        """
        return make_client_context((self._authority / BUNDLE_FILE).read_text(encoding="ascii"))

    def folder_of(self, node_id: str) -> Path:
        """Where the identity of a process lies."""
        return self._folder / node_id

    def _is_due(self, node_id: str, identity: Identity, now: dt.datetime) -> bool:
        folder = self.folder_of(node_id)
        if not folder.exists():
            return True
        try:
            held = read_folder(folder, now)
        except IdentityError:
            return True
        return held.identity != identity or now >= held.renew_at


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
