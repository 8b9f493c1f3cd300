"""Segments' metadata from both places, against a store: what is read, how often, and what is said.

The rules are in `tests/unit/test_metadata_log.py`.
Source: docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId, lsn_of, metadata_log_of
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_log, encode_segment, read_log
from tests.component.moved_segments import FIRST, MEMBER, MovedSegments, released
from tests.unit.nodes import make_log

PATHS = Paths("c")
COPY = ColdCopy("0a" * 16, "1b" * 32, 100, 5, 6)
LOG = make_log().log_id
COUNT = 5
THROUGH = 3


class World:
    """A log of five segments, of which three may move."""

    def __init__(self, store: MemoryStore, log_id: LogId = LOG) -> None:
        self.store = store
        self.log_id = log_id
        self.moved = MovedSegments(store, PATHS, log_id)
        self.nodes = self.moved.open_nodes()

    async def begin(self) -> None:
        log = replace(
            make_log(), log_id=self.log_id, next_epoch=Epoch(COUNT + 1), last_clean_epoch=COUNT,
            totals=Totals(COUNT, 10),
        )  # fmt: skip
        path = PATHS.log(self.log_id)
        await self.store.create(path, encode_log(released(log, THROUGH)), make_parents=True)
        await self.store.create(PATHS.segments(self.log_id), b"")
        for epoch in map(Epoch, range(1, COUNT + 1)):
            path = PATHS.segment(self.log_id, epoch)
            await self.store.create(path, encode_segment(self.segment(epoch)))

    def segment(self, epoch: int) -> Segment:
        closed = Segment(
            self.log_id, Epoch(epoch), Quorum(1, 1, 1), (Fragment(EntryId(0), (MEMBER,)),)
        ).closed(
            last_entry=EntryId(0), totals=Totals(1, 10), start_seq_num=epoch - 1,
            completed_unix_ms=5, nonce="c",
        )  # fmt: skip
        return closed.with_cold_copy(COPY, f"n{epoch}")

    async def read_log(self, log_id: LogId) -> LogNode:
        found = await self.store.get(PATHS.log(log_id))
        assert found is not None
        return read_log(found.data)

    async def change_log(self, log_id: LogId, change: Callable[[LogNode], LogNode]) -> None:
        path = PATHS.log(log_id)
        found = await self.store.get(path)
        assert found is not None
        data = encode_log(change(read_log(found.data)))
        await self.store.set(path, data, version=found.version)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        world = World(store)
        await world.begin()
        try:
            await scenario(world)
        finally:
            await store.close()

    asyncio.run(run())


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(DuramenError) as caught:
        await work
    return caught.value.code


def test_each_epoch_is_found_where_it_is() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        for epoch in range(1, COUNT + 1):
            found = await world.nodes.find(world.log_id, Epoch(epoch))
            assert found == world.segment(epoch)
        assert await world.nodes.find(world.log_id, Epoch(COUNT + 1)) is None
        await world.change_log(world.log_id, lambda log: replace(log, first_live_epoch=Epoch(2)))
        assert await world.nodes.find(world.log_id, Epoch(1)) is None
        assert [s.epoch for s in (await world.nodes.list_all(world.log_id)).segments] == [
            2,
            3,
            4,
            5,
        ]
        assert await refused(world.nodes.find(LogId(99), Epoch(1))) == "log_not_found"

    play(scenario)


def test_what_was_read_of_one_version_is_read_once() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        for _ in range(3):
            for epoch in range(1, THROUGH + 1):
                await world.nodes.find(world.log_id, Epoch(epoch))
            await world.nodes.list_all(world.log_id)
        assert world.moved.read_count == len(world.moved.entries) == 1

    play(scenario)


def test_a_stored_epoch_is_found_without_the_metadata_log() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        world.moved.is_away = True
        assert await world.nodes.find(world.log_id, Epoch(4)) == world.segment(4)
        assert world.moved.read_count == 0
        assert await refused(world.nodes.find(world.log_id, Epoch(2))) == "metadata_unavailable"
        assert await refused(world.nodes.list_all(world.log_id)) == "metadata_unavailable"

    play(scenario)


def test_a_missing_node_or_record_is_never_an_absence() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH, unrecorded=(2,))
        listing = await world.nodes.list_all(world.log_id)
        assert listing.unreadable == (2,) and len(listing.segments) == COUNT - 1
        assert await refused(world.nodes.find(world.log_id, Epoch(2))) == "metadata_unavailable"
        path = PATHS.segment(world.log_id, Epoch(4))
        found = await world.store.get(path)
        assert found is not None
        await world.store.delete(path, version=found.version)
        assert await refused(world.nodes.find(world.log_id, Epoch(4))) == "metadata_unavailable"
        assert await refused(world.nodes.list_all(world.log_id)) == "metadata_unavailable"

    play(scenario)


def test_a_metadata_log_that_was_trimmed_above_the_marks_says_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        metadata_log = metadata_log_of(world.log_id)
        end = lsn_of(Epoch(FIRST + 1), EntryId(0))
        await world.change_log(metadata_log, lambda log: replace(log, trim_lsn=end))
        log = await world.read_log(world.log_id)
        assert await world.nodes.read_moved(log) is None
        assert await refused(world.nodes.find(world.log_id, Epoch(1))) == "metadata_unavailable"
        assert world.moved.read_count == 0, "what lies below the trim point counts for nothing"

    play(scenario)


def test_a_damaged_entry_makes_everything_unreadable() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        world.moved.entries[0] = world.moved.entries[0][:-1] + b"?"
        assert await refused(world.nodes.find(world.log_id, Epoch(1))) == "metadata_unavailable"

    play(scenario)


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    async def scenario(world: World) -> None:
        await world.moved.move(THROUGH)
        other = World(world.store, LogId(world.log_id + 1))
        await other.begin()
        await other.moved.move(THROUGH)

        async def fetch(
            segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
        ) -> list[tuple[EntryId, bytes]]:
            asked = other if segment.log_id == metadata_log_of(other.log_id) else world
            return await asked.moved.fetch_run(segment, first, last, bytes_max)

        records = MetadataRecords(world.store, PATHS, fetch, kept_bytes=1)
        for log_id in (world.log_id, other.log_id, world.log_id, world.log_id):
            assert await records.read(await world.read_log(log_id))
        assert (world.moved.read_count, other.moved.read_count) == (2, 1)
        assert records.statistics()["logs"] == 1

    play(scenario)
