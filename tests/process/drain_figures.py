"""What a drain costs those who append: measured by hand, asserted nowhere.

    python -m tests.process.drain_figures --bookie-gib 2 --bookies 5 --logs 10

One local cluster is filled until the bookie that is to go holds so much; a paced load goes on with
other logs; its latencies before and during the drain are compared: of all appends that were sent in
a window before, of 20 s at the least and after a third of it again has warmed up, and of all that
were sent until the drain was over. Then the bookie is stopped, its
disk wiped, and every copy counted. One line of JSON. `test_drain` does the same with little data.
Source: docs/testing.md "Real processes and disks", docs/protocol/repair.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duramen.client.rest_client import RestClient
from duramen.client.retry import repeat_while_refused
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.units import MIB
from duramen.wire.record_batch import encode_batch
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, running_plain_cluster
from tests.process.copies import (
    ask,
    ask_until,
    close_segment,
    post,
    wait_settled,
    wait_whole,
)
from tests.process.times import HANG_S

_FILLED_TOGETHER = 4
_FILL_BATCH_BYTES = MIB
_SETTLED_S = 1_800.0
_DRAINED_S = 3_600.0
_RETRIED_S = 60.0
_BEFORE_MIN_S = 20
_VERIFIED_MIB_PER_S = 16
"""At the least: every copy is read from its disk."""


@dataclass
class Load:
    """Appends at an even pace to some logs; how long each took, whenever it was sent."""

    logs: Sequence[str]
    pause_s: float
    record_bytes: int
    acked: list[tuple[float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Sorted seconds of the appends that were sent in between."""
        return sorted(took for sent, took in self.acked if begin_s <= sent < end_s)


@asynccontextmanager
async def running(cluster: LocalCluster, load: Load) -> AsyncIterator[None]:
    """The load goes on meanwhile."""
    client = RestClient(cluster.state()["write_url"])
    stop = asyncio.Event()

    async def write(log: str, lag_s: float) -> None:
        batch = encode_batch([b"x" * load.record_bytes], timestamp_ms=1)
        due = time.monotonic() + lag_s
        while not stop.is_set():
            await let_pass(due - time.monotonic(), what="the pace of the load")
            sent = time.monotonic()
            due = max(due + load.pause_s, sent)
            try:
                await client.append("default", log, batch)
                load.acked.append((sent, time.monotonic() - sent))
            except (DuramenError, PeerError) as error:
                load.failures.append(getattr(error, "code", "unreachable"))

    step_s = load.pause_s / len(load.logs)
    writers = [asyncio.create_task(write(log, i * step_s)) for i, log in enumerate(load.logs)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*writers)
        await client.close()


