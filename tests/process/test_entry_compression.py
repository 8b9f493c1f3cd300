"""A log with `compression: zstd` on real processes: appended, read, taken over, archived, verified.

Its owner is killed while a producer writes, so the next one recovers compressed entries and reads
back from them what the producer did. Source: docs/protocol/wire.md "Compressed entry", ADR 0029.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client import Client
from duramen.client.rest_client import RestClient
from duramen.ids import LogId, log_of
from duramen.wire.entry import HEADER_BYTES, MAGIC, EntryError, EntryInfo, read_entry_info
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import close_segment, wait_whole
from tests.process.hasty_bookie import hasty
from tests.process.history import History, read_log
from tests.process.owners import owners_of
from tests.process.tiers import MOVE, command, want_retention
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]

JOB = ("duramen_spark.main", "archive", "--runner", "threads")
_KEPT_COUNT = 2
"""The open segment, and the one that a new owner reads the producers from."""

LINES = [b'{"sensor": %d, "state": "nothing happens here"}' % number for number in range(200)]


def find_url(cluster: LocalCluster) -> str:
    state = cluster.state()
    return f"{state['write_url']},{state['read_url']}"


def list_stored(cluster: LocalCluster, log_id: LogId) -> list[EntryInfo]:
    """Entries of the log in the files of bookies; a header that is half there is none."""
    found = []
    for node_id in cluster.ids("bookie"):
        for path in Path(cluster.process(node_id)["data_dir"]).rglob("*.d[je]"):
            data = path.read_bytes()
            at = data.find(MAGIC)
            while at >= 0:
                try:
                    info = read_entry_info(data[at : at + HEADER_BYTES])
                except EntryError:
                    pass
                else:
                    found += [info] if log_of(info.ledger_id) == log_id else []
                at = data.find(MAGIC, at + 4)
    return found


def read_counter(cluster: LocalCluster, name: str) -> float:
    """Summed over the sequencers."""
    total = 0.0
    for node_id in cluster.ids("sequencer"):
        page = httpx.get(cluster.process(node_id)["admin_url"] + "/metrics", timeout=30).text
        rows = [line for line in page.splitlines() if line.startswith(f"{name} ")]
        total += sum(float(line.split()[1]) for line in rows)
    return total


def list_segments(cluster: LocalCluster) -> list[dict[str, Any]]:
    url = f"{cluster.state()['read_url']}/v1/namespaces/default/logs/small/segments"
    segments: list[dict[str, Any]] = httpx.get(url, timeout=30).json()["segments"]
    return segments


async def produce(cluster: LocalCluster, count: int) -> None:
    """As a program does, through the SDK: exactly once, whatever happens to the log's owner."""
    async with (
        Client(find_url(cluster)) as client,
        client["default"]["small"].producer(batch_records=20) as producer,
    ):
        await (await producer.append_many(LINES[: count // 2]))
        (owner,) = (await owners_of(cluster))["small"]
        cluster.kill(owner)
        await (await producer.append_many(LINES[count // 2 : count]))


async def read_bodies(cluster: LocalCluster) -> list[bytes]:
    async with Client(find_url(cluster)) as client:
        return [r.body async for batch in client["default"]["small"].read() for r in batch]


def test_a_compressed_log_lives_as_any_other(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--no-restart", "--sequencers", "2") as cluster:
        cluster.start_anew(*cluster.ids("bookie"), wrap=hasty)
        config = {**MOVE, "compression": "zstd"}
        log_id = LogId(int(run(create_log(cluster, "small", config))))
        history = History("small", record_bytes=400)

        async def fill(count: int) -> None:
            client = RestClient(cluster.state()["write_url"])
            try:
                for _ in range(count):
                    assert await history.append(client), history.codes
                await close_segment(cluster, "small")
            finally:
                await client.close()

        run(fill(6))
        history.check(run(read_log(cluster.state()["read_url"], "small", expect_count=18)))
        stored = list_stored(cluster, log_id)
        assert stored and {info.is_compressed for info in stored if info.record_count} == {True}
        before = read_counter(cluster, "duramen_sequencer_compression_in_bytes_total")
        after = read_counter(cluster, "duramen_sequencer_compression_out_bytes_total")
        assert 0 < after * 4 < before
        assert sum(segment["bytes"] or 0 for segment in list_segments(cluster)) == before

        run(produce(cluster, len(LINES)))
        whole = run(read_bodies(cluster))
        assert whole[18:] == LINES, "once each, although their owner was killed"
        stored = list_stored(cluster, log_id)
        assert any(info.has_state and info.is_compressed for info in stored)
        run(close_segment(cluster, "small"))
        (report,) = run(wait_whole(cluster, ["small"])).values()
        assert report["ok"], report

        count = len(list_segments(cluster))
        for age in ("1h", "0s"):
            code, report = command(cluster, *JOB, "default/small", "--recheck-after", age)
            assert code == 0, report
        assert report["rechecked"] == count - 1, report

        def is_released() -> bool:
            want_retention(cluster)
            kept = [one for one in list_segments(cluster) if one["hot_copies"] == "kept"]
            return len(kept) <= _KEPT_COUNT

        wait_in_thread(is_released, HANG_S, "the release of what is archived")
        code, report = command(cluster, "duramen.cli.main", "verify", "default/small")
        assert (code, report["ok"], report["released_segments"]) == (
            0, True, count - _KEPT_COUNT,
        ), report  # fmt: skip
        assert run(read_bodies(cluster)) == whole, "from the cold store"
