"""A log over three regions of real processes: what lies where, and the loss of a region under load.

Nine bookies in three racks of three regions. The rule holds on what was really chosen, a proxy
reaches an owner of another region, and with one region killed appends go on without a repair.
Source: docs/protocol/placement.md "When a region is lost", R20.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History, read_log
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

GLOBAL = {"min_regions": 2, "regions_that_must_suffice": 3}
FLAGS = (
    "--bookies", "9", "--sequencers", "2", "--write-proxies", "2", "--no-restart",
    "--regions", "x,y,z", "--racks", "a,b,c",
)  # fmt: skip


def duramen(cluster: LocalCluster, *words: str) -> tuple[int, Any]:
    """Exit code and JSON of one command."""
    command = [sys.executable, "-m", "duramen.cli.main", *words, "--json"]
    done = subprocess.run(
        [*command, "--data", str(cluster.folder)], capture_output=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr.decode()


def takers(cluster: LocalCluster, *words: str) -> dict[str, int]:
    """Bookies that take new data, by region, as a command says."""
    rows = duramen(cluster, *words)[1]["regions"]
    return {row["region"]: row["takes_new_data"] for row in rows}


def test_a_region_is_lost_under_load_and_appends_go_on(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "data", *FLAGS) as cluster:
        run(create_log(cluster, "global", {"replication": GLOBAL}))
        rows = duramen(cluster, "bookies")[1]["bookies"]
        places = Counter((row["region"], row["rack"]) for row in rows)
        assert places == {(region, rack): 1 for region in "xyz" for rack in "abc"}
        assert all(row["takes_new_data"] for row in rows)

        history = History("global")
        run(lose_region(cluster, history, "z"))
        expected = max(end for _, end in history.acknowledged.values())
        url = cluster.state()["read_url"]
        history.check(run(read_log(url, history.log, expect_count=expected)))
        code, checked = duramen(cluster, "placement", "check", "default/global")
        assert (code, checked["violations"]) == (0, 0), checked
        assert checked["fragments"] >= 1

        wait_in_thread(lambda: takers(cluster, "regions")["z"] == 0, HANG_S, "z to be seen as lost")
        assert takers(cluster, "regions", "close", "y") == {"x": 3, "y": 0, "z": 0}
        run(expect_impossible(cluster))
        assert duramen(cluster, "regions", "open", "y")[1]["closed"] == []
        located = duramen(cluster, "bookies", "locate", "bookie-0", "--rack", "c")
        assert located == (0, {
            "id": "bookie-0", "region": "x", "rack": "c", "weight": 1.0, "from_flags": False,
        })  # fmt: skip


async def lose_region(cluster: LocalCluster, history: History, region: str) -> None:
    """Append through a proxy of each of two regions, kill a third one's bookies, append on."""
    stop = asyncio.Event()
    urls = [cluster.process(name)["data_url"] for name in cluster.ids("writeproxy")]
    assert {cluster.process(name)["region"] for name in cluster.ids("writeproxy")} == {"x", "y"}
    clients = [RestClient(url) for url in urls]
    try:
        # The log has one owner, so one of the proxies is of another region than it.
        for client in clients:
            once = asyncio.Event()
            writer = asyncio.create_task(history.append_until(client, once))
            await history.wait_acknowledged(len(history.acknowledged) + 3)
            once.set()
            await writer
        writer = asyncio.create_task(history.append_until(clients[0], stop))
        lost = [n for n in cluster.ids("bookie") if cluster.process(n)["region"] == region]
        assert len(lost) == 3
        for name in lost:
            cluster.kill(name)
        await history.wait_acknowledged(len(history.acknowledged) + 10)
        stop.set()
        await writer
    finally:
        stop.set()
        for client in clients:
            await client.close()


async def expect_impossible(cluster: LocalCluster) -> None:
    """What these bookies, or any, could never do is refused at creation, with what would work."""
    client = RestClient(cluster.state()["write_url"])
    try:
        sizes = {"ensemble_size": 10, "write_quorum": 10, "ack_quorum": 7}
        wide = {"replication": {**GLOBAL, **sizes}}
        with pytest.raises(DuramenError) as refused:
            await client.ensure_log("default", "wide", wide)
        assert refused.value.code == "placement_impossible", refused.value
        assert "an ensemble has 10 bookies" in refused.value.detail
        with pytest.raises(DuramenError) as advised:
            await client.ensure_log("default", "two", {"replication": {"min_regions": 2}})
        assert advised.value.code == "invalid_argument"
        assert "regions_that_must_suffice 3 or min_regions 1" in advised.value.detail
    finally:
        await client.close()
