"""A log with `tiering.policy: move` on real processes: archived, released, dropped, still a log.

The archive job is the real one, in threads. What may be released when is tested in
tests/unit/test_release.py and by the simulator. Source: docs/protocol/archive.md, invariant A1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.ids import Epoch, LogId, ledger_of
from tests.process.cluster import LocalCluster, create_log, run, running_cluster, wait_until
from tests.process.hasty_bookie import hasty
from tests.process.history import History, read_log

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

pytest.importorskip("pyarrow", reason="the archive needs the extra cold")

MOVE = {"tiering": {"policy": "move", "keep_hot": "0s"}, "retention": {"age": None}}
LOG = "default/tiers"


def command(cluster: LocalCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON answer of a command."""
    whole = [sys.executable, "-m", *words, "--data", str(cluster.folder), "--json"]
    done = subprocess.run(whole, capture_output=True, timeout=120, check=False)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def fill(cluster: LocalCluster, history: History, count: int, *, rolls: bool) -> None:
    async def work() -> None:
        client = RestClient(cluster.state()["write_url"])
        try:
            for _ in range(count):
                assert await history.append(client), history.codes
            if rolls:
                await client.roll_log("default", "tiers")
        finally:
            await client.close()

    run(work())


def list_segments(cluster: LocalCluster) -> list[dict[str, Any]]:
    url = cluster.state()["read_url"] + "/v1/namespaces/default/logs/tiers/segments"
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == 200, answer.text
    segments: list[dict[str, Any]] = answer.json()["segments"]
    return segments


def held_ledgers(cluster: LocalCluster, log_id: LogId) -> set[str]:
    """Epochs of the log that any bookie still holds, as ledger ids."""
    urls = [cluster.process(node_id)["admin_url"] for node_id in cluster.ids("bookie")]
    rows = [
        row for url in urls for row in httpx.get(url + "/v1/ledgers", timeout=30).json()["ledgers"]
    ]
    return {str(row["ledger_id"]) for row in rows if int(row["log_id"]) == log_id}


def want_retention(cluster: LocalCluster) -> None:
    for node_id in cluster.ids("sequencer"):
        url = cluster.process(node_id)["admin_url"]
        httpx.post(url + "/v1/retention", timeout=30).raise_for_status()


def count_hot(cluster: LocalCluster) -> int:
    want_retention(cluster)
    return sum(segment["hot_copies"] == "kept" for segment in list_segments(cluster))


def test_what_is_archived_leaves_the_bookies_and_stays_in_the_log(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "c", "--no-restart", "--sequencers", "2") as cluster:
        bookies = cluster.ids("bookie")
        for node_id in bookies:
            cluster.kill(node_id)
        for node_id in bookies:
            cluster.revive(node_id, hasty)
        log_id = LogId(int(run(create_log(cluster, "tiers", MOVE))))
        history = History("tiers")
        for _ in range(2):
            fill(cluster, history, 4, rolls=True)
        fill(cluster, history, 4, rolls=False)
        assert count_hot(cluster) == 3, "nothing is archived yet"

        job = ("duramen_spark.main", "archive", LOG, "--runner", "threads")
        code, report = command(cluster, *job, "--recheck-after", "1h")
        assert (code, report["segments"]) == (0, {"archived": 2}), report
        assert count_hot(cluster) == 3, "verified once is not enough"
        code, report = command(cluster, *job, "--recheck-after", "0s")
        assert (code, report["rechecked"]) == (0, 2), report
        wait_until(lambda: count_hot(cluster) == 1, 60, "the release of two segments")
        cold, hot = list_segments(cluster)[:2], list_segments(cluster)[2:]
        assert all(one["status"] == "LIVE" and one["cold_copy"]["rechecked"] for one in cold)

        kept = {str(ledger_of(log_id, Epoch(hot[0]["epoch"])))}
        wait_until(lambda: held_ledgers(cluster, log_id) == kept, 60, "bookies to drop the others")
        code, found = command(cluster, "duramen.cli.main", "verify", LOG)
        assert (code, found["ok"], found["released_segments"]) == (0, True, 2), found

        read_url, count = cluster.state()["read_url"], 12 * history.records_per_append
        history.check(run(read_log(read_url, "tiers", expect_count=count)))

        for node_id in cluster.ids("sequencer")[:1]:
            cluster.kill(node_id)  # whoever owned it: what is cold is in nobody's way
        fill(cluster, history, 4, rolls=False)
        first = hot[0]["start_seq_num"]
        url = cluster.state()["read_url"] + "/v1/namespaces/default/logs/tiers/records"
        answer = httpx.get(f"{url}?from=seq:{first}&count=100", timeout=70).json()
        assert len(answer["records"]) == 8 * history.records_per_append, "the hot ones"
        assert "moved_to" not in httpx.get(f"{url}?from=seq:0", timeout=70).json()
        count += 4 * history.records_per_append
        history.check(run(read_log(read_url, "tiers", expect_count=count)))
