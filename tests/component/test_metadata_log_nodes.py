"""A keeper of a metadata log against a store: what leaves it, and what no change takes with it.

The metadata log's entries are a list of the test, packed and read as entries are; its epochs are
claimed with the keeper's change and without bookies.
Source: docs/protocol/metadata-logs.md "Changes".
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.keeper import (
    AppendMetadata,
    ClaimEpoch,
    CommitMarks,
    Keeper,
    KeeperView,
    Look,
    MakeLog,
    ReadAll,
    TrimLog,
)
from duramen.core.metadata_log.listing import PlacedRecord, SegmentListing, join
from duramen.core.metadata_log.moving import MOVE_COUNT_MAX
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Lsn,
    Member,
    ledger_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import (
    Paths,
    encode_log,
    encode_segment,
    read_any_segment,
    read_log,
)
from duramen.wire.nodes.metadata_entries import pack_metadata_batches, read_metadata_entry
from duramen.wire.record_batch import read_info
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from tests.unit.nodes import make_log

PATHS = Paths("c")
COPY = ColdCopy("0a" * 16, "1b" * 32, 100, 5, 6)
MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))


def cold_segment(epoch: int) -> Segment:
    fragments = (Fragment(EntryId(0), (MEMBER,)),)
    closed = Segment(make_log().log_id, Epoch(epoch), Quorum(1, 1, 1), fragments).closed(
        last_entry=EntryId(0), totals=Totals(1, 10), start_seq_num=epoch - 1, completed_unix_ms=5,
        nonce="c",
    )  # fmt: skip
    return closed.with_cold_copy(COPY, f"n{epoch}")


class World:
    """A store with one log of which all but the last epoch are released, and a keeper."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.nodes = MetadataLogNodes(store, PATHS)
        self.log_id = make_log().log_id
        self._nonces = itertools.count()
        self.keeper = Keeper(self.nonce)
        self.entries: list[bytes] = []
        self.wants: list[str] = []

    def nonce(self) -> str:
        return f"k{next(self._nonces)}"

    async def add_log(self, epoch_count: int) -> None:
        log = replace(
            make_log(), next_epoch=Epoch(epoch_count + 1), last_clean_epoch=epoch_count,
            totals=Totals(epoch_count, 10), first_hot_epoch=Epoch(epoch_count),
            snapshot_lsn=lsn_of(Epoch(epoch_count), EntryId(0)),
        ).validated()  # fmt: skip
        await self.store.create(PATHS.log(self.log_id), encode_log(log), make_parents=True)
        await self.store.create(PATHS.segments(self.log_id), b"")
        for epoch in range(1, epoch_count + 1):
            data = encode_segment(cold_segment(epoch))
            await self.store.create(PATHS.segment(self.log_id, Epoch(epoch)), data)

    async def read_log(self) -> LogNode:
        found = await self.store.get(PATHS.log(self.log_id))
        assert found is not None
        return read_log(found.data)

    async def read_metadata_log(self) -> LogNode:
        found = await self.store.get(PATHS.log(metadata_log_of(self.log_id)))
        assert found is not None
        return read_log(found.data)

    async def touch(self, path: str) -> None:
        """Somebody writes a node anew."""
        found = await self.store.get(path)
        assert found is not None
        await self.store.set(path, found.data, version=found.version)

    async def segment_names(self) -> list[str]:
        return sorted(await self.store.children(PATHS.segments(self.log_id)) or ())

    def records(self) -> list[PlacedRecord]:
        return [one for e in self.entries for one in read_metadata_entry(e, self.log_id)]

    async def list(self) -> SegmentListing | None:
        nodes = {}
        for name in await self.segment_names():
            found = await self.store.get(PATHS.segment(self.log_id, Epoch(int(name))))
            assert found is not None
            nodes[Epoch(int(name))] = read_any_segment(found.data)
        return join(await self.read_log(), nodes, self.records())

    async def run(self, *, until: type | None = None) -> None:
        """Carry out what the keeper wants, until it rests, or up to a kind of want."""
        self.keeper.wake()
        while self.keeper.outbox:
            want = self.keeper.outbox[0]
            if until is not None and isinstance(want, until):
                return
            self.keeper.outbox.popleft()
            self.wants.append(type(want).__name__)
            await self._carry_out(want)

    async def _carry_out(self, want: object) -> None:
        keeper = self.keeper
        match want:
            case Look():
                keeper.on_look(await self.look())
            case MakeLog():
                await self.nodes.make(want, created_unix_ms=5, nonce=self.nonce())
                keeper.on_changed(is_worth_a_look=True)
            case ClaimEpoch():
                keeper.on_opened(await self._claim(want))
            case AppendMetadata(epoch=epoch, records=records):
                lsns = [self._append(epoch, b) for b in pack_metadata_batches(records, 1)]
                log = await self.read_metadata_log()
                closed = replace(log, last_clean_epoch=log.next_epoch - 1, totals=Totals(9, 10))
                await self._set_metadata_log(closed)
                await self._add_metadata_segment(epoch)
                keeper.on_appended(lsns[0], lsns[-1])
            case CommitMarks():
                await self.nodes.commit(want)
                keeper.on_changed(is_worth_a_look=True)
            case TrimLog():
                await self.nodes.trim(self.log_id, want, unix_ms=77, nonce="t")
                keeper.on_changed(is_worth_a_look=True)
            case ReadAll():
                keeper.on_read(self.records())

    async def look(
        self, log_id: LogId | None = None, *, is_keeper: bool = True
    ) -> KeeperView | None:
        async def judge(_: LogNode) -> bool:
            return is_keeper

        return await self.nodes.look(log_id or self.log_id, judge, rested_unix_ms=1_000)

    async def _claim(self, want: ClaimEpoch) -> Epoch:
        log = await self.read_metadata_log()
        bound = self.nodes.bind_claim(want, log.next_epoch, self.nonce())
        await self.store.commit([bound])
        await self._set_metadata_log(
            replace(log, next_epoch=Epoch(log.next_epoch + 1), last_clean_epoch=log.next_epoch - 1)
        )
        return log.next_epoch

    async def _add_metadata_segment(self, epoch: Epoch) -> None:
        """Its node, as the close of the epoch leaves it."""
        segment = Segment(
            metadata_log_of(self.log_id), epoch, Quorum(1, 1, 1), (Fragment(EntryId(0), (MEMBER,)),)
        ).closed(
            last_entry=EntryId(len(self.entries) - 1), totals=Totals(9, 10), start_seq_num=0,
            completed_unix_ms=5, nonce="m",
        )  # fmt: skip
        path = PATHS.segment(segment.log_id, epoch)
        await self.store.create(path, encode_segment(segment))

    async def _set_metadata_log(self, log: LogNode) -> None:
        path = PATHS.log(log.log_id)
        found = await self.store.get(path)
        assert found is not None
        await self.store.set(path, encode_log(log), version=found.version)

    def _append(self, epoch: Epoch, batch: bytes) -> Lsn:
        entry, count = EntryId(len(self.entries)), read_info(batch).record_count
        after = Totals(count, len(batch), None, 1)
        self.entries.append(
            encode_entry(
                ledger_id=ledger_of(metadata_log_of(self.log_id), epoch), entry_id=entry,
                before=Totals(), batches=[batch], record_count=count, after=after,
            )
        )  # fmt: skip
        return lsn_of(epoch, entry)


