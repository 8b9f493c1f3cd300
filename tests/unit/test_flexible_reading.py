"""Passes over flexible segments: all that is there, in order and once, whatever nodes do.

Each seed draws a segment with blocks, later waves, recoveries, repairs and damage, and nodes that
fail while it is read. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", "What
nobody sends", V8–V10, V12, V13, R25, R30.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from duramen.core.flexible.reading.flexible_pass import FlexiblePass
from duramen.core.flexible.reading.senders import SegmentHints
from duramen.core.flexible.sending import ReadFilter, has_to_send
from duramen.core.reading.range_read import AskNode, Finish, NodeAnswer, WantedEntries
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, NodeNumber
from duramen.units import KIB, MIB, MS
from duramen.wire.flexible.envelope import Envelope
from tests.unit.flexible_reading_world import (
    Copy,
    SimNode,
    World,
    make_segment,
    store_blocks,
)
from tests.unit.flexible_segments import node

SEEDS = range(45)
LAST = 400


def draw_ranges(rng: Random, last: int, count: int) -> list[tuple[int, int]]:
    """Apart from one another, below the last entry."""
    cuts = sorted(rng.sample(range(1, last - 1, 4), 2 * count))
    return [(cuts[2 * i], cuts[2 * i] + rng.randrange(3)) for i in range(count)]


def draw_world(seed: int) -> World:
    """A closed segment whose envelopes may say anything, and of which each entry is somewhere."""
    rng = Random(seed)
    ranges = draw_ranges(rng, LAST, 6)
    rng.shuffle(ranges)
    world = World(
        make_segment(
            rng.randint(3, 7), last=LAST, holes=sorted(ranges[:3]), lost=sorted(ranges[3:])
        ),
        seed, entry_bytes=rng.choice([64, 32 * KIB]),
    )  # fmt: skip
    for sim in world.nodes.values():
        sim.delay_us = rng.choice([200, 1 * MS, 30 * MS])
    numbers = world.numbers()
    block_entries = rng.choice([1, 7, 60, 500])
    trouble_count = rng.choice([14, 400])
    copyset: list[NodeNumber] = []
    block: EntryId | None = None
    for entry in range(LAST + 1):
        if not copyset or rng.randrange(block_entries) == 0:
            copyset = rng.sample(numbers, 3)
            block = EntryId(entry) if rng.random() < 0.8 else None
        draw_copies(world, entry, Envelope(tuple(copyset), block), rng, trouble_count)
    return world


def draw_copies(
    world: World, entry: int, envelope: Envelope, rng: Random, trouble_count: int
) -> None:
    """An entry as it was stored, or with something that went wrong; one copy at least is good."""
    trouble, numbers = rng.randrange(trouble_count), world.numbers()
    holders: dict[NodeNumber, Envelope | None] = dict.fromkeys(envelope.copyset, envelope)
    if trouble == 0:  # the first failed, a later wave went to somebody else
        gone = envelope.copyset[0]
        del holders[gone]
        others = [n for n in numbers if n not in envelope.copyset]
        if others:
            holders[others[0]] = Envelope((*envelope.copyset[1:], others[0]))
    elif trouble == 1:  # the sender of the block got it by a later wave
        holders[envelope.copyset[0]] = Envelope((*envelope.copyset[1:], envelope.copyset[0]))
    elif trouble == 2:  # recovery needed one copy and wrote none
        kept = rng.choice(envelope.copyset)
        holders = {kept: envelope}
    elif trouble == 3:  # envelopes that contradict each other, and name whoever
        for number in holders:
            named = tuple(rng.sample(numbers, rng.randint(1, len(numbers))))
            holders[number] = Envelope(named, rng.choice([None, envelope.block]))
    elif trouble == 4:  # envelopes that were lost, or name who left the map
        for number in holders:
            strangers = (NodeNumber(77), *envelope.copyset)
            holders[number] = rng.choice([None, Envelope(strangers, envelope.block)])
    elif trouble == 5:  # everybody has it
        holders = {n: rng.choice([envelope, None]) for n in numbers}
    for number, own in holders.items():
        world.nodes[number].put(entry, Copy(entry, own))
    if rng.random() < 2 / trouble_count:
        for number in rng.sample(sorted(holders), len(holders) - 1):
            copy = world.nodes[number].copies[entry]
            if rng.random() < 0.5:
                copy.is_damaged = True
            else:
                copy.is_broken_on_the_way = True


def disturb(world: World, rng: Random) -> None:
    """From now on a node or two fail, in one way or another, or come back."""
    for sim in world.nodes.values():
        sim.is_silent, sim.status = False, BookieStatus.OK
    numbers = world.numbers()
    for number in rng.sample(numbers, rng.randrange(min(3, len(numbers)))):
        sim = world.nodes[number]
        fault = rng.choice([
            BookieStatus.OK, BookieStatus.UNREACHABLE, BookieStatus.OVERLOADED,
            BookieStatus.WRONG_INCARNATION, BookieStatus.INVALID, BookieStatus.GONE,
        ])  # fmt: skip
        sim.status, sim.is_silent = fault, fault is BookieStatus.OK


def repair(world: World, rng: Random) -> None:
    """A node is copied to a new one, which gets a number of its own, and leaves the map; what the
    copies say of who sends is what their sources said, and at times with the new number."""
    segment, row = world.segment, rng.choice(world.segment.nodes)
    added = segment.with_added(node(f"r{segment.next_number}"), "r")
    target = SimNode(delay_us=rng.choice([200, 5 * MS]))
    for entry, copy in world.nodes[row.number].copies.items():
        kept = copy.envelope
        if kept is not None and rng.random() < 0.7:
            named = (*(n for n in kept.copyset if n != row.number), NodeNumber(segment.next_number))
            kept = Envelope(named, kept.block)
        target.put(entry, replace(copy, envelope=kept))
    world.nodes[NodeNumber(segment.next_number)] = target
    world.segment = added.without_node(row.number, "r")


def go_on(world: World, rng: Random, at: EntryId) -> None:
    """The reader learns of a new map, or another one reads on, which knows what it knew."""
    reader = world.reader
    assert isinstance(reader, FlexiblePass)
    if rng.random() < 0.5:
        reader.on_segment(world.segment)
    else:
        world.close_reader()
        world.reader = FlexiblePass(world.segment, at, world.hints, world.order)


def heal(world: World) -> None:
    for sim in world.nodes.values():
        sim.is_silent, sim.status = False, BookieStatus.OK


@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_is_there_comes_in_order_and_once(seed: int) -> None:
    world, rng = draw_world(seed), Random(seed + 1_000)
    bytes_max = rng.choice([64, 1_000, 1 * MIB])
    is_calm = seed % 3 == 0

    def on_call(_: AskNode) -> None:
        if rng.random() < 0.02:
            disturb(world, rng)
        if rng.random() < 0.02:
            heal(world)

    if not is_calm:
        world.on_call = on_call
    at, failures = EntryId(0), 0
    while at <= LAST:
        absence = world.segment.absence_at(at)
        if absence is not None:
            at = EntryId(absence[1] + 1)
            continue
        if not is_calm and rng.random() < 0.02:
            repair(world, rng)
            go_on(world, rng, at)
        finish = world.read(at, LAST, bytes_max)
        if finish.status is BookieStatus.OK:
            got = [entry for entry, _ in finish.entries]
            assert got == list(range(at, at + len(got))), (at, got)
            assert all(world.segment.absence_at(entry) is None for entry in got)
            at = EntryId(got[-1] + 1)
            continue
        assert not is_calm and finish.absent is None, (at, finish)
        failures += 1
        assert failures < 200
        heal(world)
        world.now_us += 300 * MS


def test_the_drawn_worlds_have_entries_that_nobody_sends_and_entries_that_come_twice() -> None:
    unsent = twice = 0
    for seed in SEEDS[::4]:
        world = draw_world(seed)
        senders = [0] * (LAST + 1)
        up = frozenset(world.numbers())
        for number, sim in world.nodes.items():
            for entry, copy in sim.copies.items():
                read_filter = ReadFilter(up, {})
                senders[entry] += has_to_send(read_filter, copy.envelope, number)
        unsent += senders.count(0)
        twice += sum(count > 1 for count in senders)
    assert unsent > 100 and twice > 100, (unsent, twice)


def find_range(finish: Finish) -> tuple[int, int] | None:
    """The entries of an absence."""
    return None if finish.absent is None else (finish.absent.first, finish.absent.last)


# --- What nobody has -----------------------------------------------------------------------------


def test_r25_absence_is_told_when_every_node_has_looked_and_vouches_for_it() -> None:
    world = World(make_segment(5, last=100))
    store_blocks(world, 100, block_entries=30)
    for sim in world.nodes.values():
        for entry in (40, 41, 42, 70):
            sim.drop(entry)
    failed = world.read_all()
    assert [(at, f.status, find_range(f)) for at, f in failed] == [
        (40, BookieStatus.NO_ENTRY, (40, 42)),
        (70, BookieStatus.NO_ENTRY, (70, 70)),
    ]


@pytest.mark.parametrize(
    "status",
    [s for s in BookieStatus if s not in {BookieStatus.OK, BookieStatus.NO_ENTRY}],
)
def test_r25_who_does_not_look_proves_no_absence(status: BookieStatus) -> None:
    world = World(make_segment(5, last=100))
    store_blocks(world, 100, block_entries=30)
    for sim in world.nodes.values():
        sim.drop(40)
    world.nodes[NodeNumber(3)].status = status
    failed = world.read_all(tries=2)
    assert [(at, find_range(f)) for at, f in failed] == [(40, None), (40, None)]


def test_r25_a_silent_node_proves_no_absence() -> None:
    world = World(make_segment(5, last=100))
    store_blocks(world, 100, block_entries=30)
    for sim in world.nodes.values():
        sim.drop(40)
    world.nodes[NodeNumber(3)].is_silent = True
    ((at, finish),) = world.read_all()
    assert (at, finish.status, finish.absent) == (40, BookieStatus.TIMEOUT, None)


def test_r25_who_has_not_looked_that_far_proves_no_absence() -> None:
    world = World(make_segment(4, last=60))
    store_blocks(world, 60, block_entries=30)
    for sim in world.nodes.values():
        for entry in (40, 41, 42):
            sim.drop(entry)
    world.nodes[NodeNumber(3)].span_max = 2
    world.nodes[NodeNumber(2)].span_max = 3
    failed = world.read_all()
    assert [find_range(f) for _, f in failed] == [(40, 41), (42, 42)]


def test_r25_an_absence_ends_where_a_hole_begins() -> None:
    world = World(make_segment(4, last=60, holes=[(43, 44)]))
    store_blocks(world, 60, block_entries=30)
    for sim in world.nodes.values():
        for entry in range(40, 46):
            sim.drop(entry)
    assert [find_range(f) for _, f in world.read_all()] == [(40, 42), (45, 45)]


def test_what_came_is_not_absent_although_all_lose_it_meanwhile() -> None:
    world = World(make_segment(4, last=60))
    store_blocks(world, 60, block_entries=100)
    for sim in world.nodes.values():
        sim.drop(40)

    def on_call(call: AskNode) -> None:
        if call.terms is not None and call.terms.is_digest:
            for sim in world.nodes.values():
                sim.drop(41)

    world.on_call = on_call
    assert [find_range(f) for _, f in world.read_all()] == [(40, 40)]


@pytest.mark.parametrize("is_named", [True, False])
def test_v10_what_nobody_vouches_for_is_no_absence(is_named: bool) -> None:
    world = World(make_segment(5, last=100))
    for entry in range(101):
        world.store(entry, (0, 1, 2), 0)
    for sim in world.nodes.values():
        sim.drop(40)
    damaged = Copy(40, Envelope((NodeNumber(0),)), is_damaged=True)
    world.nodes[NodeNumber(0 if is_named else 4)].put(40, damaged)
    ((at, finish),) = world.read_all()
    assert (at, finish.status, finish.absent) == (40, BookieStatus.UNKNOWN, None)


def test_r25_an_open_segment_has_no_absence() -> None:
    world = World(make_segment(5))
    for entry in range(41):
        world.store(entry, (0, 1, 2), 0)
    for sim in world.nodes.values():
        sim.drop(20)
    first = world.read(0, 40)
    assert len(first.entries) == 20
    second = world.read(20, 40)
    assert (second.status, second.absent) == (BookieStatus.UNKNOWN, None)


def test_v8_answers_of_two_filters_are_not_put_together() -> None:
    """Node 0 looked past an entry that it left to node 1; node 1 fails, and is down from then on:
    now node 0 is to send it."""
    world = World(make_segment(3, last=9))
    envelope = Envelope((NodeNumber(1), NodeNumber(0), NodeNumber(2)))
    for entry in range(10):
        for number in envelope.copyset:
            world.nodes[number].put(entry, Copy(entry, envelope))
    world.nodes[NodeNumber(1)].status = BookieStatus.UNREACHABLE
    assert world.read_all() == []
    assert "digest" not in world.call_counts, world.call_counts


def test_v8_who_looked_under_an_older_filter_is_asked_again() -> None:
    """The same; node 0 answers what it was asked before node 1 was known to fail."""
    world = World(make_segment(3, last=9))
    envelope = Envelope((NodeNumber(1), NodeNumber(0), NodeNumber(2)))
    for entry in range(10):
        for number in envelope.copyset:
            world.nodes[number].put(entry, Copy(entry, envelope))
    world.nodes[NodeNumber(1)].status = BookieStatus.UNREACHABLE
    for late in (0, 2):
        world.nodes[NodeNumber(late)].delay_us = 20 * MS
    assert world.read_all() == []
    assert world.call_counts == {"sent": 5}


def test_v12_who_is_down_in_the_filter_is_waited_for_by_nobody() -> None:
    world = World(make_segment(4, last=50))
    left = tuple(NodeNumber(n) for n in range(100, 160))
    for entry in range(51):
        envelope = Envelope((*left, NodeNumber(entry % 4)))
        world.nodes[NodeNumber(entry % 4)].put(entry, Copy(entry, envelope))
    assert world.read_all() == []
    assert world.call_counts == {"sent": 4}


# --- Damage --------------------------------------------------------------------------------------


def test_two_identities_of_one_entry_are_given_to_nobody() -> None:
    world = World(make_segment(4, last=9))
    for entry in range(10):
        world.store(entry, (0, 1, 2), None)
    stray = Copy(999, Envelope((NodeNumber(3),)))
    world.nodes[NodeNumber(3)].put(5, stray)
    world.nodes[NodeNumber(3)].delay_us = 100
    ((at, finish),) = world.read_all()
    assert (at, finish.status) == (5, BookieStatus.DIFFERENT)
    world.nodes[NodeNumber(3)].drop(5)
    again = world.read(5, 9)
    assert [entry for entry, _ in again.entries] == [5, 6, 7, 8, 9]


def test_two_identities_that_digests_tell_are_damage_too() -> None:
    world = World(make_segment(4, last=9))
    for entry in range(10):
        world.store(entry, (0, 1, 2), None)
    world.nodes[NodeNumber(0)].drop(5)
    world.nodes[NodeNumber(2)].copies[5].identity = 999
    ((at, finish),) = world.read_all()
    assert (at, finish.status) == (5, BookieStatus.DIFFERENT)


def test_a_body_that_breaks_comes_from_the_next_holder() -> None:
    world = World(make_segment(4, last=9))
    for entry in range(10):
        world.store(entry, (0, 1, 2), 0)
    for number in (0, 1):
        world.nodes[NodeNumber(number)].copies[5].is_broken_on_the_way = True
    assert world.read_all() == []


# --- What it costs -------------------------------------------------------------------------------


def read_striped(last: int, entry_bytes: int) -> tuple[int, int]:
    """Calls of a MiB and bytes that a striped log of this size costs."""
    size_bytes = (last + 1) * (entry_bytes + 8)
    calls = -(-(last + 1) * entry_bytes // MIB)
    return calls, size_bytes + 32 * calls


def test_sticky_blocks_cost_1_3_times_the_calls_and_1_02_times_the_bytes_of_striped_reads() -> None:
    last = 32_767
    world = World(make_segment(6, last=last), entry_bytes=1 * KIB)
    store_blocks(world, last)
    assert world.read_all() == []
    calls, size_bytes = read_striped(last, 1 * KIB)
    assert world.call_count <= 1.3 * calls, (world.call_counts, calls)
    assert world.bytes_count <= 1.02 * size_bytes, (world.bytes_count, size_bytes)
    assert world.body_count == last + 1


def store_with_failures(world: World, last: int, fail_every: int) -> None:
    """Blocks of 32 MiB, and every so many entries their first node fails: four entries are stored
    by a later wave without it, and the block ends."""
    numbers = world.numbers()
    copyset: list[NodeNumber] = []
    envelope = None
    left = 0
    for entry in range(last + 1):
        if entry % fail_every == fail_every - 4:
            left = 4
        if envelope is None or (entry % 1_024 == 0 and not left):
            copyset = world.rng.sample(numbers, 3)
            envelope = Envelope(tuple(copyset), EntryId(entry))
        if left:
            others = copyset[1:]
            stranger = next(n for n in numbers if n not in copyset)
            for number in others:
                world.nodes[number].put(entry, Copy(entry, envelope))
            late = Envelope((*others, stranger))
            world.nodes[stranger].put(entry, Copy(entry, late))
            left -= 1
            if not left:
                envelope = None
            continue
        for number in copyset:
            world.nodes[number].put(entry, Copy(entry, envelope))


@pytest.mark.parametrize(("node_count", "every_mib"), [(6, 32), (20, 88)])
def test_a_failure_in_32_or_88_mib_stays_within_1_3_times_the_calls(
    node_count: int, every_mib: int
) -> None:
    entry_bytes = 32 * KIB
    every = every_mib * MIB // entry_bytes
    last = 5 * every - 1
    world = World(make_segment(node_count, last=last), entry_bytes=entry_bytes)
    store_with_failures(world, last, every)
    assert world.read_all() == []
    calls, size_bytes = read_striped(last, entry_bytes)
    assert world.call_count <= 1.3 * calls, (world.call_counts, calls)
    assert world.bytes_count <= 1.02 * size_bytes, (world.bytes_count, size_bytes)
    assert world.body_count == last + 1


def test_a_node_that_fails_while_it_is_read_costs_few_calls_and_no_body_twice() -> None:
    last, entry_bytes = 8_191, 16 * KIB
    world = World(make_segment(6, last=last), entry_bytes=entry_bytes)
    store_blocks(world, last, block_entries=2_048)

    def on_call(_: AskNode) -> None:
        world.nodes[NodeNumber(2)].is_silent = world.call_count > 40

    world.on_call = on_call
    assert world.read_all() == []
    calls, size_bytes = read_striped(last, entry_bytes)
    assert world.call_count <= 1.3 * calls, (world.call_counts, calls)
    assert world.bytes_count <= 1.02 * size_bytes, (world.bytes_count, size_bytes)
    assert world.body_count == last + 1


def test_a_map_may_take_longer_than_bodies_do() -> None:
    world = World(make_segment(6, last=999), entry_bytes=32 * KIB)
    store_blocks(world, 999, block_entries=500)

    def on_call(call: AskNode) -> None:
        assert call.terms is not None
        slow_us = (200 + 40 * call.terms.own) * MS
        world.nodes[call.terms.own].delay_us = slow_us if call.terms.is_digest else 1 * MS

    world.on_call = on_call
    assert world.read_all() == []
    assert world.call_counts["map"] == 6 and world.call_counts["sent"] <= 40, world.call_counts


def test_a_map_tells_who_has_what_the_sender_of_a_block_lacks() -> None:
    """The nearest of the copyset is named for the block; the first told that it has all of it."""
    world = World(make_segment(6, last=999), entry_bytes=32 * KIB)
    for entry in range(1_000):
        world.store(entry, (1, 0, 2), 0)
    for entry in range(100, 104):
        world.nodes[NodeNumber(0)].drop(entry)
    assert world.read_all() == []
    assert world.call_counts.keys() == {"map", "sent", "held"}
    assert world.call_counts["held"] == 1 and world.body_count == 1_000


def test_who_was_to_send_and_has_nothing_is_waited_for_no_more() -> None:
    last = 9_999
    world = World(make_segment(6, last=last))
    for entry in range(last + 1):
        world.store(entry, (0, 1, 2), 0)
        world.nodes[NodeNumber(0)].drop(entry)
    assert world.read_all() == []
    assert world.call_counts["digest"] == 6, world.call_counts


def test_a_digest_that_stops_early_is_asked_on() -> None:
    world = World(make_segment(4, last=30))
    for entry in range(31):
        world.store(entry, (3, 0, 1), None)
        world.nodes[NodeNumber(3)].drop(entry)
    world.nodes[NodeNumber(0)].span_max = world.nodes[NodeNumber(1)].span_max = 7
    world.hints.standing.blame = lambda number: None  # type: ignore[method-assign]
    assert world.read_all() == []


def test_what_nobody_was_asked_for_is_not_kept() -> None:
    world = World(make_segment(3, last=99))
    reader = FlexiblePass(world.segment, EntryId(0), SegmentHints(), world.order)
    reader.want(WantedEntries(EntryId(0), EntryId(9), 1_000), 0)
    ask = next(e for e in reader.take_effects() if isinstance(e, AskNode))
    stray = NodeAnswer(BookieStatus.OK, entries=[(EntryId(50), b"x")], identities=[1])
    reader.on_answer(ask.call_id, stray, 1_000)
    assert reader.kept_bytes == 0


def test_without_blocks_each_body_comes_once_and_what_is_kept_is_bounded() -> None:
    last = 3_000
    world = World(make_segment(6, last=last), entry_bytes=4 * KIB)
    for entry in range(last + 1):
        world.store(entry, world.rng.sample(world.numbers(), 3), None)
    reader, at = world.reader, EntryId(0)
    assert isinstance(reader, FlexiblePass)
    while at <= last:
        finish = world.read(at, last)
        at = EntryId(at + len(finish.entries))
        assert finish.entries and reader.kept_bytes <= 6 * (1 * MIB // 6 + 4 * KIB)
    assert world.body_count == last + 1
    assert world.call_counts.keys() <= {"sent", "map"}


# --- The open segment ----------------------------------------------------------------------------


def test_r30_nodes_show_what_the_reader_was_told_of() -> None:
    """Node 0 told the LAC; the others, which hold the entries, were told nothing yet."""
    world = World(make_segment(4))
    for entry in range(30):
        world.store(entry, (1, 2, 3), 0)
    finish = world.read(0, 20)
    assert [entry for entry, _ in finish.entries] == list(range(21))


def test_r30_a_guest_tells_no_lac() -> None:
    segment = make_segment(3).marked("r")
    world = World(segment.with_guest(node("g0", "k1"), "r1"))
    for entry in range(10):
        world.store(entry, (0, 1, 2), 0)
    world.nodes[NodeNumber(3)].lac, world.nodes[NodeNumber(3)].delay_us = EntryId(77), 100
    for number in range(3):
        world.nodes[NodeNumber(number)].lac = EntryId(6)
    finish = world.read(0, 5)
    assert finish.lac == 6


def test_hints_are_shared_and_a_second_reader_asks_one_node() -> None:
    last = 8_191
    world = World(make_segment(6, last=last), entry_bytes=16 * KIB)
    store_blocks(world, last, block_entries=2_048)
    world.read(0, last)
    before = world.call_count
    world.reader = FlexiblePass(world.segment, EntryId(5_000), world.hints, world.order)
    assert world.read(5_000, last).entries[0][0] == 5_000
    assert world.call_count == before + 1


def test_headers_that_are_looked_up_say_nothing_of_what_readers_read() -> None:
    last = 8_191
    world = World(make_segment(6, last=last), entry_bytes=16 * KIB)
    store_blocks(world, last, block_entries=2_048)
    world.read(0, last)
    known = world.hints.entry_bytes, world.hints.last_run
    world.reader = FlexiblePass(
        world.segment, EntryId(7_000), world.hints, world.order, headers_only=True
    )
    world.body = bytes(64)
    before = world.call_count
    world.reader.want(WantedEntries(EntryId(7_000), EntryId(7_000), 4_096, True), world.now_us)
    assert world.finish().entries == ((7_000, bytes(64)),)
    assert world.call_count == before + 1, "a map told who has it"
    assert (world.hints.entry_bytes, world.hints.last_run) == known


def test_an_answer_after_the_read_has_ended_is_kept_and_given() -> None:
    world = World(make_segment(3, last=9))
    for entry in range(10):
        world.store(entry, (entry % 3,), None)
    segment, reader = (
        world.segment,
        FlexiblePass(world.segment, EntryId(0), SegmentHints(), world.order),
    )
    reader.want(WantedEntries(EntryId(0), EntryId(9), 1_000), 0)
    asks = [e for e in reader.take_effects() if isinstance(e, AskNode)]
    assert {ask.member for ask in asks} == set(segment.members)
    reader.on_answer(asks[0].call_id, world.answer(asks[0]), 1_000)
    reader.on_timer(10_000_000)
    first = [e for e in reader.take_effects() if isinstance(e, Finish)]
    assert [entry for entry, _ in first[0].entries] == [0]
    reader.on_answer(asks[1].call_id, world.answer(asks[1]), 1_000)
    reader.want(WantedEntries(EntryId(1), EntryId(9), 1_000), 2_000)
    reader.on_answer(asks[2].call_id, NodeAnswer(BookieStatus.UNREACHABLE), 3_000)
    assert reader.kept_bytes or reader.position > 1
