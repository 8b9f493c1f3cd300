"""Our own rows: the loads of `make bench` on a local cluster, as the peers' scripts play theirs.

Three bookies that sync before they acknowledge, E = Qw = 3, Qa = 2, clients and servers on one
machine. `-rest` is one request a record, `-sdk` the SDK in one process, `-bulk` the command line
with a file. What a client costs counts from its first record on; a peer's from its start.

Called by `python -m tests.bench.peers`. Source: docs/benchmarks.md "Beside real peers".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.bench.cluster import NAMESPACE, LocalCluster
from tests.bench.load import LoadSpec, run_load
from tests.bench.machine import CpuWatch
from tests.bench.peers.rows import OWN, Row
from tests.bench.peers.scripts import PROMISE
from tests.bench.report import find_ms
from tests.bench.sdk_load import SdkSpec, run_sdk_load
from tests.bench.workloads import (
    IN_FLIGHT,
    RATE_PER_S,
    Bench,
    Sizes,
    append_bulk,
    read_bulk,
    read_children_s,
)

BULK_BYTES_PER_S: Final = 50_000_000
LARGE_BYTES: Final = 65_536
LARGE_IN_FLIGHT: Final = 16


class Outcome(NamedTuple):
    """What a load says of itself."""

    record_count: int
    seconds: float
    client_cpu_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None


def measure_own(cluster: LocalCluster, seconds: int) -> Iterator[Row]:
    """All workloads, one after the other.

    Raises:
        BenchError: one of them is void.
    """
    own = _Own(cluster, seconds)
    yield own.measure("W1-sdk", 1024, lambda: own.use_sdk("producer"))
    yield own.measure("W1-sdk", 100, lambda: own.use_sdk("bulk"))
    yield own.measure("W3-100-sdk", 1024, lambda: own.use_sdk("logs"))
    yield own.measure("W1-rest", 1024, lambda: own.post("singles", in_flight=IN_FLIGHT))
    yield own.measure(
        "W1-rest",
        LARGE_BYTES,
        lambda: own.post("large", LARGE_BYTES, in_flight=LARGE_IN_FLIGHT),
    )
    yield own.measure("W1b-rest", 1024, lambda: own.post("lone", in_flight=1))
    yield own.measure("W1b-sdk", 1024, lambda: own.use_sdk("lone"))
    yield own.measure("W5-rest", 1024, lambda: own.post("rate", rate_per_s=RATE_PER_S))
    yield own.measure("W1-bulk", 1024, own.append)
    cluster.restart("readproxy")
    yield own.measure("W7-cold", 1024, own.read)
    yield own.measure("W7-warm", 1024, own.read)


class _Own:
    def __init__(self, cluster: LocalCluster, seconds: int) -> None:
        self._cluster = cluster
        self._seconds = seconds
        # The command has to start, too; a machine that cannot do it in that time appends less.
        sizes = Sizes(bulk_bytes=BULK_BYTES_PER_S * seconds, bulk_s=seconds * 2.0 + 10)
        self._bench = Bench(cluster, sizes)
        self._bulk_count = 0

    def measure(self, workload: str, size_bytes: int, play: Callable[[], Outcome]) -> Row:
        # What an earlier load left to be written is not charged to this one.
        os.sync()
        before, watch, began_s = self._cluster.read_cpu(), CpuWatch(), time.monotonic()
        found = play()
        wall_s = time.monotonic() - began_s
        used_s = sum(self._cluster.read_cpu().since(before).values())
        per_s = found.record_count / found.seconds
        return Row(
            peer=OWN,
            kind=PROMISE,
            workload=workload,
            size_bytes=size_bytes,
            record_count=found.record_count,
            records_per_s=per_s,
            mb_per_s=per_s * size_bytes / 1e6,
            server_cpu_s=used_s,
            client_cpu_s=found.client_cpu_s,
            other_cpu_s=watch.find_foreign_s(of_running_s=used_s),
            wall_s=wall_s,
            p50_ms=found.p50_ms,
            p99_ms=found.p99_ms,
        )

    def use_sdk(self, mode: str) -> Outcome:
        urls = self._cluster.document()
        spec = SdkSpec(f"{urls['write_url']},{urls['read_url']}", NAMESPACE, mode, self._seconds)
        done = run_sdk_load(spec)
        times_ms = (done.p50_ms or None, done.p99_ms or None)
        return Outcome(done.record_count, done.seconds, done.cpu_s, *times_ms)

    def post(
        self, log: str, size_bytes: int = 1024, *, in_flight: int = 1,
        rate_per_s: float | None = None,
    ) -> Outcome:  # fmt: skip
        url = self._cluster.make_log(log)
        done = run_load(LoadSpec([url], self._seconds, in_flight, rate_per_s, size_bytes))
        p50_ms, p99_ms = (find_ms(done.latencies_s, percent) for percent in (50, 99))
        return Outcome(len(done.latencies_s), done.seconds, done.cpu_s, p50_ms, p99_ms)

    def append(self) -> Outcome:
        done = append_bulk(self._bench)
        summary = done.summary
        self._bulk_count = summary["records"]
        return Outcome(self._bulk_count, summary["seconds"], done.client_cpu_s)

    def read(self) -> Outcome:
        before_s = read_children_s()
        mb_per_s = read_bulk(self._bench, self._bulk_count)
        seconds = self._bulk_count * 1024 / 1e6 / mb_per_s
        return Outcome(self._bulk_count, seconds, read_children_s() - before_s)
