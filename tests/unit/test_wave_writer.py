"""The wave writer: what it acknowledges, when another wave goes, that it neither storms nor stops.

Not here: which copysets are drawn (`test_copyset_selector`), the budget (`test_surplus`).
Source: docs/protocol/waves.md, R22, R27–R30.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.writing.release import PAUSE_US_MAX
from duramen.core.flexible.writing.wave_writer import (
    PIPELINE_ENTRY_COUNT,
    SPAN_ENTRY_COUNT_MAX,
    WaveWriter,
)
from duramen.core.placement.store_times import LATE_US_MIN
from duramen.core.sequencer.effects import SendLac, SendWave
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.limits import PROBE_INTERVAL_US, STORE_TIMEOUT_US
from duramen.units import KIB, MIB, MS, SECOND
from tests.unit.wave_world import COMMIT_DELAY_US, OTHER_LIFE, WaveWorld

RP = ReplicationProperty


def add_and_run(world: WaveWorld, count: int = 1) -> None:
    """Entries one after the other, each complete before the next."""
    for _ in range(count):
        world.add()
        world.run_for(10 * MS)


# --- acknowledgement -----------------------------------------------------------------------------


def test_an_entry_is_acknowledged_when_its_wave_satisfies_the_property() -> None:
    world = WaveWorld(wanted=RP(2, 2, 1, 1))
    world.add()
    (copyset,) = world.list_waves(EntryId(0))
    answers = [(world.bookies[number].member, n) for n, number in enumerate(copyset, 1)]
    assert not world.writer.on_add(answers[0][0], EntryId(0), BookieStatus.OK, MS)
    (entry,) = world.writer.on_add(answers[1][0], EntryId(0), BookieStatus.OK, MS)
    assert entry.entry == world.writer.lac == 0
    assert not world.writer.on_add(answers[2][0], EntryId(0), BookieStatus.OK, MS)


def test_a_healthy_log_needs_one_wave_for_each_entry() -> None:
    world = WaveWorld(wanted=RP(2, 2, 1, 1))
    add_and_run(world, 20)
    assert world.acknowledged == list(range(20)) and world.writer.lac == 19
    assert all(len(world.list_waves(EntryId(n))) == 1 for n in range(20))


def test_ordered_what_is_complete_waits_for_lower_entries() -> None:
    world = WaveWorld((3,), RP(3))
    entries = [world.add(), world.add()]
    writer, members = world.writer, [bookie.member for bookie in world.bookies]
    for member in members:
        assert not writer.on_add(member, entries[1], BookieStatus.OK, MS)
    acknowledged = [writer.on_add(member, entries[0], BookieStatus.OK, MS) for member in members]
    assert [[entry.entry for entry in found] for found in acknowledged] == [[], [], [0, 1]]
    assert writer.lac == 1


def test_out_of_order_what_is_complete_is_acknowledged_and_lng_waits() -> None:
    world = WaveWorld((4,), RP(2), is_ordered=False, seed=3)
    world.bookies[0].is_silent = True
    entries = [world.add() for _ in range(PIPELINE_ENTRY_COUNT)]
    hit = [n for n in entries if 0 in world.list_waves(n)[0]]
    assert hit and len(hit) < len(entries)
    world.run_for(10 * MS)
    assert set(world.acknowledged) == set(entries) - set(hit)
    assert world.writer.lac == min(hit) - 1
    world.run_for(1 * SECOND)
    assert set(world.acknowledged) == set(entries) and world.writer.lac == max(entries)


def test_copies_count_whatever_wave_they_are_of() -> None:
    world = WaveWorld((3, 3), RP(3, 2), seed=2)
    world.add()
    (first,) = world.list_waves(EntryId(0))
    world = WaveWorld((3, 3), RP(3, 2), seed=2)
    world.bookies[first[2]].is_silent = True
    world.add()
    world.run_for(LATE_US_MIN + 5 * MS)
    waves = world.list_waves(EntryId(0))
    assert waves[0] == first and len(waves[1]) == 1, "only who lacks it is asked"
    assert world.acknowledged == [0]


def test_copysets_name_nodes_in_the_order_in_which_they_were_named_first() -> None:
    """Else copies of two waves could wait for each other to be sent to a reader."""
    world = WaveWorld((3, 3), RP(3, 2), seed=2)
    for bookie in world.bookies:
        bookie.is_silent = True
    world.add()
    (first,) = world.list_waves(EntryId(0))
    for number in (first[2], first[1]):
        world.writer.on_add(world.bookies[number].member, EntryId(0), BookieStatus.OK, 1)
    world.run_for(LATE_US_MIN + MS)
    last = world.sent[-1]
    assert isinstance(last, SendWave)
    assert last.copyset[:2] == (first[1], first[2]) and len(last.copyset) == 3


def test_a_store_that_is_answered_late_counts() -> None:
    world = WaveWorld((3, 3), RP(3), seed=2)
    for bookie in world.bookies:
        bookie.delay_us = 60 * MS
    world.add()
    world.run_for(LATE_US_MIN + MS)
    first, second = world.list_waves(EntryId(0))
    for number in set(second) - set(first):
        world.bookies[number].is_silent = True
    world.run_for(80 * MS)
    assert world.acknowledged == [0]


def test_copies_that_do_not_span_enough_racks_are_not_enough() -> None:
    world = WaveWorld((4, 1, 1), RP(3, 2))
    world.add()
    entry = world.writer.window[0]
    entry.pending.clear()
    for number in (0, 1, 2, 3):
        assert not world.writer.on_add(world.bookies[number].member, EntryId(0), BookieStatus.OK, 1)
    assert world.writer.on_add(world.bookies[4].member, EntryId(0), BookieStatus.OK, 1)


# --- replaced disks ------------------------------------------------------------------------------


def test_a_replaced_disk_takes_back_what_was_answered_before() -> None:
    """Entry 0 holds LNG, entry 1 is acknowledged: it goes out again, and is told once."""
    world = WaveWorld((4,), RP(3), is_ordered=False)
    entries = [world.add(), world.add()]
    waves = [world.list_waves(n)[0] for n in entries]
    writer, members = world.writer, [bookie.member for bookie in world.bookies]
    acknowledged = [
        entry.entry
        for number in waves[1]
        for entry in writer.on_add(members[number], EntryId(1), BookieStatus.OK, MS)
    ]
    assert acknowledged == [1] and writer.lac == -1
    gone = waves[1][0]
    assert not writer.on_add(members[gone], EntryId(0), BookieStatus.WRONG_INCARNATION, MS)
    assert writer.wants_roll and not writer.window[1].is_complete
    (other,) = writer.window[1].pending
    assert other not in waves[1]
    assert not writer.on_add(members[other], EntryId(1), BookieStatus.OK, 2 * MS), "told once"
    assert writer.window[1].is_complete
    writer.validate()


def test_what_is_taken_back_in_bulk_goes_out_again_some_at_a_time() -> None:
    world = WaveWorld((4,), RP(2), is_ordered=False)
    writer, members = world.writer, [bookie.member for bookie in world.bookies]
    world.add()  # incomplete: it holds LNG
    for _ in range(60):
        entry = world.add(10)
        for number in list(writer.window[entry].pending):
            writer.on_add(members[number], entry, BookieStatus.OK, MS)
    world.replace_disks(1)
    sent_count = len(world.sent)
    assert not writer.on_add(members[1], EntryId(0), BookieStatus.WRONG_INCARNATION, MS)
    undone_count = len(writer._window.incomplete)
    assert undone_count > 20
    world.run_for(MS // 10)
    assert len(world.sent) - sent_count <= PIPELINE_ENTRY_COUNT
    world.run_for(5 * SECOND)
    assert writer.lac == writer.lap and not writer._window.incomplete


def test_nothing_that_a_gone_node_answers_counts() -> None:
    """Its OK was on its way when its disks were replaced."""
    world = WaveWorld((3,), RP(2, 1, 1, 1))
    world.add()
    effects = [e for e in world.sent if isinstance(e, SendWave)]
    writer, gone = world.writer, effects[0].member
    assert not writer.on_add(gone, EntryId(0), BookieStatus.WRONG_INCARNATION, 1)
    assert not writer.on_add(gone, EntryId(0), BookieStatus.OK, 2)
    assert not writer.on_add(effects[1].member, EntryId(0), BookieStatus.OK, 3)
    assert writer.lac == -1
    writer.validate()


@pytest.mark.parametrize("who", ["the roster", "another log", "an explicit LNG"])
def test_that_disks_were_replaced_may_be_learnt_from_others(who: str) -> None:
    world = WaveWorld((4,), RP(3))
    add_and_run(world)
    gone = world.bookies[1].member
    match who:
        case "the roster":
            replaced = Member(gone.bookie, OTHER_LIFE)
            world.roster = {replaced if member == gone else member: True for member in world.roster}
            world.writer.on_bookies_changed(world.now_us)
        case "another log":
            refusal = [BookieStatus.WRONG_INCARNATION]
            world.states.on_answered(gone, refusal, world.now_us, world.now_us)
            world.writer.on_bookies_changed(world.now_us)
        case _:
            refused = BookieStatus.WRONG_INCARNATION
            world.writer.on_lac(gone, refused, world.now_us)
    assert world.writer.wants_roll
    sent_count = len(world.sent)
    add_and_run(world, 10)
    assert all(effect.member != gone for effect in world.sent[sent_count:])
    assert world.acknowledged == list(range(11))


# --- waves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sticky", [False, True])
def test_a_silent_bookie_costs_each_entry_one_wave_and_then_nobody_anything(
    is_sticky: bool,
) -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2), is_sticky=is_sticky, seed=4)
    add_and_run(world, 5)
    world.bookies[2].is_silent = True
    for _ in range(100):
        world.add()
        world.run_for(2 * MS)
    world.run_for(100 * MS)
    assert world.acknowledged == list(range(105))
    waves = [len(world.list_waves(EntryId(n))) for n in range(5, 105)]
    assert max(waves) == 2
    assert sum(count > 1 for count in waves) <= 2 * PIPELINE_ENTRY_COUNT * 3
    assert waves[40:] == [1] * 60, "it is listed"


def test_people_are_told_how_many_entries_wanted_another_wave_and_past_whom() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2), seed=4)
    add_and_run(world, 5)
    assert (world.writer.rewaved_count, world.writer.explain_waves()) == (0, "")
    world.bookies[2].is_silent = True
    for _ in range(20):
        world.add()
        world.run_for(2 * MS)
    world.run_for(100 * MS)
    again = sum(len(world.list_waves(EntryId(n))) > 1 for n in range(25))
    name = world.bookies[2].member.bookie
    assert world.writer.rewaved_count == again > 1
    told = f"{again} entries wanted another wave, past {name} ({again})"
    assert world.writer.explain_waves() == told


def test_a_slow_bookie_is_not_waited_for_because_it_is_slow() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2), seed=5)
    world.bookies[3].delay_us = 300 * MS
    took_us = []
    for _ in range(400):
        began_us = world.now_us
        entry = world.add()
        while entry not in world.acknowledged:
            world.run_for(MS // 2)
        took_us.append(world.now_us - began_us)
        world.run_for(2 * MS)
    took_us.sort()
    assert took_us[int(0.97 * len(took_us))] < 5 * MS
    assert took_us[-1] < 60 * MS
    assert world.writer.state is WriterState.OPEN and not world.writer.wants_roll


def test_a_full_bookie_costs_one_more_wave_at_once() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2), seed=4)
    world.bookies[1].refusal = BookieStatus.READ_ONLY
    add_and_run(world, 40)
    waves = [len(world.list_waves(EntryId(n))) for n in range(40)]
    assert world.acknowledged == list(range(40))
    assert sum(count > 1 for count in waves) == 1, "its refusal listed it"


def test_the_next_wave_leaves_who_did_not_answer_the_entry() -> None:
    world = WaveWorld((6,), RP(3), seed=7)
    for bookie in world.bookies:
        bookie.is_silent = True
    world.add()
    world.run_for(LATE_US_MIN + MS)
    first, second = world.list_waves(EntryId(0))
    assert not set(first) & set(second)


def test_who_failed_is_asked_again_where_nobody_else_is_left() -> None:
    world = WaveWorld((3,), RP(3))
    for bookie in world.bookies:
        bookie.is_silent = True
    world.add()
    world.run_for(STORE_TIMEOUT_US + SECOND)
    assert len(world.list_waves(EntryId(0))) >= 2
    for bookie in world.bookies:
        bookie.is_silent = False
    world.run_for(STORE_TIMEOUT_US + SECOND)
    assert world.acknowledged == [0]


REFUSALS = (
    BookieStatus.UNKNOWN, BookieStatus.INVALID, BookieStatus.GONE, BookieStatus.UNREACHABLE,
)  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_bookie_that_refuses_at_once_is_not_asked_at_network_speed(refusal: BookieStatus) -> None:
    world = WaveWorld((3,), RP(3))
    world.bookies[1].refusal = refusal
    world.bookies[1].delay_us = MS // 10
    world.add()
    world.run_for(10 * SECOND)
    waves = world.list_waves(EntryId(0))
    assert 5 <= len(waves) <= 25
    world.bookies[1].refusal = None
    world.run_for(3 * SECOND)
    assert world.acknowledged == [0]


def test_an_entry_that_finds_no_copyset_waits_and_goes_when_it_can() -> None:
    world = WaveWorld((3,), RP(3))
    world.roster = {**world.roster, world.bookies[0].member: False}
    assert world.writer.lacks_ack_set and not world.writer.has_room
    world.add()  # a part of a snapshot asks for no room
    assert world.sent == []
    refusal = world.writer.find_refusal()
    assert refusal is not None and refusal.reason == "too_few_bookies"
    world.run_for(SECOND)
    world.roster = {bookie.member: True for bookie in world.bookies}
    world.writer.on_bookies_changed(world.now_us)
    world.run_for(10 * MS)
    assert world.acknowledged == [0] and not world.writer.lacks_ack_set


def test_who_is_not_registered_is_used_where_nobody_else_is_left() -> None:
    """Registrations vanish together when the metadata store is away; the bookies answer."""
    world = WaveWorld((4,), RP(3))
    world.roster = {}
    add_and_run(world, 3)
    assert world.acknowledged == [0, 1, 2]
    world.roster = {bookie.member: True for bookie in world.bookies[:3]}
    world.writer.on_bookies_changed(world.now_us)
    add_and_run(world, 20)
    assert all(set(world.list_waves(EntryId(n))[0]) == {0, 1, 2} for n in range(3, 23))


def test_it_lacks_an_ack_set_until_an_entry_becomes_complete() -> None:
    world = WaveWorld((3,), RP(3))
    world.bookies[2].is_silent = True
    world.add()
    world.run_for(100 * MS)
    for _ in range(60):
        assert world.writer.lacks_ack_set
        world.run_for(100 * MS)
    world.bookies[2].is_silent = False
    world.run_for(5 * SECOND)
    assert world.acknowledged == [0] and not world.writer.lacks_ack_set


def test_our_own_sleep_makes_no_wave_late() -> None:
    world = WaveWorld((6,), RP(3))
    for bookie in world.bookies:
        bookie.delay_us = 10 * MS
    world.add()
    world.stand_still(500 * MS)
    world.run_for(30 * MS)
    assert world.acknowledged == [0] and len(world.list_waves(EntryId(0))) == 1
    assert world.states.gray == ()


# --- surplus -------------------------------------------------------------------------------------


def count_later_stores(world: WaveWorld) -> int:
    """Stores of waves after the first."""
    entries = range(world.writer.lap + 1)
    return sum(len(wave) for n in entries for wave in world.list_waves(EntryId(n))[1:])


def test_when_everything_is_slow_waves_stay_within_the_budget() -> None:
    world = WaveWorld((4, 4, 4), RP(3, 2), is_ordered=False, seed=8)
    for bookie in world.bookies:
        bookie.delay_us = 5 * SECOND
    for _ in range(PIPELINE_ENTRY_COUNT):
        world.add(1 * MIB)
    world.run_for(10 * SECOND)
    assert 8 <= count_later_stores(world) <= 8 + 8 * 10 + 8


def test_only_who_lacks_the_entry_costs_surplus() -> None:
    world = WaveWorld((4,), RP(3))
    world.add(1 * MIB)
    (first,) = world.list_waves(EntryId(0))
    world = WaveWorld((4,), RP(3))
    world.bookies[first[1]].is_silent = True
    world.add(1 * MIB)
    world.run_for(200 * MS)
    assert world.acknowledged == [0] and count_later_stores(world) == 1
    assert world.surplus.statistics()["surplus_taken_bytes"] == MIB


# --- release -------------------------------------------------------------------------------------


def test_whoever_may_hold_an_entry_is_told_that_it_is_complete() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2), seed=9)
    add_and_run(world, 30)
    world.run_for(COMMIT_DELAY_US + 10 * MS)
    for bookie in world.bookies:
        assert bookie.told >= max(bookie.stored, default=-1)


def test_a_busy_log_tells_by_its_stores_and_a_quiet_one_rests() -> None:
    world = WaveWorld((3,), RP(3), seed=9)
    for _ in range(200):
        world.add()
        world.run_for(2 * MS)
    assert world.count_lacs() <= 6
    world.run_for(SECOND)
    sent_count = len(world.sent)
    world.run_for(60 * SECOND)
    assert len(world.sent) == sent_count, "everybody knows"


def test_the_end_of_a_block_is_told_while_the_log_goes_on_elsewhere() -> None:
    world = WaveWorld((3, 3), RP(3), is_sticky=True, seed=2)
    add_and_run(world, 3)
    (block,) = {world.list_waves(EntryId(n))[0] for n in range(3)}
    world.states.on_answered(
        world.bookies[block[0]].member, [BookieStatus.READ_ONLY], world.now_us, world.now_us
    )
    last = world.writer.lap
    for _ in range(20):
        world.add()
        world.run_for(2 * MS)
    elsewhere = world.list_waves(EntryId(last + 1))[0]
    assert elsewhere != block
    left = [number for number in block if number not in elsewhere]
    assert left and all(world.bookies[number].told >= last for number in left)


def test_who_does_not_take_it_is_asked_less_and_less() -> None:
    world = WaveWorld((4,), RP(3), seed=1)
    add_and_run(world, 4)
    world.run_for(SECOND)
    world.add()
    world.run_for(3 * MS)
    for bookie in world.bookies:
        bookie.is_silent = True
    sent_count = len(world.sent)
    world.run_for(120 * SECOND)
    asked = Counter(e.member for e in world.sent[sent_count:] if isinstance(e, SendLac))
    assert asked and max(asked.values()) <= 10
    for bookie in world.bookies:
        bookie.is_silent = False
    world.run_for(31 * SECOND)
    assert all(bookie.told >= max(bookie.stored) for bookie in world.bookies)


# --- rounds --------------------------------------------------------------------------------------


def test_a_round_is_done_when_those_who_took_it_satisfy_the_property() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2))
    number = world.writer.ask_round(world.now_us)
    assert len(world.sent) == 3
    world.run_for(10 * MS)
    assert world.writer.round_done == number
    world.run_for(10 * SECOND)
    assert len(world.sent) == 3


def test_a_round_that_meets_silence_asks_everybody() -> None:
    world = WaveWorld((2, 2, 2), RP(3, 2))
    for bookie in world.bookies:
        bookie.is_silent = True
    writer = world.writer
    number = writer.ask_round(world.now_us)
    asked = {effect.member for effect in world.sent}
    assert len(asked) == 3
    silent = min(asked)
    for bookie in world.bookies:
        bookie.is_silent = bookie.member == silent
    for member in asked - {silent}:
        writer.on_lac(member, BookieStatus.OK, MS, round_id=number)
    world.run_for(PROBE_INTERVAL_US - MS)
    sent_count = len(world.sent)
    world.run_for(20 * MS)
    assert len({effect.member for effect in world.sent[sent_count:]}) == 6
    assert writer.round_done > number


def test_a_gone_node_proves_nothing() -> None:
    world = WaveWorld((3,), RP(3))
    number = world.writer.ask_round(world.now_us)
    world.run_for(0)
    a, b, c = (bookie.member for bookie in world.bookies)
    writer = world.writer
    writer.on_lac(a, BookieStatus.OK, 1, round_id=number)
    writer.on_lac(b, BookieStatus.OK, 1, round_id=number)
    writer.on_lac(a, BookieStatus.WRONG_INCARNATION, 2)
    writer.on_lac(c, BookieStatus.OK, 3, round_id=number)
    assert writer.round_done == 0


# --- the end -------------------------------------------------------------------------------------


def test_a_fenced_writer_acknowledges_nothing_and_moves_nothing() -> None:
    world = WaveWorld((3,), RP(2, 1, 1, 1))
    world.add()
    a, b, c = (bookie.member for bookie in world.bookies)
    assert not world.writer.on_add(a, EntryId(0), BookieStatus.OK, 1)
    world.writer.on_add(b, EntryId(0), BookieStatus.SEALED, 2)
    assert world.writer.state is WriterState.FENCED and "b1" in world.writer.fence_reason
    assert not world.writer.on_add(c, EntryId(0), BookieStatus.OK, 3)
    assert world.writer.lac == -1 and world.writer.wakeup_at_us() is None


def test_it_is_drained_when_lng_is_the_newest_entry_and_not_before() -> None:
    """`out_of_order`: what is acknowledged above LNG would lie beyond the end."""
    world = WaveWorld((4,), RP(2), is_ordered=False, seed=3)
    world.bookies[0].is_silent = True
    for _ in range(PIPELINE_ENTRY_COUNT):
        world.add()
    world.run_for(10 * MS)
    assert world.acknowledged and world.writer.lac < max(world.acknowledged)
    assert not world.writer.is_drained
    world.run_for(SECOND)
    assert world.writer.is_drained


def test_a_held_writer_sends_nothing_and_tells_before() -> None:
    world = WaveWorld((3,), RP(3))
    world.add()
    while not world.acknowledged:
        world.run_for(MS // 4)
    world.writer.hold()
    sent_count = len(world.sent)
    assert isinstance(world.sent[-1], SendLac) and world.sent[-1].lac == 0
    world.run_for(10 * SECOND)
    assert len(world.sent) == sent_count
    world.writer.release()
    add_and_run(world)
    assert world.acknowledged == [0, 1]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_span_is_bounded_while_one_entry_is_incomplete(is_ordered: bool) -> None:
    world = WaveWorld((4,), RP(2), is_ordered=is_ordered)
    writer = world.writer
    world.add()
    while writer.has_room:
        entry = writer.add(b"", writer.totals, world.now_us)
        for number in list(writer.window[entry].pending):
            writer.on_add(world.bookies[number].member, entry, BookieStatus.OK, world.now_us)
    assert len(writer.window) == SPAN_ENTRY_COUNT_MAX


# --- anything ------------------------------------------------------------------------------------

SHAPES = [((2, 2, 2), RP(3, 2)), ((1, 1, 1, 1), RP(2, 2, 1, 1)), ((3, 2), RP(3, 2)), ((5,), RP(3)),
          ((2, 2, 2, 2), RP(3, 3, 1, 1)), ((3,), RP(3)), ((2, 2, 1), RP(2, 2, 1, 2))]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_what_is_acknowledged_is_stored_and_in_the_end_all_is(seed: int) -> None:
    """Safety is checked at every step (`wave_world`); here also that it comes to an end."""
    rng = random.Random(seed)
    racks, wanted = SHAPES[seed % len(SHAPES)]
    world = WaveWorld(
        racks, wanted, is_ordered=bool(seed // 7 % 2), is_sticky=rng.random() < 0.5, seed=seed
    )
    replaced_max = sum(racks) - wanted.wave_count
    for _ in range(150):
        bookie = rng.choice(world.bookies)
        match rng.randrange(12):
            case 0:
                bookie.is_silent = not bookie.is_silent
            case 1:
                bookie.delay_us = rng.choice([MS // 2, MS, 10 * MS, 300 * MS, 3 * SECOND])
            case 2:
                refusals = [None, BookieStatus.READ_ONLY, BookieStatus.UNKNOWN]
                bookie.refusal = rng.choice([*refusals, BookieStatus.OVERLOADED])
            case 3 if sum(b.is_replaced for b in world.bookies) < replaced_max:
                world.replace_disks(world.bookies.index(bookie))
            case 4:
                world.roster = {b.member: rng.random() < 0.9 for b in world.bookies}
                world.writer.on_bookies_changed(world.now_us)
            case 5:
                world.stand_still(rng.randrange(2 * SECOND))
            case 6:
                world.writer.ask_round(world.now_us)
            case _:
                if world.writer.has_room:
                    world.add(rng.choice([10, 100 * KIB]))
        world.run_for(rng.choice([0, MS, 20 * MS, 700 * MS]))
    for bookie in world.bookies:
        bookie.is_silent, bookie.refusal, bookie.delay_us = False, None, MS
    world.roster = {b.member: True for b in world.bookies}
    world.writer.on_bookies_changed(world.now_us)
    number = world.writer.ask_round(world.now_us)
    world.run_for(2 * PAUSE_US_MAX)
    writer = world.writer
    spread = [b.place for b in world.bookies if not b.is_replaced]
    if not wanted.is_satisfied_by(spread):
        return
    assert writer.lac == writer.lap == len(world.acknowledged) - 1, writer
    assert writer.round_done >= number
    assert not writer.lacks_ack_set
    for bookie in world.bookies:
        if not bookie.is_replaced:
            assert bookie.told >= max(bookie.stored, default=-1), bookie
    sent_count = len(world.sent)
    world.run_for(60 * SECOND)
    assert len(world.sent) == sent_count, "it rests"


def _typed(writer: WaveWriter) -> SegmentWriter:
    """It goes in where the striped writer does."""
    return writer
