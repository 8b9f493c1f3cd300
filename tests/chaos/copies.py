"""Counts copies: what everybody who may hold an entry answered for it, and what is wrong.

    D1      an entry has no good copy left
    O1      two good copies of one entry are not the same bytes
    P1      Qa members of a write set, or all copies of an entry of a flexible segment, lie in
            fewer regions or racks than the log (strict) or the segment's property demands
    copies  fewer than Qw good ones, or than the property: a fault where all was to be repaired

A copy is good if the member that the segment names, in that life of its disks, gave bytes whose
identity checksum holds. Where the bookies lie is taken from their own nodes; whether an ack set
spans enough of it is found by trying them all, not by the product's rule of thumb.
Pure: answers come from `replicas`. Called by `run`, `disks`. Source: R1, R9, R20, R22, R26.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NamedTuple

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.quorum import write_sets
from duramen.core.segment import Segment
from duramen.ids import BookieId, EntryId, Member
from tests.chaos.judge import VIOLATIONS_MAX, Violation

Answer = int | str
"""A good copy's fingerprint, or why there is none."""

NOT_ASKED: Final = "not asked"
NO_ENTRY: Final = "no_entry"
"""It vouches that it has none; every other reason leaves that open."""
_SPELLED_MAX: Final = 12


class Rule(NamedTuple):
    """What a log demands of every ack set; racks are counted within their regions."""

    min_regions: int = 1
    min_racks: int = 1
    is_strict: bool = True


class Place(NamedTuple):
    """Where a bookie says that it is."""

    region: str
    rack: str


@dataclass(frozen=True)
class Counted:
    """One segment, and which of its entries are to be counted: `first` … `last`, if any."""

    log: str
    segment: AnySegment
    first: EntryId
    last: EntryId
    rule: Rule


class Short(NamedTuple):
    """Why copies of a segment are missing at one member."""

    log: str
    epoch: int
    member: Member
    why: str


