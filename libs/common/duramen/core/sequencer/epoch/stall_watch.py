"""Whether an owner gives its own epoch to recovery, because an entry of it stays incomplete (R28).

Only where that may help, and cannot make it worse: another nodeset can be chosen now whose bookies
that are there and not listed satisfy RP, and the present nodes that are there are a cover, so that
the epoch can be closed. Else its appends wait in the open epoch and waves go on. Jitter and a queue
of the process keep logs that meet one trouble from all being taken over at the same moment.

A striped segment changes its ensemble instead and never stalls. Called by `open_epoch`.
Source: docs/protocol/waves.md "The owner takes its own log over", R28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.core.flexible.nodeset_plan import NodesetPlan
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.proposals import plan_segment
from duramen.ids import Member
from duramen.units import MS, SECOND

_JITTER: Final = 0.25
_PAUSE_US: Final = 1 * SECOND
"""Until it is asked again whether a takeover could help."""
_TURN_US: Final = 100 * MS


class StallWatch:
    """The stall of one open epoch."""

    def __init__(self, writer: SegmentWriter, context: SequencerContext) -> None:
        self._writer = writer
        self._context = context
        self._factor = 1 + context.rng.uniform(0, _JITTER) if writer.may_stall else 1.0
        self._not_before_us = 0

    def wakeup_at_us(self, log: LogNode) -> int | None:
        """When `is_due` is to be asked next, if nothing is acknowledged before."""
        since_us = self._writer.stalled_since_us()
        if since_us is None:
            return None
        return max(since_us + int(log.config.window.stall * self._factor), self._not_before_us)

    def is_due(self, log: LogNode, now_us: int) -> bool:
        """Whether the log is to be taken over by its owner now."""
        due_us = self.wakeup_at_us(log)
        if due_us is None:
            self.leave(log)
            return False
        if now_us < due_us:
            return False
        if not self._may_help(log):
            self.leave(log)
            self._not_before_us = now_us + _PAUSE_US
            return False
        self._not_before_us = now_us + _TURN_US
        return self._context.stalls.enter(log.log_id)

    def leave(self, log: LogNode) -> None:
        """It does not stall any more, or nothing can be done: another log may."""
        if self._writer.may_stall:
            self._context.stalls.leave(log.log_id)

    def _may_help(self, log: LogNode) -> bool:
        context = self._context
        if context.is_rolling_suspended or not context.is_metadata_reachable:
            return False
        return _is_recoverable(self._writer.segment, context.roster) and self._has_better(log)

    def _has_better(self, log: LogNode) -> bool:
        """Whether the next segment could be written to now."""
        plan = plan_segment(log, self._context)
        if not isinstance(plan, NodesetPlan):
            return plan is not None
        states, roster = self._context.nodes, self._context.roster
        left = {*states.gray, *states.black}
        nodes = {Member(node.bookie, node.incarnation): node for node in plan.chosen.nodes}
        usable = [node for m, node in nodes.items() if roster.get(m, False) and m not in left]
        return plan.rule.wanted.is_satisfied_by(usable)


def _is_recoverable(segment: AnySegment, roster: Mapping[Member, bool]) -> bool:
    return segment.is_sealed_by([member for member in segment.members if member in roster])
