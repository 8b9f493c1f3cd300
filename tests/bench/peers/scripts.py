"""The peers' scripts: a folder of somebody else's that starts real peers and measures them.

`install.sh PEER` builds one below a scratch folder, `group.sh PEER D2` starts three of its servers,
plays its workloads once, appends a row for each to a file and stops the servers; `PEER.sh stop`
ends what a broken run left. Nothing of theirs lies in this tree: without the folder there is
nothing to be measured beside.

Called by `python -m tests.bench.peers`. Source: docs/benchmarks.md "Beside real peers".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bench.cluster import BenchError

NEEDED: Final = ("group.sh", "install.sh")
PROMISE: Final = "D2"
"""Acknowledged once a quorum has synced it, as ours is."""

_INSTALL_S: Final = 1_200.0
_START_S: Final = 300.0
_WORKLOADS_MAX: Final = 40
_STOP_S: Final = 60.0


class PeerScripts:
    """Such a folder, and a scratch folder for what it builds, its data and its logs."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder.absolute(), scratch.absolute()
        self._lock = self.scratch / "lock"

    def explain_absence(self, peers: Sequence[str]) -> str:
        """What is not there; "": all of it is."""
        needed = [*NEEDED, *(f"{peer}.sh" for peer in peers)]
        missing = [name for name in needed if not (self.folder / name).is_file()]
        return f"no {', '.join(missing)} in {self.folder}" if missing else ""

    def install(self, peer: str) -> None:
        """Build it, once for a scratch folder.

        Raises:
            BenchError: the script failed, or took too long.
        """
        stamp = self.scratch / f"installed-{peer}"
        if not stamp.exists():
            self._run(["./install.sh", peer], {}, _INSTALL_S)
            stamp.touch()

    def play(self, peer: str, seconds: int, rows: Path) -> None:
        """Start it, measure it, stop it.

        Args:
            seconds: of each workload.
            rows: its results are appended there.

        Raises:
            BenchError: it took too long. A workload that failed is a row less.
        """
        variables = {"SECS": str(seconds), "REPS": "1", "RES": str(rows)}
        try:
            limit_s = _START_S + _WORKLOADS_MAX * 2 * seconds
            self._run(["./group.sh", peer, PROMISE], variables, limit_s)
        finally:
            self._run([f"./{peer}.sh", "stop"], {}, _STOP_S)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock that the scripts hold while they measure."""
        self._lock.touch()
        with self._lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _run(self, command: Sequence[str], variables: dict[str, str], limit_s: float) -> None:
        environment = {
            **os.environ, "PEERS": str(self.scratch), "LOCK": str(self._lock), **variables,
        }  # fmt: skip
        log = self.scratch / "scripts.log"
        with log.open("ab") as output, subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as child:  # fmt: skip
            try:
                status = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise BenchError(f"{' '.join(command)} did not end in {limit_s:.0f} s") from None
            finally:
                if child.poll() is None:
                    # A client of a peer would go on.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGTERM)
        if status:
            raise BenchError(f"{' '.join(command)} ended with {status}: see {log}")
