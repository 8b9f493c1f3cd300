"""The archive job over 500 MB of 1 KiB lines: Spark with two slots, reading back included.

The rate is the job's own, over the run without the start of Spark: entries read from bookies, files
written, identities of other replicas, files read back. Beside it what the bookies used of the CPU:
on two cores that is what the rate is made of.

Called by `workloads`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from tests.bench.cluster import NAMESPACE, BenchError
from tests.bench.report import Figure, at_least

if TYPE_CHECKING:
    from tests.bench.workloads import Bench

ARCHIVE_MB_PER_S_TARGET: Final = 60.0
_LOG: Final = f"{NAMESPACE}/archived"
_RUN_S_MAX: Final = 120.0
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SPARK: Final = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
}


def measure_archive(bench: Bench) -> list[Figure]:
    """Archive a log appended as that of `bulk`, twice as long; nothing where there is no JDK."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.stderr.write("archive: left out, there is no JDK\n")
        return []
    from tests.bench.workloads import append_bulk

    record_bytes = sum(append_bulk(bench, _LOG).summary["bytes"] for _ in range(2))
    document = bench.cluster.document()
    _roll(f"{document['write_url']}/v1/namespaces/{_LOG.replace('/', '/logs/')}:roll")
    before = bench.cluster.read_cpu()
    report = _archive(document)
    bookies_s = bench.cluster.read_cpu().since(before)["bookie"]
    gb = report["entry_bytes"] / 1e9
    name = "archive"
    return [
        Figure(
            name, "two slots of Spark, with reading back", report["bytes_per_s"] / 1e6, "MB/s",
            target=at_least(ARCHIVE_MB_PER_S_TARGET),
        ),
        Figure(name, "CPU of the bookies, all of them", bookies_s / gb, "s/GB"),
        Figure(name, "files", report["file_bytes"] / record_bytes, "× payload"),
    ]  # fmt: skip


def _archive(document: dict[str, Any]) -> dict[str, Any]:
    """The report of a run.

    Raises:
        BenchError: it failed, or did not archive everything.
    """
    command = [sys.executable, "-m", "duramen_spark.main", "archive", _LOG, "--json"]
    command += ["--zookeeper", document["zookeeper"], "--cluster", document["cluster"]]
    command += ["--cold-store", document["cold_store"]]
    done = subprocess.run(
        command,
        env={**os.environ, **_SPARK},
        capture_output=True,
        timeout=_RUN_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"the archive failed: {done.stdout[-500:]!r} {done.stderr[-500:]!r}")
    report: dict[str, Any] = json.loads(done.stdout)
    if not report["entry_bytes"]:
        raise BenchError(f"nothing was archived: {report}")
    return report


def _roll(url: str) -> None:
    """Close the open segment: what is open is not archived."""
    request = urllib.request.Request(url, b"{}", {"content-type": "application/json"})
    with _OPENER.open(request, timeout=10) as response:
        response.read()
