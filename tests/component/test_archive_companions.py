"""Verify, compaction, retention and export on archived segments of every kind of record.

Source: docs/archive.md, ADR 0016.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duramen.core.flexible.segment import AnySegment
from duramen.ids import Epoch, LogId
from duramen.wire.cold.manifest import Manifest
from duramen.wire.cold.paths import manifest_path, parse_compacted
from duramen.wire.cold.rebuild import RebuiltEntry
from duramen_spark.cold_parts import open_parts
from duramen_spark.compact.driver import CompactionRun, CompactOptions
from duramen_spark.compact.task import load_manifest
from duramen_spark.export.driver import Export
from duramen_spark.export.rows import EXPORT_SCHEMA
from duramen_spark.export.sinks import ExportConflict, TableSink
from duramen_spark.retention.driver import RetentionReport, RetentionRun
from duramen_spark.retention.plan import RetentionPolicy
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
from tests.unit.cold_entries import SegmentBytes

EACH_KIND = pytest.mark.parametrize("is_flexible", [False, True])


def small(epoch: int) -> SegmentBytes | None:
    """Every kind in the odd epochs, and nothing in every fourth."""
    return None if epoch % 4 == 0 else every_kind(epoch)


async def read_copy(world: ArchiveWorld, epoch: int) -> list[RebuiltEntry]:
    """A segment's entries by what its node says now, as a reader reads them."""
    manifest = load_manifest(world.store, CLUSTER, await world.segment(epoch))
    return read_manifest_entries(world, manifest)


def read_manifest_entries(world: ArchiveWorld, manifest: Manifest) -> list[RebuiltEntry]:
    """All entries that a manifest names."""
    found: list[RebuiltEntry] = []
    for reader in open_parts(world.store, manifest):
        for index in range(len(reader.part.row_groups)):
            found += reader.read_entries(index)
    return found


async def retain(world: ArchiveWorld, *, removes: bool, **policy: Any) -> RetentionReport:
    """One round of retention."""
    return await RetentionRun(world.connection, RetentionPolicy(**policy)).run(removes=removes)


def age(world: ArchiveWorld) -> None:
    """Make every file two days old."""
    then = time.time() - 2 * 86_400
    for path in world.root.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


async def age_copies(world: ArchiveWorld, epochs: Iterable[int]) -> None:
    """Make copies two days old, as their nodes say."""

    def older(segment: AnySegment) -> AnySegment:
        assert segment.cold_copy is not None
        return replace(segment, cold_copy=replace(segment.cold_copy, verified_unix_ms=1))

    for epoch in epochs:
        await world.change_segment(epoch, older)


# --- Verify --------------------------------------------------------------------------------------


@EACH_KIND
def test_whole_copies_are_whole(tmp_path: Path, is_flexible: bool) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", small, 4, is_flexible=is_flexible)
        report = await world.verify()
        assert report.is_good and dict(report.outcomes) == {"whole": 4}
        assert report.to_json()["records"] == 3 * world.segments[Epoch(1)].totals.record_count
        sample = await world.verify(sample=2, seed=3)
        assert sample.outcomes["whole"] == 2
        assert "duramen_archive_verify_copies 2" in sample.list_metrics()

    run(work())


