"""`duramen-bookie bench journal|bookie`: flags, the folder, and how figures are shown.

Measures in a new folder below --dir, which is removed at the end, however it ends. Results go to
stdout (a table, or with --json one object on the last line), progress to stderr. Nothing here is a
test: figures are to be read against the machine's own limits of the same run.

Called by `duramen-bookie`, and through it by `duramen bench`. Source: docs/benchmarks.md "A bookie
alone".
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from duramen import __version__
from duramen.limits import JOURNAL_FILE_BYTES
from duramen.units import MIB, format_size, parse_size_bytes
from duramen_bookie.offline.bench_bookie import BookieBenchOptions, measure_bookie
from duramen_bookie.offline.bench_journal import JournalBenchOptions, measure_journal
from duramen_bookie.offline.bench_machine import (
    CHUNK_BYTES,
    BenchError,
    CpuWatch,
    Figure,
    describe_machine,
    format_number,
    measure_limits,
)

_SECONDS: Final = 15.0
_LIMIT_FILE_BYTES: Final = 64 * MIB

Measured = tuple[float, list[Figure]]
"""Ratio to the bare loop, and all figures."""


def add_bench_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` with its two commands; each sets `run`, which takes the namespace, gives a code.

    Exit codes: 0 measured, also where a target was missed; 1 void, with one sentence; 2 usage;
    130 ended by a signal.
    """
    bench = commands.add_parser("bench", help="measure the journal, or a bookie, on this machine")
    kinds = bench.add_subparsers(required=True, metavar="WHAT")
    journal = kinds.add_parser("journal", help="against a bare loop of pwritev and fdatasync")
    journal.add_argument(
        "--replay-size", type=_size, default=parse_size_bytes("1000000000"), metavar="SIZE",
        help="journal to be replayed (1 GB)",
    )  # fmt: skip
    journal.add_argument(
        "--file-size", type=_size, default=JOURNAL_FILE_BYTES, metavar="SIZE",
        help=f"of a journal file ({format_size(JOURNAL_FILE_BYTES)})",
    )  # fmt: skip
    journal.set_defaults(run=_run_journal)
    bookie = kinds.add_parser("bookie", help="against the same transport without storage")
    bookie.set_defaults(run=_run_bookie)
    for parser in (journal, bookie):
        parser.add_argument(
            "--dir", type=Path, default=Path(), help="the disk to be measured (current folder)"
        )
        parser.add_argument(
            "--seconds", type=float, default=_SECONDS, help=f"of writing in all ({_SECONDS:.0f})"
        )
        parser.add_argument("--json", action="store_true", help="one object on the last line")


def _run_journal(options: argparse.Namespace) -> int:
    wanted = JournalBenchOptions(options.seconds, options.replay_size, options.file_size)
    return _run("journal", options, lambda folder: measure_journal(folder, wanted))


def _run_bookie(options: argparse.Namespace) -> int:
    wanted = BookieBenchOptions(options.seconds)
    return _run("bookie", options, lambda folder: measure_bookie(folder, wanted))


def _run(kind: str, options: argparse.Namespace, measure: Callable[[Path], Measured]) -> int:
    watch = CpuWatch()
    try:
        with _folder_in(options.dir) as folder:
            machine = describe_machine(folder)
            if not machine["is_disk"]:
                _say(f"{folder} is on {machine['file_system']}: memory, not a disk, is measured")
            _say("the machine …")
            figures = measure_limits(folder, file_bytes=_LIMIT_FILE_BYTES)
            _say(f"{kind}, about {options.seconds:.0f} s of writing and what comes around it …")
            ratio, measured = measure(folder)
    except (BenchError, OSError) as error:
        _say(f"void: {error}")
        return 1
    except KeyboardInterrupt:
        _say("void: ended by a signal")
        return 130
    machine["foreign_cpu_ratio"] = watch.find_foreign_ratio()
    figures += measured
    if options.json:
        document = {
            "bench": kind,
            "version": __version__,
            "seconds": options.seconds,
            "machine": machine,
            "ratio_to_bare_loop": ratio,
            "figures": _nest(figures),
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(f"{_format_header(machine)}\n\n{format_table(figures)}\n")
    return 0


def format_table(figures: Sequence[Figure]) -> str:
    """The figures as lines of columns, a blank line between workloads."""
    rows = [("workload", "figure", "median", "", "quartiles", "target")]
    previous = ""
    for figure in figures:
        if figure.workload != previous:
            rows.append(("",) * 6)
        spread = (
            "" if figure.quartiles is None else " … ".join(map(format_number, figure.quartiles))
        )
        name = figure.workload if figure.workload != previous else ""
        value = format_number(figure.value)
        rows.append((name, figure.name, value, figure.unit, spread, _format_target(figure)))
        previous = figure.workload
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_format_row(row, widths) for row in rows)


def _format_target(figure: Figure) -> str:
    target = figure.target
    if target is None:
        return ""
    verdict = "reached" if target.is_reached_by(figure.value) else "missed"
    return f"{'≥' if target.is_floor else '≤'} {format_number(target.bound)}: {verdict}"


def _format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.rjust(width) if index == 2 else text.ljust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _format_header(machine: dict[str, Any]) -> str:
    return (
        f"Duramen {__version__}: {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, "
        f"{machine['file_system']}{'' if machine['is_disk'] else ' (memory, no disk)'}, "
        f"Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['foreign_cpu_ratio']:.0%} of the CPU taken by others meanwhile"
    )


def _nest(figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """Workload → name → figure."""
    nested: dict[str, dict[str, Any]] = {}
    for figure in figures:
        nested.setdefault(figure.workload, {})[figure.name] = figure.to_json()
    return nested


@contextmanager
def _folder_in(directory: Path) -> Iterator[Path]:
    """A new folder that is gone afterwards, also when the process is told to end."""

    def on_end(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt  # the one that every event loop passes on

    folder = Path(tempfile.mkdtemp(prefix="duramen-bench-", dir=directory)).absolute()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, on_end) for number in numbers]
    try:
        yield folder
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        shutil.rmtree(folder)


def _size(text: str) -> int:
    size = parse_size_bytes(text)
    if size < CHUNK_BYTES:
        raise ValueError(text)
    return size


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
