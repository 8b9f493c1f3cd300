"""`python -m tests.mutants_services`: put each fault in a copy of the tree, run its test files.

For each fault a line says which test noticed it, or that none did. Exit codes: 0 at least 95 % of
those that were judged were caught, 1 fewer were, or a fault could not be judged, 2 the command line
is wrong. With `--hours` it stops at its hour and says what it left out; `--seed` says where in the
list it begins, so that nights one after the other come round all of it. The checkout is only read.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.mutants_services.fault import Fault, read_faults
from tests.mutants_services.playing import Fate, Player, Verdict

CAUGHT_RATIO_MIN: Final = 0.95
_STEP: Final = 89
"""From one seed's beginning to the next one's: prime to the list's length or nearly so, and about
what an hour plays beside other work."""


def main(argv: Sequence[str] | None = None) -> int:
    """Play all faults, or those asked for; 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants_services", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these faults alone")
    parser.add_argument("--area", action="append", default=[], help="these areas alone")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree to play on (1)")
    parser.add_argument("--hours", type=float, help="begin nothing after so long")
    parser.add_argument("--seed", type=int, default=0, help="where in the list it begins (0)")
    parser.add_argument("--list", action="store_true", help="show the faults, play none")
    parser.add_argument("--report", type=Path, help="write it there, .json or Markdown")
    options = parser.parse_args(argv)
    faults = choose(read_faults(), options.only, options.area, options.seed)
    if not faults:
        parser.error("there is no such fault: --list shows them")
    if options.list:
        for fault in faults:
            print(f"{fault.area:16} {fault.name:48} {fault.path}\n{'':17}{fault.suffers}")
        return 0
    until_s = None if options.hours is None else time.monotonic() + options.hours * 3600
    checkout = Path(__file__).resolve().parents[2]
    player = Player(
        checkout, jobs=options.jobs, until_s=until_s, tell=lambda v: print(v, flush=True)
    )
    signal.signal(signal.SIGTERM, _on_end)
    verdicts = player.play(faults)
    if options.report is not None:
        is_json = options.report.suffix == ".json"
        text = json.dumps(describe(verdicts), indent=1) if is_json else format_text(verdicts)
        options.report.write_text(text + "\n", encoding="utf-8")
    for verdict in verdicts:
        if verdict.fate in (Fate.SURVIVED, Fate.NOT_JUDGED):
            print(verdict)  # again: hundreds of lines may lie between
    print(summarize(verdicts))
    return 0 if is_enough(verdicts) else 1


def choose(
    faults: Sequence[Fault], only: Sequence[str], areas: Sequence[str], seed: int
) -> list[Fault]:
    """The faults to be played, from where the seed says on, once around."""
    unknown = {*only} - {fault.name for fault in faults}
    unknown |= {*areas} - {fault.area for fault in faults}
    if unknown:
        return []
    chosen = [
        fault
        for fault in faults
        if (not only or fault.name in only) and (not areas or fault.area in areas)
    ]
    first = seed * _STEP % len(chosen)
    return [*chosen[first:], *chosen[:first]]


def is_enough(verdicts: Sequence[Verdict]) -> bool:
    """Whether all that were played could be judged, and enough of them were caught."""
    counts = Counter(verdict.fate for verdict in verdicts)
    judged = counts[Fate.CAUGHT] + counts[Fate.SURVIVED]
    is_judged = judged > 0 and not counts[Fate.NOT_JUDGED]
    return is_judged and counts[Fate.CAUGHT] >= CAUGHT_RATIO_MIN * judged


def summarize(verdicts: Sequence[Verdict]) -> str:
    """One line: how many were caught of those that were judged, and what was left out."""
    counts = Counter(verdict.fate for verdict in verdicts)
    judged = counts[Fate.CAUGHT] + counts[Fate.SURVIVED]
    ratio = counts[Fate.CAUGHT] / judged if judged else 0.0
    return (
        f"{counts[Fate.CAUGHT]} of {judged} caught ({ratio:.1%}), "
        f"{counts[Fate.SURVIVED]} survived, "
        f"{counts[Fate.NOT_JUDGED]} not judged, {counts[Fate.NOT_PLAYED]} not played"
    )


def describe(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The report as JSON has it."""
    counts = Counter(verdict.fate for verdict in verdicts)
    return {
        "is_enough": is_enough(verdicts),
        "counts": {fate.name.lower(): counts[fate] for fate in Fate},
        "faults": [
            {
                "name": verdict.fault.name,
                "area": verdict.fault.area,
                "path": verdict.fault.path,
                "fate": verdict.fate.name.lower(),
                "by": verdict.by,
                "elapsed_s": round(verdict.elapsed_s, 1),
            }
            for verdict in verdicts
        ],
    }


def format_text(verdicts: Sequence[Verdict]) -> str:
    """The report as Markdown: what was not caught first, then what was not played."""
    lines = ["# Faults outside the cores", "", summarize(verdicts) + ".", ""]
    for fate in (Fate.SURVIVED, Fate.NOT_JUDGED):
        for verdict in verdicts:
            if verdict.fate is fate:
                fault = verdict.fault
                by = f" ({verdict.by})" if verdict.by else ""
                lines.append(
                    f"- {fate.value}: `{fault.name}` in `{fault.path}`{by}: {fault.suffers}"
                )
    left = [verdict.fault.name for verdict in verdicts if verdict.fate is Fate.NOT_PLAYED]
    if left:
        lines += ["", f"Not played for want of time: {', '.join(left)}."]
    return "\n".join(lines)


def _on_end(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
