"""`duramen verify` against a running cluster: clean, then exactly what was done to the disks.

Real processes and files: a bookie is stopped, a byte of one entry changed, or its disks wiped. What
is compared with what: `tests/unit/test_replica_check.py`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.ids import EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.wire.entry import HEADER_BYTES, MAGIC, read_entry_info
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.copies import close_segment
from tests.process.history import History
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


def verify(cluster: LocalCluster) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "duramen.cli.main", "verify", "default/checked", "--json"]
    command += ["--data", str(cluster.folder)]
    done = subprocess.run(command, capture_output=True, timeout=90, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def findings(found: dict[str, Any]) -> list[tuple[int, str, str, list[list[int]]]]:
    return [(f["epoch"], f["fault"], f["bookie"], f["ranges"]) for f in found["findings"]]


async def fill(cluster: LocalCluster) -> None:
    """Six entries in a segment that is closed, four in the open one."""
    client = RestClient(cluster.state()["write_url"])
    history = History("checked", record_bytes=100)
    try:
        for count in (6, 4):
            for _ in range(count):
                assert await history.append(client), history.codes
            if count == 6:
                await close_segment(cluster, "checked")
    finally:
        await client.close()


def stop(cluster: LocalCluster, node_id: str) -> Path:
    """Stop a bookie in peace; returns where its files are."""
    folder = Path(cluster.process(node_id)["data_dir"])
    cluster.send(node_id, signal.SIGTERM)
    wait_in_thread(lambda: not (folder / "dirty").exists(), HANG_S, "a clean stop")
    wait_in_thread(lambda: cluster.process(node_id)["pid"] is None, HANG_S, "the end of the bookie")
    return folder


def start(cluster: LocalCluster, node_id: str, *more: str) -> None:
    cluster.revive(node_id, wrap=lambda command: [*command, *more])
    cluster.wait_ready(node_id)


def flip(folder: Path, ledger_id: LedgerId, entry_id: EntryId) -> None:
    """Change a byte of every copy of an entry in the files of a stopped bookie."""
    count = 0
    for path in [*folder.rglob("*.dj"), *folder.rglob("*.de")]:
        data = path.read_bytes()
        at = data.find(MAGIC)
        while at >= 0:
            info = read_entry_info(data[at : at + HEADER_BYTES])
            if (info.ledger_id, info.entry_id) == (ledger_id, entry_id):
                with path.open("r+b") as file:
                    file.seek(at + HEADER_BYTES + 5)
                    file.write(bytes([data[at + HEADER_BYTES + 5] ^ 0x40]))
                count += 1
            at = data.find(MAGIC, at + 4)
    assert count, "the entry is not there"


def test_verify_names_exactly_what_is_wrong_where(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--no-restart") as cluster:
        log_id = LogId(int(run(create_log(cluster, "checked", {}))))
        run(fill(cluster))
        code, found = verify(cluster)
        assert (code, found["findings"]) == (0, []), found
        assert (found["entries"], found["copies"], found["good_copies"]) == (10, 30, 30)
        assert [s["state"] for s in found["segments"]] == ["CLOSED", "OPEN"]
        # The auditor would mend what is damaged before it can be found.
        cluster.kill("sequencer-0")

        flip(stop(cluster, "bookie-1"), ledger_of(log_id, Epoch(1)), EntryId(3))
        code, found = verify(cluster)
        assert code == 1 and [f[:3] for f in findings(found)] == [
            (1, "unreachable", "bookie-1"), (2, "unreachable", "bookie-1"),
        ]  # fmt: skip
        start(cluster, "bookie-1")
        code, found = verify(cluster)
        assert (code, findings(found)) == (1, [(1, "damaged", "bookie-1", [[3, 3]])])
        assert found["good_copies"] == 29

        folder = stop(cluster, "bookie-2")
        before = json.loads((folder / "cookie.json").read_bytes())["incarnation"]
        shutil.rmtree(folder)
        start(cluster, "bookie-2", "--accept-new-incarnation")
        code, found = verify(cluster)
        assert code == 1 and findings(found)[1] == (1, "missing", "bookie-2", [[0, 5]]), found
        assert all(
            f["incarnation"] == before for f in found["findings"] if f["bookie"] == "bookie-2"
        ), "the copies of the life that is over"
