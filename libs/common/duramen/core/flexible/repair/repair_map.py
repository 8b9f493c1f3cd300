"""The rows of a flexible segment as one attempt at repairing it sees them: who goes, who stays.

Going is who is lost or leaving, or is moved by a rebalance. The others that are there are the
witnesses: what they hold counts, and nothing else. Whether nodes satisfy RP is judged by where the
bookies are now, since that is what fails together; the map gets these places before a row goes.

Pure; one view, one version of the segment. Called by `attempt`. Source: R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.property import UNKNOWN
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.placement import Candidate
from duramen.core.placement.room import Rack
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.ids import Member, NodeNumber

_GOING = (CopyFate.LOST, CopyFate.LEAVING)


@dataclass(frozen=True, slots=True)
class RepairMap:
    """A segment's rows, by what is to become of them.

    Args:
        moved: a row that a rebalance takes out, though nothing is wrong with it.
    """

    segment: FlexibleSegment
    view: ClusterView
    moved: NodeNumber | None = None
    there: tuple[NodesetRow, ...] = field(init=False)
    """Who can be asked."""
    witnesses: tuple[NodesetRow, ...] = field(init=False)
    going: tuple[NodesetRow, ...] = field(init=False)
    _present: Mapping[NodeNumber, ServingBookie] = field(init=False)
    _judged: dict[frozenset[NodeNumber], bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows, fate = self.segment.nodes, self.view.fate
        going = [row for row in rows if row.number == self.moved or fate(row.member) in _GOING]
        there = [row for row in rows if self.view.is_there(row.member)]
        places = self.view.locations()
        present = {row.number: _place_now(row.node, places.get(row.member)) for row in rows}
        for name, value in (
            ("there", tuple(there)),
            ("going", tuple(going)),
            ("witnesses", tuple(row for row in there if row not in going)),
            ("_present", present),
            ("_judged", {}),
        ):
            object.__setattr__(self, name, value)

    def satisfies(self, numbers: Collection[NodeNumber]) -> bool:
        """Whether copies at these nodes satisfy RP, by where they are now."""
        key = frozenset(numbers)
        if key not in self._judged:
            rows = [row for row in self.segment.nodes if row.number in key]
            self._judged[key] = self.suffices_with(rows, ())
        return self._judged[key]

    def suffices_with(self, rows: Collection[NodesetRow], added: Collection[ServingBookie]) -> bool:
        """The same of rows and of bookies that are in none of them yet."""
        nodes = [*(self._present[row.number] for row in rows), *added]
        return self.segment.replication.is_satisfied_by(nodes)

    def list_moves(self) -> dict[NodeNumber, Rack]:
        """Rows whose bookies lie elsewhere by now, and where."""
        return {
            row.number: self._present[row.number].place
            for row in self.segment.nodes
            if self._present[row.number].place != row.node.place
        }

    def list_places(self) -> dict[NodeNumber, Rack]:
        """Where each witness is taken to be."""
        return {row.number: self._present[row.number].place for row in self.witnesses}

    def find_row(self, member: Member) -> NodesetRow | None:
        """The row of a member."""
        return self.segment.find_member(member)


def as_serving(candidate: Candidate) -> ServingBookie:
    """A candidate as a row of a segment's node has it."""
    member = candidate.member
    return ServingBookie(
        member.bookie, candidate.region, candidate.rack, member.incarnation, candidate.weight
    )


def _place_now(node: ServingBookie, place: Candidate | None) -> ServingBookie:
    """A node where its bookie is now; where that is not known, where it was."""
    if place is None or not (place.region and place.rack):
        return node
    moved = replace(node, region=place.region, rack=place.rack)
    return node if moved.place == UNKNOWN else moved
