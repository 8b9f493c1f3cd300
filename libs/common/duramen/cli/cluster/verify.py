"""`duramen verify LOG`: every entry of every replica, read anew at the bookies, compared.

Needs ZooKeeper and the bookies' data ports, so it runs inside the cluster's network; nothing is
changed. Where they are stands in the cluster.json of a `duramen run`, or in `--zookeeper` and
`--cluster`.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/repair.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from duramen.cli.arguments import DataOption, JsonOption, LogText
from duramen.cli.cluster.reach import (
    ClusterOption,
    IdentityOption,
    ZooKeeperOption,
    find_cluster,
    find_identity,
    reach,
)
from duramen.cli.command import DATA_DEFAULT, ExitCode, parse_argument, print_json, run_async
from duramen.client.bookie_client import BookieClient
from duramen.client.log_verifier import LogVerifier, OnProgress
from duramen.texts import parse_log
from duramen.units import agree
from duramen.wire.metadata_json import Paths

_SHOWN_RANGE_COUNT: Final = 20


def verify(
    log: LogText,
    /,
    *,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    identity: IdentityOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Read every entry from every replica straight from the bookies, and compare.

    Each bookie reads its copies anew from its disks; identities are compared between replicas, and
    counts with the metadata. Told is what is missing, damaged or different where; of a flexible
    segment, which entries are short of what its replication property asks for. In the open segment
    entries up to the last confirmed one are looked at. Segments that have left the bookies for the
    cold store are only counted. Nothing is changed.

    Exit codes: 0 every copy is there and whole; 1 something is not, or failed; 2 usage.
    """
    wanted = parse_argument(parse_log, log)
    hosts, root = find_cluster(zookeeper, cluster, data)
    shown = find_identity(identity, zookeeper, data)
    with _progress(is_shown=not json and sys.stderr.isatty()) as on_progress:
        found = run_async(_verify(hosts, root, shown, wanted, on_progress))
    if json:
        print_json({"log": log, **found})
    else:
        _show(log, found)
    return ExitCode.OK if found["ok"] else ExitCode.FAILED


async def _verify(
    hosts: str,
    cluster: str,
    identity: Path | None,
    log: tuple[str, str],
    on_progress: OnProgress,
) -> dict[str, Any]:
    async with reach(hosts, identity) as (store, security):
        client = BookieClient(security)
        try:
            verifier = LogVerifier(store, Paths(cluster), client, security)
            log_id = await verifier.find_log(*log)
            report = await verifier.verify(log_id, on_progress)
            return {"log_id": str(log_id), **report.to_json()}
        finally:
            await client.close()


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[OnProgress]:
    """A bar on stderr, for people only."""
    if not is_shown:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "entries", TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _show(log: str, found: dict[str, Any]) -> None:
    for finding in found["findings"]:
        who = finding["bookie"] or ("copies" if finding["fault"] == "short" else "metadata")
        if finding["incarnation"]:
            who += f"/{finding['incarnation']}"
        ranges = [_format_range(*pair) for pair in finding["ranges"][:_SHOWN_RANGE_COUNT]]
        more = len(finding["ranges"]) - len(ranges)
        where = f": entries {', '.join(ranges)}" if ranges else ""
        rest = f" and {more} more" if more else ""
        detail = f" ({finding['detail']})" if finding["detail"] else ""
        print(f"e{finding['epoch']}  {who}  {finding['fault']}{detail}{where}{rest}")
    for segment in found["segments"]:
        if silent := segment.get("silent"):
            names = ", ".join(f"{bookie}/{incarnation}" for bookie, incarnation in silent)
            print(f"e{segment['epoch']}  told nothing: {names}")
    if found["lost_entries"]:
        print(agree(f"lost, and that was accepted: {found['lost_entries']:,} entries"))
    if found.get("hole_entries"):
        print(agree(f"in holes, never acknowledged: {found['hole_entries']:,} entries"))
    if found["released_segments"]:
        print(
            agree(f"in the cold store alone: {found['released_segments']:,} segments before these")
        )
    verdict = "all good" if found["ok"] else agree(f"{len(found['findings'])} findings")
    counts = agree(f"{len(found['segments'])} segments, {found['entries']:,} entries")
    copies = agree(f"{found['good_copies']:,} of {found['copies']:,} copies")
    print(f"{log}: {counts}, {copies} good: {verdict}")


def _format_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
