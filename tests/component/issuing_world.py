"""A CA on disk and the folders of whom it issued to, for tests of ports and of running processes.

Used by the tests of identities over loopback. Source: docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Final

from duramen.runtime.identity.authority import begin_authority, open_authority
from duramen.runtime.identity.certificates import LEAF_LIFE, NOWHERE, Authority, Places
from duramen.runtime.identity.folder import write_bundle, write_folder
from duramen.runtime.identity.names import make_identity
from tests.unit.identities import DOMAIN

HERE: Final = Places((), (ipaddress.ip_address("127.0.0.1"),))


def read_time() -> dt.datetime:
    """Now, as certificates have it."""
    return dt.datetime.now(dt.UTC)


class IssuingWorld:
    """A CA and the folders of who it issued to: a bookie that serves, a sequencer that calls."""

    def __init__(self, folder: Path, parent: Authority | None = None) -> None:
        self.folder = folder
        self.ca = folder / "ca"
        begin_authority(self.ca, DOMAIN, read_time(), parent=parent)
        self.server = self.issue("bookie", "bookie-0")
        self.caller = self.issue("sequencer", "sequencer-0")

    def issue(self, role: str, name: str, life: dt.timedelta = LEAF_LIFE) -> Path:
        """The folder of an identity, with another certificate in it."""
        out = self.folder / name
        identity = make_identity(DOMAIN, role, name)
        with open_authority(self.ca, read_time()) as authority:
            places = HERE if identity.role.is_node else NOWHERE
            held = authority.issue(identity, read_time(), places=places, life=life)
            write_folder(out, held)
        return out

    def revoke(self, name: str, *told: Path) -> None:
        """Revoke what was issued to a node; `told` are the folders that hear of it."""
        with open_authority(self.ca, read_time()) as authority:
            issued = [one.serial for one in authority.list_issued() if one.identity.endswith(name)]
            authority.revoke(issued, read_time())
            for folder in told:
                write_bundle(folder, DOMAIN, authority.bundle, read_time())