def play(scenario: Callable[[World], Awaitable[None]], epoch_count: int = 4) -> None:
    async def run() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        world = World(store)
        await world.add_log(epoch_count)
        try:
            await scenario(world)
        finally:
            await store.close()

    asyncio.run(run())


def test_what_was_released_leaves_the_store_and_is_listed_as_it_was() -> None:
    async def scenario(world: World) -> None:
        before = await world.list()
        await world.run()
        assert await world.segment_names() == ["4"]
        after = await world.list()
        assert before is not None and after is not None
        assert after.segments == before.segments and not after.unreadable
        assert (await world.read_log()).metadata.through == 3
        made = await world.read_metadata_log()
        assert (made.name, made.config.striped.placement) == ("log", "strict")
        assert not made.unclosed_epochs, "a log that is idle keeps none open"

    play(scenario)


def test_released_segments_cost_the_store_nothing() -> None:
    async def measure(world: World) -> int:
        await world.run()
        sizes = []
        for log_id in (world.log_id, metadata_log_of(world.log_id)):
            found = await world.store.get(PATHS.log(log_id))
            assert found is not None
            sizes.append(len(found.data))
        assert len(await world.segment_names()) == 1
        return sum(sizes)

    async def few(world: World) -> None:
        costs.append(await measure(world))

    costs: list[int] = []
    play(few, 4)
    play(few, 2 * MOVE_COUNT_MAX + 10)
    assert abs(costs[1] - costs[0]) < 40, "the numbers have more digits, and that is all"


