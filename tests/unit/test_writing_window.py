"""The window by itself: who stores what, what is acknowledged, and how the LAC follows.

Random answers are in `test_window.py`, through the writer. Source: docs/protocol/write.md
"Acknowledgement", R5, R7, R8.
"""

from __future__ import annotations

import pytest

from duramen.core.quorum import Quorum
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer.writing.window import EntryWindow
from duramen.ids import NOTHING, EntryId, Member
from duramen.limits import ENTRY_TARGET_BYTES
from tests.unit.writing_parts import B0, B1, B2, B3, make_segment, member


def make_window(count: int) -> EntryWindow:
    window = EntryWindow()
    for number in range(count):
        window.push(b"payload", Totals(number + 1))
    window.validate()
    return window


def store(window: EntryWindow, segment: Segment, entry_id: int, *members: Member) -> None:
    for one in members:
        assert window.note_stored(one, EntryId(entry_id), segment)


def acknowledged(window: EntryWindow, segment: Segment) -> tuple[list[int], list[int]]:
    """What is acknowledged by now, and what left the window by that."""
    found: list[int] = [entry.entry for entry in window.acknowledge(segment)]
    left: list[int] = [entry.entry for entry in window.take_acknowledged()]
    window.validate()
    return found, left


def test_r5_the_lac_follows_what_is_acknowledged_without_a_gap() -> None:
    window, segment = make_window(3), make_segment()
    store(window, segment, 1, B0, B1)
    assert acknowledged(window, segment) == ([], [])
    store(window, segment, 0, B1, B2)
    assert acknowledged(window, segment) == ([0, 1], [0, 1])
    assert (window.lac, window.lap, window.lac_totals) == (1, 2, Totals(2))
    assert window.size_bytes == len(b"payload") and window.totals == Totals(3)


def test_r5_out_of_order_an_entry_is_acknowledged_once_and_leaves_in_its_turn() -> None:
    window, segment = make_window(2), make_segment(ack_mode="out_of_order")
    store(window, segment, 1, B0, B1)
    assert acknowledged(window, segment) == ([1], [])
    assert window.lac == NOTHING
    store(window, segment, 0, B0, B1)
    assert acknowledged(window, segment) == ([0], [0, 1])


def test_r8_only_a_member_of_the_write_set_counts_and_only_once() -> None:
    window, segment = make_window(1), make_segment(Quorum(4, 2, 2))
    store(window, segment, 0, B2, B3, B0, B0, member("b1", life=2))
    assert acknowledged(window, segment) == ([], [])
    store(window, segment, 0, B1)
    assert acknowledged(window, segment) == ([0], [0])


def test_an_entry_that_was_never_pushed_is_stored_by_nobody() -> None:
    window, segment = make_window(1), make_segment()
    assert not window.note_stored(B0, EntryId(1), segment)


def test_r7_acks_of_replaced_members_are_cleared_on_every_entry() -> None:
    window, segment = make_window(2), make_segment()
    store(window, segment, 0, B2)
    store(window, segment, 1, B1, B2)
    changed = segment.with_ensemble(EntryId(0), (B0, B1, B3), Totals(), "w")
    window.clear_replaced(changed)
    assert [entry.holders for entry in window.entries] == [[], [B1]]


def test_r5_disks_that_were_replaced_take_nothing_back_that_is_acknowledged() -> None:
    window, segment = make_window(2), make_segment(ack_mode="out_of_order")
    store(window, segment, 1, B0, B1)
    window.acknowledge(segment)
    store(window, segment, 0, B0)
    window.clear_gone(B0)
    assert [entry.holders for entry in window.entries] == [[], [B0, B1]]


@pytest.mark.parametrize(
    ("count", "holders", "absent", "ack_mode", "lacks"),
    [
        (0, [], [B0], "ordered", False),
        (0, [], [B0, B1], "ordered", True),
        (1, [], [B0], "ordered", False),
        (1, [], [B0, B1], "ordered", True),
        (1, [B1], [B0, B1], "ordered", False),
        (1, [], [B0, B1], "out_of_order", False),
    ],
)
def test_an_ack_set_is_lacking_where_too_few_hold_the_oldest_entry_or_may_take_it(
    count: int, holders: list[Member], absent: list[Member], ack_mode: str, lacks: bool
) -> None:
    window, segment = make_window(count), make_segment(ack_mode=ack_mode)
    if holders:
        store(window, segment, 0, *holders)
    assert window.lacks_ack_set(segment, absent) == lacks


def test_four_entries_or_four_of_the_target_size_fill_the_pipeline() -> None:
    window = make_window(3)
    assert window.has_room
    window.push(b"", Totals(4))
    assert not window.has_room
    large = EntryWindow()
    large.push(bytes(4 * ENTRY_TARGET_BYTES), Totals(1))
    assert not large.has_room


@pytest.mark.parametrize("fault", ["gap", "bytes", "stays"])
def test_a_window_that_breaks_an_invariant_is_found(fault: str) -> None:
    window = make_window(3)
    match fault:
        case "gap":
            del window.entries[1]
        case "bytes":
            window.size_bytes += 1
        case _:
            window.entries[0].is_acknowledged = True
    with pytest.raises(AssertionError):
        window.validate()