@dataclass
class CopyCount:
    """What was found in all segments counted so far.

    Attributes:
        copies: good ones, of `wanted` (Qw for each entry). Of a flexible segment as many as the
            property has nodes are wanted; there is one less at most while they do not satisfy it.
        unmet: entries of flexible segments whose copies do not satisfy the property.
        shorts: missing copies → first and last entry, and how many.
        faults: what is wrong whatever repair has still to do.
    """

    segments: int = 0
    entries: int = 0
    copies: int = 0
    wanted: int = 0
    unmet: int = 0
    shorts: dict[Short, tuple[EntryId, EntryId, int]] = field(default_factory=dict)
    faults: list[Violation] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every entry has all of its copies, in the right places."""
        return self.copies == self.wanted and not self.faults

    def is_missing_on(self, bookies: Collection[str]) -> bool:
        """Whether copies are missing at one of these, in whatever life of its disks.

        Of a flexible segment nobody can say at whom a copy is missing, so each one is.
        """
        return self.unmet > 0 or any(short.member.bookie in bookies for short in self.shorts)

    def violations(self, *, expects_repaired: bool) -> list[Violation]:
        """What a run is to be blamed for."""
        if not expects_repaired:
            return list(self.faults)
        return [*self.faults, *(self._blame(short) for short in list(self.shorts)[:VIOLATIONS_MAX])]

    def take(
        self,
        counted: Counted,
        answers: Mapping[Member, Mapping[EntryId, Answer]],
        places: Mapping[BookieId, Place],
    ) -> None:
        """Count one segment.

        Args:
            answers: of every member, for the entries of its write sets; of every node of a map,
                for all entries.
            places: of every bookie that ever registered.
        """
        self.segments += 1
        segment = counted.segment
        for entry in range(counted.first, counted.last + 1):
            if segment.hole_at(EntryId(entry)) is not None:
                continue
            if isinstance(segment, FlexibleSegment):
                self._take_spread(counted, segment, EntryId(entry), answers, places)
            else:
                self._take_entry(counted, segment, EntryId(entry), answers)
        if isinstance(segment, Segment) and counted.rule.is_strict:
            self._judge_places(counted, segment, places)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "segments": self.segments, "entries": self.entries, "copies": self.copies,
            "wanted": self.wanted, "unmet": self.unmet, "is_whole": self.is_whole,
            "missing": [
                {
                    "log": s.log, "epoch": s.epoch, "bookie": s.member.bookie,
                    "incarnation": s.member.incarnation, "why": s.why,
                    "first": first, "last": last, "count": count,
                }
                for s, (first, last, count) in self.shorts.items()
            ],
        }  # fmt: skip

    def format(self) -> str:
        """For people."""
        lines = [
            f"{self.copies} of {self.wanted} copies of {self.entries} entries in {self.segments} "
            "segments are good"
        ]
        by_cause: dict[str, int] = {}
        for short, (_, _, count) in self.shorts.items():
            cause = f"{short.member} {short.why}"
            by_cause[cause] = by_cause.get(cause, 0) + count
        causes = sorted(by_cause.items(), key=lambda item: -item[1])
        lines += [f"  missing {count:7} at {cause}" for cause, count in causes[:_SPELLED_MAX]]
        return "\n".join(lines)

    # --- one segment -----------------------------------------------------------------------------

    def _take_entry(
        self,
        counted: Counted,
        segment: Segment,
        entry: EntryId,
        answers: Mapping[Member, Mapping[EntryId, Answer]],
    ) -> None:
        told = _list_told(segment.write_set_of(entry), entry, answers)
        good = self._judge_copies(counted, entry, told)
        for member, answer in told.items():
            if isinstance(answer, str):
                self._note_short(Short(counted.log, segment.epoch, member, answer), entry)
        self.copies += len(good)
        self.wanted += len(told)

    def _take_spread(
        self,
        counted: Counted,
        segment: FlexibleSegment,
        entry: EntryId,
        answers: Mapping[Member, Mapping[EntryId, Answer]],
        places: Mapping[BookieId, Place],
    ) -> None:
        """Wherever copies are, they count: nothing says which nodes hold an entry.

        Too few are a fault where everybody else vouches that it has none.
        """
        wanted = segment.replication
        told = _list_told([row.member for row in segment.nodes], entry, answers)
        good = self._judge_copies(counted, entry, told)
        self.wanted += wanted.node
        if _spans(good, wanted, places):
            self.copies += wanted.node
            return
        self.copies += min(len(good), wanted.node - 1)
        self.unmet += 1
        lacking = {member: answer for member, answer in told.items() if isinstance(answer, str)}
        unsure = {member: answer for member, answer in lacking.items() if answer != NO_ENTRY}
        if good and not unsure:
            where = ", ".join(f"{member} in {places.get(member.bookie)}" for member in good)
            text = (
                f"e{segment.epoch}n{entry} lies at {where} alone, which does not satisfy {wanted}"
            )
            self._note_fault("P1", counted.log, text)
        for member, answer in (unsure or lacking).items():
            self._note_short(Short(counted.log, segment.epoch, member, answer), entry)

    def _judge_copies(
        self, counted: Counted, entry: EntryId, told: Mapping[Member, Answer]
    ) -> dict[Member, int]:
        """The good copies of an entry, which are there and equal."""
        good = {member: answer for member, answer in told.items() if isinstance(answer, int)}
        self.entries += 1
        here = f"e{counted.segment.epoch}n{entry}"
        if not good:
            whys = ", ".join(f"{member} {why}" for member, why in told.items())
            self._note_fault("D1", counted.log, f"{here} has no good copy: {whys}")
        if len(set(good.values())) > 1:
            prints = ", ".join(f"{member} {print_:016x}" for member, print_ in good.items())
            self._note_fault("O1", counted.log, f"copies of {here} differ: {prints}")
        return good

    def _note_short(self, short: Short, entry: EntryId) -> None:
        first, _, count = self.shorts.get(short, (entry, entry, 0))
        self.shorts[short] = (first, entry, count + 1)

    def _judge_places(
        self, counted: Counted, segment: Segment, places: Mapping[BookieId, Place]
    ) -> None:
        rule = counted.rule
        for fragment in segment.fragments:
            for members in write_sets(fragment.ensemble, segment.quorum):
                for ack_set in combinations(members, segment.quorum.ack_quorum):
                    known = [places.get(member.bookie, Place("?", "?")) for member in ack_set]
                    regions = {place.region for place in known}
                    if len(regions) < rule.min_regions or len(set(known)) < rule.min_racks:
                        text = f"e{segment.epoch} from {fragment.first_entry}: {ack_set} in {known}"
                        self._note_fault("P1", counted.log, text)
                        return

    def _note_fault(self, code: str, log: str, text: str) -> None:
        if len(self.faults) < VIOLATIONS_MAX:
            self.faults.append(Violation(code, log, text))

    def _blame(self, short: Short) -> Violation:
        first, last, count = self.shorts[short]
        where = f"e{short.epoch}n{first}–{last}"
        return Violation("copies", short.log, f"{count} of {where} at {short.member}: {short.why}")


def _list_told(
    members: Collection[Member],
    entry: EntryId,
    answers: Mapping[Member, Mapping[EntryId, Answer]],
) -> dict[Member, Answer]:
    return {member: answers.get(member, {}).get(entry, NOT_ASKED) for member in members}


def _spans(
    holders: Collection[Member], wanted: ReplicationProperty, places: Mapping[BookieId, Place]
) -> bool:
    """Whether copies there satisfy the property, counted anew."""
    bookies = {member.bookie for member in holders}
    racks = {places.get(bookie, Place("?", "?")) for bookie in bookies}
    regions = {place.region for place in racks}
    return (
        len(bookies) >= wanted.node and len(racks) >= wanted.rack and len(regions) >= wanted.region
    )
