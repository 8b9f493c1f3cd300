"""Restore on bookies in memory: what is written, what is refused, what a killed one leaves.

Against real bookies: tests/spark/test_archive_companions.py. Source: docs/archive.md.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from duramen.client.bookie_client import BookieClient
from duramen.config import LogConfig, parse_log_config
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LedgerId, LogId, epoch_of, ledger_of
from duramen.runtime.http_client import OverloadedError, PeerClient, UnreachableError
from duramen.wire.bookie_calls import pack_statuses, parse_any_adds
from duramen.wire.cold.paths import parse_path, segment_folder
from duramen.wire.cold.rebuild import ColdDataError
from duramen.wire.edge import batch_codec
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import (
    HEADER_BYTES,
    check_entry,
    encode_entry,
    open_payload,
    read_entry_info,
)
from duramen.wire.flexible.envelope import parse_envelope
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.record_batch import decode_batch, encode_batch, split_batches
from duramen.wire.repair_calls import Inventory, InventoryAnswer, Source
from duramen_spark.restore.catalogue import find_archived_log, load_log
from duramen_spark.restore.driver import Restore, Restored
from duramen_spark.restore.plan import RestoreError, plan_restore
from tests.component.archive_world import (
    CLUSTER,
    LOG,
    ArchiveWorld,
    compact,
    every_kind,
    make_world,
    run,
)
from tests.unit.cold_entries import SegmentBytes, make_compressed

Entries = dict[tuple[int, int], bytes]


class Bookies:
    """Bookies as a restore sees them: adds by URL, inventories."""

    def __init__(self) -> None:
        self.held: dict[str, Entries] = {}
        self.envelopes: dict[str, Entries] = {}
        self.on_add: Callable[[str, int], Awaitable[BookieStatus]] | None = None
        self.forgets: set[tuple[str, int]] = set()

    async def call(self, url: str, body: bytes, _timeout_us: int) -> bytes:
        """As `PeerClient`."""
        name = url.removeprefix("http://").removesuffix("/b/add")
        _, adds = parse_any_adds(body)
        statuses = []
        for add in adds:
            assert add.is_recovery
            status = BookieStatus.OK
            if self.on_add is not None:
                status = await self.on_add(name, add.entry_id)
            if status is BookieStatus.OK:
                entries = self.held.setdefault(name, {})
                is_new = (add.ledger_id, add.entry_id) not in entries
                entries[add.ledger_id, add.entry_id] = bytes(add.entry)
                if add.envelope and is_new:  # a copy keeps what it was stored with
                    kept = self.envelopes.setdefault(name, {})
                    kept[add.ledger_id, add.entry_id] = bytes(add.envelope)
            statuses.append(status)
        return pack_statuses(statuses)

    async def take_inventory(self, source: Source, wanted: Inventory) -> InventoryAnswer:
        """As `BookieClient`; two entries at a time."""
        name = source.data_url.removeprefix("http://")
        found = sorted(
            (EntryId(entry), check_entry(data).crc)
            for (ledger, entry), data in self.held.get(name, {}).items()
            if ledger == wanted.ledger_id and wanted.first <= entry <= wanted.last
            and (name, entry) not in self.forgets
        )  # fmt: skip
        after = found[2][0] if len(found) > 2 else None
        return InventoryAnswer(BookieStatus.OK, next=after, entries=found[:2])

    async def close(self) -> None:
        """Nothing is open."""


async def prepare(
    path: Path, make: Callable[[int], SegmentBytes | None], count: int, **more: Any
) -> tuple[ArchiveWorld, Bookies]:
    """An archived log, a namespace to restore to, and four bookies."""
    world = await make_world(path / "cold", make, count, **more)
    store, paths = world.connection.metadata, world.connection.paths
    await store.create(paths.namespace("space"), encode_node({}), make_parents=True)
    for number in range(4):
        node = {
            "incarnation": f"{number:032x}",
            "region": "here",
            "rack": f"r{number}",
            "data_url": f"http://b{number}",
            "state": "rw",
        }
        await store.create(f"{paths.available}/b{number}", encode_node(node), make_parents=True)
    return world, Bookies()


async def allow_flexible(world: ArchiveWorld, *, format_: int = 2) -> None:
    """Register the bookies as those that keep envelopes, in a tree that knows flexible logs."""
    store, paths = world.connection.metadata, world.connection.paths
    for number in range(4):
        path = f"{paths.available}/b{number}"
        stored = await store.get(path)
        assert stored is not None
        fields = {**read_node(stored.data), "formats": {"segment": 2, "envelope": 1}}
        await store.set(path, encode_node(fields), version=stored.version)
        await store.create(paths.bookie(f"b{number}"), encode_node(fields), make_parents=True)
    stored = await store.get(paths.cluster)
    assert stored is not None
    data = encode_node({**read_node(stored.data), "format": format_})
    await store.set(paths.cluster, data, version=stored.version)


async def restore(
    world: ArchiveWorld,
    bookies: Bookies,
    name: str = "again",
    config: LogConfig | None = None,
) -> Restored:
    """Restore everything that is archived."""
    manifests = load_log(world.store, CLUSTER, LOG)
    work = Restore(
        world.connection,
        plan_restore(manifests),
        namespace="space",
        name=name,
        config=config or LogConfig(),
        client=cast("PeerClient", bookies),
        bookies=cast("BookieClient", bookies),
    )
    return await work.run()


async def read_named(world: ArchiveWorld, name: str = "again") -> LogNode | None:
    """The log that has a name."""
    paths = world.connection.paths
    stored = await world.connection.metadata.get(paths.name("space", name))
    if stored is None:
        return None
    return await world.connection.nodes.read_log(LogId(int(read_node(stored.data)["log_id"])))


def decode(data: bytes) -> Any:
    """What a reader sees of an entry, and its header but for lengths."""
    info = check_entry(data)
    totals = info.totals._replace(length_bytes=0)
    if info.is_control:
        return info.entry_id, totals, data[HEADER_BYTES:]
    batches = [decode_batch(batch) for batch in split_batches(data[HEADER_BYTES:])]
    rows = [
        (one.bodies, list(one.timestamps_ms), one.txids and list(one.txids), one.headers,
         one.info.producer, one.info.codec) for one in batches
    ]  # fmt: skip
    return info.entry_id, info.first_position, info.has_state, totals, rows


def test_every_record_is_in_its_place(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(
            tmp_path, lambda n: None if n == 2 else every_kind(n), 4, first_seq_num=700
        )
        await compact(world)
        assert find_archived_log(world.store, CLUSTER, "space", "log") == LOG
        restored = await restore(world, bookies)
        log = await read_named(world)
        assert log is not None and restored.is_new and log.log_id == restored.log_id == 10
        own = await world.connection.nodes.read_log(LOG)
        assert own is not None
        assert (log.next_epoch, log.last_clean_epoch) == (own.next_epoch, own.last_clean_epoch)
        assert log.totals.record_count == own.totals.record_count
        assert log.totals.max_txid == own.totals.max_txid
        assert log.trim.seq_num == 700 and not log.is_deleted
        for epoch, segment in world.segments.items():
            node = await world.connection.nodes.read_segment(log.log_id, epoch)
            assert isinstance(node, Segment) and node.start_seq_num == segment.start_seq_num
            assert node.last_entry == segment.next_entry - 1 and node.fragments[0].is_proved
            ledger = ledger_of(log.log_id, epoch)
            for entry_id, data in segment.entries.items():
                copies = [
                    held[ledger, entry_id]
                    for held in bookies.held.values()
                    if (ledger, entry_id) in held
                ]
                assert len(copies) == 3 and len(set(copies)) == 1
                assert decode(copies[0]) == decode(data)
        again = await restore(world, bookies)
        assert (again.is_new, again.log_id) == (False, restored.log_id)

    run(work())


def test_what_is_left_is_compacted_alone(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 3)
        await compact(world)
        for path in world.list_files():
            if parse_path(path) is not None:
                world.store.delete(path)
        assert find_archived_log(world.store, CLUSTER, "space", "log") == LOG
        restored = await restore(world, bookies)
        assert restored.to_json()["records"] == 63

    run(work())


def test_lengths_are_those_of_what_is_stored(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        await restore(world, bookies)
        log = await read_named(world)
        assert log is not None
        node = await world.connection.nodes.read_segment(log.log_id, Epoch(1))
        assert node is not None and node.totals is not None
        held = {key: data for one in bookies.held.values() for key, data in one.items()}
        last = check_entry(held[max(held)])
        assert last.totals == node.totals
        original = world.segments[Epoch(1)].totals
        assert node.totals._replace(length_bytes=0) == original._replace(length_bytes=0)

    run(work())


def test_batches_that_compress_otherwise_than_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of the library, or level: lengths move for all that follows, nothing else."""

    def make(epoch: int) -> SegmentBytes:
        chance = random.Random(epoch)
        segment = SegmentBytes(ledger_of(LOG, Epoch(epoch)))
        for index in range(4):
            body = bytes(chance.choices(b"abcdefgh ", k=20_000))
            segment.add(encode_batch([body, body[:99]], 5, txids=[index] * 2, codec=Codec.ZSTD))
            segment.add(encode_batch([b"plain"], 6), encode_batch([body], 7, codec=Codec.ZSTD))
        return segment

    async def work() -> None:
        with monkeypatch.context() as then:
            then.setattr(batch_codec, "_LEVEL", 19)
            world, bookies = await prepare(tmp_path, make, 2)
        restored = await restore(world, bookies)
        for epoch, segment in world.segments.items():
            ledger = ledger_of(restored.log_id, epoch)
            held = {key: data for one in bookies.held.values() for key, data in one.items()}
            length_bytes = 0
            for entry_id, data in segment.entries.items():
                found = check_entry(held[ledger, entry_id])
                length_bytes += found.payload_bytes
                assert found.totals.length_bytes == length_bytes
                assert decode(held[ledger, entry_id]) == decode(data)
            node = await world.connection.nodes.read_segment(restored.log_id, epoch)
            assert node is not None and node.totals is not None
            assert node.totals.length_bytes == length_bytes != segment.totals.length_bytes

    run(work())


