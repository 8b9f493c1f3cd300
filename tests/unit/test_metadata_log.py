"""Segment nodes that leave ZooKeeper: whatever happens in between, nothing is unlisted.

The properties play keepers, readers, the archive and retention in `metadata_log_world`; each rule
that is broken there on purpose must show. Source: docs/protocol/metadata-logs.md.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.keeper import (
    HISTORY_COUNT_MAX,
    AppendMetadata,
    ClaimEpoch,
    CommitMarks,
    Keeper,
    KeeperView,
    Look,
    MakeLog,
    Want,
)
from duramen.core.metadata_log.listing import PlacedRecord, Whereabouts, find_counting, join
from duramen.core.metadata_log.lookup import (
    LOOK_COUNT_MAX,
    ListingLookup,
    LookupStep,
    SegmentLookup,
    Unreadable,
)
from duramen.core.metadata_log.moving import (
    MOVE_BYTES_MAX,
    NODE_BYTES_MAX,
    StoredNode,
    is_rewrite_due,
    list_move_records,
    plan_move,
    plan_rewrite,
)
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.segment import Segment
from duramen.ids import EntryId, Epoch, Lsn, lsn_of
from tests.unit import metadata_log_world
from tests.unit.metadata_log_world import KeeperProcess, World, play

STEP_COUNT = 2_000
RESTED_MS = 1 << 62
"""No cold copy is fresh."""


def play_many(*broken: str) -> None:
    for seed in range(20):
        play(seed, STEP_COUNT, broken)


# --- Properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(14))
def test_whatever_happens_nothing_is_unlisted(seed: int) -> None:
    play(seed, STEP_COUNT)


def test_the_lives_that_are_played_are_lives() -> None:
    counts = play(2, 2 * STEP_COUNT).counts
    assert min(counts.values()) > 0, counts


@pytest.mark.parametrize(
    "rule",
    [
        "any-log-node",
        "any-node-version",
        "rewrite-reads-what-counts",
        "trims-before-the-commit",
        "trimmed-is-read-on",
    ],
)
def test_each_rule_that_is_broken_shows(rule: str) -> None:
    with pytest.raises(AssertionError):
        play_many(rule)


def test_a_reader_that_takes_a_missing_node_for_given_up_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def conclude(lookup: SegmentLookup, segment: Any) -> None:
        lookup.wanted, lookup.result = LookupStep.NOTHING, segment or Whereabouts.GIVEN_UP

    monkeypatch.setattr(SegmentLookup, "on_node", conclude)
    with pytest.raises(AssertionError):
        play_many()


# --- A keeper that was overtaken -----------------------------------------------------------------


def make_world(*broken: str, epoch_count: int = 3) -> World:
    """So many closed and archived epochs, all but the last one released."""
    world = World(random.Random(1), broken, hearing=1.0)
    for _ in range(epoch_count):
        world.open_epoch()
        world.close_epoch()
    for epoch in map(Epoch, range(1, epoch_count + 1)):
        world.archive_epoch(epoch)
        world.archive_epoch(epoch)
    for _ in range(epoch_count - 1):
        world.release()
    return world


def run_until(process: KeeperProcess, is_so: Callable[[], bool]) -> None:
    for _ in range(200):
        if is_so():
            return
        process.step()
    raise AssertionError(f"it never comes to that: {process.keeper.outbox}")


def is_next(process: KeeperProcess, kind: type[Want]) -> Callable[[], bool]:
    return lambda: bool(process.keeper.outbox) and isinstance(process.keeper.outbox[0], kind)


def overtake(*broken: str) -> World:
    """One keeper reads nodes; another one's move of newer versions is still under way."""
    world = make_world(*broken)
    late, early = KeeperProcess(world), KeeperProcess(world)
    run_until(early, is_next(early, AppendMetadata))
    early.keeper, before = Keeper(world.make_nonce), early.keeper
    early.keeper.epoch = before.epoch  # it goes on in its epoch, and is to look again
    early.keeper.wake()
    run_until(late, is_next(late, AppendMetadata))
    world.set_node(Epoch(1), replace(world.nodes[Epoch(1)].segment, nonce="compacted"))
    run_until(early, lambda: world.counts["moves"] > 0 or early.keeper.is_resting)
    for _ in range(30):
        late.step()
        world.check()
    world.release()
    run_until(late, lambda: world.log.metadata.through == 3)
    world.check()
    return world


