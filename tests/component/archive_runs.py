"""Runs of the archive job in this process: a source in memory and a runner without threads.

`World` is a log with its nodes, what is archived of it, and a cold store in memory.
Used by `test_archive_run` and `test_archive_commit`. Source: docs/archive.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from duramen.config import parse_log_config
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.core.segment_base import Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, Member
from duramen.runtime.cold import open_cold_store
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import HOUR
from duramen.wire.cold.manifest import Manifest, Ranges
from duramen.wire.cold.paths import manifest_path
from duramen.wire.entry import check_entry, read_entry_info
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import read_stored_manifest
from duramen_spark.archive.digests import SourceError
from duramen_spark.archive.driver import ArchiveRun, Options
from duramen_spark.archive.part_task import PartResult, PartTask, run_task
from duramen_spark.archive.report import RunReport
from duramen_spark.cluster_address import ClusterAddress
from duramen_spark.runner import RunnerFailed
from tests.component.moved_segments import MovedSegments
from tests.unit.cold_entries import EPOCH, LOG, START_SEQ_NUM, SegmentBytes, make_every_kind
from tests.unit.flexible_segments import node

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
        self, segment: AnySegment, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        return [(first, self.entries[first])]

    async def read_length_before(self, segment: AnySegment, entry: EntryId) -> int:
        info = read_entry_info(self.entries[entry])
        return info.totals.length_bytes - info.payload_bytes

    async def read_identities(
        self, segment: AnySegment, first: EntryId, last: EntryId, turn: int
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

    def __init__(
        self,
        folder: Path,
        segment: SegmentBytes,
        *,
        has_holes: bool = False,
        is_flexible: bool = False,
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.store = FolderStore(folder)
        self.source = MemorySource(segment.entries)
        self.runner = DirectRunner(self.source)
        self.metadata = MemoryStore(MemoryTree())
        self.moved = MovedSegments(self.metadata, PATHS, LOG)
        self.nodes = ClusterNodes(self.metadata, PATHS, self.moved.fetch_run)
        last = EntryId(segment.next_entry - 1)
        absent = [EntryId(n) for n in range(segment.next_entry) if n not in segment.entries]
        ranges = tuple((entry, entry) for entry in absent)
        mode = "out_of_order" if has_holes else "ordered"
        close = close_flexible if is_flexible else close_striped
        closed = close(mode, last, segment.totals, ranges if has_holes else ())
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

    async def read_segment(self) -> AnySegment:
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


def close_striped(mode: str, last: EntryId, totals: Totals, holes: Ranges) -> AnySegment:
    """A segment on three bookies."""
    fragments = (Fragment(EntryId(0), MEMBERS),)
    return Segment(LOG, EPOCH, Quorum(3, 3, 2), fragments, ack_mode=mode).closed(
        last_entry=last, totals=totals, start_seq_num=START_SEQ_NUM, completed_unix_ms=1,
        nonce="n", holes=holes,
    )  # fmt: skip


def close_flexible(mode: str, last: EntryId, totals: Totals, holes: Ranges) -> AnySegment:
    """A segment of four bookies, that a recovery has closed."""
    nodes = [node(name, f"k{index}") for index, name in enumerate("abcd")]
    opened = FlexibleSegment.opened(
        LOG, EPOCH, ReplicationProperty(3, 2), nodes, ack_mode=mode, placement="strict",
        created_unix_ms=0, nonce="o",
    )  # fmt: skip
    return opened.marked("m").closed_by_recovery(
        last_entry=last, totals=totals, start_seq_num=START_SEQ_NUM, completed_unix_ms=1,
        nonce="n", holes=holes,
    )  # fmt: skip


async def make(
    folder: Path,
    segment: SegmentBytes | None = None,
    *,
    has_holes: bool = False,
    is_flexible: bool = False,
) -> World:
    world = World(
        folder / "cold",
        segment or make_every_kind(),
        has_holes=has_holes,
        is_flexible=is_flexible,
    )
    await world.start()
    return world
