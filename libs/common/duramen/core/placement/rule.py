"""The rule of placement (R20): what it demands of a write set, and which members break it.

The rule is about ack sets: no Qa members of any write set may lie in fewer than `min_racks` racks
nor in fewer than `min_regions` regions. An equivalent rule is checked here: in every write set the
(min − 1) fullest racks (regions) together hold fewer than Qa members. A rack belongs to its region:
racks of two regions are two racks, even under one name.

Two kinds of members do not count. One of unknown location may lie where it does most harm. One that
is suspended or owed data is no copy. The others of its write set must span the places alone.

Pure. Called by `choice`, audits and the simulator's checker. Source: docs/protocol/placement.md
"The rule (R20)".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from duramen.core.quorum import Quorum, write_sets
from duramen.ids import Member


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may take new data, and where it is; an empty text is an unknown place."""

    member: Member
    region: str
    rack: str
    weight: float = 1.0
    """Its share of new data among those that serve placement as well, > 0."""
    is_steady: bool = True
    """Whether it has been there long enough; the others are taken where these do not suffice."""

    @property
    def is_located(self) -> bool:
        """Whether it is known where it is."""
        return bool(self.region and self.rack)


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """What R20 demands; 1 switches a check off. Strict refuses rather than degrades."""

    min_racks: int = 1
    min_regions: int = 1
    is_strict: bool = True

    @property
    def is_demanding(self) -> bool:
        """Whether locations matter at all."""
        return self.min_racks > 1 or self.min_regions > 1


class Refusal(NamedTuple):
    """Why nothing can be placed."""

    reason: str
    """`too_few_bookies`, `too_few_racks`, `too_few_regions`, `no_order` or `search_bound`."""
    numbers: Mapping[str, int]
    detail: str
    """A sentence with the numbers, for people."""


class Violation(NamedTuple):
    """One write set that breaks the rule."""

    members: tuple[Member, ...]
    kind: str
    """`racks`, `regions`: an ack set fits into too few; `copies`: what counts spans too few."""
    found: int
    """Members in the (min − 1) fullest places; for `copies` the places that those span."""
    limit: int
    """It must be below this number; for `copies` at least this."""

    def format(self, quorum: Quorum, rule: PlacementRule) -> str:
        """A sentence with the numbers."""
        if self.kind == "copies":
            return f"the copies that count span {self.found} of {self.limit} places"
        least = rule.min_racks if self.kind == "racks" else rule.min_regions
        where = _number(least - 1, self.kind)
        return (
            f"{self.found} of {len(self.members)} members lie in {where}, so an ack set of "
            f"{quorum.ack_quorum} may: min_{self.kind} is {least}"
        )


def satisfies(
    ensemble: tuple[Member, ...],
    quorum: Quorum,
    rule: PlacementRule,
    locations: Mapping[Member, Candidate],
    *,
    discounted: Collection[Member] = (),
) -> bool:
    """Whether every ack set of every write set spans enough racks and regions (R20).

    Args:
        discounted: members that are no copies now: suspended, owed data, damaged.
    """
    return not find_violations(ensemble, quorum, rule, locations, discounted=discounted)


def find_violations(
    ensemble: tuple[Member, ...],
    quorum: Quorum,
    rule: PlacementRule,
    locations: Mapping[Member, Candidate],
    *,
    discounted: Collection[Member] = (),
) -> list[Violation]:
    """Every write set that breaks the rule, with its numbers; regions before racks.

    Args:
        discounted: as in `satisfies`.
    """
    found = []
    for members in write_sets(ensemble, quorum):
        places = [locations.get(member) for member in members]
        known = [place for place in places if place is not None and place.is_located]
        unknown = len(places) - len(known)
        regions = Counter(place.region for place in known)
        racks = Counter((place.region, place.rack) for place in known)
        for kind, counts, least in (
            ("regions", regions, rule.min_regions),
            ("racks", racks, rule.min_racks),
        ):
            worst = fullest(counts.values(), least - 1) + unknown
            if least > 1 and worst >= quorum.ack_quorum:
                found.append(Violation(members, kind, worst, quorum.ack_quorum))
        found += _find_thin(members, rule, locations, discounted)
    return found


def fullest(counts: Collection[int], number: int) -> int:
    """How many the `number` fullest places hold together."""
    return sum(sorted(counts, reverse=True)[:number])


def _find_thin(
    members: tuple[Member, ...],
    rule: PlacementRule,
    locations: Mapping[Member, Candidate],
    discounted: Collection[Member],
) -> list[Violation]:
    """Fewer copies than an ack set: then the rule about ack sets would hold for want of any."""
    if not discounted or not rule.is_demanding:
        return []
    left = [locations.get(member) for member in members if member not in discounted]
    known = [place for place in left if place is not None and place.is_located]
    racks = len({(place.region, place.rack): None for place in known})
    regions = len({place.region: None for place in known})
    return [
        Violation(members, "copies", span, least)
        for span, least in ((regions, rule.min_regions), (racks, rule.min_racks))
        if least > 1 and span < least
    ]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun.removesuffix('s') if count == 1 else noun}"
