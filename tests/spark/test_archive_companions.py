"""Verify, restore, compact and export against a real cluster, by the commands that people type.

The archive is written by the job, from bookies; what is restored is read through proxies. Details
are tested without a cluster: tests/component/test_archive_companions.py.
Source: docs/archive.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.runtime.cold import find_manifest, open_cold_store
from duramen.wire.cold.paths import segment_folder
from duramen.wire.record_batch import BatchProducer, encode_batch
from tests.process.cluster import run
from tests.process.times import HANG_S
from tests.spark.archive_world import NAMESPACE, World, fill_log

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]


def call(
    world: World, *words: str, env: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a command."""
    state = world.cluster.state()
    place = ["--zookeeper", state["zookeeper"], "--cluster", state["cluster"]]
    done = subprocess.run(
        [
            sys.executable, "-m", "duramen_spark.main", *words, *place,
            "--cold-store", world.cold_url, "--json",
        ],
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def archive(world: World, name: str) -> LogId:
    """A log with every kind of record, archived up to the open segment."""
    log_id = run(fill_log(world.cluster, name, rolls=4))
    code, report = world.archive(
        f"default/{name}", "--part-size", "256KiB", "--recheck-after", "0s"
    )
    assert (code, report["segments"]) == (0, {"archived": 4}), report
    return log_id


def flip_byte(world: World, log_id: LogId, epoch: int) -> Path:
    """Damage the first row group of a segment's first file."""
    manifest = world.list_manifests(log_id)[epoch - 1]
    path = world.cold / manifest.path_of(manifest.files[0])
    data = bytearray(path.read_bytes())
    data[manifest.files[0].row_groups[0].offset + 5] ^= 1
    path.write_bytes(data)
    return path


def test_a_restored_log_is_the_log(world: World) -> None:
    log_id = archive(world, "whole")
    original = world.read_log("whole")
    archived = world.read_archive(log_id)
    code, report = call(world, "restore", "default/whole", "--as", "default/again")
    assert (code, report["restored"], report["records"]) == (0, True, len(archived))
    restored = world.read_log("again")
    assert restored == original[: len(archived)] == archived
    code, report = call(world, "restore", "default/whole", "--as", "default/again")
    assert (code, report["restored"]) == (0, False), "once more is nothing"
    run(check_alive(world, "again", len(archived)))
    # The restored log is archived like any other: bookies hold what its nodes say.
    code, report = world.archive("default/again", "--recheck-after", "0s")
    assert (code, report["mismatches"]) == (0, []) and report["segments"]["archived"] >= 4
    assert world.read_archive(LogId(int(report["rows"][0]["log_id"])))[: len(archived)] == archived


def test_a_log_without_its_beginning(world: World) -> None:
    log_id = archive(world, "late")
    archived = world.read_archive(log_id)
    first = world.list_manifests(log_id)[0]
    shutil.rmtree(world.cold / segment_folder(world.read_uuid(), log_id, Epoch(1)))
    code, report = call(world, "restore", "default/late", "--as", "default/later")
    assert (code, report["first_epoch"], report["first_seq_num"]) == (
        0, 2, first.totals.record_count,
    )  # fmt: skip
    assert world.read_log("later") == archived[first.totals.record_count :]
    run(check_alive(world, "later", len(archived), knows_txids=False))


async def check_alive(world: World, name: str, count: int, *, knows_txids: bool = True) -> None:
    """The log goes on where the archive ended: sequence numbers, txids and producers."""
    client = RestClient(world.cluster.state()["write_url"])
    try:
        # Of its four segments the last one has the batch 2 of this producer.
        repeated = await client.append(
            NAMESPACE, name, encode_batch([b"x"] * 5, 1, producer=BatchProducer("later", 0, 2))
        )
        assert repeated.start == count - 5, "known as a duplicate"
        if knows_txids:
            with pytest.raises(DuramenError) as refused:
                await client.append(NAMESPACE, name, encode_batch([b"old"], 1, txids=[5]))
            assert refused.value.code == "condition_failed"
        appended = await client.append(NAMESPACE, name, encode_batch([b"new"], 1, txids=[7]))
        assert appended.start == count
        await client.roll_log(NAMESPACE, name)
    finally:
        await client.close()


def test_verify_compact_and_export(world: World, tmp_path: Path) -> None:
    import deltalake

    log_id = archive(world, "small")
    archived = world.read_archive(log_id)
    code, report = call(world, "verify", "default/small", "--against-bookies")
    assert (code, report["copies"]) == (0, {"whole": 4})
    path = flip_byte(world, log_id, 2)
    code, report = call(world, "verify", "default/small", "--against-bookies")
    assert (code, report["copies"]) == (1, {"whole": 3, "withdrawn": 1})
    (row,) = [row for row in report["rows"] if row["outcome"] == "withdrawn"]
    assert (row["epoch"], row["damages"][0]["row_group"]) == (2, 0)
    assert row["damages"][0]["path"] == str(path.relative_to(world.cold))
    # Archived anew from the hot copies, after the manifest that is still there was tried.
    code, report = world.archive("default/small", "--recheck-after", "0s")
    assert (code, report["segments"]) == (1, {"archived": 1})
    assert len(report["mismatches"]) == 1
    assert world.read_archive(log_id) == archived
    code, report = call(world, "compact", "default/small")
    assert (code, report["files_after"]) == (0, 1) and report["files_before"] >= 4
    check_compacted(world, log_id)
    code, report = call(world, "verify", "default/small", "--against-bookies")
    assert (code, report["copies"]) == (0, {"whole": 4})
    code, report = world.archive("default/small", "--recheck-after", "0s", "--orphan-age", "0s")
    assert (code, report["skipped"]) == (0, {"archived before": 4}), "compacted copies stay"
    table = str(tmp_path / "table")
    code, report = call(world, "export", "default/small", "--to", table)
    assert (code, report["records"]) == (0, len(archived))
    code, report = call(world, "export", "default/small", "--to", table)
    assert (code, report["records"]) == (0, 0)
    rows = deltalake.DeltaTable(table).to_pyarrow_table().sort_by("seq_num")
    assert rows["body"].to_pylist() == [record.body for record in archived]
    assert rows["txid"].to_pylist() == [record.txid for record in archived]
    code, report = call(world, "retention", "--delay", "0s")
    assert code == 0 and report["dry_run"] and report["files"] > 4
    code, report = call(world, "retention", "--delay", "0s", "--remove")
    assert (code, report["removed"]) == (0, report["files"])
    code, report = call(
        world, "restore", "default/small", "--as", "default/compacted", "--log-id", str(log_id)
    )
    assert (code, report["records"]) == (0, len(archived))
    assert world.read_log("compacted") == archived


def check_compacted(world: World, log_id: LogId) -> None:
    """Every segment's node names the shared file's attempt, and its manifest is found."""
    store = open_cold_store(world.cold_url)
    attempts = set()
    for segment in world.list_segments(log_id):
        copy = segment.cold_copy
        assert copy is not None and copy.is_rechecked
        manifest = find_manifest(
            store,
            world.read_uuid(),
            log_id,
            segment.epoch,
            attempt=copy.attempt,
            sha256=copy.manifest_sha256,
        )
        assert manifest.is_shared and manifest.totals == segment.totals
        attempts.add(copy.attempt)
    assert len(attempts) == 1


def test_on_spark_too(world: World, spark_env: dict[str, str]) -> None:
    log_id = archive(world, "sparked")
    code, report = call(world, "compact", "default/sparked", "--runner", "spark", env=spark_env)
    assert (code, report["files_after"]) == (0, 1)
    check_compacted(world, log_id)
    code, report = call(world, "verify", "default/sparked")
    assert (code, report["copies"]) == (0, {"whole": 4})
