"""Tiering on real processes: a log that moves to the cold store, and the jobs that move it.

Used by `test_tiering`, `test_flexible_archive`, `test_cold_reads`, `test_cold_stores` and the
tutorial's test.
Source: docs/protocol/archive.md.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import httpx

from duramen.ids import LogId
from tests.process.cluster import LocalCluster, run
from tests.process.copies import close_segment
from tests.process.history import History, read_log

MOVE = {"tiering": {"policy": "move", "keep_hot": "0s"}, "retention": {"age": None}}


def command(cluster: LocalCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON answer of a command."""
    whole = [sys.executable, "-m", *words, "--data", str(cluster.folder), "--json"]
    done = subprocess.run(whole, capture_output=True, timeout=120, check=False)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def want_retention(cluster: LocalCluster) -> None:
    """A round of every sequencer that is there."""
    trusted = cluster.trust_admin_ports()
    for node_id in cluster.ids("sequencer"):
        with contextlib.suppress(httpx.TransportError):  # one may be killed
            url = cluster.process(node_id)["admin_url"] + "/v1/retention"
            httpx.post(url, timeout=30, verify=trusted)


def fill(cluster: LocalCluster, history: History, count: int, *, rolls: bool) -> None:
    """So many appends, one after the other, and the end of the segment."""

    async def work() -> None:
        client = cluster.open_client("write_url")
        try:
            for _ in range(count):
                assert await history.append(client), history.codes
            if rolls:
                await close_segment(cluster, history.log)
        finally:
            await client.close()

    run(work())


def list_segments(cluster: LocalCluster, log: str) -> list[dict[str, Any]]:
    """As a read proxy shows them."""
    url = f"{cluster.state()['read_url']}/v1/namespaces/default/logs/{log}/segments"
    answer = httpx.get(url, headers=cluster.read_headers(), timeout=30)
    assert answer.status_code == 200, answer.text
    segments: list[dict[str, Any]] = answer.json()["segments"]
    return segments


def held_ledgers(cluster: LocalCluster, log_id: LogId) -> set[str]:
    """Epochs of the log that any bookie still holds, as ledger ids."""
    rows = _list_ledgers(cluster, log_id).values()
    return {str(row["ledger_id"]) for ledgers in rows for row in ledgers}


def count_entries(cluster: LocalCluster, log_id: LogId) -> dict[str, int]:
    """How many of the log's entries each bookie holds."""
    rows = _list_ledgers(cluster, log_id)
    return {node_id: sum(row["entries"] for row in ledgers) for node_id, ledgers in rows.items()}


def _list_ledgers(cluster: LocalCluster, log_id: LogId) -> dict[str, list[dict[str, Any]]]:
    """The log's ledgers at each bookie, as its admin port tells."""
    trusted, found = cluster.trust_admin_ports(), {}
    for node_id in cluster.ids("bookie"):
        url = cluster.process(node_id)["admin_url"] + "/v1/ledgers"
        rows = httpx.get(url, timeout=30, verify=trusted).json()["ledgers"]
        found[node_id] = [row for row in rows if int(row["log_id"]) == log_id]
    return found


def count_hot(cluster: LocalCluster, log: str) -> int:
    """Segments that bookies are to keep; a round of retention is asked for."""
    want_retention(cluster)
    return sum(segment["hot_copies"] == "kept" for segment in list_segments(cluster, log))


def check_whole(cluster: LocalCluster, history: History) -> None:
    """All that was appended, from the head to the tail."""
    count = len(history.acknowledged) * history.records_per_append
    reader = cluster.open_client("read_url")
    history.check(run(read_log(reader, history.log, expect_count=count)))
