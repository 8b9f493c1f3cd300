"""Which entries of a segment one member holds without a gap: what one read can ask it for.

Without striping (Qw = E) every member holds its whole fragment; with it, runs of Qw entries of
every E. Pure functions of a segment's metadata. Called by `core.reading.reader` and by who reads
ranges.
Source: docs/protocol/write.md "Write sets", docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

from duramen.core.segment import Segment
from duramen.ids import LAST_ENTRY_ID, EntryId, Member


def last_of_run(segment: Segment, first: EntryId, member: Member) -> EntryId:
    """The last entry of those from `first` on that one member holds without a gap.

    Without striping (Qw = E) that is the fragment's last; with it, at most Qw entries.
    """
    fragment = segment.fragment_of(first)
    later = [f.first_entry for f in segment.fragments if f.first_entry > first]
    end = EntryId(later[0] - 1) if later else LAST_ENTRY_ID
    size = len(fragment.ensemble)
    if segment.quorum.write_quorum == size:
        return end
    return EntryId(min(end, first + (fragment.ensemble.index(member) - first) % size))


def runs_beyond(
    segment: Segment, first: EntryId, last: EntryId, member: Member
) -> tuple[tuple[EntryId, EntryId], ...]:
    """The runs that follow a member's one from `first` on, up to `last` and in the same fragment.

    Without striping there are none. Between two runs lie the E − Qw entries that are written to
    others.
    """
    fragment = segment.fragment_of(first)
    size, write_quorum = len(fragment.ensemble), segment.quorum.write_quorum
    if write_quorum == size:
        return ()
    later = [f.first_entry for f in segment.fragments if f.first_entry > first]
    end = min([last, *(EntryId(entry - 1) for entry in later)])
    run_end = last_of_run(segment, first, member)
    begins = range(run_end + 1 + size - write_quorum, end + 1, size)
    return tuple((EntryId(begin), EntryId(min(begin + write_quorum - 1, end))) for begin in begins)
