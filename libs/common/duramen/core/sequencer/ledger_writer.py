"""Ledger writer: replicates the entries of one open segment and decides when they are acknowledged.

The owner of an epoch has one. It keeps the window of entries that are not acknowledged yet and the
copies that are still owed after the ack, and it moves the LAC. When a member fails and another
bookie can take its place, it changes the ensemble by compare-and-set. Otherwise it suspends the
member and probes it until it answers. Making entries and rolling are `log_sequencer`'s.

    OPEN → CHANGING → OPEN     a new ensemble is being written (R6: no acknowledgement meanwhile)
    OPEN → HELD → OPEN         its owner tries to close it: nothing is sent or changed (R19)
    any → FENCED               somebody recovers this segment: what is outstanding is uncertain
Invariants (checked by `validate`):
 1 window holds exactly entries LAC + 1 … LAP.
 2 outside CHANGING and FENCED the oldest window entry lacks acknowledgements of its write set (R5).
 3 owed bytes are the sum over owed entries. Source: docs/protocol/write.md, R5–R9, R19.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from duramen.core.placement import PlacementRule, choose_replacements
from duramen.core.quorum import write_sets
from duramen.core.segment import Segment, SegmentState, Totals
from duramen.core.sequencer.effects import (
    Commit,
    CommitOutcome,
    LogView,
    PersistOwed,
    ReadMetadata,
    SendAdd,
    SendLac,
    SetSegment,
)
from duramen.core.sequencer.surroundings import Ports
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Member
from duramen.limits import (
    ENTRY_TARGET_BYTES,
    OWED_BYTES_MAX_PER_LOG,
    OWED_BYTES_MAX_PER_SEQUENCER,
    PROBE_INTERVAL_US,
    RETRY_DELAY_MAX_US,
    RETRY_DELAY_US,
)

_PIPELINE_ENTRY_COUNT = 4
"""Entries under way before batches are made to wait for company: enough to keep bookies busy
while the journal syncs, few enough that a queue turns into large entries."""

_PIPELINE_BYTES = 4 * ENTRY_TARGET_BYTES


class WriterState(enum.Enum):
    """See the module's head."""

    OPEN = "open"
    CHANGING = "changing"
    HELD = "held"
    FENCED = "fenced"


@dataclass(slots=True)
class SentEntry:
    """An entry in the window, or an acknowledged one of which copies are owed."""

    entry: EntryId
    payload: bytes
    totals: Totals
    holders: list[Member] = field(default_factory=list)
    is_sent: bool = False
    is_acknowledged: bool = False


@dataclass(slots=True)
class _Absence:
    """A member that failed: suspended, or replaced and still owed what it misses."""

    probe_at_us: int
    is_probing: bool = False


