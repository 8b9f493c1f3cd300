"""How a run is cut: segments into parts of about equal bytes, parts into batches of tasks.

A part is one file, read, written and checked by one task. Small segments share a task, a large one
is cut at entries, found by the running totals in entry headers. A batch is what is handed to the
runner at once: big enough to fill its slots, small enough that a run that is killed has finished
most of what it began. Pure, given a function that tells an entry's running total.

Called by `driver`. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from duramen.core.flexible.segment import AnySegment
from duramen.ids import EntryId

T = TypeVar("T")

LengthBefore = Callable[[EntryId], Awaitable[int]]
"""Bytes of a segment's batches before an entry that is there."""


class PartRange(NamedTuple):
    """Entries `first` … `last` of a segment, both inclusive, and about how many bytes they are."""

    first: EntryId
    last: EntryId
    size_bytes: int


async def cut_segment(
    segment: AnySegment, part_bytes: int, read_length_before: LengthBefore
) -> list[PartRange]:
    """Parts of about `part_bytes`; none of an empty segment.

    Args:
        segment: CLOSED.
        read_length_before: asked about twenty times a part, for entries that are there alone.
    """
    last, totals = segment.last_entry, segment.totals
    assert last is not None and totals is not None, segment
    present = segment.list_present(EntryId(0), last)
    if not present:
        return []
    first, end = present[0][0], present[-1][1]
    count = max(1, round(totals.length_bytes / part_bytes))
    starts = [first]
    for index in range(1, count):
        wanted = totals.length_bytes * index // count
        at = await _find(segment, wanted, starts[-1], end, read_length_before)
        if at is not None and at > starts[-1]:
            starts.append(at)
    size_bytes = totals.length_bytes // len(starts)
    ends = [EntryId(start - 1) for start in starts[1:]] + [end]
    return [PartRange(a, b, size_bytes) for a, b in zip(starts, ends, strict=True)]


async def _find(
    segment: AnySegment,
    wanted_bytes: int,
    low: EntryId,
    high: EntryId,
    read_length_before: LengthBefore,
) -> EntryId | None:
    """The first entry that is there with so many bytes before it; None: none above `low`."""
    found: EntryId | None = None
    begin, end = low + 1, int(high)
    while begin <= end:
        middle = EntryId((begin + end) // 2)
        there = segment.list_present(middle, high)[0][0]
        if await read_length_before(there) >= wanted_bytes:
            found, end = there, middle - 1
        else:
            begin = there + 1
    return found


def balance(items: Sequence[T], slot_count: int, size_of: Callable[[T], int]) -> list[list[T]]:
    """At most `slot_count` lists of about equal size: the largest item first, into the emptiest."""
    slots: list[list[T]] = [[] for _ in range(min(slot_count, len(items)))]
    sizes = [0] * len(slots)
    for item in sorted(items, key=size_of, reverse=True):
        emptiest = sizes.index(min(sizes))
        slots[emptiest].append(item)
        # One byte more than nothing: empty items spread too.
        sizes[emptiest] += size_of(item) + 1
    return slots


def batch(items: Sequence[T], batch_bytes: int, size_of: Callable[[T], int]) -> list[list[T]]:
    """Consecutive items, in lists of at most about `batch_bytes` and one item at least."""
    batches: list[list[T]] = []
    size_bytes = 0
    for item in items:
        if not batches or size_bytes + size_of(item) > batch_bytes:
            batches.append([])
            size_bytes = 0
        batches[-1].append(item)
        size_bytes += size_of(item)
    return batches
