"""The log's sequencer: claims a log, recovers what was left, appends, rolls, closes, gives up.

One object per log in a sequencer process. It owns at most one open epoch at a time:
    IDLE → READING → CLAIMING → (RECOVERING → READING)… → (REBUILDING | EARLY) → ACTIVE
    ACTIVE ⇄ DRAINING → CLOSING → ACTIVE (the next epoch) | IDLE
    IDLE → READING → RECOVERING → READING → IDLE    an orphaned log is only closed
    any → IDLE                                      owned by another: queued appends go back
Nothing is sent in a new epoch before all older ones are closed and read; in EARLY (`early_append`)
before all are sealed and bounded, and their recovery goes on beside the writer. Invariants:
 1 a writer exists exactly in EARLY, ACTIVE, DRAINING, CLOSING; recoveries then only in EARLY.
 2 while a writer exists, the log's LCE is its epoch − 1, or it is EARLY and the rest is bounded.
 3 a nonce is kept exactly for changes that may have been applied without our knowing (R3).
 4 only a log with an open segment has a place in the process's queue of rolls.
Source: docs/protocol/metadata.md "Rules for every change", docs/protocol/recovery.md "Takeover",
R2, R3, R18, R19.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from duramen.config import LogConfig
from duramen.core.log_node import Ending
from duramen.core.segment import Segment, SegmentState
from duramen.core.sequencer.append_pipeline import AppendPipeline
from duramen.core.sequencer.effects import (
    CommitOutcome,
    Effect,
    Fail,
    LogView,
    PersistOwed,
    StoredEntry,
)
from duramen.core.sequencer.epoch.segment_end import DrainStep, Fate, SegmentEnd
from duramen.core.sequencer.epoch.segment_writer import AcknowledgedEntry, SegmentWriter
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.log_statistics import statistics_of
from duramen.core.sequencer.own_changes import OwnChanges
from duramen.core.sequencer.proposals import Proposal, propose_new_epoch, rule_of
from duramen.core.sequencer.recovery import Recovery
from duramen.core.sequencer.roll_policy import RollPolicy
from duramen.core.sequencer.shortage import TAKEN_OVER, Shortage, spell_delay
from duramen.core.sequencer.surroundings import Surroundings, make_ports
from duramen.core.sequencer.takeover.older_epochs import UNRECOVERED_EPOCH_MAX, OlderEpochs
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, Member
from duramen.units import MS

_TICK_US = 100 * MS


class LogState(enum.Enum):
    """See the module's head."""

    IDLE = "idle"
    READING = "reading"
    CLAIMING = "claiming"
    RECOVERING = "recovering"
    REBUILDING = "rebuilding"
    EARLY = "early"
    ACTIVE = "active"
    DRAINING = "draining"
    CLOSING = "closing"


_RECOVERERS = (LogState.RECOVERING, LogState.REBUILDING)


