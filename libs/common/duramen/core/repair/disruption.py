"""May this bookie be stopped for a while, or taken away? Judged from current metadata.

`restart`: every write set of every live segment that names the bookie must keep Qa members that are
there and of whose copies nothing is known to miss. In an ended fragment that nobody compared yet
every copy counts as missing (R9). Unclosed segments must stay coverable, so that they can be
recovered (R12).
`remove`: no live segment names any incarnation of the bookie, none can come to depend on it (it is
drained, or not there), and the others can hold a new segment of every log; while another bookie is
away the last is asked of a restart as well.

Segments are noted one after the other and not kept; counts are, the ids of logs at risk, and the
first of their names.

Pure. Called by the auditor. Source: docs/protocol/recovery.md "Seal", R12, docs/protocol/repair.md.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.flexible.repair.audit import names_bookie
from duramen.core.flexible.repair.availability import judge_restart
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.quorum import covers, write_sets
from duramen.core.repair.audit import Debts, Stretch, is_good, list_stretches, names
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.disruption_grants import ACCEPTABLE, DisruptionKind
from duramen.core.repair.drain import AnyNeed, NodesetNeed, shortages
from duramen.core.segment import Segment, SegmentState
from duramen.ids import BookieId, LogId, Member

RISK_COUNT_MAX: Final = 100
"""Logs at risk that an answer names; the others are counted."""


class Disruption:
    """One question about bookies that stop together, and what speaks against it so far.

    Args:
        bookies: one; or, to be restarted, those of a rack.
        unreached: bookies that are registered and do not answer: they count as not there.
        needs: what logs ask of new segments; shared by questions that are judged in one walk.
    """

    def __init__(
        self,
        bookies: Collection[BookieId],
        kind: DisruptionKind,
        view: ClusterView,
        *,
        unreached: Collection[BookieId] = (),
        needs: dict[AnyNeed, None] | None = None,
    ) -> None:
        self._bookies = frozenset(bookies)
        self._kind = kind
        self._view = _without(view, [one for one in unreached if one not in self._bookies])
        self._counts: dict[str, int] = {}
        self._details: dict[str, str] = {}
        self._risks: list[str] = []
        self._risky: set[LogId] = set()
        self._needs: dict[AnyNeed, None] = {} if needs is None else needs

    def note_log(self, log: LogNode, need: AnyNeed) -> None:
        """A log that may begin new segments, and what it asks of them."""
        if not log.is_ended and not log.is_deleted:
            self._needs.setdefault(need)

    def note_segment(
        self, log: LogNode, segment: AnySegment, debts: Debts, *, is_orphan: bool = False
    ) -> bool:
        """A live segment, whether it names the bookie or not; gives whether its log is at risk.

        Args:
            is_orphan: it is OPEN and nobody writes it: what its copies lack stands nowhere.
        """
        codes: dict[str, int] = {}
        if is_orphan and self._kind is DisruptionKind.RESTART and self.is_named(log, segment):
            codes["orphan"] = 1
        if isinstance(segment, FlexibleSegment):
            codes |= dict.fromkeys(self._judge_flexible(log, segment, debts), 1)
            return self._count(codes)
        for stretch in list_stretches(log, segment):
            if any(member.bookie in self._bookies for member in stretch.fragment.ensemble):
                for code in self._judge(segment, stretch, debts):
                    codes[code] = codes.get(code, 0) + 1
        return self._count(codes)

    def _count(self, codes: dict[str, int]) -> bool:
        for code, count in codes.items():
            self._counts[code] = self._counts.get(code, 0) + count
        return bool(codes)

    def note_risk(self, log: LogNode) -> None:
        """Some of the log's segments were at risk; said twice is once."""
        if log.log_id in self._risky:
            return
        self._risky.add(log.log_id)
        if len(self._risks) < RISK_COUNT_MAX:
            self._risks.append(f"{log.namespace}/{log.name}")

    def note_recovering(self, bookies: Collection[BookieId]) -> None:
        """Bookies to which recoveries write now, whether metadata name them or not (R16)."""
        if self._kind is DisruptionKind.RESTART and self._bookies & frozenset(bookies):
            self._note("in_recovery")

    def note_undrained(self) -> None:
        """What is to be removed is not drained, whether it is there or not."""
        self._counts["not_drained"] = 1

    def note_unread(self, what: str) -> None:
        """Something could not be read: nothing is allowed on what is not known."""
        self._note("unread", f"{what} could not be read")

    def conclude(self, rng: random.Random, accepts: Collection[str] = ()) -> dict[str, Any]:
        """The answer, but for when it was read.

        Args:
            accepts: reasons against it that who asks accepts.
        """
        if self._kind is DisruptionKind.REMOVE:
            states = [self._view.bookies.get(bookie) for bookie in self._bookies]
            if any(s and s.is_available and s.duty is not Duty.DRAINED for s in states):
                self.note_undrained()
        if self._kind is DisruptionKind.REMOVE or self._is_somebody_absent():
            for need in shortages(self._view, self._bookies, self._needs, rng):
                self._note("placement", _format_need(need))
        reasons = [
            {"code": code, "detail": self._details.get(code, _DETAILS.get(code, "")), "count": n}
            for code, n in sorted(self._counts.items())
        ]
        return {
            "kind": self._kind.value,
            "allowed": self._counts.keys() <= ACCEPTABLE.intersection(accepts),
            "reasons": reasons,
            "logs_at_risk": sorted(self._risks),
            "logs_at_risk_count": len(self._risky),
        }

    def _is_somebody_absent(self) -> bool:
        """Whether another one is away, so that a bookie more may be one too many for new segments.

        With all others there it is not asked: where each of them is needed nobody could ever be
        restarted.
        """
        return any(
            not state.is_available
            and state.duty is Duty.SERVING
            and state.member.incarnation not in self._view.lost
            for bookie, state in self._view.bookies.items()
            if bookie not in self._bookies
        )

    def _note(self, code: str, detail: str | None = None) -> None:
        self._counts[code] = self._counts.get(code, 0) + 1
        if detail is not None:
            self._details.setdefault(code, detail)

    def is_named(self, log: LogNode, segment: AnySegment) -> bool:
        """Whether a live segment names one of them."""
        if isinstance(segment, FlexibleSegment):
            return any(names_bookie(log, segment, bookie) for bookie in self._bookies)
        return any(names(log, segment, bookie) for bookie in self._bookies)

    def _judge_flexible(self, log: LogNode, segment: FlexibleSegment, debts: Debts) -> list[str]:
        """What speaks against it in a flexible segment."""
        if self._kind is DisruptionKind.REMOVE:
            return ["named"] if self.is_named(log, segment) else []
        return judge_restart(log, segment, self._bookies, self._view, debts)

    def _judge(self, segment: Segment, stretch: Stretch, debts: Debts) -> list[str]:
        """What speaks against it in one fragment that names the bookie."""
        if self._kind is DisruptionKind.REMOVE:
            return ["named"]
        others = {m for m in stretch.fragment.ensemble if m.bookie not in self._bookies}
        good = {m for m in others if is_good(m, stretch, self._view, debts)}
        sets = write_sets(stretch.fragment.ensemble, segment.quorum)
        mine = [members for members in sets if any(m.bookie in self._bookies for m in members)]
        ack_quorum = segment.quorum.ack_quorum
        is_spared = all(_count_in(others, members) >= ack_quorum for members in mine)
        is_covered = not stretch.is_open or covers(others, mine, ack_quorum)
        codes = [] if is_spared and is_covered else ["no_spare"]
        if not stretch.is_open and not stretch.fragment.is_proved:
            return [*codes, "unproved"]
        # What the stop alone makes short is `no_spare`: who accepts that has not accepted more.
        if any(
            _count_in(good, members) < min(ack_quorum, _count_in(others, members))
            for members in mine
        ):
            codes.append("too_few_copies")
        if stretch.is_open:
            missed = others - good
            if not covers(good, mine, ack_quorum) and (
                is_covered or any(m in missed for members in mine for m in members)
            ):
                codes.append("not_coverable")
            if segment.state is SegmentState.IN_RECOVERY:
                codes.append("in_recovery")
        return codes


