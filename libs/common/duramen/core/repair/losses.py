"""Which entries are lost for ever, once a person has accepted that (R15).

An entry is lost when nobody can have a copy of it any more. Every member of its write set then
either is an incarnation whose loss a person has accepted, or is there, was asked, and vouches that
it has no copy. At least one member must be accepted as lost: if all members are there and all deny
the entry, that is no loss. A damaged copy still counts, and so does a member that is in doubt,
away, silent, or replaced without that acceptance: each may still have the entry.

Pure. Called by the auditor's workers, after a copy of the fragment was compared. Source: R15,
docs/protocol/recovery.md "What is missing for good", docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.core.entry_ranges import group_ranges
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import EntryFault, Flaw
from duramen.core.segment import Segment
from duramen.ids import EntryId, Member


def find_lost(
    segment: Segment, flaws: Sequence[Flaw], view: ClusterView
) -> list[tuple[EntryId, EntryId]]:
    """Ranges of entries that are lost, ascending; none in a segment that is not CLOSED.

    Args:
        flaws: of one comparison; ABSENT says that all who are there were asked, and vouched.
    """
    if not segment.is_closed:
        return []
    entries = {
        entry
        for flaw in flaws
        if flaw.fault is EntryFault.ABSENT
        for entry in range(flaw.first, flaw.last + 1)
        if _is_lost(segment.write_set_of(EntryId(entry)), view)
    }
    return [(EntryId(first), EntryId(last)) for first, last in group_ranges(sorted(entries))]


def _is_lost(write_set: Sequence[Member], view: ClusterView) -> bool:
    gone = [member for member in write_set if not view.is_there(member)]
    return bool(gone) and all(member.incarnation in view.accepted for member in gone)
