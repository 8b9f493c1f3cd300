"""The workloads: each puts one kind of load on a running cluster and gives its figures.

All have E = Qw = 3, Qa = 2, fsync on, default configuration. What a workload costs the servers is
read from outside, before and after it. A failed request, a lost process or a missing record makes
the run void (BenchError), never a worse figure. Later workloads use what earlier ones left: `read`
reads what `bulk` wrote.

Called by `python -m tests.bench`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from tests.bench.archive_workload import measure_archive
from tests.bench.cluster import NAMESPACE, BenchError, LocalCluster
from tests.bench.cold_workloads import measure_cold
from tests.bench.load import LoadResult, LoadSpec, run_load
from tests.bench.machine import measure_round_trips, measure_syncs, measure_writers
from tests.bench.read_workloads import measure_delivery, measure_fan_out
from tests.bench.report import Figure, at_least, at_most, find_ms
from tests.bench.sdk_load import SDK_MODES, SdkSpec, run_against_stub, run_sdk_load
from tests.bench.spark_workloads import measure_spark_read

BULK_MB_PER_S_TARGET: Final = 40.0
SINGLES_PER_S_TARGET: Final = 2_500.0
# One append in flight: p50 ≤ 4 × fdatasync + 3 ms.
LONE_SYNCS_TARGET: Final = 4.0
LONE_FIXED_MS: Final = 3.0

IN_FLIGHT: Final = 64
LOG_COUNT: Final = 20
RATE_PER_S: Final = 1_000.0
RECORD_BYTES: Final = 1024
_BULK_LOG: Final = f"{NAMESPACE}/bulk"
_GRACE_S: Final = 15.0
_READ_LINE: Final = re.compile(r"([\d,]+) records, [\d,.]+ MB in [\d.]+ s: ([\d.]+) MB/s")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much and how long."""

    bulk_bytes: int = 250_000_000
    bulk_s: float = 15.0
    load_s: float = 8.0
    rate_s: float = 10.0
    writer_s: float = 2.0
    sync_count: int = 1_000


QUICK: Final = Sizes(40_000_000, 5.0, 2.0, 3.0, 0.5, 200)


class Limits(NamedTuple):
    """The machine's own limits in this run; rates in MB/s, samples in seconds."""

    syncs_s: list[float]
    prepared_syncs_s: list[float]
    one_writer: float
    three_writers: float
    round_trips: LoadResult


class Bench:
    """One run: a cluster, sizes, and what several workloads need."""

    def __init__(self, cluster: LocalCluster, sizes: Sizes) -> None:
        self.cluster = cluster
        self.sizes = sizes

    @cached_property
    def limits(self) -> Limits:
        """Measured once, when first asked for."""
        folder = self.cluster.folder
        count, seconds = self.sizes.sync_count, self.sizes.writer_s
        return Limits(
            measure_syncs(folder, count=count),
            measure_syncs(folder, count=count, is_prepared=True),
            measure_writers(folder, count=1, seconds=seconds),
            measure_writers(folder, count=3, seconds=seconds),
            measure_round_trips(seconds=seconds),
        )

    @cached_property
    def bulk(self) -> BulkAppend:
        """The bulk append, made once, when first asked for."""
        return append_bulk(self)

    def read_bulk(self, record_count: int) -> float:
        """Read what `bulk` wrote; gives MB/s. Raises: as the function of that name."""
        return read_bulk(self, record_count)


class BulkAppend(NamedTuple):
    """What `duramen append` reported, and what it cost."""

    summary: dict[str, Any]
    server_cpu_s: dict[str, float]
    client_cpu_s: float
    journaled_bytes: int


def measure_machine(bench: Bench) -> list[Figure]:
    """The machine's own limits, as figures."""
    limits = bench.limits
    name = "machine"
    return [
        Figure(name, "4 KiB append + fdatasync p50", find_ms(limits.syncs_s, 50), "ms"),
        Figure(name, "the same, prepared file, p50", find_ms(limits.prepared_syncs_s, 50), "ms"),
        Figure(name, "one writer, 16 × 64 KiB + fdatasync", limits.one_writer, "MB/s"),
        Figure(name, "three writers at once, together", limits.three_writers, "MB/s"),
        Figure(
            name, "HTTP/2 round trip, 1 KiB, p50", find_ms(limits.round_trips.latencies_s, 50), "ms"
        ),
    ]


