"""Segments' metadata from both places: what has moved is found, and what is not known is no answer.

`MetadataRecords` and `SegmentNodes` over a store in memory and entries in a list.
Source: docs/protocol/metadata-logs.md "Reading", R4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from duramen.core.metadata_log.moving import METADATA_SEGMENT_COUNT_MAX
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId, lsn_of
from duramen.runtime.metadata_log.kept_records import KeptRecords, make_run
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.metadata_json import Paths, encode_segment
from tests.component.lagging_store import LaggingStore
from tests.moved_log import HookedStore, MetadataLogTwin, make_cold_segment, put_cold_log
from tests.unit.nodes import make_log

PATHS = Paths("c")
LOG = make_log()
LOG_ID = LOG.log_id
EPOCH_COUNT = 6


class World:
    """A log of which some epochs are released, and its metadata log."""

    def __init__(self, epoch_count: int) -> None:
        self.tree = MemoryTree()
        self.store = HookedStore(self.tree)
        self.twin = MetadataLogTwin(self.store, PATHS, LOG_ID)
        self.segments = [make_cold_segment(LOG_ID, Epoch(e)) for e in range(1, epoch_count + 1)]

    async def release(self, first_hot: int) -> None:
        """Let more of it be released."""
        await self.twin.change_log(lambda log: replace(log, first_hot_epoch=Epoch(first_hot)))

    async def lose_node(self, epoch: int) -> None:
        """A node is gone, and nothing says why."""
        path = PATHS.segment(LOG_ID, Epoch(epoch))
        found = await self.store.get(path)
        assert found is not None
        await self.store.delete(path, version=found.version)


def play(
    scenario: Callable[[World], Awaitable[None]],
    *,
    epoch_count: int = EPOCH_COUNT,
    first_hot: int = EPOCH_COUNT,
) -> None:
    async def run() -> None:
        world = World(epoch_count)
        await world.store.start()
        await put_cold_log(world.store, PATHS, LOG, epoch_count, first_hot=first_hot)
        await scenario(world)
        await world.store.close()

    asyncio.run(run())


async def refuse(looking: Awaitable[object], text: str) -> None:
    """Nothing is known, which is said and can be tried again."""
    with pytest.raises(DuramenError, match=text) as caught:
        await looking
    assert caught.value.code == "metadata_unavailable"


def test_what_has_moved_is_found_one_by_one_and_all_together() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        names = await world.store.children(PATHS.segments(LOG_ID))
        assert names == (str(EPOCH_COUNT),)
        for nodes in (world.twin.make_segment_nodes(), world.twin.make_segment_nodes()):
            for segment in world.segments:
                assert await nodes.find(LOG_ID, segment.epoch) == segment
            assert await nodes.find(LOG_ID, Epoch(EPOCH_COUNT + 1)) is None
            listing = await nodes.list_all(LOG_ID)
            assert list(listing.segments) == world.segments and not listing.unreadable

    play(scenario)


def test_records_are_read_once_and_a_move_costs_its_own_alone() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        records = world.twin.make_records()
        first = await records.read(await world.twin.read_log())
        assert first is not None and len(first) == 2
        read_count = world.twin.fetched_entry_count
        assert read_count == len(world.twin.entries)
        assert await records.read(await world.twin.read_log()) == first
        assert world.twin.fetched_entry_count == read_count
        await world.release(EPOCH_COUNT)
        await world.twin.move()
        both = await records.read(await world.twin.read_log())
        assert both is not None and len(both) == EPOCH_COUNT - 1 and both[:2] == first
        assert world.twin.fetched_entry_count == read_count + 1 == len(world.twin.entries)
        assert records.statistics()["entries_read"] == read_count + 1

    play(scenario, first_hot=3)


def test_of_many_who_ask_at_once_one_reads() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        nodes = world.twin.make_segment_nodes()
        epochs = [Epoch(1 + number % EPOCH_COUNT) for number in range(30)]
        found = await asyncio.gather(*(nodes.find(LOG_ID, epoch) for epoch in epochs))
        assert found == [world.segments[epoch - 1] for epoch in epochs]
        assert world.twin.fetch_count == len(world.twin.entries) == 1

    play(scenario)


def test_who_goes_leaves_the_reading_to_the_others() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        nodes = world.twin.make_segment_nodes()
        reached, goes_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await goes_on.wait()

        world.twin.on_fetch = wait
        one, other = (asyncio.create_task(nodes.find(LOG_ID, Epoch(n))) for n in (1, 2))
        await reached.wait()
        one.cancel()
        goes_on.set()
        assert await other == world.segments[1]
        assert one.cancelled() and world.twin.fetch_count == 1

    play(scenario)


def test_a_metadata_log_out_of_reach_is_said_and_tried_again() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        nodes = world.twin.make_segment_nodes()
        world.twin.is_away = True
        for _ in range(2):
            await refuse(nodes.find(LOG_ID, Epoch(2)), "nobody gives e1n0")
            await refuse(nodes.list_all(LOG_ID), "cannot be read")
        assert await nodes.find(LOG_ID, Epoch(EPOCH_COUNT)) == world.segments[-1], "it is hot"
        world.twin.is_away = False
        assert await nodes.find(LOG_ID, Epoch(2)) == world.segments[1]

    play(scenario)


def test_an_epoch_without_a_record_is_not_known_and_the_others_are() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        await world.release(EPOCH_COUNT)
        for epoch in (3, 4):
            await world.lose_node(epoch)
        await world.twin.change_log(
            lambda log: replace(log, metadata=log.metadata._replace(through=4))
        )
        nodes = world.twin.make_segment_nodes()
        await refuse(nodes.find(LOG_ID, Epoch(3)), "no record of them can be found")
        listing = await nodes.list_all(LOG_ID)
        assert listing.unreadable == (3, 4)
        assert [segment.epoch for segment in listing.segments] == [1, 2, 5, 6]

    play(scenario, first_hot=3)


def test_a_node_that_is_nowhere_is_no_conclusion() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        await world.lose_node(EPOCH_COUNT)
        nodes = world.twin.make_segment_nodes()
        await refuse(nodes.find(LOG_ID, Epoch(EPOCH_COUNT)), "nothing says why")
        await refuse(nodes.list_all(LOG_ID), "nothing says why")

    play(scenario)


def test_what_was_given_up_is_gone_and_not_asked_for() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        await world.twin.change_log(
            lambda log: replace(log, trim_lsn=lsn_of(Epoch(3), EntryId(0)), trim_seq_num=2,
                                first_live_epoch=Epoch(3))
        )  # fmt: skip
        nodes = world.twin.make_segment_nodes()
        assert await nodes.find(LOG_ID, Epoch(2)) is None
        assert world.twin.fetch_count == 0
        assert list((await nodes.list_all(LOG_ID)).segments) == world.segments[2:]

    play(scenario)


def test_a_node_that_was_put_back_beats_its_record() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        back = replace(world.segments[1], completed_unix_ms=77)
        await world.store.create(PATHS.segment(LOG_ID, Epoch(2)), encode_segment(back))
        nodes = world.twin.make_segment_nodes()
        assert await nodes.find(LOG_ID, Epoch(2)) == back
        assert (await nodes.list_all(LOG_ID)).segments[1] == back

    play(scenario)


@pytest.mark.parametrize("whose", ["entry", "node", "segment"])
def test_damage_makes_all_that_has_moved_unreadable_and_nothing_absent(whose: str) -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        if whose == "entry":
            (lsn, entry), *_ = world.twin.entries.items()
            world.twin.entries[lsn] = entry[:-1] + bytes([entry[-1] ^ 1])
        else:
            log_id = world.twin.metadata_log_id
            is_node = whose == "node"
            path = PATHS.log(log_id) if is_node else PATHS.segment(log_id, Epoch(1))
            found = await world.store.get(path)
            assert found is not None
            await world.store.set(path, b"{}", version=found.version)
        nodes = world.twin.make_segment_nodes()
        await refuse(nodes.find(LOG_ID, Epoch(2)), "cannot be read")
        await refuse(nodes.list_all(LOG_ID), "cannot be read")

    play(scenario)


def test_an_epoch_that_ends_below_what_counts_is_damage() -> None:
    """An older record of the same epoch would be taken for the last one."""

    async def scenario(world: World) -> None:
        await world.twin.move()
        await world.twin.change_log(
            lambda log: replace(
                log, metadata=log.metadata._replace(lsn=lsn_of(Epoch(1), EntryId(7)))
            )
        )
        nodes = world.twin.make_segment_nodes()
        await refuse(nodes.find(LOG_ID, Epoch(2)), "e1 of it ends below n7")

    play(scenario)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_who_meets_a_rewrite_and_its_trim_begins_again(*, is_dropped: bool) -> None:
    """While it reads, the records are copied and the old ones are trimmed, and maybe dropped."""

    async def scenario(world: World) -> None:
        twin = world.twin
        for first_hot in range(2, METADATA_SEGMENT_COUNT_MAX + 2):  # each opens an epoch
            await world.release(first_hot)
            await twin.move()
        before = (await twin.read_log()).metadata
        assert (before.first_lsn, before.through) == (None, METADATA_SEGMENT_COUNT_MAX)

        async def rewrite() -> None:
            twin.on_fetch = None
            await world.release(METADATA_SEGMENT_COUNT_MAX + 2)
            await twin.move()
            first = (await twin.read_log()).metadata.first_lsn
            assert first is not None, "one was due"
            for lsn in [lsn for lsn in twin.entries if lsn < first and is_dropped]:
                del twin.entries[lsn]

        twin.on_fetch = rewrite
        nodes = twin.make_segment_nodes()
        assert await nodes.find(LOG_ID, Epoch(2)) == world.segments[1]
        listing = await nodes.list_all(LOG_ID)
        assert list(listing.segments) == world.segments and not listing.unreadable
        assert listing.log.metadata.through == METADATA_SEGMENT_COUNT_MAX + 1

    play(scenario, epoch_count=METADATA_SEGMENT_COUNT_MAX + 2, first_hot=1)


def test_nodes_that_move_while_they_are_listed_are_listed_once() -> None:
    async def scenario(world: World) -> None:
        world.store.before[PATHS.segment(LOG_ID, Epoch(3))] = world.twin.move
        listing = await world.twin.make_segment_nodes().list_all(LOG_ID)
        assert list(listing.segments) == world.segments and not listing.unreadable
        assert listing.log.metadata.through == EPOCH_COUNT - 1, "of the moment after the move"

    play(scenario)


def test_a_node_that_moves_before_it_is_read_is_found() -> None:
    async def scenario(world: World) -> None:
        world.store.before[PATHS.segment(LOG_ID, Epoch(3))] = world.twin.move
        nodes = world.twin.make_segment_nodes()
        assert await nodes.find(LOG_ID, Epoch(3)) == world.segments[2]

    play(scenario)


def test_what_has_moved_is_found_however_old_ones_server_is() -> None:
    async def scenario(world: World) -> None:
        lagging = LaggingStore(world.tree)
        await lagging.start()
        await lagging.fall_behind(PATHS.log(LOG_ID))
        await world.twin.move()
        records = MetadataRecords(lagging, PATHS, world.twin.fetch_run)
        nodes = SegmentNodes(lagging, PATHS, records)
        assert await nodes.find(LOG_ID, Epoch(2)) == world.segments[1]
        await lagging.fall_behind(PATHS.log(LOG_ID))
        await world.twin.change_log(lambda log: log.with_new_epoch("n"))
        await refuse(nodes.list_all(LOG_ID), "nothing says why")
        await lagging.close()

    play(scenario)


def test_a_log_that_is_not_there_is_not_found() -> None:
    async def scenario(world: World) -> None:
        nodes = world.twin.make_segment_nodes()
        other = type(LOG_ID)(LOG_ID + 1)
        for looking in (nodes.find(other, Epoch(1)), nodes.list_all(other)):
            with pytest.raises(DuramenError) as caught:
                await looking
            assert caught.value.code == "log_not_found"

    play(scenario)


def test_what_is_kept_is_bounded_by_bytes_and_what_was_dropped_is_read_again() -> None:
    async def scenario(world: World) -> None:
        await world.twin.move()
        log = await world.twin.read_log()
        records = await world.twin.make_records().read(log)
        assert records is not None
        run = make_run(None, records[-1].lsn, records)
        kept = KeptRecords(3 * run.size_bytes)
        for number in range(1, 6):
            kept.put(LogId(number), run)
            kept.put(LogId(number), run)
            assert kept.find(LogId(1)) is run, "it is used"
        assert kept.statistics() == {"logs": 3, "bytes": 3 * run.size_bytes}
        assert [n for n in range(1, 6) if kept.find(LogId(n)) is not None] == [1, 4, 5]

    play(scenario)