def test_what_lay_in_compressed_entries_is_restored_as_compressed_batches(tmp_path: Path) -> None:
    """The same records and places; entries that every version reads, whatever the log has."""

    async def work() -> None:
        world, bookies = await prepare(
            tmp_path, lambda epoch: make_compressed(ledger_of(LOG, Epoch(epoch))), 2
        )
        restored = await restore(world, bookies)
        held = {key: data for one in bookies.held.values() for key, data in one.items()}
        for epoch, segment in world.segments.items():
            ledger = ledger_of(restored.log_id, epoch)
            for entry_id, data in segment.entries.items():
                found, was = check_entry(held[ledger, entry_id]), check_entry(data)
                assert not found.is_compressed
                plain = encode_entry(
                    ledger_id=was.ledger_id, entry_id=was.entry_id, flags=0,
                    before=Totals(was.first_position), after=was.totals._replace(
                        length_bytes=was.payload_bytes
                    ), batches=[bytes(open_payload(data))], record_count=was.record_count,
                )  # fmt: skip
                if was.is_control:
                    assert decode(held[ledger, entry_id]) == decode(data)
                    continue
                *place, rows = decode(held[ledger, entry_id])
                _, position, _, totals, meant = decode(plain)
                assert place == [entry_id, position, was.has_state, totals]
                assert [row[:-1] for row in rows] == [row[:-1] for row in meant]
                assert all(row[-1] is Codec.ZSTD for row in rows) or not was.is_compressed

    run(work())


