"""`duramen access`: the rights of a cluster's nodes in ZooKeeper, set and looked over.

For a ZooKeeper that asks for identities; it is asked as an operator. What needs X.509 is loaded
when a command runs.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/metadata-access.md.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption
from duramen.cli.cluster.verify import ClusterOption, ZooKeeperOption, find_cluster
from duramen.cli.command import DATA_DEFAULT, ExitCode, UsageError, print_json, run_async, say
from duramen.cli.shell.waiting import report_waiting
from duramen.errors import DuramenError
from duramen.runtime.identity.names import Role
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import agree
from duramen.wire.metadata_json import MetadataJsonError, Paths

if TYPE_CHECKING:
    from duramen.runtime.stores.guarding import Strayed

access_app: Final = App(name="access", help="Say who may do what with a cluster's nodes.")

IdentityFolder = Annotated[Path, Parameter(help="of an operator, from duramen ca issue")]


@access_app.command(name="apply")
def apply_rights(
    folder: IdentityFolder,
    /,
    *,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Found a cluster in ZooKeeper, and give each node its rights; may be repeated at any time.

    Exit codes: 0 every node has its rights; 1 failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    mended = run_async(_walk(hosts, root, folder, is_mending=True))
    if json:
        print_json({"mended": [one.path for one in mended]})
    else:
        print(f"{hosts}: {agree(f'{len(mended)} nodes')} had other rights, and have their own now")
    return ExitCode.OK


@access_app.command
def check(
    folder: IdentityFolder,
    /,
    *,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Name each node that others than the right ones may use; nothing is changed.

    Exit codes: 0 there is none; 1 there is, or failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    strayed = run_async(_walk(hosts, root, folder, is_mending=False))
    if json:
        print_json({"strayed": [{"path": one.path, "found": one.found} for one in strayed]})
    else:
        for one in strayed:
            print(one.path, *(f"{who}={permissions}" for who, permissions in one.found))
        print(f"{hosts}: {agree(f'{len(strayed)} nodes')} with other rights than their own")
    return ExitCode.FAILED if strayed else ExitCode.OK


async def _walk(hosts: str, cluster: str, folder: Path, *, is_mending: bool) -> list[Strayed]:
    from duramen.runtime.identity.folder import read_folder
    from duramen.runtime.stores.guarding import WrongClusterError, found_tree, walk_rights
    from duramen.runtime.stores.zookeeper_store import ZooKeeperStore

    identity = read_folder(folder, dt.datetime.now(dt.UTC)).identity
    if identity.role is not Role.OPERATOR:
        raise UsageError(f"{folder} is of {identity}: give the folder of an operator")
    store = ZooKeeperStore(hosts, identity_dir=folder)
    try:
        async with report_waiting(f"ZooKeeper at {hosts}", say):
            await store.start()
        if is_mending:
            await found_tree(store, Paths(cluster), identity.domain)
        return [one async for one in walk_rights(store, identity.domain, is_mending=is_mending)]
    except WrongClusterError as error:
        raise UsageError(str(error)) from None
    except (MetadataError, MetadataJsonError) as error:
        raise DuramenError("metadata_unavailable", f"ZooKeeper at {hosts}: {error}") from error
    finally:
        await store.close()
