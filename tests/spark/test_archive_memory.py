"""A segment of 1 GB is archived by executors of 512 MB: memory follows the flags, not the segment.

It takes minutes and 5 GB of disk, so only the night runs it. Spark limits its Python workers'
address space no closer than by the machine's word, so their resident memory is watched here.
Source: docs/archive.md "Memory".
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from duramen.wire.record_batch import encode_batch
from tests.process.cluster import LocalCluster, run
from tests.process.copies import close_segment
from tests.spark.archive_world import NAMESPACE, World

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]

SEGMENT_BYTES = 1_000_000_000
EXECUTOR_BYTES = 512 << 20
BATCH_RECORDS = 1_000
TICK_S = 0.1


async def append_segment(cluster: LocalCluster, name: str) -> None:
    """One closed segment of random records of 1 KiB, in batches of 1 MB, four at a time."""
    client = RestClient(cluster.state()["write_url"], has_http2=True)
    room = asyncio.Semaphore(4)

    async def append(index: int) -> None:
        async with room:
            bodies = [os.urandom(1_024) for _ in range(BATCH_RECORDS)]
            await client.append(NAMESPACE, name, encode_batch(bodies, index))

    try:
        config = {"tiering": {"policy": "copy"}, "roll": {"size": "2GiB"}}
        await client.ensure_log(NAMESPACE, name, config)
        async with asyncio.TaskGroup() as group:
            for index in range(SEGMENT_BYTES // (BATCH_RECORDS * 1_024) + 1):
                group.create_task(append(index))
        await close_segment(cluster, name)
        await client.append(NAMESPACE, name, encode_batch([b"open"], 0))
    finally:
        await client.close()


def list_descendants(pid: int) -> list[int]:
    """A process's children, and theirs."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(text) for text in task.read_text().split()]
            except OSError:
                continue
    return found[1:]


class MemoryWatch(threading.Thread):
    """The most resident memory that each Python worker and the JVM below a process ever had."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.worker_bytes = 0
        self.jvm_bytes = 0

    def run(self) -> None:
        """Look until told to end."""
        while not self._over.wait(TICK_S):
            for pid in list_descendants(self._pid):
                self._look(pid)

    def end(self) -> None:
        """End looking."""
        self._over.set()
        self.join()

    def _look(self, pid: int) -> None:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        peak_bytes = int(fields.get("VmHWM", "0 kB").split()[0]) * 1_024
        if fields["Name"].strip() == "java":
            self.jvm_bytes = max(self.jvm_bytes, peak_bytes)
        else:
            self.worker_bytes = max(self.worker_bytes, peak_bytes)


@pytest.mark.timeout(900)
def test_memory_is_bounded_whatever_the_segment(
    world: World, spark_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(append_segment(world.cluster, "large"), 600)
    child = subprocess.Popen(
        world.command("default/large", runner="spark"),
        env={**os.environ, **spark_env},
        stdout=subprocess.PIPE,
        text=True,
    )
    watch = MemoryWatch(child.pid)
    watch.start()
    try:
        told, _ = child.communicate(timeout=600)
    finally:
        watch.end()
        child.kill()
        child.wait()
    report = json.loads(told)
    assert child.returncode == 0 and report["entry_bytes"] > SEGMENT_BYTES, report
    with capsys.disabled():
        print(
            f"\n{report['entry_bytes']:,} bytes at {report['bytes_per_s'] / 1e6:.1f} MB/s: "
            f"a Python worker held {watch.worker_bytes >> 20} MiB at most, "
            f"the JVM {watch.jvm_bytes >> 20} MiB"
        )
    assert 0 < watch.worker_bytes < EXECUTOR_BYTES
