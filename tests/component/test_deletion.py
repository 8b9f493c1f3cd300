"""What deletion drops and purges, and above all what it leaves alone.

Metadata is in memory, what the bookie holds is a table of the test. Every case of "leaves alone"
runs long after any delay, so that nothing is spared merely for being early. Two mutants show that
the cases can fail: one trusts an empty listing, one a missing node.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from duramen.config import LogConfig
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
    log_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import MetadataStore, Stored, Unavailable, Watch
from duramen.units import DAY, SECOND
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from duramen_bookie.upkeep.deletion import Deletion, DeletionPlan
from tests.component import upkeep_world
from tests.component.holders import Holder, sights
from tests.waiting import wait_for

DELAY_US = 60 * SECOND
PATHS = Paths("test")
UUID = "c" * 32
LOG = LogId(9)
NO_ENTRY = NOTHING


def e(*epochs: int) -> list[Epoch]:
    return [Epoch(epoch) for epoch in epochs]


def log_node(log_id: LogId = LOG, **fields: Any) -> LogNode:
    """A log with epochs 1 … 9, of which the last is open."""
    fields = {"next_epoch": Epoch(10), "last_clean_epoch": 8, **fields}
    return LogNode(log_id, "ns", f"log-{log_id}", LogConfig(), **fields).validated()


def tombstone(log_id: LogId = LOG) -> LogNode:
    """What is left of a log that was deleted longer than the undelete window ago."""
    return log_node(log_id, last_clean_epoch=9, is_deleted=True, is_purged=True)


def segment(epoch: int, last_entry: int | None = None) -> Segment:
    """A segment: CLOSED at `last_entry`, OPEN without."""
    fragment = Fragment(EntryId(0), (Member(BookieId("b"), Incarnation("0" * 32)),))
    made = Segment(LOG, Epoch(epoch), Quorum(1, 1, 1), (fragment,), nonce="n")
    if last_entry is None:
        return made
    return made.closed(
        last_entry=EntryId(last_entry),
        totals=Totals(),
        start_seq_num=0,
        completed_unix_ms=1,
        nonce="n",
    )


class World:
    """A cluster's metadata, a bookie's holdings, a clock, and deletion between them."""

    def __init__(self, make: type[Deletion] = Deletion) -> None:
        self.tree = MemoryTree()
        self.store = RecordingStore(self.tree)
        self.holder = Holder()
        self.now_us = 0
        self._make = make
        self.deletion = self.make_deletion()

    def make_deletion(self, **settings: int) -> Deletion:
        return self._make(
            self.store,
            PATHS,
            UUID,
            self.holder,
            now_us=lambda: self.now_us,
            **{"delay_us": DELAY_US, **settings},
        )

    async def start(self) -> World:
        await self.store.start()
        await self.put(PATHS.cluster, encode_node({"uuid": UUID, "format": 1, "last_log_id": 9}))
        return self

    async def put(self, path: str, data: bytes) -> None:
        found = self.tree.get(path)
        if found is None:
            await self.store.create(path, data, make_parents=True)
        else:
            await self.store.set(path, data, version=found.version)

    async def put_log(self, node: LogNode) -> None:
        await self.put(PATHS.log(node.log_id), encode_log(node))

    async def put_segment(self, made: Segment) -> None:
        await self.put(PATHS.segment(made.log_id, made.epoch), encode_segment(made))

    async def run_rounds(self, count: int = 3) -> None:
        """Rounds, a day apart."""
        for _ in range(count):
            self.now_us += DAY
            await self.deletion.run_round()

    async def wait_dropped(self, count: int) -> None:
        await wait_for(lambda: len(self.holder.dropped) == count)

    def count(self, name: str) -> int:
        found = self.deletion.statistics()[name]
        assert isinstance(found, int)
        return found


class RecordingStore(MemoryStore):
    """Remembers what was called, and fails where it is told to."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.calls: list[tuple[str, str]] = []
        self.failing: dict[str, int] = {}
        self.under_way = self.under_way_max = 0

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        self.calls.append(("get", path))
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            if self.failing.get(path, 0):
                self.failing[path] -= 1
                raise Unavailable("no such luck")
            return await super().get(path, watch)
        finally:
            self.under_way -= 1

    async def sync(self, path: str) -> None:
        self.calls.append(("sync", path))
        await super().sync(path)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...] | None:
        self.calls.append(("children", path))
        return await super().children(path, watch)


