"""`python -m tests.bench`, which is `make bench`: measure this machine and a cluster on it.

Starts a cluster in a new folder below --data, runs the workloads one after the other, prints a
table, stops the cluster and removes the folder. Ends within six minutes, one way or the other.
With --keep it writes instead what an append costs now to tests/bench/kept.json; with --against-kept
it compares with what is there.

Exit codes: 0 measured, also where a target was missed; 1 void, or worse than kept; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from duramen import __version__
from tests import interrupts
from tests.bench.cluster import BenchError, LocalCluster
from tests.bench.compare.kept import (
    KEPT,
    Result,
    compare_with_kept,
    explain_machines,
    keep,
    measure_short,
)
from tests.bench.ending import bounded
from tests.bench.machine import CpuWatch, describe_machine
from tests.bench.report import Figure, format_table
from tests.bench.workloads import QUICK, WORKLOADS, Bench, Sizes

_RUN_S_MAX: Final = 330
"""Leaves half a minute of the six for stopping."""


def main() -> int:
    """Measure, print."""
    options = _parse()
    interrupts.heed()
    if options.keep or options.against_kept:
        return _measure_kept(options)
    options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.data)).absolute()
    machine = describe_machine(folder)
    figures: list[Figure] = []
    fault = None
    watch = CpuWatch()
    try:
        with bounded(_RUN_S_MAX), LocalCluster(folder) as cluster:
            bench = Bench(cluster, QUICK if options.quick else Sizes())
            for name in options.only or WORKLOADS:
                _say(f"{name} …")
                figures += WORKLOADS[name](bench)
            figures += [
                Figure("memory", f"peak of {node_id}", peak_bytes / 1e6, "MB")
                for node_id, peak_bytes in cluster.read_peak_memory().items()
            ]
    except BenchError as error:
        fault = str(error)
    finally:
        shutil.rmtree(folder)
    machine["foreign_cpu_ratio"] = watch.find_foreign_ratio()
    if figures:
        sys.stdout.write(f"{format_header(machine, is_quick=options.quick)}\n\n")
        sys.stdout.write(f"{format_table(figures)}\n")
    if options.json is not None:
        document = {
            "version": __version__,
            "is_quick": options.quick,
            "machine": machine,
            "figures": [figure.to_json() for figure in figures],
            "fault": fault,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if fault is not None:
        _say(f"void: {fault}")
    return 0 if fault is None else 1


def _measure_kept(options: argparse.Namespace) -> int:
    try:
        with bounded(_RUN_S_MAX):
            result = measure_short(options.data, say=_say)
    except BenchError as error:
        _say(f"void: {error}")
        return 1
    sys.stdout.write(f"{format_kept(result)}\n")
    if options.keep:
        keep(result)
        sys.stdout.write(f"kept in {KEPT}\n")
        return 0
    note = explain_machines(result)
    complaints = compare_with_kept(result)
    for line in [*([note] if note else []), *complaints]:
        sys.stdout.write(f"{line}\n")
    return 1 if complaints else 0


def format_kept(result: Result) -> str:
    """The figures of the short loads as a table."""
    return format_table([
        Figure(figure.workload, figure.name, value, figure.unit)
        for figure, value in result.figures.items()
    ])  # fmt: skip


def format_header(machine: dict[str, Any], *, is_quick: bool) -> str:
    """Two lines: what was measured, and on what."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    memory_gb = machine["memory_bytes"] / 1e9
    return (
        f"Duramen {__version__}, {now}{', quick' if is_quick else ''}: E = Qw = 3, Qa = 2, "
        "fsync on, clients and servers on one machine\n"
        f"{machine['cores']} cores, {memory_gb:.0f} GB, {machine['file_system']}, "
        f"Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['foreign_cpu_ratio']:.0%} of the CPU taken by others meanwhile"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="shorter, and less to be trusted")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--keep", action="store_true", help="write today's cost of an append")
    kept.add_argument("--against-kept", action="store_true", help="compare with what was written")
    parser.add_argument(
        "--only", action="append", choices=list(WORKLOADS), help="this workload (may be repeated)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("build"), help="folder on the disk to be measured"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
