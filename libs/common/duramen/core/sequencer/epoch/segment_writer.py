"""The port between a log's sequencer and whatever replicates the entries of its open segment.

Admission, numbering, exactly-once, rolls and takeovers are the same however copies are placed. This
is all that they ask of a writer. A writer decides when an entry is acknowledged, which members are
asked for it, and whether somebody seals the segment under it; it knows nothing of appends.

Satisfied by `ledger_writer.LedgerWriter` (write sets of one ensemble) and by
`flexible.writing.wave_writer.WaveWriter` (a copyset for each entry); `open_epoch.make_writer` is
the one place that chooses.
Called by `log_sequencer` and its parts. Source: docs/protocol/write.md, R5, R9, R19.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Protocol

from duramen.config import LogConfig
from duramen.core.flexible.segment import AnySegment
from duramen.core.placement.node_states import ListChange
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import CommitOutcome, LogView, PersistOwed
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member


class AcknowledgedEntry(Protocol):
    """An entry that is stored as often as R5 asks for, and every lower one with it."""

    @property
    def entry(self) -> EntryId:
        """Its id."""

    @property
    def totals(self) -> Totals:
        """Of the segment up to and with it."""


class SegmentWriter(Protocol):
    """Replication of one open segment."""

    # --- what is known ---------------------------------------------------------------------------

    @property
    def segment(self) -> AnySegment:
        """As its node was last written or read."""

    @property
    def state(self) -> WriterState:
        """OPEN: it sends. FENCED: somebody recovers the segment, and nothing may be sent again."""

    @property
    def fence_reason(self) -> str:
        """Why it is FENCED."""

    @property
    def lac(self) -> EntryId:
        """The last entry that is acknowledged with every lower one."""

    @property
    def lap(self) -> EntryId:
        """The last entry that was added."""

    @property
    def lac_totals(self) -> Totals:
        """Of the segment up to the LAC."""

    @property
    def totals(self) -> Totals:
        """Of the segment up to the LAP."""

    @property
    def window(self) -> Sized:
        """Entries that are added and not acknowledged."""

    @property
    def window_bytes(self) -> int:
        """What they hold."""

    @property
    def owed(self) -> Sized:
        """Acknowledged entries of which a copy is still to come (R9)."""

    @property
    def owed_bytes(self) -> int:
        """What they hold."""

    @property
    def change_count(self) -> int:
        """Ensembles that came after the first one."""

    @property
    def rewaved_count(self) -> int:
        """Entries that went to other members than at first."""

    @property
    def suspended(self) -> list[Member]:
        """Members that should take entries and do not answer."""

    @property
    def round_done(self) -> int:
        """The last ack round that succeeded; see `ask_round`."""

    # --- questions -------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another entry is to be added now."""

    @property
    def lacks_ack_set(self) -> bool:
        """Whether too few members answer for the next entry to be acknowledged."""

    @property
    def is_drained(self) -> bool:
        """Nothing is unacknowledged and no change of the segment is under way."""

    def owes_up_to(self, last: EntryId) -> bool:
        """Whether a copy of an acknowledged entry up to this one is still to come."""

    def list_behind(self, last: EntryId) -> list[Member]:
        """Members that may lack a copy which they are to hold of what was acknowledged up to this
        entry."""

    @property
    def awaits_copies(self) -> bool:
        """Whether a copy that is owed may come soon."""

    @property
    def wants_roll(self) -> bool:
        """It cannot go on as it is, and asks for a new segment."""

    @property
    def must_roll_now(self) -> bool:
        """That cannot wait: some entries would never be acknowledged."""

    @property
    def keeps_lost_members(self) -> bool:
        """Whether what a lost member should hold is never acknowledged: recovery alone helps."""

    @property
    def may_stall(self) -> bool:
        """Whether an entry may stay incomplete although other bookies are there (R28)."""

    def stalled_since_us(self) -> int | None:
        """Since when the oldest incomplete entry of a writer that may stall is that."""

    @property
    def wants_control(self) -> bool:
        """An entry without records is to be added, which carries the LAC."""

    def has_room_for_owed(self) -> bool:
        """Whether what is owed leaves memory for new entries (R9)."""

    def list_proved(self) -> list[EntryId]:
        """First entries of the fragments of which every copy was acknowledged (R9)."""

    def explain_shortage(self) -> str:
        """Why nothing is acknowledged now, as far as bookies are the reason."""

    def explain_waves(self) -> str:
        """For people: how many entries went to other members than at first, and past whom."""

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""

    # --- what it is told -------------------------------------------------------------------------

    def configure(self, config: LogConfig) -> None:
        """What of the log's configuration needs no new segment."""

    def add(self, payload: bytes, totals: Totals, now_us: int) -> EntryId:
        """Replicate the next entry, which was encoded for entry id LAP + 1."""

    def ask_round(self, now_us: int) -> int:
        """Prove that the segment is not sealed now: `round_done` reaches the number returned."""

    def persist_owed(self) -> None:
        """Have recorded for repair what is still owed (R9)."""

    def hold(self) -> None:
        """Send and change nothing from now on: the segment is about to be closed (R19)."""

    def release(self) -> None:
        """Go on: the close was called off, and nothing of it can ever be applied."""

    # --- events ----------------------------------------------------------------------------------

    def on_add(
        self, member: Member, entry_id: EntryId, status: BookieStatus, now_us: int
    ) -> Sequence[AcknowledgedEntry]:
        """A member answered an add; gives what that acknowledges, in the order of entries."""

    def on_lac(self, member: Member, status: BookieStatus, now_us: int, round_id: int = 0) -> None:
        """A member answered an explicit LAC."""

    def on_commit(
        self, token: int, outcome: CommitOutcome, now_us: int
    ) -> Sequence[AcknowledgedEntry]:
        """The fate of a change; gives what that acknowledges. Tokens of others are ignored."""

    def on_metadata(
        self, token: int, view: LogView | None, now_us: int
    ) -> Sequence[AcknowledgedEntry]:
        """The log's nodes were read; gives what that acknowledges. Tokens of others are ignored."""

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """A range that is owed is recorded for repair."""

    def on_bookies_changed(self, now_us: int) -> None:
        """Bookies came, went or came back."""

    def heeds(self, change: ListChange) -> bool:
        """Whether `on_lists_changed` is for it."""

    def on_lists_changed(self, now_us: int) -> None:
        """The context's lists have others (R27)."""

    def on_timer(self, now_us: int) -> None:
        """Time has passed."""

    def validate(self) -> None:
        """Assert its invariants."""
