"""Which copies of closed segments to move so that bookies hold bytes by their weights: a plan.

A round collects the bytes that each bookie holds and the largest of its copies that may be moved.
The plan moves copies from the fullest bookie to the emptiest while both gain by it, and stops
within a tolerance. Each move keeps R20 and is carried out as a swap like any other. So a plan that
is cut off leaves nothing behind, and the next round plans anew from the facts of that moment.

Pure. Called by the auditor. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, NamedTuple

from duramen.core.flexible.repair.audit import WHOLE, names_anybody, share_of
from duramen.core.flexible.repair.repair_map import RepairMap, as_serving
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.repair.audit import list_stretches
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.core.repair.swap import Swap, can_take
from duramen.core.segment import Fragment, Segment
from duramen.ids import BookieId, EntryId, LedgerId, Member

TOLERANCE_DEFAULT: Final = 0.1
"""Bookies within a tenth of their share are left alone: new segments even that out."""

_KEPT_PER_BOOKIE: Final = 256
"""Copies of one bookie that a plan may choose from."""

MOVE_COUNT_MAX: Final = 100
"""Moves of one plan; the next round makes the next one."""


class Copy(NamedTuple):
    """One member's copy of a fragment of a closed segment."""

    size_bytes: int
    ledger_id: LedgerId
    fragment: Fragment
    member: Member
    quorum: Quorum
    rule: PlacementRule

    @property
    def first_entry(self) -> EntryId:
        """With the ledger it names what is moved."""
        return self.fragment.first_entry

    @property
    def facts(self) -> Hashable:
        """What decides whether it can be moved."""
        return self.fragment

    @property
    def good_count(self) -> int:
        """Good copies of each entry: it is proved."""
        return self.quorum.write_quorum

    def can_go(self, taker: Member, view: ClusterView) -> bool:
        """Whether R20 holds afterwards."""
        return can_take(self.fragment, Swap(self.member, taker), self.quorum, self.rule, view)


class RowCopy(NamedTuple):
    """What one row of a proved flexible segment holds, about."""

    size_bytes: int
    ledger_id: LedgerId
    segment: FlexibleSegment
    member: Member

    @property
    def first_entry(self) -> EntryId:
        """The whole segment."""
        return WHOLE

    @property
    def facts(self) -> Hashable:
        """What decides whether it can be moved."""
        return self.segment.nodes

    @property
    def good_count(self) -> int:
        """Good copies of each entry: it is proved."""
        return self.segment.replication.node

    def can_go(self, taker: Member, view: ClusterView) -> bool:
        """Whether RP can hold at the other rows and the taker, which is in none of them."""
        rows = self.segment.nodes
        place = view.locations().get(taker)
        is_quiet = all(view.fate(row.member) is CopyFate.HERE for row in rows)
        if not is_quiet or place is None or any(r.node.bookie == taker.bookie for r in rows):
            return False
        left = [row for row in rows if row.member != self.member]
        return RepairMap(self.segment, view).suffices_with(left, [as_serving(place)])


class CopyMove(NamedTuple):
    """One copy that shall lie elsewhere."""

    copy: Copy | RowCopy
    target: Member

    @property
    def swap(self) -> Swap:
        """The same as a swap."""
        return Swap(self.copy.member, self.target)


