"""Sets of 32-bit numbers, kept as ranges: settled and unknown entries, epochs that were dropped.

A settled ledger of a million entries is one range, 8 bytes in two arrays. Many ranges are the
exception (striped ledgers, damage). Finding is a bisection; a change moves the ranges behind it.

Not here: which entries belong in (`core.bookie`), numbers kept per entry (`EntryTable`). Called by
the bookie's core and by the code that writes or reads its checkpoint.
Source: docs/protocol/entry-log.md.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import le, sub
from typing import Final

from duramen.ids import NOTHING, EntryId

_LAST: Final = 0xFFFF_FFFF


class EntryRanges:
    """A set of numbers from 0 to 2^32 − 1, as sorted ranges (first, last), both inclusive.

    Args:
        ranges: what is in it at first, in any order, overlapping or not.

    Invariants:
     1 firsts and lasts are as many, and first ≤ last.
     2 ranges rise and do not touch: there is a gap of one number at least between two.
     3 `len` is the sum of their sizes.
    """

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts = array("I")
        self._lasts = array("I")
        self._count = 0
        for first, last in ranges:
            self.add(first, last)

    @classmethod
    def from_columns(cls, firsts: array[int], lasts: array[int]) -> EntryRanges:
        """The inverse of `columns`; takes the arrays over.

        Args:
            firsts: typecode "I", one number per range.
            lasts: the same.

        Raises:
            ValueError: these are no ranges that rise without touching.
        """
        ranges = cls()
        ranges._firsts, ranges._lasts = firsts, lasts
        if not ranges._are_ranges():
            raise ValueError("ranges must rise and not touch")
        ranges._count = ranges._total()
        return ranges

    def __len__(self) -> int:
        """How many numbers are in it, not how many ranges."""
        return self._count

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return index < len(self._lasts) and self._firsts[index] <= number

    def __iter__(self) -> Iterator[tuple[EntryId, EntryId]]:
        """Every range (first, last), ascending."""
        return iter(self.list_ranges())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntryRanges):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        spelt = [str(a) if a == b else f"{a}-{b}" for a, b in self.list_ranges()]
        return f"[{' '.join(spelt)}]"

    @property
    def range_count(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def add(self, first: int, last: int | None = None) -> None:
        """Put first … last in; `last` None: `first` alone. What is in already stays."""
        last = first if last is None else last
        assert 0 <= first <= last <= _LAST, (first, last)
        firsts, lasts = self._firsts, self._lasts
        # Ranges from index `start` to before `end` overlap or touch the new one, and become it.
        start = bisect_left(lasts, first - 1)
        end = bisect_right(firsts, last + 1)
        if start < end:
            first, last = min(first, firsts[start]), max(last, lasts[end - 1])
        self._replace(start, end, [(first, last)])

    def remove(self, first: int, last: int | None = None) -> None:
        """Take first … last out, as far as they are in; `last` None: `first` alone."""
        last = first if last is None else last
        assert 0 <= first <= last <= _LAST, (first, last)
        firsts, lasts = self._firsts, self._lasts
        start = bisect_left(lasts, first)
        end = bisect_right(firsts, last)
        if start < end:
            pieces = [(firsts[start], first - 1), (last + 1, lasts[end - 1])]
            self._replace(start, end, [piece for piece in pieces if piece[0] <= piece[1]])

    def run_end(self, number: int) -> EntryId:
        """The last number of the range that holds `number`; NOTHING if none does."""
        index = bisect_left(self._lasts, number)
        if index < len(self._lasts) and self._firsts[index] <= number:
            return EntryId(self._lasts[index])
        return NOTHING

    def count_run(self, first: int, last: int) -> int:
        """How many numbers first, first + 1, … up to `last` are in without a gap."""
        return max(0, min(last, self.run_end(first)) - first + 1)

    def within(self, first: int, last: int) -> list[tuple[EntryId, EntryId]]:
        """What of the ranges lies from `first` to `last`, ascending; nothing if last < first."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last) if first <= last else start
        return [
            (EntryId(max(self._firsts[index], first)), EntryId(min(self._lasts[index], last)))
            for index in range(start, end)
        ]

    def cut(
        self, first: int, last: int, range_count_max: int
    ) -> tuple[tuple[EntryId, EntryId], ...]:
        """As `within`, of the lowest `range_count_max` ranges alone."""
        start = bisect_left(self._lasts, first)
        end = min(bisect_right(self._firsts, last, lo=start), start + range_count_max)
        return tuple(
            [
                (EntryId(max(self._firsts[index], first)), EntryId(min(self._lasts[index], last)))
                for index in range(start, end)
            ]
        )

    def next_number(self, number: int) -> EntryId:
        """The lowest number from `number` on that is in it, or NOTHING."""
        index = bisect_left(self._lasts, number)
        if index == len(self._lasts):
            return NOTHING
        return EntryId(max(self._firsts[index], number))

    def last(self) -> EntryId:
        """The highest number, or NOTHING."""
        return EntryId(self._lasts[-1]) if self._lasts else NOTHING

    def list_ranges(self) -> list[tuple[EntryId, EntryId]]:
        """Every range (first, last), ascending."""
        return [
            (EntryId(first), EntryId(last))
            for first, last in zip(self._firsts, self._lasts, strict=True)
        ]

    def columns(self) -> tuple[array[int], array[int]]:
        """All firsts and all lasts, typecode "I", native byte order. Not to be changed."""
        return self._firsts, self._lasts

    def copy(self) -> EntryRanges:
        """The same numbers in a set of their own."""
        other = EntryRanges()
        other._firsts, other._lasts, other._count = self._firsts[:], self._lasts[:], self._count
        return other

    def validate(self) -> None:
        """Assert the invariants."""
        if not (self._firsts or self._lasts or self._count):
            return  # as most of them are
        assert self._are_ranges(), f"1, 2: {self._firsts} {self._lasts}"
        assert self._count == self._total(), f"3: {self._count} is not {self._total()}"

    def _are_ranges(self) -> bool:
        firsts, lasts = self._firsts, self._lasts
        if len(firsts) != len(lasts):
            return False
        # first 0 ≤ last 0 < first 1 − 1 ≤ last 1 − 1 < …, by whole columns: there may be thousands.
        gaps = map(sub, islice(firsts, 1, None), lasts)
        return all(map(le, firsts, lasts)) and min(gaps, default=2) > 1

    def _total(self) -> int:
        """The sizes of all ranges together."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def _replace(self, start: int, end: int, pieces: list[tuple[int, int]]) -> None:
        """Put `pieces` in place of the ranges from index `start` to before `end`."""
        firsts, lasts = self._firsts, self._lasts
        for index in range(start, end):
            self._count -= lasts[index] - firsts[index] + 1
        for first, last in pieces:
            self._count += last - first + 1
        firsts[start:end] = array("I", [first for first, _ in pieces])
        lasts[start:end] = array("I", [last for _, last in pieces])


def group_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges (first, last) that a collection of numbers makes up, ascending."""
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for number in sorted(numbers):
        if number <= last + 1 and last >= 0:
            last = number
            continue
        if last >= 0:
            ranges.append((first, last))
        first = last = number
    if last >= 0:
        ranges.append((first, last))
    return ranges


def join_entries(entries: Iterable[EntryId]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Ascending entries as closed ranges."""
    ranges: list[tuple[EntryId, EntryId]] = []
    for entry in entries:
        if ranges and ranges[-1][1] == entry - 1:
            ranges[-1] = (ranges[-1][0], entry)
        else:
            ranges.append((entry, entry))
    return tuple(ranges)
