"""The archive job killed at every named step: no record missing or twice, and no mark unproved.

A run is killed (SIGKILL: the driver, or on Spark a Python worker), what it left is judged, and the
next run has to complete. Two runs at once, and copies that are damaged, are killed too.
Source: docs/archive.md "What a run does", docs/testing.md "Real processes and disks";
`tests/spark/kill_points` has the trigger.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duramen.ids import LogId
from duramen.wire.cold.manifest import encode_manifest
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.spark.archive_world import NAMESPACE, World, fill_briefly
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]

KILL_POINTS = Path(__file__).parent / "kill_points"
SMALL = ["--part-size", "4KiB", "--read-size", "1KiB", "--threads", "4"]
"""Several parts and several reads of each segment; both segments fit into one batch of four slots,
and are finished one after the other."""


class Case:
    """A log of its own to be archived, and the trigger."""

    def __init__(self, world: World, name: str, points: str, marks: Path) -> None:
        self.world = world
        self.name = name
        self.log_id: LogId = run(fill_briefly(world.cluster, name))
        marks.mkdir()
        self.marks = marks
        path = os.pathsep.join([str(KILL_POINTS), os.environ.get("PYTHONPATH", "")])
        self.env = {
            "PYTHONPATH": path,
            "DURAMEN_KILL_POINTS": points,
            "DURAMEN_KILL_MARKS": str(marks),
        }

    @property
    def selector(self) -> str:
        return f"{NAMESPACE}/{self.name}"

    def archive(self, *flags: str, **more: Any) -> tuple[int, dict[str, Any]]:
        return self.world.archive(self.selector, *SMALL, *flags, **more)

    def judge(self) -> None:
        """What must hold at any moment: manifests have files, marks have manifests."""
        manifests = {m.epoch: m for m in self.world.list_manifests(self.log_id)}
        for segment in self.world.list_segments(self.log_id):
            if segment.cold_copy is not None:
                manifest = manifests[segment.epoch]
                digest = hashlib.sha256(encode_manifest(manifest)).hexdigest()
                assert segment.cold_copy.attempt == manifest.attempt
                assert segment.cold_copy.manifest_sha256 == digest
        archived = self.world.read_archive(self.log_id)
        numbers = [record.seq_num for record in archived]
        assert numbers == sorted(set(numbers)), "twice"

    def judge_whole(self) -> None:
        """Every closed segment is marked, and the archive is the log up to there."""
        self.judge()
        segments = self.world.list_segments(self.log_id)
        assert len(segments) == 2 and all(one.cold_copy is not None for one in segments)
        archived = self.world.read_archive(self.log_id)
        assert archived == self.world.read_log(self.name)[: len(archived)]
        last = segments[-1]
        assert last.totals is not None and last.start_seq_num is not None
        assert len(archived) == last.start_seq_num + last.totals.record_count

    def judge_swept(self) -> None:
        """After a sweep the archive of the log has what its manifests name, and no more."""
        code, _ = self.archive("--orphan-age", "0s")
        assert code == 0
        manifests = self.world.list_manifests(self.log_id)
        named = {manifest.path_of(part) for manifest in manifests for part in manifest.files}
        mine = [path for path in self.world.list_files() if f"/{self.log_id:08x}/" in path]
        assert {path for path in mine if not path.endswith(".json")} == named
        assert not list((self.world.cold / ".incoming").iterdir())


def make(world: World, tmp_path: Path, name: str, points: str) -> Case:
    return Case(world, name, points, tmp_path / "marks")


@pytest.mark.parametrize(
    "point",
    [
        "chosen",
        pytest.param("tasks handed out", marks=pytest.mark.night),
        pytest.param("part begun", marks=pytest.mark.night),
        "part growing",
        pytest.param("part written", marks=pytest.mark.night),
        "part committed",
        pytest.param("part compared", marks=pytest.mark.night),
        pytest.param("part read back", marks=pytest.mark.night),
        "tasks done",
        pytest.param("manifest made", marks=pytest.mark.night),
        "manifest put",
        "segment marked",
    ],
)
def test_killed_while_archiving(world: World, tmp_path: Path, point: str) -> None:
    case = make(world, tmp_path, point.replace(" ", "-"), f"{point}=kill")
    code, _ = case.archive(env=case.env)
    assert code == -signal.SIGKILL
    case.judge()
    code, report = case.archive()
    assert (code, report["failures"], report["mismatches"]) == (0, [], [])
    assert ("adopted" in report["segments"]) == (point == "manifest put")
    case.judge_whole()
    case.judge_swept()


@pytest.mark.parametrize(
    "point", [pytest.param("copy looked at", marks=pytest.mark.night), "copy confirmed"]
)
def test_killed_while_looking_again(world: World, tmp_path: Path, point: str) -> None:
    case = make(world, tmp_path, point.replace(" ", "-"), f"{point}=kill")
    code, _ = case.archive("--recheck-after", "0s", env=case.env)
    assert code == -signal.SIGKILL
    case.judge()
    code, _ = case.archive("--recheck-after", "0s")
    assert code == 0
    case.judge_whole()
    copies = [segment.cold_copy for segment in world.list_segments(case.log_id)]
    assert all(copy is not None and copy.is_rechecked for copy in copies)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("copy refuted", marks=pytest.mark.night),
        pytest.param("tasks done", marks=pytest.mark.night),
        "manifest put",
        pytest.param("segment marked", marks=pytest.mark.night),
        None,
    ],
)
def test_a_broken_copy_is_archived_anew(world: World, tmp_path: Path, point: str | None) -> None:
    case = make(world, tmp_path, f"broken-{point}".replace(" ", "-"), f"{point}=kill")
    assert case.archive()[0] == 0
    manifest = world.list_manifests(case.log_id)[0]
    (world.cold / manifest.path_of(manifest.files[0])).unlink()
    files = world.list_files()
    code, report = case.archive("--recheck-after", "0s", "--orphan-age", "1h", env=case.env)
    if point is not None:
        assert code == -signal.SIGKILL
        code, report = case.archive()
    if point == "segment marked":
        assert code == 0 and report["segments"] == {}
    else:
        assert code == 1 and len(report["mismatches"]) == 1
        assert report["segments"] == {"archived": 1}
    case.judge_whole()
    assert {*files} <= {*world.list_files()}, "nothing is removed by its name"
    world.retain(case.selector, "--delay", "0s", "--remove")
    case.judge_whole()
    case.judge_swept()


def test_files_of_a_dead_run_are_checked_before_they_are_adopted(
    world: World, tmp_path: Path
) -> None:
    case = make(world, tmp_path, "half-adopted", "manifest put=kill")
    assert case.archive(env=case.env)[0] == -signal.SIGKILL
    (manifest,) = world.list_manifests(case.log_id)
    victim = world.cold / manifest.path_of(manifest.files[0])
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    code, report = case.archive()
    assert code == 1 and len(report["mismatches"]) == 1 and "other bytes" in report["mismatches"][0]
    assert report["segments"] == {"archived": 2}
    case.judge_whole()
    world.retain(case.selector, "--delay", "0s", "--remove")
    case.judge_swept()


@pytest.mark.parametrize("is_loser_killed", [False, True])
def test_of_two_runs_at_once_one_wins(world: World, tmp_path: Path, is_loser_killed: bool) -> None:
    points = "manifest made=stop" + (";race lost=kill" if is_loser_killed else "")
    case = make(world, tmp_path, f"raced-{is_loser_killed}".lower(), points)
    slow = subprocess.Popen(
        world.command(case.selector, *SMALL),
        env={**os.environ, **case.env},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_in_thread(
            (case.marks / "manifest-made").exists, HANG_S, "the slow run to have written files"
        )
        code, report = case.archive()
        assert code == 0 and report["segments"]["archived"] >= 1
        slow.send_signal(signal.SIGCONT)
        told, _ = slow.communicate(timeout=HANG_S)
    finally:
        slow.kill()
        slow.wait()
    if is_loser_killed:
        assert slow.returncode == -signal.SIGKILL
    else:
        assert '"lost race":' in told
        folders = {path.rpartition("/")[0] for path in world.list_files() if path.endswith("quet")}
        won = {m.path_of(m.files[0]).rpartition("/")[0] for m in world.list_manifests(case.log_id)}
        assert {path for path in folders if f"/{case.log_id:08x}/" in path} == won
    case.judge_whole()
    case.judge_swept()


@pytest.mark.parametrize(
    ("point", "is_driver", "tries"),
    [
        pytest.param("part committed", False, 2, marks=pytest.mark.night),
        pytest.param("part growing", False, 1, marks=pytest.mark.night),
        ("tasks done", True, 1),
    ],
)
def test_killed_on_spark(
    world: World,
    tmp_path: Path,
    spark_env: dict[str, str],
    *,
    point: str,
    is_driver: bool,
    tries: int,
) -> None:
    case = make(world, tmp_path, f"spark-{point.replace(' ', '-')}", f"{point}=kill")
    submit = spark_env["PYSPARK_SUBMIT_ARGS"].replace("local[2,2]", f"local[2,{tries}]")
    env = {**spark_env, **case.env, "PYSPARK_SUBMIT_ARGS": submit}
    code, report = case.archive(runner="spark", env=env)
    assert (case.marks / point.replace(" ", "-")).exists()
    case.judge()
    if is_driver:
        assert code == -signal.SIGKILL
    elif tries == 1:
        assert code == 1 and report["failures"], report
    else:
        assert code == 0, report
    assert case.archive()[0] == 0
    case.judge_whole()
    case.judge_swept()
