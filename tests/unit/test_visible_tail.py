"""The visible tail by itself: when a LAC is told that no entry carries, to whom, and how.

Source: docs/protocol/write.md "Acknowledgement", R13.
"""

from __future__ import annotations

from duramen.core.sequencer.writing.visible_tail import VisibleTail
from duramen.ids import NOTHING, EntryId, Member
from tests.unit.writing_parts import B1, Recorder, make_segment

DELAY_US = 500


class World:
    """The tail of b0, b1, b2."""

    def __init__(self, *, commits_by_entry: bool = False) -> None:
        self.recorder = Recorder()
        self.tail = VisibleTail(
            DELAY_US, commits_by_entry=commits_by_entry, ports=self.recorder.ports
        )

    def on_timer(self, lac: int, now_us: int, *absent: Member) -> list[str]:
        """Who is told."""
        self.tail.on_timer(make_segment(), EntryId(lac), absent, now_us)
        return [bookie for bookie, told, _ in self.recorder.told() if told == lac]

    def push(self, entry_id: int, lac: int, *, has_records: bool = True) -> None:
        self.tail.note_push(EntryId(entry_id), EntryId(lac), has_records=has_records)


def test_a_lac_that_nothing_carries_is_told_once_to_who_takes_entries() -> None:
    world = World()
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    world.tail.note_acknowledged(DELAY_US - 1)
    assert world.tail.due_us == DELAY_US, "a later move does not put off an earlier one"
    assert world.on_timer(0, DELAY_US - 1) == []
    assert world.on_timer(0, DELAY_US, B1) == ["b0", "b2"]
    world.tail.note_acknowledged(DELAY_US)
    assert world.on_timer(0, 2 * DELAY_US) == [], "it was told"


def test_the_next_entry_carries_the_lac() -> None:
    world = World()
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    world.push(1, 0)
    assert world.tail.due_us is None and world.on_timer(0, DELAY_US) == []


def test_a_member_that_is_back_may_have_missed_the_lac() -> None:
    world = World()
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    world.on_timer(0, DELAY_US)
    world.tail.report_again()
    assert world.on_timer(0, DELAY_US) == ["b0", "b1", "b2"]


def test_a_control_entry_carries_the_lac_of_the_last_record_and_no_other_follows_it() -> None:
    world = World(commits_by_entry=True)
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    assert world.on_timer(0, DELAY_US) == [] and world.tail.wants_control
    world.push(1, 0, has_records=False)
    assert not world.tail.wants_control
    world.tail.note_acknowledged(DELAY_US)
    world.on_timer(1, 2 * DELAY_US)
    assert not world.tail.wants_control, "the LAC of a control entry shows readers nothing"


def test_an_entry_with_records_serves_as_the_control_entry_that_was_wanted() -> None:
    world = World(commits_by_entry=True)
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    world.on_timer(0, DELAY_US)
    world.push(1, 0)
    assert not world.tail.wants_control


def test_other_ways_hold_from_now_on() -> None:
    world = World()
    world.tail.configure(2 * DELAY_US, commits_by_entry=True)
    world.push(0, NOTHING)
    world.tail.note_acknowledged(0)
    assert world.tail.due_us == 2 * DELAY_US
    assert world.on_timer(0, 2 * DELAY_US) == [] and world.tail.wants_control
