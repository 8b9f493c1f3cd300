"""The log's sequencer: claims a log, recovers what was left, appends, rolls, closes, gives up.

One object per log in a sequencer process. It owns at most one open epoch at a time:

    IDLE → READING → CLAIMING → (RECOVERING → READING)… → ACTIVE
    ACTIVE ⇄ DRAINING → CLOSING → ACTIVE (the next epoch) | IDLE
    IDLE → READING → RECOVERING → READING → IDLE    an orphaned log is only closed
    any → IDLE                                      owned by another: queued appends go back

Nothing is sent in a new epoch before every older one is closed. Invariants (see `validate`):
 1 a writer exists exactly in ACTIVE, DRAINING and CLOSING, and no recovery then.
 2 while a writer exists the log's LCE is its epoch − 1, so that sequence numbers are known.
 3 a nonce is kept exactly for changes that may have been applied without our knowing (R3).
Source: 01-protocol sections 2, 4, 5, R2, R3, R19.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from duramen.config import Window
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer.effects import (
    Commit,
    CommitOutcome,
    Effect,
    Fail,
    LogView,
    PersistOwed,
    ReadMetadata,
    StoredEntry,
)
from duramen.core.sequencer.ledger_writer import LedgerWriter, SentEntry, WriterState
from duramen.core.sequencer.proposals import (
    Proposal,
    new_segment,
    propose_claim,
    propose_close,
    propose_roll,
    rule_of,
)
from duramen.core.sequencer.recovery import Recovery
from duramen.core.sequencer.roll_policy import RollPolicy
from duramen.core.sequencer.surroundings import Ports, Surroundings
from duramen.core.sequencer.transmit import QueuedAppend, TransmitBuffer
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, Member
from duramen.limits import (
    CLOSE_OWED_WAIT_US,
    ENTRY_TARGET_BYTES,
    RETRY_DELAY_MAX_US,
    RETRY_DELAY_US,
    ROLL_DRAIN_US,
)
from duramen.units import MS

_PIPELINE_ENTRY_COUNT = 4
"""Entries under way before batches are made to wait for company: enough to keep bookies busy
while the journal syncs, few enough that a queue turns into large entries."""

_DEFAULT_WINDOW = Window()
"""Bounds the queue until the log's own configuration is read."""

_PIPELINE_BYTES = 4 * ENTRY_TARGET_BYTES
_TICK_US = 100 * MS
_UNRECOVERED_EPOCH_MAX = 4


class LogState(enum.Enum):
    """See the module's head."""

    IDLE = "idle"
    READING = "reading"
    CLAIMING = "claiming"
    RECOVERING = "recovering"
    ACTIVE = "active"
    DRAINING = "draining"
    CLOSING = "closing"


