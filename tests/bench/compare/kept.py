"""Kept figures: what an append cost when `kept.json` was written, against what it costs now.

`python -m tests.bench --keep` writes the file, a night holds its own measurement against it. Counts
are compared wherever it was measured. CPU is compared on the machine that the file names alone, as
a multiple of what a server of the same libraries takes to answer with what it got (the control,
measured turn by turn beside it): one machine can cost twice as much on another day. Times, and
counts of what comes with time, are not kept.

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
from tests.bench.machine import CpuWatch, EchoCpu, describe_machine, serve_echo_cpu
from tests.bench.report import format_number

KEPT: Final = Path(__file__).parents[1] / "kept.json"
TOLERANCES: Final = {Kind.COUNT: 1.02, Kind.GROUPED: 1.5, Kind.CPU: 1.4}
_NOT_KEPT: Final = (Kind.PACED, Kind.TIME)
TURNS: Final = 5
TURN_S: Final = 3.0
CONTROL: Final = "CPU of an echo, the control"
_CONTROL_S: Final = 0.5


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
        with serve_echo_cpu() as echo, side.cluster:
            for name in WORKLOADS:
                say(f"{name} …")
                prepare(side, name)
                figures |= take_medians(
                    [
                        measure_control(echo, name) | measure(side, name, seconds)
                        for _ in range(turns)
                    ]
                )
        # Says to a reader how far the CPU figures are to be trusted; nothing is judged by it.
        foreign = {"foreign_cpu_ratio": round(watch.find_foreign_ratio(), 2)}
        return Result(describe_this_machine(folder) | foreign, figures)
    finally:
        shutil.rmtree(folder)


def measure_control(echo: EchoCpu, name: str) -> dict[Figure, float]:
    """What one answer costs a server that does nothing else, at as many in flight as a workload."""
    in_flight = WORKLOADS[name].load.in_flight
    return {find_control(name): echo.measure(seconds=_CONTROL_S, in_flight=in_flight) * 1e6}


def find_control(name: str) -> Figure:
    """The figure that CPU figures of a workload are multiples of."""
    return Figure(name, CONTROL, "µs an answer", Kind.CONTROL)


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
            complaints.append(f"{where}: kept as {format_number(before)}, and not measured now")
            continue
        if figure.kind not in TOLERANCES:
            continue
        dearer = 1.0
        if figure.kind is Kind.CPU:
            if not is_same_machine(kept.machine, result.machine):
                continue
            dearer = find_dearness(kept, result, figure.workload)
        due = before * dearer
        if find_ratio(due, after) > TOLERANCES[figure.kind] and after - due > figure.slack:
            today = "" if dearer == 1 else f", {format_number(due)} as the machine is now"
            complaints.append(
                f"{where}: {format_number(after)} {figure.unit}, kept as {format_number(before)}"
                f"{today} ({find_ratio(due, after):.3f}, at most {TOLERANCES[figure.kind]})"
            )
    return complaints


def find_dearness(kept: Result, result: Result, workload: str) -> float:
    """How many times as much CPU as when figures were kept the same work takes the machine now."""
    control = find_control(workload)
    return find_ratio(kept.figures[control], result.figures.get(control, 0.0))


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
