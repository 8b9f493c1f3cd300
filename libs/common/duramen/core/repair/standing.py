"""How every bookie stands: what speaks against a restart of it alone, and whether it is caught up.

All bookies are judged in one walk over the segments, each by the rules of a question about it
alone (`disruption`). A bookie is caught up when it lacks no copy: nothing is owed to it, none of
its copies is damaged or in doubt, and no owner says that it is behind. Whether a copy was compared
(R9), or may miss what nobody can be asked about, is no fault of the bookie's.

Pure. Called by the auditor. Source: docs/protocol/repair.md, docs/kubernetes/evictions.md.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import Any

from duramen.core.flexible.repair.audit import WHOLE, names_anybody
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import Debts, FragmentKey, list_stretches
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.disruption import Disruption
from duramen.core.repair.disruption_grants import DisruptionKind
from duramen.core.repair.drain import AnyNeed
from duramen.ids import BookieId, Member


class Standing:
    """One question about each registered bookie, in one walk.

    Args:
        unreached: bookies that are registered and do not answer: they count as not there.
        given_up: fragments that cannot be repaired: whoever lacks copies of these waits in vain.
    """

    def __init__(
        self,
        view: ClusterView,
        *,
        unreached: Collection[BookieId] = (),
        given_up: Collection[FragmentKey] = (),
    ) -> None:
        self._view = view
        self._given_up = frozenset(given_up)
        self._unreached = frozenset(unreached)
        self._needs: dict[AnyNeed, None] = {}
        self._questions = {
            bookie: Disruption(
                [bookie], DisruptionKind.RESTART, view, unreached=unreached, needs=self._needs
            )
            for bookie in sorted(view.bookies)
        }
        self._lacks: Counter[BookieId] = Counter()

    def note_log(self, log: LogNode, need: AnyNeed) -> None:
        """A log that may begin new segments; the questions share what logs ask."""
        if not log.is_ended and not log.is_deleted:
            self._needs.setdefault(need)

    def is_named(self, log: LogNode, segment: AnySegment) -> bool:
        """Whether a live segment names anybody who is registered."""
        return any(bookie in self._questions for bookie in _list_named(log, segment))

    def note_segment(
        self, log: LogNode, segment: AnySegment, debts: Debts, *, is_orphan: bool = False
    ) -> bool:
        """A live segment; gives whether its log is at risk if one of its bookies stops.

        Args:
            is_orphan: it is OPEN and nobody writes it: what its copies lack stands nowhere.
        """
        is_risky = False
        for bookie in _list_named(log, segment):
            question = self._questions.get(bookie)
            if question is not None:
                is_risky |= question.note_segment(log, segment, debts, is_orphan=is_orphan)
        for member in self._list_lacking(log, segment, debts, is_orphan=is_orphan):
            self._lacks[member.bookie] += self._is_current(member)
        return is_risky

    def note_risk(self, log: LogNode) -> None:
        """Logs at risk are named by the question about one bookie."""

    def note_recovering(self, bookies: Collection[BookieId]) -> None:
        """Bookies to which recoveries write now, whether metadata name them or not (R16)."""
        for question in self._questions.values():
            question.note_recovering(bookies)

    def note_unread(self, what: str) -> None:
        """Something could not be read: nothing is allowed, and nobody is known to be caught up."""
        for bookie, question in self._questions.items():
            question.note_unread(what)
            self._lacks[bookie] += 1

    def conclude(self, rng: random.Random) -> list[dict[str, Any]]:
        """A row for each registered bookie, by name."""
        rows = []
        for bookie, question in self._questions.items():
            judged = question.conclude(rng)
            is_there = self._view.bookies[bookie].is_available and bookie not in self._unreached
            rows.append(
                {
                    "bookie": bookie,
                    "incarnation": self._view.bookies[bookie].member.incarnation,
                    "there": is_there,
                    "reasons": judged["reasons"],
                    "lacks_count": self._lacks[bookie],
                }
            )
        return rows

    def _list_lacking(
        self, log: LogNode, segment: AnySegment, debts: Debts, *, is_orphan: bool
    ) -> set[Member]:
        """Members that are to hold something of the segment, and may lack some of it."""
        if isinstance(segment, FlexibleSegment):
            if not names_anybody(log, segment) or (segment.ledger_id, WHOLE) in self._given_up:
                return set()
            return {
                row.member
                for row in segment.nodes
                if debts.is_damaged(row.member, WHOLE) or debts.is_doubted(row.member, WHOLE)
            }
        return {
            member
            for stretch in list_stretches(log, segment)
            if (segment.ledger_id, stretch.fragment.first_entry) not in self._given_up
            for member in stretch.fragment.ensemble
            if debts.is_lacking(member, stretch) or (is_orphan and stretch.is_open)
        }

    def _is_current(self, member: Member) -> bool:
        """A bookie with a new disk lacks nothing of what its old one held: that is for others."""
        state = self._view.bookies.get(member.bookie)
        return state is not None and state.member == member


def _list_named(log: LogNode, segment: AnySegment) -> set[BookieId]:
    if isinstance(segment, FlexibleSegment):
        if not names_anybody(log, segment):
            return set()
        return {row.node.bookie for row in segment.nodes}
    return {
        member.bookie
        for stretch in list_stretches(log, segment)
        for member in stretch.fragment.ensemble
    }
