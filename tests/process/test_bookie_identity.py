"""`duramen-bookie` on the wrong disks: it ends by itself, non-zero, with one sentence on stderr.

A real process and a real ZooKeeper; every case of the states is in `tests/component/test_identity`.
Source: docs/bookie.md "Identity".
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from duramen.cluster.layout import pick_free_port
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread
from tests.zookeeper_fixture import running_zookeeper

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

BOOKIE = [sys.executable, "-m", "duramen_bookie.main"]


class Start:
    """The command line of one bookie with a journal of its own and two ledger directories."""

    def __init__(self, root: Path, zookeeper: str) -> None:
        self.paths = {name: root / name for name in ("data", "journal", "first", "second")}
        self.admin_port = pick_free_port()
        self._zookeeper = zookeeper

    def directories(self) -> list[str]:
        _, journal, first, second = [str(path) for path in self.paths.values()]
        return ["--journal-dir", journal, "--ledger-dir", first, "--ledger-dir", second]

    def command(self, *more: str) -> list[str]:
        return [
            *BOOKIE, "--cluster", "c", "--id", "b1", "--zookeeper", self._zookeeper,
            "--data-port", str(pick_free_port()), "--admin-port", str(self.admin_port),
            "--security", "none", "--data-dir", str(self.paths["data"]), *self.directories(), *more,
        ]  # fmt: skip

    def refused(self, *more: str) -> str:
        """The last line on stderr of a start that ends by itself."""
        done = subprocess.run(
            self.command(*more), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1, done.stderr
        return done.stderr.splitlines()[-1]

    def fsck(self) -> subprocess.CompletedProcess[str]:
        command = [*BOOKIE, "fsck", str(self.paths["data"]), *self.directories(), "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    @contextmanager
    def running(self, *more: str) -> Iterator[None]:
        """A bookie that is ready; it is told to stop at the end and must do so cleanly."""
        with subprocess.Popen(self.command(*more), stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_in_thread(lambda: self._is_ready(process), HANG_S, "the bookie to be ready")
                yield
            finally:
                process.terminate()
                _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors

    def incarnation(self) -> str:
        return str(json.loads((self.paths["data"] / "cookie.json").read_bytes())["incarnation"])

    def _is_ready(self, process: subprocess.Popen[str]) -> bool:
        assert process.poll() is None, "the bookie ended"
        try:
            return httpx.get(f"http://127.0.0.1:{self.admin_port}/readyz").status_code == 200
        except httpx.TransportError:
            return False


def test_a_lost_disk_ends_the_process_until_a_new_incarnation_is_accepted(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        start = Start(tmp_path / "b1", zookeeper.address)
        with start.running():
            busy = start.fsck()
            assert busy.returncode == 2 and "held by another process" in busy.stderr
        before = start.incarnation()
        clean = start.fsck()
        assert (clean.returncode, json.loads(clean.stdout)["status"]) == (0, "clean")

        kept = start.paths["journal"].rename(tmp_path / "kept")
        start.paths["journal"].mkdir()
        sentence = start.refused()
        assert f"b1 cannot start: DiskLost: {start.paths['journal']} holds nothing" in sentence
        assert "DiskLost" in start.refused("--accept-new-incarnation"), "the others are not empty"
        assert not list(start.paths["journal"].iterdir())
        start.paths["journal"].rmdir()
        kept.rename(start.paths["journal"])
        with start.running():
            assert start.incarnation() == before, "the disk was found again"

        shutil.rmtree(tmp_path / "b1")
        assert "DiskLost" in start.refused()
        with start.running("--accept-new-incarnation"):
            assert start.incarnation() != before
        with start.running("--accept-new-incarnation"):
            pass  # as a supervisor does it, which never changes a command line
