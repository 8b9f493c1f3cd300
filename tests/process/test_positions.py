"""Every kind of position against a running cluster, by REST and by the command line.

Real processes: txids over rolled segments with an empty one, then truncated inside the open one.
What positions mean is proved in `tests/unit/test_positions.py`. Source: docs/protocol/reading.md
"Positions".
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.ids import LogId, parse_lsn
from duramen.wire.metadata_json import encode_log, read_log
from duramen.wire.record_batch import encode_batch
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster, create_log, run
from tests.process.copies import open_store
from tests.process.metadata_nodes import change_node

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

RECORDS = "/v1/namespaces/default/logs/positions/records"
FIRST_TIME_MS = 1_700_000_000_000

APPENDS: Sequence[Sequence[int] | None] = (
    (1, 2), (3, 7), None, (7, 7), None, None, (7,), (7, 9), None, (9, 10, 12),
)  # fmt: skip
"""Txids of each append; None rolls. Record n has the body `rn`, n s after the first one."""

FIRSTS = {
    "head": 0, "tail": 12, "tail-5": 7, "tail-99": 0, "seq:4": 4, "11": 11, "seq:12": 12,
    "lsn:e1n1": 2, "lsn:e3n0": 6, "lsn:e5n0": 9,
    "dlsn:e1n0s1": 1, "dlsn:e2n0s1": 5, "dlsn:e4n1s1": 8, "dlsn:e5n0s2": 11,
    "txid:0": 0, "txid:3": 2, "txid:4": 3, "txid:7": 3, "txid:8": 8, "txid:9": 8, "txid:11": 11,
    f"time:{FIRST_TIME_MS}": 0, f"time:{FIRST_TIME_MS + 3_001}": 4, "time:2023-11-14T22:13:27Z": 7,
    "time:1999-01-01T00:00:00Z": 0, "time:2100-01-01T00:00:00Z": 12,
    "ago:1s": 12, "ago:900000h": 0,
}  # fmt: skip
"""Positions, and the records that reads from them begin with; 12 is the tail."""


async def append_all(cluster: LocalCluster) -> None:
    client = cluster.open_client("write_url")
    count = 0
    for txids in APPENDS:
        if txids is None:
            await roll(cluster, client)
            continue
        numbers = range(count, count + len(txids))
        times = [FIRST_TIME_MS + 1_000 * n for n in numbers]
        bodies = [b"r%d" % n for n in numbers]
        batch = encode_batch(bodies, 0, timestamps_ms=times, txids=txids)
        appended = await client.append("default", "positions", batch)
        count += len(txids)
        assert appended.end == count
    await client.close()


async def roll(cluster: LocalCluster, client: RestClient) -> None:
    """Roll, and wait until the next segment is there."""
    epoch = await client.roll_log("default", "positions")
    while (await list_segments(cluster))[-1]["epoch"] == epoch:
        await look_again_soon()


async def list_segments(cluster: LocalCluster) -> list[dict[str, Any]]:
    client = cluster.open_client("read_url")
    try:
        answer = await client.list_segments("default", "positions")
        segments: list[dict[str, Any]] = answer["segments"]
        return segments
    finally:
        await client.close()


async def truncate(cluster: LocalCluster, log_id: str, seq_num: int, lsn: str) -> None:
    """Move the trim point in the log node, and wait until the read proxy has seen it."""

    def trim(data: bytes) -> bytes:
        return encode_log(replace(read_log(data), trim_lsn=parse_lsn(lsn), trim_seq_num=seq_num))

    async with open_store(cluster) as (store, paths):
        await change_node(store, paths.log(LogId(int(log_id))), trim)
    async with open_http(cluster) as http:
        while (await http.get(RECORDS)).json().get("records", [{}])[0].get("seq_num") != seq_num:
            await look_again_soon()


def open_http(cluster: LocalCluster) -> httpx.AsyncClient:
    """The read proxy, for calls that are spelt here."""
    return httpx.AsyncClient(
        base_url=cluster.state()["read_url"], headers=cluster.read_headers(), timeout=20
    )


async def read_seq_nums(http: httpx.AsyncClient, position: str) -> tuple[list[int], int | None]:
    """What a read to the tail gives, and where the position moved to."""
    answer = await http.get(RECORDS, params={"from": position, "clamp": "true"})
    assert answer.status_code == 200, (position, answer.text)
    document = answer.json()
    assert document["tail"]["seq_num"] == 12, position
    records = document["records"]
    assert [r["body"] for r in records] == [f"r{r['seq_num']}" for r in records]
    return [r["seq_num"] for r in records], document.get("moved_to", {}).get("seq_num")


def read_by_command(cluster: LocalCluster, position: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "duramen.cli.main", "read", "default/positions"]
    command += ["--from", position, "--data", str(cluster.folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def check_every_kind(cluster: LocalCluster, firsts: dict[str, int], oldest: int) -> None:
    async with open_http(cluster) as http:
        for position, first in firsts.items():
            seq_nums, moved_to = await read_seq_nums(http, position)
            assert seq_nums == list(range(max(first, oldest), 12)), position
            if first < oldest:
                assert moved_to == (None if position == "head" else oldest), position
        answer = await http.get(RECORDS, params={"from": "txid:13"})
        assert (answer.status_code, answer.json()["tail"]["seq_num"]) == (416, 12)
        answer = await http.get(RECORDS, params={"from": "10", "until": "txid:12"})
        assert [r["seq_num"] for r in answer.json()["records"]] == [10]


def test_every_kind_of_position_in_a_running_cluster(shared_cluster: LocalCluster) -> None:
    cluster = shared_cluster

    async def scenario() -> None:
        await create_log(cluster, "positions", {})
        await append_all(cluster)
        last_entries = [s["last_entry"] for s in await list_segments(cluster)]
        assert last_entries == [1, 0, -1, 1, None], "equal txids span an empty segment"
        await check_every_kind(cluster, FIRSTS, 0)

    run(scenario())
    for position in ("txid:8", "time:2023-11-14T22:13:28Z", "tail-4", "dlsn:e4n1s1", "8"):
        done = read_by_command(cluster, position)
        assert (done.returncode, done.stdout) == (0, "r8\nr9\nr10\nr11\n"), done.stderr
    assert read_by_command(cluster, "ago:1s").stdout == ""
    assert "beyond_tail" in read_by_command(cluster, "txid:13").stderr

    async def truncate_inside_the_open_segment() -> None:
        log_id = await create_log(cluster, "positions", {})
        await truncate(cluster, log_id, 10, "e5n0")
        await check_every_kind(cluster, FIRSTS, 10)

    run(truncate_inside_the_open_segment())
    for position in ("head", "txid:2", "lsn:e1n0", "3", "ago:900000h"):
        done = read_by_command(cluster, position)
        assert (done.returncode, done.stdout) == (0, "r10\nr11\n"), done.stderr
        assert ("truncated" in done.stderr) == (position != "head"), done.stderr
