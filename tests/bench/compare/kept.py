"""Kept figures: what an append cost when `kept.json` was written, against what it costs now.

`python -m tests.bench --keep` writes the file, a night holds its own measurement against it. Counts
are compared wherever it was measured. CPU is compared on the machine that the file names alone, and
with more room than two sides side by side need: the machine's day is in it. Times, and counts of
what comes with time, are not kept.

Called by `python -m tests.bench` and the night run. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from duramen import __version__
from tests.bench.compare.sides import ROOT, Side
from tests.bench.compare.verdict import Figure, Kind, Sample, find_ratio, take_medians
from tests.bench.compare.workloads import WORKLOADS, measure, prepare
from tests.bench.machine import CpuWatch, describe_machine
from tests.bench.report import spell_number

KEPT: Final = Path(__file__).parents[1] / "kept.json"
TOLERANCES: Final = {Kind.COUNT: 1.02, Kind.GROUPED: 1.5, Kind.CPU: 1.4}
_NOT_KEPT: Final = (Kind.PACED, Kind.TIME)
TURNS: Final = 5
TURN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Result:
    """What the short loads cost on a machine; `machine` as `describe_this_machine` gives it."""

    machine: dict[str, Any]
    figures: Sample


def measure_short(
    data: Path, *, turns: int = TURNS, seconds: float = TURN_S,
    say: Callable[[str], None] = lambda _: None,
) -> Result:  # fmt: skip
    """Medians of some turns of every short load on a cluster of the working tree.

    Raises:
        BenchError: an append failed or the cluster did not start.
    """
    data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="kept-", dir=data)).absolute()
    figures: dict[Figure, float] = {}
    watch = CpuWatch()
    try:
        side = Side("working tree", ROOT, folder)
        with side.cluster:
            for name in WORKLOADS:
                say(f"{name} …")
                prepare(side, name)
                figures |= take_medians([measure(side, name, seconds) for _ in range(turns)])
        # Says to a reader how far the CPU figures are to be trusted; nothing is judged by it.
        foreign = {"foreign_cpu_ratio": round(watch.find_foreign_ratio(), 2)}
        return Result(describe_this_machine(folder) | foreign, figures)
    finally:
        shutil.rmtree(folder)


def describe_this_machine(folder: Path) -> dict[str, Any]:
    """By this CPU figures are compared, or not."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return describe_machine(folder) | {"cpu": models[0] if models else platform.machine()}


def keep(result: Result, path: Path = KEPT) -> None:
    """Write what will be compared from now on."""
    document = {
        "version": __version__,
        "note": "Written by `python -m tests.bench --keep`, read as docs/benchmarks.md says.",
        "machine": result.machine,
        "figures": [
            {
                "workload": figure.workload, "name": figure.name, "unit": figure.unit,
                "kind": figure.kind.value, "slack": figure.slack, "value": round(value, 3),
            }
            for figure, value in result.figures.items()
            if figure.kind not in _NOT_KEPT
        ],
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_kept(path: Path = KEPT) -> Result:
    """What `keep` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    figures = {
        Figure(
            one["workload"], one["name"], one["unit"], Kind(one["kind"]), one["slack"]
        ): one["value"]
        for one in document["figures"]
    }  # fmt: skip
    return Result(document["machine"], figures)


def compare_with_kept(result: Result, path: Path = KEPT) -> list[str]:
    """A line for each figure that is worse than the kept one, or was kept and is missing now."""
    kept = read_kept(path)
    complaints = []
    for figure, before in kept.figures.items():
        where = f"{figure.workload}, {figure.name}"
        after = result.figures.get(figure)
        if after is None:
            complaints.append(f"{where}: kept as {spell_number(before)}, and not measured now")
        elif figure.kind is Kind.CPU and not is_same_machine(kept.machine, result.machine):
            continue
        elif find_ratio(before, after) > TOLERANCES[figure.kind] and after - before > figure.slack:
            complaints.append(
                f"{where}: {spell_number(after)} {figure.unit}, kept as {spell_number(before)} "
                f"({find_ratio(before, after):.3f}, at most {TOLERANCES[figure.kind]})"
            )
    return complaints


def is_same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether CPU figures of both can be compared: processor, cores and Python."""
    return all(one.get(key) == other.get(key) for key in ("cpu", "cores", "python"))


def explain_machines(result: Result, path: Path = KEPT) -> str | None:
    """What to say where the kept figures are of another machine."""
    kept = read_kept(path)
    if is_same_machine(kept.machine, result.machine):
        return None
    return (
        f"CPU is not compared: it was kept on {kept.machine.get('cpu')}, "
        f"{kept.machine.get('cores')} cores, Python {kept.machine.get('python')}."
    )
