"""Copies counted at the bookies, and what repair leaves in ZooKeeper, for tests of a local cluster.

Counting is `duramen verify`'s own code: every entry of every replica is read anew from the disks
and compared; nothing is taken from metadata but who should hold it. Used by the tests of repair,
drain, rebalance and pauses. Source: docs/testing.md "Chaos", docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from duramen.client.bookie_client import BookieClient
from duramen.client.log_verifier import LogVerifier
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster
from tests.process.history import History
from tests.process.times import HANG_S
from tests.waiting import wait_for

NAMESPACE = "default"
LOOK_PAUSE_S = 0.2
"""A look costs much here."""

_NOT_YET = (DuramenError, PeerError, MetadataError)


async def verify_logs(cluster: LocalCluster, logs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What `duramen verify --json` says of each log."""
    async with open_store(cluster) as (store, paths):
        client = BookieClient()
        try:
            reports = {}
            for log in logs:
                verifier = LogVerifier(store, paths, client)
                report = await verifier.verify(await verifier.find_log(NAMESPACE, log))
                reports[log] = report.to_json()
            return reports
        finally:
            await client.close()


async def wait_whole(
    cluster: LocalCluster, logs: Sequence[str], timeout_s: float = HANG_S
) -> dict[str, dict[str, Any]]:
    """Until every entry of the logs is on its whole write set; returns the reports."""
    found: dict[str, dict[str, Any]] = {}

    async def is_whole() -> bool:
        found.update(await verify_logs(cluster, logs))
        return all(report["ok"] for report in found.values())

    await ask_until(is_whole, timeout_s, lambda: f"whole copies: {_format(found)}")
    assert all(one["good_copies"] == one["copies"] > 0 for one in found.values()), _format(found)
    return found


async def list_notes(cluster: LocalCluster) -> list[str]:
    """What waits under `repair/owed` and `repair/queue`, and a running rebalance."""
    async with open_store(cluster) as (store, paths):
        notes = [
            f"{parent}/{ledger}"
            for parent in (paths.repair_owed, paths.repair_queue)
            for ledger in await store.children(parent) or ()
        ]
        if await store.get(paths.rebalance) is not None:
            notes.append(paths.rebalance)
        return notes


async def wait_settled(cluster: LocalCluster, timeout_s: float = HANG_S) -> dict[str, Any]:
    """Until a whole round that begins now finds everything proved, and no task or note is left.

    Rounds are asked for, as what an operator changes does: by themselves they are a minute apart.
    """
    answer: dict[str, Any] = {}
    notes: list[str] = []
    since_ms = time.time_ns() // 1_000_000

    async def is_settled() -> bool:
        answer.update(await ask(cluster, "repair"))
        last = answer["last_round"]
        notes[:] = await list_notes(cluster)
        is_seen = last is not None and last["began_unix_ms"] > since_ms and last["whole"]
        is_waiting = answer["backlog"]["tasks"] or answer["unrepairable"] or notes
        if is_seen and not last["unproved_fragments"] and not is_waiting:
            return True
        serving = cluster.ids("bookie")[-1]
        await post(cluster, f"bookies/{serving}/cancel-drain")
        return False

    await ask_until(is_settled, timeout_s, lambda: f"the end of repair: {notes}, {answer}")
    return answer


async def ask(cluster: LocalCluster, path: str) -> dict[str, Any]:
    """What the auditor says, through a write proxy."""
    client = RestClient(cluster.state()["admin_url"])
    try:
        return await client.get_json(f"/v1/cluster/{path}")
    finally:
        await client.close()


async def post(cluster: LocalCluster, path: str, fields: dict[str, Any] | None = None) -> Any:
    """Ask something of the auditor, through a write proxy."""
    client = RestClient(cluster.state()["admin_url"])
    try:
        return await client.post_json(f"/v1/cluster/{path}", fields or {})
    finally:
        await client.close()


async def close_segment(cluster: LocalCluster, log: str, timeout_s: float = HANG_S) -> None:
    """Roll a log and wait for it, and end its last fragment by that, so that it may move (R21).

    A roll is only asked for: until it is done appends go to the old segment, and another one asked
    for is the same one.
    """
    writing, reading = (cluster.open_client("write_url"), cluster.open_client("read_url"))
    epochs: list[int] = []

    async def is_closed() -> bool:
        rows = (await reading.list_segments(NAMESPACE, log))["segments"]
        if not epochs:
            epoch = await writing.roll_log(NAMESPACE, log)
            if epoch is None:  # or its owner is gone, and another has not closed it yet
                return all(row["state"] == "CLOSED" for row in rows)
            epochs.append(epoch)
        return any(row["epoch"] == epochs[0] and row["state"] == "CLOSED" for row in rows)

    try:
        await ask_until(is_closed, timeout_s, f"{log} to roll")
    finally:
        await writing.close()
        await reading.close()


async def ask_until(
    condition: Callable[[], Awaitable[bool]], within_s: float, what: str | Callable[[], str]
) -> None:
    """Ask until it is so; who does not answer now is asked again."""
    await wait_for(condition, within_s, what, rest_s=LOOK_PAUSE_S, passing=_NOT_YET)


@contextlib.asynccontextmanager
async def open_store(cluster: LocalCluster) -> AsyncIterator[tuple[ZooKeeperStore, Paths]]:
    """A session with the cluster's ZooKeeper, and its paths."""
    state = cluster.state()
    store = ZooKeeperStore(str(state["zookeeper"]), identity_dir=cluster.find_operator())
    await store.start()
    try:
        yield store, Paths(str(state["cluster"]))
    finally:
        await store.close()


def _format(found: dict[str, dict[str, Any]]) -> str:
    rows = [(log, *list(f.values())) for log, one in found.items() for f in one["findings"]]
    return f"{len(rows)} findings: {rows[:10]}"


async def append_slowly(history: History, client: RestClient, stop: asyncio.Event) -> None:
    """Appends that go on meanwhile, but little data: it counts in the shares."""
    while not stop.is_set():
        await history.append(client)
        await look_again_soon()


async def copies_of(cluster: LocalCluster, bookie: str) -> int:
    rows = (await ask(cluster, "repair/bookies"))["bookies"]
    return next(int(row["copies"]) for row in rows if row["bookie"] == bookie)
