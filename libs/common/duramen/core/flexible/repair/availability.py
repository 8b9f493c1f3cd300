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
    log: LogNode, segment: FlexibleSegment, bookie: BookieId, view: ClusterView, debts: Debts
) -> list[str]:
    """What speaks against stopping a bookie for a while, as codes of an answer about disruption."""
    if not names_bookie(log, segment, bookie):
        return []
    bad = list_bad(segment, view, debts)
    away = [row for row in segment.nodes if row.node.bookie == bookie or row in bad]
    if segment.is_closed:
        if not segment.is_proved:
            return ["unproved"]
        return [] if is_readable_without(segment, away) else ["too_few_copies"]
    codes = [] if is_recoverable_without(segment, away) else ["not_coverable"]
    if segment.state is SegmentState.IN_RECOVERY:
        return [*codes, "in_recovery"]
    return codes if is_appendable_without(segment, away) else [*codes, "too_few_copies"]
