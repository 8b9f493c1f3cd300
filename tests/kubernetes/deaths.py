"""`python -m tests.kubernetes.deaths`: the operator dies at every write of its scenarios.

Each scenario that has one operator is played again and again with an operator that dies at other
writes each time (`controllers.mortals`): for each moment as often as the period says. It asks for
the same end as when nobody dies. At the end stands how many writes there were, and at which of them
nobody died; either that or a scenario that failed is the status. Counted by what was written to
what, whatever the namespace of a test is called. Called by people and by the night.
Source: CONTRIBUTING.md "Tests on a real Kubernetes".
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
from tests.kubernetes.controllers.mortals import DEATHS, SITES
from tests.kubernetes.image.recipes import REPOSITORY

SCENARIOS: Final = tuple(
    f"tests/kubernetes/controllers/test_{name}.py"
    for name in ("clusters", "secured", "logs", "archive")
)
WORKERS_COUNT: Final = 2
RUN_S: Final = 3_600.0
"""A hang bound of one run of all scenarios."""


def main() -> int:
    """Play them, report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.deaths", allow_abbrev=False)
    parser.add_argument("--period", type=int, default=5, help="a life's last write, 2 or more")
    parser.add_argument("--first", type=int, action="append", help="of these numbers alone")
    parser.add_argument("--moment", choices=[one.value for one in Moment], action="append")
    options, arguments = parser.parse_known_args()
    if options.period < 2:
        parser.error("--period is 2 or more: a life of one write gets nowhere")
    binaries.main()
    firsts = options.first or range(1, options.period + 1)
    moments = options.moment or [one.value for one in Moment]
    runs = [f"{options.period}:{first}:{moment}" for moment in moments for first in firsts]
    with tempfile.TemporaryDirectory(prefix="duramen-deaths-") as folder:
        sites = Path(folder) / "sites"
        failed = [run for run in runs if not play(run, sites, arguments or SCENARIOS)]
        written, died = read_sites(sites)
    return report(runs, failed, written, died)


def play(run: str, sites: Path, chosen: Sequence[str]) -> bool:
    """One run of the scenarios; whether all passed."""
    print(f"\n== {DEATHS}={run}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "kubernetes and not night"]
    spread = ["-n", str(WORKERS_COUNT), "--dist", "loadfile"]
    environment = {**os.environ, DEATHS: run, SITES: str(sites)}
    done = subprocess.run(
        [*command, *spread, *chosen], cwd=REPOSITORY, env=environment, check=False, timeout=RUN_S
    )
    return done.returncode == 0


def read_sites(sites: Path) -> tuple[set[str], dict[str, int]]:
    """What was written in all runs, and how many operators died at each."""
    written: set[str] = set()
    died: dict[str, int] = {}
    for line in sites.read_text(encoding="utf-8").splitlines() if sites.exists() else ():
        kind, _, site = line.partition(" ")
        if kind == "site":
            written.add(site)
        else:
            died[site] = died.get(site, 0) + 1
    return written, died


def report(
    runs: Sequence[str], failed: Sequence[str], written: set[str], died: dict[str, int]
) -> int:
    """Print it all; returns the exit status."""
    spared = sorted(written - died.keys())
    print(f"\n{len(runs)} runs, {len(failed)} failed: {', '.join(failed) or 'none'}")
    print(f"{sum(died.values())} operators died, at {len(died)} of {len(written)} different writes")
    for site in spared:
        print(f"  nobody died at {site}")
    return int(bool(failed or spared))


if __name__ == "__main__":
    sys.exit(main())
