"""The nodeset of one open epoch as a writer asks for it, and what the lists say of it now.

Numbers are what copysets, envelopes and holders are made of; members are whom effects name. The
lists of the process (R27) and the roster speak of members: `ListedView` gives what they say of this
nodeset, and looks anew only when one of them has changed.

Pure. Called by `wave_writer`. Source: R22, R27, docs/protocol/waves.md "The next wave".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.property import PlacedBookie
from duramen.core.flexible.selector import ListedNodes
from duramen.core.placement.node_states import NodeStates
from duramen.ids import Member, NodeNumber


class EpochNodes:
    """N(e).

    Args:
        rows: of an epoch that is not closed.
    """

    def __init__(self, rows: Sequence[NodesetRow]) -> None:
        self.rows = tuple(rows)
        self.members = {row.number: row.member for row in rows}
        self.numbers = {row.member: row.number for row in rows}
        self.regions = {row.number: row.node.region for row in rows}
        self._placed = {row.number: row.node for row in rows}

    @cached_property
    def peers(self) -> Mapping[str, Sequence[Member]]:
        """Members by region."""
        regions: dict[str, list[Member]] = {}
        for number, region in self.regions.items():
            regions.setdefault(region, []).append(self.members[number])
        return regions

    def list_placed(self, numbers: Iterable[NodeNumber]) -> list[PlacedBookie]:
        """Where these nodes are, as it is frozen."""
        return [self._placed[number] for number in numbers]


class ListedView:
    """What the lists and the roster say of a nodeset."""

    def __init__(
        self,
        nodes: EpochNodes,
        states: NodeStates,
        roster: Callable[[], Mapping[Member, bool]],
    ) -> None:
        self._nodes = nodes
        self._states = states
        self._roster = roster
        self._seen: tuple[int, Mapping[Member, bool] | None, int] = (-1, None, -1)
        self._listed = ListedNodes()

    def find(self, gone: set[NodeNumber]) -> ListedNodes:
        """Who should be in no copyset now, and who must not be."""
        roster = self._roster()
        change_count, seen_roster, gone_count = self._seen
        is_known = change_count == self._states.change_count and gone_count == len(gone)
        if not is_known or seen_roster is not roster:
            self._seen = (self._states.change_count, roster, len(gone))
            self._listed = self._look(roster, gone)
        return self._listed

    def _look(self, roster: Mapping[Member, bool], gone: set[NodeNumber]) -> ListedNodes:
        numbers, black = self._nodes.numbers, self._states.black
        unusable = {n for m, n in numbers.items() if m in black or not roster.get(m, True)} | gone
        gray = [numbers[member] for member in self._states.gray if member in numbers]
        absent = [n for m, n in numbers.items() if m not in roster]
        order = dict.fromkeys([*gray, *absent])
        return ListedNodes(tuple(n for n in order if n not in unusable), frozenset(unusable))

    def find_replaced(self) -> set[NodeNumber]:
        """Nodes whose bookie is known under another incarnation."""
        known = {member.bookie: member for member in self._roster()}
        replaced = self._states.other_incarnations
        return {
            number
            for member, number in self._nodes.numbers.items()
            if member in replaced or known.get(member.bookie, member) != member
        }