@EACH_KIND
def test_holes_are_no_damage_and_stay_with_every_copy(tmp_path: Path, is_flexible: bool) -> None:
    class Rows:
        """A table that counts."""

        def __init__(self) -> None:
            self.epoch = self.count = 0

        def read_epoch(self, _key: str) -> int:
            return self.epoch

        def append(self, _key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
            count = sum(len(batch) for batch in rows)
            self.epoch, self.count = epoch, self.count + count
            return count

    async def work() -> None:
        cold = tmp_path / "cold"
        world = await make_world(cold, every_kind, 2, is_flexible=is_flexible, has_holes=True)
        assert (await world.verify()).is_good
        await compact(world)
        assert (await world.verify()).is_good
        for epoch in (1, 2):
            segment = await world.segment(epoch)
            manifest = load_manifest(world.store, CLUSTER, segment)
            assert manifest.is_shared and manifest.holes == segment.holes == ((7, 7),)
            assert (manifest.missing_record_count, manifest.lost) == (1, ())
        rows = Rows()
        report = await export(world, rows)
        assert rows.count == expected_rows(world, (1, 2)) == report["records"]
        assert report["gaps"] == [
            f"space/log: 1 record of e{epoch} is in none of its entries (holes 7-7)"
            for epoch in (1, 2)
        ]

    run(work())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@EACH_KIND
def test_a_flipped_byte_is_found_named_and_the_copy_withdrawn(
    tmp_path: Path, is_flexible: bool
) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 2, is_flexible=is_flexible)
        part = world.manifests[Epoch(2)].files[0]
        group = part.row_groups[2]
        flip(world.file_of(2), group.offset + group.size_bytes // 2)
        report = await world.verify()
        assert not report.is_good and dict(report.outcomes) == {"whole": 1, "withdrawn": 1}
        (row,) = [row for row in report.segments if row["outcome"] == "withdrawn"]
        (damage,) = row["damages"]
        assert damage["path"] == str(world.file_of(2).relative_to(world.root))
        assert (damage["row_group"], damage["kind"]) == (2, "bytes")
        assert (damage["first_entry"], damage["last_entry"]) == (
            group.first_entry,
            group.last_entry,
        )
        assert "duramen_archive_verify_mismatches 1" in report.list_metrics()
        assert (await world.segment(2)).cold_copy is None
        # So the next archive run finds no mark, reads what is there, and archives anew.
        assert world.store.size(manifest_path(CLUSTER, LOG, Epoch(2)))
        assert (await world.copy(1)).is_rechecked

    run(work())


def test_where_hot_copies_are_gone_nothing_is_changed(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 2)
        await world.change_log(released)
        world.file_of(1).unlink()
        before = world.list_files()
        report = await world.verify()
        assert dict(report.outcomes) == {"broken": 1, "whole": 1}
        (text,) = report.mismatches
        assert "missing" in text and "HOT COPIES ARE GONE" in text
        assert (await world.copy(1)).is_rechecked and world.list_files() == before

    run(work())


@pytest.mark.parametrize("damage", ["cut", "magic", "footer", "manifest", "no manifest", "longer"])
def test_every_damage_is_found(tmp_path: Path, damage: str) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 1)
        path, manifest = world.file_of(1), world.root / manifest_path(CLUSTER, LOG, Epoch(1))
        match damage:
            case "cut":
                path.write_bytes(path.read_bytes()[:-1])
            case "longer":
                path.write_bytes(path.read_bytes() + b"x")
            case "magic":
                flip(path, 1)
            case "footer":
                flip(path, path.stat().st_size - 20)
            case "manifest":
                flip(manifest, 40)
            case _:
                manifest.unlink()
        told = await world.verify(withdraws=False)
        assert dict(told.outcomes) == {"broken": 1} and (await world.copy(1)).is_rechecked
        assert dict((await world.verify()).outcomes) == {"withdrawn": 1}
        assert (await world.segment(1)).cold_copy is None
        is_there = manifest_path(CLUSTER, LOG, Epoch(1)) in world.list_files()
        assert is_there == (damage != "no manifest")

    run(work())


def test_other_entries_than_bookies_hold(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 1)
        world.hot.entries[Epoch(1)][3] = (world.hot.entries[Epoch(1)][3][0], 0)
        assert (await world.verify(against_bookies=False)).is_good
        report = await world.verify()
        assert "not the 12 that bookies hold" in report.mismatches[0]

    run(work())


# --- Compaction ----------------------------------------------------------------------------------