def test_a_record_of_an_overtaken_keeper_never_becomes_the_last() -> None:
    overtake()
    overtake("claim-checks-only")
    overtake("looks-before-it-seals")
    with pytest.raises(AssertionError, match="listed as it was"):
        overtake("claim-checks-only", "looks-before-it-seals")


def replace_copy(world: World) -> None:
    epoch = Epoch(world.log.metadata.through + 1)
    if epoch in world.nodes:
        world.set_node(epoch, replace(world.nodes[epoch].segment, nonce=world.make_nonce()))


def open_and_close(world: World) -> None:
    world.open_epoch()
    world.close_epoch()


@pytest.mark.parametrize(
    ("event", "dies"),
    [
        (replace_copy, False),
        (replace_copy, True),
        (World.configure, False),
        (World.give_up, False),
        (World.release, False),
        (open_and_close, False),
    ],
)
def test_at_each_point_of_a_keeper_another_may_come_and_anything_change(
    event: Callable[[World], None], dies: bool
) -> None:
    """Complete: one keeper to each of its points, a change, the other to each of its own, and then
    both to their end."""
    for first_count, second_count in itertools.product(range(26), repeat=2):
        world = make_world(epoch_count=4)
        one, other = KeeperProcess(world), KeeperProcess(world)
        one.tell()
        _step(one, first_count)
        event(world)
        world.check()
        _step(other, second_count)
        if dies:
            one.die()
        event(world)
        _step(one, 30)
        _step(other, 30)
        _step(one, 30)
        assert world.log.metadata.through == world.log.first_hot_epoch - 1


def _step(process: KeeperProcess, count: int) -> None:
    world = process.world
    for _ in range(count):
        before = world.version, len(world.records)
        process.step()
        if before != (world.version, len(world.records)):
            world.check()


def make_late_history() -> World:
    """History of before the archive's work, told when its epoch has moved; then another moves."""
    world = moved_world()
    process = KeeperProcess(world)
    before = next(one for one in world.versions[Epoch(1)] if one.is_closed)
    process.keeper.tell(MetadataRecord(MetadataKind.TOLD, before, 1, 1))
    run_until(process, lambda: any(p.record.segment == before for p in world.records))
    world.release()
    run_until(process, lambda: world.log.metadata.through == 3)
    return world


def test_history_never_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(log: LogNode, records: Iterable[PlacedRecord]) -> dict[Epoch, MetadataRecord]:
        moved = [
            placed._replace(record=replace(placed.record, kind=MetadataKind.MOVED))
            for placed in records
        ]
        return find_counting(log, moved)

    world = make_late_history()
    world.check()
    monkeypatch.setattr(metadata_log_world, "find_counting", count)
    with pytest.raises(AssertionError, match="listed as it was"):
        world.check()


def test_a_move_whose_answer_is_lost_is_known_by_what_stands_there() -> None:
    world = make_world()
    process = KeeperProcess(world)
    run_until(process, is_next(process, CommitMarks))
    (want,) = process.keeper.outbox
    process.keeper.outbox.clear()
    assert isinstance(want, CommitMarks) and world.commit(want)
    process.keeper.on_changed(is_worth_a_look=True)
    for _ in range(20):
        process.step()
    assert world.log.metadata.through == 2 and world.counts["moves"] == 1


def test_a_keeper_dies_between_record_and_move() -> None:
    world = make_world()
    process = KeeperProcess(world)
    run_until(process, is_next(process, CommitMarks))
    process.die()
    world.archive()
    world.check()
    run_until(process, lambda: world.log.metadata.through == 2)
    world.check()
    assert world.log.metadata.epoch == 2, "the next one opens an epoch of its own"


def test_a_keeper_that_was_overtaken_rests() -> None:
    world = make_world()
    process = KeeperProcess(world)
    run_until(process, is_next(process, CommitMarks))
    (want,) = process.keeper.outbox
    process.keeper.outbox.clear()
    world.claim(ClaimEpoch(world.log, world.version))
    assert isinstance(want, CommitMarks) and not world.commit(want)
    process.keeper.on_changed(is_worth_a_look=True)
    run_until(process, lambda: process.keeper.is_resting)
    assert process.keeper.epoch is None and world.counts["claims"] == 2


