"""Which entries of a flexible segment are lost for ever, and how its node says so (R15, R26).

Any row may have had an entry, so each row's incarnation must be accepted as lost, or be there and
vouch that it does not have it. A row that came after the question was asked was not asked, and may
be that of a bookie with old copies: so the change binds the rows, and not only `nodeset_version`.

Pure. Not here: asking those that are in no row, which may have kept a copy (drivers). Called by
whoever repairs. Source: R15, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.repair.evidence import EntryRange
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import EntryFault, Flaw
from duramen.ids import EntryId

RecordCounts = tuple[int, int]
"""Records before an entry, and with it."""


def find_lost_entries(
    segment: FlexibleSegment, flaws: Sequence[Flaw], view: ClusterView
) -> list[EntryRange]:
    """Ranges that nobody can have any more; none where a row's word is still to be had.

    Args:
        segment: as the attempt knew it.
        flaws: ABSENT says that all who are there vouched that they do not have the entries.
    """
    gone = [row for row in segment.nodes if not view.is_there(row.member)]
    if not gone or any(row.member.incarnation not in view.accepted for row in gone):
        return []
    lost = EntryRanges((f.first, f.last) for f in flaws if f.fault is EntryFault.ABSENT)
    return lost.list_ranges()


def record_lost(
    segment: FlexibleSegment,
    compared: FlexibleSegment,
    ranges: Collection[EntryRange],
    missing_record_count: int,
    nonce: str,
) -> FlexibleSegment | None:
    """The segment with entries that are lost; None: it is another one than was compared.

    Args:
        segment: as it stands; `compared`: as the attempt knew it.
        missing_record_count: with their records.
    """
    is_same_map = (
        segment.nodeset_version == compared.nodeset_version
        and segment.next_number == compared.next_number
        and segment.lost == compared.lost
    )
    if not segment.is_closed or not is_same_map:
        return None
    count = max(missing_record_count, segment.missing_record_count)
    return segment.with_lost(ranges, count, nonce)


def list_neighbours(segment: FlexibleSegment, lost: Collection[EntryRange]) -> list[EntryId]:
    """The entries around all absences, ascending: what they count tells what is missing.

    Args:
        lost: beside what is recorded.
    """
    around = set()
    for first, last in _list_absent(segment, lost):
        around |= {first - 1, last + 1}
    return [EntryId(entry) for entry in sorted(around) if 0 <= entry <= (segment.last_entry or 0)]


def count_missing(
    segment: FlexibleSegment,
    lost: Collection[EntryRange],
    counts: Mapping[EntryId, RecordCounts],
) -> int:
    """Records that the entries around holes and losses leave unexplained.

    Args:
        lost: beside what is recorded.
        counts: of neighbours; what lies next to one that is not in it is not counted.
    """
    assert segment.totals is not None, segment
    end = segment.totals.record_count
    missing = 0
    for first, last in _list_absent(segment, lost):
        before = (0, 0) if first == 0 else counts.get(EntryId(first - 1))
        after = (end, end) if last == segment.last_entry else counts.get(EntryId(last + 1))
        if before is not None and after is not None:
            missing += after[0] - before[1]
    return missing


def _list_absent(segment: FlexibleSegment, lost: Collection[EntryRange]) -> list[EntryRange]:
    return EntryRanges([*segment.holes, *segment.lost, *lost]).list_ranges()
