"""Counts copies: what every member of every write set answered for every entry, and what is wrong.

    D1      an entry has no good copy left
    O1      two good copies of one entry are not the same bytes
    P1      Qa members of a write set lie in fewer regions or racks than the log demands (strict)
    copies  fewer than Qw good copies: a fault only where everything was to be repaired

A copy is good if the member that the segment names, in that life of its disks, gave bytes whose
identity checksum holds. Where the bookies lie is taken from their own nodes; whether an ack set
spans enough of it is found by trying them all, not by the product's rule of thumb.

Pure: answers come from `replicas`. Called by `run`, `disks` and `test_copies`. Source: R1, R9, R20.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NamedTuple

from duramen.core.quorum import write_sets
from duramen.core.segment import Segment
from duramen.ids import BookieId, EntryId, Member
from tests.chaos.judge import VIOLATIONS_MAX, Violation

Answer = int | str
"""A good copy's fingerprint, or why there is none."""

NOT_ASKED: Final = "not asked"
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
    segment: Segment
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
        copies: good ones, of `wanted` (Qw for each entry).
        shorts: missing copies → first and last entry, and how many.
        faults: what is wrong whatever repair has still to do.
    """

    segments: int = 0
    entries: int = 0
    copies: int = 0
    wanted: int = 0
    shorts: dict[Short, tuple[EntryId, EntryId, int]] = field(default_factory=dict)
    faults: list[Violation] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every entry has all of its copies, in the right places."""
        return self.copies == self.wanted and not self.faults

    def is_missing_on(self, bookies: Collection[str]) -> bool:
        """Whether copies are missing at one of these, in whatever life of its disks."""
        return any(short.member.bookie in bookies for short in self.shorts)

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
            answers: of every member, for the entries of its write sets.
            places: of every bookie that ever registered.
        """
        self.segments += 1
        for entry in range(counted.first, counted.last + 1):
            if counted.segment.hole_at(EntryId(entry)) is None:
                self._take_entry(counted, EntryId(entry), answers)
        if counted.rule.is_strict:
            self._judge_places(counted, places)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "segments": self.segments, "entries": self.entries, "copies": self.copies,
            "wanted": self.wanted, "is_whole": self.is_whole,
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
        entry: EntryId,
        answers: Mapping[Member, Mapping[EntryId, Answer]],
    ) -> None:
        good: dict[Member, int] = {}
        members = counted.segment.write_set_of(entry)
        for member in members:
            answer = answers.get(member, {}).get(entry, NOT_ASKED)
            if isinstance(answer, int):
                good[member] = answer
            else:
                self._note_short(Short(counted.log, counted.segment.epoch, member, answer), entry)
        self.entries += 1
        self.copies += len(good)
        self.wanted += len(members)
        here = f"e{counted.segment.epoch}n{entry}"
        if not good:
            whys = [f"{m} {answers.get(m, {}).get(entry, NOT_ASKED)}" for m in members]
            self._note_fault("D1", counted.log, f"{here} has no good copy: {', '.join(whys)}")
        if len(set(good.values())) > 1:
            prints = ", ".join(f"{member} {print_:016x}" for member, print_ in good.items())
            self._note_fault("O1", counted.log, f"copies of {here} differ: {prints}")

    def _note_short(self, short: Short, entry: EntryId) -> None:
        first, _, count = self.shorts.get(short, (entry, entry, 0))
        self.shorts[short] = (first, entry, count + 1)

    def _judge_places(self, counted: Counted, places: Mapping[BookieId, Place]) -> None:
        segment, rule = counted.segment, counted.rule
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
