"""A log with archived segments: nodes in a metadata store in memory, files in a folder.

What the archive's companions work on, without bookies and without Spark. `Hot` stands for what
bookies say that they hold.

Used by the tests of the archive's companions. Not a test itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from duramen.config import LogConfig
from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.runtime.cold import ColdStore, open_cold_store
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.cold.manifest import FilePart, Manifest, encode_manifest
from duramen.wire.cold.paths import attempt_folder, manifest_path
from duramen.wire.entry import read_entry_info
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from duramen_spark.archive.bookie_source import BookieSource
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.compact.driver import CompactionRun, CompactOptions, CompactReport
from duramen_spark.connection import Connection
from duramen_spark.verify.driver import Verification, VerifyReport
from tests.component.moved_segments import MovedSegments
from tests.unit import flexible_segments as flexible
from tests.unit.cold_entries import SegmentBytes, make_every_kind, write_part

T = TypeVar("T")
Task = TypeVar("Task")
Result = TypeVar("Result")

CLUSTER = "0a1b2c3d00004000800000000000cafe"
LOG = LogId(7)
DAY_MS = 86_400_000
ENSEMBLE = tuple(Member(BookieId(f"b{i}"), Incarnation(f"{i:032x}")) for i in range(3))


def run_here(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """Tasks one after the other, in this thread."""
    return [function(task) for task in tasks]


@dataclass
class Hot:
    """What bookies hold: all entries of the world's segments, unless a test changes it."""

    entries: dict[Epoch, list[tuple[EntryId, int]]] = field(default_factory=dict)

    async def read_identities(
        self, segment: AnySegment, first: EntryId, last: EntryId, _turn: int
    ) -> list[tuple[EntryId, int]]:
        """As `BookieSource`."""
        return [one for one in self.entries[segment.epoch] if first <= one[0] <= last]


@dataclass
class ArchiveWorld:
    """One archived log; epochs from 1 on."""

    connection: Connection
    moved: MovedSegments
    root: Path
    hot: Hot
    segments: dict[Epoch, SegmentBytes]
    manifests: dict[Epoch, Manifest]

    @property
    def store(self) -> ColdStore:
        """The cold store."""
        return self.connection.store

    def file_of(self, epoch: int) -> Path:
        """The first file of a segment, as it was archived."""
        manifest = self.manifests[Epoch(epoch)]
        return self.root / manifest.path_of(manifest.files[0])

    def list_files(self) -> set[str]:
        """Every file of the archive."""
        return {file.path for file in self.store.list("")}

    async def segment(self, epoch: int) -> AnySegment:
        """A segment's metadata."""
        found = await self.connection.nodes.read_segment(LOG, Epoch(epoch))
        assert found is not None
        return found

    async def copy(self, epoch: int) -> ColdCopy:
        """What a segment's node says of its cold copy."""
        copy = (await self.segment(epoch)).cold_copy
        assert copy is not None
        return copy

    async def change_log(self, change: Callable[[LogNode], LogNode]) -> None:
        """Change the log's node."""
        log = await self.connection.nodes.read_log(LOG)
        path = self.connection.paths.log(LOG)
        stored = await self.connection.metadata.get(path)
        assert log is not None and stored is not None
        await self.connection.metadata.set(path, encode_log(change(log)), version=stored.version)

    async def change_segment(self, epoch: int, change: Callable[[AnySegment], AnySegment]) -> None:
        """Change a segment's node."""
        path = self.connection.paths.segment(LOG, Epoch(epoch))
        stored = await self.connection.metadata.get(path)
        assert stored is not None
        data = encode_segment(change(await self.segment(epoch)))
        await self.connection.metadata.set(path, data, version=stored.version)

    async def verify(self, *, against_bookies: bool = True, **flags: Any) -> VerifyReport:
        """Verify all copies."""
        work = Verification(self.connection, run_here)
        return await work.run(against_bookies=against_bookies, **flags)


