"""A takeover: from the log's nodes to an open epoch of our own, or to a log that is closed.

    READING → CLAIMING → RECOVERING → REBUILDING → taken over
    READING    the nodes are read: is it ours, another's, over? (a claim of unknown fate, R3)
    CLAIMING   the `multi()` that opens our epoch is under way (R2)
    RECOVERING the older epochs are sealed, read and closed, oldest first (`older_epochs`)
    REBUILDING they are closed, and what they say of producers and token is read (`carried_state`)
After each close the nodes are read again: another may have gone on meanwhile. With `early_append`
our epoch is opened as soon as all older ones are bounded; then the takeover goes on beside it.

Not here: how one epoch is recovered (`recovery`), what is sent in our own (`epoch.open_epoch`).
Called by `log_sequencer`. Source: docs/protocol/recovery.md "Takeover", R2, R3, R18.
"""

from __future__ import annotations

from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, LogView
from duramen.core.sequencer.exactly_once.carried_state import CarriedState
from duramen.core.sequencer.log_state import (
    NEWER_EPOCH,
    GivenUp,
    Intent,
    Left,
    LogState,
    Opened,
    Outcome,
    TakenOver,
    find_loss,
)
from duramen.core.sequencer.own_changes import OwnChanges
from duramen.core.sequencer.proposals import propose_new_epoch
from duramen.core.sequencer.shortage import TAKEN_OVER
from duramen.core.sequencer.takeover.older_epochs import UNRECOVERED_EPOCH_MAX, OlderEpochs
from duramen.core.sequencer.takeover.stalled_appends import StalledAppends
from duramen.ids import Epoch


