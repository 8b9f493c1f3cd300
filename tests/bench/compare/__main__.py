"""`python -m tests.bench.compare BASE`, which is `make bench-compare BASE=<rev>`: tree or revision?

Starts a cluster of the revision and one of the working tree, side by side, and gives the same short
load to one after the other: A B A B …, after a turn of each that is not counted. What it prints is
paired: a slow minute of the machine hits both. Counts come first, then CPU, then times.

Exit codes: 0 no figure beyond its tolerance, 1 some are, 2 usage (also: no such revision), 3 void.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench.cluster import BenchError
from tests.bench.compare.sides import (
    ROOT,
    MisuseError,
    Side,
    check_out,
    explain_locks,
    find_commit,
)
from tests.bench.compare.verdict import (
    TOLERANCES,
    Comparison,
    Kind,
    Sample,
    find_unshared,
    format_comparisons,
    judge,
)
from tests.bench.compare.workloads import WORKLOADS, measure, prepare
from tests.bench.ending import bounded
from tests.bench.machine import CpuWatch

_START_S: Final = 300
"""For two clusters to start and to stop."""
_TURN_S: Final = 30
"""On top of the measured time of a turn, on a busy machine."""

Pairs = list[tuple[Sample, Sample]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print."""
    options = _parse(arguments)
    try:
        commit = find_commit(options.base)
    except MisuseError as error:
        _say(str(error))
        return 2
    options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="compare-", dir=options.data)).absolute()
    watch = CpuWatch()
    try:
        check_out(commit, folder / "base")
        note = explain_locks(folder / "base", ROOT)
        if note is not None:
            _say(note)
        pairs = _measure_pairs(options, commit, folder)
    except BenchError as error:
        _say(f"void: {error}")
        return 3
    finally:
        shutil.rmtree(folder)
    tolerances = {
        Kind.COUNT: options.count_tolerance,
        Kind.GROUPED: options.grouped_tolerance,
        Kind.PACED: options.grouped_tolerance,
        Kind.CPU: options.cpu_tolerance,
    }
    found = [one for name in pairs for one in judge(pairs[name], tolerances)]
    found.sort(key=lambda one: list(Kind).index(one.figure.kind))
    unshared = [figure for name in pairs for figure in find_unshared(pairs[name])]
    sys.stdout.write(
        f"base {options.base} = {commit[:12]}, {options.pairs} pairs of {options.seconds:g} s, "
        f"ratio: working tree to base; {watch.find_foreign_ratio():.0%} of the CPU taken by others"
        f"\n\n{format_comparisons(found)}\n\n"
    )
    for figure in unshared:
        sys.stdout.write(f"not compared, one side does not tell: {figure[0]}, {figure[1]}\n")
    beyond = [one for one in found if one.is_beyond]
    sys.stdout.write(format_verdict(beyond))
    if options.json is not None:
        document = {
            "base": commit,
            "comparisons": [one.to_json() for one in found],
            "not_compared": [figure[:2] for figure in unshared],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if beyond else 0


def format_verdict(beyond: Sequence[Comparison]) -> str:
    """The last lines."""
    if not beyond:
        return "nothing is beyond its tolerance\n"
    return "".join(
        f"beyond: {one.figure.workload}, {one.figure.name}: {one.ratio:.3f} times, at most "
        f"{one.tolerance}\n"
        for one in beyond
    )


def _measure_pairs(options: argparse.Namespace, commit: str, folder: Path) -> dict[str, Pairs]:
    """Pairs by workload."""
    base = Side(commit[:12], folder / "base", folder / "side-base")
    tree = Side("working tree", ROOT, folder / "side-tree")
    names = options.only or list(WORKLOADS)
    turn_count = len(names) * (options.pairs + 1) * 2
    found: dict[str, Pairs] = {}
    limit_s = _START_S + turn_count * (int(options.seconds) + _TURN_S)
    with bounded(limit_s), base.cluster, tree.cluster:
        for name in names:
            for side in (base, tree):
                _say(f"{name}: warming up {side.name}")
                prepare(side, name)
                measure(side, name, options.seconds)
            found[name] = []
            for number in range(1, options.pairs + 1):
                _say(f"{name}: pair {number} of {options.pairs}")
                first = measure(base, name, options.seconds)
                found[name].append((first, measure(tree, name, options.seconds)))
    return found


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-compare BASE=<rev>", description=__doc__)
    parser.add_argument("base", help="a revision that git knows: what the tree is compared with")
    parser.add_argument("--pairs", type=int, default=5, help="how many (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn (3)")
    parser.add_argument(
        "--only", action="append", choices=list(WORKLOADS), help="this load (may be repeated)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all ratios there, too")
    for kind, flag in (
        (Kind.COUNT, "--count-tolerance"),
        (Kind.GROUPED, "--grouped-tolerance"),
        (Kind.CPU, "--cpu-tolerance"),
    ):
        text = f"greatest median ratio of a {kind.value} ({TOLERANCES[kind]})"
        parser.add_argument(flag, type=float, default=TOLERANCES[kind], help=text)
    parser.add_argument(
        "--data", type=Path, default=Path("build"), help="folder for both clusters' data"
    )
    options = parser.parse_args(arguments)
    if options.pairs < 1 or options.seconds <= 0:
        parser.error("--pairs is at least 1, --seconds more than 0")
    return options


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
