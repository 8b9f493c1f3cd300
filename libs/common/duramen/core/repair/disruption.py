"""May this bookie be stopped for a while, or taken away? Judged from current metadata.

`restart`: every write set of every live segment that names the bookie must keep Qa members that are
there and of whose copies nothing is known to miss. In an ended fragment that nobody compared yet
every copy counts as missing (R9). Unclosed segments must stay coverable, so that they can be
recovered (R12).
`remove`: no live segment names any incarnation of the bookie, none can come to depend on it (it is
drained, or not there), and the others can hold a new segment of every log.

Segments are noted one after the other and not kept; counts and the first logs at risk are kept.
Pure. Called by the auditor. Source: docs/protocol/recovery.md "Seal", R12, docs/protocol/repair.md.
"""

from __future__ import annotations

import enum
import random
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.flexible.repair.audit import names_bookie
from duramen.core.flexible.repair.availability import judge_restart
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.quorum import covers, write_sets
from duramen.core.repair.audit import Debts, Stretch, is_good, list_stretches
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.drain import AnyNeed, NodesetNeed, shortages
from duramen.core.segment import Segment, SegmentState
from duramen.ids import BookieId, Member

RISK_COUNT_MAX: Final = 100
"""Logs at risk that an answer names; the others are counted."""


class DisruptionKind(enum.StrEnum):
    """What is to be done to the bookie."""

    RESTART = "restart"
    REMOVE = "remove"


class Disruption:
    """One question about one bookie, and what speaks against it so far."""

    def __init__(self, bookie: BookieId, kind: DisruptionKind, view: ClusterView) -> None:
        self._bookie = bookie
        self._kind = kind
        self._view = view
        self._counts: dict[str, int] = {}
        self._details: dict[str, str] = {}
        self._risks: list[str] = []
        self._risk_count = 0
        self._needs: dict[AnyNeed, None] = {}

    def note_log(self, log: LogNode, need: AnyNeed) -> None:
        """A log that may begin new segments, and what it asks of them."""
        if not log.is_ended and not log.is_deleted:
            self._needs.setdefault(need)

    def note_segment(self, log: LogNode, segment: AnySegment, debts: Debts) -> bool:
        """A live segment, whether it names the bookie or not; gives whether its log is at risk."""
        codes: dict[str, int] = {}
        if isinstance(segment, FlexibleSegment):
            codes = dict.fromkeys(self._judge_flexible(log, segment, debts), 1)
            return self._count(codes)
        for stretch in list_stretches(log, segment):
            if any(member.bookie == self._bookie for member in stretch.fragment.ensemble):
                for code in self._judge(segment, stretch, debts):
                    codes[code] = codes.get(code, 0) + 1
        return self._count(codes)

    def _count(self, codes: dict[str, int]) -> bool:
        for code, count in codes.items():
            self._counts[code] = self._counts.get(code, 0) + count
        return bool(codes)

    def note_risk(self, log: LogNode) -> None:
        """One of the log's segments was at risk; called once for a log."""
        self._risk_count += 1
        if len(self._risks) < RISK_COUNT_MAX:
            self._risks.append(f"{log.namespace}/{log.name}")

    def note_unread(self, what: str) -> None:
        """Something could not be read: nothing is allowed on what is not known."""
        self._counts["unread"] = self._counts.get("unread", 0) + 1
        self._details.setdefault("unread", f"{what} could not be read")

    def conclude(self, rng: random.Random) -> dict[str, Any]:
        """The answer, but for when it was read."""
        if self._kind is DisruptionKind.REMOVE:
            state = self._view.bookies.get(self._bookie)
            if state is not None and state.is_available and state.duty is not Duty.DRAINED:
                self._counts["not_drained"] = 1
            for need in shortages(self._view, [self._bookie], self._needs, rng):
                self._counts["placement"] = self._counts.get("placement", 0) + 1
                self._details.setdefault("placement", _format_need(need))
        reasons = [
            {"code": code, "detail": self._details.get(code, _DETAILS.get(code, "")), "count": n}
            for code, n in sorted(self._counts.items())
        ]
        return {
            "bookie": self._bookie,
            "kind": self._kind.value,
            "allowed": not reasons,
            "reasons": reasons,
            "logs_at_risk": sorted(self._risks),
            "logs_at_risk_count": self._risk_count,
        }

    def _judge_flexible(self, log: LogNode, segment: FlexibleSegment, debts: Debts) -> list[str]:
        """What speaks against it in a flexible segment."""
        if self._kind is DisruptionKind.REMOVE:
            return ["named"] if names_bookie(log, segment, self._bookie) else []
        return judge_restart(log, segment, self._bookie, self._view, debts)

    def _judge(self, segment: Segment, stretch: Stretch, debts: Debts) -> list[str]:
        """What speaks against it in one fragment that names the bookie."""
        if self._kind is DisruptionKind.REMOVE:
            return ["named"]
        others = [m for m in stretch.fragment.ensemble if m.bookie != self._bookie]
        good = {m for m in others if is_good(m, stretch, self._view, debts)}
        sets = write_sets(stretch.fragment.ensemble, segment.quorum)
        mine = [members for members in sets if _has(members, self._bookie)]
        ack_quorum = segment.quorum.ack_quorum
        if stretch.is_open:
            return self._judge_open(segment, mine, good, ack_quorum)
        if not stretch.fragment.is_proved:
            return ["unproved"]
        if any(sum(member in good for member in members) < ack_quorum for members in mine):
            return ["too_few_copies"]
        return []

    def _judge_open(
        self,
        segment: Segment,
        mine: list[tuple[Member, ...]],
        good: set[Member],
        ack_quorum: int,
    ) -> list[str]:
        codes = []
        if not covers(good, mine, ack_quorum):
            codes.append("not_coverable")
        is_short = any(sum(member in good for member in members) < ack_quorum for members in mine)
        if is_short:
            codes.append("too_few_copies")
        if segment.state is SegmentState.IN_RECOVERY:
            codes.append("in_recovery")
        return codes


_DETAILS: Final = {
    "in_recovery": "the segment is being recovered, which needs every member that it can ask",
    "named": "live segments name an incarnation of the bookie: drain it first",
    "not_drained": "the next segment may name the bookie: drain it first",
    "not_coverable": "the segment could not be recovered without it",
    "too_few_copies": "fewer than ack_quorum good copies would be there",
    "unproved": "nobody has compared the copies yet: the auditor does so",
}


def _has(members: tuple[Member, ...], bookie: BookieId) -> bool:
    return any(member.bookie == bookie for member in members)


def _format_need(need: AnyNeed) -> str:
    if isinstance(need, NodesetNeed):
        wanted = need.rule.wanted
        return (
            f"the bookies that are left have no nodeset with node {wanted.node}, rack "
            f"{wanted.rack}, region {wanted.region}, tolerate {need.rule.tolerate}"
        )
    quorum, rule = need.quorum, need.rule
    return (
        f"no {quorum.ensemble_size} of the bookies that are left hold a new segment with "
        f"write_quorum {quorum.write_quorum}, ack_quorum {quorum.ack_quorum}, min_racks "
        f"{rule.min_racks}, min_regions {rule.min_regions}"
    )
