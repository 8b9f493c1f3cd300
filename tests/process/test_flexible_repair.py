"""Repair and drain of a flexible log among real processes: a bookie is lost, another is emptied.

Who is lost for good goes out of every map, and who is drained after him; then both are gone with
their disks, and a complete read finds every record. What an attempt decides is tested on its core
and in the simulator. Source: R26, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.core.flexible.segment import FlexibleSegment
from duramen.ids import NOTHING, LogId
from duramen.wire.metadata_json import read_any_segment
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import (
    ask,
    ask_until,
    close_segment,
    open_store,
    post,
    wait_settled,
)
from tests.process.history import History, read_log
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

LOG = "kept"
FLEXIBLE = {"copysets": "flexible", "replication": {"node": 2, "rack": 2}}
FLAGS = ("--bookies", "5", "--sequencers", "1", "--no-restart", "--racks", "a,b,c")
HURRIED = ["--lost-bookie-grace", "2s", "--audit-interval", "1s"]


async def write(cluster: LocalCluster, history: History, rounds: int) -> None:
    """Some appends and a roll, so many times."""
    client = RestClient(cluster.state()["write_url"])
    try:
        for _ in range(rounds):
            mark = len(history.acknowledged)
            while len(history.acknowledged) < mark + 10:
                await history.append(client)
            await close_segment(cluster, history.log)
    finally:
        await client.close()


async def accept_loss(cluster: LocalCluster, bookie: str) -> None:
    """Say that the bookie is gone for good: until then nodesets have room for it."""

    async def is_accepted() -> bool:
        rows = (await ask(cluster, "repair/bookies"))["bookies"]
        (incarnation,) = [row["incarnation"] for row in rows if row["bookie"] == bookie]
        await post(cluster, f"bookies/{bookie}/accept-loss", {"incarnation": incarnation})
        return True

    await ask_until(is_accepted, HANG_S, f"{bookie} to count as lost")


async def wait_unnamed(cluster: LocalCluster, bookie: str) -> None:
    """Until no segment names the bookie, which the cluster has forgotten."""

    async def is_unnamed() -> bool:
        return bookie not in await list_named(cluster)

    await ask_until(is_unnamed, HANG_S, f"{bookie} in no map any more")


async def wait_drained(cluster: LocalCluster, bookie: str) -> None:
    """Until the bookie may be taken away."""

    async def is_drained() -> bool:
        answer: dict[str, Any] = await ask(cluster, f"bookies/{bookie}/disruption?kind=remove")
        return bool(answer["allowed"])

    await ask_until(is_drained, HANG_S, f"{bookie} to be drained")


async def list_named(cluster: LocalCluster) -> set[str]:
    """Bookies in the maps of the only log's segments that have or may come to have an entry, as the
    metadata store has them: the list of a read proxy may be older.

    The map of a segment that ended without an entry names whom it named: there is nothing to move.
    """
    async with open_store(cluster) as (store, paths):
        parent = paths.segments(LogId(1))
        names = await store.children(parent) or ()
        nodes = [await store.get(f"{parent}/{name}") for name in names]
        found = [read_any_segment(node.data) for node in nodes if node is not None]
    segments = [segment for segment in found if isinstance(segment, FlexibleSegment)]
    assert segments and len(segments) == len(found)
    matter = [segment for segment in segments if segment.last_entry != NOTHING]
    return {str(row.node.bookie) for segment in matter for row in segment.nodes}


def test_a_lost_bookie_goes_out_of_the_maps_and_another_is_emptied(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *FLAGS) as cluster:
        history = History(LOG)
        (sequencer,) = cluster.ids("sequencer")
        lost, emptied = cluster.ids("bookie")[:2]

        async def play() -> list[bytes]:
            await create_log(cluster, LOG, FLEXIBLE)
            cluster.kill(sequencer)
            cluster.revive(sequencer, lambda line: [*line, *HURRIED])
            await write(cluster, history, 4)
            await wait_settled(cluster)
            assert await list_named(cluster) == {*cluster.ids("bookie")}
            cluster.kill(lost)
            await accept_loss(cluster, lost)
            await wait_unnamed(cluster, lost)
            await write(cluster, history, 1)
            await post(cluster, f"bookies/{emptied}/drain")
            await wait_drained(cluster, emptied)
            assert not {lost, emptied} & await list_named(cluster)
            cluster.kill(emptied)
            for name in (lost, emptied):
                shutil.rmtree(cluster.process(name)["data_dir"])
            await write(cluster, history, 1)
            expected = max(end for _, end in history.acknowledged.values())
            return await read_log(cluster.state()["read_url"], LOG, expect_count=expected)

        history.check(run(play()))
