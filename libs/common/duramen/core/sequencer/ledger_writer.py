"""Ledger writer: replicates the entries of one open segment and decides when they are acknowledged.

The owner of an epoch has one. It sends entries, counts who stores them, moves the LAC, and deals
with members that fail: another bookie takes their place, or they are suspended and probed until
they answer. What it keeps is divided among the parts in `writing/`; the writer is their face, and
says whether anything may be sent or acknowledged now. Making entries and rolling are
`log_sequencer`'s.

    OPEN → CHANGING → OPEN     a new ensemble is being written (R6: no acknowledgement meanwhile)
    OPEN → HELD → OPEN         its owner tries to close it: nothing is sent or changed (R19)
    any → FENCED               somebody recovers this segment: what is outstanding is uncertain
Invariants (checked by `validate`, with those of the parts):
 1 while OPEN the oldest window entry lacks acknowledgements of its write set (R5).
 2 a change is under way exactly while CHANGING. Source: docs/protocol/write.md, R5–R9, R19.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.config import LogConfig
from duramen.core.placement import Candidate, PlacementRule
from duramen.core.placement.node_states import ListChange
from duramen.core.quorum import has_ack_set, write_sets
from duramen.core.segment import Segment, SegmentState, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import CommitOutcome, LogView, PersistOwed
from duramen.core.sequencer.writing.ack_round import AckRound
from duramen.core.sequencer.writing.delivery import Delivery, misses_any
from duramen.core.sequencer.writing.ensemble_change import ChangeEnd, EnsembleChange, StoredSegment
from duramen.core.sequencer.writing.owed_copies import OwedCopies
from duramen.core.sequencer.writing.visible_tail import VisibleTail
from duramen.core.sequencer.writing.window import EntryWindow, SentEntry
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Member
from duramen.limits import OWED_BYTES_MAX_PER_LOG

__all__ = ["LedgerWriter", "SentEntry", "WriterState"]


_LOOKED_THROUGH_MAX: Final = 20_000
"""Owed entries that are looked through at once: some 20 ms."""


class WriterState(enum.Enum):
    """See the module's head."""

    OPEN = "open"
    CHANGING = "changing"
    HELD = "held"
    FENCED = "fenced"


_STILL: Final = (WriterState.HELD, WriterState.FENCED)
"""Nothing may be sent, for now or for good."""


class _NoHelp(NamedTuple):
    """Nobody was found for members that are to be left: it is not tried again with each entry."""

    shunned: frozenset[Member]
    candidates: Sequence[Candidate]
    leaving: list[Member]

    def is_known(
        self, shunned: frozenset[Member], candidates: Sequence[Candidate], leaving: list[Member]
    ) -> bool:
        """Whether the same was tried; lists are the same only as the same objects."""
        is_same = shunned is self.shunned and candidates is self.candidates
        return is_same and leaving == self.leaving


