"""A flexible log of real processes: made, appended to, read, shown, changed and striped again.

What is offered comes together here: the format of the tree, the nodeset, waves, envelopes, reads by
filters, and what an operator sees. Faults are other tests' matter.
Source: docs/protocol/flexible.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History, read_log
from tests.process.times import HANG_S
from tests.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

FLEXIBLE = {"copysets": "flexible", "replication": {"node": 3, "rack": 3}}
FLAGS = ("--bookies", "6", "--sequencers", "1", "--no-restart", "--racks", "a,b,c")


def duramen(cluster: LocalCluster, *words: str) -> tuple[int, Any]:
    """Exit code and JSON of one command."""
    command = [sys.executable, "-m", "duramen.cli.main", *words, "--json"]
    done = subprocess.run(
        [*command, "--data", str(cluster.folder)], capture_output=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr.decode()


async def append(cluster: LocalCluster, history: History, count: int) -> None:
    client = RestClient(cluster.state()["write_url"])
    try:
        for _ in range(count):
            assert await history.append(client), history.codes
    finally:
        await client.close()


async def reconfigure(cluster: LocalCluster, patch: dict[str, Any]) -> dict[str, Any]:
    client = RestClient(cluster.state()["write_url"])
    try:
        return await client.reconfigure_log("default", "log", patch)
    finally:
        await client.close()


async def list_segments(cluster: LocalCluster) -> list[dict[str, Any]]:
    client = RestClient(cluster.state()["read_url"])
    try:
        found: list[dict[str, Any]] = (await client.list_segments("default", "log"))["segments"]
        return found
    finally:
        await client.close()


async def wait_segments(cluster: LocalCluster, *kinds: str) -> list[dict[str, Any]]:
    """The log's segments, once they are of these kinds."""
    rows: list[dict[str, Any]] = []

    async def are_there() -> bool:
        rows[:] = await list_segments(cluster)
        return [("flexible" if "nodes" in row else "striped") for row in rows] == [*kinds]

    await wait_for(are_there, HANG_S, rest_s=0.2)
    return rows


def check_nodeset(cluster: LocalCluster) -> None:
    """What `placement check` says while the flexible segment is open."""
    code, told = duramen(cluster, "placement", "check", "default/log")
    nodeset = told["nodeset"]
    assert code == 0 and len(nodeset["nodes"]) == 6, told
    assert nodeset["may_be_away"] == ["any 1 node"], "three racks, and each entry wants three"
    assert (nodeset["refusal"], nodeset["reopens"]) == (None, [])


def test_a_log_becomes_flexible_and_striped_again(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "data", *FLAGS) as cluster:
        run(create_log(cluster, "log", {}))
        history = History("log")

        async def play() -> None:
            await append(cluster, history, 20)
            changed = await reconfigure(cluster, FLEXIBLE)
            assert changed["config"]["replication"]["node"] == 3
            await append(cluster, history, 20)
            rows = await wait_segments(cluster, "striped", "flexible")
            assert rows[1]["property"] == {"node": 3, "rack": 3, "region": 1}
            assert len(rows[1]["nodes"]) == 6 and "fragments" not in rows[1]
            check_nodeset(cluster)
            await append(cluster, history, 20)
            await reconfigure(cluster, {"copysets": "striped"})
            await append(cluster, history, 20)
            await wait_segments(cluster, "striped", "flexible", "striped")
            await append(cluster, history, 20)
            total = 3 * len(history.acknowledged)
            bodies = await read_log(cluster.state()["read_url"], "log", expect_count=total)
            history.check(bodies)

        run(play())
        code, told = duramen(cluster, "placement", "check", "default/log")
        assert (code, told["violations"], "nodeset" in told) == (0, 0, False)
        code, told = duramen(cluster, "story", "default/log")
        rolls = [event["reason"] for event in told["events"] if event["event"] == "rolls"]
        assert rolls == ["copysets are flexible now", "copysets are striped now"]
