"""Reads of the data source `duramen` with Spark, in a process of its own: `python -m … SPEC`.

One local session on two threads reads one log several times: small pieces and once the whole, so
that workers are up and classes compiled, then whole with two columns and with all. Prints JSON.

Called by `spark_workloads`. Source: docs/spark.md, docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from tests.bench.cluster import BenchError

_WITHIN_S: Final = 100.0
_ENDING_S: Final = 20.0
_TWO_COLUMNS: Final = "seq_num bigint, body binary"


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """Which log is read, and how many records it has up to where it is read."""

    url: str
    log: str
    record_count: int


@dataclass(frozen=True, slots=True)
class SparkRead:
    """Seconds of a whole read, from the query to its result; bytes are those of bodies."""

    body_bytes: int
    all_columns_s: float
    two_columns_s: float


def run_spark(spec: SparkSpec) -> SparkRead:
    """Measure in a process of its own.

    Raises:
        BenchError: it failed, or read other records than there are.
    """
    command = [sys.executable, "-m", "tests.bench.spark_load", json.dumps(asdict(spec))]
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **os.environ}
    done = subprocess.run(
        command, env=environment, capture_output=True, timeout=_WITHIN_S, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"Spark failed: {done.stderr.decode(errors='replace')[-2_000:]}")
    return SparkRead(**json.loads(done.stdout.splitlines()[-1]))


def _main(spec: SparkSpec) -> SparkRead:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")

    def read(count: int, schema: str | None = None) -> tuple[float, int]:
        reader = session.read.format("duramen").options(url=spec.url, logs=spec.log)
        reader = reader.option("until", f"seq:{count}")
        table = (reader if schema is None else reader.schema(schema)).load()
        began = time.perf_counter()
        row = table.selectExpr("count(seq_num) as n", "sum(length(body)) as b").first()
        assert row is not None and row.n == count, f"{row} records came, not {count}"
        return time.perf_counter() - began, int(row.b)

    # The first query starts the workers and loads classes, the ones after it compile.
    for schema in (None, _TWO_COLUMNS) * 2:
        read(min(spec.record_count, 20_000), schema)
    read(spec.record_count)
    two_columns_s, body_bytes = read(spec.record_count, _TWO_COLUMNS)
    all_columns_s, _ = read(spec.record_count)
    session.stop()
    # Waited for, so that what it used counts as ours: `machine.CpuWatch`.
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_ENDING_S)
    return SparkRead(body_bytes, all_columns_s, two_columns_s)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_main(SparkSpec(**json.loads(sys.argv[1]))))) + "\n")
