"""How a command reaches ZooKeeper, and bookies, by itself: as an operator where they ask who calls.

Where nobody says otherwise it is the local cluster, with the identity that `duramen run` keeps for
whoever runs it. What needs X.509 is loaded when there is an identity.

Called by the commands that ask ZooKeeper. Source: docs/cli.md,
docs/protocol/metadata-access.md "A local cluster".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from duramen.cli.command import DATA_DEFAULT, UsageError, say
from duramen.cli.context.kept_contexts import read_contexts
from duramen.cli.shell.waiting import report_waiting
from duramen.client.credentials.local_cluster import OPERATOR_FOLDER
from duramen.cluster.cluster_file import read_document
from duramen.errors import DuramenError
from duramen.runtime.identity.names import Role
from duramen.runtime.stores.metadata_store import MetadataError, Rejected
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import MetadataJsonError

if TYPE_CHECKING:
    from duramen.runtime.identity.folder import HeldIdentity
    from duramen.runtime.security.process_security import ProcessSecurity

ZooKeeperOption = Annotated[
    str | None, Parameter(help="host:port of ZooKeeper, with commas (else cluster.json)")
]
ClusterOption = Annotated[
    str | None, Parameter(help="the cluster's name in ZooKeeper (else cluster.json)")
]
IdentityOption = Annotated[
    Path | None,
    Parameter(
        help="folder of an operator's identity, where ZooKeeper and bookies ask for one (else that "
        "of the local cluster)"
    ),
]


class OperatorReach(NamedTuple):
    """A store that is started, and how bookies are called."""

    store: ZooKeeperStore
    security: ProcessSecurity | None


def find_cluster(zookeeper: str | None, cluster: str | None, data: Path) -> tuple[str, str]:
    """Where ZooKeeper is, and the cluster's name in it."""
    if zookeeper is not None and cluster is None:
        raise UsageError("--zookeeper needs --cluster: the cluster's name in it")
    if zookeeper is not None and cluster is not None:
        return zookeeper, cluster
    chosen = read_contexts().find(None) if data == DATA_DEFAULT else None
    if chosen is not None:
        raise UsageError(
            f"the context {chosen[0]} is in use, and no context knows ZooKeeper: give --zookeeper "
            "and --cluster; or --data with the whole path of a local cluster's folder"
        )
    document = read_document(data.absolute())
    return str(document.get("zookeeper")), cluster or str(document.get("cluster"))


def find_identity(identity: Path | None, zookeeper: str | None, data: Path) -> Path | None:
    """The folder of the identity to show; None: none is known."""
    if identity is not None or zookeeper is not None:
        return identity
    local = data.absolute() / OPERATOR_FOLDER
    return local if local.exists() else None


@asynccontextmanager
async def reach(hosts: str, identity: Path | None) -> AsyncIterator[OperatorReach]:
    """Connect, for as long as the context lasts.

    Raises:
        UsageError: the identity is no operator's.
        DuramenError: `metadata_unavailable`, also out of the context; `internal`: a node is not
            understood.
    """
    held = None if identity is None else read_operator(identity)
    store = ZooKeeperStore(hosts, identity_dir=identity)
    security = None
    try:
        if identity is not None and held is not None:
            from duramen.runtime.security.process_security import ProcessSecurity

            # A command ends long before its certificate: nobody looks at the folder again.
            security = ProcessSecurity(identity, held, say)
        try:
            async with report_waiting(f"ZooKeeper at {hosts}", say):
                await store.start()
        except Rejected as error:
            raise UsageError(str(error)) from None
        yield OperatorReach(store, security)
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"ZooKeeper at {hosts}: {error}") from error
    except MetadataJsonError as error:
        raise DuramenError("internal", f"a node cannot be read: {error}") from error
    finally:
        if security is not None:
            await security.stop()
        await store.close()


def read_operator(folder: Path) -> HeldIdentity:
    """What lies in the folder of an operator's identity.

    Raises:
        UsageError: it is somebody else's.
        IdentityError: there is none that is valid.
    """
    from duramen.runtime.identity.folder import read_folder

    held = read_folder(folder, dt.datetime.now(dt.UTC))
    if held.identity.role is not Role.OPERATOR:
        raise UsageError(f"{folder} is of {held.identity}: give the folder of an operator")
    return held
