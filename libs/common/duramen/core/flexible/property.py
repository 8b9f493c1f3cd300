"""The replication property: how many nodes, racks and regions the copies of one entry span.

A set of nodes satisfies it if it has at least `node` bookies in at least `rack` racks and at least
`region` regions. What satisfies it still does with more nodes, so all that follows is arithmetic on
counts by place:
- every set that satisfies it meets F ⇔ the nodes outside F do not satisfy it (R23, a seal cover);
- what is left without A is appendable ⇔ it satisfies it; recoverable ⇔ A does not (R26);
- a wave whose every `node` nodes satisfy it still does without any `extras` of its nodes, and also
  with more nodes: so a wave can be filled up with anybody once it spans enough.
A rack belongs to its region: racks of two regions are two racks, even under one name. Two nodes of
one bookie (two incarnations) count once. A node of unknown place counts as a bookie, and for no
place: it may lie where it does most harm.

Pure. Called by `nodeset` and `soundness`. Source: R22, R23, R26.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from duramen.core.placement.room import Limit, Rack, measure_room
from duramen.ids import BookieId

EXTRAS_MAX = 2

UNKNOWN: Final = Rack("", "")
"""Where nodes of unknown place are: together, for they may be."""


@dataclass(frozen=True, slots=True)
class PlacedBookie:
    """A bookie, and where it is; an empty text is an unknown place."""

    bookie: BookieId
    region: str
    rack: str

    @property
    def place(self) -> Rack:
        """Its rack, or `UNKNOWN`."""
        return Rack(self.region, self.rack) if self.region and self.rack else UNKNOWN


@dataclass(frozen=True, slots=True)
class ReplicationProperty:
    """At least `node` bookies in `rack` racks and `region` regions: node ≥ rack ≥ region ≥ 1.

    Args:
        extras: nodes that a wave goes to beyond `node`, 0 to 2.
    """

    node: int
    rack: int = 1
    region: int = 1
    extras: int = 0

    def __post_init__(self) -> None:
        if not self.node >= self.rack >= self.region >= 1:
            raise ValueError(
                f"node {self.node}, rack {self.rack}, region {self.region}: "
                "node ≥ rack ≥ region ≥ 1 must hold"
            )
        if not 0 <= self.extras <= EXTRAS_MAX:
            raise ValueError(f"extras {self.extras}: 0 to {EXTRAS_MAX}")

    @property
    def wave_count(self) -> int:
        """Nodes that one wave goes to."""
        return self.node + self.extras

    def is_satisfied_by(self, nodes: Iterable[PlacedBookie]) -> bool:
        """Whether copies at these nodes are enough."""
        bookies, racks = set(), set()
        for node in nodes:
            bookies.add(node.bookie)
            racks.add(node.place)
        racks.discard(UNKNOWN)
        return self.is_met_by(len(bookies), len(racks), len({rack.region for rack in racks}))

    def is_met_by(self, bookie_count: int, rack_count: int, region_count: int) -> bool:
        """The same of copies at so many bookies, in so many known racks and regions."""
        # 1 is no demand: it is satisfied where no place is known.
        spans_racks = self.rack == 1 or rack_count >= self.rack
        spans_regions = self.region == 1 or region_count >= self.region
        return bookie_count >= self.node and spans_racks and spans_regions

    def is_covered_by(
        self, responders: Collection[PlacedBookie], nodes: Collection[PlacedBookie]
    ) -> bool:
        """Whether every set of `nodes` that satisfies it has one of the responders (R23)."""
        bookies = {node.bookie for node in responders}
        return not self.is_satisfied_by(node for node in nodes if node.bookie not in bookies)

    def fits_wave(self, copyset: Collection[PlacedBookie]) -> bool:
        """Whether any `node` of these satisfy it: a wave counts with whoever answers first.

        The worst of such subsets has all nodes of unknown place, and beyond them the fullest
        places: with one place less than is wanted there must be fewer than `node`.
        """
        if len({node.bookie for node in copyset}) < self.node:
            return False
        located = [node.place for node in copyset if node.place != UNKNOWN]
        unknown_count = len(copyset) - len(located)
        racks = Counter(located)
        regions = Counter(place.region for place in located)
        return all(
            wanted == 1
            or unknown_count + sum(n for _, n in places.most_common(wanted - 1)) < self.node
            for places, wanted in ((racks, self.rack), (regions, self.region))
        )

    def has_wave(self, counts: Mapping[Rack, int]) -> bool:
        """Whether some `node` + `extras` of so many bookies per rack fit a wave."""
        if sum(counts.values()) < self.wave_count:
            return False
        if self.rack == self.region == 1:
            return True
        located = {place: count for place, count in counts.items() if place != UNKNOWN}
        unknown_count = counts.get(UNKNOWN, 0)
        return any(
            self._has_room(located, taken_count)
            for taken_count in range(min(unknown_count, self.node - 1) + 1)
        )

    def _has_room(self, located: Mapping[Rack, int], unknown_count: int) -> bool:
        """Whether a wave has so many nodes of unknown place, and the others of these."""
        most = self.node - 1 - unknown_count
        regions = Limit(self.region - 1, most) if self.region > 1 else None
        racks = Limit(self.rack - 1, most) if self.rack > 1 else None
        size = self.wave_count - unknown_count
        return measure_room(located, size, regions, racks).members >= size
