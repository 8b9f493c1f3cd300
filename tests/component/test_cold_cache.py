"""What is kept of a cold store, what waits for it, and which manifest counts.

`ColdReads` and `Archive` themselves, on a store in memory whose reads are counted and may be held
back. What readers are given by them is in `test_cold_reads`.
Source: docs/protocol/archive.md "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Incarnation, Member
from duramen.runtime.cold.memory import MemoryColdStore
from duramen.runtime.reading import cold_archive as archive_module
from duramen.runtime.reading import cold_reads as reads_module
from duramen.runtime.reading.cold_archive import Archive, ColdDamaged
from duramen.runtime.reading.cold_reads import ColdReads
from duramen.units import KIB
from duramen.wire.record_batch import encode_batch
from tests.cold_writer import archive_segment
from tests.unit.cold_entries import EPOCH, LOG, START_SEQ_NUM, SegmentBytes
from tests.waiting import wait_for

CLUSTER: Final = "c0" * 16
MEMBERS: Final = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
LOG_NODE: Final = LogNode(LOG, "ns", "log", parse_log_config({}))
ENTRY_COUNT: Final = 33
PER_GROUP_COUNT: Final = 3
BODY_BYTES: Final = KIB
GROUP_BYTES: Final = 4 * KIB
"""A row group takes three entries, as each is a little more than its body."""


class World:
    """A CLOSED segment in a cold store, three entries in a row group."""

    def __init__(self, part_count: int = 1) -> None:
        made = SegmentBytes()
        for number in range(ENTRY_COUNT):
            made.add(encode_batch([bytes([number]) * BODY_BYTES], number))
        self.entries = made.entries
        opened = Segment(LOG, EPOCH, Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
        self.closed = opened.closed(
            last_entry=EntryId(ENTRY_COUNT - 1), totals=made.totals,
            start_seq_num=START_SEQ_NUM, completed_unix_ms=1, nonce="n",
        )  # fmt: skip
        self.store = MemoryColdStore()
        self.segment = self.archive(part_count)

    def archive(self, part_count: int = 1) -> Segment:
        """Put it there by a new attempt: the segment as its node then is."""
        copy = archive_segment(
            self.store, CLUSTER, LOG_NODE, self.closed, list(self.entries.values()),
            part_count=part_count, row_group_bytes=GROUP_BYTES,
        )  # fmt: skip
        return self.closed.with_cold_copy(copy, "n")

    def make_reads(self, cache_bytes: int = 1_000 * KIB) -> ColdReads:
        async def find_uuid() -> str:
            return CLUSTER

        return ColdReads(self.store, find_uuid, cache_bytes=cache_bytes)


def play(world: World, reads: ColdReads, scenario: Callable[[], Awaitable[None]]) -> None:
    async def work() -> None:
        try:
            async with asyncio.timeout(30):
                await scenario()
        finally:
            world.store.gate.set()
            await reads.stop()

    asyncio.run(work())


async def look_up(world: World, reads: ColdReads, number: int) -> None:
    """One entry is read, and is the one that was archived."""
    entry = EntryId(number)
    found = await reads.read(world.segment, entry, entry, 1)
    assert found == [(entry, world.entries[entry])]


async def refusal(work: Awaitable[Any]) -> str:
    with pytest.raises(DuramenError) as caught:
        await work
    return caught.value.code


# --- What is kept ---


def test_row_groups_that_were_read_are_kept_up_to_a_bound_and_read_again() -> None:
    world = World()
    cache_bytes = 3 * GROUP_BYTES
    reads = world.make_reads(cache_bytes)

    async def scenario() -> None:
        for number in [*range(ENTRY_COUNT), *range(ENTRY_COUNT)]:
            await look_up(world, reads, number)
            await wait_for(lambda: reads.statistics()["loading"] == 0)
            assert reads.statistics()["bytes"] <= cache_bytes
        assert reads.statistics()["groups"] >= 2, "as many as there is room for"

    play(world, reads, scenario)


def test_of_many_files_the_ones_that_were_read_last_stay_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open one needs no second look at its footer."""
    monkeypatch.setattr(archive_module, "_READER_COUNT_MAX", 2)
    world = World(part_count=4)
    archive = Archive(world.store, CLUSTER)
    layout = archive.load_layout(world.segment)
    first_of = {layout.place(index)[0]: index for index in reversed(range(len(layout)))}
    assert len(first_of) == 4

    def cost_reads(part: int) -> int:
        before = world.store.read_count
        archive.read_group(layout, first_of[part])
        return world.store.read_count - before

    opening = cost_reads(0)
    known = cost_reads(0)
    assert opening > known == 1
    assert [cost_reads(part) for part in (1, 0, 1)] == [opening, known, known]
    assert cost_reads(2) == opening
    assert cost_reads(1) == known
    assert cost_reads(0) == opening, "it was asked for longest ago"


# --- Which manifest counts ---


@pytest.mark.parametrize("field", ["start_seq_num", "last_entry", "totals"])
def test_a_manifest_of_another_extent_is_none_of_the_segments(field: str) -> None:
    """Start, last entry and number of records are those of the segment's node."""
    world = World()
    segment = world.segment
    assert segment.totals is not None and segment.last_entry is not None
    changes: dict[str, Any] = {
        "start_seq_num": START_SEQ_NUM + 1,
        "last_entry": EntryId(segment.last_entry - 1),
        "totals": segment.totals._replace(record_count=segment.totals.record_count + 1),
    }
    archive = Archive(world.store, CLUSTER)
    assert len(archive.load_layout(segment)) == ENTRY_COUNT // PER_GROUP_COUNT
    with pytest.raises(ColdDamaged, match="the manifest tells of"):
        archive.load_layout(replace(segment, **{field: changes[field]}))


def test_a_segment_that_was_archived_anew_is_read_by_its_new_manifest() -> None:
    """The files of the attempt before are gone, and nobody notices."""
    world = World()
    reads = world.make_reads()

    async def scenario() -> None:
        await look_up(world, reads, 0)
        world.store.files.clear()
        world.segment = world.archive()
        await look_up(world, reads, ENTRY_COUNT - 1)
        assert reads.statistics()["damaged"] == 0

    play(world, reads, scenario)


# --- Who waits ---


def test_more_row_groups_than_are_waited_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "FLIGHT_COUNT_MAX", 2)
    world = World()
    reads = world.make_reads()

    async def scenario() -> None:
        await reads.list_points(world.segment)
        world.store.gate.clear()
        far = PER_GROUP_COUNT
        waiting = [asyncio.create_task(look_up(world, reads, n * far)) for n in (0, 1)]
        await wait_for(lambda: reads.statistics()["loading"] == 2)
        assert await refusal(look_up(world, reads, 2 * far)) == "overloaded"
        joining = asyncio.create_task(look_up(world, reads, far + 1))
        world.store.gate.set()
        await asyncio.gather(*waiting, joining)
        await look_up(world, reads, 2 * far)

    play(world, reads, scenario)


def test_a_store_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers are told, and go on where it answers again."""
    monkeypatch.setattr(reads_module, "WAIT_S", 0.05)
    monkeypatch.setattr(reads_module, "SPARE_S", 0.0)
    world = World()
    reads = world.make_reads()

    async def scenario() -> None:
        world.store.gate.clear()
        assert await refusal(look_up(world, reads, 0)) == "cold_store_unavailable"
        assert reads.statistics()["failures"] == 1
        monkeypatch.setattr(reads_module, "WAIT_S", 15.0)
        world.store.gate.set()
        await look_up(world, reads, 0)

    play(world, reads, scenario)