_DETAILS: Final = {
    "in_recovery": "the segment is being recovered, which needs every member that it can ask",
    "no_spare": "the log keeps so many copies, or asks for so many of them, that no bookie can be "
    "missed: wait for another time, or accept it: meanwhile some of these logs cannot be read, or "
    "acknowledge nothing",
    "named": "live segments name an incarnation of the bookie: drain it first",
    "not_drained": "the next segment may name the bookie: drain it first",
    "orphan": "no sequencer that answers writes the open segment, so what its copies lack is not "
    "known: wait until one has taken the log over, or append to it",
    "not_coverable": "the segment could not be recovered without it: bring the others back",
    "too_few_copies": "fewer than ack_quorum good copies would be there: wait until repair has "
    "made them (duramen repair status)",
    "unproved": "nobody has compared the copies yet: the auditor does so",
}


def _without(view: ClusterView, stopped: Collection[BookieId]) -> ClusterView:
    """The view as it would be with these away, for less than the grace."""
    if not stopped:
        return view
    bookies = {
        bookie: replace(state, published_duty=None, is_writable=False, absent_since_us=view.now_us)
        if bookie in stopped and state.is_available
        else state
        for bookie, state in view.bookies.items()
    }
    return replace(view, bookies=bookies)


def _count_in(some: set[Member], members: tuple[Member, ...]) -> int:
    return sum(member in some for member in members)


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