def test_a_killed_restore_leaves_no_name_and_is_purged(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 3)
        count = 0

        async def die(_name: str, _entry: int) -> BookieStatus:
            nonlocal count
            count += 1
            if count == 60:
                raise Killed
            return BookieStatus.OK

        bookies.on_add = die
        with pytest.raises(ExceptionGroup) as raised:
            await restore(world, bookies)
        assert raised.group_contains(Killed)
        assert await read_named(world) is None
        left = await world.connection.nodes.read_log(LogId(10))
        # What deletes logs sees a deleted one, with the segments that were done.
        assert left is not None and left.is_deleted and left.last_clean_epoch == 1
        bookies.on_add = None
        restored = await restore(world, bookies)
        assert restored.is_new and restored.log_id == 11

    run(work())


FLEXIBLE = parse_log_config(
    {"copysets": "flexible", "replication": {"node": 2, "rack": 2, "extras": 1}}
)


@pytest.mark.parametrize("to_flexible", [False, True])
@pytest.mark.parametrize("is_flexible", [False, True])
def test_holes_are_holes_of_the_restored_log(
    tmp_path: Path, is_flexible: bool, to_flexible: bool
) -> None:
    async def work() -> None:
        world, bookies = await prepare(
            tmp_path, every_kind, 2, is_flexible=is_flexible, has_holes=True
        )
        await allow_flexible(world)
        config = FLEXIBLE if to_flexible else None
        restored = await restore(world, bookies, config=config)
        for epoch in (1, 2):
            node = await world.connection.nodes.read_segment(restored.log_id, Epoch(epoch))
            assert isinstance(node, FlexibleSegment if to_flexible else Segment)
            assert (node.holes, node.lost, node.ack_mode) == (((7, 7),), (), "out_of_order")
            if isinstance(node, FlexibleSegment):
                assert node.missing_record_count == 1
            assert not any((node.ledger_id, EntryId(7)) in held for held in bookies.held.values())

    run(work())