def test_a_purged_or_foreign_log_is_left_alone() -> None:
    world = make_world()
    for log, is_keeper in ((world.log, False), (replace(world.log, is_deleted=True), True)):
        keeper = Keeper(world.make_nonce)
        keeper.wake()
        assert isinstance(keeper.outbox.popleft(), Look)
        keeper.on_look(KeeperView(log, 0, None, _stored(world), RESTED_MS, is_keeper=is_keeper))
        assert keeper.is_resting and not keeper.outbox


def test_history_waits_for_nobody_and_is_bounded() -> None:
    world = make_world()
    keeper = Keeper(world.make_nonce)
    for number in range(HISTORY_COUNT_MAX + 5):
        keeper.tell(MetadataRecord(MetadataKind.TOLD, world.nodes[Epoch(1)].segment, number, 1))
    assert keeper.is_resting
    keeper.wake()
    keeper.outbox.popleft()
    keeper.on_look(KeeperView(world.log, 7, None, (), RESTED_MS, is_keeper=True))
    assert keeper.outbox.popleft() == MakeLog(world.log, 7)
    keeper.on_changed(is_worth_a_look=True)
    keeper.outbox.popleft()
    world.make_metadata_log(world.version)
    keeper.on_look(KeeperView(world.log, 7, world.metadata_log, (), RESTED_MS, is_keeper=True))
    want = keeper.outbox.popleft()
    assert isinstance(want, ClaimEpoch)
    epoch = world.claim(replace(want, version=world.version))
    keeper.on_opened(epoch)
    keeper.outbox.popleft()
    keeper.on_look(KeeperView(world.log, 8, world.metadata_log, (), RESTED_MS, is_keeper=True))
    append = keeper.outbox.popleft()
    assert isinstance(append, AppendMetadata) and len(append.records) == HISTORY_COUNT_MAX
    keeper.tell(MetadataRecord(MetadataKind.TOLD, world.nodes[Epoch(2)].segment, 0, 1))
    keeper.on_appended(at(1, 0), at(1, 0))
    keeper.outbox.popleft()
    keeper.on_look(KeeperView(world.log, 8, world.metadata_log, (), RESTED_MS, is_keeper=True))
    want = keeper.outbox.popleft()
    assert isinstance(want, ClaimEpoch), "what was written is in a closed epoch"
    keeper.on_opened(world.claim(replace(want, version=world.version)))
    keeper.outbox.popleft()
    keeper.on_look(KeeperView(world.log, 9, world.metadata_log, (), RESTED_MS, is_keeper=True))
    rest = keeper.outbox.popleft()
    assert isinstance(rest, AppendMetadata) and [record.epoch for record in rest.records] == [2]


def test_history_that_overflows_while_it_is_written_is_no_rewrite() -> None:
    world = moved_world()
    process = KeeperProcess(world)
    marks = world.log.metadata
    told = MetadataRecord(MetadataKind.TOLD, world.nodes[Epoch(3)].segment, 0, 1)
    process.keeper.tell(told)
    run_until(process, is_next(process, AppendMetadata))
    for _ in range(2 * HISTORY_COUNT_MAX):
        process.keeper.tell(told)
    for _ in range(40):
        process.step()
        world.check()
    changed = world.log.metadata._replace(epoch=marks.epoch)
    assert changed == marks, "history changes no mark"


# --- What may leave ------------------------------------------------------------------------------


def at(epoch: int, entry: int) -> Lsn:
    return lsn_of(Epoch(epoch), EntryId(entry))


def _stored(world: World, size_bytes: int = 700) -> list[StoredNode]:
    return [
        StoredNode(node.segment, node.version, node.made, size_bytes)
        for _, node in sorted(world.nodes.items())
    ]


def test_what_bookies_keep_stays() -> None:
    world = make_world(epoch_count=5)
    assert [node.segment.epoch for node in plan_move(world.log, _stored(world), RESTED_MS)] == [
        1,
        2,
        3,
        4,
    ]