def run(scenario: Callable[[World], Awaitable[None]], make: type[Deletion] = Deletion) -> None:
    async def in_world() -> None:
        await scenario(await World(make).start())

    upkeep_world.run(in_world)


# --- Decisions -----------------------------------------------------------------------------------


def test_dead_epochs_are_dropped_when_they_are_proved_again_after_the_delay() -> None:
    plan = DeletionPlan(delay_us=DELAY_US)
    node = log_node(first_live_epoch=Epoch(4))
    assert plan.judge_log(node, sights(2, 3, 4), 0).drop_below is None
    assert plan.judge_log(node, sights(2, 3, 4), DELAY_US - 1).drop_below is None
    assert plan.judge_log(node, sights(2, 3, 4), DELAY_US).drop_below == 4


def test_what_died_later_waits_a_delay_of_its_own() -> None:
    plan = DeletionPlan(delay_us=DELAY_US)
    early, late = (log_node(first_live_epoch=Epoch(epoch)) for epoch in (3, 5))
    plan.judge_log(early, sights(2, 3, 4), 0)
    assert plan.judge_log(late, sights(2, 3, 4), DELAY_US).drop_below == 3
    assert plan.judge_log(late, sights(3, 4), DELAY_US + 1).drop_below is None
    assert plan.judge_log(late, sights(3, 4), 2 * DELAY_US + 1).drop_below == 5


def test_a_tombstone_kills_every_epoch_that_is_here() -> None:
    plan = DeletionPlan(delay_us=0)
    node = tombstone()
    assert plan.judge_log(node, sights(1, 9), 0).drop_below == 10
    assert plan.judge_log(node, sights(1, 30), 0).drop_below == 31


def test_a_mark_that_fell_back_proves_nothing_until_the_delay_is_over_again() -> None:
    plan = DeletionPlan(delay_us=DELAY_US)
    high, low, none = (log_node(first_live_epoch=Epoch(epoch)) for epoch in (5, 3, 1))
    plan.judge_log(high, sights(2, 4), 0)
    assert plan.judge_log(low, sights(2, 4), DELAY_US).drop_below is None
    plan.judge_log(none, sights(2, 4), DELAY_US + 1)
    assert plan.judge_log(high, sights(2, 4), 3 * DELAY_US).drop_below is None


def test_live_epochs_and_logs_without_ledgers_need_no_drop() -> None:
    plan = DeletionPlan(delay_us=0)
    node = log_node(first_live_epoch=Epoch(4))
    assert plan.judge_log(node, sights(4, 5), 0).drop_below is None
    assert plan.judge_log(node, [], 0).drop_below is None


def test_a_proof_is_forgotten_with_its_log() -> None:
    plan = DeletionPlan(delay_us=DELAY_US)
    node = log_node(first_live_epoch=Epoch(4))
    plan.judge_log(node, sights(2), 0)
    assert plan.statistics()["ripening_logs"] == 1
    plan.begin_round([])
    assert plan.statistics()["ripening_logs"] == 0


def test_only_closed_ledgers_with_entries_above_their_lac_may_hold_leftovers() -> None:
    plan = DeletionPlan(delay_us=0)
    node = log_node(last_clean_epoch=3)
    held = [*sights(1, 4, lac=5, highest=9), *sights(2, lac=5, highest=5)]
    verdict = plan.judge_log(node, sorted(held), 0)
    assert [ledger.epoch for ledger in verdict.unproved] == e(1)


def test_the_end_of_a_closed_segment_is_read_once() -> None:
    plan = DeletionPlan(delay_us=0)
    (ledger,) = sights(2, lac=5, highest=7)
    assert plan.judge_segment(segment(2, 7), ledger) is None
    verdict = plan.judge_log(log_node(), [ledger], 0)
    assert (verdict.unproved, verdict.leftovers) == ([], [])
    late = ledger._replace(highest=EntryId(8))
    assert plan.judge_log(log_node(), [late], 0).leftovers == [(2, 7)]


