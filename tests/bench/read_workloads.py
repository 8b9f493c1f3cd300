"""Workloads of readers at the tail: a hundred of one log, and how soon a record is delivered.

Called by `workloads`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.bench.report import Figure, at_least, at_most, find_ms
from tests.bench.tailing import TailingSpec, run_tailing

if TYPE_CHECKING:
    from tests.bench.workloads import Bench

READER_COUNT: Final = 100
FAN_OUT_MB_PER_S_TARGET: Final = 300.0
DELIVERY_MS_TARGET: Final = 5.0
RATE_PER_S: Final = 1_000.0


def measure_fan_out(bench: Bench) -> list[Figure]:
    """100 readers by server-sent events at the tail of one log, to which batches are appended."""
    write_url, read_url = find_urls(bench, "fan-out")
    before = bench.cluster.read_cpu()
    done = run_tailing(TailingSpec(write_url, read_url, READER_COUNT, bench.sizes.load_s / 2))
    used_s = bench.cluster.read_cpu().since(before)
    received_mb = done.appended_bytes * READER_COUNT / 1e6
    name = "fanout"
    return [
        Figure(
            name, "100 readers of one log, all together", received_mb / done.seconds, "MB/s",
            target=at_least(FAN_OUT_MB_PER_S_TARGET),
        ),
        Figure(name, "CPU of the read proxy", used_s["readproxy"] / received_mb * 1e3, "s/GB"),
        Figure(name, "CPU of the readers", done.cpu_s / received_mb * 1e3, "s/GB"),
    ]  # fmt: skip


def measure_delivery(bench: Bench) -> list[Figure]:
    """1,000 records a second, and one reader at the tail: from the intended time of sending."""
    write_url, read_url = find_urls(bench, "delivery")
    seconds = bench.sizes.rate_s
    done = run_tailing(TailingSpec(write_url, read_url, 1, seconds, rate_per_s=RATE_PER_S))
    append_ms, delivery_ms = find_ms(done.append_s, 99), find_ms(done.delivery_s, 99)
    name = "delivery"
    return [
        Figure(name, "append p50, 1,000/s", find_ms(done.append_s, 50), "ms"),
        Figure(name, "delivery p50", find_ms(done.delivery_s, 50), "ms"),
        Figure(name, "append p99", append_ms, "ms"),
        Figure(
            name, "delivery p99 − append p99", delivery_ms - append_ms, "ms",
            target=at_most(DELIVERY_MS_TARGET),
        ),
    ]  # fmt: skip


def find_urls(bench: Bench, log: str) -> tuple[str, str]:
    """Where a new log is written to, and where it is read from."""
    write_url = bench.cluster.make_log(log)
    document = bench.cluster.document()
    return write_url, write_url.replace(document["write_url"], document["read_url"])
