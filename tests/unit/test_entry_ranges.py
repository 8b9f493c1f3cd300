"""Ranges of numbers against a plain set, drawn by Hypothesis.

Also the edges of 32 bits, and columns from outside that are no ranges. Source:
docs/protocol/entry-log.md.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duramen.core.entry_ranges import EntryRanges, group_ranges
from duramen.ids import NOTHING

LAST = 0xFFFF_FFFF
NUMBERS = range(-1, 40)

changes = st.lists(
    st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 32), st.integers(0, 6))
)


def changed(steps: list[tuple[str, int, int]]) -> tuple[EntryRanges, set[int]]:
    """The ranges after some changes, and the set that they must be."""
    ranges, model = EntryRanges(), set[int]()
    for verb, first, more in steps:
        numbers = set(range(first, first + more + 1))
        if verb == "add":
            ranges.add(first, first + more)
            model |= numbers
        else:
            ranges.remove(first, first + more)
            model -= numbers
        ranges.validate()
        assert len(ranges) == len(model)
    return ranges, model


@given(changes)
def test_ranges_behave_like_a_set(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = changed(steps)
    assert [number in ranges for number in NUMBERS] == [number in model for number in NUMBERS]
    listed = [number for first, last in ranges for number in range(first, last + 1)]
    assert listed == sorted(model)
    assert bool(ranges) == bool(model) and ranges.last() == max(model, default=NOTHING)
    assert list(ranges) == ranges.list_ranges() == group_ranges(model)
    assert ranges.range_count == len(ranges.list_ranges())


@given(changes, st.integers(0, 40), st.integers(0, 40))
def test_a_run_goes_on_to_the_first_gap(
    steps: list[tuple[str, int, int]], first: int, last: int
) -> None:
    ranges, model = changed(steps)
    count = 0
    while first + count in model:
        count += 1
    assert ranges.run_end(first) == (first + count - 1 if count else NOTHING)
    if last >= first:
        assert ranges.count_run(first, last) == min(count, last - first + 1)


@given(changes, st.integers(0, 40), st.integers(0, 40))
@example([("add", 0, 1)], 1, 0)
def test_what_lies_between_two_numbers(
    steps: list[tuple[str, int, int]], first: int, last: int
) -> None:
    ranges, model = changed(steps)
    assert ranges.within(first, last) == group_ranges(n for n in model if first <= n <= last)


@given(changes, changes)
def test_equal_sets_are_equal_ranges_however_they_came_about(
    steps: list[tuple[str, int, int]], others: list[tuple[str, int, int]]
) -> None:
    ranges, model = changed(steps)
    other, other_model = changed(others)
    assert (ranges == other) == (model == other_model)
    assert ranges == EntryRanges((number, number) for number in sorted(model, reverse=True))
    assert ranges != model


@given(changes)
def test_columns_bring_the_same_ranges_back(steps: list[tuple[str, int, int]]) -> None:
    ranges, _ = changed(steps)
    firsts, lasts = ranges.columns()
    back = EntryRanges.from_columns(firsts[:], lasts[:])
    back.validate()
    assert back == ranges and len(back) == len(ranges)


@given(changes, st.integers(0, 32))
def test_a_copy_lives_apart(steps: list[tuple[str, int, int]], number: int) -> None:
    ranges, model = changed(steps)
    copy = ranges.copy()
    copy.add(number)
    copy.remove(number + 1)
    copy.validate()
    ranges.validate()
    assert [one in ranges for one in NUMBERS] == [one in model for one in NUMBERS]


@given(st.lists(st.integers(0, 40)))
def test_numbers_are_grouped_whatever_their_order(numbers: list[int]) -> None:
    ranges = group_ranges(numbers)
    assert [one for first, last in ranges for one in range(first, last + 1)] == sorted(set(numbers))
    assert EntryRanges(ranges).range_count == len(ranges), "none of them touch"


def test_all_of_32_bits_fit_in() -> None:
    ranges = EntryRanges([(0, LAST)])
    assert len(ranges) == 1 << 32 and ranges.run_end(0) == LAST
    ranges.remove(0)
    ranges.remove(LAST)
    ranges.remove(7, 8)
    ranges.validate()
    assert repr(ranges) == f"[1-6 9-{LAST - 1}]"
    ranges.add(LAST)
    ranges.add(0)
    assert repr(ranges) == f"[0-6 9-{LAST}]"


def test_a_single_number_is_spelt_alone() -> None:
    assert repr(EntryRanges([(3, 3), (5, 6)])) == "[3 5-6]"


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (2, 1), (0, LAST + 1)])
def test_what_is_no_range_is_a_broken_promise(first: int, last: int) -> None:
    with pytest.raises(AssertionError):
        EntryRanges().add(first, last)
    with pytest.raises(AssertionError):
        EntryRanges([(0, 9)]).remove(first, last)


@pytest.mark.parametrize(
    ("firsts", "lasts"),
    [
        ([1], []),
        ([2], [1]),
        ([5, 1], [5, 1]),
        ([1, 2], [1, 2]),
        ([1, 3], [4, 6]),
    ],
    ids=["uneven", "backwards", "falling", "touching", "overlapping"],
)
def test_columns_that_are_no_ranges_are_refused(firsts: list[int], lasts: list[int]) -> None:
    with pytest.raises(ValueError, match="rise"):
        EntryRanges.from_columns(array("I", firsts), array("I", lasts))