@EACH_KIND
def test_compaction_keeps_every_entry_and_both_copies_stay_readable(
    tmp_path: Path, is_flexible: bool
) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", small, 6, is_flexible=is_flexible)
        before = {epoch: await read_copy(world, epoch) for epoch in range(1, 7)}
        report = await compact(world)
        assert report.is_good and report.to_json()["files_before"] == 5
        (group,) = report.groups
        assert group["epochs"] == [1, 2, 3, 5, 6]
        for epoch in range(1, 7):
            assert await read_copy(world, epoch) == before[epoch]
            # Who has read the node before reads the old files.
            assert read_manifest_entries(world, world.manifests[Epoch(epoch)]) == before[epoch]
        shared = [path for path in world.list_files() if "/shared/" in path]
        assert len(shared) == 1
        copy = await world.copy(2)
        assert copy.is_rechecked and copy.attempt == group["attempt"]
        assert (await world.verify()).is_good
        assert (await compact(world)).groups == [], "nothing is left to do"

    run(work())


def test_only_small_and_rechecked_copies_are_compacted(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 5)

        def unchecked(segment: AnySegment) -> AnySegment:
            assert segment.cold_copy is not None
            return replace(segment, cold_copy=replace(segment.cold_copy, rechecked_unix_ms=None))

        await world.change_segment(3, unchecked)
        report = await compact(world)
        assert [group["epochs"] for group in report.groups] == [[1, 2], [4, 5]]
        assert (await world.copy(3)).attempt == f"{3:032x}"
        assert (await compact(world, small_bytes=10)).groups == []

    run(work())


def test_a_copy_that_is_withdrawn_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)

        class Slow(CompactionRun):
            async def _swap(self, segments: Any, manifests: Any) -> bool:
                await world.change_segment(2, lambda one: one.without_cold_copy("other"))
                return await super()._swap(segments, manifests)

        report = await Slow(world.connection, run_here, CompactOptions()).run()
        assert not report.is_good and report.groups == []
        assert (await world.copy(1)).attempt == f"{1:032x}", "all nodes or none"
        assert (await world.segment(2)).cold_copy is None

    run(work())


def test_a_copy_that_is_made_anew_meanwhile_stays(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)

        def anew(segment: AnySegment) -> AnySegment:
            assert segment.cold_copy is not None
            return replace(segment, cold_copy=replace(segment.cold_copy, attempt="e" * 32))

        class Slow(CompactionRun):
            async def _swap(self, segments: Any, manifests: Any) -> bool:
                await world.change_segment(2, anew)
                return await super()._swap(segments, manifests)

        report = await Slow(world.connection, run_here, CompactOptions()).run()
        assert not report.is_good and report.groups == []
        assert [(await world.copy(epoch)).attempt for epoch in (1, 2)] == [f"{1:032x}", "e" * 32]

    run(work())


def test_damage_of_one_segment_in_a_shared_file(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)
        await compact(world)
        manifest = load_manifest(world.store, CLUSTER, await world.segment(2))
        part = manifest.files[0]
        flip(world.root / manifest.path_of(part), part.row_groups[0].offset + 30)
        report = await world.verify()
        assert dict(report.outcomes) == {"whole": 2, "withdrawn": 1}
        assert (await world.segment(2)).cold_copy is None
        # The first copy of it is still there, for the next run to read back and take up.
        assert manifest_path(CLUSTER, LOG, Epoch(2)) in world.list_files()

    run(work())


def test_compaction_reads_what_it_copies(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 2)
        flip(world.file_of(2), world.manifests[Epoch(2)].files[0].row_groups[0].offset + 9)
        report = await compact(world)
        assert not report.is_good and "ColdDataError" in report.failures[0]
        assert (await world.copy(1)).attempt == f"{1:032x}"
        assert not [path for path in world.list_files() if "/shared/" in path]

    run(work())


# --- Retention -----------------------------------------------------------------------------------