def test_rounds_go_around_and_begin_where_the_last_one_ended() -> None:
    plan = DeletionPlan(delay_us=0)
    logs = [LogId(number) for number in (2, 4, 6)]
    walk = plan.begin_round(logs)
    assert [next(walk), next(walk)] == [2, 4]
    assert list(plan.begin_round([LogId(1), *logs])) == [6, 1, 2, 4]
    assert list(plan.begin_round(logs)) == [6, 2, 4]


# --- What is dropped -----------------------------------------------------------------------------


def test_a_trimmed_log_loses_its_dead_ledgers_and_keeps_the_others() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 2, 3, 4, 9)
        await world.put_log(log_node(first_live_epoch=Epoch(4)))
        await world.run_rounds(1)
        assert world.holder.dropped == []
        await world.run_rounds(1)
        assert world.holder.dropped == [ledger_of(LOG, epoch) for epoch in e(2, 3)]

    run(scenario)


def test_a_log_that_released_hot_copies_loses_those_ledgers_and_keeps_the_others() -> None:
    released = log_node(first_hot_epoch=Epoch(4), snapshot_lsn=8 << 32)

    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 2, 3, 4, 9)
        await world.put_log(released)
        await world.run_rounds(1)
        assert world.holder.dropped == [], "the proof is read twice"
        await world.run_rounds(1)
        assert world.holder.dropped == [ledger_of(LOG, epoch) for epoch in e(2, 3)]

    run(scenario)


def test_a_log_with_a_metadata_log_is_understood() -> None:
    """What has moved has no segment node, and the log node alone says that it may be dropped."""
    moved = log_node(
        first_hot_epoch=Epoch(4),
        snapshot_lsn=8 << 32,
        metadata=MetadataMarks(1, 2, None, lsn_of(Epoch(1), EntryId(5))),
    )

    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 2, 3, 4, 9)
        await world.put_log(moved)
        await world.run_rounds(2)
        assert world.holder.dropped == [ledger_of(LOG, epoch) for epoch in e(2, 3)]
        assert world.count("nodes_unusable") == 0

    run(scenario)


def test_a_metadata_log_loses_what_it_gave_up_as_any_log() -> None:
    metadata_log = metadata_log_of(LOG)

    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 2)
        world.holder.hold(metadata_log, 2, 5)
        await world.put_log(log_node())
        await world.put_log(log_node(metadata_log, first_live_epoch=Epoch(5)))
        await world.run_rounds(2)
        assert world.holder.dropped == [ledger_of(metadata_log, Epoch(2))]

    run(scenario)


@pytest.mark.parametrize(("first_live", "first_hot"), [(6, 3), (3, 6)])
def test_the_greater_of_both_bounds_counts(first_live: int, first_hot: int) -> None:
    node = log_node(
        first_live_epoch=Epoch(first_live), first_hot_epoch=Epoch(first_hot), snapshot_lsn=8 << 32
    )
    assert DeletionPlan(delay_us=0).judge_log(node, sights(2, 5, 6), 0).drop_below == 6


def test_a_deleted_log_keeps_every_ledger_while_it_can_be_had_back() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 1, 8, 9)
        await world.put_log(log_node(is_deleted=True, last_clean_epoch=9))
        await world.run_rounds()
        assert world.holder.dropped == []

    run(scenario)


def test_a_purged_log_loses_every_ledger() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 1, 8, 9)
        await world.put_log(tombstone())
        await world.run_rounds()
        assert world.holder.list_logs() == []

    run(scenario)


def test_leftovers_beyond_a_closed_end_are_purged_once() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 3, lac=5, highest=8)
        world.holder.hold(LOG, 4, lac=NO_ENTRY, highest=2)
        world.holder.hold(LOG, 5, lac=5, highest=7)
        await world.put_log(log_node())
        await world.put_segment(segment(3, 6))
        await world.put_segment(segment(4, NO_ENTRY))
        await world.put_segment(segment(5, 7))
        await world.run_rounds()
        assert world.holder.purged == [(3, 6), (4, NO_ENTRY)]
        assert world.holder.dropped == []

    run(scenario)


