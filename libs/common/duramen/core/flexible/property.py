"""The replication property: how many nodes, racks and regions the copies of one entry span.

A set of nodes satisfies it if it has at least `node` bookies in at least `rack` racks and at least
`region` regions. What satisfies it still does with more nodes, so all that follows is arithmetic on
counts by place:
- every set that satisfies it meets F ⇔ the nodes outside F do not satisfy it (R23, a seal cover);
- what is left without A is appendable ⇔ it satisfies it; recoverable ⇔ A does not (R26).
A rack belongs to its region: racks of two regions are two racks, even under one name. Two nodes of
one bookie (two incarnations) count once. A node of unknown place counts as a bookie, and for no
place: it may lie where it does most harm.

Pure. Called by `nodeset`. Source: R22, R23, R26.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from duramen.ids import BookieId

EXTRAS_MAX = 2


@dataclass(frozen=True, slots=True)
class Node:
    """A bookie of a nodeset, and where it is; an empty text is an unknown place."""

    bookie: BookieId
    region: str
    rack: str


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

    def is_satisfied_by(self, nodes: Iterable[Node]) -> bool:
        """Whether copies at these nodes are enough."""
        bookies, racks, regions = set(), set(), set()
        for node in nodes:
            bookies.add(node.bookie)
            if node.region and node.rack:
                racks.add((node.region, node.rack))
                regions.add(node.region)
        # 1 is no demand: it is satisfied where no place is known.
        spans_racks = self.rack == 1 or len(racks) >= self.rack
        spans_regions = self.region == 1 or len(regions) >= self.region
        return len(bookies) >= self.node and spans_racks and spans_regions

    def is_covered_by(self, responders: Collection[Node], nodes: Collection[Node]) -> bool:
        """Whether every set of `nodes` that satisfies it has one of the responders (R23)."""
        bookies = {node.bookie for node in responders}
        return not self.is_satisfied_by(node for node in nodes if node.bookie not in bookies)

    def fits_wave(self, copyset: Collection[Node]) -> bool:
        """Whether any `node` of these satisfy it: a wave counts with whoever answers first.

        The worst of such subsets has all nodes of unknown place, and beyond them the fullest
        places: with one place less than is wanted there must be fewer than `node`.
        """
        if len({node.bookie for node in copyset}) < self.node:
            return False
        located = [node for node in copyset if node.region and node.rack]
        unknown_count = len(copyset) - len(located)
        racks = Counter((node.region, node.rack) for node in located)
        regions = Counter(node.region for node in located)
        return all(
            wanted == 1
            or unknown_count + sum(n for _, n in places.most_common(wanted - 1)) < self.node
            for places, wanted in ((racks, self.rack), (regions, self.region))
        )
