"""The life of logs in a running cluster: rolls under load, several owners, orphans.

Real processes throughout; what is asserted is what the public REST and the metadata show.
Source: docs/protocol/metadata.md "The changes", docs/protocol/recovery.md "Orphans",
docs/protocol/write.md "Roll", R19.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History, read_log
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread
from tests.zookeeper_fixture import running_zookeeper

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


async def _append(cluster: LocalCluster, history: History, count: int) -> None:
    client = cluster.open_client("write_url")
    try:
        for _ in range(count):
            assert await history.append(client), history.codes
    finally:
        await client.close()


async def _segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    client = cluster.open_client("read_url")
    try:
        segments: list[dict[str, Any]] = (await client.list_segments("default", log))["segments"]
        return segments
    finally:
        await client.close()


@pytest.mark.parametrize("roll", [{"size": "64KiB"}, {"interval": "500ms"}], ids=["size", "time"])
def test_rolls_under_load_leave_no_gap_and_no_double(
    shared_cluster: LocalCluster, roll: dict[str, str]
) -> None:
    """Rolled by size or by time alone: every append gets its answer, segments are contiguous."""
    cluster, name = shared_cluster, f"rolls-by-{'-'.join(roll)}"

    async def scenario() -> None:
        await create_log(cluster, name, {"roll": roll})
        history = History(name, record_bytes=1_000)
        async with asyncio.timeout(HANG_S):
            while len(await _segments(cluster, name)) < 8:
                await _append(cluster, history, 50)
        assert not history.codes
        total = 3 * len(history.acknowledged)
        bodies = await read_log(cluster.open_client("read_url"), name, expect_count=total)
        history.check(bodies)
        segments = await _segments(cluster, name)
        closed = segments[:-1]
        assert [s["epoch"] for s in segments] == list(range(1, len(segments) + 1))
        assert all(s["state"] == "CLOSED" for s in closed)
        starts = [sum(s["records"] for s in closed[:i]) for i in range(len(closed))]
        assert [s["start_seq_num"] for s in closed] == starts

    run(scenario())


def test_two_sequencers_share_the_logs_and_redirect(tmp_path: Path) -> None:
    with running_plain_cluster(
        tmp_path / "c", "--sequencers", "2", "--write-proxies", "2"
    ) as cluster:

        async def owned(node_id: str) -> set[str]:
            async with httpx.AsyncClient(timeout=30) as http:
                logs = await http.get(cluster.process(node_id)["admin_url"] + "/v1/logs")
                return {log["log_id"] for log in logs.json() if log["state"] == "active"}

        async def scenario() -> None:
            ids = {}
            histories = [History(f"log-{i}") for i in range(12)]
            for history in histories:
                ids[history.log] = await create_log(cluster, history.log, {})
                await _append(cluster, history, 1)
            shares = [await owned(node_id) for node_id in cluster.ids("sequencer")]
            assert shares[0] and shares[1], "one sequencer owns every log"
            assert not shares[0] & shares[1]
            assert shares[0] | shares[1] == set(ids.values())
            # The other write proxy does not know the owners, and asks whom the hash names.
            client = RestClient(cluster.process("writeproxy-1")["data_url"])
            for history in histories:
                assert await history.append(client), history.codes
            await client.close()
            for history in histories:
                history.check(await read_log(cluster.open_client("read_url"), history.log))

        run(scenario())


def test_an_orphaned_log_is_closed_without_an_append(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2", "--no-restart") as cluster:

        async def scenario() -> None:
            histories = [History(f"orphan-{i}") for i in range(6)]
            for history in histories:
                await create_log(cluster, history.log, {})
                await _append(cluster, history, 20)
            async with httpx.AsyncClient(timeout=30) as http:
                logs = await http.get(cluster.process("sequencer-0")["admin_url"] + "/v1/logs")
            orphan_count = len(logs.json())
            assert 0 < orphan_count < 6, "the fault would have no effect, or too much"
            await asyncio.to_thread(cluster.kill, "sequencer-0")
            for history in histories:
                bodies = await read_log(
                    cluster.open_client("read_url"), history.log, expect_count=60
                )
                history.check(bodies)
            async with asyncio.timeout(HANG_S):
                while True:
                    firsts = [(await _segments(cluster, history.log))[0] for history in histories]
                    if [first["state"] for first in firsts].count("CLOSED") >= orphan_count:
                        break
                    await look_again_soon()

        run(scenario())


def test_an_existing_zookeeper_is_used(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        folder = tmp_path / "c"
        with running_plain_cluster(folder, "--zookeeper", server.address) as cluster:
            assert cluster.ids("zookeeper") == []
            assert cluster.state()["zookeeper"] == server.address

            async def scenario() -> None:
                await create_log(cluster, "outside", {})
                history = History("outside")
                await _append(cluster, history, 10)
                bodies = await read_log(cluster.open_client("read_url"), "outside", expect_count=30)
                history.check(bodies)

            run(scenario())
        wait_in_thread(lambda: server.pid is not None, HANG_S, "the server that was there before")
