"""Owed copies by themselves: what is kept, for whom, how much, and what is recorded.

What the writer and a close make of them is in `test_ledger_writer.py`, `test_log_sequencer.py` and
`test_repair_races.py`. Source: docs/protocol/write.md "Owed copies", R9.
"""

from __future__ import annotations

import pytest

from duramen.core.segment import Segment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.writing.owed_copies import OwedCopies
from duramen.ids import EntryId, Member
from duramen.limits import OWED_BYTES_MAX_PER_SEQUENCER, RETRY_DELAY_MAX_US
from tests.unit.writing_parts import B0, B1, B2, B3, Recorder, make_entry, make_segment


def make_owed(
    segment: Segment, *holders: list[Member], bytes_max: int = 1000
) -> tuple[OwedCopies, Recorder]:
    """Entries from 0 on, stored by these."""
    recorder = Recorder()
    owed = OwedCopies(bytes_max, recorder.ports)
    for number, members in enumerate(holders):
        owed.keep(make_entry(number, *members), segment)
    owed.validate()
    return owed, recorder


def recorded(recorder: Recorder) -> list[tuple[str, int, int]]:
    return [(o.member.bookie, o.first, o.last) for o in recorder.take(fx.PersistOwed)]


def test_r9_an_entry_is_kept_until_its_whole_write_set_has_it() -> None:
    segment = make_segment()
    owed, _ = make_owed(segment, [B0, B1], [B0, B1, B2])
    assert list(owed.entries) == [0] and owed.size_bytes == 10
    owed.note_stored(B1, EntryId(0), segment)
    owed.note_stored(B2, EntryId(7), segment)
    assert list(owed.entries) == [0], "b1 has it already, and nobody owes entry 7"
    owed.note_stored(B2, EntryId(0), segment)
    owed.validate()
    assert not owed.entries and owed.size_bytes == 0


def test_r9_who_owes_what() -> None:
    segment = make_segment()
    owed, _ = make_owed(segment, [B0, B1], [B0, B2])
    assert [owed.is_owed_to(m, segment) for m in (B0, B1, B2)] == [False, True, True]
    assert owed.awaits_other_than([B2], segment)
    assert not owed.awaits_other_than([B1, B2], segment)


def test_r9_a_replaced_member_still_owes_what_the_older_fragment_promises() -> None:
    segment = make_segment(later=(B0, B1, B3))
    owed, _ = make_owed(segment, [B0, B1, B2], [B0, B1])
    owed.keep(make_entry(2, B0, B1), segment)
    assert owed.is_owed_to(B2, segment) and owed.is_owed_to(B3, segment)
    owed.note_stored(B2, EntryId(1), segment)
    assert list(owed.entries) == [2]


def test_r9_what_is_missing_is_recorded_in_ranges_member_by_member() -> None:
    segment = make_segment()
    owed, recorder = make_owed(segment, [B0, B1], [B0, B1], [B0], [B0, B2], [B0, B1])
    owed.record(segment)
    assert recorded(recorder) == [("b2", 0, 2), ("b2", 4, 4), ("b1", 2, 3)]


def test_r9_a_recorded_range_is_forgotten_for_its_member_alone() -> None:
    segment = make_segment()
    owed, _ = make_owed(segment, [B0, B1], [B0])
    owed.on_recorded(fx.PersistOwed(segment.ledger_id, B2, EntryId(0), EntryId(5)), segment)
    owed.validate()
    assert list(owed.entries) == [1] and owed.is_owed_to(B1, segment)


@pytest.mark.parametrize(
    ("bytes_max", "by_all", "is_much"),
    [
        (20, 0, False),
        (19, 0, True),
        (20, OWED_BYTES_MAX_PER_SEQUENCER // 2, False),
        (20, OWED_BYTES_MAX_PER_SEQUENCER // 2 + 1, True),
    ],
)
def test_r9_much_is_recorded_and_little_is_waited_for(
    bytes_max: int, by_all: int, is_much: bool
) -> None:
    segment = make_segment()
    owed, recorder = make_owed(segment, [B0, B1], [B0, B1], bytes_max=bytes_max)
    recorder.owed_by_all = by_all
    owed.bound(segment, 0)
    assert bool(recorded(recorder)) == is_much


def test_r9_what_was_not_recorded_is_asked_for_again_after_a_while() -> None:
    segment = make_segment()
    owed, recorder = make_owed(segment, [B0, B1], [B0, B1], bytes_max=5)
    asked = []
    for now_us in (0, RETRY_DELAY_MAX_US - 1, RETRY_DELAY_MAX_US):
        owed.bound(segment, now_us)
        asked.append(bool(recorded(recorder)))
    assert asked == [True, False, True]
    owed.on_recorded(fx.PersistOwed(segment.ledger_id, B2, EntryId(0), EntryId(0)), segment)
    owed.bound(segment, RETRY_DELAY_MAX_US)
    assert recorded(recorder) == [("b2", 1, 1)], "an answer ends the pause"


def test_r9_appends_are_refused_beyond_twice_the_budget_or_all_that_a_process_may_keep() -> None:
    segment = make_segment()
    owed, recorder = make_owed(segment, [B0, B1], [B0, B1], bytes_max=10)
    assert owed.has_room()
    owed.configure(9)
    assert not owed.has_room()
    owed.configure(10)
    recorder.owed_by_all = OWED_BYTES_MAX_PER_SEQUENCER + 1
    assert not owed.has_room()
    owed.on_recorded(fx.PersistOwed(segment.ledger_id, B2, EntryId(0), EntryId(1)), segment)
    assert owed.has_room(), "one that owes nothing is not held up by others"


def test_r9_a_fragment_is_proved_if_nothing_is_owed_there_and_nothing_was_left_to_repair() -> None:
    segment = make_segment(later=(B0, B1, B3))
    owed, _ = make_owed(segment, [B0, B1, B2], [B0, B1])
    assert owed.list_proved(segment) == [2]
    owed.record(segment)
    owed.note_stored(B2, EntryId(1), segment)
    assert not owed.entries and owed.list_proved(segment) == [2], "the auditor looks at fragment 0"


def test_bytes_that_are_counted_wrong_are_found() -> None:
    owed, _ = make_owed(make_segment(), [B0, B1])
    owed.size_bytes -= 1
    with pytest.raises(AssertionError):
        owed.validate()
