"""`python -m tests.kubernetes.deaths`: the operator dies at every write of its scenarios.

Each scenario that has one operator is played again and again with an operator that dies at other
writes each time (`controllers.mortals`): for each moment once at the first of each kind of write,
then as often as the period says, and at last at what is left. It asks for the same end as when
nobody dies. At the end stands how many writes there were, by what was written to what, and at which
of them nobody died: some are written beside another death alone, as it was under way. One that a
run of the rest met and spared, a scenario that failed, or nobody's death is the status; where only
some runs were asked for (`--run` without `new`, `-k`) writes that are left are told alone. Called
by people and by the night. Source: CONTRIBUTING.md "Tests on a real Kubernetes".
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kubernetes.cluster import binaries
from tests.kubernetes.controllers.deadly_proxy import Moment
from tests.kubernetes.controllers.mortals import (
    DEATHS,
    NEW,
    REST,
    SITES,
    Sites,
    read_deaths,
    read_sites,
)
from tests.kubernetes.image.recipes import REPOSITORY

SCENARIOS: Final = tuple(
    f"tests/kubernetes/controllers/test_{name}.py"
    for name in ("clusters", "secured", "logs", "archive")
)
WORKERS_COUNT: Final = 2
RUN_S: Final = 3_600.0
"""A hang bound of one run of all scenarios."""

RESTS_MAX: Final = 3
"""What is left after all runs passed beside another write at which the operator died."""

_END_S: Final = 60.0


def main() -> int:
    """Play them, report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.deaths", allow_abbrev=False)
    parser.add_argument("--period", type=int, default=5, help="of so many writes one is the last")
    parser.add_argument("--run", action="append", help="these runs alone: new, 1, 2, .. PERIOD")
    parser.add_argument("--moment", choices=[one.value for one in Moment], action="append")
    parser.add_argument("-k", default="", help="as pytest has it: some scenarios alone")
    options = parser.parse_args()
    moments = options.moment or [one.value for one in Moment]
    named = options.run or [NEW, *map(str, range(1, options.period + 1))]
    whiches = [one if one == NEW else f"{options.period}:{one}" for one in named]
    runs = [f"{which}:{moment}" for moment in moments for which in whiches]
    for run in runs:
        try:
            read_deaths(run)
        except ValueError as error:
            parser.error(str(error))
    binaries.main()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="duramen-deaths-") as folder:
        path = Path(folder) / "sites"
        try:
            for run in runs:
                if not play(run, path, options.k):
                    failed.append(run)
            # Where few die, writes come that none of the runs before had: of the other moment, too.
            for moment in list(moments) * RESTS_MAX if NEW in named else ():
                rest = f"{REST}:{moment}"
                if list_spared(read_sites(path), [moment]) and not play(rest, path, options.k):
                    failed.append(rest)
        finally:
            found = read_sites(path)
            is_whole = NEW in named and not options.k
            status = report(failed, found, moments, is_whole=is_whole)
    return status


def play(run: str, sites: Path, chosen: str) -> bool:
    """One run of the scenarios; whether all passed."""
    print(f"\n== {DEATHS}={run}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "kubernetes and not night", "-k", chosen]
    command += ["-n", str(WORKERS_COUNT), "--dist", "loadfile", *SCENARIOS]
    environment = {**os.environ, DEATHS: run, SITES: str(sites)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment) as child:
        try:
            return child.wait(RUN_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            # Killed, clusters and operators would go on.
            if child.poll() is None:
                child.terminate()
                child.wait(_END_S)


def list_spared(found: Sites, moments: Sequence[str]) -> list[tuple[str, str]]:
    """Moments and writes at which nobody died."""
    every = {(moment, site) for moment in moments for site in found.written}
    return sorted(every - found.died.keys())


def report(failed: Sequence[str], found: Sites, moments: Sequence[str], *, is_whole: bool) -> int:
    """Print it all; returns the exit status."""
    spared = list_spared(found, moments)
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    print(
        f"{found.died.total()} operators died, at {len(found.died)} of "
        f"{len(found.written) * len(moments)} writes and moments"
    )
    for moment, site in spared:
        is_met = (moment, site) in found.left
        print(f"  nobody died {moment} {site}{'' if is_met else ', written beside a death alone'}")
    is_short = is_whole and bool(found.left.intersection(spared))
    return int(bool(failed) or not found.died or is_short)


if __name__ == "__main__":
    sys.exit(main())
