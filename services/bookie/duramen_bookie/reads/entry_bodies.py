"""Bodies of entries that are to be sent, read and verified; what is broken stops none behind it.

A plain read ends at the first entry that it cannot give. Here it goes on behind that one, so that
one damaged entry of a range costs itself alone. Where many are broken it ends all the same: what is
left is asked for again, and not by reading a damaged file from each of its entries on.

Not here: which entries (`core.bookie.range_choice`). Called by `range_reads`, on any thread.
Source: R15, docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", V10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from duramen.core.bookie.bookie_state import RangePlan, ReadPlan
from duramen.core.entry_ranges import join_entries
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen_bookie.reads.held_entries import HotEntries, Met
from duramen_bookie.storage import PlannedRead

if TYPE_CHECKING:
    from duramen_bookie.storage import Storage

BROKEN_COUNT_MAX: Final = 64
"""When so many bodies are broken, no more is read."""

Body = tuple[EntryId, bytes | memoryview]


class EntryBodies(NamedTuple):
    """What was read: bodies in the order of entries, and which could not be."""

    bodies: list[Body]
    broken: list[EntryId]
    unreadable: list[tuple[LedgerId, EntryId]]
    """Of the broken ones those that are damaged: the core is to be told."""
    end: EntryId | None
    """From here on nothing was read; None: all was."""


def read_bodies(
    storage: Storage,
    plan: RangePlan,
    hot: HotEntries,
    sent: Sequence[Met],
    *,
    headers_only: bool,
) -> EntryBodies:
    """Read the bodies of some entries of a plan; blocks for the disk."""
    sizes = {met.entry_id: met.size_bytes for met in sent}
    runs = list(join_entries(sizes))
    found = EntryBodies([], [], [], None)
    while runs and len(found.broken) < BROKEN_COUNT_MAX:
        readings = [
            _make_reading(plan, hot, first, last, sizes, headers_only=headers_only)
            for first, last in runs
        ]
        result = storage.read(readings)
        found.unreadable.extend(result.unreadable)
        rest = []
        for (first, last), answer in zip(runs, result.answers, strict=True):
            found.bodies.extend(answer.entries)
            reached = first + len(answer.entries)
            if reached <= last:
                found.broken.append(EntryId(reached))
            if reached < last:
                rest.append((EntryId(reached + 1), last))
        runs = rest
    found.bodies.sort(key=_entry_of)
    found.broken.sort()
    return found._replace(end=runs[0][0] if runs else None)


def _make_reading(
    plan: RangePlan,
    hot: HotEntries,
    first: EntryId,
    last: EntryId,
    sizes: dict[EntryId, int],
    *,
    headers_only: bool,
) -> PlannedRead:
    """A plain read of entries that follow each other."""
    count = last - first + 1
    numbers = [EntryId(entry) for entry in range(first, last + 1)]
    size = sum([sizes[entry] for entry in numbers])
    plain = ReadPlan(
        BookieStatus.OK, plan.lac, plan.highest, plan.is_sealed, plan.ledger_id, first, count,
        size, headers_only,
    )  # fmt: skip
    if plan.hot:
        return PlannedRead(plain, [hot.places.place_of(entry) for entry in numbers], pin=hot.pin)
    return PlannedRead(plain, (), count, size)


def _entry_of(body: Body) -> EntryId:
    return body[0]
