"""The archive's jobs on a log whose segments' metadata have moved to its metadata log.

What has moved is listed and read as before; nothing changes it, and nothing of it goes while
nobody can say what its cold copy is.
Source: docs/protocol/metadata-logs.md "What may leave ZooKeeper", "Reading", "Attacks" 3 and 4.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duramen.core.flexible.segment import AnySegment
from duramen.errors import DuramenError
from duramen.ids import Epoch
from duramen.wire.cold.paths import attempt_folder, parse_path
from duramen.wire.metadata_json import encode_segment
from duramen_spark.archive.sweep import sweep
from duramen_spark.compact.driver import CompactionRun, CompactOptions
from duramen_spark.export.driver import Export, ExportReport
from duramen_spark.retention.driver import RetentionReport, RetentionRun
from duramen_spark.retention.plan import RetentionPolicy
from tests.component import archive_runs
from tests.component.archive_world import (
    CLUSTER,
    LOG,
    ArchiveWorld,
    compact,
    every_kind,
    make_world,
    released,
    run,
    run_here,
)
from tests.component.moved_segments import released as released_through
from tests.unit.cold_entries import EPOCH, SegmentBytes

COUNT = 6
THROUGH = 4
EVERYTHING: dict[str, Any] = {"drops_truncated": True, "drops_deleted": True}


class Rows:
    """A table that counts its rows."""

    def __init__(self) -> None:
        self.epoch = self.count = 0

    def read_epoch(self, _key: str) -> int:
        return self.epoch

    def append(self, _key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
        count = sum(len(batch) for batch in rows)
        self.epoch, self.count = epoch, self.count + count
        return count


def some(epoch: int) -> SegmentBytes | None:
    """Every kind of record, and nothing in the third epoch."""
    return None if epoch == 3 else every_kind(epoch)


async def make_moved(
    folder: Path, *, is_compacted: bool = False, unrecorded: tuple[int, ...] = ()
) -> ArchiveWorld:
    """Six archived segments, of which four have moved."""
    world = await make_world(folder / "cold", some, COUNT)
    if is_compacted:
        await compact(world)
    await world.change_log(released)
    await world.moved.move(THROUGH, unrecorded=unrecorded)
    return world


async def export(world: ArchiveWorld, rows: Rows) -> ExportReport:
    return await Export(world.connection, rows).run()


async def retain(world: ArchiveWorld, **policy: Any) -> RetentionReport:
    return await RetentionRun(world.connection, RetentionPolicy(**policy)).run(removes=True)


def age(world: ArchiveWorld) -> None:
    """Make every file two days old."""
    then = time.time() - 2 * 86_400
    for path in world.root.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


async def sweep_now(world: ArchiveWorld) -> int:
    """Sweep whatever is there, however young."""
    nodes, later_ms = world.connection.nodes, time.time_ns() // 1_000_000 + 60_000
    return await sweep(nodes, world.store, CLUSTER, age_us=0, now_unix_ms=later_ms)


def put_orphans(world: ArchiveWorld) -> set[str]:
    """A file in each epoch that no attempt names."""
    paths = set()
    for epoch in map(Epoch, range(1, COUNT + 1)):
        path = attempt_folder(CLUSTER, LOG, epoch, "f" * 32) + "part-00000.parquet"
        assert parse_path(path) is not None
        world.store.put_new(path, b"x")
        paths.add(path)
    return paths


# --- Listing, changing ----------------------------------------------------------------------------


def test_a_listing_is_the_same_wherever_the_metadata_are(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", some, COUNT)
        nodes = world.connection.nodes
        await world.change_log(released)
        before = await nodes.list_segments(LOG)
        one = await nodes.read_segment(LOG, Epoch(2))
        await world.moved.move(THROUGH)
        after = await nodes.list_segments(LOG)
        assert after.segments == before.segments and len(after.segments) == COUNT
        assert await nodes.read_segment(LOG, Epoch(2)) == one
        log = await nodes.read_log(LOG)
        assert log is not None and log.moved_count == THROUGH
        assert [segment.epoch for segment in await nodes.list_stored(log)] == [5, 6]

    run(work())


def test_a_moved_segment_is_never_changed_even_where_its_node_was_put_back(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", some, COUNT)
        connection = world.connection
        nodes, store, paths = connection.nodes, connection.metadata, connection.paths
        await world.change_log(released)
        before = await world.segment(2)
        await world.moved.move(THROUGH)

        def change(found: AnySegment, nonce: str) -> AnySegment:
            return found.without_cold_copy(nonce)

        assert await nodes.change_segment(LOG, Epoch(2), change) is None
        await store.create(paths.segment(LOG, Epoch(2)), encode_segment(before))
        assert await nodes.change_segment(LOG, Epoch(2), change) == before
        assert await world.segment(2) == before
        changed = await nodes.change_segment(LOG, Epoch(5), change)
        assert changed is not None and changed.cold_copy is None

    run(work())


# --- Archive runs ---------------------------------------------------------------------------------


def test_a_run_passes_over_what_has_moved_and_reads_none_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        world = await archive_runs.make(tmp_path)
        at_once = replace(archive_runs.ONE_FILE, recheck_after_us=0)
        assert (await world.archive(at_once)).rechecked_count == 1
        await world.set_log(released_through(world.log, EPOCH))
        await world.moved.move(EPOCH)
        files = world.list_files()
        (world.folder / files[0]).unlink()
        report = await world.archive(at_once)
        assert report.is_good and report.rechecked_count == 0 and not report.outcomes
        assert report.skipped == {"archived before": 1} and report.lag_us == 0
        assert world.moved.read_count == 0

    asyncio.run(work())


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_sweep_knows_the_copies_of_what_has_moved(tmp_path: Path, is_compacted: bool) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, is_compacted=is_compacted)
        named = world.list_files()
        orphans = put_orphans(world)
        assert await sweep_now(world) == len(orphans)
        assert world.list_files() == named

    run(work())


def test_the_sweep_keeps_what_the_metadata_alone_name(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", some, COUNT)
        orphans = put_orphans(world)

        def replaced(segment: AnySegment) -> AnySegment:
            assert segment.cold_copy is not None
            return replace(segment, cold_copy=replace(segment.cold_copy, attempt="f" * 32))

        for epoch in range(1, COUNT + 1):
            await world.change_segment(epoch, replaced)
        await world.change_log(released)
        await world.moved.move(THROUGH)
        assert await sweep_now(world) == 0 and world.list_files() > orphans

    run(work())


def test_the_sweep_removes_nothing_of_what_nobody_can_say(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, unrecorded=(2,))
        put_orphans(world)
        files = world.list_files()
        world.moved.is_away = True
        assert await sweep_now(world) == COUNT - THROUGH, "those whose nodes are there"
        assert len(world.list_files()) == len(files) - (COUNT - THROUGH)
        world.moved.is_away = False
        assert await sweep_now(world) == THROUGH - 1, "nothing is known of e2"
        left = [path for path in world.list_files() if "/" + "f" * 32 + "/" in path]
        assert len(left) == 1 and left[0].split("/")[3] == "e0000000002"

    run(work())


# --- Compaction -----------------------------------------------------------------------------------


def test_compaction_passes_over_what_has_moved(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path)
        world.moved.is_away = True
        report = await compact(world)
        assert report.is_good and [group["epochs"] for group in report.groups] == [[5, 6]]
        assert world.moved.read_count == 0

    run(work())


def test_a_segment_that_moves_while_it_is_compacted_keeps_its_copy(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", some, COUNT)
        await world.change_log(released)
        copies = [await world.copy(epoch) for epoch in range(1, COUNT + 1)]

        class Slow(CompactionRun):
            async def _swap(self, segments: Any, manifests: Any) -> bool:
                await world.moved.move(1)
                return await super()._swap(segments, manifests)

        report = await Slow(world.connection, run_here, CompactOptions()).run()
        assert not report.is_good and report.groups == []
        assert [await world.copy(epoch) for epoch in range(1, COUNT + 1)] == copies

    run(work())


# --- Verify ---------------------------------------------------------------------------------------


def test_copies_of_what_has_moved_are_verified_and_never_withdrawn(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path)
        report = await world.verify()
        assert report.is_good and dict(report.outcomes) == {"whole": COUNT}
        world.file_of(2).unlink()
        found = await world.verify()
        assert dict(found.outcomes) == {"whole": COUNT - 1, "broken": 1}
        assert "HOT COPIES ARE GONE" in found.mismatches[0]
        assert (await world.copy(2)).is_rechecked

    run(work())


def test_what_cannot_be_read_is_a_failure_of_verify(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, unrecorded=(2,))
        found = await world.verify()
        assert found.failures == ["space/log e2: no record of its metadata can be found"]
        assert dict(found.outcomes) == {"whole": COUNT - 1, "failed": 1} and not found.is_good
        away = await make_moved(tmp_path / "away")
        away.moved.is_away = True
        (failure,) = (await away.verify()).failures
        assert failure.startswith("space/log: metadata_unavailable: ")

    (tmp_path / "away").mkdir()
    run(work())


# --- Retention ------------------------------------------------------------------------------------


def test_retention_knows_the_copies_of_what_has_moved(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, is_compacted=True)
        age(world)
        files = world.list_files()
        kept = await retain(world, **EVERYTHING)
        assert kept.is_good and kept.removals == [] and world.list_files() == files
        await world.change_log(
            lambda log: replace(log, first_live_epoch=Epoch(3), truncated_below=Epoch(3))
        )
        gone = await retain(world, **EVERYTHING)
        assert {one.reason.value for one in gone.removals} == {
            "its segment was truncated and given up"
        }
        assert not [path for path in world.list_files() if path.split("/")[3] < "e0000000003"]
        assert len([path for path in world.list_files() if "/shared/" in path]) == 1

    run(work())


def test_retention_removes_nothing_of_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path)
        await world.change_log(
            lambda log: replace(log, first_live_epoch=Epoch(3), truncated_below=Epoch(3))
        )
        age(world)
        files = world.list_files()
        world.moved.is_away = True
        found = await retain(world, **EVERYTHING)
        assert not found.is_good and found.removals == [] and world.list_files() == files
        assert found.kept_count == len(files)
        world.moved.is_away = False
        assert (await retain(world, **EVERYTHING)).removed_count == 4

    run(work())


def test_what_a_lost_record_may_name_stays(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, is_compacted=True, unrecorded=(2, 3))
        shared = [path for path in world.list_files() if "/shared/" in path]
        stray = shared[0].replace(shared[0].split("/")[4], "f" * 32)
        world.store.put_new(stray, b"x")
        age(world)
        files = world.list_files()
        found = await retain(world, **EVERYTHING)
        assert found.is_good and found.removals == [] and world.list_files() == files

    run(work())


def test_retention_of_a_purged_log_needs_no_metadata(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path)
        world.moved.is_away = True
        await world.change_log(
            lambda log: replace(log, is_deleted=True, deleted_unix_ms=1, is_purged=True)
        )
        age(world)
        await retain(world, **EVERYTHING)
        assert world.list_files() == set()

    run(work())


# --- Export ---------------------------------------------------------------------------------------


def test_what_has_moved_is_exported_and_what_has_no_entry_needs_no_copy(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", some, COUNT)
        await world.change_segment(3, lambda one: one.without_cold_copy("n"))
        await world.change_log(released)
        await world.moved.move(THROUGH)
        rows = Rows()
        report = await export(world, rows)
        # One of each is lost.
        expected = (world.segments[Epoch(1)].totals.record_count - 1) * (COUNT - 1)
        assert report.is_good and (rows.epoch, rows.count) == (COUNT, expected)

    run(work())


def test_an_export_stops_at_what_cannot_be_read(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path, unrecorded=(2,))
        rows = Rows()
        report = await export(world, rows)
        assert report.failures == ["space/log e2: no record of its metadata can be found"]
        assert rows.epoch == 1

    run(work())


def test_nothing_is_exported_while_the_metadata_log_is_away(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_moved(tmp_path)
        world.moved.is_away = True
        rows = Rows()
        (failure,) = (await export(world, rows)).failures
        assert "metadata_unavailable" in failure and rows.epoch == 0
        with pytest.raises(DuramenError, match="cannot be read"):
            await world.connection.nodes.list_segments(LOG)

    run(work())
