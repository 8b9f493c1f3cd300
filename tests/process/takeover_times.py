"""How long logs take no appends when a process is killed: measured by hand, asserted nowhere.

    python -m tests.process.takeover_times --role sequencer --logs 10 --kills 30
    python -m tests.process.takeover_times --role bookie --bookies 5

One local cluster, one writer a log, each appending one batch after the other; a process that owns
or stores logs is killed (SIGKILL) and started again by the supervisor, one after the other. Of each
kill: the longest time between two acknowledgements of one log, over all logs. One line of JSON.
Source: docs/testing.md "Real processes and disks", docs/protocol/ownership.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.wire.record_batch import encode_batch
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, running_plain_cluster
from tests.process.times import HANG_S

_CREATED_TOGETHER = 4
"""Log ids come from one counter by compare-and-set."""


class Writer:
    """Appends to one log for ever and notes when it was acknowledged."""

    def __init__(self, cluster: LocalCluster, log: str) -> None:
        self.log = log
        self.times: list[float] = []
        self.failures: list[str] = []
        self.is_stopping = False
        self._client = RestClient(cluster.state()["write_url"])

    async def write(self) -> None:
        """Until told to stop; the HTTP library may swallow a cancellation."""
        batch = encode_batch([b"x" * 100], timestamp_ms=1)
        while not self.is_stopping:
            try:
                await self._client.append("default", self.log, batch)
            except (DuramenError, PeerError) as error:
                self.failures.append(getattr(error, "code", "unreachable"))
                await let_pass(0.01, what="before a client comes back")
            else:
                self.times.append(time.monotonic())

    def gap_after(self, killed_s: float) -> float | None:
        """The longest pause between acknowledgements that ended after the kill; None: not yet."""
        times = [t for t in self.times if t > killed_s - 1.0]
        if not times or times[-1] <= killed_s:
            return None
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


async def measure(cluster: LocalCluster, options: argparse.Namespace) -> dict[str, Any]:
    """Kill one process after the other; the pauses of each kill."""
    writers = [Writer(cluster, f"kill-{i}") for i in range(options.logs)]
    for start in range(0, len(writers), _CREATED_TOGETHER):
        some = writers[start : start + _CREATED_TOGETHER]
        await asyncio.gather(*(create_log(cluster, writer.log, {}) for writer in some))
    say(f"{len(writers)} logs created")
    tasks = [asyncio.create_task(writer.write()) for writer in writers]
    gaps = []
    rng = random.Random(options.seed)
    try:
        await settle(writers, time.monotonic())
        say("every log takes appends")
        for _ in range(options.kills):
            victim = await choose(cluster, options.role, rng)
            await asyncio.to_thread(cluster.kill, victim)
            killed_s = time.monotonic()
            await settle(writers, killed_s)
            say(f"{victim} was killed; all again after {time.monotonic() - killed_s:.1f} s")
            gaps.append(max(writer.gap_after(killed_s) or 0.0 for writer in writers))
            await asyncio.to_thread(cluster.wait_ready, victim)
            await settle(writers, time.monotonic())
    finally:
        for writer in writers:
            writer.is_stopping = True
        await asyncio.gather(*tasks, return_exceptions=True)
    codes = sorted({code for writer in writers for code in writer.failures})
    gaps.sort()
    return {
        "role": options.role, "logs": options.logs, "kills": len(gaps), "failures": codes,
        "median_s": round(gaps[len(gaps) // 2], 3), "max_s": round(gaps[-1], 3),
        "all_s": [round(gap, 3) for gap in gaps],
    }  # fmt: skip


async def settle(writers: list[Writer], since_s: float) -> None:
    """Until every log was acknowledged three times since a moment."""
    async with asyncio.timeout(HANG_S):
        while not all(len(w.times) > 3 and w.times[-3] > since_s for w in writers):
            await look_again_soon()


async def choose(cluster: LocalCluster, role: str, rng: random.Random) -> str:
    """Who is killed: the sequencer with the most logs, or any bookie."""
    if role == "bookie":
        return rng.choice(cluster.ids("bookie"))
    client = RestClient(cluster.state()["admin_url"])
    try:
        logs = (await client.get_json("/v1/cluster/owners"))["logs"]
    finally:
        await client.close()
    owners = [row["sequencer"] for row in logs if row["state"] == "active"]
    return str(max(sorted(set(owners)), key=owners.count))


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["sequencer", "bookie"], default="sequencer")
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--bookies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--bookies", str(options.bookies), "--sequencers", "2")
        with running_plain_cluster(Path(folder) / "c", *flags) as cluster:
            print(json.dumps(asyncio.run(measure(cluster, options))), flush=True)


if __name__ == "__main__":
    main()
