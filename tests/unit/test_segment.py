"""The segment's transitions and invariants: what may change, and what never does.

Rules R3, R4, R16 and R17. Source: docs/protocol/metadata.md "logs/…/segments/<epoch>: the segment
node".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.cold_copy import ColdCopy
from duramen.core.quorum import Quorum
from duramen.core.segment import TRANSITIONS, Fragment, Segment, SegmentState, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member


def ensemble(*names: str) -> tuple[Member, ...]:
    return tuple(Member(BookieId(name), Incarnation("0" * 32)) for name in names)


OPEN = Segment(
    LogId(3), Epoch(2), Quorum(3, 2, 2), (Fragment(EntryId(0), ensemble("a", "b", "c")),)
)  # fmt: skip
LONG = OPEN.with_ensemble(EntryId(5), ensemble("a", "b", "d"), Totals(9, 90), "n1")


def close(segment: Segment, last_entry: int, **fields: Any) -> Segment:
    return segment.closed(
        last_entry=EntryId(last_entry),
        totals=fields.pop("totals", Totals()),
        start_seq_num=7,
        completed_unix_ms=8,
        nonce="closed",
        **fields,
    )


def test_every_entry_has_the_write_set_of_its_own_fragment() -> None:
    assert [m.bookie for m in LONG.write_set_of(EntryId(4))] == ["b", "c"]
    assert [m.bookie for m in LONG.write_set_of(EntryId(5))] == ["d", "a"]
    assert LONG.last_fragment.first_entry == 5 and LONG.ledger_id == 3 << 32 | 2


def test_a_change_at_the_same_entry_replaces_the_last_fragment_only() -> None:
    again = LONG.with_ensemble(EntryId(5), ensemble("e", "b", "d"), Totals(9, 90), "n2")
    assert again.fragments[0] == OPEN.fragments[0] and len(again.fragments) == 2
    first = OPEN.with_ensemble(EntryId(0), ensemble("e", "b", "c"), Totals(), "n2")
    assert len(first.fragments) == 1


def test_r17_fragments_after_the_last_entry_are_dropped() -> None:
    assert len(close(LONG, 5).fragments) == 2
    assert close(LONG, 4).fragments == OPEN.fragments
    assert close(OPEN, NOTHING).fragments == OPEN.fragments, "an empty segment keeps its first"


def test_r16_recoverys_ensembles_come_with_the_close() -> None:
    mine = (*LONG.fragments, Fragment(EntryId(6), ensemble("e", "f", "g"), Totals(10, 100)))
    assert close(LONG.marked("m"), 6, fragments=mine).fragments == mine


def test_nothing_changes_but_by_its_transition() -> None:
    marked, closed = OPEN.marked("m"), close(OPEN, 3)
    assert TRANSITIONS[SegmentState.CLOSED] == frozenset()
    steps: tuple[Callable[[], Segment], ...] = (
        lambda: marked.marked("again"),
        lambda: closed.marked("m"),
        lambda: close(closed, 2),
        lambda: marked.with_ensemble(EntryId(1), ensemble("a", "b", "d"), Totals(), "n"),
        lambda: closed.with_ensemble(EntryId(1), ensemble("a", "b", "d"), Totals(), "n"),
        lambda: replace(OPEN, ack_mode="out_of_order").with_ensemble(
            EntryId(1), ensemble("a", "b", "d"), Totals(), "n"
        ),
    )
    for step in steps:
        with pytest.raises(AssertionError):
            step()


@pytest.mark.parametrize(
    "fields",
    [
        {"fragments": ()},
        {"fragments": (Fragment(EntryId(1), ensemble("a", "b", "c")),)},
        {"fragments": (*LONG.fragments, LONG.fragments[1])},
        {"fragments": (Fragment(EntryId(0), ensemble("a", "b")),)},
        {"fragments": (Fragment(EntryId(0), ensemble("a", "b", "b")),)},
        {"fragments": (Fragment(EntryId(0), ensemble("a", "b", "c"), Totals(1)),)},
        {"state": SegmentState.CLOSED},
        {"last_entry": EntryId(3)},
        {"totals": Totals()},
        {"state": SegmentState.CLOSED, "last_entry": EntryId(-2), "totals": Totals()},
        {"state": SegmentState.CLOSED, "last_entry": EntryId(4), "totals": Totals(),
         "fragments": LONG.fragments},
    ],
)  # fmt: skip
def test_the_invariants_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        replace(OPEN, **fields).validate()


maybe = st.none() | st.integers(-5, 5)
totals = st.builds(Totals, st.integers(0, 9), st.integers(0, 9), maybe, maybe)


@given(totals, totals, totals)
def test_totals_add_up_in_any_grouping(one: Totals, two: Totals, three: Totals) -> None:
    assert one.plus(two).plus(three) == one.plus(two.plus(three))
    assert one.plus(two) == two.plus(one) and one.plus(Totals()) == one


def member(name: str) -> Member:
    return ensemble(name)[0]


def test_r21_a_swap_changes_one_member_of_one_settled_fragment_in_its_place() -> None:
    proved = LONG.with_proved(EntryId(0), "n2")
    swapped = proved.with_swapped(EntryId(0), member("b"), member("x"), "n3")
    assert [m.bookie for m in swapped.fragments[0].ensemble] == ["a", "x", "c"]
    assert swapped.fragments[0].is_proved and swapped.fragments[1] == LONG.fragments[1]
    assert (swapped.state, swapped.nonce) == (LONG.state, "n3")
    again = close(LONG, 9).with_swapped(EntryId(5), member("d"), member("x"), "n4")
    assert [m.bookie for m in again.last_fragment.ensemble] == ["a", "b", "x"]


def test_a_new_life_of_the_same_bookie_may_take_the_place_of_the_old_one() -> None:
    reborn = Member(BookieId("b"), Incarnation("1" * 32))
    swapped = LONG.with_swapped(EntryId(0), member("b"), reborn, "n2")
    assert swapped.fragments[0].ensemble[1] == reborn


def test_r21_the_last_fragment_of_an_unclosed_segment_is_its_owners() -> None:
    for segment in (OPEN, OPEN.marked("m"), LONG, LONG.marked("m")):
        last = segment.last_fragment
        with pytest.raises(AssertionError, match="R21"):
            segment.with_swapped(last.first_entry, last.ensemble[0], member("x"), "n")
        with pytest.raises(AssertionError, match="R21"):
            segment.with_proved(last.first_entry, "n")


@pytest.mark.parametrize(
    ("first_entry", "old", "new"), [(0, "d", "x"), (0, "b", "b"), (0, "b", "c"), (3, "b", "x")]
)
def test_a_swap_that_names_something_else_is_a_fault_of_ours(
    first_entry: int, old: str, new: str
) -> None:
    with pytest.raises(AssertionError):
        LONG.with_swapped(EntryId(first_entry), member(old), member(new), "n")


def test_r9_only_settled_fragments_are_proved_and_stay_so() -> None:
    with pytest.raises(AssertionError, match="6"):
        replace(OPEN, fragments=(replace(OPEN.fragments[0], is_proved=True),)).validate()
    early = LONG.with_proved(EntryId(0), "n2")
    changed = early.with_ensemble(EntryId(9), ensemble("a", "e", "d"), Totals(20, 200), "n3")
    assert [f.is_proved for f in changed.fragments] == [True, False, False]
    assert [f.is_proved for f in close(changed.marked("m"), 9).fragments] == [True, False, False]


def test_r9_an_owner_closes_with_what_it_knows_to_be_whole() -> None:
    early = LONG.with_proved(EntryId(0), "n2")
    assert [f.is_proved for f in close(early, 9).fragments] == [True, False]
    assert [f.is_proved for f in close(LONG, 9, proved={EntryId(5)}).fragments] == [False, True]
    assert [f.is_proved for f in close(LONG, 4, proved={EntryId(5)}).fragments] == [False]


# --- Cold copies ---------------------------------------------------------------------------------

COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5)
OTHER = replace(COPY, attempt="2c" * 16)


def test_a1_a_closed_segment_gets_a_cold_copy_and_nothing_else_of_it_changes() -> None:
    closed = close(LONG, 9)
    cold = closed.with_cold_copy(COPY, "n5")
    assert cold.cold_copy == COPY and replace(cold, cold_copy=None, nonce="closed") == closed
    rechecked = cold.with_recheck(7, "n6")
    assert rechecked.cold_copy == replace(COPY, rechecked_unix_ms=7)
    assert rechecked.nonce == "n6"
    assert replace(rechecked.without_cold_copy("n7"), nonce="closed") == closed


def test_repair_keeps_the_cold_copy() -> None:
    cold = close(LONG, 9).with_cold_copy(COPY, "n5")
    for changed in (
        cold.with_swapped(EntryId(5), member("d"), member("x"), "n6"),
        cold.with_proved(EntryId(0), "n6"),
        cold.with_lost([(3, 4)], "n6"),
    ):
        assert changed.cold_copy == COPY


def test_only_a_closed_segment_has_a_cold_copy() -> None:
    for segment in (LONG, LONG.marked("m")):
        with pytest.raises(AssertionError):
            segment.with_cold_copy(COPY, "n")
        with pytest.raises(AssertionError, match="9"):
            replace(segment, cold_copy=COPY).validate()


def test_another_copy_takes_the_place_of_a_rechecked_one_only_if_it_is_rechecked() -> None:
    cold = close(LONG, 9).with_cold_copy(COPY, "n5")
    assert cold.with_cold_copy(OTHER, "n6").cold_copy == OTHER
    rechecked = cold.with_recheck(7, "n6")
    with pytest.raises(AssertionError):
        rechecked.with_cold_copy(OTHER, "n7")
    assert rechecked.with_cold_copy(OTHER.rechecked(8), "n7").cold_copy == OTHER.rechecked(8)


def test_what_is_not_there_is_neither_rechecked_nor_taken_away() -> None:
    closed = close(LONG, 9)
    steps: tuple[Callable[[], Segment], ...] = (
        lambda: closed.with_recheck(7, "n"),
        lambda: closed.without_cold_copy("n"),
    )
    for step in steps:
        with pytest.raises(AssertionError):
            step()


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt": ""}, {"attempt": "0A" * 16}, {"manifest_sha256": "1b" * 31},
        {"size_bytes": -1}, {"verified_unix_ms": -1}, {"rechecked_unix_ms": -1},
    ],
)  # fmt: skip
def test_a_cold_copy_that_names_nothing_is_a_fault_of_ours(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        close(LONG, 9).with_cold_copy(replace(COPY, **fields), "n")