def measure_bulk(bench: Bench) -> list[Figure]:
    """`duramen append` of a file of 1 KiB lines, through the public REST."""
    done = bench.bulk
    summary = done.summary
    gb = summary["bytes"] / 1e9
    rate = summary["mb_per_s"]
    name = "bulk"
    return [
        Figure(
            name, "append rate", rate, "MB/s",
            # Each byte goes to three journals on the one disk.
            of_limit=rate / (bench.limits.three_writers / 3),
            target=at_least(BULK_MB_PER_S_TARGET),
        ),
        Figure(name, "batch p50", summary["append_p50_ms"], "ms"),
        Figure(name, "batch p99", summary["append_p99_ms"], "ms"),
        Figure(name, "batch size", summary["bytes"] / summary["batches"] / 1e6, "MB"),
        Figure(name, "CPU of all servers", sum(done.server_cpu_s.values()) / gb, "s/GB"),
        *(
            Figure(name, f"CPU of {role}, all of them", used_s / gb, "s/GB")
            for role, used_s in sorted(done.server_cpu_s.items())
        ),
        Figure(name, "CPU of the client", done.client_cpu_s / gb, "s/GB"),
        Figure(
            name, "journaled by three bookies", done.journaled_bytes / summary["bytes"], "× payload"
        ),
    ]  # fmt: skip


def measure_read(bench: Bench) -> list[Figure]:
    """`duramen read` of all that, by a read proxy that was just started, and once more."""
    record_count = bench.bulk.summary["records"]
    bench.cluster.restart("readproxy")
    figures = []
    for state in ("cold", "warm"):
        before = bench.cluster.read_cpu()
        rate = read_bulk(bench, record_count)
        used_s = sum(bench.cluster.read_cpu().since(before).values())
        cost = used_s / (bench.bulk.summary["bytes"] / 1e9)
        figures.append(Figure("read", f"catch-up, {state} cache", rate, "MB/s"))
        figures.append(Figure("read", f"CPU of all servers, {state}", cost, "s/GB"))
    return figures


def measure_singles(bench: Bench) -> list[Figure]:
    """Single appends of 1 KiB, 64 in flight, to one log."""
    url = bench.cluster.make_log("singles")
    before = bench.cluster.read_cpu()
    counts = read_counts(bench.cluster)
    load = run_load(LoadSpec([url], bench.sizes.load_s, IN_FLIGHT, body_bytes=RECORD_BYTES))
    counts = {key: value - counts[key] for key, value in read_counts(bench.cluster).items()}
    used_s = bench.cluster.read_cpu().since(before)
    count = len(load.latencies_s)
    name = "singles"
    return [
        Figure(
            name, "appends, 64 in flight", load.rate_per_s, "/s",
            target=at_least(SINGLES_PER_S_TARGET),
        ),
        Figure(name, "p50", find_ms(load.latencies_s, 50), "ms"),
        Figure(name, "p99", find_ms(load.latencies_s, 99), "ms"),
        *(
            Figure(name, f"CPU of {role}, all of them", role_s / count * 1e6, "µs each")
            for role, role_s in sorted(used_s.items())
        ),
        Figure(name, "CPU of the client", load.cpu_s / count * 1e6, "µs each"),
        Figure(name, "syncs of a bookie", counts["syncs"] / 3 / count, "an append"),
        Figure(name, "appends in an entry", count / max(1, counts["adds"] / 3), ""),
        Figure(name, "entries in a frame", counts["adds"] / max(1, counts["frames"]), ""),
    ]  # fmt: skip


