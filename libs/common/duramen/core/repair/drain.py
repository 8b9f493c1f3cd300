"""How a bookie is emptied: serving → draining → leaving → drained, and when each step is safe.

No step is justified by a listing, or by a round that began before the state was published.
`draining`: the bookie takes no ledger that it does not know, and its copies move elsewhere.
`leaving`: it takes nothing at all; a whole round that began after the bookie itself published
`draining` found it named nowhere. `drained`: one more whole round, begun after it published
`leaving`, still finds it named nowhere and no segment in recovery. A recovery keeps its ensembles
in memory until it closes (R16), and may have had acks of the bookie before. If a sequencer with an
old view creates a segment later, it gets no ack of the bookie. A round that finds the bookie named
sends it back to `draining`.

Pure. Not here: setting a duty, and obeying it. Called by the auditor after each round.
Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import ServingBookie, choose_nodeset
from duramen.core.flexible.repair.audit import list_in_service
from duramen.core.flexible.repair.repair_map import as_serving
from duramen.core.flexible.soundness import NodesetRule
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate, PlacementRule, Refusal, choose_ensemble
from duramen.core.quorum import Quorum
from duramen.core.repair.cluster_view import BookieState, ClusterView
from duramen.ids import BookieId, LogId

LOGS_SHOWN_MAX: Final = 10
_ANY_LOG: Final = LogId(1)


class Need(NamedTuple):
    """What a striped log asks of every new segment."""

    quorum: Quorum
    rule: PlacementRule


class NodesetNeed(NamedTuple):
    """What a flexible log asks of every new segment."""

    rule: NodesetRule


AnyNeed = Need | NodesetNeed


@dataclass(slots=True)
class LogNames:
    """Logs, counted; of the first by their numbers the names."""

    count: int = 0
    first: list[tuple[LogId, str]] = field(default_factory=list)

    def note(self, log: LogNode) -> None:
        """One more."""
        self.count += 1
        bisect.insort(self.first, (log.log_id, f"{log.namespace}/{log.name}"))
        del self.first[LOGS_SHOWN_MAX:]

    def list_names(self) -> list[str]:
        """At most LOGS_SHOWN_MAX."""
        return [name for _, name in self.first]


@dataclass(frozen=True, slots=True)
class WholeRound:
    """A round that read every log and every live segment, after a `sync`.

    Args:
        view: the bookies as they were before the first segment was read.
        named: fragments that name any incarnation of a bookie; who is not in it is not named.
        recovering_count: segments in recovery, which may come to name anybody.
    """

    view: ClusterView
    named: Mapping[BookieId, int]
    recovering_count: int = 0


class DutyStep(NamedTuple):
    """What becomes of a bookie's duty, and why."""

    duty: Duty
    reason: str


def advance(state: BookieState, seen: WholeRound) -> DutyStep | None:
    """The step that a whole round allows, or None.

    Args:
        state: the bookie as its nodes say now.
        seen: the last whole round.
    """
    bookie = state.member.bookie
    before = seen.view.bookies.get(bookie)
    named_count = seen.named.get(bookie, 0)
    if before is None or before.member != state.member:
        return None
    match state.duty:
        case Duty.DRAINING if named_count == 0 and _had_published(before, Duty.DRAINING):
            return DutyStep(Duty.LEAVING, "no segment names it")
        case Duty.LEAVING if before.duty is Duty.LEAVING and named_count > 0:
            return DutyStep(Duty.DRAINING, f"{named_count} fragments name it again")
        case Duty.LEAVING if not seen.recovering_count and _had_published(before, Duty.LEAVING):
            return DutyStep(Duty.DRAINED, "it took nothing any more, and no segment names it")
    return None


def explain(state: BookieState, seen: WholeRound | None) -> str:
    """What a drain waits for, in a sentence."""
    named_count = 0 if seen is None else seen.named.get(state.member.bookie, 0)
    if state.duty in (Duty.SERVING, Duty.DRAINED):
        return ""
    if not state.is_available:
        return "the bookie is not there: start it, or wait until its copies are made elsewhere"
    if state.published_duty is not state.duty:
        return f"the bookie has not published yet that it is {state.duty.value}"
    if seen is not None and state.duty is Duty.LEAVING and seen.recovering_count:
        return f"the end of {seen.recovering_count} recoveries, which may still name it"
    if seen is None or named_count == 0:
        return "the next whole round"
    return f"{named_count} fragments name it"


def shortages(
    view: ClusterView, leaving: Collection[BookieId], needs: Iterable[AnyNeed], rng: random.Random
) -> list[AnyNeed]:
    """The needs that the bookies without these cannot meet; places count for every log."""
    left = [c for c in view.candidates() if c.member.bookie not in leaving]
    return [need for need in needs if not _is_met(need, left, rng)]


def _is_met(need: AnyNeed, left: Sequence[Candidate], rng: random.Random) -> bool:
    if isinstance(need, NodesetNeed):
        serving = [as_serving(candidate) for candidate in left]
        # Which bookies come first differs from log to log; whether there is a nodeset hardly does.
        return not isinstance(choose_nodeset(serving, need.rule, _ANY_LOG), Refusal)
    strict = PlacementRule(need.rule.min_racks, need.rule.min_regions, is_strict=True)
    return choose_ensemble(left, need.quorum, strict, rng) is not None


def list_unplaced(
    view: ClusterView, leaving: Collection[BookieId], needs: Iterable[AnyNeed], rng: random.Random
) -> list[AnyNeed]:
    """The needs for which the next segment finds no place now, without these."""
    left = [c for c in view.candidates() if c.member.bookie not in leaving]
    serving = [one for one in list_in_service(view) if one.bookie not in leaving]
    return [need for need in needs if not _has_place(need, left, serving, rng)]


def _has_place(
    need: AnyNeed,
    left: Sequence[Candidate],
    serving: Sequence[ServingBookie],
    rng: random.Random,
) -> bool:
    if isinstance(need, NodesetNeed):
        return not isinstance(choose_nodeset(serving, need.rule, _ANY_LOG), Refusal)
    return choose_ensemble(left, need.quorum, need.rule, rng) is not None


def _had_published(before: BookieState, duty: Duty) -> bool:
    return before.duty is duty and before.published_duty is duty