@pytest.mark.parametrize("whose", ["segment", "log"])
def test_a_move_is_made_anew_when_anything_changed_since_it_was_looked_at(whose: str) -> None:
    async def scenario(world: World) -> None:
        await world.run(until=CommitMarks)
        is_segment = whose == "segment"
        path = PATHS.segment(world.log_id, Epoch(2)) if is_segment else PATHS.log(world.log_id)
        await world.touch(path)
        (want,) = world.keeper.outbox
        assert isinstance(want, CommitMarks)
        await world.nodes.commit(want)
        assert await world.segment_names() == ["1", "2", "3", "4"], "all of it or nothing"
        await world.run()
        assert await world.segment_names() == ["4"] and world.wants.count("CommitMarks") == 2
        listing = await world.list()
        assert listing is not None and len(listing.segments) == 4

    play(scenario)


def test_a_claim_voids_what_was_looked_at_before_it() -> None:
    async def scenario(world: World) -> None:
        await world.run(until=CommitMarks)
        (want,) = world.keeper.outbox
        assert isinstance(want, CommitMarks)
        other = World(world.store)
        other.entries = world.entries
        await other.run(until=AppendMetadata)
        await world.nodes.commit(want)
        assert await world.segment_names() == ["1", "2", "3", "4"]

    play(scenario)


def test_a_metadata_log_is_made_once_and_only_for_the_log_that_was_looked_at() -> None:
    async def scenario(world: World) -> None:
        await world.run(until=MakeLog)
        (want,) = world.keeper.outbox
        assert isinstance(want, MakeLog)
        await world.touch(PATHS.log(world.log_id))
        await world.nodes.make(want, created_unix_ms=1, nonce="late")
        path = PATHS.log(metadata_log_of(world.log_id))
        assert await world.store.get(path) is None
        again = replace(want, version=want.version + 1)
        for nonce in ("first", "second"):
            await world.nodes.make(again, created_unix_ms=1, nonce=nonce)
        assert (await world.read_metadata_log()).nonce == "first"

    play(scenario)


def test_a_trim_checks_the_log_and_never_goes_back() -> None:
    async def scenario(world: World) -> None:
        await world.run()
        found = await world.store.get(PATHS.log(world.log_id))
        assert found is not None
        low, high = lsn_of(Epoch(1), EntryId(0)), lsn_of(Epoch(1), EntryId(1))

        async def trim(version: int, lsn: Lsn) -> LogNode:
            want = TrimLog(version, lsn)
            await world.nodes.trim(world.log_id, want, unix_ms=77, nonce="t")
            return await world.read_metadata_log()

        assert (await trim(found.version + 1, high)).trim.lsn == low
        trimmed = await trim(found.version, high)
        assert trimmed.trim.lsn == high
        assert await trim(found.version, low) == trimmed

    play(scenario)


def test_a_log_that_is_not_there_is_looked_at_in_vain() -> None:
    async def scenario(world: World) -> None:
        missing = metadata_log_of(world.log_id) ^ 0x8000_00FF
        view = await world.look(LogId(missing))
        assert view is None
        found = await world.look(is_keeper=False)
        assert isinstance(found, KeeperView) and found.metadata_log is None
        assert [node.segment.epoch for node in found.stored] == [1, 2, 3], "4 is hot: not read"
        assert all(node.made and node.size_bytes for node in found.stored)

    play(scenario)


def test_what_is_hot_is_read_where_a_rewrite_is_to_tell_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.run()
        before = await world.look()
        assert before is not None and before.stored == []
        log = await world.read_metadata_log()
        await world._set_metadata_log(replace(log, next_epoch=Epoch(10), last_clean_epoch=9))
        due = await world.look()
        assert due is not None and [node.segment.epoch for node in due.stored] == [4]

    play(scenario)