# --- What is left alone --------------------------------------------------------------------------


async def nothing_is_listed(world: World) -> None:
    """The log lives, its segments are not listed, neither is anything else."""
    world.holder.hold(LOG, 1, 2, 9, lac=5, highest=8)
    await world.put_log(log_node())
    assert await world.store.children(PATHS.segments(LOG)) is None
    await world.run_rounds()
    assert (world.holder.dropped, world.holder.purged) == ([], [])


async def the_log_is_missing(world: World) -> None:
    """No node at all, as after a restore that lost it."""
    world.holder.hold(LOG, 1, 2, 9, lac=5, highest=8)
    await world.run_rounds()
    assert (world.holder.dropped, world.holder.purged) == ([], [])
    assert world.count("nodes_missing") == 3


class TrustsListings(Deletion):
    """A mutant: what is not listed is dead."""

    async def _visit(self, log_id: LogId) -> None:
        listed = await self._store.children(self._paths.segments(log_id)) or ()
        for ledger in self._holdings.list_sights_of(log_id):
            if str(ledger.epoch) not in listed:
                self._holdings.drop(log_id, ledger.epoch, is_all_below=False)


class TrustsAbsence(Deletion):
    """A mutant: a log without node was deleted."""

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        return await super()._read_log(log_id) or tombstone(log_id)


def test_an_empty_listing_proves_nothing() -> None:
    run(nothing_is_listed)


def test_a_missing_log_node_proves_nothing() -> None:
    run(the_log_is_missing)


def test_a_deletion_that_trusts_an_empty_listing_is_caught() -> None:
    with pytest.raises(AssertionError):
        run(nothing_is_listed, TrustsListings)


def test_a_deletion_that_trusts_a_missing_node_is_caught() -> None:
    with pytest.raises(AssertionError):
        run(the_log_is_missing, TrustsAbsence)


def test_nothing_is_ever_listed() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 1, 3, 9, lac=5, highest=8)
        await world.put_log(log_node(first_live_epoch=Epoch(2)))
        await world.put_segment(segment(3, 6))
        await world.run_rounds()
        assert "children" not in {call for call, _ in world.store.calls}

    run(scenario)


def test_every_node_is_read_after_a_sync_of_its_own() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 3, lac=5, highest=8)
        await world.put_log(log_node())
        await world.put_segment(segment(3, 6))
        await world.run_rounds(1)
        paths = [PATHS.cluster, PATHS.log(LOG), PATHS.segment(LOG, Epoch(3))]
        assert world.store.calls == [(call, path) for path in paths for call in ("sync", "get")]

    run(scenario)


@pytest.mark.parametrize("state", ["open", "marked", "missing", "of another epoch", "junk"])
def test_without_a_segment_that_shows_closed_no_entry_is_purged(state: str) -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 3, lac=5, highest=8)
        await world.put_log(log_node())
        path = PATHS.segment(LOG, Epoch(3))
        if state == "open":
            await world.put_segment(segment(3))
        elif state == "marked":
            await world.put_segment(segment(3).marked("m"))
        elif state == "of another epoch":
            await world.put(path, encode_segment(segment(4, 6)))
        elif state == "junk":
            await world.put(path, b"{}")
        await world.run_rounds()
        assert (world.holder.dropped, world.holder.purged) == ([], [])

    run(scenario)


def test_a_bad_segment_node_does_not_hide_the_next_one() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 3, 4, lac=5, highest=8)
        await world.put_log(log_node())
        await world.put(PATHS.segment(LOG, Epoch(3)), b"{}")
        await world.put_segment(segment(4, 6))
        await world.run_rounds(1)
        assert world.holder.purged == [(4, 6)]
        assert world.count("nodes_unusable") == 1

    run(scenario)


@pytest.mark.parametrize("what", ["junk", "of another log", "a text for a tombstone"])
def test_a_log_node_that_is_not_the_logs_proves_nothing(what: str) -> None:
    async def scenario(world: World) -> None:
        world.deletion = world.make_deletion(delay_us=0)
        world.holder.hold(LOG, 1, 2)
        dead = encode_log(tombstone())
        if what == "junk":
            dead = b"\xff"
        elif what == "of another log":
            dead = encode_log(tombstone(LogId(8)))
        else:
            dead = json.dumps({**json.loads(dead), "purged": "false"}).encode()
        await world.put(PATHS.log(LOG), dead)
        await world.run_rounds()
        assert world.holder.dropped == []

    run(scenario)