class LogSequencer:
    """One log in one sequencer process."""

    def __init__(self, log_id: LogId, around: Surroundings) -> None:
        self.log_id = log_id
        self.state = LogState.IDLE
        self.outbox: list[Effect] = []
        self.writer: SegmentWriter | None = None
        self.view: LogView | None = None
        self.roll_count = self.takeover_count = self.loss_count = 0
        self.reason = ""
        self._around = around
        # Nothing of the core in what its parts are given: it could not go by itself.
        self._ports = make_ports(around, self.outbox.append)
        self.pipeline = AppendPipeline(around, self._ports)
        self.older = OlderEpochs(self._ports, around.unix_ms)
        self.refusal = TAKEN_OVER
        self.changes = OwnChanges(self._ports)
        self._shortage = Shortage()
        self._is_close_only = False
        self._unless_owned = False
        self._ends_here = False
        self._ending: Ending | None = None
        self._was_owner = False
        self._roll: RollPolicy | None = None
        self._end: SegmentEnd | None = None
        self._made_with: LogConfig | None = None

    def take_effects(self) -> list[Effect]:
        """Empty the outbox, once per batch of events."""
        effects = list(self.outbox)
        self.outbox.clear()
        return effects

    # --- requests --------------------------------------------------------------------------------

    @property
    def is_owner(self) -> bool:
        """Whether an append may be queued without a question about ownership."""
        return self.state is not LogState.IDLE and not self._is_close_only

    @property
    def recovery(self) -> Recovery | None:
        """The recovery of the oldest unclosed epoch, if one is under way."""
        return self.older.oldest

    @property
    def is_changing(self) -> bool:
        """Whether appends wait for a change of the nodes that may have been sent."""
        is_replacing = self.writer is not None and self.writer.state is WriterState.CHANGING
        return is_replacing or self.state in (LogState.CLAIMING, LogState.CLOSING)

    def take_over(
        self, now_us: int, *, close_only: bool = False, unless_owned: bool = False
    ) -> None:
        """Begin to own the log, or only to close what a dead owner left (if none is found)."""
        self._unless_owned = unless_owned
        if self.state is not LogState.IDLE:
            self._is_close_only = self._is_close_only and close_only
            return
        self._is_close_only = close_only
        self._ends_here = False
        self.changes.begin_pauses_anew()
        self.refusal = TAKEN_OVER
        self.reason = ""
        self.takeover_count += 1
        self._read()

    def find_fault(self, append: QueuedAppend) -> str | None:
        """Why the log's window has no room for another append, or None."""
        return self.pipeline.find_fault(append, self.writer, self.view)

    def append(self, append: QueuedAppend, now_us: int) -> None:
        """Queue an append; `pump` sends. Refused when the window is full (SEQNOBUF)."""
        if (fault := self.find_fault(append)) is not None:
            self.outbox.append(Fail(append.append_id, "window_full", fault))
            return
        if self._roll is not None:
            self._roll.note_append(now_us)
        self.pipeline.push(append, now_us)

    def pump(self, now_us: int) -> None:
        """Make entries of what waits, as far as the pipeline has room. Call after every batch."""
        writer, is_early = self.writer, self.state is LogState.EARLY
        if writer is None or not (self.state is LogState.ACTIVE or self._is_sending):
            return
        assert self._end is not None and self._roll is not None and self.view is not None
        if not is_early and self._end.is_due(writer, now_us):
            self._ends_here = self.pipeline.is_empty and self._roll.is_idle(now_us)
            self._drain(now_us)
            return
        self.pipeline.send_due(writer, self.view.log, now_us, is_early=is_early)

    def request_roll(self) -> None:
        """Roll as soon as it can be done; the next `pump` or timer begins."""
        if self._roll is not None:
            self._roll.request()

    def on_config(self, config: LogConfig, config_version: int, now_us: int) -> None:
        """The log's stored configuration is `config`, unless a newer version is known.

        What needs a new segment is in force after the roll that begins now, the rest at once.
        """
        self.changes.note_config(config_version, config)
        if self.view is not None:
            self.view = self.changes.with_news(self.view)
        if self.writer is not None and self._end is not None and self.view is not None:
            self._end.configure(self.writer, self.view.log.config)
            self.pump(now_us)

    def stop(self, now_us: int) -> None:
        """Close the open segment in peace and give the log up; IDLE when done."""
        self._ends_here = self._is_close_only = True
        if self.state is LogState.ACTIVE:
            self._drain(now_us)

    def finish(self, ending: Ending, now_us: int) -> None:
        """End or delete the log together with its open segment; IDLE when it took effect.

        ACTIVE again: the window did not drain and nothing took effect. Nothing is open in IDLE, so
        the log node alone is changed then, by whoever was asked.
        """
        if self.state is LogState.IDLE:
            return
        self._ending, self._ends_here = ending, True
        if self.state is LogState.ACTIVE:
            self._drain(now_us)

    def release(self, reason: str = "the sequencer stops", *, loss: int = 0) -> None:
        """Forget the log at once; whoever owns it next recovers the segment."""
        self._give_up(reason, loss=loss)

    # --- results ---------------------------------------------------------------------------------

    def on_add(
        self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus, now_us: int
    ) -> None:
        """A bookie answered an add."""
        if self.state is not LogState.ACTIVE:  # no older epoch is left then (invariant 1)
            self.older.on_add(member, epoch, entry, status, now_us)
            self._follow_older(now_us)
        if self.writer is not None and self.writer.segment.epoch == epoch:
            self._acknowledge(self.writer.on_add(member, entry, status, now_us), now_us)
            self._follow_writer(now_us)

    def on_lac(
        self, member: Member, epoch: Epoch, status: BookieStatus, now_us: int, round_id: int = 0
    ) -> None:
        """A bookie answered an explicit LAC."""
        if self.writer is not None and self.writer.segment.epoch == epoch:
            self.writer.on_lac(member, status, now_us, round_id)
            self._follow_writer(now_us)

    def on_seal(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self, member: Member, epoch: Epoch, status: BookieStatus, lac: EntryId, highest: EntryId,
        now_us: int,
    ) -> None:  # fmt: skip
        """A bookie answered a seal."""
        self.older.on_seal(member, epoch, status, lac, highest, now_us)
        self._follow_older(now_us)

    def on_read(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus,
        stored: StoredEntry | None, now_us: int,
    ) -> None:  # fmt: skip
        """A bookie answered a recovery read."""
        self.older.on_read(member, epoch, entry, status, stored, now_us)
        self._follow_older(now_us)

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """An owed range is recorded for repair."""
        if self.writer is not None and self.writer.segment.ledger_id == owed.ledger_id:
            self.writer.on_owed_persisted(owed)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """A metadata change was applied, refused, or nobody knows."""
        if self.changes.takes(token):
            self._on_own_commit(outcome, now_us)
            return
        self.older.on_commit(token, outcome, now_us)
        self._follow_older(now_us)
        if self.writer is not None:
            self._acknowledge(self.writer.on_commit(token, outcome, now_us), now_us)
            self._follow_writer(now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The log's nodes were read, or could not be."""
        if self.changes.takes(token):
            self._on_own_metadata(view, now_us)
            return
        self.older.on_metadata(token, view, now_us)
        self._follow_older(now_us)
        if self.writer is not None:
            self._acknowledge(self.writer.on_metadata(token, view, now_us), now_us)
            self._follow_writer(now_us)

    def on_segment(self, token: int, segment: Segment | None, now_us: int) -> None:
        """A closed segment's node was read for the state that it carries, or could not be."""
        self.pipeline.carried.on_segment(token, segment, now_us)
        self._follow_rebuild(now_us)

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries of a closed segment were read for their state, or could not be."""
        self.pipeline.carried.on_history(token, entries, now_us)
        self._follow_rebuild(now_us)

    def on_bookies_changed(self, now_us: int) -> None:
        """Bookies came, went or came back."""
        if self.writer is not None:
            assert self._end is not None and self._roll is not None and self.view is not None
            if self._end.is_wider(self.view.log, self.writer):
                self._roll.request()
            self.writer.on_bookies_changed(now_us)
            self._follow_writer(now_us)
        if self.state is LogState.READING and not self._was_owner and self.changes.hasten(now_us):
            self.on_timer(now_us)

    def wakeup_at_us(self, now_us: int) -> int | None:
        """When `on_timer` wants to be called next; asked after every event, so it is short."""
        times = [self.changes.retry_at_us, self.pipeline.carried.wakeup_at_us()]
        if self.older.recoveries:
            times.append(self.older.wakeup_at_us())
        if self.writer is not None:
            times.append(self.writer.wakeup_at_us())
            if self.state is LogState.ACTIVE and self._end is not None:
                times.append(self._end.wakeup_at_us(self.writer, now_us))
            if self.pipeline.queued_count and self._is_sending and self.view is not None:
                times.append(self.pipeline.due_us(self.writer, self.view.log.config.flush))
        is_waited_for = not self.pipeline.is_empty or self.pipeline.held_count
        if is_waited_for or self.state is LogState.DRAINING:
            times.append(now_us + _TICK_US)
        return min([time for time in times if time is not None], default=None)

    def on_timer(self, now_us: int) -> None:
        """Time has passed: deadlines, probes, retries, rolls."""
        code, detail = spell_delay(self)
        is_vain = self._shortage.is_lasting(self, now_us) and not self._around.holds_logs
        self.pipeline.on_timer(now_us, code, detail, is_vain=is_vain)
        self._follow_rebuild(now_us)
        if self.writer is not None:
            self.writer.on_timer(now_us)
            self._follow_writer(now_us)
        self.older.on_timer(now_us)
        self._follow_older(now_us)
        if self.changes.retry_at_us is not None and now_us >= self.changes.retry_at_us:
            self._read(is_look=self.state in _RECOVERERS)
        self.pump(now_us)

    # --- own metadata ----------------------------------------------------------------------------

    def _read(self, *, is_look: bool = False) -> None:
        """Read the nodes for a claim, in CLOSING for the roll, in EARLY for what is closed.

        A look changes nothing by itself: recovering is not owning, and bookies do not tell.
        """
        if not is_look and self.state not in (LogState.EARLY, LogState.CLOSING):
            self.state = LogState.READING
        self.changes.read()

    def _on_own_commit(self, outcome: CommitOutcome, now_us: int) -> None:
        assert self.state in (LogState.CLAIMING, LogState.CLOSING)
        view = self.changes.settle(outcome)
        is_certain = outcome is CommitOutcome.UNAVAILABLE and not self.changes.nonces
        if view is not None:
            self._adopt(view, now_us)
        elif self.state is LogState.CLOSING and is_certain:
            self._call_off(now_us)
        else:
            self._retry_later(now_us)

    def _on_own_metadata(self, view: LogView | None, now_us: int) -> None:
        if view is None:
            if self.state is LogState.CLOSING and not self.changes.nonces:
                self._call_off(now_us)
            elif self.state is LogState.READING and self.reason:
                # Fenced. What was never sent need not wait for the store: others may reach it.
                self._give_up("sealed by another, and the log's nodes cannot be read", loss=1)
            elif self._is_takeover_cut_off:
                self._give_up("the metadata store is away, and the log is not taken over")
            else:
                self._retry_later(now_us)
        elif self.state is LogState.CLOSING:
            self._on_read_for_roll(view, now_us)
        elif self.state is LogState.EARLY:
            self._on_read_while_early(view, now_us)
        else:
            self._on_read_for_claim(view, now_us)

    @property
    def _is_takeover_cut_off(self) -> bool:
        """Nothing of a takeover succeeds without a session; somebody else may have one."""
        is_taking_over = self.state is LogState.READING or self.state in _RECOVERERS
        around = self._around
        return is_taking_over and not (around.is_metadata_reachable or around.holds_logs)

    def _adopt(self, view: LogView, now_us: int) -> None:
        """The `multi()` of a claim or a roll is in force."""
        self.view = self.changes.with_news(view)
        self.changes.begin_pauses_anew()
        if self.state is LogState.CLOSING:
            self._finish_closing(view, now_us)
        else:
            self._was_owner = True
            self._go_on_taking_over(view, now_us)

    def _retry_later(self, now_us: int) -> None:
        if self.state is LogState.CLAIMING:
            self.state = LogState.READING
        self.changes.retry_later(now_us)

    # --- takeover (R2) ---------------------------------------------------------------------------

    def _on_read_for_claim(self, view: LogView, now_us: int) -> None:
        self.view = self.changes.with_news(view)
        if view.log.is_deleted or view.log.is_ended:
            code = "log_deleted" if view.log.is_deleted else "log_ended"
            self.pipeline.fail_queued(code, "the log takes no appends any more")
            self._become_idle()
            return
        mine = self.changes.find_segment(view)
        is_others = view.owner is not None and view.owner.sequencer_id != self._around.sequencer_id
        if mine is None and is_others and (self._was_owner or self._unless_owned):
            # Claiming back at once from whoever took it would be a duel without end, and what was
            # an orphan is none: closing it would seal the epoch of its new owner.
            self._give_up("another sequencer took the log over", loss=int(self._was_owner))
            return
        self._was_owner = mine is not None
        may_claim = not self._is_close_only and len(view.segments) < UNRECOVERED_EPOCH_MAX
        if mine is not None or (view.segments and not may_claim):
            self._go_on_taking_over(view, now_us)
        elif self._is_close_only:
            self._become_idle()
        else:
            self._claim(view, now_us)

    def _claim(self, view: LogView, now_us: int) -> None:
        proposal = propose_new_epoch(view, self._around, now_us)
        if isinstance(proposal, str):
            self.refusal = ("not_enough_bookies", proposal)
            self._retry_later(now_us)
            return
        self.older.clear()  # one that closes meanwhile would read the nodes, not wait for them
        self.state = LogState.CLAIMING
        self.refusal = TAKEN_OVER
        self._made_with = view.log.config
        self.changes.commit(proposal)

    def _go_on_taking_over(self, view: LogView, now_us: int) -> None:
        """Recover the unclosed epochs that are not ours; when none is left, append."""
        self.reason = ""
        mine = self.changes.find_segment(view)
        if mine is not None and view.segments[-1] != mine:
            self._give_up("a newer epoch was opened by another sequencer", loss=1)
        elif mine is not None and view.segments[0] == mine:
            self.state = LogState.REBUILDING
            self._begin_rebuild(view, now_us)
        else:
            self.state = LogState.RECOVERING
            self.changes.look_later(now_us)
            self.older.adopt(view, view.log.next_epoch if mine is None else mine[0].epoch, now_us)
            self._follow_older(now_us)

    def _follow_older(self, now_us: int) -> None:
        if (closed := self.older.take_closed()) is not None:
            # Another may have closed it and gone on meanwhile: what is true now is read.
            self.pipeline.carried.note_recovered(closed.epoch, has_state=closed.may_have_state)
            self._read()
        elif self.state is LogState.RECOVERING and self.older.are_bounded:
            self._begin_early(now_us)

    def _begin_early(self, now_us: int) -> None:
        assert self.view is not None
        mine = self.changes.find_segment(self.view)
        if mine is not None and self.view.log.config.early_append and not self._ends_here:
            self.state = LogState.EARLY
            self._open_writer(*mine, now_us)
            self.pipeline.begin_early()
            self.pump(now_us)

    def _on_read_while_early(self, view: LogView, now_us: int) -> None:
        """An older epoch was closed, or all of them are."""
        assert self.writer is not None
        self.view = self.changes.with_news(view)
        epoch = self.writer.segment.epoch
        if not view.segments or view.segments[-1][0].epoch != epoch:
            self._give_up("a newer epoch was opened by another sequencer", loss=1)
        elif view.segments[-1][0].state is not SegmentState.OPEN:
            self._on_fenced("the segment is no longer open", now_us)
        elif len(view.segments) > 1:
            self.changes.look_later(now_us)
            self.older.adopt(view, epoch, now_us)
        else:
            self._begin_rebuild(view, now_us)

    def _begin_rebuild(self, view: LogView, now_us: int) -> None:
        self.older.clear()
        self.changes.look_later(now_us)
        self.pipeline.carried.begin_rebuild(view.log, now_us)
        self._follow_rebuild(now_us)

    def _follow_rebuild(self, now_us: int) -> None:
        """The state of all older epochs is known: begin to append, or to append whatever comes."""
        if self.state is LogState.REBUILDING and self.pipeline.carried.is_known:
            assert self.view is not None
            mine = self.changes.find_segment(self.view)
            assert mine is not None
            self._activate(*mine, now_us)
        elif self.state is LogState.EARLY and self._is_numbered and self.pipeline.carried.is_known:
            self._begin_active(now_us)

    @property
    def _is_numbered(self) -> bool:
        """Whether every epoch below the writer's is closed, as far as was read."""
        assert self.writer is not None and self.view is not None
        return self.view.log.last_clean_epoch == self.writer.segment.epoch - 1

    def _activate(self, segment: Segment, version: int, now_us: int) -> None:
        self._open_writer(segment, version, now_us)
        self._begin_active(now_us)

    def _open_writer(self, segment: Segment, version: int, now_us: int) -> None:
        assert self.view is not None
        config = self.view.log.config
        self.changes.nonces.clear()
        self.writer = LedgerWriter(
            segment, version, rule=rule_of(self.view.log), commit_delay_us=config.commit_delay,
            owed_bytes_max=config.owed_bytes_max, ports=self._ports,
        )  # fmt: skip
        around = self._around
        self._roll = RollPolicy(config.roll, around.rng, now_us, closes_idle=not around.holds_logs)
        self._end = SegmentEnd(self.view.log, self._made_with or config, self._roll, around)
        self._end.configure(self.writer, config)

    def _begin_active(self, now_us: int) -> None:
        assert self.view is not None
        self.state = LogState.ACTIVE
        self.changes.rest()
        self.pipeline.begin(self.view.log)
        if self._ends_here:
            self._drain(now_us)
        self.pump(now_us)

    # --- append ----------------------------------------------------------------------------------

    @property
    def _is_sending(self) -> bool:
        if self.state is not LogState.EARLY:
            return self.state is LogState.ACTIVE
        return self.view is not None and self.view.log.config.early_append and not self._ends_here

    def _acknowledge(self, entries: Sequence[AcknowledgedEntry], now_us: int) -> None:
        if entries:
            assert self.writer is not None and self.view is not None
            self.pipeline.acknowledge(self.writer, self.view.log, entries, now_us)
            self._shortage.end()

    def _follow_writer(self, now_us: int) -> None:
        if self.writer is None or self.state is LogState.CLOSING:
            # After a closing `multi()` was sent its fate alone decides (R19).
            return
        if self.writer.state is WriterState.FENCED:
            self._on_fenced(self.writer.fence_reason, now_us)
            return
        self.pipeline.admission.settle(self.writer)
        if self.state is LogState.DRAINING:
            self._go_on_draining(now_us)
        self.pump(now_us)

    def _on_fenced(self, reason: str, now_us: int) -> None:
        """Somebody recovers the epoch: what was sent is uncertain, the rest may go to a new one."""
        self.reason = reason
        self.pipeline.abandon(reason)
        self._forget_writer()
        self.older.clear()
        self.state = LogState.READING
        self._was_owner = True
        # The pause is what keeps re-activations at 5 a second at most (docs/protocol/recovery.md
        # "Takeover").
        self.changes.begin_pauses_anew()
        self._retry_later(now_us)
        if not self._around.is_metadata_reachable:
            self._give_up(f"{reason}, and the metadata store is away", loss=1)

    # --- roll and close (R19) --------------------------------------------------------------------

    def _drain(self, now_us: int) -> None:
        assert self._end is not None
        self.state = LogState.DRAINING
        assert self.writer is not None
        self.pipeline.end_segment(self.writer, now_us)
        self._end.start(now_us)
        self._go_on_draining(now_us)

    def _go_on_draining(self, now_us: int) -> None:
        """Once everything is acknowledged, and stored or recorded as owed, read the nodes."""
        assert self._end is not None and self.writer is not None
        match self._end.drain(self.writer, now_us, must_close=self._is_close_only):
            case DrainStep.CALL_OFF:
                self._call_off(now_us)
            case DrainStep.WAIT:
                pass
            case DrainStep.CLOSE:
                self.writer.hold()
                self.pipeline.requeue_refusals()
                self.state = LogState.CLOSING
                self._read()

    def _call_off(self, now_us: int) -> None:
        """Nothing that closes can have been applied: the epoch goes on, a roll comes later."""
        assert not self.changes.nonces, self
        if self._is_close_only:
            self._give_up("the segment could not be closed in time")
            return
        self._ends_here, self._ending = False, None
        assert self.writer is not None and self._end is not None and self._roll is not None
        self._end.leave()
        if self.writer.wants_roll and self.writer.window:
            # It keeps its ensemble, so what a lost member should hold is never acknowledged.
            self._on_fenced("a bookie is lost, and an out_of_order segment keeps its own", now_us)
            return
        self.state = LogState.ACTIVE
        self.writer.release()
        self._roll.postpone(now_us)
        self._follow_writer(now_us)

    def _on_read_for_roll(self, view: LogView, now_us: int) -> None:
        """The nodes before the closing `multi()`, or after one of unknown fate."""
        writer = self.writer
        assert writer is not None and not writer.window and self._end is not None
        match self._end.judge(view, writer, self.changes.nonces):
            case Fate.OURS:
                self._adopt(view, now_us)
            case Fate.OURS_IN_PART:
                self._retry_later(now_us)
            case Fate.LOST:
                self._give_up("another sequencer took the log over", loss=1)
            case Fate.OPEN:
                self.view = self.changes.with_news(view)
                self._made_with = view.log.config
                if (proposal := self._propose_end(view, writer, now_us)) is None:
                    self._call_off(now_us)
                else:
                    self.changes.commit(proposal)

    def _propose_end(self, view: LogView, writer: SegmentWriter, now_us: int) -> Proposal | None:
        assert self._end is not None
        # A log that is given up closes, whatever waits: that goes to its next owner.
        is_wanted = bool(self.pipeline.queued_count) and not self._is_close_only
        return self._end.propose(
            view,
            writer,
            now_us,
            opens_next=is_wanted or not self._ends_here,
            # A change of unknown fate may close the segment at any time: then only a close is sure.
            may_stay=not self.changes.nonces,
            ending=self._ending,
            snapshot_lsn=self.pipeline.snapshot_at_close(writer.segment.epoch),
        )

    def _finish_closing(self, view: LogView, now_us: int) -> None:
        """The roll is in force: go on in the next epoch, or idle if there is none."""
        assert self.writer is not None
        self.pipeline.carried.on_closed(self.writer.segment.epoch)
        self._forget_writer()
        self.roll_count += 1
        mine = self.changes.find_segment(view)
        if mine is not None and view.segments == (mine,):
            self._ends_here = self._is_close_only or self._ending is not None
            self._activate(*mine, now_us)
        else:
            self._become_idle()

    def _forget_writer(self) -> None:
        if self._end is not None:
            self._end.leave()
        self.writer = self._roll = self._end = None

    # --- giving up -------------------------------------------------------------------------------

    def _give_up(self, reason: str, *, loss: int = 0) -> None:
        """Another owns the log, or we stop: what was sent is uncertain, the rest goes elsewhere."""
        self.reason = reason
        self.loss_count += loss
        self.pipeline.abandon(reason)
        self._become_idle()

    def _become_idle(self) -> None:
        self.state = LogState.IDLE
        self._forget_writer()
        self.older.clear()
        self._was_owner, self._ending = False, None
        self.changes.forget()
        self.pipeline.yield_queued()

    def statistics(self) -> dict[str, object]:
        """What waits and what was done, for the admin API."""
        return statistics_of(self)

    def validate(self) -> None:
        """Assert invariants 1 to 4, and those of the parts."""
        with_writer = (LogState.EARLY, LogState.ACTIVE, LogState.DRAINING, LogState.CLOSING)
        assert (self.writer is not None) == (self.state in with_writer), f"1: {self}"
        is_early = self.state is LogState.EARLY
        assert self.writer is None or is_early or not self.older.recoveries, f"1: {self}"
        for part in (self.pipeline, self.older, self.changes):
            part.validate()
        if self.writer is not None:
            self.writer.validate()
            assert self._is_numbered or (is_early and self.older.are_bounded), f"2: {self}"
        if self.state in (LogState.IDLE, LogState.EARLY, LogState.ACTIVE, LogState.DRAINING):
            assert not self.changes.nonces, f"3: {self}"
        assert self.writer is not None or self.log_id not in self._around.rolls, f"4: {self}"

    def __repr__(self) -> str:
        inside = " ".join(map(repr, filter(None, (self.writer, *self.older.recoveries))))
        return f"<log {self.log_id} {self.state.value} {inside} {self.pipeline}>"
