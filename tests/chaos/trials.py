"""A chaos run, repeated while it is void; a violation is final, whatever else the run was.

A void run met too little to prove anything, which a slow machine can be the cause of: it is
repeated, half as long again each time, and counted in the report of the run that follows. A run
that saw a violation is the last one. So is the second of two in a row that are void for want of
appends or reads: that is a cluster that does not serve, and not a machine that is slow.

Called by `__main__` and `test_chaos`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.judge import Violation
from tests.chaos.report import Summary
from tests.chaos.run import ChaosOptions, run_chaos

TRIES: Final = 3
_LONGER: Final = 1.5
"""What was not met of a schedule in time is met later."""


async def run_until_valid(
    options: ChaosOptions,
    *,
    tries: int = TRIES,
    keeps_folder: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Summary:
    """The first run that proves something, good or bad, or the last of so many void ones.

    The folder of a run that is not good stays, and is told.

    Raises:
        RunError: as `run_chaos`; that is final too.
    """
    voids: list[tuple[str, ...]] = []
    was_starved = False
    while True:
        summary = await _run_in_a_folder(options, keeps_folder=keeps_folder, say=say)
        summary = replace(summary, voids_before=tuple(voids))
        if summary.violations or not summary.void:
            return summary
        if was_starved and summary.starved:
            text = f"two runs in a row were void for want of them: {', '.join(summary.starved)}"
            return replace(summary, violations=[Violation("liveness", "*", text)])
        was_starved = bool(summary.starved)
        voids.append(tuple(summary.void))
        say(f"void, run {len(voids)} of {tries}: {'; '.join(summary.void)}")
        if len(voids) >= tries:
            return summary
        options = replace(options, seconds=_LONGER * options.seconds)


async def _run_in_a_folder(
    options: ChaosOptions, *, keeps_folder: bool, say: Callable[[str], None]
) -> Summary:
    folder = Path(tempfile.mkdtemp(prefix="duramen-chaos-"))
    is_wanted = keeps_folder
    try:
        summary = await run_chaos(options, folder, say)
        is_wanted |= not summary.is_good
    except asyncio.CancelledError:
        raise
    except BaseException:
        is_wanted = True
        raise
    finally:
        if not is_wanted:
            shutil.rmtree(folder)
        else:
            say(f"histories and logs: {folder}")
    return summary
