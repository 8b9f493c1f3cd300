"""Copies of a flexible segment, as its bookies told them, against what the segment asks for.

No metadata say what one node of the map holds, so entries are judged, not nodes: each must have
verified copies of one identity at nodes that satisfy RP. By that alone a node that holds nothing,
is silent or cannot vouch is no fault; it is named where an entry is short. Who is in no row of the
map is not asked, and copysets are not looked at: they are evidence of nothing. Nothing here asks
anybody.

Called by `log_verifier`. Source: docs/protocol/flexible.md "Verifying copies", R22, R25, R26.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from duramen.client.replica_check import (
    SAID_TO_HAVE_NONE,
    CopyFault,
    CopySight,
    FaultKey,
    ReplicaReport,
    find_odd,
)
from duramen.core.flexible.property import UNKNOWN
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.units import agree


class NodesPiece(NamedTuple):
    """Entries `first` … `last` of a flexible segment: what is compared at once."""

    segment: FlexibleSegment
    first: EntryId
    last: EntryId

    @property
    def members(self) -> tuple[Member, ...]:
        """Who may hold them."""
        return tuple(row.member for row in self.segment.nodes)

    def list_wanted(self) -> Iterator[EntryId]:
        """The entries that are to be there."""
        for first, last in self.segment.list_present(self.first, self.last):
            yield from map(EntryId, range(first, last + 1))

    def is_enough(self, holders: frozenset[Member]) -> bool:
        """Whether copies at these satisfy RP, by the places of the map."""
        rows = self.segment.nodes
        return self.segment.replication.is_satisfied_by(
            row.node for row in rows if row.member in holders
        )


def split_nodes(
    segment: FlexibleSegment, end: EntryId, piece_entry_count: int, *, begin: int = 0
) -> list[NodesPiece]:
    """The pieces of a segment from `begin` to `end`."""
    return [
        NodesPiece(segment, EntryId(first), EntryId(min(end, first + piece_entry_count - 1)))
        for first in range(begin, end + 1, piece_entry_count)
    ]


def compare_nodes(
    piece: NodesPiece, sights: Mapping[Member, CopySight], report: ReplicaReport
) -> None:
    """Put what is wrong with a piece into the report, and count its copies."""
    segment = piece.segment
    is_enough = cache(piece.is_enough)
    explain = cache(lambda holders: _explain_short(segment, holders))
    asked_count = segment.replication.node
    for entry, found in _list_found(piece, sights):
        odd = find_odd(found)
        good = frozenset(found) - frozenset(odd)
        report.entry_count += 1
        report.copy_count += max(len(found), asked_count)
        report.good_copy_count += len(good)
        for member in odd:
            report.add(FaultKey(segment.epoch, CopyFault.DIFFERENT, member), entry)
        if is_enough(good):
            continue
        report.add(FaultKey(segment.epoch, CopyFault.SHORT, None, explain(good)), entry)
        for member, sight in sights.items():
            doubt = None if member in found else _find_doubt(sight, entry)
            if doubt is not None:
                report.add(FaultKey(segment.epoch, doubt[0], member, doubt[1]), entry)
    report.lost_count += _count_within(segment.lost, piece)
    report.hole_count += _count_within(segment.holes, piece)


def _count_within(ranges: Sequence[tuple[EntryId, EntryId]], piece: NodesPiece) -> int:
    """Entries of ranges that lie in a piece."""
    return sum(
        max(0, min(last, piece.last) - max(first, piece.first) + 1) for first, last in ranges
    )


def list_unsure(piece: NodesPiece, sights: Mapping[Member, CopySight]) -> list[Member]:
    """Members that answered, while an entry is short: to be asked again while it is open."""
    is_enough = cache(piece.is_enough)
    if all(is_enough(frozenset(found)) for _, found in _list_found(piece, sights)):
        return []
    return [member for member, sight in sights.items() if sight.status is BookieStatus.OK]


def _list_found(
    piece: NodesPiece, sights: Mapping[Member, CopySight]
) -> Iterator[tuple[EntryId, dict[Member, int]]]:
    """Each entry that is to be there, with who holds it and as what."""
    held: dict[EntryId, dict[Member, int]] = {}
    for member, sight in sights.items():
        for entry, identity in sight.identities.items():
            held.setdefault(entry, {})[member] = identity
    for entry in piece.list_wanted():
        yield entry, held.get(entry, {})


def _find_doubt(sight: CopySight, entry: EntryId) -> tuple[CopyFault, str] | None:
    """Why a member may have had a copy that was not found; None: it has none."""
    if sight.status is BookieStatus.OK:
        return (CopyFault.DAMAGED, "") if entry in sight.unknown else None
    if sight.status in SAID_TO_HAVE_NONE:
        return None
    return CopyFault.UNREACHABLE, sight.status.name.lower()


def _explain_short(segment: FlexibleSegment, holders: frozenset[Member]) -> str:
    """Where copies are, and where RP asks for them."""
    nodes = [row.node for row in segment.nodes if row.member in holders]
    racks = {node.place for node in nodes} - {UNKNOWN}
    regions = {rack.region for rack in racks}
    bookies = {node.bookie for node in nodes}
    wanted = segment.replication
    found = agree(f"{len(bookies)} bookies, {len(racks)} racks, {len(regions)} regions")
    return f"copies in {found}, not node {wanted.node}, rack {wanted.rack}, region {wanted.region}"
