"""What the copies of a log should be, compared with what bookies hold: plain functions of both.

A window of entries of one fragment at a time: who should hold each entry by the metadata, who says
so by an inventory, and whether all who hold it hold the same. Nothing here asks anybody.

Called by `log_verifier`. Source: docs/protocol/write.md "Write sets", R1, R15, R17.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.quorum import write_set
from duramen.core.segment import Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, Member


class CopyFault(enum.StrEnum):
    """What can be wrong with a copy, or with what the metadata says."""

    MISSING = "missing"
    """The bookie says that it has none, or another incarnation serves in its place."""
    DAMAGED = "damaged"
    """The bookie had it and cannot read it, or cannot vouch for its absence."""
    DIFFERENT = "different"
    """The copy is whole, and it is another entry than that of most others."""
    UNREACHABLE = "unreachable"
    """The bookie does not answer: nothing is known of its copy."""
    SHORT = "short"
    """Good copies of an entry of a flexible segment do not satisfy its replication property."""
    METADATA = "metadata"
    """Counts in the metadata are not those of the entries."""


class FaultKey(NamedTuple):
    """Whose copies of which segment are wrong, and how.

    No member: the metadata, or all bookies of a flexible segment together (SHORT).
    """

    epoch: Epoch
    fault: CopyFault
    member: Member | None
    detail: str = ""


class CopySight(NamedTuple):
    """What one bookie told of a window; `status` other than OK: it told nothing."""

    status: BookieStatus
    identities: Mapping[EntryId, int]
    unknown: EntryRanges


SAID_TO_HAVE_NONE: Final = frozenset({BookieStatus.WRONG_INCARNATION, BookieStatus.GONE})
"""Answers of a bookie that is there, and has nothing of what was asked for."""


class FragmentPiece(NamedTuple):
    """Entries `first` … `last` of one fragment: what is compared at once."""

    segment: Segment
    ensemble: tuple[Member, ...]
    first: EntryId
    last: EntryId

    def holders_of(self, entry: EntryId) -> tuple[Member, ...]:
        """The write set of an entry; nobody holds what lies in a hole, or is lost."""
        if self.segment.absence_at(entry) is not None:
            return ()
        return write_set(self.ensemble, self.segment.quorum, entry)


@dataclass(slots=True)
class ReplicaReport:
    """What was found; ranges of entries by what is wrong with them."""

    entry_count: int = 0
    copy_count: int = 0
    good_copy_count: int = 0
    lost_count: int = 0
    """Entries whose loss a person has accepted; they are no fault."""
    hole_count: int = 0
    """Entries that were never acknowledged and that nobody is to hold."""
    released_count: int = 0
    """Segments that have left the bookies: `duramen archive verify` looks at those."""
    segments: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[FaultKey, EntryRanges] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether every copy is where it should be, and the same as the others."""
        return not self.faults

    def add(self, key: FaultKey, entry: EntryId | None = None) -> None:
        """Note a fault, of one entry or of the whole segment."""
        ranges = self.faults.setdefault(key, EntryRanges())
        if entry is not None:
            ranges.add(entry)

    def forget_below(self, epoch: Epoch) -> None:
        """Epochs below left the bookies while this looked: what they lack is no fault."""
        self.faults = {key: ranges for key, ranges in self.faults.items() if key.epoch >= epoch}

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "ok": self.is_good,
            "entries": self.entry_count,
            "copies": self.copy_count,
            "good_copies": self.good_copy_count,
            "lost_entries": self.lost_count,
            "hole_entries": self.hole_count,
            "released_segments": self.released_count,
            "segments": self.segments,
            "findings": [
                {
                    "epoch": key.epoch,
                    "fault": key.fault.value,
                    "bookie": None if key.member is None else key.member.bookie,
                    "incarnation": None if key.member is None else key.member.incarnation,
                    "count": len(ranges),
                    "ranges": [list(pair) for pair in ranges],
                    "detail": key.detail,
                }
                for key, ranges in sorted(self.faults.items(), key=_order)
            ],
        }


def split_segment(
    segment: Segment, end: EntryId, piece_entry_count: int, *, begin: int = 0
) -> list[FragmentPiece]:
    """The pieces of a segment from `begin` to `end`; none reaches over the border of a fragment."""
    pieces = []
    firsts = [fragment.first_entry for fragment in segment.fragments]
    lasts = [EntryId(first - 1) for first in firsts[1:]] + [end]
    for fragment, last in zip(segment.fragments, lasts, strict=True):
        fragment_begin = max(fragment.first_entry, begin)
        for first in range(fragment_begin, min(last, end) + 1, piece_entry_count):
            piece_last = min(last, end, first + piece_entry_count - 1)
            pieces.append(
                FragmentPiece(segment, fragment.ensemble, EntryId(first), EntryId(piece_last))
            )
    return pieces


