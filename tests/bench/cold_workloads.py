"""The workload of cold reads: the same log caught up with from bookies, then from its archive.

The log of `bulk` is archived by the real job, in threads, and released; the read proxy is started
anew before each of the two reads, so that neither finds anything in a cache of ours.

Called by `workloads`. Source: docs/benchmarks.md, docs/protocol/archive.md "Reading".
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tests.bench.cluster import NAMESPACE, BenchError, call
from tests.bench.report import Figure, at_least
from tests.pauses import look_again

if TYPE_CHECKING:
    from tests.bench.workloads import Bench

COLD_OF_HOT_TARGET: Final = 0.60
ARCHIVE_S_MAX: Final = 100
_RELEASE_S_MAX: Final = 20
_LOG: Final = "bulk"
_MOVE: Final = {"tiering": {"policy": "move", "keep_hot": "0s"}, "retention": {"age": None}}


def measure_cold(bench: Bench) -> list[Figure]:
    """Catch-up from bookies, and from the cold store; left out where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        return []
    cluster, record_count = bench.cluster, bench.bulk.summary["records"]
    gb = bench.bulk.summary["bytes"] / 1e9
    name, rates, figures = "cold", {}, []
    for state in ("hot", "cold"):
        if state == "cold":
            archive_bulk(bench)
        cluster.restart("readproxy")
        before = cluster.read_cpu()
        rates[state] = bench.read_bulk(record_count)
        used_s = cluster.read_cpu().since(before)["readproxy"]
        figures.append(Figure(name, f"catch-up, {state}", rates[state], "MB/s"))
        figures.append(Figure(name, f"CPU of the read proxy, {state}", used_s / gb, "s/GB"))
    (statistics,) = cluster.statistics("readproxy").values()
    cold = statistics["upstream"]["cold"]
    if cold["hits"] + cold["misses"] == 0:
        raise BenchError(f"nothing was read from the cold store: {cold}")
    ratio = rates["cold"] / rates["hot"]
    return [
        *figures,
        Figure(name, "cold of hot", ratio, "", target=at_least(COLD_OF_HOT_TARGET)),
        Figure(name, "loaded ahead of the reader", cold["ahead"] / max(1, cold["loads"]), ""),
    ]


def archive_bulk(bench: Bench) -> None:
    """Archive the log of `bulk`, twice looked at, and have all of it released.

    Raises:
        BenchError: the job failed, or nothing was released in time.
    """
    cluster = bench.cluster
    document = cluster.document()
    log_url = f"/v1/namespaces/{NAMESPACE}/logs/{_LOG}"
    call("PATCH", document["write_url"] + log_url, json.dumps(_MOVE).encode())
    call("POST", document["write_url"] + log_url + ":roll", b"{}")
    # What a takeover reads stays hot: the last snapshot, which is to lie behind what is released.
    more = json.dumps({"records": [{"body": "more"}]}).encode()
    call("POST", document["write_url"] + log_url + "/records", more)
    call("POST", document["write_url"] + log_url + ":roll", b"{}")
    command = [sys.executable, "-m", "duramen_spark.main", "archive", f"{NAMESPACE}/{_LOG}"]
    command += ["--runner", "threads", "--recheck-after", "0s", "--json"]
    for _ in range(2):
        done = subprocess.run(
            [*command, "--data", str(cluster.folder)],
            capture_output=True, timeout=ARCHIVE_S_MAX, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"the archive job failed: {done.stderr.decode()[-500:]}")
    deadline = time.monotonic() + _RELEASE_S_MAX
    while time.monotonic() < deadline:
        for member in cluster.members("sequencer"):
            call("POST", member["admin_url"] + "/v1/retention", b"")
        segments: list[dict[str, Any]] = json.loads(
            call("GET", document["read_url"] + log_url + "/segments")
        )["segments"]
        end = bench.bulk.summary["end_seq_num"]
        if all(one["hot_copies"] == "released" for one in segments if one["start_seq_num"] < end):
            return
        look_again()
    raise BenchError(f"not released in {_RELEASE_S_MAX} s: {_LOG}")