class Loads:
    """What one round found of every bookie: bytes, copies, and what may be moved."""

    def __init__(self) -> None:
        self.size_bytes: dict[BookieId, int] = {}
        self.copy_count: dict[BookieId, int] = {}
        self._kept: dict[Member, list[tuple[int, int, int, Copy | RowCopy]]] = {}

    def note(self, log: LogNode, segment: Segment, rule: PlacementRule) -> None:
        """A live segment."""
        quorum = segment.quorum
        for stretch in list_stretches(log, segment):
            share = stretch.size_bytes * quorum.write_quorum // quorum.ensemble_size
            for member in stretch.fragment.ensemble:
                name = member.bookie
                self.size_bytes[name] = self.size_bytes.get(name, 0) + share
                self.copy_count[name] = self.copy_count.get(name, 0) + 1
                if segment.is_closed and stretch.fragment.is_proved and share > 0:
                    copy = Copy(share, segment.ledger_id, stretch.fragment, member, quorum, rule)
                    self._keep(copy)

    def note_flexible(self, log: LogNode, segment: FlexibleSegment) -> None:
        """A live flexible segment."""
        if not names_anybody(log, segment):
            return
        for row in segment.nodes:
            name, share = row.node.bookie, share_of(segment, row)
            self.size_bytes[name] = self.size_bytes.get(name, 0) + share
            self.copy_count[name] = self.copy_count.get(name, 0) + 1
            if segment.is_closed and segment.is_proved and share > 0:
                self._keep(RowCopy(share, segment.ledger_id, segment, row.member))

    def movable(self, member: Member) -> list[Copy | RowCopy]:
        """The largest copies of a bookie, largest first."""
        return [copy for _, _, _, copy in sorted(self._kept.get(member, []), reverse=True)]

    def _keep(self, copy: Copy | RowCopy) -> None:
        kept = self._kept.setdefault(copy.member, [])
        item = (copy.size_bytes, -copy.ledger_id, -copy.first_entry, copy)
        if len(kept) < _KEPT_PER_BOOKIE:
            heapq.heappush(kept, item)
        elif item[:3] > kept[0][:3]:
            heapq.heapreplace(kept, item)


def plan_moves(
    loads: Loads,
    view: ClusterView,
    *,
    tolerance: float = TOLERANCE_DEFAULT,
    count_max: int = MOVE_COUNT_MAX,
) -> list[CopyMove]:
    """Moves that bring every bookie nearer to its share; none where all are within tolerance.

    Args:
        tolerance: part of its share by which a bookie may hold more, above 0.
    """
    plan = _Plan(loads, view, tolerance)
    for _ in range(count_max if plan.can_move else 0):
        if not plan.extend():
            break
    return plan.moves


def spread(loads: Loads, view: ClusterView) -> dict[BookieId, float]:
    """What each bookie that takes new data holds, as a multiple of its share."""
    weights = {c.member.bookie: view.bookies[c.member.bookie].weight for c in view.candidates()}
    total = sum(loads.size_bytes.get(name, 0) for name in weights)
    if not total:
        return dict.fromkeys(weights, 1.0)
    shares = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    return {name: loads.size_bytes.get(name, 0) / share for name, share in shares.items()}


class _Plan:
    """A plan in the making: what every bookie would hold after the moves so far."""

    def __init__(self, loads: Loads, view: ClusterView, tolerance: float) -> None:
        self.moves: list[CopyMove] = []
        self._loads = loads
        self._view = view
        names = [candidate.member for candidate in view.candidates()]
        self._weights = {member: view.bookies[member.bookie].weight for member in names}
        self._held = {member: loads.size_bytes.get(member.bookie, 0) for member in names}
        self._moved: set[tuple[LedgerId, int]] = set()
        self.can_move = len(names) > 1
        total_weight = sum(self._weights.values()) or 1.0
        self._limit = sum(self._held.values()) / total_weight * (1 + tolerance)

    def extend(self) -> bool:
        """Add the move that helps the fullest bookie most; False if none is worth it."""
        pressure = {member: self._held[member] / weight for member, weight in self._weights.items()}
        givers = sorted(pressure, key=lambda member: (-pressure[member], member))
        for giver in givers:
            if pressure[giver] <= self._limit:
                break
            move = self._find_move(giver, pressure[giver], givers[::-1])
            if move is not None:
                self._held[giver] -= move.copy.size_bytes
                self._held[move.target] += move.copy.size_bytes
                self._moved.add((move.copy.ledger_id, move.copy.first_entry))
                self.moves.append(move)
                return True
        return False

    def _find_move(self, giver: Member, pressure: float, takers: list[Member]) -> CopyMove | None:
        """The giver's largest copy that leaves the taker less full than the giver was."""
        for copy in self._loads.movable(giver):
            if (copy.ledger_id, copy.first_entry) in self._moved:
                continue
            for taker in takers:
                if (self._held[taker] + copy.size_bytes) / self._weights[taker] >= pressure:
                    break
                if copy.can_go(taker, self._view):
                    return CopyMove(copy, taker)
        return None