def test_what_was_not_rechecked_stays_and_so_does_what_follows() -> None:
    world = make_world(epoch_count=5)
    stored = _stored(world)
    first = stored[1].segment
    assert first.cold_copy is not None
    fresh = replace(first, cold_copy=replace(first.cold_copy, rechecked_unix_ms=None))
    stored[1] = stored[1]._replace(segment=replace(fresh, last_entry=EntryId(0)))
    assert [node.segment.epoch for node in plan_move(world.log, stored, RESTED_MS)] == [1]


def test_a_fresh_cold_copy_stays_for_compaction_and_so_does_what_follows() -> None:
    world = make_world(epoch_count=5)
    stored = _stored(world)
    segment = stored[2].segment
    assert segment.cold_copy is not None
    fresh = replace(segment, cold_copy=segment.cold_copy.rechecked(78), last_entry=EntryId(0))
    stored[2] = stored[2]._replace(segment=fresh)
    assert [node.segment.epoch for node in plan_move(world.log, stored, 77)] == [1, 2]
    assert [node.segment.epoch for node in plan_move(world.log, stored, 78)] == [1, 2, 3, 4]


def test_no_more_leaves_at_once_than_fits() -> None:
    world = make_world(epoch_count=5)
    large = _stored(world, MOVE_BYTES_MAX // 5)
    assert len(plan_move(world.log, large, RESTED_MS)) == 4
    assert not plan_move(world.log, _stored(world, NODE_BYTES_MAX + 1), RESTED_MS)


def test_a_gap_is_a_mistake_of_ours() -> None:
    world = make_world(epoch_count=5)
    with pytest.raises(AssertionError):
        plan_move(world.log, _stored(world)[1:], RESTED_MS)


def test_given_up_epochs_need_no_record() -> None:
    world = make_world(epoch_count=5)
    world.give_up()
    world.give_up()
    assert [node.segment.epoch for node in plan_move(world.log, _stored(world), RESTED_MS)] == [
        3,
        4,
    ]


def test_a_rewrite_leaves_nothing_out() -> None:
    world = moved_world()
    records = world.records
    copies = plan_rewrite(world.log, records, _stored(world))
    assert copies is not None
    assert [(copy.epoch, copy.kind) for copy in copies] == [
        (1, MetadataKind.MOVED), (2, MetadataKind.MOVED), (3, MetadataKind.TOLD),
    ]  # fmt: skip
    assert plan_rewrite(world.log, records[1:], ()) is None, "a record that counts is missing"


def test_a_node_that_fits_in_no_record_is_not_told() -> None:
    world = make_world()
    large = _stored(world)
    large[1] = large[1]._replace(size_bytes=NODE_BYTES_MAX + 1)
    copies = plan_rewrite(world.log, (), large)
    assert copies is not None and [copy.epoch for copy in copies] == [1, 3]


def test_a_metadata_log_is_rewritten_beyond_eight_segments() -> None:
    world = moved_world()
    assert world.metadata_log is not None
    log = replace(world.metadata_log, next_epoch=Epoch(9), last_clean_epoch=8)
    assert not is_rewrite_due(log)
    assert is_rewrite_due(replace(log, next_epoch=Epoch(10)))
    trimmed = replace(log, next_epoch=Epoch(10), trim_lsn=at(2, 5), trim_seq_num=1)
    assert not is_rewrite_due(trimmed)


# --- Reading -------------------------------------------------------------------------------------


def moved_world() -> World:
    """Epochs 1 and 2 have moved, 3 has not."""
    world = make_world()
    process = KeeperProcess(world)
    run_until(process, lambda: world.log.metadata.through == 2)
    return world


def segments_of(world: World) -> dict[Epoch, Segment]:
    return {epoch: node.segment for epoch, node in world.nodes.items()}


def test_only_what_the_log_node_says_counts() -> None:
    world = moved_world()
    marks = world.log.metadata
    assert marks.lsn is not None
    assert sorted(find_counting(world.log, world.records)) == [1, 2]
    first = world.records[0]
    stale = replace(first.record, node_version=0)
    told = replace(first.record, kind=MetadataKind.TOLD)
    above = PlacedRecord(Lsn(marks.lsn + 1), stale)
    of_three = replace(first.record, segment=world.nodes[Epoch(3)].segment)
    more = [*world.records, PlacedRecord(marks.lsn, told), PlacedRecord(marks.lsn, of_three), above]
    assert find_counting(world.log, more) == find_counting(world.log, world.records)
    twice = [PlacedRecord(at(1, 0), stale), *world.records]
    assert find_counting(world.log, twice)[Epoch(1)] == first.record, "of several the last"
    behind = world.log.with_metadata(marks.claimed(Epoch(2)).rewritten(at(2, 0), at(2, 1)), "r")
    assert not find_counting(behind, world.records), "what lies below the first counts for nothing"


def test_a_node_that_is_there_beats_any_record() -> None:
    world = moved_world()
    restored = replace(world.versions[Epoch(1)][-1], nonce="put back")
    all_of_them = join(world.log, {**segments_of(world), Epoch(1): restored}, world.records)
    assert all_of_them is not None and all_of_them.segments[0] == restored
    one = SegmentLookup(Epoch(1))
    one.on_node(restored)
    assert one.result == restored


def test_a_missing_record_is_no_absence() -> None:
    world = moved_world()
    all_of_them = join(world.log, segments_of(world), world.records[1:])
    assert all_of_them is not None and all_of_them.unreadable == (1,)
    assert [segment.epoch for segment in all_of_them.segments] == [2, 3]
    one = SegmentLookup(Epoch(1))
    one.on_node(None)
    one.on_log(world.log)
    one.on_records(world.records[1:])
    assert one.result is Unreadable.NO_RECORD


def test_a_node_that_nothing_explains_is_no_absence() -> None:
    world = moved_world()
    one, all_of_them = SegmentLookup(Epoch(3)), ListingLookup()
    for _ in range(2):
        one.on_node(None)
        one.on_log(world.log)
    assert one.result is Unreadable.NO_NODE
    for _ in range(2):
        all_of_them.on_log(world.log)
        assert list(all_of_them.list_stored()) == [3]
        all_of_them.on_nodes({})
        all_of_them.on_records(world.records)
    assert all_of_them.result is Unreadable.NO_NODE


def test_who_finds_it_trimmed_reads_the_log_node_again_and_not_for_ever() -> None:
    world = moved_world()
    one, all_of_them = SegmentLookup(Epoch(1)), ListingLookup()
    one.on_node(None)
    for _ in range(LOOK_COUNT_MAX):
        one.on_log(world.log)
        one.on_records(None)
        all_of_them.on_log(world.log)
        all_of_them.on_nodes(segments_of(world))
        all_of_them.on_records(None)
    assert one.result is all_of_them.result is Unreadable.TOO_MANY_CHANGES


def test_a_log_without_a_node_says_nothing_of_its_segments() -> None:
    one, all_of_them = SegmentLookup(Epoch(1)), ListingLookup()
    one.on_node(None)
    one.on_log(None)
    all_of_them.on_log(None)
    assert one.result is all_of_them.result is Unreadable.NO_LOG


def test_a_log_that_never_moved_anything_asks_for_no_record() -> None:
    world = make_world()
    all_of_them = ListingLookup()
    all_of_them.on_log(world.log)
    all_of_them.on_nodes(segments_of(world))
    assert all_of_them.result == join(world.log, segments_of(world), ())


def test_a_store_that_was_restored_from_an_older_snapshot_lists_what_it_listed() -> None:
    world = make_world(epoch_count=6)
    process = KeeperProcess(world)
    snapshots = []
    for _ in range(300):
        process.step()
        if world.rng.random() < 0.1:
            world.archive()
        snapshots.append((world.log, segments_of(world)))
    for log, nodes in snapshots:
        all_of_them = join(log, nodes, world.records)
        assert all_of_them is not None and not all_of_them.unreadable
        assert len(all_of_them.segments) == 6
    assert snapshots[0][0].metadata.through == 0 and snapshots[-1][0].metadata.through == 5


def test_records_of_a_move_say_what_is_deleted() -> None:
    stored = _stored(make_world())[:2]
    for record, node in zip(list_move_records(stored), stored, strict=True):
        assert (record.segment, record.node_version, record.made) == node[:3]
