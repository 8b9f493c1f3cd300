"""`duramen access`: the rights of a cluster's nodes in ZooKeeper, set and looked over.

For a ZooKeeper that asks for identities; it is asked as an operator. What needs X.509 is loaded
when a command runs.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/metadata-access.md.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption
from duramen.cli.cluster.reach import (
    ClusterOption,
    ZooKeeperOption,
    find_cluster,
    reach,
    read_operator,
)
from duramen.cli.command import DATA_DEFAULT, ExitCode, UsageError, print_json, run_async, say
from duramen.cli.rights.token_files import open_token_file
from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.units import agree
from duramen.wire.metadata_json import Paths

if TYPE_CHECKING:
    from duramen.runtime.stores.guarding import Strayed

access_app: Final = App(name="access", help="Say who may do what with a cluster's nodes.")

_FIRST_LIFE_S: Final = 86_400

IdentityFolder = Annotated[Path, Parameter(help="of an operator, from duramen ca issue")]


@access_app.command(name="apply")
def apply_rights(
    folder: IdentityFolder,
    /,
    *,
    now: Annotated[
        bool, Parameter(negative=(), help="also while processes without --security on are there")
    ] = False,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Found a cluster in ZooKeeper, and give each node its rights; may be repeated at any time.

    A node that says that a process is there, and that no process keeps, is removed. Processes with
    --security none are shut out, and those with migrate make nodes without rights: while some are
    there it is refused, unless --now.

    Exit codes: 0 every node has its rights; 1 failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    mended = run_async(_walk(hosts, root, folder, is_mending=True, is_wanted_now=now))
    if json:
        print_json({
            "mended": [one.path for one in mended if not one.is_stale],
            "removed": [one.path for one in mended if one.is_stale],
        })  # fmt: skip
    else:
        for one in mended:
            if one.is_stale:
                print(f"{one.path} was kept by no process, and is removed")
        count = sum(not one.is_stale for one in mended)
        print(f"{hosts}: {agree(f'{count} nodes')} had other rights, and have their own now")
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
    """Name each node that others than the right ones may use, or that none keeps; changes nothing.

    Exit codes: 0 there is none; 1 there is, or failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    strayed = run_async(_walk(hosts, root, folder, is_mending=False))
    if json:
        rows = [{"path": one.path, "found": one.found, "is_stale": one.is_stale} for one in strayed]
        print_json({"strayed": rows})
    else:
        for one in strayed:
            why = ["kept by no process:"] if one.is_stale else []
            print(one.path, *why, *(f"{who}={permissions}" for who, permissions in one.found))
        print(f"{hosts}: {agree(f'{len(strayed)} nodes')} with other rights than their own")
    return ExitCode.FAILED if strayed else ExitCode.OK


@access_app.command(name="open")
def open_nodes(
    folder: IdentityFolder,
    /,
    *,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Give each node to whoever reaches ZooKeeper, on the way back to --security none.

    Refused while a process with --security on is there, which would go on to make others.

    Exit codes: 0 every node is anybody's; 1 failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    opened_count = run_async(_open(hosts, root, folder))
    if json:
        print_json({"opened": opened_count})
    else:
        print(f"{hosts}: {agree(f'{opened_count} nodes')} had rights, and are anybody's now")
    return ExitCode.OK


@access_app.command
def token(
    folder: IdentityFolder,
    /,
    *,
    out: Annotated[Path, Parameter(help="a new file for its text")],
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Make an access token for everything, that lives a day: with it the first grants are given.

    It is written to ZooKeeper, so it needs no grant, and mends grants that nobody understands.

    Exit codes: 0 made; 1 failed; 2 usage.
    """
    hosts, root = find_cluster(zookeeper, cluster, data)
    token_id = run_async(_make_token(hosts, root, folder, out))
    if json:
        print_json({"id": token_id, "file": str(out)})
    say(f"{out} has a token for everything, for a day: `duramen token revoke {token_id}` ends it")
    return ExitCode.OK


async def _make_token(hosts: str, cluster: str, folder: Path, out: Path) -> str:
    from duramen.runtime.credentials.access_tokens.kept_token import write_token
    from duramen.runtime.credentials.access_tokens.token_text import make_token

    identity = read_operator(folder).identity
    operator = Principal(PrincipalKind.SERVICE, f"{identity.role}/{identity.name}")
    made = make_token()
    async with reach(hosts, folder) as (store, _):
        with open_token_file(out) as write:
            await write_token(
                store, Paths(cluster), made, operator,
                note="of duramen access token", now_s=int(time.time()), life_s=_FIRST_LIFE_S,
            )  # fmt: skip
            write(made.text)
    return made.token_id


async def _walk(
    hosts: str, cluster: str, folder: Path, *, is_mending: bool, is_wanted_now: bool = True
) -> list[Strayed]:
    from duramen.runtime.stores.guarding import WrongClusterError, found_tree, walk_rights
    from duramen.runtime.turning.addresses import is_turned
    from duramen.runtime.turning.fitting import find_misfits, name_nodes

    domain = read_operator(folder).identity.domain
    async with reach(hosts, folder) as (store, _):
        if not is_wanted_now and (misfits := await find_misfits(store, Paths(cluster), is_turned)):
            raise UsageError(
                f"{name_nodes(misfits)} there without --security on: start them with it before "
                "(migrate first), or say --now"
            )
        try:
            if is_mending:
                await found_tree(store, Paths(cluster), domain)
            return [one async for one in walk_rights(store, domain, is_mending=is_mending)]
        except WrongClusterError as error:
            raise UsageError(str(error)) from None


async def _open(hosts: str, cluster: str, folder: Path) -> int:
    from duramen.runtime.stores.guarding import open_tree
    from duramen.runtime.turning.addresses import has_plain
    from duramen.runtime.turning.fitting import find_misfits, name_nodes

    async with reach(hosts, folder) as (store, _):
        if misfits := await find_misfits(store, Paths(cluster), has_plain):
            raise UsageError(
                f"{name_nodes(misfits)} there with --security on, and would make nodes with rights "
                "again: start them with migrate before"
            )
        return await open_tree(store)