def measure_lone(bench: Bench) -> list[Figure]:
    """One append in flight; the disk is measured right before and right after."""
    url = bench.cluster.make_log("lone")
    folder, count = bench.cluster.folder, bench.sizes.sync_count // 2
    syncs_s = measure_syncs(folder, count=count)
    load = run_load(LoadSpec([url], bench.sizes.load_s, 1, body_bytes=RECORD_BYTES))
    syncs_s += measure_syncs(folder, count=count)
    sync_ms = find_ms(syncs_s, 50)
    p50_ms = find_ms(load.latencies_s, 50)
    name = "lone"
    bound_ms = LONE_SYNCS_TARGET * sync_ms + LONE_FIXED_MS
    syncs = (p50_ms - LONE_FIXED_MS) / sync_ms
    return [
        Figure(name, "one in flight, p50", p50_ms, "ms", target=at_most(bound_ms)),
        Figure(name, "p99", find_ms(load.latencies_s, 99), "ms"),
        Figure(name, "fdatasync p50 beside it", sync_ms, "ms"),
        Figure(name, "(p50 − 3 ms) / fdatasync", syncs, "×"),
    ]


def measure_rate(bench: Bench) -> list[Figure]:
    """1,000 appends a second, whatever becomes of them; from the intended time of sending."""
    url = bench.cluster.make_log("rate")
    load = run_load(
        LoadSpec([url], bench.sizes.rate_s, rate_per_s=RATE_PER_S, body_bytes=RECORD_BYTES)
    )
    name = "rate"
    return [
        Figure(name, "1,000/s open loop, p50", find_ms(load.latencies_s, 50), "ms"),
        Figure(name, "p99", find_ms(load.latencies_s, 99), "ms"),
        Figure(name, "p99.9", find_ms(load.latencies_s, 99.9), "ms"),
    ]


def measure_logs(bench: Bench) -> list[Figure]:
    """20 logs at once, 64 in flight in all, beside the same load on one of them."""
    urls = [bench.cluster.make_log(f"many-{index}") for index in range(LOG_COUNT)]
    seconds = bench.sizes.load_s / 2
    first = run_load(LoadSpec(urls[:1], seconds, IN_FLIGHT, body_bytes=RECORD_BYTES))
    many = run_load(LoadSpec(urls, bench.sizes.load_s, IN_FLIGHT, body_bytes=RECORD_BYTES))
    last = run_load(LoadSpec(urls[:1], seconds, IN_FLIGHT, body_bytes=RECORD_BYTES))
    one_per_s = (first.rate_per_s + last.rate_per_s) / 2
    name = "logs"
    return [
        Figure(name, "20 logs, 64 in flight in all", many.rate_per_s, "/s"),
        Figure(name, "of the rate with one log", many.rate_per_s / one_per_s, ""),
        Figure(name, "p99", find_ms(many.latencies_s, 99), "ms"),
    ]


def measure_sdk(bench: Bench) -> list[Figure]:
    """The SDK in one process, on the cluster and on a server that only answers."""
    urls = bench.cluster.document()
    seconds = bench.sizes.load_s / 2
    url = f"{urls['write_url']},{urls['read_url']}"
    name = "sdk"
    figures = []
    for mode in SDK_MODES:
        done = run_sdk_load(SdkSpec(url, NAMESPACE, mode, seconds))
        match mode:
            case "bulk":
                rate, target = Figure(name, mode, done.records_per_s, "/s"), at_least(300_000)
            case "lone":
                rate, target = Figure(name, f"{mode}, p50", done.p50_ms, "ms"), at_most(2.5)
            case _:
                floor = 80.0 if mode == "producer" else 40.0
                rate, target = Figure(name, mode, done.mb_per_s, "MB/s"), at_least(floor)
        cpu_us = done.cpu_us_per_record
        figures += [replace(rate, target=target), Figure(name, f"{mode}, client CPU", cpu_us, "µs")]
    for done in run_against_stub(seconds / 2, list(SDK_MODES)):
        label = f"{done.mode}, client alone"
        figures.append(Figure(name, label, done.records_per_s, "/s"))
    return figures


