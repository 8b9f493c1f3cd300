"""Room: how many members a rule lets lie on given racks and regions, by counting alone.

Exact for E = Qw, where the order of an ensemble means nothing, and for any E an upper bound: over
its E write sets a member counts Qw times, so places that may hold k of each hold at most
⌊E · k / Qw⌋ of the ensemble.

The sum of the m greatest counts is ≤ S exactly if for some t ≥ 0: m · t + Σ max(0, count − t) ≤ S.
With t fixed for racks and for regions, each region's next member is free, or exceeds t in its rack,
in its region, or in both. The first ones cost nothing, the last ones twice: so taking them in this
order gives the most, and all pairs of t are tried (at most Qa² of them).

Pure. Called by `choice`. Source: docs/protocol/placement.md "Choosing", R20.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from duramen.core.placement.rule import PlacementRule
from duramen.core.quorum import Quorum


class Rack(NamedTuple):
    """A rack of a region."""

    region: str
    rack: str


class Limit(NamedTuple):
    """The `places` fullest places hold at most `members` together."""

    places: int
    members: int


class Room(NamedTuple):
    """What fits, at most `size` members, and where: members per place."""

    members: int
    counts: dict[Rack, int]


def limits_of(quorum: Quorum, rule: PlacementRule) -> tuple[Limit | None, Limit | None]:
    """What the rule says of a whole ensemble's regions and racks; None: nothing."""
    most = quorum.ensemble_size * (quorum.ack_quorum - 1) // quorum.write_quorum
    regions = Limit(rule.min_regions - 1, most) if rule.min_regions > 1 else None
    return regions, Limit(rule.min_racks - 1, most) if rule.min_racks > 1 else None


def measure_room(
    capacity: Mapping[Rack, int], size: int, regions: Limit | None, racks: Limit | None
) -> Room:
    """The most members, up to `size`, that the limits let lie on places of these capacities."""
    best = Room(-1, {})
    for region_level, rack_level in itertools.product(_levels(regions), _levels(racks)):
        room = _fill(capacity, size, _Level(regions, region_level), _Level(racks, rack_level))
        if room.members > best.members:
            best = room
        if best.members == size:
            break
    return best


class _Level(NamedTuple):
    """One t of the module's head, for one limit."""

    limit: Limit | None
    height: int

    @property
    def spare(self) -> int:
        """Members above t that the limit leaves room for."""
        return 0 if self.limit is None else self.limit.members - self.limit.places * self.height

    def is_above(self, count: int) -> bool:
        """Whether one more member of a place with `count` would be above t."""
        return self.limit is not None and count >= self.height


def _levels(limit: Limit | None) -> range:
    """The t that may matter, the greatest first: it leaves the spread as even as can be."""
    if limit is None:
        return range(1)
    greatest = limit.members // limit.places
    # Of one place alone the count itself is the sum: the greatest t says it all.
    return range(greatest, greatest - 1 if limit.places == 1 else -1, -1)


def _fill(capacity: Mapping[Rack, int], size: int, regions: _Level, racks: _Level) -> Room:
    counts = dict.fromkeys(sorted(capacity), 0)
    in_region = dict.fromkeys((place.region for place in counts), 0)
    spare = {"region": regions.spare, "rack": racks.spare}
    total = 0
    # What exceeds both levels is taken when nothing else is left: it uses the room of two.
    while total < size:
        options = []
        for place, count in counts.items():
            if count < capacity[place]:
                above = (regions.is_above(in_region[place.region]), racks.is_above(count))
                if spare["region"] >= above[0] and spare["rack"] >= above[1]:
                    options.append((sum(above), in_region[place.region], count, place, above))
        if not options:
            break
        _, _, _, place, (takes_region, takes_rack) = min(options)
        counts[place] += 1
        in_region[place.region] += 1
        spare["region"] -= takes_region
        spare["rack"] -= takes_rack
        total += 1
    return Room(total, {place: count for place, count in counts.items() if count})