@pytest.mark.parametrize("cluster", [None, b"{}", encode_node({"uuid": "d" * 32})])
def test_the_nodes_of_another_cluster_prove_nothing(cluster: bytes | None) -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 1, 2)
        await world.put_log(tombstone())
        if cluster is None:
            await world.store.delete(PATHS.cluster, version=0)
        else:
            await world.put(PATHS.cluster, cluster)
        await world.run_rounds()
        assert world.holder.dropped == []
        assert world.count("rounds_cut") == 3

    run(scenario)


# --- Trouble, bounds, life -----------------------------------------------------------------------


def test_a_read_that_fails_is_made_up_for_in_the_next_round() -> None:
    async def scenario(world: World) -> None:
        world.deletion = world.make_deletion(concurrency=1)
        for number in range(1, 6):
            world.holder.hold(LogId(number), 1)
            await world.put_log(tombstone(LogId(number)))
        await world.run_rounds(1)
        world.store.failing[PATHS.log(LogId(3))] = 1
        await world.run_rounds(1)
        assert [log_of(ledger) for ledger in world.holder.dropped] == [1, 2]
        assert world.count("rounds_cut") == 1
        await world.run_rounds(1)
        assert [log_of(ledger) for ledger in world.holder.dropped] == [1, 2, 4, 5, 3]

    run(scenario)


def test_without_a_session_nothing_is_read_and_later_rounds_go_on() -> None:
    async def scenario(world: World) -> None:
        world.holder.hold(LOG, 1)
        await world.put_log(tombstone())
        world.store.disconnect()
        world.store.calls.clear()
        await world.run_rounds()
        assert world.store.calls == []
        world.store.reconnect()
        await world.run_rounds()
        assert world.holder.dropped == [ledger_of(LOG, Epoch(1))]

    run(scenario)


def test_a_round_reads_so_many_nodes_so_many_at_once_and_all_are_read_in_turn() -> None:
    async def scenario(world: World) -> None:
        world.deletion = world.make_deletion(read_count_max=10, concurrency=4)
        for number in range(1, 26):
            world.holder.hold(LogId(number), 1)
            await world.put_log(tombstone(LogId(number)))
        most = 0
        for _ in range(6):
            world.store.calls.clear()
            await world.run_rounds(1)
            most = max(most, sum(call == "get" for call, _ in world.store.calls))
        assert most == 10
        assert world.store.under_way_max <= 4
        assert world.holder.list_logs() == []

    run(scenario)


def test_segment_reads_count_too_and_continue_in_later_rounds() -> None:
    async def scenario(world: World) -> None:
        world.deletion = world.make_deletion(read_count_max=4)
        world.holder.hold(LOG, *range(1, 9), lac=5, highest=8)
        await world.put_log(log_node())
        for epoch in range(1, 9):
            await world.put_segment(segment(epoch, 6))
        for _ in range(4):
            world.store.calls.clear()
            await world.run_rounds(1)
            assert len(world.store.calls) <= 8, "a sync and a get each"
        assert [epoch for epoch, _ in world.holder.purged] == e(*range(1, 9))

    run(scenario)


def test_a_started_deletion_works_until_it_is_stopped() -> None:
    async def scenario(world: World) -> None:
        world.deletion = Deletion(world.store, PATHS, UUID, world.holder, interval_us=0, delay_us=0)
        world.deletion.start()
        for epoch in (1, 2):
            world.holder.hold(LOG, epoch)
            node = log_node(first_live_epoch=Epoch(epoch + 1))
            await world.put_log(replace(node, nonce=str(epoch)))
            await world.wait_dropped(epoch)
        await world.deletion.stop()
        assert world.count("drops") == 2

    run(scenario)


def test_the_recording_store_is_a_metadata_store() -> None:
    store: MetadataStore = RecordingStore(MemoryTree())
    assert store.statistics()["reads"] == 0