def test_into_a_flexible_log_each_block_has_a_copyset(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, lambda n: None if n == 2 else every_kind(n), 3)
        await allow_flexible(world)
        restored = await restore(world, bookies, config=FLEXIBLE)
        for epoch, archived in world.segments.items():
            node = await world.connection.nodes.read_segment(restored.log_id, epoch)
            assert isinstance(node, FlexibleSegment) and node.is_proved
            assert (node.own_count, node.next_number, node.guest_count) == (4, 4, 0)
            assert node.start_seq_num == archived.start_seq_num
            assert node.last_entry == archived.next_entry - 1
            present = sum(
                info.record_count for info in map(read_entry_info, archived.entries.values())
            )
            assert node.totals is not None
            assert node.missing_record_count == node.totals.record_count - present
            for entry_id, data in archived.entries.items():
                check_copies(bookies, node, entry_id, data)

    run(work())


def check_copies(
    bookies: Bookies, node: FlexibleSegment, entry_id: EntryId, archived: bytes
) -> None:
    """Copies satisfy RP without a copy too many, and each names them all, and its block."""
    key = node.ledger_id, entry_id
    rows = [row for row in node.nodes if key in bookies.held.get(row.node.bookie, {})]
    assert node.replication.is_satisfied_by(row.node for row in rows)
    assert len(rows) == node.replication.node == 2, "extras are for waves that may fail"
    for row in rows:
        data = bookies.held[row.node.bookie][key]
        assert decode(data) == decode(archived)
        kept = bookies.envelopes[row.node.bookie][key]
        envelope = parse_envelope(kept, node.ledger_id, entry_id, check_entry(data).crc)
        assert set(envelope.copyset) == {one.number for one in rows}
        assert envelope.block == EntryId(0), "all of it is less than a block has"


def test_where_a_nodeset_fails_the_rest_is_tried_and_what_lies_there_is_no_fault(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 8)
        await allow_flexible(world)

        bad = ""

        async def fail(name: str, entry: int) -> BookieStatus:
            nonlocal bad
            bad = bad or name
            return BookieStatus.READ_ONLY if name == bad and entry > 2 else BookieStatus.OK

        bookies.on_add = fail
        config = parse_log_config({"copysets": "flexible", "replication": {"node": 2, "rack": 2}})
        restored = await restore(world, bookies, config=config)
        for epoch in world.segments:
            node = await world.connection.nodes.read_segment(restored.log_id, epoch)
            assert isinstance(node, FlexibleSegment)
            for entry in range((node.last_entry or 0) + 1):
                if node.absence_at(EntryId(entry)) is not None:
                    continue
                held = [
                    row.node
                    for row in node.nodes
                    if (node.ledger_id, entry) in bookies.held.get(row.node.bookie, {})
                ]
                assert node.replication.is_satisfied_by(held)
        assert bookies.held[bad], "the first entries of a block went there"

    run(work())