async def make_world(
    root: Path,
    make: Callable[[int], SegmentBytes | None],
    count: int,
    *,
    first_seq_num: int = 0,
    is_flexible: bool = False,
    has_holes: bool = False,
) -> ArchiveWorld:
    """A log of `count` segments.

    Args:
        make: entries of a segment, by its epoch; None: it closed empty, and is archived so.
        first_seq_num: of the first one.
        has_holes: entries that are not there were never acknowledged; otherwise they are lost.
    """
    root.mkdir(exist_ok=True)
    store = MemoryStore(MemoryTree())
    await store.start()
    paths = Paths("test")
    cold = open_cold_store(root.as_uri())
    hot = Hot()
    source = cast("BookieSource", hot)
    moved = MovedSegments(store, paths, LOG)
    nodes = ClusterNodes(store, paths, moved.fetch_run)
    connection = Connection(store, paths, nodes, source, cold, root.as_uri(), CLUSTER)
    world = ArchiveWorld(connection, moved, root, hot, {}, {})
    seq_num, totals = first_seq_num, Totals(record_count=first_seq_num)
    segments = []
    for number in range(1, count + 1):
        epoch = Epoch(number)
        entries = make(number) or SegmentBytes(ledger_of(LOG, epoch))
        entries.start_seq_num = seq_num
        world.segments[epoch] = entries
        segment = _archive(world, epoch, entries, is_flexible=is_flexible, has_holes=has_holes)
        segments.append(segment)
        hot.entries[epoch] = [
            (entry_id, read_entry_info(data).crc) for entry_id, data in entries.entries.items()
        ]
        seq_num += entries.totals.record_count
        totals = totals.plus(entries.totals)
    log = LogNode(
        LOG,
        "space",
        "log",
        LogConfig(),
        next_epoch=Epoch(count + 1),
        last_clean_epoch=count,
        totals=totals,
    )
    await store.create(
        paths.cluster, encode_node({"uuid": CLUSTER, "format": 1, "last_log_id": 9}),
        make_parents=True,
    )  # fmt: skip
    await store.create(
        paths.name("space", "log"), encode_node({"log_id": str(LOG)}), make_parents=True
    )
    await store.create(paths.log(LOG), encode_log(log), make_parents=True)
    await store.create(paths.segments(LOG), b"")
    for segment in segments:
        await store.create(paths.segment(LOG, segment.epoch), encode_segment(segment))
    return world


def _archive(
    world: ArchiveWorld, epoch: Epoch, entries: SegmentBytes, *, is_flexible: bool, has_holes: bool
) -> AnySegment:
    """Put a segment's file and manifest; its node."""
    attempt = f"{epoch:032x}"
    parts: tuple[FilePart, ...] = ()
    if entries.entries:
        data, part = write_part(entries, row_group_bytes=2_000)
        writer = world.store.open_writer(attempt_folder(CLUSTER, LOG, epoch, attempt) + part.name)
        writer.write(data)
        writer.commit()
        parts = (part,)
    last = EntryId(entries.next_entry - 1)
    absent = tuple(
        (EntryId(id_), EntryId(id_)) for id_ in range(last + 1) if id_ not in entries.entries
    )
    absences = {"holes" if has_holes else "lost": absent}
    mode = "out_of_order" if has_holes else "ordered"
    manifest = Manifest(
        cluster=CLUSTER,
        namespace="space",
        log="log",
        log_id=LOG,
        epoch=epoch,
        attempt=attempt,
        start_seq_num=entries.start_seq_num,
        last_entry=last,
        totals=entries.totals,
        files=parts,
        **absences,
        archived_unix_ms=1_000,
        history={"ack_mode": mode, "created_unix_ms": 5},
    )
    world.manifests[epoch] = manifest
    data = encode_manifest(manifest)
    world.store.put_new(manifest_path(CLUSTER, LOG, epoch), data)
    copy = ColdCopy(attempt, hashlib.sha256(data).hexdigest(), manifest.size_bytes, 1_000, 2_000)
    fields: dict[str, Any] = {
        "log_id": LOG,
        "epoch": epoch,
        "state": SegmentState.CLOSED,
        "ack_mode": mode,
        "last_entry": last,
        **absences,
        "cold_copy": copy,
        "totals": entries.totals,
        "start_seq_num": entries.start_seq_num,
        "completed_unix_ms": 900,
    }
    if is_flexible:
        nodes = tuple(
            NodesetRow(flexible.number(index), flexible.node(name, f"k{index}"))
            for index, name in enumerate("abcd")
        )
        return FlexibleSegment(
            replication=ReplicationProperty(3, 2), nodes=nodes, own_count=4, next_number=4, **fields
        ).validated()
    fragments = (Fragment(EntryId(0), ENSEMBLE),)
    return Segment(quorum=Quorum(3, 3, 2), fragments=fragments, **fields).validated()


def every_kind(epoch: int) -> SegmentBytes:
    """Entries of every kind."""
    return make_every_kind(ledger_of(LOG, Epoch(epoch)))


def released(log: LogNode) -> LogNode:
    """The log with the hot copies of all closed segments gone."""
    stateless = log.with_snapshot((log.last_clean_epoch + 1) << 32)
    return replace(stateless, first_hot_epoch=Epoch(log.last_clean_epoch + 1)).validated()


def run(work: Awaitable[T]) -> T:
    """Run a coroutine in a loop of its own."""

    async def main() -> T:
        return await work

    return asyncio.run(main())


async def compact(world: ArchiveWorld, **options: Any) -> CompactReport:
    """Compact everything."""
    return await CompactionRun(world.connection, run_here, CompactOptions(**options)).run()
