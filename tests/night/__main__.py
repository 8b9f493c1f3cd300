"""`python -m tests.night`, which is `make night HOURS=n`: play every stage, write the report.

The stages follow one another; each has a share of what is left, and stops at its time. Ctrl-C and
SIGTERM end the night after the report of what was played. Exit codes: 0 nothing failed; 1 something
did; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from tests import interrupts
from tests.night.memory import default_path, read_memory, write_memory
from tests.night.report import Played, format_report
from tests.night.stages import STAGES, Finding, Stage


def main() -> int:
    """Play, report."""
    options = _parse()
    interrupts.heed()
    signal.signal(signal.SIGTERM, _end)
    began_s, began = time.monotonic(), datetime.datetime.now(datetime.UTC)
    memory = read_memory(options.memory)
    played: list[Played] = []

    def report() -> str:
        """Write the page as far as it is known; gives its verdict."""
        page = format_report(
            played, began=f"{began:%Y-%m-%d %H:%M} UTC", took_s=time.monotonic() - began_s
        )
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(page, encoding="utf-8")
        return page.partition("\n")[0]

    chosen = [stage for stage in STAGES if not options.only or stage.name in options.only]
    try:
        for stage, until_s in share_out(chosen, began_s + options.hours * 3600):
            _say(f"{stage.name}: {(until_s - time.monotonic()) / 60:.0f} minutes")
            stage_began_s, finding = time.monotonic(), Finding()
            try:
                finding = stage.play(memory, until_s)
            finally:
                played.append(Played(stage.name, finding, time.monotonic() - stage_began_s))
                write_memory(options.memory, memory)
                report()  # who looks in meanwhile sees what failed, and why
            _say(f"{stage.name}: {', '.join(finding.faults) or 'passed'}")
    except KeyboardInterrupt:
        _say("interrupted")
    sys.stdout.write(f"{report()}\n{options.report}\n")
    return int(any(one.finding.faults for one in played))


def share_out(stages: Iterable[Stage], until_s: float) -> Iterable[tuple[Stage, float]]:
    """Each stage with the second at which it has to stop; what one leaves the others get."""
    stages = list(stages)
    for index, stage in enumerate(stages):
        now_s = time.monotonic()
        ratio = stage.share / sum(other.share for other in stages[index:])
        yield stage, now_s + ratio * max(until_s - now_s, 0.0)


def _end(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.datetime.now():%H:%M} {text}\n")
    sys.stderr.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.night", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="how long it may take")
    parser.add_argument("--report", type=Path, default=Path("build/night.md"), metavar="FILE")
    parser.add_argument("--memory", type=Path, default=default_path(), metavar="FILE")
    parser.add_argument(
        "--only", action="append", default=[], choices=[stage.name for stage in STAGES]
    )
    options = parser.parse_args()
    if not 0 < options.hours <= 168:
        parser.error("--hours: more than 0, and a week at most")
    return options


if __name__ == "__main__":
    sys.exit(main())
