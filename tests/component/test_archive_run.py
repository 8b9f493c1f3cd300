"""A whole run of the archive job without processes: entries from memory, a folder, nodes in memory.

What real clusters cannot be brought to at will: bookies that contradict the file, a store that goes
down between two steps, answers that are lost, holes, segments that change meanwhile. Kills are
tests/spark's. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, Epoch
from duramen.runtime.cold import ColdStoreDown
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.stores.memory_store import WriteFate
from duramen.wire.entry import HEADER_BYTES
from duramen.wire.record_batch import encode_batch
from duramen_spark.archive import driver
from duramen_spark.commands import archive as command
from duramen_spark.main import main
from tests.component.archive_runs import (
    MEMBERS,
    ONE_FILE,
    World,
    make,
)
from tests.unit.cold_entries import EPOCH, LOG, SegmentBytes


def test_a_run_without_a_report_leaves_its_sentence(tmp_path: Path) -> None:
    words = tmp_path / "words"
    place = ["--zookeeper", "127.0.0.1:1", "--cluster", "c", "--cold-store", "ftp://there"]
    assert main(["archive", *place, "--runner", "threads", "--summary-file", str(words)]) == 1
    told = json.loads(words.read_text())
    assert told["ok"] is False and "ftp" in told["failure"]


HERE = ["--zookeeper", "127.0.0.1:1", "--cluster", "c", "--cold-store", "file:///cold"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([*HERE, "--keep-hot", "soon"], "soon"),
        ([*HERE, "--runner", "threads", "--threads", "0"], "--threads is 1 or more"),
        (["--data", "/nowhere"], "/nowhere"),
    ],
    ids=["flag", "threads", "no cluster.json"],
)
def test_a_run_that_does_not_start_leaves_its_sentence(
    given: list[str], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "words"
    assert main(["archive", *given, "--summary-file", str(path)]) in (1, 2)
    assert words in json.loads(path.read_text())["failure"]


def test_a_spark_that_does_not_come_up_is_told_on_one_line_or_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("[JAVA_GATEWAY_EXITED]\n  no Java")

    monkeypatch.setattr(command, "open_session", fail)
    path = tmp_path / "words"
    for summary in (path, tmp_path / "no folder" / "words"):
        with pytest.raises(RuntimeError, match="JAVA_GATEWAY_EXITED"):
            main(["archive", *HERE, "--summary-file", str(summary)])
    assert json.loads(path.read_text())["failure"] == "RuntimeError: [JAVA_GATEWAY_EXITED] no Java"


async def assert_archived(world: World) -> None:
    manifest, segment = world.read_manifest(), await world.read_segment()
    assert manifest is not None and segment.cold_copy is not None
    assert segment.cold_copy.attempt == manifest.attempt
    assert world.list_files() == sorted(manifest.path_of(part) for part in manifest.files)
    assert manifest.entry_count == len(world.source.entries)


async def assert_untouched(world: World) -> None:
    assert world.read_manifest() is None and world.list_files() == []
    assert (await world.read_segment()).cold_copy is None


@pytest.mark.parametrize("is_flexible", [False, True])
@pytest.mark.parametrize("has_holes", [True, False])
def test_every_kind_with_holes_or_lost_entries(
    has_holes: bool, is_flexible: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        world = await make(tmp_path, has_holes=has_holes, is_flexible=is_flexible)
        report = await world.archive(replace(ONE_FILE, part_bytes=300))
        assert report.is_good and report.outcomes == {"archived": 1}
        await assert_archived(world)
        manifest = world.read_manifest()
        assert manifest is not None and len(manifest.files) > 1
        absent = (manifest.holes, manifest.lost)
        assert absent == ((((7, 7),), ()) if has_holes else ((), ((7, 7),)))
        if is_flexible:
            assert manifest.history["property"] == {"node": 3, "rack": 2, "region": 1}
            life = f"{1:032x}"
            assert manifest.history["nodes"][2] == [2, "c", life, "eu", "k2", 1.0]
            assert "fragments" not in manifest.history and "ack_quorum" not in manifest.history
        else:
            assert manifest.history["fragments"][0]["ensemble"][0] == list(MEMBERS[0])
            assert "nodes" not in manifest.history and "property" not in manifest.history
        assert report.lag_us == 0

    asyncio.run(scenario())


def test_an_empty_segment_is_a_manifest_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path, SegmentBytes())
        assert world.segment.last_entry == NOTHING and world.segment.totals == Totals()
        assert (await world.archive()).outcomes == {"archived": 1}
        await assert_archived(world)
        assert world.list_files() == []

    asyncio.run(scenario())


def test_bookies_that_hold_other_entries_stop_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        world.source.other = EntryId(3)
        report = await world.archive()
        assert len(report.mismatches) == 1 and "not those that bookies have" in report.mismatches[0]
        assert report.outcomes == {"failed": 1} and report.lag_us > 0
        await assert_untouched(world)
        world.source.other = None
        assert (await world.archive()).is_good
        await assert_archived(world)

    asyncio.run(scenario())


def test_silent_bookies_and_dead_executors_leave_it_to_the_next_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        world.source.is_silent = True
        report = await world.archive()
        assert report.failures == ["prod/orders e3 part 0: SourceError: nobody says anything"]
        await assert_untouched(world)
        world.source.is_silent, world.runner.is_dead = False, True
        assert (await world.archive()).failures == ["prod/orders e3: an executor died"]
        world.runner.is_dead = False
        assert (await world.archive()).is_good
        await assert_archived(world)

    asyncio.run(scenario())


def test_a_damaged_entry_is_not_archived(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        entry = bytearray(world.source.entries[EntryId(0)])
        entry[HEADER_BYTES + 70] ^= 1
        good = world.source.entries[EntryId(0)]
        world.source.entries[EntryId(0)] = bytes(entry)
        world.source.is_silent = True
        report = await world.archive()
        assert "identity checksum" in report.mismatches[0]
        await assert_untouched(world)
        world.source.entries[EntryId(0)], world.source.is_silent = good, False
        assert (await world.archive()).is_good

    asyncio.run(scenario())


class Uncertain(FolderStore):
    """A store whose answer to the manifest's put is lost."""

    def put_new(self, path: str, data: bytes) -> None:
        super().put_new(path, data)
        raise ColdStoreDown("the answer was lost")