async def drain_under_load(
    cluster: LocalCluster, *, bookie_bytes: int, log_count: int, before_s: float
) -> dict[str, Any]:
    """Fill, drain the fullest bookie, take it away and count; the figures.

    Raises:
        AssertionError: a copy is missing, or a question was answered wrongly.
    """
    count = len(cluster.ids("bookie"))
    cold = [f"cold-{i}" for i in range(_FILLED_TOGETHER)]
    warm = [f"warm-{i}" for i in range(log_count)]
    for log in (*cold, *warm):
        await create_log(cluster, log, {"roll": {"size": "64MiB"}})
    await fill(cluster, cold, bookie_bytes * count // 3)
    await wait_settled(cluster, _SETTLED_S)
    rows = (await ask(cluster, "repair/bookies"))["bookies"]
    held_bytes, bookie = max((int(row["bytes"]), row["bookie"]) for row in rows)
    load = Load(warm, pause_s=0.1, record_bytes=1_000)
    async with running(cluster, load):
        await let_pass(before_s / 3, what="the load begins")
        began, used_at_first = time.monotonic(), used_cpu_s(cluster)
        await let_pass(before_s, what="the load without a drain, which is compared")
        assert not (await judge(cluster, bookie))["allowed"]
        asked, used_before = time.monotonic(), used_cpu_s(cluster)
        await post(cluster, f"bookies/{bookie}/drain")
        assert not (await judge(cluster, bookie))["allowed"], "copies are there only"
        await wait_drained(cluster, bookie)
        drained, used = time.monotonic(), used_cpu_s(cluster)
        paces = await list_paces(cluster)
        assert (await judge(cluster, bookie))["allowed"]
        cluster.kill(bookie)
        shutil.rmtree(cluster.process(bookie)["data_dir"])
        mark = len(load.acked)
        await ask_until(lambda: _is_beyond(load, mark + log_count), HANG_S, "appends")
    before, during = load.between(began, asked), load.between(asked, drained)
    figures = {
        "bookies": count, "held_mib": held_bytes >> 20, "seconds": round(drained - asked, 1),
        "mib_per_s": round(held_bytes / MIB / (drained - asked), 1),
        "appends_per_s": round(len(during) / (drained - asked), 1),
        "p99_ms_before": percentile_ms(before, 0.99), "p99_ms_during": percentile_ms(during, 0.99),
        "p99_ratio": round(percentile_ms(during, 0.99) / max(percentile_ms(before, 0.99), 0.1), 2),
        "p50_ms_before": percentile_ms(before, 0.5), "p50_ms_during": percentile_ms(during, 0.5),
        "cpu_s": {role: round(used[role] - used_before[role], 1) for role in used},
        "load_cpu_per_s": {
            role: round((used_before[role] - used_at_first[role]) / before_s, 2) for role in used
        },
        "paces": paces, "max_ms_during": percentile_ms(during, 1.0), "failures": load.failures,
    }  # fmt: skip
    sys.stderr.write(f"before the copies are counted: {json.dumps(figures)}\n")
    counted_s = 120 + held_bytes * count / MIB / _VERIFIED_MIB_PER_S
    found = await wait_whole(cluster, [*cold, *warm], counted_s)
    assert bookie not in await named(cluster)
    return {**figures, "copies": sum(one["good_copies"] for one in found.values())}


def used_cpu_s(cluster: LocalCluster) -> dict[str, float]:
    """Seconds of a core that the processes of each role have used."""
    used: dict[str, float] = {}
    for process in cluster.state()["processes"]:
        pid = cluster.pid(process["id"])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        used[process["role"]] = used.get(process["role"], 0.0) + seconds
    return used


async def list_paces(cluster: LocalCluster) -> dict[str, list[float]]:
    """Of each bookie: MiB/s that repair may move now, how often that fell, and which add is late
    (ms)."""
    paces: dict[str, list[float]] = {}
    for bookie in cluster.ids("bookie"):
        client = RestClient(cluster.process(bookie)["admin_url"])
        try:
            pace = (await client.get_json("/v1/statistics"))["repair"]["pace"]
        finally:
            await client.close()
        late_ms = round(pace["late_beyond_us"] / 1_000, 1)
        paces[bookie] = [round(pace["bytes_per_s"] / MIB, 1), pace["fall_count"], late_ms]
    return paces


async def fill(cluster: LocalCluster, logs: Sequence[str], size_bytes: int) -> None:
    """Append so much, evenly, and end every segment."""
    client = RestClient(cluster.state()["write_url"])
    batch = encode_batch([b"y" * (_FILL_BATCH_BYTES // 16)] * 16, timestamp_ms=1)

    async def fill_one(log: str) -> None:
        for _ in range(max(1, size_bytes // len(logs) // _FILL_BATCH_BYTES)):
            await repeat_while_refused(
                lambda: client.append("default", log, batch),
                timeout_s=_RETRIED_S, is_read=True, has_producer=True,
            )  # fmt: skip
        await close_segment(cluster, log)

    try:
        await asyncio.gather(*(fill_one(log) for log in logs))
    finally:
        await client.close()


async def wait_drained(cluster: LocalCluster, bookie: str) -> None:
    """Until the auditor says that it is empty."""
    answer: dict[str, Any] = {}

    async def is_drained() -> bool:
        answer.update(await ask(cluster, "repair"))
        return any(d["bookie"] == bookie and d["duty"] == "drained" for d in answer["drains"])

    await ask_until(is_drained, _DRAINED_S, lambda: f"the end of the drain: {answer}")


async def judge(cluster: LocalCluster, bookie: str) -> dict[str, Any]:
    """Whether the bookie may be removed now."""
    return await ask(cluster, f"bookies/{bookie}/disruption?kind=remove")


async def named(cluster: LocalCluster) -> list[str]:
    """Bookies that a live segment names."""
    rows = (await ask(cluster, "repair/bookies"))["bookies"]
    return [row["bookie"] for row in rows if row["copies"]]


def percentile_ms(seconds: Sequence[float], part: float) -> float:
    """Of sorted values; 0: there are none."""
    if not seconds:
        return 0.0
    return round(1_000 * seconds[min(int(part * len(seconds)), len(seconds) - 1)], 1)


async def _is_beyond(load: Load, count: int) -> bool:
    return len(load.acked) >= count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bookie-gib", type=float, default=2.0)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--before-s", type=float, default=60.0)
    options = parser.parse_args()
    if options.before_s < _BEFORE_MIN_S:
        parser.error(f"--before-s: {_BEFORE_MIN_S} at the least, or its p99 is a few appends'")
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--bookies", str(options.bookies), "--no-restart")
        with running_plain_cluster(Path(folder) / "c", *flags) as cluster:
            work = drain_under_load(
                cluster,
                bookie_bytes=int(options.bookie_gib * (1 << 30)),
                log_count=options.logs,
                before_s=options.before_s,
            )
            sys.stdout.write(json.dumps(asyncio.run(work)) + "\n")


if __name__ == "__main__":
    main()
