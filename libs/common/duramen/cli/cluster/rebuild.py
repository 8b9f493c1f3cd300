"""`duramen log rebuild LOG`: the listing of a log from its metadata log, and what ZooKeeper lacks.

Needs ZooKeeper and the bookies' data ports, as `duramen verify`; nothing is changed.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/metadata-logs.md "When something fails".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any, Final

from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption
from duramen.cli.cluster.reach import (
    ClusterOption,
    IdentityOption,
    ZooKeeperOption,
    find_cluster,
    find_identity,
    reach,
)
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    UsageError,
    parse_argument,
    print_json,
    run_async,
)
from duramen.client.listing_check import ListingCheck
from duramen.core.reading.replica_order import Place
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import Role
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.texts import parse_log
from duramen.units import MIB, agree
from duramen.wire.metadata_json import Paths

_CACHE_BYTES: Final = 1 * MIB
"""Every entry is read once: there is nothing to keep."""


def rebuild(
    log: Annotated[str | None, Parameter(help="namespace/name")] = None,
    /,
    *,
    log_id: Annotated[int | None, Parameter(help="of a log whose name's node is lost")] = None,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    identity: IdentityOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Rebuild the listing of a log from its metadata log, and say what ZooKeeper should hold.

    For a ZooKeeper that has lost nodes, or was restored from an older snapshot. Each epoch of which
    ZooKeeper lacks the node, or has an older one, is told; with --json also the node itself, which
    a person may put back. Nothing is changed.

    Exit codes: 0 ZooKeeper holds what it should; 1 it does not, or failed; 2 usage.
    """
    if (log is None) == (log_id is None):
        raise UsageError("give a log, or --log-id")
    if log_id is not None and not 0 < log_id <= LAST_LOG_ID:
        raise UsageError(f"--log-id: 1 to {LAST_LOG_ID} is expected")
    name = None if log is None else parse_argument(parse_log, log)
    hosts, root = find_cluster(zookeeper, cluster, data)
    shown = find_identity(identity, zookeeper, data)
    found = run_async(_rebuild(hosts, root, shown, name, log_id))
    if json:
        print_json(found)
    else:
        _show(log or f"log {log_id}", found)
    return ExitCode.OK if found["ok"] else ExitCode.FAILED


async def _rebuild(
    hosts: str,
    cluster: str,
    identity: Path | None,
    name: tuple[str, str] | None,
    log_id: int | None,
) -> dict[str, Any]:
    paths = Paths(cluster)
    async with reach(hosts, identity) as (store, security):
        learn = None if security is None else security.peers.learn_role(Role.BOOKIE)
        bookies = Bookies(
            store, paths.available, Place("", ""), SystemRandom(),
            client=PeerClient(security), learn=learn,
        )  # fmt: skip
        fetcher = RangeFetcher(bookies, EntryCache(_CACHE_BYTES))
        try:
            await bookies.start()
            check = ListingCheck(store, paths, MetadataRecords(store, paths, fetcher.fetch_run))
            wanted = LogId(log_id or 0) if name is None else await check.find_log(*name)
            return (await check.check(wanted)).to_json()
        finally:
            await fetcher.stop()
            await bookies.stop()


def _show(what: str, found: Mapping[str, Any]) -> None:
    findings = [row for row in found["epochs"] if row["finding"] != "good"]
    if not found["log_node"]:
        print("its log node is lost; --json has what is told of each epoch")
    for row in findings:
        print(f"e{row['epoch']}  {row['explained']}")
    for epoch in found["unreadable"]:
        print(f"of its metadata log, e{epoch} cannot be read whole")
    verdict = "as it should be" if found["ok"] else agree(f"{len(findings)} findings")
    counts = agree(f"{len(found['epochs'])} epochs")
    print(f"{what}: {counts}: {verdict}")