class LedgerWriter:
    """Replication of one open segment.

    Args:
        segment: OPEN and empty, as created by its owner.
        version: of its node.
        commit_delay_us: a LAC that nothing carries for so long is made known by itself: it is sent
            to the last fragment or, with `commits_by_entry`, carried by a control entry, which the
            owner of the writer makes when `wants_control` says so.
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
        self.lac = NOTHING
        self.lap = NOTHING
        self.lac_totals = Totals()
        self.window: deque[SentEntry] = deque()
        self.window_bytes = 0
        self.owed: dict[EntryId, SentEntry] = {}
        self.owed_bytes = 0
        self.fence_reason = ""
        self.change_count = 0
        self.wants_roll = False
        """An `out_of_order` segment lost a member: it rolls instead of changing its ensemble."""

        self.wants_control = False
        """A control entry is to be added, unless another entry carries the LAC before."""
        self.round_done = 0
        """The last ack round that succeeded: an ack set took a LAC, unsealed, after it began."""

        self.rule = rule
        self._ports = ports
        self.configure(
            commit_delay_us=commit_delay_us,
            commits_by_entry=commits_by_entry,
            owed_bytes_max=owed_bytes_max,
        )
        self._absent: dict[Member, _Absence] = {}
        self._gone: set[Member] = set()
        """Members that said that their disks were replaced: nothing of them counts any more."""

        self._change_token: int | None = None
        self._read_token: int | None = None
        self._proposal: Segment | None = None
        self._own_nonces: list[str] = []
        self._has_unknown_commit = False
        self._retry_at_us: int | None = None
        self._lac_due_us: int | None = None
        self._lac_told = NOTHING
        self._last_data = NOTHING
        self._persist_again_at_us = 0
        self._indebted: list[EntryId] = []
        self._round = 0
        self._round_wanted = 0
        self._round_holders: list[Member] | None = None
        self._round_again_at_us: int | None = None

    def configure(
        self, *, commit_delay_us: int, commits_by_entry: bool, owed_bytes_max: int
    ) -> None:
        """What of the log's configuration needs no new segment; in force from now on."""
        self._commit_delay_us = commit_delay_us
        self._commits_by_entry = commits_by_entry
        self._owed_bytes_max = owed_bytes_max

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Nothing is unacknowledged and no change is under way."""
        return self.state is WriterState.OPEN and not self.window

    @property
    def totals(self) -> Totals:
        """Of the segment up to the last entry pushed."""
        return self.window[-1].totals if self.window else self.lac_totals

    @property
    def has_room(self) -> bool:
        """Whether another entry is to be made now: what is under way leaves the pipeline room.

        None while no ack set takes entries: what was never sent is certainly not stored.
        """
        return (
            self.state is WriterState.OPEN
            and len(self.window) < _PIPELINE_ENTRY_COUNT
            and self.window_bytes < _PIPELINE_BYTES
            and not self.lacks_ack_set
        )

    @property
    def lacks_ack_set(self) -> bool:
        """Whether the oldest entry that is not acknowledged, or the next one, cannot be for now.

        Never of an `out_of_order` segment: what lies behind it may be, and it rolls (R6).
        """
        if not self._absent or self.segment.ack_mode != "ordered":
            return False
        entry_id = EntryId(self.lac + 1)
        holders = self.window[0].holders if self.window else ()
        able = [
            member
            for member in self.segment.write_set_of(entry_id)
            if member in holders or member not in self._absent
        ]
        return len(able) < self.segment.quorum.ack_quorum

    @property
    def suspended(self) -> list[Member]:
        """Members of the present ensemble that do not take entries."""
        if not self._absent:
            return []
        return [m for m in self.segment.last_fragment.ensemble if m in self._absent]

    @property
    def awaits_copies(self) -> bool:
        """Whether something is owed to a member that takes entries: its answer may come soon."""
        return any(m not in self._absent for e in self.owed.values() for m in self._missing(e))

    def list_proved(self) -> list[EntryId]:
        """First entries of the fragments of which every copy was acknowledged (R9).

        None of which a copy is owed or was ever left to repair: whether that one came all the same
        is for the auditor to see.
        """
        owing = [self.segment.fragment_of(entry_id).first_entry for entry_id in self.owed]
        return [
            fragment.first_entry
            for fragment in self.segment.fragments
            if fragment.first_entry not in self._indebted and fragment.first_entry not in owing
        ]

    def has_room_for_owed(self) -> bool:
        """Whether the owed copies leave room for new entries (R9: memory stays bounded)."""
        if self.owed_bytes and self._ports.owed_by_all() > OWED_BYTES_MAX_PER_SEQUENCER:
            return False
        return self.owed_bytes <= 2 * self._owed_bytes_max

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        if self._is_still:
            return None
        own = (self._retry_at_us, self._lac_due_us, self._round_again_at_us)
        times = [at_us for at_us in own if at_us is not None]
        if self._absent:
            times += [absence.probe_at_us for absence in self._absent.values()]
        return min(times, default=None)

    @property
    def _is_still(self) -> bool:
        """Nothing may be sent any more, or not now."""
        return self.state in (WriterState.FENCED, WriterState.HELD)

    # --- events ----------------------------------------------------------------------------------

    def add(self, payload: bytes, totals: Totals, now_us: int) -> EntryId:
        """Push the next entry; `payload` must be encoded for entry id LAP + 1."""
        assert not self._is_still, self
        if totals.record_count > self.totals.record_count:
            self._last_data = EntryId(self.lap + 1)
        elif self.wants_control:
            self._lac_told = self.lac
        self.wants_control = False
        self.lap = EntryId(self.lap + 1)
        entry = SentEntry(self.lap, payload, totals)
        self.window.append(entry)
        self.window_bytes += len(payload)
        self._lac_due_us = None
        if self.state is WriterState.OPEN:
            self._send(entry)
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
        if status is BookieStatus.SEALED:
            self._fence(f"{member.bookie} is sealed")
        else:
            self._on_refused(member, status, now_us)
        return []

    def on_lac(self, member: Member, status: BookieStatus, now_us: int, round_id: int = 0) -> None:
        """A member answered an explicit LAC, which is also the probe of one that misses nothing."""
        if self.state is WriterState.FENCED:
            return
        if status is BookieStatus.SEALED:
            self._fence(f"{member.bookie} is sealed")
        elif status is not BookieStatus.OK:
            self._on_refused(member, status, now_us)
        else:
            if member in self._absent:
                self._resume(member)
            if round_id == self._round:
                self._note_in_round(member, now_us)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> list[SentEntry]:
        """The change was applied, refused, or nobody knows; returns what it acknowledges."""
        if token != self._change_token or self.state is not WriterState.CHANGING:
            return []
        self._change_token = None
        assert self._proposal is not None
        match outcome:
            case CommitOutcome.APPLIED:
                return self._adopt(self._proposal, self.version + 1, now_us)
            case CommitOutcome.UNAVAILABLE if not self._has_unknown_commit:
                self.state = WriterState.OPEN
                return self._settle(now_us)
            case CommitOutcome.UNKNOWN:
                self._has_unknown_commit = True
                self._retry_at_us = now_us + RETRY_DELAY_US
            case _:
                self._read_again()
        return []

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> list[SentEntry]:
        """The segment was read after a conflict or an unknown outcome (R3, R6)."""
        if token != self._read_token or self.state is not WriterState.CHANGING:
            return []
        self._read_token = None
        if view is None:
            self._retry_at_us = now_us + RETRY_DELAY_US
            return []
        for segment, version in view.segments:
            if segment.epoch == self.segment.epoch and segment.state is SegmentState.OPEN:
                if segment.nonce in self._own_nonces:
                    return self._adopt(segment, version, now_us)
                self.segment, self.version = segment, version
                self._propose()
                return self._settle(now_us)
        self._fence("the segment is no longer open")
        return []

    def on_timer(self, now_us: int) -> None:
        """Probe absent members, try a change again, tell the LAC."""
        if self._is_still:
            return
        if self._retry_at_us is not None and now_us >= self._retry_at_us:
            self._retry_at_us = None
            if self.state is WriterState.CHANGING and self._change_token is None:
                self._read_again()
        if self._lac_due_us is not None and now_us >= self._lac_due_us:
            self._lac_due_us = None
            self._tell_lac()
        self._bound_owed(now_us)
        due = [m for m, absence in self._absent.items() if now_us >= absence.probe_at_us]
        for member in due:
            self._probe(member, now_us)
        if due and self.state is WriterState.OPEN and self.suspended:
            self._propose()
        if self._round_again_at_us is not None and now_us >= self._round_again_at_us:
            self._restart_round(now_us)

    def hold(self) -> None:
        """The owner begins to close: nothing is sent and no ensemble changed from here on (R19).

        What is acknowledged is made visible first: the close may take as long as the metadata store
        is away, and readers would look for the tail in vain.
        """
        assert self.is_drained, self
        self._tell_lac()
        self.state = WriterState.HELD
        self._round_holders = self._round_again_at_us = None
        self._round_wanted = 0

    def release(self) -> None:
        """The close was called off, and nothing of it can ever be applied: go on."""
        if self.state is WriterState.HELD:
            self.state = WriterState.OPEN
            if self.suspended:
                self._propose()

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """The range is recorded for repair: memory need not keep it for this member any longer."""
        self._persist_again_at_us = 0
        for entry_id in range(owed.first, owed.last + 1):
            entry = self.owed.get(EntryId(entry_id))
            if entry is not None and owed.member not in entry.holders:
                entry.holders.append(owed.member)
                self._drop_if_complete(entry)

    def on_bookies_changed(self, now_us: int) -> None:
        """Other bookies are available: a suspended member may be replaced or probed at once."""
        for absence in self._absent.values():
            absence.probe_at_us = min(absence.probe_at_us, now_us)
        self.on_timer(now_us)

    def persist_owed(self) -> None:
        """Record everything that is still owed, before the segment is closed or memory is short."""
        missing: dict[Member, list[EntryId]] = {}
        for entry in self.owed.values():
            fragment = self.segment.fragment_of(entry.entry)
            if fragment.first_entry not in self._indebted:
                self._indebted.append(fragment.first_entry)
            for member in self._missing(entry):
                missing.setdefault(member, []).append(entry.entry)
        for member, entries in missing.items():
            first = entries[0]
            for here, after in zip(entries, [*entries[1:], None], strict=True):
                if after != here + 1:
                    self._ports.put(PersistOwed(self.segment.ledger_id, member, first, here))
                    first = after if after is not None else first

    # --- ack rounds (docs/protocol/write.md "Refusals") ------------------------------------------

    def ask_round(self, now_us: int) -> int:
        """Prove that the epoch was not sealed now: `round_done` reaches the number returned.

        A round that is under way began too early: the next one counts. An ack set, Qa members of
        one write set of the last fragment, meets every covering seal.
        """
        self._round_wanted = self._round + 1
        self._begin_round(now_us)
        return self._round_wanted

    def _begin_round(self, now_us: int) -> None:
        is_due = self._round_wanted > self._round and self._round_holders is None
        if not is_due or self.state is not WriterState.OPEN:
            return
        self._round += 1
        self._round_holders = []
        self._round_again_at_us = now_us + PROBE_INTERVAL_US
        for member in self.segment.last_fragment.ensemble:
            if member not in self._absent:
                self._ports.put(SendLac(member, self.segment.ledger_id, self.lac, self._round))

    def _note_in_round(self, member: Member, now_us: int) -> None:
        """R6: nothing counts while an ensemble must be changed; a change begins the round anew."""
        holders = self._round_holders
        if holders is None or self.state is not WriterState.OPEN:
            return
        if member not in holders:
            holders.append(member)
        quorum = self.segment.quorum
        sets = write_sets(self.segment.last_fragment.ensemble, quorum)
        if any(sum(m in holders for m in members) >= quorum.ack_quorum for members in sets):
            self.round_done = self._round
            self._round_holders = self._round_again_at_us = None
            self._begin_round(now_us)

    def _restart_round(self, now_us: int) -> None:
        """A round that is not over is void: those who wait for it are served by the next."""
        self._round_again_at_us = None
        if self._round_holders is not None:
            self._round_holders = None
            self._round_wanted = self._round + 1
        self._begin_round(now_us)

    # --- storing ---------------------------------------------------------------------------------

    def _send(self, entry: SentEntry) -> None:
        entry.is_sent = True
        for member in self.segment.write_set_of(entry.entry):
            if member not in self._absent and member not in entry.holders:
                self._send_to(member, entry)

    def _send_to(self, member: Member, entry: SentEntry) -> None:
        lac = EntryId(min(self.lac, entry.entry - 1))
        self._ports.put(SendAdd(member, self.segment.ledger_id, entry.entry, lac, entry.payload))

    def _on_stored(self, member: Member, entry_id: EntryId) -> None:
        if member in self._gone:
            return
        if entry_id > self.lac:
            index = entry_id - self.lac - 1
            if index >= len(self.window):
                return
            entry = self.window[index]
            # R8: an acknowledgement counts only from a member of the *current* write set.
            if member in self.segment.write_set_of(entry_id) and member not in entry.holders:
                entry.holders.append(member)
        elif (owed := self.owed.get(entry_id)) is not None and member not in owed.holders:
            owed.holders.append(member)
            self._drop_if_complete(owed)
        if member in self._absent:
            self._resume(member)

    def _advance(self, now_us: int) -> list[SentEntry]:
        """Acknowledge what can be, move the LAC over it, and note which copies are owed (R9)."""
        if self.state is not WriterState.OPEN:
            return []
        acknowledged = self._find_acknowledged()
        while self.window and self.window[0].is_acknowledged:
            entry = self.window.popleft()
            self.window_bytes -= len(entry.payload)
            self.lac = entry.entry
            self.lac_totals = entry.totals
            if self._missing(entry):
                self.owed[entry.entry] = entry
                self.owed_bytes += len(entry.payload)
        if acknowledged:
            if self._lac_due_us is None:
                self._lac_due_us = now_us + self._commit_delay_us
            self._bound_owed(now_us)
        return acknowledged

    def _bound_owed(self, now_us: int) -> None:
        """Record what is owed once this log, or all logs together, keep much of it in memory."""
        is_much = self.owed_bytes > self._owed_bytes_max or (
            self.owed_bytes > 0 and self._ports.owed_by_all() > OWED_BYTES_MAX_PER_SEQUENCER // 2
        )
        if is_much and now_us >= self._persist_again_at_us:
            self._persist_again_at_us = now_us + RETRY_DELAY_MAX_US
            self.persist_owed()

    def _find_acknowledged(self) -> list[SentEntry]:
        """R5: Qa members of its write set hold it and, if `ordered`, every lower one is too."""
        found = []
        for entry in self.window:
            if len(entry.holders) >= self.segment.quorum.ack_quorum:
                if not entry.is_acknowledged:
                    entry.is_acknowledged = True
                    found.append(entry)
            elif self.segment.ack_mode == "ordered":
                break
        return found

    def _missing(self, entry: SentEntry) -> list[Member]:
        return [m for m in self.segment.write_set_of(entry.entry) if m not in entry.holders]

    def _drop_if_complete(self, entry: SentEntry) -> None:
        if not self._missing(entry):
            del self.owed[entry.entry]
            self.owed_bytes -= len(entry.payload)

    def _tell_lac(self) -> None:
        """Make the tail visible: to the whole last fragment, when no add carried this LAC."""
        if self._commits_by_entry:
            # Readers need the LAC of the last record; that of a control entry shows them nothing.
            self.wants_control = min(self.lac, self._last_data) > self._lac_told
            return
        if self.lac == self._lac_told:
            return
        self._lac_told = self.lac
        for member in self.segment.last_fragment.ensemble:
            if member not in self._absent:
                self._ports.put(SendLac(member, self.segment.ledger_id, self.lac))

    # --- members that fail -----------------------------------------------------------------------

    def _on_refused(self, member: Member, status: BookieStatus, now_us: int) -> None:
        if status is BookieStatus.WRONG_INCARNATION:
            # R5: what lay on the disks that it had is no copy for what is yet to be acknowledged.
            self._gone.add(member)
            for entry in self.window:
                if member in entry.holders and not entry.is_acknowledged:
                    entry.holders.remove(member)
        self._on_member_failed(member, now_us)

    def _on_member_failed(self, member: Member, now_us: int) -> None:
        absence = self._absent.get(member)
        if absence is not None:
            absence.is_probing = False
            absence.probe_at_us = now_us + PROBE_INTERVAL_US
            return
        known = any(member in fragment.ensemble for fragment in self.segment.fragments)
        if not known:
            return
        self._absent[member] = _Absence(now_us + PROBE_INTERVAL_US)
        if self.state is WriterState.OPEN and member in self.segment.last_fragment.ensemble:
            self._propose()

    def _propose(self) -> None:
        """Replace what failed if anything can be placed; otherwise it is suspended (R6)."""
        if self.segment.ack_mode == "out_of_order":
            # An acknowledged entry above the LAC would be looked for where it never was: roll.
            self.wants_roll = True
            return
        ensemble = None
        if self._ports.may_change_ensemble():
            ensemble = choose_replacements(
                self.segment.last_fragment.ensemble,
                self.suspended,
                [c for c in self._ports.candidates() if c.member not in self._absent],
                self.segment.quorum,
                self.rule,
                self._ports.locations(),
                self._ports.rng,
            )
        if ensemble is None:
            if not self._has_unknown_commit:
                self.state = WriterState.OPEN
                return
            # After a change of unknown fate only a successful CAS may lift R6's ban:
            # it writes the present ensemble again.
            ensemble = self.segment.last_fragment.ensemble
        self.state = WriterState.CHANGING
        nonce = self._ports.new_nonce()
        self._own_nonces.append(nonce)
        self._proposal = self.segment.with_ensemble(
            EntryId(self.lac + 1), ensemble, self.lac_totals, nonce
        )
        self._change_token = self._ports.new_token()
        self._ports.put(Commit(self._change_token, (SetSegment(self._proposal, self.version),)))

    def _read_again(self) -> None:
        self._read_token = self._ports.new_token()
        self._ports.put(ReadMetadata(self._read_token))

    def _settle(self, now_us: int) -> list[SentEntry]:
        """Go on in OPEN, with whatever members are left: send what waited, acknowledge."""
        if self.state is not WriterState.OPEN:
            return []
        for entry in self.window:
            if not entry.is_sent:
                self._send(entry)
        self._restart_round(now_us)
        return self._advance(now_us)

    def _adopt(self, segment: Segment, version: int, now_us: int) -> list[SentEntry]:
        """The new ensemble is in force. R7: first drop acks of replaced members everywhere."""
        self.segment, self.version = segment, version
        self.state = WriterState.OPEN
        self.change_count += 1
        self._has_unknown_commit = False
        self._own_nonces.clear()
        self._proposal = None
        for entry in self.window:
            current = segment.write_set_of(entry.entry)
            entry.holders = [member for member in entry.holders if member in current]
        for entry in self.window:
            self._send(entry)
        acknowledged = self._advance(now_us)
        if self.suspended and self.state is WriterState.OPEN:
            self._propose()
        self._restart_round(now_us)
        return acknowledged

    def _is_needed(self, member: Member) -> bool:
        if member in self.segment.last_fragment.ensemble:
            return True
        return any(member in self._missing(entry) for entry in self.owed.values())

    def _probe(self, member: Member, now_us: int) -> None:
        """Try an absent member with the oldest entry that it misses."""
        if not self._is_needed(member):
            # It was replaced; until now it was kept in mind so as not to be chosen at once again.
            del self._absent[member]
            return
        absence = self._absent[member]
        absence.probe_at_us = now_us + PROBE_INTERVAL_US
        if absence.is_probing:
            return
        absence.is_probing = True
        entry = next((e for e in self._entries() if member in self._missing(e)), None)
        if entry is not None:
            self._send_to(member, entry)
        else:
            self._ports.put(SendLac(member, self.segment.ledger_id, self.lac))

    def _resume(self, member: Member) -> None:
        """The member answered: it gets everything that it missed, oldest first."""
        if self.state is WriterState.HELD:
            # Nothing may be sent now; it is probed again if the close is called off.
            self._absent[member].is_probing = False
            return
        del self._absent[member]
        for entry in self._entries():
            if member in self._missing(entry):
                self._send_to(member, entry)
        # It may have missed the LAC as well: tell it to everybody again, at once.
        self._lac_told = NOTHING
        self._lac_due_us = 0

    def _entries(self) -> list[SentEntry]:
        return [*self.owed.values(), *self.window]

    def _fence(self, reason: str) -> None:
        self.state = WriterState.FENCED
        self.fence_reason = reason

    # --- proof -----------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert invariants 1 to 3."""
        ids = [entry.entry for entry in self.window]
        assert ids == list(range(self.lac + 1, self.lap + 1)), f"1: {self}"
        if self.state is WriterState.OPEN and self.window:
            assert len(self.window[0].holders) < self.segment.quorum.ack_quorum, f"2: {self}"
        assert self.owed_bytes == sum(len(e.payload) for e in self.owed.values()), f"3: {self}"

    def __repr__(self) -> str:
        return (
            f"<writer {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"lac={self.lac} lap={self.lap} owed={len(self.owed)} absent={list(self._absent)}>"
        )
