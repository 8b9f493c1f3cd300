"""`make test-kubernetes`: builds a real Kubernetes and runs every tier that this machine allows.

First the API server and the controllers with fake nodes, which need Go to be built and no root;
then real nodes with pods of the images, which need root, Debian's packages and cgroup v1: five of
them, nine at night. At the end stands what ran, for how long, and what was left out and why. Where
everything is required, as in CI, whatever is left out fails, but for real nodes on cgroup v2. What
is marked `night` runs with DURAMEN_TIER=night, which is how `make night` calls this. `--only` runs
one part; other arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.chart import checkov, promtool
from tests.kubernetes.cluster import binaries
from tests.kubernetes.image import recipes
from tests.requirements import is_everything_required
from tests.tiers import Tier, read_tier, sized

HERE = Path(__file__).resolve().parent
NODES_COUNT = sized(fast=5, gate=5, night=9)
"""Three of them have bookies and ZooKeeper in the gate; the others what may run anywhere."""
_NO_TESTS_STATUS = 5
_END_S = 20.0
_ROOM_BYTES = 20 << 30


class Tiers:
    """What ran and what did not, and the status that follows."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._pytest = [sys.executable, "-m", "pytest", "-q", *arguments]
        self._lines: list[str] = []
        self.status = 0

    def run(self, what: str, *chosen: str, within: Sequence[str] = ()) -> None:
        """Run the tests that are chosen, by another command if one is given."""
        began = time.monotonic()
        print(f"\n== {what}", flush=True)
        command = [*within, *self._pytest, *chosen]
        with subprocess.Popen(command, cwd=recipes.REPOSITORY) as child:
            try:
                status = child.wait()
            except KeyboardInterrupt:
                # The night interrupts this process alone. Killed, real nodes leave their folder.
                child.terminate()
                child.wait(_END_S)
                raise
        verdict = {0: "passed", _NO_TESTS_STATUS: "no test was chosen"}.get(status, "FAILED")
        self._lines.append(f"{what}: {verdict}, {time.monotonic() - began:.0f} s")
        if status not in (0, _NO_TESTS_STATUS):
            self.status = 1

    def leave_out(self, what: str, reason: str) -> None:
        """Say at the end that something did not run, and why; where all is required it fails."""
        self._lines.append(f"{what}: LEFT OUT: {reason}")
        if reason != binaries.NO_CGROUPS:
            self.status = self.status or int(is_everything_required())

    def report(self) -> None:
        """Print it all."""
        print("\n" + "\n".join(self._lines), flush=True)


def main() -> int:
    """Build, run, report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", allow_abbrev=False)
    parser.add_argument("--only", choices=("api", "kubelet"), help="one part of both")
    options, arguments = parser.parse_known_args()
    tiers = Tiers(arguments)
    reason = binaries.reason_no_go()
    if reason is None:
        binaries.main()
    reason = binaries.reason_missing((*binaries.COMMANDS, *binaries.CONTROLLERS)) and reason
    if reason is not None:
        tiers.leave_out("Everything", reason)
    else:
        if options.only != "kubelet":
            _run_api(tiers)
        if options.only != "api":
            _run_nodes(tiers)
    tiers.report()
    return tiers.status


def choose_marks(*wanted: str) -> list[str]:
    """The option that chooses tests with these marks; those of the night in the night alone."""
    marks = [*wanted, *([] if read_tier() is Tier.NIGHT else ["not night"])]
    return ["-m", " and ".join(marks)] if marks else []


def _run_api(tiers: Tiers) -> None:
    # What only the chart's tests ask; where it cannot be had they skip, or fail where they may not.
    promtool.main()
    checkov.main()
    # Each worker has clusters of its own, which compute while its tests wait.
    spread = ["-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile"]
    tiers.run(
        "API server, controllers and fake nodes",
        *(f"{HERE}", f"--ignore={HERE / 'kubelet'}", *choose_marks("kubernetes"), *spread),
    )


def _run_nodes(tiers: Tiers) -> None:
    what = f"{NODES_COUNT} real nodes"
    reason = binaries.reason_no_nodes() or recipes.reason_missing() or _reason_no_room()
    if reason is not None:
        tiers.leave_out(what, reason)
        return
    images = [f"--image={recipes.build(name)}" for name in recipes.RECIPES]
    cluster = [sys.executable, "-m", "tests.kubernetes.cluster", "--tier=kubelet"]
    within = [*cluster, f"--nodes={NODES_COUNT}", *images, "--"]
    tiers.run(what, f"{HERE / 'kubelet'}", *choose_marks(), within=within)


def _reason_no_room() -> str | None:
    """The images, their unpacked layers, and the bookies of all nodes."""
    found = os.statvfs(recipes.REPOSITORY)
    free = found.f_bavail * found.f_frsize
    return (
        None
        if free > _ROOM_BYTES
        else f"{free >> 30} GiB of disk are free, {_ROOM_BYTES >> 30} needed"
    )


if __name__ == "__main__":
    sys.exit(main())
