"""`duramen run` as a stranger uses it: the demo, a clean stop, a second start on the same data.

Through the command line only, as the README tells it. Each test ends with a stop that must be clean
and leave no process. Source: README.md "Two commands", docs/protocol/admin.md "cluster.json".
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.drain_figures import used_cpu_s
from tests.process.times import HANG_S, READY_WORK_COUNT
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

_ROLES = ["zookeeper", "bookie", "bookie", "bookie", "sequencer", "writeproxy", "readproxy"]


FRESH_CLUSTER_BYTES_MAX = 150_000_000
"""Of three bookies on a laptop, before anything was written."""


def used_disk_bytes(folder: Path) -> int:
    """What the files below a folder take of the disk, as `du` counts it."""
    sizes = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _duramen(
    cluster: LocalCluster, *arguments: str, **more: Any
) -> subprocess.CompletedProcess[Any]:
    command = [sys.executable, "-m", "duramen.cli.main", *arguments, "--data", str(cluster.folder)]
    return subprocess.run(command, capture_output=True, timeout=90, check=False, **more)


def test_the_demo_carries_a_real_file_and_compares_it(tmp_path: Path) -> None:
    """The default file: ≥ 10 MB and ≥ 300,000 records, equal hashes, numbers 0 … n − 1."""
    command = [sys.executable, "-m", "duramen.cli.main", "run", "--demo", "--once", "--json"]
    command += ["--data", str(tmp_path / "c"), "--base-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    demo = next(event for event in events if event["event"] == "demo")
    assert demo["file_bytes"] >= 10_000_000
    assert demo["append"]["records"] >= 300_000
    assert demo["read"]["records"] == demo["append"]["records"]
    assert demo["is_gapless"] is True
    source = (tmp_path / "c" / "demo" / "stdlib.txt").read_bytes()
    assert hashlib.sha256(source).hexdigest() == demo["sha256_out"]


@contextlib.contextmanager
def _costing_work() -> Iterator[list[float]]:
    """What one fixed piece of an interpreter's work costs meanwhile, in seconds of CPU: on a slower
    or fuller machine it costs more, as a start does, and nothing of the product is in it.
    """
    source = inspect.getsource(typing)
    costs_s: list[float] = []
    is_over = threading.Event()

    def work() -> None:
        while not costs_s or not is_over.wait(0.2):
            began_s = time.thread_time()
            compile(source, "typing", "exec", dont_inherit=True)
            costs_s.append(time.thread_time() - began_s)

    working = threading.Thread(target=work)
    working.start()
    try:
        yield costs_s
    finally:
        is_over.set()
        working.join()


def test_a_second_start_serves_what_was_written(tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(5_000))
    with _costing_work() as costs_s, contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(tmp_path / "c"))
        used_s = used_cpu_s(cluster)
        started = stack.pop_all()
    with started:
        work_count = sum(used_s.values()) / statistics.median(costs_s)
        print(f"ready after {sum(used_s.values()):.1f} s of CPU, {work_count:.0f} works: {used_s}")
        assert work_count < READY_WORK_COUNT
        assert [p["role"] for p in cluster.state()["processes"]] == _ROLES
        racks = [p["rack"] for p in cluster.state()["processes"] if p["role"] == "bookie"]
        assert len(dict.fromkeys(racks)) == 3
        taken_bytes = used_disk_bytes(cluster.folder)
        assert taken_bytes <= FRESH_CLUSTER_BYTES_MAX, "before the first record"
        run(create_log(cluster, "kept", {}))
        done = _duramen(cluster, "append", "default/kept", "-", "--json", input=lines)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["records"] == 5_000
    pids = [p["pid"] for p in cluster.state()["processes"]]
    assert pids == [None] * len(_ROLES), "cluster.json names a process after the stop"
    with running_cluster(tmp_path / "c") as again:
        assert _duramen(again, "read", "default/kept").stdout == lines
        done = _duramen(again, "append", "default/kept", "-", "--json", input=b"more\n")
        assert json.loads(done.stdout)["first_seq_num"] == 5_000
        assert _duramen(again, "read", "default/kept").stdout == lines + b"more\n"


def test_a_dead_process_is_started_again_and_the_file_stays_true(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "c") as cluster:
        before = cluster.process("writeproxy-0")["pid"]
        cluster.kill("writeproxy-0")
        wait_in_thread(
            lambda: cluster.process("writeproxy-0")["pid"] not in (None, before),
            HANG_S,
            "a restart",
        )
        wait_in_thread(lambda: _answers(cluster), HANG_S, "the write proxy")
        for process in cluster.state()["processes"]:
            os.kill(process["pid"], 0)


def _answers(cluster: LocalCluster) -> bool:
    done = _duramen(cluster, "log", "list", "default")
    return done.returncode == 0
