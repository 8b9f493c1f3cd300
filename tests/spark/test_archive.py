"""A1: what the archive job wrote is the log, record for record; and what a run does and leaves.

Runs of the job against a real cluster, in threads and on Spark. Kills: `test_archive_kills`.
Source: docs/archive.md "What a run does", invariant A1.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from duramen.ids import LogId
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.spark.archive_world import World, fill_log, truncate_log

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


def fill(world: World, name: str, *, rolls: int = 2, tiering: str = "copy") -> LogId:
    return run(fill_log(world.cluster, name, rolls=rolls, tiering=tiering))


def assert_archived(world: World, name: str, log_id: LogId, count: int) -> None:
    """Closed segments are marked, and the archive is the log up to there."""
    segments = world.list_segments(log_id)
    manifests = world.list_manifests(log_id)
    assert len(segments) == len(manifests) == count
    for segment, manifest in zip(segments, manifests, strict=True):
        copy = segment.cold_copy
        assert copy is not None and copy.attempt == manifest.attempt
        assert copy.size_bytes == manifest.size_bytes
        assert (manifest.epoch, manifest.totals) == (segment.epoch, segment.totals)
    archived = world.read_archive(log_id)
    assert archived == world.read_log(name)[: len(archived)]
    totals = segments[-1].totals
    assert totals is not None and segments[-1].start_seq_num is not None
    assert len(archived) == segments[-1].start_seq_num + totals.record_count


def test_every_kind_of_record_comes_back(world: World) -> None:
    log_id = fill(world, "kinds", rolls=3)
    flags = ["--part-size", "256KiB", "--recheck-after", "0s", "--recheck-files"]
    code, report = world.archive("default/kinds", *flags)
    assert (code, report["mismatches"], report["failures"]) == (0, [], [])
    assert report["segments"] == {"archived": 3} and report["rechecked"] == 3
    assert_archived(world, "kinds", log_id, 3)
    first = world.list_manifests(log_id)[0]
    assert len(first.files) > 2, "a large segment is split"
    assert first.row_count > first.totals.record_count, "control entries are archived too"
    assert report["records"] == len(world.read_archive(log_id))
    assert all(
        segment.cold_copy.is_rechecked
        for segment in world.list_segments(log_id)
        if segment.cold_copy
    )
    again, report = world.archive("default/kinds", *flags)
    assert (again, report["segments"], report["skipped"]) == (0, {}, {"archived before": 3})


def test_on_spark_too(world: World, spark_env: dict[str, str]) -> None:
    log_id = fill(world, "sparks", rolls=2)
    metrics = world.cold.parent / "archive.prom"
    flags = ["--part-size", "256KiB", "--metrics-file", str(metrics)]
    code, report = world.archive("default/sp*", *flags, runner="spark", env=spark_env)
    assert (code, report["segments"]) == (0, {"archived": 2}), report
    assert_archived(world, "sparks", log_id, 2)
    lines = metrics.read_text().splitlines()
    assert f"duramen_archive_run_records {report['records']}" in lines
    assert "duramen_archive_lag_seconds 0" in lines


def test_striped_and_truncated_logs(world: World) -> None:
    """E > Qw: no bookie has all of it. A trim point hides, and removes nothing."""
    replication = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
    url = world.cluster.state()["write_url"]
    log_id = run(fill_log(world.cluster, "striped", rolls=3, replication=replication))
    before = world.read_log("striped")
    segments = world.list_segments(log_id)
    assert segments[1].start_seq_num is not None
    within = segments[1].start_seq_num + 2
    run(truncate_log(url, "striped", f"seq:{within}"))
    code, report = world.archive("default/striped", "--part-size", "256KiB")
    assert (code, report["segments"], report["skipped"]) == (0, {"archived": 2}, {"truncated": 1})
    assert world.list_segments(log_id)[0].cold_copy is None
    archived = world.read_archive(log_id)
    assert archived == before[segments[1].start_seq_num :][: len(archived)] and archived
    assert world.read_log("striped")[0].seq_num == within
    code, report = world.archive("default/striped", "--include-truncated", "--part-size", "256KiB")
    assert (code, report["segments"]) == (0, {"archived": 1})
    assert world.read_archive(log_id) == before[: len(world.read_archive(log_id))]


def test_on_a_laptop_nothing_has_to_be_said(world: World) -> None:
    """`duramen archive run` finds ZooKeeper and the cold store of a `duramen run`."""
    log_id = fill(world, "laptop", rolls=1)
    here = World(world.cluster, world.cluster.folder / "cold")
    command = [sys.executable, "-m", "duramen.cli.main", "archive", "run", "default/laptop"]
    command += ["--data", str(world.cluster.folder), "--runner", "threads"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    assert lines[0].startswith("default/laptop e1  archived  ") and "0 mismatches" in lines[-1]
    assert_archived(here, "laptop", log_id, 1)
    done = subprocess.run(
        [*command[:-1], "threads", "--part-size", "many"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 2 and "is no size" in done.stderr