WORKLOADS: Final[dict[str, Callable[[Bench], list[Figure]]]] = {
    "machine": measure_machine,
    "bulk": measure_bulk,
    "read": measure_read,
    "archive": measure_archive,
    "singles": measure_singles,
    "lone": measure_lone,
    "rate": measure_rate,
    "logs": measure_logs,
    "sdk": measure_sdk,
    "fanout": measure_fan_out,
    "delivery": measure_delivery,
    "spark_read": measure_spark_read,
    "cold": measure_cold,
}


def read_counts(cluster: LocalCluster) -> dict[str, int]:
    """Sums over all bookies, and over the sequencer's lanes to them, since the start.

    `syncs` counts commits and marks: each is one fdatasync.
    """
    counts = dict.fromkeys(("syncs", "records", "journaled_bytes", "frames", "adds"), 0)
    for bookie in cluster.statistics("bookie").values():
        journal = bookie["storage"]["journal"]
        counts["syncs"] += journal["commit_count"] + journal["mark_count"]
        counts["records"] += journal["record_count"]
        counts["journaled_bytes"] += journal["written_bytes"]
    for sequencer in cluster.statistics("sequencer").values():
        for lane in sequencer["lanes"]["by_bookie"].values():
            counts["frames"] += lane["frames"]
            counts["adds"] += lane["adds"]
    return counts


# --- The command line as a client ----------------------------------------------------------------


def append_bulk(bench: Bench, log: str = _BULK_LOG) -> BulkAppend:
    """Append a file of lines for a bounded time.

    Raises:
        BenchError: the command failed.
    """
    cluster, sizes = bench.cluster, bench.sizes
    path = cluster.folder / "lines.txt"
    # A thousand different lines, again and again: nothing on the way compresses.
    block = b"".join(os.urandom(RECORD_BYTES // 2).hex().encode() + b"\n" for _ in range(1_000))
    with path.open("wb") as file:
        file.writelines([block] * -(-sizes.bulk_bytes // (RECORD_BYTES * 1_000)))
    arguments = ["append", log, str(path), "--create", "--json"]
    arguments += ["--url", cluster.document()["write_url"]]
    before = cluster.read_cpu()
    journaled = read_counts(cluster)["journaled_bytes"]
    client_s = read_children_s()
    output, errors = _run_command(arguments, sizes.bulk_s)
    client_s = read_children_s() - client_s
    used_s = cluster.read_cpu().since(before)
    path.unlink()
    summary = json.loads(output) if output else {}
    if "error" in summary or not summary.get("records"):
        raise BenchError(f"duramen append failed: {summary} {errors}")
    journaled = read_counts(cluster)["journaled_bytes"] - journaled
    return BulkAppend(summary, used_s, client_s, journaled)


def read_bulk(bench: Bench, record_count: int) -> float:
    """Read the bulk log from its head; gives MB/s.

    Raises:
        BenchError: the command failed, or another number of records came.
    """
    url = bench.cluster.document()["read_url"]
    count = ["--count", str(record_count)]
    _, errors = _run_command(["read", _BULK_LOG, *count, "--url", url], bench.sizes.bulk_s * 2)
    found = _READ_LINE.search(errors)
    if found is None or int(found[1].replace(",", "")) != record_count:
        raise BenchError(f"duramen read gave not {record_count} records: {errors}")
    return float(found[2])


def _run_command(arguments: list[str], seconds: float) -> tuple[bytes, str]:
    """Run `duramen`, interrupted after `seconds`; its output (none of a read) and its messages."""
    is_read = arguments[0] == "read"
    child = subprocess.Popen(
        [sys.executable, "-m", "duramen.cli.main", *arguments],
        stdout=subprocess.DEVNULL if is_read else subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        try:
            output, errors = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # It waits for what is in flight and reports what it did until then.
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=_GRACE_S)
    finally:
        child.kill()
        child.wait()
    return output or b"", errors.decode(errors="replace")


def read_children_s() -> float:
    """CPU seconds of this process's children that have ended; the cluster's have not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