class LogSequencer:
    """One log in one sequencer process."""

    def __init__(self, log_id: LogId, around: Surroundings) -> None:
        self.log_id = log_id
        self.state = LogState.IDLE
        self.outbox: list[Effect] = []
        self.transmit = TransmitBuffer()
        self.writer: LedgerWriter | None = None
        self.recovery: Recovery | None = None
        self.view: LogView | None = None
        self.roll_count = 0
        self.takeover_count = 0
        self._around = around
        self._ports = Ports(
            put=self.outbox.append,
            new_token=self._new_token,
            new_nonce=around.new_nonce,
            rng=around.rng,
            locations=lambda: around.locations or {},
            candidates=lambda: around.candidates,
        )
        self._refusal = ("log_unavailable", "the log is being taken over")
        self._token_count = 0
        self._token: int | None = None
        self._proposal: Proposal | None = None
        self._nonces: list[str] = []
        self._is_close_only = False
        self._ends_here = False
        self._was_owner = False
        self._retry_at_us: int | None = None
        self._retry_delay_us = RETRY_DELAY_US
        self._drain_end_us = 0
        self._owed_end_us: int | None = None
        self._roll: RollPolicy | None = None

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

    def take_over(self, now_us: int, *, close_only: bool = False) -> None:
        """Begin to own the log, or only to close what a dead owner left behind."""
        if self.state is not LogState.IDLE:
            self._is_close_only = self._is_close_only and close_only
            return
        self._is_close_only = close_only
        self._ends_here = False
        self._retry_delay_us = RETRY_DELAY_US
        self._refusal = ("log_unavailable", "the log is being taken over")
        self.takeover_count += 1
        self._read()

    def append(self, append: QueuedAppend, now_us: int) -> None:
        """Queue an append; `pump` sends. Refused when the window is full (SEQNOBUF)."""
        reason = self._window_fault(len(append.batch))
        if reason is not None:
            self.outbox.append(Fail(append.append_id, "window_full", reason))
            return
        if self._roll is not None:
            self._roll.note_append(now_us)
        self.transmit.push(append)

    def pump(self, now_us: int) -> None:
        """Make entries of what waits, as far as the pipeline has room. Call after every batch."""
        writer = self.writer
        if self.state is not LogState.ACTIVE or writer is None:
            return
        if self._must_end(writer, now_us):
            self._drain(now_us)
            return
        while (
            self.transmit.queue
            and writer.state is WriterState.OPEN
            and len(writer.window) < _PIPELINE_ENTRY_COUNT
            and writer.window_bytes < _PIPELINE_BYTES
        ):
            self._send_entry(writer, now_us)

    def request_roll(self) -> None:
        """Roll as soon as it can be done; the next `pump` or timer begins."""
        if self._roll is not None:
            self._roll.request()

    def stop(self, now_us: int) -> None:
        """Close the open segment in peace and give the log up; IDLE when done."""
        self._ends_here = True
        self._is_close_only = True
        if self.state is LogState.ACTIVE:
            self._drain(now_us)

    def release(self) -> None:
        """Forget the log at once; whoever owns it next recovers the segment."""
        self._give_up("the sequencer stops")

    # --- results ---------------------------------------------------------------------------------

    def on_add(
        self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus, now_us: int
    ) -> None:
        """A bookie answered an add."""
        if self.recovery is not None and self.recovery.epoch == epoch:
            self.recovery.on_add(member, entry, status, now_us)
            self._follow_recovery()
        elif self.writer is not None and self.writer.segment.epoch == epoch:
            self._acknowledge(self.writer.on_add(member, entry, status, now_us))
            self._follow_writer(now_us)

    def on_lac(self, member: Member, epoch: Epoch, status: BookieStatus, now_us: int) -> None:
        """A bookie answered an explicit LAC."""
        if self.writer is not None and self.writer.segment.epoch == epoch:
            self.writer.on_lac(member, status, now_us)
            self._follow_writer(now_us)

    def on_seal(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self,
        member: Member,
        epoch: Epoch,
        status: BookieStatus,
        lac: EntryId,
        highest: EntryId,
        now_us: int,
    ) -> None:
        """A bookie answered a seal."""
        if self.recovery is not None and self.recovery.epoch == epoch:
            self.recovery.on_seal(member, status, lac, highest, now_us)
            self._follow_recovery()

    def on_read(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self,
        member: Member,
        epoch: Epoch,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
        now_us: int,
    ) -> None:
        """A bookie answered a recovery read."""
        if self.recovery is not None and self.recovery.epoch == epoch:
            self.recovery.on_read(member, entry, status, stored, now_us)
            self._follow_recovery()

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """An owed range is recorded for repair."""
        if self.writer is not None and self.writer.segment.ledger_id == owed.ledger_id:
            self.writer.on_owed_persisted(owed)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """A metadata change was applied, refused, or nobody knows."""
        if token == self._token:
            self._token = None
            self._on_own_commit(outcome, now_us)
        elif self.recovery is not None:
            self.recovery.on_commit(token, outcome, now_us)
            self._follow_recovery()
        elif self.writer is not None:
            self._acknowledge(self.writer.on_commit(token, outcome, now_us))
            self._follow_writer(now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The log's nodes were read, or could not be."""
        if token == self._token:
            self._token = None
            self._on_own_metadata(view, now_us)
        elif self.recovery is not None:
            self.recovery.on_metadata(token, view, now_us)
            self._follow_recovery()
        elif self.writer is not None:
            self._acknowledge(self.writer.on_metadata(token, view, now_us))
            self._follow_writer(now_us)

    def on_bookies_changed(self, now_us: int) -> None:
        """Bookies came, went or came back."""
        if self.writer is not None:
            self.writer.on_bookies_changed(now_us)
            self._follow_writer(now_us)
        if self.state is LogState.READING and self._retry_at_us is not None and not self._was_owner:
            self._retry_at_us = now_us
            self.on_timer(now_us)

    def wakeup_at_us(self, now_us: int) -> int | None:
        """When `on_timer` wants to be called next."""
        times = [self._retry_at_us]
        if self.writer is not None:
            times.append(self.writer.wakeup_at_us())
            if self.state is LogState.ACTIVE and self._roll is not None:
                times.append(max(self._roll.due_us(self.writer.totals), now_us + _TICK_US))
        if self.recovery is not None:
            times.append(self.recovery.wakeup_at_us())
        if not self.transmit.is_empty or self.state is LogState.DRAINING:
            times.append(now_us + _TICK_US)
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def on_timer(self, now_us: int) -> None:
        """Time has passed: deadlines, probes, retries, rolls."""
        code, detail = self._refusal
        if self.writer is not None:
            code, detail = "not_enough_bookies", "too few bookies answer for this log"
        self.outbox += self.transmit.expire(now_us, code, detail)
        if self.writer is not None:
            self.writer.on_timer(now_us)
            self._follow_writer(now_us)
        if self.recovery is not None:
            self.recovery.on_timer(now_us)
            self._follow_recovery()
        if self._retry_at_us is not None and now_us >= self._retry_at_us:
            self._read()
        self.pump(now_us)

    # --- own metadata ----------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the nodes for a claim, or, in CLOSING, for the roll."""
        if self.state is not LogState.CLOSING:
            self.state = LogState.READING
        self._retry_at_us = None
        self._token = self._new_token()
        self.outbox.append(ReadMetadata(self._token))

    def _commit(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._nonces.append(proposal.nonce)
        self._token = self._new_token()
        self.outbox.append(Commit(self._token, proposal.writes))

    def _on_own_commit(self, outcome: CommitOutcome, now_us: int) -> None:
        proposal = self._proposal
        assert proposal is not None and self.state in (LogState.CLAIMING, LogState.CLOSING)
        if outcome is CommitOutcome.APPLIED:
            self._adopt(proposal.view, now_us)
            return
        if outcome is not CommitOutcome.UNKNOWN:
            # Definite: it will never be applied. Only an unknown one must be remembered (R3).
            self._nonces.remove(proposal.nonce)
        if (
            self.state is LogState.CLOSING
            and outcome is CommitOutcome.UNAVAILABLE
            and not self._nonces
        ):
            self._call_off(now_us)
        else:
            self._retry_later(now_us)

    def _on_own_metadata(self, view: LogView | None, now_us: int) -> None:
        if view is None:
            if self.state is LogState.CLOSING and not self._nonces:
                self._call_off(now_us)
            else:
                self._retry_later(now_us)
        elif self.state is LogState.CLOSING:
            self._on_read_for_roll(view, now_us)
        else:
            self._on_read_for_claim(view, now_us)

    def _adopt(self, view: LogView, now_us: int) -> None:
        """The `multi()` of a claim or a roll is in force."""
        self.view = view
        self._retry_delay_us = RETRY_DELAY_US
        if self.state is LogState.CLOSING:
            self._finish_closing(view, now_us)
        else:
            self._was_owner = True
            self._go_on_taking_over(view, now_us)

    def _retry_later(self, now_us: int) -> None:
        if self.state is LogState.CLAIMING:
            self.state = LogState.READING
        self._retry_at_us = now_us + self._retry_delay_us
        self._retry_delay_us = min(2 * self._retry_delay_us, RETRY_DELAY_MAX_US)

    # --- takeover (R2) ---------------------------------------------------------------------------

    def _on_read_for_claim(self, view: LogView, now_us: int) -> None:
        self.view = view
        if view.log.is_deleted or view.log.is_ended:
            code = "log_deleted" if view.log.is_deleted else "log_ended"
            self.outbox += self.transmit.fail_queued(code, "the log takes no appends any more")
            self._become_idle()
            return
        mine = self._find_own(view)
        if mine is None and self._was_owner and self._is_others(view):
            # Claiming back at once from whoever took it would be a duel without end.
            self._give_up("another sequencer took the log over")
            return
        self._was_owner = mine is not None
        if (
            mine is not None
            or (self._is_close_only and view.segments)
            or len(view.segments) >= _UNRECOVERED_EPOCH_MAX
        ):
            self._go_on_taking_over(view, now_us)
        elif self._is_close_only:
            self._become_idle()
        else:
            self._claim(view, now_us)

    def _is_others(self, view: LogView) -> bool:
        return view.owner is not None and view.owner.sequencer_id != self._around.sequencer_id

    def _find_own(self, view: LogView) -> tuple[Segment, int] | None:
        """The segment of a claim of ours that was applied, known by its nonce (R3)."""
        return next((s for s in view.segments if s[0].nonce in self._nonces), None)

    def _claim(self, view: LogView, now_us: int) -> None:
        segment = new_segment(
            view.log,
            self._around.candidates,
            self._around.rng,
            nonce=self._around.new_nonce(),
            created_unix_ms=self._around.unix_ms(now_us),
        )
        if segment is None:
            count = len(self._around.candidates)
            detail = f"no ensemble can be placed on the {count} bookies that are available"
            self._refusal = ("not_enough_bookies", detail)
            self._retry_later(now_us)
            return
        self.state = LogState.CLAIMING
        self._commit(propose_claim(view, segment, self._around.sequencer_id))

    def _go_on_taking_over(self, view: LogView, now_us: int) -> None:
        """Recover the oldest unclosed epoch that is not ours; when none is left, append."""
        mine = self._find_own(view)
        if mine is not None and view.segments[-1] != mine:
            self._give_up("a newer epoch was opened by another sequencer")
        elif mine is not None and view.segments[0] == mine:
            self._activate(*mine, now_us)
        else:
            segment, version = view.segments[0]
            self.state = LogState.RECOVERING
            self.recovery = Recovery(
                segment,
                version,
                view.log,
                view.log_version,
                rule=rule_of(view.log),
                ports=self._ports,
                unix_ms=self._around.unix_ms,
            )
            self.recovery.start(now_us)

    def _follow_recovery(self) -> None:
        if self.recovery is not None and self.recovery.is_done:
            # Another may have closed it and gone on meanwhile: what is true now is read.
            self.recovery = None
            self._read()

    def _activate(self, segment: Segment, version: int, now_us: int) -> None:
        assert self.view is not None
        config = self.view.log.config
        self.state = LogState.ACTIVE
        self._nonces.clear()
        self.writer = LedgerWriter(
            segment,
            version,
            rule=rule_of(self.view.log),
            commit_delay_us=config.commit_delay,
            owed_bytes_max=config.owed_bytes_max,
            ports=self._ports,
        )
        self._roll = RollPolicy(config.roll, self._around.rng, now_us)
        if self._ends_here:
            self._drain(now_us)
        self.pump(now_us)

    # --- append ----------------------------------------------------------------------------------

    def _window_fault(self, batch_bytes: int) -> str | None:
        """Why the window has no room for another batch, or None."""
        waiting = self.transmit.queued_bytes
        if self.writer is not None:
            waiting += self.writer.window_bytes
            if not self.writer.has_room_for_owed():
                return "a bookie is owed more than may be kept for it"
        window = _DEFAULT_WINDOW if self.view is None else self.view.log.config.window
        if waiting and waiting + batch_bytes > window.bytes:
            return f"{waiting} bytes wait for acknowledgement: {window.bytes} may"
        if len(self.transmit.queue) >= window.entries:
            return f"{window.entries} appends wait already"
        return None

    def _send_entry(self, writer: LedgerWriter, now_us: int) -> None:
        appends = self.transmit.take()
        before = writer.totals
        batches = [append.batch for append in appends]
        txids = [append.max_txid for append in appends if append.max_txid is not None]
        own = Totals(
            sum(append.record_count for append in appends),
            sum(map(len, batches)),
            max(txids) if txids else None,
            max(append.max_timestamp_ms for append in appends),
        )
        after = before.plus(own)
        entry = EntryId(writer.lap + 1)
        payload = self._around.encode_entry(
            writer.segment.ledger_id, entry, before, batches, own.record_count, after
        )
        self.transmit.place(entry, appends, before)
        writer.add(payload, after, now_us)

    def _acknowledge(self, entries: Sequence[SentEntry]) -> None:
        if entries:
            assert self.writer is not None and self.view is not None
            epoch = self.writer.segment.epoch
            start_seq_num = self.view.log.totals.record_count
            for entry in entries:
                self.outbox += self.transmit.complete(epoch, entry.entry, start_seq_num)

    def _follow_writer(self, now_us: int) -> None:
        if self.writer is None or self.state is LogState.CLOSING:
            # After a closing `multi()` was sent its fate alone decides (R19).
            return
        if self.writer.state is WriterState.FENCED:
            self._on_fenced(self.writer.fence_reason, now_us)
            return
        if self.state is LogState.DRAINING:
            self._go_on_draining(now_us)
        self.pump(now_us)

    def _on_fenced(self, reason: str, now_us: int) -> None:
        """Somebody recovers the epoch: what was sent is uncertain, the rest may go to a new one."""
        self.outbox += self.transmit.fail_sent(reason)
        self.writer = None
        self.state = LogState.READING
        self._was_owner = True
        # The pause is what keeps re-activations at 5 a second at most (01-protocol section 5).
        self._retry_delay_us = RETRY_DELAY_US
        self._retry_later(now_us)

    # --- roll and close (R19) --------------------------------------------------------------------

    def _must_end(self, writer: LedgerWriter, now_us: int) -> bool:
        assert self._roll is not None
        if not self._around.is_metadata_reachable:
            return False
        if writer.wants_roll:
            self._roll.request()
        if not self._roll.must_end(writer.totals, writer.lap, now_us):
            return False
        self._ends_here = self.transmit.is_empty and self._roll.is_idle(now_us)
        return True

    def _drain(self, now_us: int) -> None:
        self.state = LogState.DRAINING
        self._drain_end_us = now_us + ROLL_DRAIN_US
        self._owed_end_us = None
        self._go_on_draining(now_us)

    def _go_on_draining(self, now_us: int) -> None:
        """Wait for an empty window, then a while for owed copies (R9), then read the nodes."""
        writer = self.writer
        assert writer is not None
        if not writer.is_drained:
            if now_us >= self._drain_end_us:
                self._call_off(now_us)
            return
        if writer.owed:
            if self._owed_end_us is None:
                self._owed_end_us = now_us + CLOSE_OWED_WAIT_US
            # Nothing comes soon from a member that failed, replaced or not: appends wait meanwhile.
            if now_us < self._owed_end_us and writer.awaits_copies:
                return
            writer.persist_owed()
        writer.hold()
        self.state = LogState.CLOSING
        self._read()

    def _call_off(self, now_us: int) -> None:
        """Nothing that closes can have been applied: the epoch goes on, a roll comes later."""
        assert not self._nonces, self
        if self._is_close_only:
            self._give_up("the segment could not be closed in time")
            return
        self._ends_here = False
        if self.writer is not None and self.writer.wants_roll and self.writer.window:
            # It keeps its ensemble, so what a lost member should hold is never acknowledged.
            self._on_fenced("a bookie is lost, and an out_of_order segment keeps its own", now_us)
            return
        self.state = LogState.ACTIVE
        if self.writer is not None and self._roll is not None:
            self.writer.release()
            self._roll.postpone(now_us)
        self._follow_writer(now_us)

    def _on_read_for_roll(self, view: LogView, now_us: int) -> None:
        """The nodes before the closing `multi()`, or after one of unknown fate."""
        writer = self.writer
        assert writer is not None and not writer.window
        if view.log.nonce in self._nonces:
            self._adopt(view, now_us)
            return
        if any(segment.is_closed and segment.nonce in self._nonces for segment, _ in view.segments):
            # Our close came between the reads of the two nodes: the log node will show it.
            self._retry_later(now_us)
            return
        if len(view.segments) != 1 or view.segments[0][0].nonce != writer.segment.nonce:
            self._give_up("another sequencer took the log over")
            return
        self.view = view
        nonce = self._around.new_nonce()
        unix_ms = self._around.unix_ms(now_us)
        proposal = propose_close(
            view,
            last_entry=writer.lac,
            totals=writer.lac_totals,
            completed_unix_ms=unix_ms,
            nonce=nonce,
        )
        if not self._ends_here or self.transmit.queue:
            following = new_segment(
                proposal.view.log,
                self._around.candidates,
                self._around.rng,
                nonce=nonce,
                created_unix_ms=unix_ms,
            )
            if following is not None:
                proposal = propose_roll(view, proposal, following, self._around.sequencer_id)
        self._commit(proposal)

    def _finish_closing(self, view: LogView, now_us: int) -> None:
        """The roll is in force: go on in the next epoch, or idle if none was opened."""
        self.writer = None
        self.roll_count += 1
        mine = self._find_own(view)
        if mine is not None and view.segments == (mine,):
            self._ends_here = self._is_close_only
            self._activate(*mine, now_us)
        else:
            self._become_idle()

    # --- giving up -------------------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        """Another owns the log, or we stop: what was sent is uncertain, the rest goes elsewhere."""
        self.outbox += self.transmit.fail_sent(reason)
        self._become_idle()

    def _become_idle(self) -> None:
        self.state = LogState.IDLE
        self.writer = None
        self.recovery = None
        self._token = None
        self._retry_at_us = None
        self._was_owner = False
        self._nonces.clear()
        self.outbox += self.transmit.yield_queued()

    def _new_token(self) -> int:
        self._token_count += 1
        return self._token_count

    def statistics(self) -> dict[str, object]:
        """What waits and what was done, for the admin API."""
        writer = self.writer
        return {
            "state": self.state.value,
            "epoch": None if writer is None else writer.segment.epoch,
            "lac": None if writer is None else writer.lac,
            "lap": None if writer is None else writer.lap,
            "queued_count": len(self.transmit.queue),
            "queued_bytes": self.transmit.queued_bytes,
            "window_bytes": 0 if writer is None else writer.window_bytes,
            "owed_bytes": 0 if writer is None else writer.owed_bytes,
            "suspended": [] if writer is None else [m.bookie for m in writer.suspended],
            "ensemble_changes": 0 if writer is None else writer.change_count,
            "rolls": self.roll_count,
            "takeovers": self.takeover_count,
        }

    def validate(self) -> None:
        """Assert invariants 1 to 3, and those of the parts."""
        with_writer = (LogState.ACTIVE, LogState.DRAINING, LogState.CLOSING)
        assert (self.writer is not None) == (self.state in with_writer), f"1: {self}"
        assert self.writer is None or self.recovery is None, f"1: {self}"
        self.transmit.validate()
        if self.writer is not None:
            self.writer.validate()
            assert self.view is not None
            assert self.view.log.last_clean_epoch == self.writer.segment.epoch - 1, f"2: {self}"
        if self.state in (LogState.IDLE, LogState.ACTIVE, LogState.DRAINING):
            assert not self._nonces, f"3: {self}"
        if self.recovery is not None:
            self.recovery.validate()

    def __repr__(self) -> str:
        inside = self.writer or self.recovery or ""
        return f"<log {self.log_id} {self.state.value} {inside} {self.transmit}>"
