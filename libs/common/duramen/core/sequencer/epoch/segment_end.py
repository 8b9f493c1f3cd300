"""The end of one open segment: when it may come, how it drains, what the closing `multi()` says.

`open_epoch` has one, and asks it what to do; the states and the effects stay there. The ensemble of
the next segment is chosen as soon as this one is open. At the roll a new choice is needed only if
one of its bookies is gone or the configuration has changed.

Not here: when a segment is old, large or idle enough (`roll_policy`).
Source: docs/protocol/write.md "Roll", R3, R9 (the wait for owed copies), R19.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from duramen.config import LogConfig, needs_new_segment
from duramen.core.flexible.nodeset_plan import NodesetPlan
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import Ending, LogNode
from duramen.core.segment import SegmentState
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import LogView
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.proposals import (
    Proposal,
    SegmentPlan,
    fits,
    make_segment,
    plan_segment,
    propose_close,
    propose_roll,
)
from duramen.core.sequencer.roll_policy import RollPolicy
from duramen.ids import Lsn
from duramen.limits import CLOSE_OWED_WAIT_US, ROLL_DRAIN_US
from duramen.units import MS, SECOND

_TICK_US: Final = 100 * MS
"""How often a log asks whether its turn has come, and after what is due."""

_BLOCKED_TICK_US: Final = 5 * SECOND
"""The same while no log may roll: thousands may be due, and none of them can do anything."""


class DrainStep(enum.Enum):
    """What a segment that drains waits for."""

    WAIT = "wait"
    CALL_OFF = "call off"
    CLOSE = "close"


class CloseFate(enum.Enum):
    """What the nodes say about a close that may have been applied (R3)."""

    OURS = "ours"
    OURS_IN_PART = "ours in part"
    """Our close came between the reads of the two nodes: the next read shows the rest."""
    OPEN = "open"
    LOST = "lost"


class SegmentEnd:
    """The end of the segment that `writer` writes.

    Args:
        log: as it is with this segment open.
        made_with: the log's configuration when the segment was made.
        policy: of this segment.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        log: LogNode,
        made_with: LogConfig,
        policy: RollPolicy,
        context: SequencerContext,
    ) -> None:
        self._writer = writer
        self._log = log
        self._made_with = made_with
        self._policy = policy
        self._context = context
        self._following = plan_segment(log, context)
        self._has_asked = False
        """Whether the log may have a place in the queue of rolls."""
        self.reopening: tuple[str, ...] = ()
        """What the next segment is to have otherwise, for people; as of the last `start`."""
        self._drain_end_us = 0
        self._owed_end_us: int | None = None

    def configure(self, config: LogConfig) -> None:
        """The log's newest configuration holds: at once where it can, else by a roll."""
        self._writer.configure(config)
        self._log = replace(self._log, config=config)
        self._policy.configure(config.roll)
        if needs_new_segment(self._made_with, config):
            self._policy.request()

    def is_due(self, now_us: int) -> bool:
        """Whether the segment ends now: there is a reason, and it is this log's turn.

        One that appends go to does not end where the next one cannot be placed: they would stop.
        """
        writer = self._writer
        # The next segment may lose a member at once, too: not one for each entry.
        if writer.wants_roll and (self._policy.has_lasted(now_us) or writer.must_roll_now):
            self._policy.request()
        is_wanted = self._policy.must_end(writer.totals, writer.lap, now_us)
        if not is_wanted or self._is_blocked:
            if self._has_asked:
                self.leave()
            return False
        if not self._policy.is_idle(now_us) and self._choose(self._log) is None:
            self._policy.postpone(now_us)
            self.leave()
            return False
        self._has_asked = True
        return self._context.rolls.enter(self._log.log_id)

    def wakeup_at_us(self, now_us: int) -> int:
        """When `is_due` is to be asked again, if nothing else happens before."""
        pause_us = _BLOCKED_TICK_US if self._is_blocked else _TICK_US
        due_us, next_us = self._policy.due_us(self._writer.totals), now_us + pause_us
        return due_us if due_us > next_us else next_us

    @property
    def _is_blocked(self) -> bool:
        return self._context.is_rolling_suspended or not self._context.is_metadata_reachable

    def leave(self) -> None:
        """The segment does not end now, or has ended: another log may."""
        self._has_asked = False
        self._context.rolls.leave(self._log.log_id)

    def start(self, now_us: int) -> None:
        """Nothing new is sent from now on."""
        self._drain_end_us = now_us + ROLL_DRAIN_US
        self._owed_end_us = None
        self.reopening = self._explain_reopening()

    def drain(self, now_us: int, *, must_close: bool) -> DrainStep:
        """Wait for an empty window, then a while for owed copies, which are recorded then (R9)."""
        if self._context.is_rolling_suspended and not must_close:
            return DrainStep.CALL_OFF
        writer = self._writer
        if not writer.is_drained:
            return DrainStep.CALL_OFF if now_us >= self._drain_end_us else DrainStep.WAIT
        if writer.owed:
            if self._owed_end_us is None:
                self._owed_end_us = now_us + CLOSE_OWED_WAIT_US
            # Nothing comes soon from a member that failed, replaced or not: appends wait meanwhile.
            if now_us < self._owed_end_us and writer.awaits_copies:
                return DrainStep.WAIT
            writer.persist_owed()
        return DrainStep.CLOSE

    def judge(self, view: LogView, nonces: Collection[str]) -> CloseFate:
        """What became of the changes with these nonces, as far as `view` shows it.

        The log node may have been changed by others since (a truncation, a configuration), so the
        segment that was opened in the same `multi()` proves it as well.
        """
        epoch = self._writer.segment.epoch
        unclosed = [segment for segment, _ in view.segments]
        is_next_ours = any(s.epoch > epoch and s.nonce in nonces for s in unclosed)
        if view.log.nonce in nonces or is_next_ours:
            return CloseFate.OURS
        if any(segment.is_closed and segment.nonce in nonces for segment in unclosed):
            return CloseFate.OURS_IN_PART
        # Repair may have changed its earlier fragments, so the nonce says nothing: who takes a
        # segment over marks it first.
        is_open = len(unclosed) == 1 and unclosed[0].state is SegmentState.OPEN
        return CloseFate.OPEN if is_open and unclosed[0].epoch == epoch else CloseFate.LOST

    def propose(
        self,
        view: LogView,
        now_us: int,
        *,
        opens_next: bool,
        may_stay: bool,
        ending: Ending | None,
        snapshot_lsn: Lsn | None,
    ) -> Proposal | None:
        """The `multi()` that closes the segment and opens the next one, if that is wanted.

        Args:
            may_stay: give nothing where the next one cannot be placed; else the log is closed.
            ending: the log ends, or is deleted, with the segment; then nothing is opened.
            snapshot_lsn: as `propose_close` has it.
        """
        context, writer = self._context, self._writer
        nonce, unix_ms = context.new_nonce(), context.unix_ms(now_us)
        close = propose_close(
            view,
            last_entry=writer.lac,
            totals=writer.lac_totals,
            completed_unix_ms=unix_ms,
            nonce=nonce,
            ending=ending,
            snapshot_lsn=snapshot_lsn,
            proved=writer.list_proved(),
        )
        if not opens_next or ending is not None:
            return close
        plan = self._choose(close.view.log)
        if plan is None:
            return None if may_stay else close
        following = make_segment(close.view, plan, nonce=nonce, created_unix_ms=unix_ms)
        by_hint = context.hints.has(view.log.log_id, now_us)
        return propose_roll(view, close, following, context.sequencer_id, by_hint=by_hint)

    def is_wider(self, log: LogNode) -> bool:
        """Whether the next segment would have bookies that this one has to do without."""
        segment = self._writer.segment
        plan = self._choose(log)
        if isinstance(segment, FlexibleSegment):
            return isinstance(plan, NodesetPlan) and bool(plan.explain_reopening(segment))
        if plan is None or isinstance(plan, NodesetPlan):
            return False
        size = segment.quorum.ensemble_size
        return size < log.config.striped.ensemble_size and plan.quorum.ensemble_size > size

    def _explain_reopening(self) -> tuple[str, ...]:
        """Nothing of striped segments that striped ones follow: those change in the middle."""
        segment, plan = self._writer.segment, self._choose(self._log)
        is_flexible = isinstance(segment, FlexibleSegment)
        if is_flexible != self._log.config.is_flexible:
            return (f"copysets are {self._log.config.copysets} now",)
        if not isinstance(segment, FlexibleSegment) or not isinstance(plan, NodesetPlan):
            return ()
        return tuple(reason.detail for reason in plan.explain_reopening(segment))

    def _choose(self, log: LogNode) -> SegmentPlan | None:
        if self._following is None or not fits(self._following, log, self._context):
            self._following = plan_segment(log, self._context)
        return self._following