@EACH_KIND
def test_what_compaction_replaced_goes_after_the_delay(tmp_path: Path, is_flexible: bool) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3, is_flexible=is_flexible)
        first = world.list_files()
        await compact(world)
        age(world)
        assert (await retain(world, removes=True)).removals == [], "the new copies are too young"
        await age_copies(world, (1, 2, 3))
        dry = await retain(world, removes=False)
        assert {one.file.path for one in dry.removals} == first
        assert world.list_files() > first, "a dry run removes nothing"
        assert [one.file.path.endswith("manifest.json") for one in dry.removals] == [
            *[True] * 3, *[False] * 3,
        ]  # fmt: skip
        done = await retain(world, removes=True)
        assert done.removed_count == 6 and not world.list_files() & first
        assert (await world.verify()).is_good
        again = await retain(world, removes=True, drops_truncated=True, drops_deleted=True)
        assert again.removals == []

    run(work())


@EACH_KIND
def test_released_copies_never_go_and_given_up_ones_do(tmp_path: Path, is_flexible: bool) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3, is_flexible=is_flexible)
        await world.change_log(released)
        age(world)
        everything = {"drops_truncated": True, "drops_deleted": True, "delay_us": 0}
        assert (await retain(world, removes=True, **everything)).removals == []
        await world.change_log(
            lambda log: replace(log, first_live_epoch=Epoch(3), truncated_below=Epoch(3))
        )
        kept = await retain(
            world, removes=True, drops_truncated=True, older_than_us=3 * 86_400 * 10**6
        )
        assert kept.removals == [], "not old enough"
        done = await retain(world, removes=True, drops_truncated=True)
        assert done.removed_count == 4
        assert {path.split("/")[3] for path in world.list_files()} == {"e0000000003"}

    run(work())


def test_a_shared_file_goes_with_its_last_segment(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)
        await compact(world)
        await age_copies(world, (1, 2, 3))
        age(world)
        await retain(world, removes=True)
        await world.change_log(
            lambda log: replace(log, first_live_epoch=Epoch(3), truncated_below=Epoch(3))
        )
        done = await retain(world, removes=True, drops_truncated=True)
        assert all(parse_compacted(one.file.path) for one in done.removals)
        assert done.removed_count == 2 and len(await read_copy(world, 3)) == 12
        await world.change_log(
            lambda log: replace(log, first_live_epoch=Epoch(4), truncated_below=Epoch(4))
        )
        await retain(world, removes=True, drops_truncated=True)
        assert world.list_files() == set()

    run(work())


def test_logs_that_are_gone(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 1)
        await world.change_log(lambda log: replace(log, is_deleted=True, deleted_unix_ms=1))
        assert (await retain(world, removes=True, drops_deleted=True)).removals == []
        await world.change_log(lambda log: replace(log, is_purged=True))
        assert (await retain(world, removes=True)).removals == []
        assert (await retain(world, removes=True, drops_deleted=True)).removed_count == 2
        # Of an id that this cluster has not given to any log nothing is known.
        world.store.put_new(manifest_path(CLUSTER, LogId(1_000), Epoch(1)), b"{}")
        assert (await retain(world, removes=True, drops_deleted=True)).removals == []
        world.store.put_new(manifest_path(CLUSTER, LogId(8), Epoch(1)), b"{}")
        assert (await retain(world, removes=True, drops_deleted=True)).removed_count == 1

    run(work())


def test_what_a_killed_compaction_left_goes(tmp_path: Path) -> None:
    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 2)
        before = world.list_files()

        class Killed(CompactionRun):
            async def _swap(self, segments: Any, manifests: Any) -> bool:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await Killed(world.connection, run_here, CompactOptions()).run()
        assert len(world.list_files() - before) == 3
        assert (await retain(world, removes=True)).removals == [], "it may still be at work"
        age(world)
        await retain(world, removes=True)
        assert world.list_files() == before and (await world.verify()).is_good

    run(work())


# --- Export --------------------------------------------------------------------------------------


def expected_rows(world: ArchiveWorld, epochs: Collection[int]) -> int:
    """Records of segments, without the one that each has lost."""
    counts = [world.segments[Epoch(epoch)].totals.record_count for epoch in epochs]
    return sum(counts) - len(epochs)


