"""Delivery by itself: who gets an entry, when an absent member is probed, what it gets after that.

Source: docs/protocol/write.md "Suspended members", R1, R5, R9, R13.
"""

from __future__ import annotations

from duramen.core.segment import Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.writing.delivery import Delivery
from duramen.core.sequencer.writing.owed_copies import OwedCopies
from duramen.core.sequencer.writing.window import EntryWindow
from duramen.ids import NOTHING, EntryId
from duramen.limits import PROBE_INTERVAL_US
from tests.unit.writing_parts import B0, B1, B2, B3, Recorder, make_entry, make_segment, member


class World:
    """A delivery with what it looks at: entry 0 is owed to b2, the window has 1 and 2."""

    def __init__(self, segment: Segment | None = None) -> None:
        self.recorder = Recorder()
        self.segment = segment or make_segment()
        self.delivery = Delivery(self.recorder.ports)
        self.window = EntryWindow()
        self.owed = OwedCopies(1000, self.recorder.ports)
        self.owed.keep(make_entry(0, B0, B1), self.segment)
        self.window.lac = self.window.lap = EntryId(0)
        for number in (1, 2):
            self.window.push(b"payload", Totals(number))

    def send(self) -> list[tuple[str, int]]:
        for entry in self.window.entries:
            self.delivery.send(entry, self.segment, self.window.lac)
        return self.recorder.sent()

    def probe(self, now_us: int) -> bool:
        return self.delivery.probe(self.segment, self.window, self.owed, now_us)


def test_an_entry_goes_to_who_takes_entries_and_does_not_hold_it() -> None:
    world = World()
    world.window.note_stored(B1, EntryId(1), world.segment)
    assert world.delivery.note_failure(B2, world.segment, 0)
    assert world.send() == [("b0", 1), ("b0", 2), ("b1", 2)]
    assert all(entry.is_sent for entry in world.window.entries)


def test_r13_the_lac_beside_an_entry_is_below_it() -> None:
    world = World()
    world.delivery.send(make_entry(3), world.segment, EntryId(9))
    world.delivery.send(make_entry(3), world.segment, NOTHING)
    assert [add.lac for add in world.recorder.take(fx.SendAdd)] == [2, 2, 2, -1, -1, -1]


def test_only_a_first_failure_of_a_present_member_is_a_loss() -> None:
    world = World(make_segment(later=(B0, B1, B3)))
    found = [world.delivery.note_failure(m, world.segment, 0) for m in (B3, B3, B2, member("b9"))]
    assert found == [True, False, False, False]
    assert list(world.delivery.absent) == [B3, B2], "one that the segment does not name is not kept"
    assert world.delivery.list_suspended(world.segment) == [B3]


def test_a_probe_is_the_oldest_entry_that_is_missing_and_there_is_one_at_a_time() -> None:
    world = World()
    world.delivery.note_failure(B2, world.segment, 0)
    assert not world.probe(PROBE_INTERVAL_US - 1)
    assert world.probe(PROBE_INTERVAL_US)
    assert world.recorder.sent() == [("b2", 0)]
    assert world.probe(2 * PROBE_INTERVAL_US), "it is due, and the first one is under way"
    assert world.recorder.sent() == []
    world.delivery.note_failure(B2, world.segment, 2 * PROBE_INTERVAL_US)
    assert world.probe(3 * PROBE_INTERVAL_US)
    assert world.recorder.sent() == [("b2", 0)]


def test_a_member_that_misses_nothing_is_probed_with_the_lac() -> None:
    world = World()
    for number in (1, 2):
        world.window.note_stored(B0, EntryId(number), world.segment)
    world.delivery.note_failure(B0, world.segment, 0)
    world.probe(PROBE_INTERVAL_US)
    assert world.recorder.told() == [("b0", 0, 0)] and world.recorder.sent() == []


def test_probes_can_be_hastened_and_never_put_off_by_that() -> None:
    world = World()
    world.delivery.note_failure(B2, world.segment, 0)
    world.delivery.hasten(10)
    world.delivery.hasten(20)
    assert world.probe(10)


def test_a_member_that_answers_gets_all_that_it_missed_oldest_first() -> None:
    world = World()
    world.delivery.note_failure(B2, world.segment, 0)
    world.window.note_stored(B2, EntryId(1), world.segment)
    world.delivery.resume(B2, world.segment, world.window, world.owed)
    assert world.recorder.sent() == [("b2", 0), ("b2", 2)] and not world.delivery.absent


def test_a_member_that_answers_while_nothing_may_be_sent_is_probed_again() -> None:
    world = World()
    world.delivery.note_failure(B2, world.segment, 0)
    world.probe(PROBE_INTERVAL_US)
    world.delivery.end_probe(B2)
    world.recorder.sent()
    world.probe(2 * PROBE_INTERVAL_US)
    assert world.recorder.sent() == [("b2", 0)]


def test_a_replaced_member_is_kept_in_mind_while_it_is_owed_something() -> None:
    world = World(make_segment(later=(B0, B1, B3)))
    world.delivery.note_failure(B2, world.segment, 0)
    world.probe(PROBE_INTERVAL_US)
    assert world.recorder.sent() == [("b2", 0)] and B2 in world.delivery.absent
    for number in (0, 1):
        world.owed.note_stored(B2, EntryId(number), world.segment)
    world.probe(2 * PROBE_INTERVAL_US)
    assert not world.delivery.absent and not world.recorder.outbox


def test_r1_disks_that_were_replaced_are_those_of_one_incarnation() -> None:
    delivery = World().delivery
    delivery.note_gone(B2)
    assert delivery.is_gone(B2) and not delivery.is_gone(member("b2", life=2))