class Takeover:
    """One takeover of one log.

    Args:
        changes, older, carried, stalled: of the log.
        reason: why an epoch of ours was lost just before; empty: none was.

    Attributes:
        refusal: code and detail for appends that wait in vain.
        reason: as given, until the takeover gets on.
    """

    def __init__(
        self,
        context: SequencerContext,
        changes: OwnChanges,
        older: OlderEpochs,
        carried: CarriedState,
        intent: Intent,
        *,
        stalled: StalledAppends,
        reason: str = "",
    ) -> None:
        self.state = LogState.READING
        self.refusal = TAKEN_OVER
        self.reason = reason
        self._context = context
        self._changes = changes
        self._older = older
        self._carried = carried
        self._stalled = stalled
        self._intent = intent
        self._was_owner = bool(reason)
        self._early_epoch: Epoch | None = None
        """Ours, once it is open while older ones are recovered."""

    # --- reading ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the nodes: what is to be done next depends on them."""
        if self._early_epoch is None:
            self.state = LogState.READING
        self._changes.read()

    def read_again(self) -> None:
        """A pause is over, or it is time for a look: recovering is not owning, and bookies do not
        tell who owns. A look changes nothing by itself.
        """
        if self.state in (LogState.RECOVERING, LogState.REBUILDING):
            self._changes.read(is_look=True)
        else:
            self.read()

    def hasten(self, now_us: int) -> bool:
        """Bookies came: end the pause of a claim for which there were too few."""
        is_for_claim = self.state is LogState.READING and not self._was_owner
        return is_for_claim and self._changes.hasten(now_us)

    def on_metadata(self, view: LogView | None, now_us: int) -> Outcome | None:
        """The nodes were read, or could not be."""
        if self._early_epoch is not None and view is not None:
            return self._on_read_while_early(view, self._early_epoch, now_us)
        if view is not None:
            return self._on_read(view, now_us)
        if self._early_epoch is None:
            if self.state is LogState.READING and self.reason:
                # Fenced. What was never sent need not wait for the store: others may reach it.
                return GivenUp("sealed by another, and the log's nodes cannot be read", 1)
            if not (self._context.is_metadata_reachable or self._context.holds_logs):
                # Nothing of a takeover succeeds without a session; somebody else may have one.
                return GivenUp("the metadata store is away, and the log is not taken over")
        self._retry_later(now_us)
        return None

    def _on_read(self, view: LogView, now_us: int) -> Outcome | None:
        self._changes.learn(view)
        if view.log.is_deleted or view.log.is_ended:
            return Left("log_deleted" if view.log.is_deleted else "log_ended")
        mine = self._changes.find_segment(view)
        is_others = view.owner is not None and view.owner.sequencer_id != self._context.sequencer_id
        if mine is None and is_others and (self._was_owner or self._intent.unless_owned):
            # Claiming back at once from whoever took it would be a duel without end, and what was
            # an orphan is none: closing it would seal the epoch of its new owner.
            return GivenUp("another sequencer took the log over", int(self._was_owner))
        self._was_owner = mine is not None
        is_close_only = self._intent.is_close_only
        may_claim = not is_close_only and len(view.segments) < UNRECOVERED_EPOCH_MAX
        if mine is not None or (view.segments and not may_claim):
            return self._go_on(view, now_us)
        if is_close_only:
            return Left()
        if self._was_hinted_twice(view, now_us):
            return GivenUp("another sequencer took the log over by the same hint")
        self._claim(view, now_us)
        return None

    def _was_hinted_twice(self, view: LogView, now_us: int) -> bool:
        """Whether a hint brought us here, and another was faster: from there no hint takes it."""
        owner = view.owner
        is_others = owner is not None and owner.sequencer_id != self._context.sequencer_id
        by_hint = owner is not None and owner.by_hint
        return is_others and by_hint and self._context.hints.has(view.log.log_id, now_us)

    def _retry_later(self, now_us: int) -> None:
        if self.state is LogState.CLAIMING:
            self.state = LogState.READING
        self._changes.retry_later(now_us)

    # --- claiming (R2) ---------------------------------------------------------------------------

    def _claim(self, view: LogView, now_us: int) -> None:
        # What was begun for an epoch that is ours no more ends, whether or not another follows.
        self._older.clear()
        proposal = propose_new_epoch(view, self._context, now_us)
        if isinstance(proposal, str):
            self.state = LogState.READING
            self.refusal = ("not_enough_bookies", proposal)
            self._retry_later(now_us)
            return
        self.state = LogState.CLAIMING
        self.refusal = TAKEN_OVER
        self._changes.commit(proposal)

    def on_commit(self, outcome: CommitOutcome, now_us: int) -> Outcome | None:
        """The claim was applied, refused, or nobody knows."""
        assert self.state is LogState.CLAIMING, self
        view = self._changes.settle(outcome)
        if view is None:
            self._retry_later(now_us)
            return None
        self._changes.learn(view)
        self._changes.begin_pauses_anew()
        self._was_owner = True
        return self._go_on(view, now_us)

    # --- recovering ------------------------------------------------------------------------------

    def _go_on(self, view: LogView, now_us: int) -> Outcome | None:
        """Recover the unclosed epochs that are not ours; when none is left, read their state."""
        self.reason = ""
        mine = self._changes.find_segment(view)
        if mine is not None and view.segments[-1] != mine:
            return NEWER_EPOCH
        if mine is not None and view.segments[0] == mine:
            self.state = LogState.REBUILDING
            return self._begin_rebuild(view, now_us)
        self.state = LogState.RECOVERING
        self._changes.look_later(now_us)
        self._older.adopt(view, view.log.next_epoch if mine is None else mine[0].epoch, now_us)
        return self.follow_older()

    def follow_older(self) -> Outcome | None:
        """An older epoch may be closed now, or all of them bounded."""
        if (closed := self._older.take_closed()) is not None:
            # Another may have closed it and gone on meanwhile: what is true now is read.
            self._carried.note_recovered(closed.epoch, has_state=closed.may_have_state)
            self.read()
        elif self.state is LogState.RECOVERING and self._older.are_bounded:
            return self._open_early()
        return None

    def _open_early(self) -> Outcome | None:
        view = self._changes.view
        assert view is not None
        mine = self._changes.find_segment(view)
        if self._early_epoch is not None or mine is None:
            return None
        if not view.log.config.early_append or self._intent.ends_here:
            return None
        if self._stalled.held_count:
            return None  # it is appended again before all others, once its fate is known
        self._early_epoch = mine[0].epoch
        return Opened(*mine)

    def _on_read_while_early(self, view: LogView, own: Epoch, now_us: int) -> Outcome | None:
        """An older epoch was closed, or all of them are."""
        self._changes.learn(view)
        if (loss := find_loss(view, own)) is not None:
            return loss
        if len(view.segments) == 1:
            return self._begin_rebuild(view, now_us)
        self._changes.look_later(now_us)
        self._older.adopt(view, own, now_us)
        return None

    # --- rebuilding ------------------------------------------------------------------------------

    def _begin_rebuild(self, view: LogView, now_us: int) -> Outcome | None:
        self._older.clear()
        self._changes.look_later(now_us)
        self._carried.begin_rebuild(view.log, now_us)
        self._stalled.ask(view.segments[-1][0].epoch)
        return self.follow_rebuild()

    def follow_rebuild(self) -> Outcome | None:
        """The state of all older epochs may be known now: then appends can be judged."""
        view = self._changes.view
        if view is None or not self._carried.is_known or not self._stalled.is_settled:
            return None
        if self._early_epoch is not None:
            is_last_open = view.log.last_clean_epoch == self._early_epoch - 1
            return TakenOver(*view.segments[-1]) if is_last_open else None
        if self.state is not LogState.REBUILDING:
            return None
        mine = self._changes.find_segment(view)
        assert mine is not None, self
        return TakenOver(*mine)

    def __repr__(self) -> str:
        return f"<takeover {self.state.value} early={self._early_epoch} {self._changes}>"