def check_table(table: pa.Table, world: ArchiveWorld, epochs: Collection[int]) -> None:
    """The table has the records of some segments, each once, none missing."""
    table = table.sort_by("seq_num")
    assert set(table["log"].to_pylist()) == {"log"}
    seqs = table["seq_num"].to_pylist()
    assert len(seqs) == len(set(seqs)) == expected_rows(world, epochs)
    bodies = table["body"].to_pylist()
    assert bodies[:3] == [b"plain", b"", b"third"]
    headers = table["headers"].to_pylist()
    assert any(
        headers[index] == [{"name": b"name", "value": b"one"}, {"name": b"name", "value": b"two"},
        {"name": b"", "value": b""}] for index in range(10)
    )  # fmt: skip


async def export(world: ArchiveWorld, sink: TableSink) -> dict[str, Any]:
    return (await Export(world.connection, sink).run()).to_json()


async def check_sink(world: ArchiveWorld, open_sink: Any, read: Any) -> None:
    """Incremental, idempotent, and never twice with two at once."""
    later = await world.segment(3)
    await world.change_segment(3, lambda one: replace(one, cold_copy=None))
    first = await export(world, open_sink())
    assert (first["ok"], first["segments"], first["logs"][0]["epoch"]) == (True, 2, 2)
    check_table(read(), world, (1, 2))
    assert (await export(world, open_sink()))["records"] == 0
    await world.change_segment(3, lambda one: replace(one, cold_copy=later.cold_copy))

    class Stale:
        """A sink whose first append meets that of another export."""

        def __init__(self) -> None:
            self.own, self.appended = open_sink(), 0

        def read_epoch(self, key: str) -> int:
            return int(self.own.read_epoch(key))

        def append(self, key: str, epoch: Epoch, rows: Any) -> int:
            self.appended += 1
            if self.appended == 1:
                other = open_sink()
                assert other.read_epoch(key) == 2
                held = list(rows)
                other.append(key, epoch, iter(held))
                return int(self.own.append(key, epoch, iter(held)))
            raise AssertionError("the conflict was not seen as somebody's progress")

    raced = await export(world, Stale())
    assert raced["ok"] and raced["records"] == 0 and raced["logs"][0]["epoch"] == 3
    check_table(read(), world, (1, 2, 3))


def test_delta(tmp_path: Path) -> None:
    import deltalake

    from duramen_spark.export.delta import DeltaSink

    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)
        url = str(tmp_path / "table")
        await check_sink(
            world,
            lambda: DeltaSink(url),
            lambda: pa.table(deltalake.DeltaTable(url).to_pyarrow_table()),
        )

    run(work())


def test_iceberg(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    from duramen_spark.export.iceberg import IcebergSink

    async def work() -> None:
        world = await make_world(tmp_path / "cold", every_kind, 3)
        tables = tmp_path / "tables"
        tables.mkdir()
        uri = f"sqlite:///{tmp_path / 'catalog.db'}"
        catalog = load_catalog("test", type="sql", uri=uri, warehouse=tables.as_uri())
        await check_sink(
            world,
            lambda: IcebergSink(catalog, "space.records"),
            lambda: catalog.load_table("space.records").scan().to_arrow(),
        )

    run(work())


def test_a_conflict_without_progress_is_tried_again(tmp_path: Path) -> None:
    class Busy:
        """Others write other logs into the table."""

        def __init__(self) -> None:
            self.rows: list[pa.RecordBatch] = []
            self.epoch = 0
            self.conflicts = 2

        def read_epoch(self, _key: str) -> int:
            return self.epoch

        def append(self, _key: str, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> int:
            if self.conflicts:
                self.conflicts -= 1
                raise ExportConflict
            held = list(rows)
            self.rows += held
            self.epoch = epoch
            return sum(batch.num_rows for batch in held)

    async def work() -> None:
        world = await make_world(tmp_path / "cold", small, 5)
        sink = Busy()
        report = await export(world, sink)
        assert report["ok"] and sink.epoch == 5
        check_table(pa.Table.from_batches(sink.rows, EXPORT_SCHEMA), world, (1, 2, 3, 5))

    run(work())