def compare(
    piece: FragmentPiece, sights: Mapping[Member, CopySight], report: ReplicaReport
) -> None:
    """Put what is wrong with a piece into the report, and count its copies."""
    epoch = piece.segment.epoch
    for number in range(piece.first, piece.last + 1):
        entry = EntryId(number)
        holders = piece.holders_of(entry)
        if not holders:
            report.lost_count += piece.segment.lost_at(entry) is not None
            report.hole_count += piece.segment.hole_at(entry) is not None
            continue
        report.entry_count += 1
        report.copy_count += len(holders)
        found = {
            member: sights[member].identities[entry]
            for member in holders
            if entry in sights[member].identities
        }
        odd = find_odd(found)
        report.good_copy_count += len(found) - len(odd)
        for member in holders:
            if member in odd:
                report.add(FaultKey(epoch, CopyFault.DIFFERENT, member), entry)
            elif member not in found:
                fault, detail = _judge_absent(sights[member], entry)
                report.add(FaultKey(epoch, fault, member, detail), entry)


def find_odd(identities: Mapping[Member, int]) -> list[Member]:
    """Members whose identity is not that of most; all of them where none is of most."""
    counts = Counter(identities.values()).most_common(2)
    if len(counts) < 2:
        return []
    (best, best_count), (_, next_count) = counts
    is_decided = best_count > next_count
    return [m for m, identity in identities.items() if not is_decided or identity != best]


def list_missing(piece: FragmentPiece, sights: Mapping[Member, CopySight]) -> list[Member]:
    """Members that answered and lack something of the piece: to be asked again while it is open."""
    return [
        member
        for member, sight in sights.items()
        if sight.status is BookieStatus.OK
        and any(
            member in piece.holders_of(EntryId(entry)) and entry not in sight.identities
            for entry in range(piece.first, piece.last + 1)
        )
    ]


def check_totals(segment: SegmentBase, at: EntryId, said: Totals | None, found: Totals) -> str:
    """What is wrong with the totals that the metadata says hold up to entry `at`; "" if nothing."""
    if said is None or said == found:
        return ""
    if isinstance(segment, FlexibleSegment):
        # An accepted loss may leave room behind the end, which is counted as missing records.
        room_count = said.record_count - found.record_count
        is_room = 0 <= room_count <= segment.missing_record_count
        if is_room and said == found._replace(record_count=said.record_count):
            return ""
    return (
        f"up to entry {at} of e{segment.epoch} the metadata says {said.record_count} records and "
        f"{said.length_bytes} bytes, the entry {found.record_count} and {found.length_bytes}"
    )


def check_chain(
    segments: Sequence[SegmentBase], next_seq_num: int | None
) -> list[tuple[Epoch, str]]:
    """Segments whose first sequence number is not the end of the one before.

    Args:
        segments: CLOSED ones, by epoch without a gap.
        next_seq_num: of the log node, behind the last of them; None: not to be compared.
    """
    wrong = []
    for index, segment in enumerate(segments):
        assert segment.totals is not None and segment.start_seq_num is not None
        end = segment.start_seq_num + segment.totals.record_count
        is_last = index == len(segments) - 1
        following = next_seq_num if is_last else segments[index + 1].start_seq_num
        if following is not None and following != end:
            wrong.append((segment.epoch, f"e{segment.epoch} ends at {end}, then comes {following}"))
    return wrong


def _judge_absent(sight: CopySight, entry: EntryId) -> tuple[CopyFault, str]:
    match sight.status:
        case BookieStatus.OK:
            return (CopyFault.DAMAGED if entry in sight.unknown else CopyFault.MISSING), ""
        case BookieStatus.WRONG_INCARNATION:
            return CopyFault.MISSING, "another incarnation serves in its place"
        case BookieStatus.GONE:
            return CopyFault.MISSING, "the bookie dropped the ledger"
        case _:
            return CopyFault.UNREACHABLE, sight.status.name.lower()


def _order(item: tuple[FaultKey, EntryRanges]) -> tuple[Any, ...]:
    key, ranges = item
    return key.epoch, key.fault.value, key.member or ("", ""), key.detail, ranges.list_ranges()
