"""Whether a flexible segment can be read, recovered and appended to without some of its nodes.

Where every needed entry's holders satisfy RP, an entry is out of reach only if all its holders are
among those that do not count: the nodes in question, and the rows that are not there, are damaged
or in doubt. Sets that satisfy RP grow only by nodes, so that is possible exactly if those together
satisfy RP: then some entry may lie there alone. The same of N(e) says whether a recovery would find
a cover (R23), and of the others whether a wave would find a copyset.

Pure. Called for disruptions. Source: R23, R26, docs/protocol/repair.md "Repair of a flexible
segment".
"""

from __future__ import annotations

from collections.abc import Collection

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.repair.audit import list_bad, names_bookie
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import Debts
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.segment_base import SegmentState
from duramen.ids import BookieId


def is_readable_without(segment: FlexibleSegment, away: list[NodesetRow]) -> bool:
    """Whether each entry has a copy elsewhere, if each entry's holders satisfy RP."""
    return not segment.replication.is_satisfied_by(row.node for row in away)


def is_recoverable_without(segment: FlexibleSegment, away: list[NodesetRow]) -> bool:
    """Whether the rest of N(e) is a cover; guests are none."""
    own = segment.own_nodes
    rest = [row.node for row in own if row not in away]
    return segment.replication.is_covered_by(rest, [row.node for row in own])


def is_appendable_without(segment: FlexibleSegment, away: list[NodesetRow]) -> bool:
    """Whether the rest of N(e) has a copyset."""
    return segment.replication.is_satisfied_by(
        row.node for row in segment.own_nodes if row not in away
    )


def judge_restart(
    log: LogNode,
    segment: FlexibleSegment,
    bookies: Collection[BookieId],
    view: ClusterView,
    debts: Debts,
) -> list[str]:
    """What speaks against stopping bookies for a while, as codes of an answer about disruption.

    `no_spare` stands for what would be so with all others there.
    """
    if not any(names_bookie(log, segment, bookie) for bookie in bookies):
        return []
    bad = list_bad(segment, view, debts)
    stopped = [row for row in segment.nodes if row.node.bookie in bookies]
    away = [row for row in segment.nodes if row in stopped or row in bad]
    if segment.is_closed:
        codes = [] if segment.is_proved else ["unproved"]
        if not codes and not is_readable_without(segment, away):
            codes = ["too_few_copies"]
        is_spared = is_readable_without(segment, stopped)
    else:
        codes = [] if is_recoverable_without(segment, away) else ["not_coverable"]
        if segment.state is SegmentState.IN_RECOVERY:
            codes += ["in_recovery"]
        elif not is_appendable_without(segment, away):
            codes += ["too_few_copies"]
        is_spared = all(
            judge(segment, stopped) for judge in (is_recoverable_without, is_appendable_without)
        )
    if is_spared:
        return codes
    codes = [code for code in codes if code in {"in_recovery", "unproved"}]
    # Who accepts that nothing is spare has not accepted that others are away, too.
    is_more = any(row not in stopped for row in bad)
    return ["no_spare", *codes, *(["too_few_copies"] if is_more else [])]
