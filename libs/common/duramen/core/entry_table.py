"""Numbers kept per entry of one ledger, in compact arrays sorted by entry.

The core keeps 8 bytes for each hot entry, its identity checksum included. The bookie's active
index keeps a place in the journal. Entries arrive mostly in order, so adding appends and finding is
a subtraction. Recovery and resends may fill gaps, and then the numbers behind the gap are moved.

Not here: which entries belong in, and sets of entries without numbers (`EntryRanges`). Called by
`core.bookie.bookie_state` and the bookie's index. Source: docs/protocol/entry-log.md.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import lt

from duramen.ids import NOTHING, EntryId


class EntryTable:
    """Entry ids in ascending order, with columns of numbers.

    Args:
        typecodes: of `array`, one per column.

    Invariants:
     1 ids rise strictly, and every column is as long as they are.
    """

    __slots__ = ("_columns", "_ids")

    def __init__(self, typecodes: str) -> None:
        self._ids = array("I")
        self._columns = tuple(array(typecode) for typecode in typecodes)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: int) -> bool:
        return self._find(entry_id) >= 0

    def put(self, entry_id: int, *values: int) -> bool:
        """Add an entry, or replace its values; whether it is a new one."""
        assert len(values) == len(self._columns), (entry_id, values)
        ids = self._ids
        if not ids or entry_id > ids[-1]:
            ids.append(entry_id)
            if len(values) == 1:  # the core's table, once for every entry that is ever added
                self._columns[0].append(values[0])
                return True
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            return True
        index = bisect_left(ids, entry_id)
        if ids[index] == entry_id:
            for column, value in zip(self._columns, values, strict=True):
                column[index] = value
            return False
        ids.insert(index, entry_id)
        for column, value in zip(self._columns, values, strict=True):
            column.insert(index, value)
        return True

    def get(self, entry_id: int) -> tuple[int, ...] | None:
        """The values of an entry, or None if it is not here."""
        index = self._find(entry_id)
        return None if index < 0 else tuple([column[index] for column in self._columns])

    def remove(self, entry_id: int) -> None:
        """Forget an entry, if it is here."""
        index = self._find(entry_id)
        if index >= 0:
            del self._ids[index]
            for column in self._columns:
                del column[index]

    def remove_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Forget all entries of these ranges (first, last), which rise; one pass for all."""
        ids = self._ids
        cuts = [(bisect_left(ids, first), bisect_right(ids, last)) for first, last in ranges]
        self._ids = _without(ids, cuts)
        self._columns = tuple([_without(column, cuts) for column in self._columns])

    def add_column(self, typecode: str, value: int) -> None:
        """One more number for each entry, the same for all that are here."""
        self._columns = (*self._columns, array(typecode, [value]) * len(self._ids))

    def change_column(self, index: int, change: Callable[[int], int]) -> None:
        """Replace one number of each entry, in the order of the entries."""
        column = self._columns[index]
        changed = array(column.typecode, map(change, column))
        self._columns = (*self._columns[:index], changed, *self._columns[index + 1 :])

    def select_column(self, index: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The entries from `first` to `last` with one of their numbers, ascending."""
        start, end = bisect_left(self._ids, first), bisect_right(self._ids, last)
        return zip(self._ids[start:end], self._columns[index][start:end], strict=True)

    def copy(self) -> EntryTable:
        """The same entries and numbers, apart."""
        other = EntryTable("")
        other._ids = self._ids[:]
        other._columns = tuple([column[:] for column in self._columns])
        return other

    def cut(self, first: int, last: int, count_max: int) -> EntryTable:
        """The same entries and numbers from `first` to `last`, the lowest `count_max`, apart."""
        start = bisect_left(self._ids, first)
        end = min(bisect_right(self._ids, last, lo=start), start + count_max)
        other = EntryTable("")
        other._ids = self._ids[start:end]
        other._columns = tuple([column[start:end] for column in self._columns])
        return other

    def next_id(self, number: int) -> EntryId:
        """The lowest entry from `number` on, or NOTHING."""
        index = bisect_left(self._ids, number)
        return EntryId(self._ids[index]) if index < len(self._ids) else NOTHING

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Every entry with its numbers, ascending."""
        return zip(self._ids, *self._columns, strict=True)

    def sum_column(self, column: int) -> int:
        """The sum of one number over all entries."""
        return sum(self._columns[column])

    def list_ids(self) -> list[EntryId]:
        """All entries, ascending."""
        return [EntryId(entry_id) for entry_id in self._ids]

    def count_run(self, first: int, last: int) -> int:
        """How many entries first, first + 1, … up to `last` are here without a gap."""
        start = self._find(first)
        if start < 0:
            return 0
        return min(last - first + 1, self._run_end(start) - start)

    def list_ranges(self) -> list[tuple[EntryId, EntryId]]:
        """Every (first, last) without a gap between them, ascending."""
        ranges = []
        start = 0
        while start < len(self._ids):
            end = self._run_end(start)
            ranges.append((EntryId(self._ids[start]), EntryId(self._ids[end - 1])))
            start = end
        return ranges

    def last(self) -> EntryId:
        """The highest entry, or NOTHING."""
        return EntryId(self._ids[-1]) if self._ids else NOTHING

    def validate(self) -> None:
        """Assert the invariants."""
        ids = self._ids
        assert all(map(lt, ids, islice(ids, 1, None))), "1: ids rise"
        assert all(len(column) == len(ids) for column in self._columns), "1: columns"

    def _find(self, entry_id: int) -> int:
        ids = self._ids
        if not ids:
            return -1
        index = entry_id - ids[0]
        if index < 0:
            return -1
        if index < len(ids) and ids[index] == entry_id:
            return index
        index = bisect_left(ids, entry_id)
        return index if index < len(ids) and ids[index] == entry_id else -1

    def _run_end(self, start: int) -> int:
        """Index after the run that begins at `start`: id − index never falls, so it is bisected."""
        ids = self._ids
        if ids[-1] - ids[start] == len(ids) - 1 - start:
            return len(ids)
        offset = ids[start] - start
        return bisect_right(range(len(ids)), offset, lo=start, key=lambda i: ids[i] - i)


def _without(numbers: array[int], cuts: Sequence[tuple[int, int]]) -> array[int]:
    """A copy of an array that lacks the slices [start, end), which rise."""
    kept = array(numbers.typecode)
    begin = 0
    for start, end in cuts:
        kept.extend(numbers[begin:start])
        begin = end
    kept.extend(numbers[begin:])
    return kept
