"""What answers and streams tell of records that are missing: from where to where, and why.

Each entry's header says how many records of its segment precede it, those of holes too. So numbers
that are missing before an entry that came are those of a hole: what is lost or truncated is told
before anything behind it comes. Which entries the hole is, the segment's node says.

Called by `following` and the REST routes. Source: docs/protocol/read-answers.md "Gaps", R25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.ids import EntryId, Epoch, format_lsn, lsn_of
from duramen.runtime.reading.metadata import LogFollower

EntryRange = tuple[EntryId, EntryId]
HoleFinder = Callable[[Epoch, EntryId], EntryRange | None]
"""The hole that ends before an entry; None where nobody here knows of one."""

GapNote = dict[str, Any]


def find_hole(follower: LogFollower, epoch: Epoch, entry: EntryId) -> EntryRange | None:
    """The hole that ends before an entry which came, as the segment's node has it."""
    known = follower.peek(epoch)
    segment = None if known is None else known[1]
    if segment is None or (hole := segment.hole_at(EntryId(entry - 1))) is None:
        return None
    first = hole[0]
    while (before := segment.hole_at(EntryId(first - 1))) is not None:
        first = before[0]
    return first, EntryId(entry - 1)


def describe_gap(
    kind: str, begin: str, end: str, epoch: Epoch, entries: EntryRange | None
) -> GapNote:
    """A gap: from the position `begin`, and where the log goes on.

    Args:
        entries: those that are not there, where that is known.
    """
    note = {"kind": kind, "from": begin, "next": end}
    if entries is None:
        return note
    first, last = (format_lsn(lsn_of(epoch, entry)) for entry in entries)
    return note | {"first_lsn": first, "last_lsn": last}


def describe_hole(
    find: HoleFinder, epoch: Epoch, entry: EntryId, begin_seq_num: int, end_seq_num: int
) -> GapNote:
    """The hole before an entry that came, whose first record would have `end_seq_num`."""
    begin, end = f"seq:{begin_seq_num}", f"seq:{end_seq_num}"
    return describe_gap("hole", begin, end, epoch, find(epoch, entry))
