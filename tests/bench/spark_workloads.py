"""Workloads of Spark: a batch read of a whole log by the data source.

Called by `workloads`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from tests.bench.cluster import NAMESPACE
from tests.bench.report import Figure, at_least
from tests.bench.spark_load import SparkSpec, run_spark

if TYPE_CHECKING:
    from tests.bench.workloads import Bench

READ_MB_PER_S_TARGET: Final = 100.0


def measure_spark_read(bench: Bench) -> list[Figure]:
    """A batch read of all that `bulk` wrote, on two threads; nothing where there is no JDK."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.stderr.write("spark_read: left out, there is no JDK\n")
        return []
    record_count = bench.bulk.summary["records"]
    url = bench.cluster.document()["read_url"]
    before = bench.cluster.read_cpu()
    done = run_spark(SparkSpec(url, f"{NAMESPACE}/bulk", record_count))
    used_s = bench.cluster.read_cpu().since(before)
    mb = done.body_bytes / 1e6
    name = "spark_read"
    return [
        Figure(
            name, "local[2], seq_num and body", mb / done.two_columns_s, "MB/s",
            target=at_least(READ_MB_PER_S_TARGET),
        ),
        Figure(name, "local[2], all columns", mb / done.all_columns_s, "MB/s"),
        Figure(name, "CPU of the read proxy", used_s["readproxy"] / (3 * mb) * 1e3, "s/GB"),
    ]  # fmt: skip
