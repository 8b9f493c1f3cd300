"""A whole run of the archive job without processes: entries from memory, a folder, nodes in memory.

What real clusters cannot be brought to at will: bookies that contradict the file, a store that goes
down between two steps, answers that are lost, holes, segments that change meanwhile. Kills are
tests/spark's. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member
from duramen.runtime.cold import ColdStoreDown, open_cold_store
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.units import HOUR
from duramen.wire.cold.manifest import Manifest
from duramen.wire.cold.paths import manifest_path
from duramen.wire.entry import HEADER_BYTES, check_entry, read_entry_info
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from duramen.wire.record_batch import encode_batch
from duramen_spark.archive import driver
from duramen_spark.archive.bookie_source import ClusterAddress, SourceError
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import read_stored_manifest
from duramen_spark.archive.driver import ArchiveRun, Options
from duramen_spark.archive.part_task import PartResult, PartTask, run_task
from duramen_spark.archive.report import RunReport
from duramen_spark.runner import RunnerFailed
from tests.unit.cold_entries import EPOCH, LOG, START_SEQ_NUM, SegmentBytes, make_every_kind

PATHS = Paths("c")
UUID = "0a1b2c3d0000400080000000000000ff"
MEMBERS = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
ONE_FILE = Options(recheck_after_us=HOUR)


class MemorySource:
    """Entries as bookies would give them."""

    def __init__(self, entries: dict[EntryId, bytes]) -> None:
        self.entries = entries
        self.is_silent = False
        self.other: EntryId | None = None
        """Of this one bookies say that they hold another entry."""

    async def read_run(
        self, segment: Segment, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        return [(first, self.entries[first])]

    async def read_length_before(self, segment: Segment, entry: EntryId) -> int:
        info = read_entry_info(self.entries[entry])
        return info.totals.length_bytes - info.payload_bytes

    async def read_identities(
        self, segment: Segment, first: EntryId, last: EntryId, turn: int
    ) -> list[tuple[EntryId, int]]:
        if self.is_silent:
            raise SourceError("nobody says anything")
        return [
            (entry, check_entry(data).crc ^ (entry == self.other))
            for entry, data in self.entries.items()
            if first <= entry <= last
        ]


class DirectRunner:
    """Runs tasks here, with the entries of a test."""

    slot_count = 2

    def __init__(self, source: MemorySource) -> None:
        self._source = source
        self.is_dead = False
        self.tasks: list[PartTask] = []

    def run(self, slots: Sequence[Sequence[PartTask]]) -> list[PartResult]:
        if self.is_dead:
            raise RunnerFailed("an executor died")
        self.tasks += [task for tasks in slots for task in tasks]
        return [asyncio.run(run_task(task, self._source, 0)) for tasks in slots for task in tasks]

    def close(self) -> None:
        """Nothing is held."""


class World:
    """A cluster of one log with one closed segment, and an archive."""

    def __init__(self, folder: Path, segment: SegmentBytes, *, has_holes: bool = False) -> None:
        folder.mkdir()
        self.folder = folder
        self.store = FolderStore(folder)
        self.source = MemorySource(segment.entries)
        self.runner = DirectRunner(self.source)
        self.metadata = MemoryStore(MemoryTree())
        self.nodes = ClusterNodes(self.metadata, PATHS)
        last = EntryId(segment.next_entry - 1)
        absent = [EntryId(n) for n in range(segment.next_entry) if n not in segment.entries]
        ranges = tuple((entry, entry) for entry in absent)
        opened = Segment(
            LOG, EPOCH, Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),),
            ack_mode="out_of_order" if has_holes else "ordered",
        )  # fmt: skip
        closed = opened.closed(
            last_entry=last,
            totals=segment.totals,
            start_seq_num=START_SEQ_NUM,
            completed_unix_ms=1,
            nonce="n",
            holes=ranges if has_holes else (),
        )
        self.segment = replace(closed, lost=() if has_holes else ranges).validated()
        self.log = LogNode(
            log_id=LOG,
            namespace="prod",
            name="orders",
            config=parse_log_config({"tiering": {"policy": "copy"}}),
            next_epoch=Epoch(EPOCH + 1),
            last_clean_epoch=EPOCH,
            first_live_epoch=EPOCH,
        )

    async def start(self) -> None:
        await self.metadata.start()
        fields = {"uuid": UUID, "format": 1, "last_log_id": 7}
        for path, data in (
            (PATHS.cluster, encode_node(fields)),
            (PATHS.name("prod", "orders"), encode_node({"log_id": str(LOG)})),
            (PATHS.log(LOG), encode_log(self.log)),
            (PATHS.segment(LOG, EPOCH), encode_segment(self.segment)),
        ):
            await self.metadata.create(path, data, make_parents=True)

    async def archive(self, options: Options = ONE_FILE) -> RunReport:
        run = ArchiveRun(
            address=ClusterAddress("", "c"),
            nodes=self.nodes,
            source=self.source,
            store=self.store,
            store_url=self.folder.as_uri(),
            runner=self.runner,
            options=options,
        )
        return await run.run()

    async def read_segment(self) -> Segment:
        found = await self.nodes.read_segment(LOG, EPOCH)
        assert found is not None
        return found

    async def set_log(self, log: LogNode) -> None:
        found = await self.metadata.get(PATHS.log(LOG))
        assert found is not None
        await self.metadata.set(PATHS.log(LOG), encode_log(log), version=found.version)

    def read_manifest(self) -> Manifest | None:
        found = read_stored_manifest(self.store, manifest_path(UUID, LOG, EPOCH))
        return None if found is None else found[0]

    def list_files(self) -> list[str]:
        files = sorted(file.path for file in open_cold_store(self.folder.as_uri()).list(""))
        return [path for path in files if not path.endswith("manifest.json")]


async def make(
    folder: Path, segment: SegmentBytes | None = None, *, has_holes: bool = False
) -> World:
    world = World(folder / "cold", segment or make_every_kind(), has_holes=has_holes)
    await world.start()
    return world


async def assert_archived(world: World) -> None:
    manifest, segment = world.read_manifest(), await world.read_segment()
    assert manifest is not None and segment.cold_copy is not None
    assert segment.cold_copy.attempt == manifest.attempt
    assert world.list_files() == sorted(manifest.path_of(part) for part in manifest.files)
    assert manifest.entry_count == len(world.source.entries)


async def assert_untouched(world: World) -> None:
    assert world.read_manifest() is None and world.list_files() == []
    assert (await world.read_segment()).cold_copy is None


@pytest.mark.parametrize("has_holes", [True, False])
def test_every_kind_with_holes_or_lost_entries(has_holes: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await make(tmp_path, has_holes=has_holes)
        report = await world.archive(replace(ONE_FILE, part_bytes=300))
        assert report.is_good and report.outcomes == {"archived": 1}
        await assert_archived(world)
        manifest = world.read_manifest()
        assert manifest is not None and len(manifest.files) > 1
        absent = (manifest.holes, manifest.lost)
        assert absent == ((((7, 7),), ()) if has_holes else ((), ((7, 7),)))
        assert manifest.history["fragments"][0]["ensemble"][0] == list(MEMBERS[0])
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
