"""Whom a read of an entry is sent to, and how far one member holds what follows without a gap.

Without striping (Qw = E) every member holds its whole fragment; with it, runs of Qw entries of
every E. The nodes of a flexible segment are asked as one (`ALL_NODES`).
Pure functions of a segment's metadata. Called by `core.reading.reader` and by who reads ranges.
Source: docs/protocol/write.md "Write sets", docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

from typing import Final

from duramen.core.reading.effects import ALL_NODES
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase
from duramen.ids import LAST_ENTRY_ID, NOTHING, EntryId, Member

WINDOW_COUNT_MAX: Final = 1_024
"""How far ahead of an entry a striped segment is read, in entries: one request of 512 ranges at
most, and some 4 MiB of entries of an ordinary size."""


def list_replicas(segment: SegmentBase, entry: EntryId) -> tuple[Member, ...]:
    """Whom a read of an entry may be sent to, one of them at a time."""
    return segment.write_set_of(entry) if isinstance(segment, Segment) else (ALL_NODES,)


def find_proved_lac(segment: SegmentBase) -> EntryId:
    """The LAC that its metadata prove: a fragment begins at LAC + 1."""
    if isinstance(segment, Segment):
        return EntryId(segment.last_fragment.first_entry - 1)
    return NOTHING


def last_of_run(segment: SegmentBase, first: EntryId, member: Member) -> EntryId:
    """The last entry of those from `first` on that one member holds without a gap.

    Without striping (Qw = E) that is the fragment's last; with it, at most Qw entries.
    """
    if not isinstance(segment, Segment):
        return LAST_ENTRY_ID
    fragment = segment.fragment_of(first)
    later = [f.first_entry for f in segment.fragments if f.first_entry > first]
    end = EntryId(later[0] - 1) if later else LAST_ENTRY_ID
    size = len(fragment.ensemble)
    if segment.quorum.write_quorum == size:
        return end
    return EntryId(min(end, first + (fragment.ensemble.index(member) - first) % size))


def runs_beyond(
    segment: SegmentBase, first: EntryId, last: EntryId, member: Member
) -> tuple[tuple[EntryId, EntryId], ...]:
    """The runs that follow a member's one from `first` on, up to `last` and in the same fragment.

    Without striping there are none. Between two runs lie the E − Qw entries that are written to
    others.
    """
    if not isinstance(segment, Segment):
        return ()
    fragment = segment.fragment_of(first)
    size, write_quorum = len(fragment.ensemble), segment.quorum.write_quorum
    if write_quorum == size:
        return ()
    later = [f.first_entry for f in segment.fragments if f.first_entry > first]
    end = min([last, *(EntryId(entry - 1) for entry in later)])
    run_end = last_of_run(segment, first, member)
    begins = range(run_end + 1 + size - write_quorum, end + 1, size)
    return tuple((EntryId(begin), EntryId(min(begin + write_quorum - 1, end))) for begin in begins)
