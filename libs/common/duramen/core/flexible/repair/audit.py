"""What is wrong with a flexible segment, as far as metadata say: one finding at most.

They do not say where its entries lie, so the finding names the most urgent problem, and an attempt
(`attempt`) mends whatever it meets. Of an open segment the owner is asked to roll, if that brings
another nodeset or ends what a lost node was written before it was lost; a segment in recovery is
left to who recovers it. A segment of which nothing is needed any more names nobody.

Pure; nothing is kept. Called by the auditor for each live segment. Source: R9, R21, R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.repair.evidence import EntryRange
from duramen.core.flexible.repair.repair_map import RepairMap, as_serving
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import (
    Action,
    Debts,
    Finding,
    RepairProblem,
    WorkKey,
    first_needed,
)
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.core.segment_base import SegmentState
from duramen.ids import BookieId, EntryId, Member
from duramen.units import MS

WHOLE: Final = EntryId(0)
"""Stands for the whole segment where striped ones name the first entry of a fragment."""


@dataclass(frozen=True, slots=True)
class NextNodeset:
    """What a roll would bring.

    Args:
        members: of the nodeset that the owner would choose now; empty: it would choose none.
        unix_ms: now, by the clock of the auditor.
    """

    members: Collection[Member]
    unix_ms: int


NO_NODESET: Final = NextNodeset((), 0)


def list_needed(log: LogNode, segment: FlexibleSegment) -> list[EntryRange]:
    """Ranges of what somebody may still read of a live CLOSED segment, ascending."""
    if segment.last_entry is None:
        return []
    return segment.list_present(first_needed(log, segment), segment.last_entry)


def names_anybody(log: LogNode, segment: FlexibleSegment) -> bool:
    """Whether the rows of a live segment are to hold anything, or may come to."""
    return not segment.is_closed or bool(list_needed(log, segment))


def names_bookie(log: LogNode, segment: FlexibleSegment, bookie: BookieId) -> bool:
    """Whether any row of a live segment that matters is one of the bookie's, guests too."""
    is_named = any(row.node.bookie == bookie for row in segment.nodes)
    return is_named and names_anybody(log, segment)


def list_in_service(view: ClusterView) -> list[ServingBookie]:
    """Of whom a nodeset is chosen: who serves and has a weight, absent or not, until that is
    accepted as a loss."""
    return [
        replace(as_serving(state.place), is_absent=not state.is_available)
        for _, state in sorted(view.bookies.items())
        if state.duty is Duty.SERVING
        and state.weight > 0
        and state.region not in view.closed_regions
        and state.member.incarnation not in view.lost
    ]


def audit_flexible(
    log: LogNode,
    segment: FlexibleSegment,
    view: ClusterView,
    debts: Debts,
    next_nodeset: Callable[[], NextNodeset],
) -> list[Finding]:
    """What is work in a live segment: one attempt or one roll, or nothing.

    Args:
        next_nodeset: asked for where a row of an open segment is lost or leaving.
    """
    if segment.state is SegmentState.IN_RECOVERY or not names_anybody(log, segment):
        return []
    if segment.is_closed:
        problem, row = _find_problem(segment, view, debts)
    else:
        bad = [row for row in segment.nodes if _problem_of(row, view) is not None]
        following = next_nodeset() if bad else NO_NODESET
        ending = [row for row in bad if _ends_with_a_roll(segment, row, view, following)]
        row = ending[0] if ending else None
        problem = None if row is None else _problem_of(row, view)
    if problem is None:
        return []
    action = Action.SWAP if problem in _SWAPS else Action.FILL
    action = action if segment.is_closed else Action.ROLL
    return [_describe(segment, problem, action, row, view, debts)]


def list_bad(segment: FlexibleSegment, view: ClusterView, debts: Debts) -> list[NodesetRow]:
    """Rows that may hold nothing that can be read now: not there, damaged, or in doubt."""
    return [
        row
        for row in segment.nodes
        if not view.is_there(row.member)
        or debts.is_damaged(row.member, WHOLE)
        or debts.is_doubted(row.member, WHOLE)
    ]


_SWAPS = (RepairProblem.LOST, RepairProblem.LEAVING)


def _problem_of(row: NodesetRow, view: ClusterView) -> RepairProblem | None:
    match view.fate(row.member):
        case CopyFate.LOST:
            return RepairProblem.LOST
        case CopyFate.LEAVING:
            return RepairProblem.LEAVING
        case CopyFate.HERE | CopyFate.AWAY:
            return None


def _find_problem(
    segment: FlexibleSegment, view: ClusterView, debts: Debts
) -> tuple[RepairProblem | None, NodesetRow | None]:
    """The most urgent problem of a CLOSED segment, and a row that has it."""
    found: dict[RepairProblem, NodesetRow] = {}
    for row in segment.nodes:
        problem = _problem_of(row, view)
        is_there = view.is_there(row.member)
        if problem is not None:
            found.setdefault(problem, row)
        if is_there and debts.is_damaged(row.member, WHOLE):
            found.setdefault(RepairProblem.DAMAGED, row)
        if is_there and debts.is_doubted(row.member, WHOLE):
            found.setdefault(RepairProblem.DOUBTED, row)
    if RepairProblem.LOST in found:
        return RepairProblem.LOST, found[RepairProblem.LOST]
    if any(view.fate(row.member) is CopyFate.AWAY for row in segment.nodes):
        return None, None  # within the grace it is there again, or lost
    if found:
        problem = min(found)
        return problem, found[problem]
    if not segment.is_proved:
        return RepairProblem.UNPROVED, None
    return (
        (RepairProblem.MISPLACED, None) if RepairMap(segment, view).list_moves() else (None, None)
    )


def _ends_with_a_roll(
    segment: FlexibleSegment, row: NodesetRow, view: ClusterView, next_nodeset: NextNodeset
) -> bool:
    """Whether the next segment would be better off; a roll that changes nothing is asked for once
    at most, since the next segment is younger than the absence."""
    if not next_nodeset.members:
        return False
    if row.member not in next_nodeset.members:
        return True
    state = view.bookies.get(row.node.bookie)
    if state is None or state.absent_since_us is None:
        return False
    absent_ms = (view.now_us - state.absent_since_us) // MS
    return segment.created_unix_ms < next_nodeset.unix_ms - absent_ms


def _describe(  # noqa: PLR0917 - plain inputs of a pure value
    segment: FlexibleSegment,
    problem: RepairProblem,
    action: Action,
    row: NodesetRow | None,
    view: ClusterView,
    debts: Debts,
) -> Finding:
    bad = list_bad(segment, view, debts)
    return Finding(
        WorkKey(segment.ledger_id, WHOLE, action),
        problem,
        max(0, segment.replication.node - len({one.node.bookie for one in bad})),
        _bytes_of(segment, [one for one in segment.nodes if one in bad or one == row]),
        None if row is None else row.member,
        (
            view.facts(),
            segment.nodes,
            *(tuple(sorted(members)) for members in (debts.owed, debts.damaged, debts.doubtful)),
        ),
    )


def _bytes_of(segment: FlexibleSegment, rows: Sequence[NodesetRow]) -> int:
    return sum(share_of(segment, row) for row in rows)


def share_of(segment: FlexibleSegment, row: NodesetRow) -> int:
    """About how many bytes of a segment a row has: as waves distribute them."""
    if segment.totals is None:
        return 0
    weight = sum(one.weight for one in segment.nodes)
    copies = min(segment.replication.node, len(segment.nodes))
    return int(min(1.0, copies * row.weight / weight) * segment.totals.length_bytes)
