"""How a part of a job reaches its cluster: where it is, and as whom it calls.

An address travels to executors, and with it the name of a folder, never a key: each part reads the
folder where it runs, so what was renewed counts.

Called by the jobs' connections and by `archive.bookie_source`. Source: docs/archive.md,
docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError, Role
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore

_LOG: Final = logging.getLogger(__name__)
_ROLES: Final = (Role.ARCHIVE, Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is, and where its reader is.

    Attributes:
        zookeeper: `host:port,host:port…`.
        cluster: its name in ZooKeeper.
        identity: the folder of the identity to show; None: nobody asks for one.
    """

    zookeeper: str
    cluster: str
    region: str = ""
    rack: str = ""
    identity: str | None = None


def open_store(address: ClusterAddress) -> ZooKeeperStore:
    """The metadata of a cluster; not started."""
    identity_dir = None if address.identity is None else Path(address.identity)
    return ZooKeeperStore(address.zookeeper, identity_dir=identity_dir)


def open_security(folder: str) -> ProcessSecurity:
    """What a part of a job shows, and whom it trusts.

    Raises:
        IdentityError: no identity lies there that is valid, or one of another role.
    """
    held = read_folder(Path(folder), dt.datetime.now(dt.UTC))
    if held.identity.role not in _ROLES:
        wanted = f"duramen ca issue CA {Role.ARCHIVE} NAME --out FOLDER"
        raise IdentityError(f"{folder} is of {held.identity}: a job reads as `{wanted}` makes it")
    return ProcessSecurity(Path(folder), held, _LOG.error)
