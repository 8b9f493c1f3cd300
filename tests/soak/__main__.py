"""`python -m tests.soak --hours H [--seed S]`, which is `make soak HOURS=n`: does anything grow?

What happens goes to stderr as it happens, the report (Markdown) to stdout and to --report FILE.
SIGTERM, SIGHUP and Ctrl-C end it in order: nothing is left running, and the report says so.

Exit codes: 0 all held; 1 a violation, a leak, or it could not go on; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests import interrupts
from tests.soak.report import format_report
from tests.soak.run import Soak


def main() -> int:
    """Run, report."""
    interrupts.heed()
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="of the load; default: a new one")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the report goes here too")
    parser.add_argument("--keep", action="store_true", help="keep histories and logs")
    arguments = parser.parse_args()
    if arguments.hours <= 0:
        parser.error("--hours is above 0")
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="duramen-soak-"))
    began_s = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:8.1f} s  {text}\n")
        sys.stderr.flush()

    soak = Soak(arguments.hours * 3600, seed, folder, say)
    say(f"seed {seed}, {arguments.hours:g} hours")
    try:
        uvloop.run(_run(soak))
    except KeyboardInterrupt:
        soak.outcome.is_interrupted = True
    except asyncio.CancelledError as error:
        if not soak.outcome.is_interrupted:
            soak.outcome.faults.append(f"cancelled, and by no signal: {error!r}")
    report = format_report(soak.outcome)
    sys.stdout.write(report)
    if arguments.report is not None:
        arguments.report.write_text(report, encoding="utf-8")
    if soak.outcome.is_good and not arguments.keep:
        shutil.rmtree(folder)
    else:
        say(f"histories and logs: {folder}")
    if soak.outcome.is_interrupted:
        return 130
    return 0 if soak.outcome.is_good else 1


async def _run(soak: Soak) -> None:
    task = asyncio.current_task()
    assert task is not None

    def end(number: signal.Signals) -> None:
        soak.outcome.is_interrupted = True
        task.cancel(number.name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    await soak.carry_out()


if __name__ == "__main__":
    sys.exit(main())
