"""Who shall hold more copies of short entries, from whom they come, and which bookie is added.

As few more witnesses as RP asks for: those first that cannot vouch for the entries, since a copy
mends them, then the taker of a rebalance, then by a weighted draw, from ledger, first entry and
bookie. Only where the witnesses that take new data are not enough, whatever became of earlier
copies to them, a bookie is added: else each failure would make the map grow.

Pure. Called by `attempt`. Source: R26, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.repair.comparison import ShortGroup
from duramen.core.flexible.repair.repair_map import RepairMap, as_serving
from duramen.core.hashing import rank_nodes
from duramen.core.placement import Candidate
from duramen.ids import Member, NodeNumber

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """Chooses for the groups of one segment.

    Args:
        candidates: bookies that take new data and keep envelopes.
        taker: to whom a rebalance moves copies.
    """

    repair_map: RepairMap
    candidates: Sequence[Candidate]
    taker: Member | None = None

    def choose(
        self, group: ShortGroup, failed: Collection[NodeNumber] = ()
    ) -> list[NodesetRow] | None:
        """Witnesses that shall hold the group, too; None: they are not enough.

        Args:
            failed: nodes that did not have what they were sent in this attempt.
        """
        members = {candidate.member for candidate in self.candidates}
        holding = self._list_holding(group)
        usable = [
            row
            for row in self.repair_map.witnesses
            if row.member in members and row not in holding and row.number not in failed
        ]
        ranks = self._rank(group, {row.node.bookie: row.weight for row in usable})
        usable.sort(
            key=lambda row: (
                row not in group.unsure,
                row.member != self.taker,
                ranks[row.node.bookie],
            )
        )
        return _choose_fewest(
            usable, lambda rows: self.repair_map.suffices_with([*holding, *rows], ())
        )

    def choose_addition(self, group: ShortGroup) -> ServingBookie | None:
        """A bookie in no row that helps where all witnesses are not enough; None: none does."""
        segment = self.repair_map.segment
        usable = self._list_holding(group)
        members = {candidate.member for candidate in self.candidates}
        usable += [
            row for row in self.repair_map.witnesses if row.member in members and row not in usable
        ]
        names = {row.node.bookie for row in self.repair_map.witnesses}
        free = [
            as_serving(candidate)
            for candidate in self.candidates
            if segment.find_member(candidate.member) is None
            and candidate.member.bookie not in names
        ]
        ranks = self._rank(group, {node.bookie: node.weight for node in free})
        taker = None if self.taker is None else self.taker.bookie
        free.sort(key=lambda node: (node.bookie != taker, ranks[node.bookie]))
        added = _choose_fewest(free, lambda nodes: self.repair_map.suffices_with(usable, nodes))
        return added[0] if added else None

    def list_sources(self, groups: Collection[ShortGroup]) -> list[NodesetRow]:
        """Whom the copies come from, in this order: who is to go may be slow, or about to stop; of
        the others who holds most first."""
        counts: Counter[NodesetRow] = Counter()
        for group in groups:
            counts.update(dict.fromkeys(group.holders, len(group.entries)))
        witnesses = self.repair_map.witnesses
        return sorted(counts, key=lambda row: (row not in witnesses, -counts[row], row.number))

    def _list_holding(self, group: ShortGroup) -> list[NodesetRow]:
        return [row for row in group.holders if row in self.repair_map.witnesses]

    def _rank(self, group: ShortGroup, weights: dict[str, float]) -> dict[str, int]:
        key = f"{self.repair_map.segment.ledger_id}.{group.entries[0]}"
        ranked = rank_nodes(key, weights)
        return {name: ranked.index(name) if name in ranked else len(ranked) for name in weights}


def _choose_fewest(others: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> list[T] | None:
    """Of these, in their order, those without which the rest does not suffice; None: none do."""
    if not suffices(others):
        return None
    chosen = list(others)
    for one in reversed(others):
        rest = [other for other in chosen if other is not one]
        if suffices(rest):
            chosen = rest
    return chosen
