"""A command of the night, run to its end or to the night's: nothing of it stays behind.

A command gets a session of its own. At its time it is told to end (SIGINT, as Ctrl-C would), and
what is left of its session half a minute later is killed. Called by `tests.night.stages`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ENDS_WITHIN_S: Final = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    is_cut: bool
    """It was told to end, because its time was over."""
    output: str
    took_s: float

    @property
    def has_failed(self) -> bool:
        """A command that was cut off has failed only where it had said so before."""
        return self.status != 0 and not self.is_cut


def run_command(
    arguments: Sequence[str], until_s: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run `python ARGUMENTS…` from the repository's root.

    Args:
        until_s: the monotonic second at which it is told to end.
        environment: what it gets beyond this process's own.
    """
    began_s = time.monotonic()
    is_cut = False
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(until_s - began_s, 0.0))
        except subprocess.TimeoutExpired:
            is_cut = True
            process.send_signal(signal.SIGINT)
        finally:
            _end(process)
        output.seek(0)
        said = output.read()
    return Outcome(process.returncode, is_cut, said, time.monotonic() - began_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for it, then kill what is left of it and of what it started."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
