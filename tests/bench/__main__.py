"""`python -m tests.bench`, which is `make bench`: measure this machine and a cluster on it.

Starts a cluster in a new folder below --data, runs the workloads one after the other, prints a
table, stops the cluster and removes the folder. Ends within six minutes, one way or the other.

Exit codes: 0 measured, also where a target was missed; 1 void; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from duramen import __version__
from tests.bench.cluster import BenchError, LocalCluster
from tests.bench.machine import CpuWatch, describe_machine
from tests.bench.report import Figure, spell_table
from tests.bench.workloads import QUICK, WORKLOADS, Bench, Sizes

_RUN_S_MAX: Final = 330
"""Leaves half a minute of the six for stopping."""


def main() -> int:
    """Measure, print."""
    options = _parse()
    options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.data)).absolute()
    machine = describe_machine(folder)
    figures: list[Figure] = []
    fault = None
    watch = CpuWatch()
    try:
        with _bounded(), LocalCluster(folder) as cluster:
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
        sys.stdout.write(f"{spell_header(machine, is_quick=options.quick)}\n\n")
        sys.stdout.write(f"{spell_table(figures)}\n")
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


def spell_header(machine: dict[str, Any], *, is_quick: bool) -> str:
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
    parser.add_argument(
        "--only", action="append", choices=list(WORKLOADS), help="this workload (may be repeated)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("build"), help="folder on the disk to be measured"
    )
    return parser.parse_args()


@contextmanager
def _bounded() -> Iterator[None]:
    """Ends what runs inside by an exception: at the time limit, or when the process is told to."""

    def on_alarm(*_: object) -> NoReturn:
        raise BenchError(f"not done within {_RUN_S_MAX} s")

    def on_end(*_: object) -> NoReturn:
        raise BenchError("ended by a signal")

    signal.signal(signal.SIGALRM, on_alarm)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_end)
    signal.alarm(_RUN_S_MAX)
    try:
        yield
    finally:
        # Whatever comes now must not disturb the stopping; it is bounded by itself.
        signal.alarm(0)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
