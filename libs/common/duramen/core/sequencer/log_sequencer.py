"""The log's sequencer: claims a log, recovers what was left, appends, rolls, closes, gives up.

One object per log in a sequencer process. What it has decides which state it is in:
    nothing          IDLE
    a takeover       READING → CLAIMING → RECOVERING → REBUILDING    (`takeover.takeover`)
    both             EARLY: older epochs are recovered beside our open one (`early_append`)
    an open epoch    ACTIVE ⇄ DRAINING → CLOSING                     (`epoch.open_epoch`)
An event goes to the part that it concerns. What the part comes to (`Outcome`) is acted on here:
    Opened → EARLY           our epoch is open; the takeover goes on beside it
    TakenOver → ACTIVE       every older epoch is closed and known
    Closed → ACTIVE | IDLE   in the next epoch, if the roll opened one
    Fenced → READING         another recovers our epoch: what was sent is uncertain, we look again
    Stalled → READING        we give it to recovery ourselves, and learn the fate of what was sent
    GivenUp | Left → IDLE    the log is another's, or nothing is left to do here
Source: docs/protocol/recovery.md "Takeover", docs/protocol/write.md "Roll", R2, R3, R18, R19.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.config import LogConfig
from duramen.core.flexible.recovery import Digest
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import Ending
from duramen.core.sequencer.append_pipeline import AppendPipeline
from duramen.core.sequencer.context import SequencerContext, make_ports
from duramen.core.sequencer.effects import (
    CommitOutcome,
    Effect,
    Fail,
    LogView,
    PersistOwed,
    StoredEntry,
)
from duramen.core.sequencer.epoch.open_epoch import OpenEpoch, make_writer
from duramen.core.sequencer.epoch.segment_writer import AcknowledgedEntry, SegmentWriter
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.log_state import (
    Closed,
    Fenced,
    GivenUp,
    Intent,
    Left,
    LogState,
    Opened,
    Outcome,
    Stalled,
    TakenOver,
)
from duramen.core.sequencer.own_changes import OwnChanges
from duramen.core.sequencer.shortage import TAKEN_OVER, Refusal, Shortage, format_delay
from duramen.core.sequencer.takeover.older_epochs import AnyRecovery, OlderEpochs
from duramen.core.sequencer.takeover.takeover import Takeover
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, Member
from duramen.units import MS

_TICK_US = 100 * MS


class LogSequencer:
    """One log in one sequencer process.

    Nothing is sent in a new epoch before all older ones are closed and read; in EARLY before all
    are sealed and bounded. Invariants (checked by `validate`):
     1 a takeover and an open epoch are there together exactly in EARLY; recoveries need a takeover.
     2 while an epoch is open, the log's LCE is the one below, or it is EARLY and the rest bounded.
     3 a nonce is kept exactly for changes that may have been applied without our knowing (R3).
     4 only a log with an open epoch has a place in the process's queue of rolls.
    """

    def __init__(self, log_id: LogId, context: SequencerContext) -> None:
        self.log_id = log_id
        self.outbox: list[Effect] = []
        self.roll_count = self.takeover_count = self.loss_count = self.stall_count = 0
        self.takeover: Takeover | None = None
        self.open_epoch: OpenEpoch | None = None
        self._context = context
        # Nothing of the core in what its parts are given: it could not go by itself.
        self._ports = make_ports(context, self.outbox.append)
        self.pipeline = AppendPipeline(context, self._ports)
        self.older = OlderEpochs(self._ports, context.unix_ms)
        self.changes = OwnChanges(log_id, self._ports)
        self.intent = Intent()
        self._shortage = Shortage()
        self._reason = ""

    def take_effects(self) -> list[Effect]:
        """Empty the outbox, once per batch of events."""
        effects = list(self.outbox)
        self.outbox.clear()
        return effects

    # --- questions -------------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        """See the module's head."""
        if self.open_epoch is not None:
            return self.open_epoch.state
        return LogState.IDLE if self.takeover is None else self.takeover.state

    @property
    def view(self) -> LogView | None:
        """The log's nodes as far as they are known here."""
        return self.changes.view

    @property
    def writer(self) -> SegmentWriter | None:
        """Of the open epoch."""
        return None if self.open_epoch is None else self.open_epoch.writer

    @property
    def recovery(self) -> AnyRecovery | None:
        """The recovery of the oldest unclosed epoch, if one is under way."""
        return self.older.oldest

    @property
    def reason(self) -> str:
        """Why the open epoch was lost, or the log given up; empty: it was not."""
        return self._reason if self.takeover is None else self.takeover.reason

    @property
    def is_owner(self) -> bool:
        """Whether an append may be queued without a question about ownership."""
        return self.state is not LogState.IDLE and not self.intent.is_close_only

    @property
    def knows_state(self) -> bool:
        """Whether producers and token of the log are known here."""
        return self.open_epoch is not None and self.takeover is None

    @property
    def is_changing(self) -> bool:
        """Whether appends wait for a change of the nodes that may have been sent."""
        is_replacing = self.writer is not None and self.writer.state is WriterState.CHANGING
        return is_replacing or self.state in (LogState.CLAIMING, LogState.CLOSING)

    @property
    def refusal(self) -> Refusal:
        """What appends are told while no epoch is open."""
        return TAKEN_OVER if self.takeover is None else self.takeover.refusal

    def format_delay(self) -> Refusal:
        """What an append that was not sent has been waiting for."""
        if self.writer is None:
            return self.refusal
        is_held = self.pipeline.held_count > 0
        return format_delay(self.writer, is_changing=self.is_changing, is_held=is_held)

    def find_fault(self, append: QueuedAppend) -> str | None:
        """Why the log's window has no room for another append, or None."""
        return self.pipeline.find_fault(append, self.writer, self.view)

    # --- requests --------------------------------------------------------------------------------

    def take_over(
        self, now_us: int, *, close_only: bool = False, unless_owned: bool = False
    ) -> None:
        """Begin to own the log, or only to close what a dead owner left (if none is found)."""
        if self.state is not LogState.IDLE:
            self.intent.unless_owned = unless_owned
            self.intent.is_close_only = self.intent.is_close_only and close_only
            return
        self.intent = Intent(close_only, unless_owned)
        self._reason = ""
        self.takeover_count += 1
        self._begin_takeover("").read()

    def append(self, append: QueuedAppend, now_us: int) -> None:
        """Queue an append; `pump` sends. Refused when the window is full (SEQNOBUF)."""
        if (fault := self.find_fault(append)) is not None:
            self.outbox.append(Fail(append.append_id, "window_full", fault))
            return
        if self.open_epoch is not None:
            self.open_epoch.note_append(now_us)
        self.pipeline.push(append, now_us)

    def pump(self, now_us: int) -> None:
        """Make entries of what waits, as far as the pipeline has room. Call after every batch."""
        if self.open_epoch is not None:
            self._follow(self.open_epoch.pump(now_us), now_us)

    def request_roll(self) -> None:
        """Roll as soon as it can be done; the next `pump` or timer begins."""
        if self.open_epoch is not None:
            self.open_epoch.request_roll()

    def on_config(self, config: LogConfig, config_version: int, now_us: int) -> None:
        """The log's stored configuration is `config`, unless a newer version is known.

        What needs a new segment is in force after the roll that begins now, the rest at once.
        """
        self.changes.note_config(config_version, config)
        if self.open_epoch is not None and self.view is not None:
            self.open_epoch.configure(self.view.log.config)
            self.pump(now_us)

    def stop(self, now_us: int) -> None:
        """Close the open segment in peace and give the log up; IDLE when done."""
        self.intent.stop()
        self._drain_if_active(now_us)

    def finish(self, ending: Ending, now_us: int) -> None:
        """End or delete the log together with its open segment; IDLE when it took effect.

        ACTIVE again: the window did not drain and nothing took effect. Nothing is open in IDLE, so
        the log node alone is changed then, by whoever was asked.
        """
        if self.state is not LogState.IDLE:
            self.intent.finish(ending)
            self._drain_if_active(now_us)

    def _drain_if_active(self, now_us: int) -> None:
        if self.open_epoch is not None and self.state is LogState.ACTIVE:
            self._follow(self.open_epoch.drain(now_us), now_us)

    def release(self, reason: str = "the sequencer stops", *, loss: int = 0) -> None:
        """Forget the log at once; whoever owns it next recovers the segment."""
        self._give_up(reason, loss)

    # --- answers of bookies ----------------------------------------------------------------------

    def on_add(
        self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus, now_us: int
    ) -> None:
        """A bookie answered an add: of the open epoch, or a write-back to an older one."""
        if self.takeover is not None:
            self.older.on_add(member, epoch, entry, status, now_us)
            self._follow_older(now_us)
        if (ours := self.open_epoch) is not None and ours.number == epoch:
            self._acknowledge(ours, ours.writer.on_add(member, entry, status, now_us), now_us)

    def on_lac(
        self, member: Member, epoch: Epoch, status: BookieStatus, now_us: int, round_id: int = 0
    ) -> None:
        """A bookie answered an explicit LAC."""
        if (ours := self.open_epoch) is not None and ours.number == epoch:
            ours.writer.on_lac(member, status, now_us, round_id)
            self._follow(ours.follow_writer(now_us), now_us)

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

    def on_digest(
        self, member: Member, epoch: Epoch, status: BookieStatus, digest: Digest | None, now_us: int
    ) -> None:
        """A bookie told what it has of an epoch that is being recovered."""
        self.older.on_digest(member, epoch, status, digest, now_us)
        self._follow_older(now_us)

    def on_bookies_changed(self, now_us: int) -> None:
        """Bookies came, went or came back."""
        if self.open_epoch is not None:
            self._follow(self.open_epoch.on_bookies_changed(now_us), now_us)
        elif self.takeover is not None and self.takeover.hasten(now_us):
            self.on_timer(now_us)

    def on_lists_changed(self, now_us: int) -> None:
        """Other logs of the process found bookies silent or full (R27)."""
        if self.open_epoch is not None:
            self._follow(self.open_epoch.on_lists_changed(now_us), now_us)

    # --- answers of the metadata store -----------------------------------------------------------

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """A metadata change was applied, refused, or nobody knows."""
        if self.changes.takes(token):
            self._follow(self._changing_part.on_commit(outcome, now_us), now_us)
            return
        self.older.on_commit(token, outcome, now_us)
        self._follow_older(now_us)
        if (ours := self.open_epoch) is not None:
            self._acknowledge(ours, ours.writer.on_commit(token, outcome, now_us), now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The log's nodes were read, or could not be."""
        if self.changes.takes(token):
            self._follow(self._changing_part.on_metadata(view, now_us), now_us)
            return
        self.older.on_metadata(token, view, now_us)
        self._follow_older(now_us)
        if (ours := self.open_epoch) is not None:
            self._acknowledge(ours, ours.writer.on_metadata(token, view, now_us), now_us)

    @property
    def _changing_part(self) -> Takeover | OpenEpoch:
        """Which of the two reads and changes the log's nodes: a takeover, as long as there is one,
        else the open epoch.
        """
        part = self.takeover or self.open_epoch
        assert part is not None, self
        return part

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """An owed range is recorded for repair."""
        if self.writer is not None and self.writer.segment.ledger_id == owed.ledger_id:
            self.writer.on_owed_persisted(owed)

    def on_segment(self, token: int, segment: AnySegment | None, now_us: int) -> None:
        """A closed segment's node was read for the state that it carries, or could not be."""
        self.pipeline.carried.on_segment(token, segment, now_us)
        self.pipeline.stalled.on_segment(token, segment)
        self._follow_rebuild(now_us)

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries of a closed segment were read for their state, or could not be."""
        self.pipeline.carried.on_history(token, entries, now_us)
        self._follow_rebuild(now_us)

    # --- time ------------------------------------------------------------------------------------

    def wakeup_at_us(self, now_us: int) -> int | None:
        """When `on_timer` wants to be called next; asked after every event, so it is short."""
        times = [self.changes.retry_at_us, self.pipeline.carried.wakeup_at_us()]
        if self.older.recoveries:
            times.append(self.older.wakeup_at_us())
        if self.open_epoch is not None:
            times += self.open_epoch.list_wakeups_us(now_us)
        is_waited_for = not self.pipeline.is_empty or self.pipeline.held_count
        if is_waited_for or self.state is LogState.DRAINING:
            times.append(now_us + _TICK_US)
        return min([time for time in times if time is not None], default=None)

    def on_timer(self, now_us: int) -> None:
        """Time has passed: deadlines, probes, retries, rolls."""
        code, detail = self.format_delay()
        is_short = self._shortage.is_lasting(self.writer, self.refusal, now_us)
        is_vain = is_short and not self._context.holds_logs
        self.pipeline.on_timer(now_us, code, detail, is_vain=is_vain)
        self._follow_rebuild(now_us)
        if self.open_epoch is not None:
            self._follow(self.open_epoch.on_timer(now_us), now_us)
        self.older.on_timer(now_us)
        self._follow_older(now_us)
        if self.changes.retry_at_us is not None and now_us >= self.changes.retry_at_us:
            self._changing_part.read_again()
        self.pump(now_us)

    # --- what the parts come to ------------------------------------------------------------------

    def _follow_older(self, now_us: int) -> None:
        if self.takeover is not None:
            self._follow(self.takeover.follow_older(), now_us)

    def _follow_rebuild(self, now_us: int) -> None:
        if self.takeover is not None:
            self._follow(self.takeover.follow_rebuild(), now_us)

    def _acknowledge(
        self, ours: OpenEpoch, entries: Sequence[AcknowledgedEntry], now_us: int
    ) -> None:
        """The writer heard something, and these entries are acknowledged by it."""
        if entries:
            assert self.view is not None
            ours.note_acknowledged(entries)
            self.pipeline.acknowledge(ours.writer, self.view.log, entries, now_us)
            self._shortage.end()
        self._follow(ours.follow_writer(now_us), now_us)

    def _follow(self, outcome: Outcome | None, now_us: int) -> None:
        match outcome:
            case None:
                pass
            case Opened(segment, version):
                self._open(segment, version, now_us)
                self.pipeline.begin_early()
                self.pump(now_us)
            case TakenOver(segment, version):
                self.takeover = None
                self._context.stalls.leave(self.log_id)
                ours = self.open_epoch or self._open(segment, version, now_us)
                self._follow(ours.begin_active(now_us), now_us)
            case Closed(view):
                self._on_closed(view, now_us)
            case Fenced(reason):
                self._on_fenced(reason, now_us)
            case Stalled(reason):
                self._on_stalled(reason, now_us)
            case GivenUp(reason, loss_count):
                self._give_up(reason, loss_count)
            case Left(code):
                if code is not None:
                    self.pipeline.fail_queued(code, "the log takes no appends any more")
                self._become_idle(self.reason)

    def _begin_takeover(self, reason: str) -> Takeover:
        self.changes.begin_pauses_anew()
        carried = self.pipeline.carried
        self.takeover = Takeover(
            self._context, self.changes, self.older, carried, self.intent,
            stalled=self.pipeline.stalled, reason=reason,
        )  # fmt: skip
        return self.takeover

    def _open(self, segment: AnySegment, version: int, now_us: int) -> OpenEpoch:
        assert self.view is not None and self.open_epoch is None
        self.changes.nonces.clear()
        writer = make_writer(segment, version, self.view.log, self._ports)
        self.open_epoch = OpenEpoch(
            writer, self._context, self.changes, self.pipeline, self.intent, now_us
        )
        return self.open_epoch

    def _on_closed(self, view: LogView, now_us: int) -> None:
        """The roll is in force: go on in the next epoch, or idle if there is none."""
        assert self.open_epoch is not None
        self.changes.learn(view)
        self.changes.begin_pauses_anew()
        self.pipeline.carried.on_closed(self.open_epoch.number)
        self._context.stalls.leave(self.log_id)
        self._forget_epoch()
        self.roll_count += 1
        mine = self.changes.find_segment(view)
        if mine is not None and view.segments == (mine,):
            self.intent.ends_here = self.intent.is_close_only or self.intent.ending is not None
            ours = self._open(*mine, now_us)
            self._follow(ours.begin_active(now_us), now_us)
        else:
            self._become_idle("")

    def _on_fenced(self, reason: str, now_us: int) -> None:
        """Somebody recovers the epoch: what was sent is uncertain, the rest may go to a new one."""
        self.pipeline.abandon(reason)
        self._context.stalls.leave(self.log_id)
        self._forget_epoch()
        self.older.clear()
        # The pause is what keeps re-activations at 5 a second at most (docs/protocol/recovery.md
        # "Takeover").
        self._begin_takeover(reason)
        self.changes.retry_later(now_us)
        if not self._context.is_metadata_reachable:
            self._give_up(f"{reason}, and the metadata store is away", 1)

    def _on_stalled(self, reason: str, now_us: int) -> None:
        """Too few bookies of our nodeset answer: the next epoch has another one (R28)."""
        assert self.open_epoch is not None
        self.pipeline.park(self.open_epoch.number, reason)
        self._forget_epoch()
        self.stall_count += 1
        self._begin_takeover(reason).read()

    def _give_up(self, reason: str, loss_count: int) -> None:
        """Another owns the log, or we stop: what was sent is uncertain, the rest goes elsewhere."""
        self.loss_count += loss_count
        self.pipeline.abandon(reason)
        self._become_idle(reason)

    def _become_idle(self, reason: str) -> None:
        self._reason = reason
        self.takeover = None
        self._context.stalls.leave(self.log_id)
        self._forget_epoch()
        self.older.clear()
        self.changes.forget()
        self.pipeline.yield_queued()

    def _forget_epoch(self) -> None:
        if self.open_epoch is not None:
            self.open_epoch.leave()
        self.open_epoch = None

    # --- figures and proof -----------------------------------------------------------------------

    def statistics(self) -> dict[str, object]:
        """What waits and what was done, for the admin API."""
        writer = self.writer
        return {
            "state": self.state.value,
            "epoch": None if writer is None else writer.segment.epoch,
            "lac": None if writer is None else writer.lac,
            "lap": None if writer is None else writer.lap,
            **self.pipeline.queue_statistics(),
            "window_bytes": 0 if writer is None else writer.window_bytes,
            "owed_bytes": 0 if writer is None else writer.owed_bytes,
            "suspended": [] if writer is None else [m.bookie for m in writer.suspended],
            "ensemble_changes": 0 if writer is None else writer.change_count,
            "rolls": self.roll_count,
            "takeovers": self.takeover_count,
            "stalls": self.stall_count,
            **self.pipeline.statistics(),
            "recoveries": self.older.recovery_count,
            "unrecovered_epochs": [recovery.epoch for recovery in self.older.recoveries],
        }

    def validate(self) -> None:
        """Assert invariants 1 to 4, and those of the parts."""
        is_early = self.state is LogState.EARLY
        is_both = self.takeover is not None and self.open_epoch is not None
        assert is_both == is_early, f"1: {self}"
        assert self.takeover is not None or not self.older.recoveries, f"1: {self}"
        for part in (self.pipeline, self.older, self.changes):
            part.validate()
        if self.open_epoch is not None:
            self.open_epoch.writer.validate()
            is_bounded = is_early and self.older.are_bounded
            assert self.open_epoch.is_numbered or is_bounded, f"2: {self}"
        if self.state in (LogState.IDLE, LogState.EARLY, LogState.ACTIVE, LogState.DRAINING):
            assert not self.changes.nonces, f"3: {self}"
        assert self.open_epoch is not None or self.log_id not in self._context.rolls, f"4: {self}"

    def __repr__(self) -> str:
        inside = " ".join(map(repr, filter(None, (self.writer, *self.older.recoveries))))
        return f"<log {self.log_id} {self.state.value} {inside} {self.pipeline}>"