class LedgerWriter:
    """Replication of one open segment.

    Args:
        segment: OPEN and empty, as created by its owner.
        version: of its node.
        rule: where replacements may lie.
        commit_delay_us, commits_by_entry: when and how a LAC is told that nothing carries
            (`VisibleTail`). With the latter the owner adds a control entry if `wants_control`.
        owed_bytes_max: what is kept for members that missed it before it is recorded (R9).
    """

    def __init__(
        self,
        segment: Segment,
        version: int,
        *,
        rule: PlacementRule,
        commit_delay_us: int,
        commits_by_entry: bool = False,
        owed_bytes_max: int = OWED_BYTES_MAX_PER_LOG,
        ports: Ports,
    ) -> None:
        assert segment.state is SegmentState.OPEN, segment
        self.segment = segment
        self.version = version
        self.state = WriterState.OPEN
        self.fence_reason = ""
        self.wants_roll = False
        """An `out_of_order` segment lost a member: it rolls instead of changing its ensemble."""

        self._ports = ports
        self._no_help = _NoHelp(frozenset(), (), [])
        self._window = EntryWindow()
        self._owed = OwedCopies(owed_bytes_max, ports)
        self._delivery = Delivery(ports)
        self._change = EnsembleChange(rule, ports)
        self._round = AckRound(ports.put)
        self._tail = VisibleTail(commit_delay_us, commits_by_entry=commits_by_entry, ports=ports)

    def configure(self, config: LogConfig) -> None:
        """What of the log's configuration needs no new segment; in force from now on."""
        is_by_entry = config.commit == "control"
        self._tail.configure(config.commit_delay, commits_by_entry=is_by_entry)
        self._owed.configure(config.owed_bytes_max)

    # --- questions -------------------------------------------------------------------------------

    @property
    def lac(self) -> EntryId:
        """Last add confirmed."""
        return self._window.lac

    @property
    def lac_totals(self) -> Totals:
        """Of the segment up to the LAC."""
        return self._window.lac_totals

    @property
    def lap(self) -> EntryId:
        """Last add pushed."""
        return self._window.lap

    @property
    def totals(self) -> Totals:
        """Of the segment up to the last entry pushed."""
        return self._window.totals

    @property
    def window(self) -> deque[SentEntry]:
        """Entries LAC + 1 … LAP."""
        return self._window.entries

    @property
    def window_bytes(self) -> int:
        """Of the entries in the window."""
        return self._window.size_bytes

    @property
    def owed(self) -> dict[EntryId, SentEntry]:
        """Acknowledged entries of which copies are owed (R9)."""
        return self._owed.entries

    @property
    def owed_bytes(self) -> int:
        """Of those entries."""
        return self._owed.size_bytes

    @property
    def rule(self) -> PlacementRule:
        """Where replacements may lie."""
        return self._change.rule

    @property
    def change_count(self) -> int:
        """Ensemble changes that are in force."""
        return self._change.change_count

    @property
    def rewaved_count(self) -> int:
        """No waves: an entry stays with its write set."""
        return 0

    def explain_waves(self) -> str:
        """None."""
        return ""

    @property
    def round_done(self) -> int:
        """The last ack round that succeeded: an ack set took a LAC, unsealed, after it began."""
        return self._round.done

    @property
    def wants_control(self) -> bool:
        """A control entry is to be added, unless another entry carries the LAC before."""
        return self._tail.wants_control

    @property
    def is_drained(self) -> bool:
        """Nothing is unacknowledged and no change is under way."""
        return self.state is WriterState.OPEN and not self._window.entries

    @property
    def has_room(self) -> bool:
        """Whether another entry is to be made now: what is under way leaves the pipeline room.

        None while no ack set takes entries: what was never sent is certainly not stored.
        """
        return self.state is WriterState.OPEN and self._window.has_room and not self.lacks_ack_set

    @property
    def lacks_ack_set(self) -> bool:
        """Whether the oldest entry that is not acknowledged, or the next one, cannot be for now."""
        absent = self._delivery.absent
        return bool(absent) and self._window.lacks_ack_set(self.segment, absent)

    @property
    def suspended(self) -> list[Member]:
        """Members of the present ensemble that do not take entries."""
        return self._delivery.list_suspended(self.segment)

    def owes_up_to(self, last: EntryId) -> bool:
        """Whether a copy of an acknowledged entry up to this one is still under way."""
        absent = self._delivery.absent
        return any(member not in absent for member in self._list_lacking(last))

    def list_behind(self, last: EntryId) -> list[Member]:
        """Members that take no entries, or miss one up to this one that was acknowledged."""
        return sorted({*self.suspended, *self._list_lacking(last)})

    def _list_lacking(self, last: EntryId) -> set[Member]:
        """Of very many owed entries all of the ensemble: who is asked serves appends meanwhile."""
        if len(self._owed.entries) > _LOOKED_THROUGH_MAX:
            return set(self.segment.last_fragment.ensemble)
        entries = itertools.chain(self._owed.entries.values(), self._window.entries)
        return {
            member
            for entry in entries
            if entry.is_acknowledged and entry.entry <= last
            for member in entry.missing_from(self.segment)
        }

    @property
    def awaits_copies(self) -> bool:
        """Whether something is owed to a member that takes entries: its answer may come soon."""
        return self._owed.awaits_other_than(self._delivery.absent, self.segment)

    def list_proved(self) -> list[EntryId]:
        """First entries of the fragments of which every copy was acknowledged (R9)."""
        return self._owed.list_proved(self.segment)

    def has_room_for_owed(self) -> bool:
        """Whether the owed copies leave room for new entries (R9: memory stays bounded)."""
        return self._owed.has_room()

    def explain_shortage(self) -> str:
        """Why nothing is acknowledged now, as far as bookies are the reason."""
        silent = ", ".join(member.bookie for member in self.suspended)
        quorum, rule = self.segment.quorum, self.rule
        if not silent:
            return "too few bookies answer for this log"
        return (
            f"{silent} of the {quorum.ensemble_size} bookies of the ensemble do not answer, each "
            f"entry needs {quorum.ack_quorum} of {quorum.write_quorum} copies, and no other bookie "
            f"may take their place (min_racks {rule.min_racks}, min_regions {rule.min_regions})"
        )

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        if self.state in _STILL:
            return None
        own = (self._change.retry_at_us, self._tail.due_us, self._round.again_at_us)
        times = [at_us for at_us in own if at_us is not None]
        if self._delivery.absent:
            times += [absence.probe_at_us for absence in self._delivery.absent.values()]
        return min(times, default=None)

    # --- events ----------------------------------------------------------------------------------

    def add(self, payload: bytes, totals: Totals, now_us: int) -> EntryId:
        """Push the next entry; `payload` must be encoded for entry id LAP + 1."""
        assert self.state not in _STILL, self
        has_records = totals.record_count > self._window.totals.record_count
        entry = self._window.push(payload, totals)
        self._tail.note_push(entry.entry, self._window.lac, has_records=has_records)
        self.on_lists_changed(now_us)
        if self.state is WriterState.OPEN:
            self._delivery.send(entry, self.segment, self._window.lac)
        return entry.entry

    def on_add(
        self, member: Member, entry_id: EntryId, status: BookieStatus, now_us: int
    ) -> list[SentEntry]:
        """A member answered an add, or did not in time; returns the entries acknowledged by it."""
        if self.state is WriterState.FENCED:
            return []
        if status is BookieStatus.OK:
            self._on_stored(member, entry_id)
            return self._advance(now_us)
        self._on_refused(member, status, now_us)
        return []

    def on_lac(self, member: Member, status: BookieStatus, now_us: int, round_id: int = 0) -> None:
        """A member answered an explicit LAC, which is also the probe of one that misses nothing."""
        if self.state is WriterState.FENCED:
            return
        if status is not BookieStatus.OK:
            self._on_refused(member, status, now_us)
            return
        if member in self._delivery.absent:
            self._resume(member)
        is_open = self.state is WriterState.OPEN
        if is_open and self._round.note_taken(member, round_id, self._is_ack_set):
            self._begin_round(now_us)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> list[SentEntry]:
        """The change was applied, refused, or nobody knows; returns what it acknowledges."""
        return self._follow_change(self._change.on_commit(token, outcome, now_us), now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> list[SentEntry]:
        """The segment was read after a conflict or an unknown outcome (R3, R6)."""
        return self._follow_change(self._change.on_metadata(token, view, now_us), now_us)

    def on_timer(self, now_us: int) -> None:
        """Probe absent members, try a change again, tell the LAC."""
        if self.state in _STILL:
            return
        self._change.on_timer(now_us)
        self._tail.on_timer(self.segment, self._window.lac, self._delivery.absent, now_us)
        self._owed.bound(self.segment, now_us)
        was_due = self._delivery.probe(self.segment, self._window, self._owed, now_us)
        if was_due and self.state is WriterState.OPEN and self.suspended:
            self._propose()
        if self._round.again_at_us is not None and now_us >= self._round.again_at_us:
            self._restart_round(now_us)

    def hold(self) -> None:
        """The owner begins to close: nothing is sent and no ensemble changed from here on (R19).

        What is acknowledged is made visible first: the close may take as long as the metadata store
        is away, and readers would look for the tail in vain.
        """
        assert self.is_drained, self
        self._tail.report(self.segment, self._window.lac, self._delivery.absent)
        self.state = WriterState.HELD
        self._round.stop()

    def release(self) -> None:
        """The close was called off, and nothing of it can ever be applied: go on."""
        if self.state is WriterState.HELD:
            self.state = WriterState.OPEN
            if self.suspended:
                self._propose()

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """The range is recorded for repair: memory need not keep it for this member any longer."""
        self._owed.on_recorded(owed, self.segment)

    def on_bookies_changed(self, now_us: int) -> None:
        """Other bookies are available: a suspended member may be replaced or probed at once."""
        self._delivery.hasten(now_us)
        self.on_timer(now_us)
        self.on_lists_changed(now_us)

    @property
    def must_roll_now(self) -> bool:
        """An `out_of_order` segment has too few members left for some of its entries."""
        segment, absent = self.segment, self._delivery.absent
        left = [
            [member for member in one if member not in absent]
            for one in write_sets(segment.last_fragment.ensemble, segment.quorum)
        ]
        return self.wants_roll and min(map(len, left)) < segment.quorum.ack_quorum

    @property
    def keeps_lost_members(self) -> bool:
        """An `out_of_order` segment keeps its ensemble, and has lost a member."""
        return self.wants_roll and bool(self.window)

    @property
    def may_stall(self) -> bool:
        """It changes its ensemble instead."""
        return False

    def stalled_since_us(self) -> None:
        """Never."""

    def heeds(self, change: ListChange) -> bool:
        """Whether one of its members is to be left."""
        return not change.shunned.isdisjoint(self.segment.members)

    def on_lists_changed(self, now_us: int) -> None:
        """Replace whom other logs found silent, if a copy for it is under way (R27).

        Only by somebody who is not: while there is nobody, this log asks for itself.
        """
        shunned = self._ports.shunned()
        if not shunned or self.state is not WriterState.OPEN:
            return
        segment, absent = self.segment, self._delivery.absent
        leaving = [
            member
            for member in segment.last_fragment.ensemble
            if member in shunned and member not in absent
            if misses_any(member, segment, self._window, self._owed)
        ]
        candidates = self._ports.candidates()
        if not leaving or self._no_help.is_known(shunned, candidates, leaving):
            return
        ensemble = self._change.choose_without(segment, absent, leaving)
        if ensemble is None:
            self._no_help = _NoHelp(shunned, candidates, leaving)
            return
        for member in leaving:
            if member not in ensemble:
                self._delivery.note_failure(member, segment, now_us)
        self._propose(ensemble)

    def persist_owed(self) -> None:
        """Record everything that is still owed, before the segment is closed."""
        self._owed.record(self.segment)

    def ask_round(self, now_us: int) -> int:
        """Prove that the epoch was not sealed now: `round_done` reaches the number returned."""
        number = self._round.ask()
        self._begin_round(now_us)
        return number

    # --- storing ---------------------------------------------------------------------------------

    def _on_stored(self, member: Member, entry_id: EntryId) -> None:
        if self._delivery.is_gone(member):
            return
        if entry_id > self._window.lac:
            if not self._window.note_stored(member, entry_id, self.segment):
                return
        else:
            self._owed.note_stored(member, entry_id, self.segment)
        if member in self._delivery.absent:
            self._resume(member)

    def _advance(self, now_us: int) -> list[SentEntry]:
        """Acknowledge what can be, move the LAC over it, and note which copies are owed (R9)."""
        if self.state is not WriterState.OPEN:
            return []
        acknowledged = self._window.acknowledge(self.segment)
        if acknowledged:
            for entry in self._window.take_acknowledged():
                self._owed.keep(entry, self.segment)
            self._tail.note_acknowledged(now_us)
            self._owed.bound(self.segment, now_us)
        return acknowledged

    def _begin_round(self, now_us: int) -> None:
        """R6: nothing counts while an ensemble must be changed; a change begins the round anew."""
        if self.state is WriterState.OPEN:
            absent, ensemble = self._delivery.absent, self.segment.last_fragment.ensemble
            taking = [member for member in ensemble if member not in absent]
            self._round.begin(self.segment.ledger_id, self._window.lac, taking, now_us)

    def _is_ack_set(self, holders: list[Member]) -> bool:
        return has_ack_set(holders, self.segment.last_fragment.ensemble, self.segment.quorum)

    def _restart_round(self, now_us: int) -> None:
        self._round.void()
        self._begin_round(now_us)

    # --- members that fail -----------------------------------------------------------------------

    def _on_refused(self, member: Member, status: BookieStatus, now_us: int) -> None:
        if status is BookieStatus.SEALED:
            self._fence(f"{member.bookie} is sealed")
            return
        if status is BookieStatus.WRONG_INCARNATION:
            self._delivery.note_gone(member)
            self._window.clear_gone(member)
        self._on_member_failed(member, now_us)

    def _on_member_failed(self, member: Member, now_us: int) -> None:
        is_lost = self._delivery.note_failure(member, self.segment, now_us)
        if is_lost and self.state is WriterState.OPEN:
            self._propose()

    def _resume(self, member: Member) -> None:
        """The member answered. Nothing may be sent while held: it is probed again after that."""
        if self.state is WriterState.HELD:
            self._delivery.end_probe(member)
        else:
            self._delivery.resume(member, self.segment, self._window, self._owed)
            self._tail.report_again()

    def _propose(self, ensemble: tuple[Member, ...] | None = None) -> None:
        """Replace what failed if anything can be placed; otherwise it is suspended (R6).

        Args:
            ensemble: as it shall be; None: as it is chosen now.
        """
        if self.segment.ack_mode == "out_of_order":
            # An acknowledged entry above the LAC would be looked for where it never was: roll.
            self.wants_roll = True
            return
        is_proposed = self._change.propose(
            self.segment,
            self.version,
            self._delivery.absent,
            self.lac,
            self.lac_totals,
            ensemble=ensemble,
        )
        self.state = WriterState.CHANGING if is_proposed else WriterState.OPEN

    def _follow_change(
        self, news: StoredSegment | ChangeEnd | None, now_us: int
    ) -> list[SentEntry]:
        match news:
            case StoredSegment(segment, version, True):
                return self._adopt(segment, version, now_us)
            case StoredSegment(segment, version):
                self.segment, self.version = segment, version
                self._propose()
                return self._settle(now_us)
            case ChangeEnd.CALLED_OFF:
                self.state = WriterState.OPEN
                return self._settle(now_us)
            case ChangeEnd.LOST:
                self._fence("the segment is no longer open")
        return []

    def _settle(self, now_us: int) -> list[SentEntry]:
        """Go on in OPEN, with whatever members are left: send what waited, acknowledge."""
        if self.state is not WriterState.OPEN:
            return []
        for entry in self._window.entries:
            if not entry.is_sent:
                self._delivery.send(entry, self.segment, self._window.lac)
        self._restart_round(now_us)
        acknowledged = self._advance(now_us)
        self.on_lists_changed(now_us)
        return acknowledged

    def _adopt(self, segment: Segment, version: int, now_us: int) -> list[SentEntry]:
        """The new ensemble is in force. R7: first drop acks of replaced members everywhere."""
        self.segment, self.version = segment, version
        self.state = WriterState.OPEN
        self._window.clear_replaced(segment)
        for entry in self._window.entries:
            self._delivery.send(entry, self.segment, self._window.lac)
        acknowledged = self._advance(now_us)
        if self.suspended and self.state is WriterState.OPEN:
            self._propose()
        self._restart_round(now_us)
        self.on_lists_changed(now_us)
        return acknowledged

    def _fence(self, reason: str) -> None:
        self.state = WriterState.FENCED
        self.fence_reason = reason
        self._change.abandon()

    def validate(self) -> None:
        """Assert invariants 1 and 2, and those of the parts."""
        for part in (self._window, self._owed, self._change, self._round):
            part.validate()
        if self.state is WriterState.OPEN and self.window:
            assert len(self.window[0].holders) < self.segment.quorum.ack_quorum, f"1: {self}"
        is_changing = self.state is WriterState.CHANGING
        assert is_changing == self._change.is_under_way, f"2: {self}"

    def __repr__(self) -> str:
        return (
            f"<writer {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"lac={self.lac} lap={self.lap} owed={len(self.owed)} "
            f"absent={list(self._delivery.absent)}>"
        )