def test_a_flexible_copy_that_is_not_there_after_all_is_found(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        await allow_flexible(world)
        bookies.forgets = {(f"b{number}", 3) for number in range(4)}
        with pytest.raises(RestoreError, match="entries, not the"):
            await restore(world, bookies, config=FLEXIBLE)
        assert await read_named(world) is None

    run(work())


def test_a_cluster_of_an_older_format_takes_no_flexible_log(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        await allow_flexible(world, format_=1)
        with pytest.raises(DuramenError, match="create one first") as raised:
            await restore(world, bookies, config=FLEXIBLE)
        assert raised.value.code == "placement_impossible"
        assert await world.connection.nodes.read_log(LogId(10)) is None
        assert (await restore(world, bookies)).is_new, "a striped one it takes"

    run(work())


def test_too_few_bookies_for_a_nodeset_are_named(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        await allow_flexible(world)
        config = parse_log_config({"copysets": "flexible", "replication": {"node": 5, "rack": 1}})
        with pytest.raises(DuramenError, match="bookies") as raised:
            await restore(world, bookies, config=config)
        assert raised.value.code == "placement_impossible"

    run(work())


def test_a_bookie_that_fails_is_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 2)
        asked = 0

        async def fail(name: str, _entry: int) -> BookieStatus:
            nonlocal asked
            asked += name == "b1"
            if name == "b1":
                raise UnreachableError("nobody is there")
            return BookieStatus.OK

        bookies.on_add = fail
        restored = await restore(world, bookies)
        for epoch in (1, 2):
            node = await world.connection.nodes.read_segment(restored.log_id, Epoch(epoch))
            assert isinstance(node, Segment)
            assert sorted(member.bookie for member in node.fragments[0].ensemble) == [
                "b0",
                "b2",
                "b3",
            ]

    run(work())


def test_bookies_that_are_overloaded_are_asked_again(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        refusals = 5

        async def refuse(_name: str, entry: int) -> BookieStatus:
            nonlocal refusals
            if refusals:
                refusals -= 1
                if entry == 0:
                    raise OverloadedError("busy", 1_000)
                return BookieStatus.OVERLOADED
            return BookieStatus.OK

        bookies.on_add = refuse
        assert (await restore(world, bookies)).is_new and refusals == 0

    run(work())


def test_what_a_bookie_does_not_hold_is_seen(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        bookies.forgets = {(f"b{number}", 4) for number in range(4)}
        with pytest.raises(RestoreError, match="holds 11 entries, not the 12"):
            await restore(world, bookies)
        assert await read_named(world) is None

    run(work())


def test_damaged_archives_are_not_restored(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 2)
        path = world.file_of(2)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(ColdDataError):
            await restore(world, bookies)
        assert await read_named(world) is None
        path.write_bytes(data[:-1])
        with pytest.raises(RestoreError, match="e2 is not whole"):
            load_log(world.store, CLUSTER, LOG)

    run(work())


def test_gaps_and_beginnings(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 4)
        manifests = load_log(world.store, CLUSTER, LOG)
        with pytest.raises(RestoreError, match="records 21 to 41, between epochs 1 and 3"):
            plan_restore([manifests[0], *manifests[2:]])
        assert plan_restore([manifests[0], *manifests[2:]], Epoch(1)).last == 1
        with pytest.raises(RestoreError, match="nothing of this log"):
            plan_restore([])
        for file in list(world.store.list(segment_folder(CLUSTER, LOG, Epoch(1)))):
            world.store.delete(file.path)
        restored = await restore(world, bookies)
        log = await read_named(world)
        assert log is not None and restored.plan.first == 2
        assert (log.first_live_epoch, log.trim.seq_num) == (2, 21)
        assert log.totals.record_count == 84
        ledgers = {LedgerId(ledger) for held in bookies.held.values() for ledger, _ in held}
        assert {epoch_of(ledger) for ledger in ledgers} == {2, 3, 4}

    run(work())


def test_names_that_are_taken(tmp_path: Path) -> None:
    async def work() -> None:
        world, bookies = await prepare(tmp_path, every_kind, 1)
        with pytest.raises(DuramenError) as refused:
            await restore(world, bookies, name="log")
        assert refused.value.code == "log_exists_with_other_config"
        with pytest.raises(RestoreError, match="no log of this name"):
            find_archived_log(world.store, CLUSTER, "space", "other")
        store, paths = world.connection.metadata, world.connection.paths
        await store.delete(paths.namespace("space"), version=0)
        with pytest.raises(DuramenError) as missing:
            await restore(world, bookies)
        assert missing.value.code == "namespace_not_found"
        assert bookies.held == {}

    run(work())
