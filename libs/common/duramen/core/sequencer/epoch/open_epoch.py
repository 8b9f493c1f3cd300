"""The one epoch that a log's sequencer has open: its writer, when it ends, and how it is closed.

    EARLY → ACTIVE ⇄ DRAINING → CLOSING → closed
    EARLY    older epochs are still being recovered beside it: appends get no numbers yet
    ACTIVE   appends are judged, numbered and sent
    DRAINING nothing new is sent; the window empties, or the close is called off (back to ACTIVE)
    CLOSING  its `multi()` is being made, or its fate looked for; that alone decides (R19)
All that exists exactly while an epoch is open is held here, so it comes and goes as one.

Not here: the next epoch, and what becomes of appends when this one is lost (`log_sequencer`).
Source: docs/protocol/write.md "Roll", R3, R19.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.config import LogConfig
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.flexible.selector import CopysetSelector
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.log_node import LogNode
from duramen.core.segment import Totals
from duramen.core.sequencer.append_pipeline import AppendPipeline
from duramen.core.sequencer.context import Ports, SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, LogView
from duramen.core.sequencer.epoch.segment_end import CloseFate, DrainStep, SegmentEnd
from duramen.core.sequencer.epoch.segment_writer import AcknowledgedEntry, SegmentWriter
from duramen.core.sequencer.epoch.stall_watch import StallWatch
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.log_state import (
    Closed,
    Fenced,
    GivenUp,
    Intent,
    LogState,
    Outcome,
    Stalled,
    find_loss,
)
from duramen.core.sequencer.own_changes import OwnChanges
from duramen.core.sequencer.proposals import Proposal, rule_of
from duramen.core.sequencer.roll_policy import RollPolicy
from duramen.ids import NOTHING, EntryId
from duramen.units import SECOND

_MODE_TICK_US: Final = 1 * SECOND
"""How often a segment of the other mode asks whether it may end: producers may be many."""


def make_writer(segment: AnySegment, version: int, log: LogNode, ports: Ports) -> SegmentWriter:
    """What replicates a segment that was just opened."""
    if isinstance(segment, FlexibleSegment):
        selector = CopysetSelector(
            segment.own_nodes, segment.replication, ports.rng, is_sticky=log.config.sticky
        )
        return WaveWriter(
            segment, version, selector, commit_delay_us=log.config.commit_delay, ports=ports
        )
    return LedgerWriter(
        segment,
        version,
        rule=rule_of(log),
        commit_delay_us=log.config.commit_delay,
        owed_bytes_max=log.config.owed_bytes_max,
        ports=ports,
    )


class OpenEpoch:
    """One open epoch of one log.

    Args:
        writer: of its segment, which is empty.
        changes, pipeline: of the log.

    Attributes:
        number: the epoch.
        acknowledged: the highest entry that is, with the totals up to it.
    """

    def __init__(  # noqa: PLR0917 - the parts of the log that it works with
        self,
        writer: SegmentWriter,
        context: SequencerContext,
        changes: OwnChanges,
        pipeline: AppendPipeline,
        intent: Intent,
        now_us: int,
    ) -> None:
        self.state = LogState.EARLY
        self.writer = writer
        self.number = writer.segment.epoch
        self.acknowledged: tuple[EntryId, Totals] = (NOTHING, Totals())
        self._changes = changes
        self._pipeline = pipeline
        self._intent = intent
        log = self._log
        self._roll = RollPolicy(
            log.config.roll, context.rng, now_us, closes_idle=not context.holds_logs
        )
        self._end = SegmentEnd(writer, log, changes.made_with, self._roll, context)
        self._end.configure(log.config)
        self._stall = StallWatch(writer, context)
        self._mode_due_us = now_us
        """When to ask again whether the epoch may make way for one of the other mode."""

    @property
    def _log(self) -> LogNode:
        """As it is with this epoch open."""
        view = self._changes.view
        assert view is not None
        return view.log

    @property
    def is_numbered(self) -> bool:
        """Whether every epoch below this one is closed, as far as was read."""
        return self._log.last_clean_epoch == self.number - 1

    @property
    def reopening(self) -> tuple[str, ...]:
        """What the next segment is to have otherwise, once this one drains; for people."""
        return self._end.reopening

    # --- appends ---------------------------------------------------------------------------------

    def begin_active(self, now_us: int) -> Outcome | None:
        """Every older epoch is closed and its state known: appends are judged and numbered."""
        self.state = LogState.ACTIVE
        self._changes.rest()
        self._pipeline.begin(self._log)
        outcome = self.drain(now_us) if self._intent.ends_here else None
        return outcome or self.pump(now_us)

    def note_append(self, now_us: int) -> None:
        """Somebody appends: the log is not idle."""
        self._roll.note_append(now_us)

    def note_acknowledged(self, entries: Sequence[AcknowledgedEntry]) -> None:
        """These are, in whatever order."""
        for one in entries:
            if one.entry > self.acknowledged[0]:
                self.acknowledged = (one.entry, one.totals)

    def pump(self, now_us: int) -> Outcome | None:
        """Make entries of what waits, as far as the writer has room; or begin to drain."""
        is_active = self.state is LogState.ACTIVE
        if is_active and self._awaits_mode:
            self._ask_for_mode(now_us)
        if is_active and self._end.is_due(now_us):
            self._intent.ends_here = self._pipeline.is_empty and self._roll.is_idle(now_us)
            return self.drain(now_us)
        if is_active or self._is_sending_early:
            self._pipeline.send_due(self.writer, self._log, now_us, is_early=not is_active)
        return None

    @property
    def _awaits_mode(self) -> bool:
        """Whether the configuration wants another `ack_mode` than the segment has (R29)."""
        return self._log.config.ack_mode != self.writer.segment.ack_mode

    def _ask_for_mode(self, now_us: int) -> None:
        """Roll as soon as the next epoch may have the mode that is wanted."""
        if now_us >= self._mode_due_us:
            self._mode_due_us = now_us + _MODE_TICK_US
            if self._pipeline.may_change_mode(self._log.config.ack_mode, now_us):
                self._roll.request()

    @property
    def _is_sending_early(self) -> bool:
        is_early = self.state is LogState.EARLY
        return is_early and self._log.config.early_append and not self._intent.ends_here

    def follow_writer(self, now_us: int) -> Outcome | None:
        """The writer heard something: act on it."""
        if self.state is LogState.CLOSING:
            # After a closing `multi()` was sent its fate alone decides (R19).
            return None
        if self.writer.state is WriterState.FENCED:
            return Fenced(self.writer.fence_reason)
        self._pipeline.admission.settle(self.writer)
        outcome = self._go_on_draining(now_us) if self.state is LogState.DRAINING else None
        return outcome or self.pump(now_us)

    def on_bookies_changed(self, now_us: int) -> Outcome | None:
        """Bookies came, went or came back."""
        if self._end.is_wider(self._log):
            self._roll.request()
        self.writer.on_bookies_changed(now_us)
        return self.follow_writer(now_us)

    def on_timer(self, now_us: int) -> Outcome | None:
        """Time has passed. While bookies are missing, only the nodes may tell that it is lost
        (docs/protocol/ownership.md "A deposed owner that nobody tells").
        """
        self.writer.on_timer(now_us)
        if self._is_short and self.state is not LogState.EARLY:
            self._changes.look_later(now_us)
        outcome = self.follow_writer(now_us)
        if (
            outcome is None
            and self.state is LogState.ACTIVE
            and self._stall.is_due(self._log, now_us)
        ):
            return Stalled("an entry stayed incomplete, and another nodeset may do")
        return outcome

    @property
    def _is_short(self) -> bool:
        """Whether bookies are missing: nothing is acknowledged, or the segment has to end."""
        return self.writer.lacks_ack_set or self.writer.wants_roll

    def read_again(self) -> None:
        """A pause in closing is over, or it is time for a look, if bookies are missing still."""
        if self.state is LogState.CLOSING:
            self._changes.read()
        elif self._is_short:
            self._changes.read(is_look=True)
        else:
            self._changes.rest()

    def on_lists_changed(self, now_us: int) -> Outcome | None:
        """Other logs found bookies silent or full."""
        self.writer.on_lists_changed(now_us)
        return self.follow_writer(now_us)

    def configure(self, config: LogConfig) -> None:
        """The log's configuration holds at once where it can, else after a roll."""
        self._end.configure(config)

    def request_roll(self) -> None:
        """Roll as soon as it can be done."""
        self._roll.request()

    def list_wakeups_us(self, now_us: int) -> list[int | None]:
        """When something is due here."""
        times = [self.writer.wakeup_at_us()]
        is_active = self.state is LogState.ACTIVE
        if is_active:
            times += [self._end.wakeup_at_us(now_us), self._stall.wakeup_at_us(self._log)]
            times += [self._mode_due_us] * self._awaits_mode
        if self._pipeline.queued_count and (is_active or self._is_sending_early):
            times.append(self._pipeline.due_us(self.writer, self._log.config.flush))
        return times

    # --- its end (R19) ---------------------------------------------------------------------------

    def drain(self, now_us: int) -> Outcome | None:
        """Begin to close: what the next owner must know is sent, and nothing after it."""
        self.state = LogState.DRAINING
        self._pipeline.end_segment(self.writer, now_us)
        self._end.start(now_us)
        return self._go_on_draining(now_us)

    def _go_on_draining(self, now_us: int) -> Outcome | None:
        """Once everything is acknowledged, and stored or recorded as owed, read the nodes."""
        match self._end.drain(now_us, must_close=self._intent.is_close_only):
            case DrainStep.CALL_OFF:
                return self._call_off(now_us)
            case DrainStep.WAIT:
                pass
            case DrainStep.CLOSE:
                self.writer.hold()
                self._pipeline.requeue_refusals()
                self.state = LogState.CLOSING
                self._changes.read()
        return None

    def _call_off(self, now_us: int) -> Outcome | None:
        """Nothing that closes can have been applied: the epoch goes on, a roll comes later."""
        assert not self._changes.nonces, self
        if self._intent.is_close_only:
            return GivenUp("the segment could not be closed in time")
        self._intent.go_on()
        self._end.leave()
        if self.writer.keeps_lost_members:
            return Stalled("a bookie is lost, and an out_of_order segment keeps its own")
        self.state = LogState.ACTIVE
        self.writer.release()
        self._roll.postpone(now_us)
        return self.follow_writer(now_us)

    def on_metadata(self, view: LogView | None, now_us: int) -> Outcome | None:
        """The nodes before the closing `multi()`, after one of unknown fate, or for a look."""
        if self.state is not LogState.CLOSING:
            return None if view is None else find_loss(view, self.number)
        if view is None:
            return self._on_unsent(now_us)
        assert not self.writer.window, self
        match self._end.judge(view, self._changes.nonces):
            case CloseFate.OURS:
                return Closed(view)
            case CloseFate.OURS_IN_PART:
                self._changes.retry_later(now_us)
            case CloseFate.LOST:
                return GivenUp("another sequencer took the log over", 1)
            case CloseFate.OPEN:
                self._changes.learn(view)
                if (proposal := self._propose(view, now_us)) is None:
                    return self._call_off(now_us)
                self._changes.commit(proposal)
        return None

    def on_commit(self, outcome: CommitOutcome, now_us: int) -> Outcome | None:
        """The closing `multi()` was applied, refused, or nobody knows."""
        assert self.state is LogState.CLOSING, self
        view = self._changes.settle(outcome)
        if view is not None:
            return Closed(view)
        if outcome is CommitOutcome.UNAVAILABLE:
            return self._on_unsent(now_us)
        self._changes.retry_later(now_us)
        return None

    def _on_unsent(self, now_us: int) -> Outcome | None:
        """The store is away. Unless an earlier close may be applied yet, the epoch goes on."""
        if not self._changes.nonces:
            return self._call_off(now_us)
        self._changes.retry_later(now_us)
        return None

    def _propose(self, view: LogView, now_us: int) -> Proposal | None:
        # A log that is given up closes, whatever waits: that goes to its next owner.
        is_wanted = bool(self._pipeline.queued_count) and not self._intent.is_close_only
        return self._end.propose(
            view,
            now_us,
            opens_next=is_wanted or not self._intent.ends_here,
            # A change of unknown fate may close the segment at any time: then only a close is sure.
            may_stay=not self._changes.nonces,
            ending=self._intent.ending,
            snapshot_lsn=self._pipeline.snapshot_at_close(self.number),
        )

    def leave(self) -> None:
        """It is closed, or lost: other logs of the process may roll now."""
        self._end.leave()

    def __repr__(self) -> str:
        return f"<epoch {self.state.value} {self.writer}>"