def test_a_manifest_that_may_be_there_keeps_its_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        world.store = Uncertain(world.folder)
        report = await world.archive()
        assert report.outcomes == {"failed": 1} and "lost" in report.failures[0]
        assert world.list_files() and world.read_manifest() is not None
        world.store = FolderStore(world.folder)
        world.runner.tasks.clear()
        report = await world.archive()
        assert report.is_good and report.outcomes == {"adopted": 1}
        assert [task.stored is not None for task in world.runner.tasks] == [True]
        await assert_archived(world)

    asyncio.run(scenario())


def test_a_mark_whose_outcome_is_unknown_is_read_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        for fate in WriteFate:
            (tmp_path / fate.name).mkdir()
            world = await make(tmp_path / fate.name)
            world.metadata.doom_next_write(fate)
            report = await world.archive()
            assert report.is_good and report.outcomes == {"archived": 1}, fate
            await assert_archived(world)

    asyncio.run(scenario())


def test_a_broken_copy_without_hot_copies_stays_marked(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        assert (await world.archive(replace(ONE_FILE, recheck_after_us=0))).rechecked_count == 1
        copy = (await world.read_segment()).cold_copy
        assert copy is not None and copy.is_rechecked
        # As it was before the second look, and the log released it all the same.
        before = replace(copy, rechecked_unix_ms=None)
        await world.nodes.change_segment(
            LOG, EPOCH, lambda found, nonce: replace(found, nonce=nonce, cold_copy=before)
        )
        (world.folder / world.list_files()[0]).unlink()
        released = replace(
            world.log, first_hot_epoch=Epoch(EPOCH + 1), snapshot_lsn=(EPOCH + 1) << 32
        )
        await world.set_log(released)
        report = await world.archive(replace(ONE_FILE, recheck_after_us=0))
        assert "hot copies are gone" in report.mismatches[0]
        assert (await world.read_segment()).cold_copy is not None
        assert world.read_manifest() is not None

    asyncio.run(scenario())


def test_the_sweep_keeps_what_is_young_or_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        assert (await world.archive()).is_good
        named = world.list_files()
        orphan = named[0].replace("part-00000", "part-00001")
        other = named[0].replace(named[0].split("/")[4], "f" * 32)
        strange = "v1/notes.txt"
        for path in (orphan, other, strange):
            world.store.put_new(path, b"x")
        assert (await world.archive()).removed_file_count == 0
        report = await world.archive(replace(ONE_FILE, orphan_age_us=0))
        # The node names the attempt: whatever the manifest says, its files stay.
        assert report.removed_file_count == 1
        assert world.list_files() == sorted([*named, orphan, strange])

    asyncio.run(scenario())


def test_a_store_that_is_down_fails_a_run_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path)
        world.folder.rename(tmp_path / "away")
        report = await world.archive()
        assert report.outcomes == {"failed": 1} and not report.mismatches
        (tmp_path / "away").rename(world.folder)
        await assert_untouched(world)
        assert (await world.archive()).is_good

    asyncio.run(scenario())


def test_a_session_that_is_lost_after_the_archiving_takes_nothing_from_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was stopped for a while meets it; what it finished was not told."""

    async def scenario() -> None:
        world = await make(tmp_path)

        async def sweep(*_: object, **__: object) -> int:
            world.metadata.disconnect()
            return 0

        monkeypatch.setattr(driver, "sweep", sweep)
        report = await world.archive()
        assert report.outcomes == {"archived": 1}
        (failure,) = report.failures
        assert failure.startswith("lag: ")
        world.metadata.reconnect()
        await assert_archived(world)

    asyncio.run(scenario())


def test_a_segment_of_many_entries_and_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        segment = SegmentBytes()
        for index in range(60):
            segment.add(encode_batch([b"%d" % index * 20] * 3, index, txids=[index] * 3))
        world = await make(tmp_path, segment)
        options = replace(ONE_FILE, part_bytes=1_500, bytes_per_s=40_000_000)
        report = await world.archive(options)
        assert report.is_good and report.record_count == 180 and report.file_count > 5
        await assert_archived(world)
        assert (await world.archive(options)).outcomes == {}

    asyncio.run(scenario())
