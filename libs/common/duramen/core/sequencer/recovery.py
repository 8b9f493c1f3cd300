"""Recovery of one segment: fence it, find out what it holds, make that durable, close it.

    MARK → SEAL → SEALED → READ ⇄ WRITE_BACK → CLOSE → DONE

MARK says in the metadata that only recovery may close the segment. SEAL fences its last fragment
until a cover has answered (R12). SEALED waits for the close of the epoch before. For a log with
`early_append` it first writes the bound: the highest entry that the cover has seen. Later entries
of a zombie, above the bound, are not recovered: newer epochs may have acknowledged entries by then.
READ walks up from the LAC under seal (R14), WRITE_BACK stores what is found in its whole write set
(R16), until a cover has proved an absence (R15). CLOSE moves LCE in the same `multi()`. Many may
recover at once: one close succeeds, the others adopt it. Doubt (UNKNOWN, errors, silence) proves
nothing: recovery asks again. Invariants (see `validate`):
 1 reading begins after SEAL was covered. 2 the end is below an entry that a cover lacks, or bound.
 3 no entry up to the highest LAC seen is left out (R13). 4 none above a known bound is part of it.
Source: docs/protocol/recovery.md "Recovery of a segment" and "Takeover", R10, R12–R17.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, choose_replacements
from duramen.core.quorum import covers, write_set, write_sets
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import (
    Commit,
    CommitOutcome,
    LogView,
    PersistOwed,
    ReadMetadata,
    SendAdd,
    SendRecoveryRead,
    SendSeal,
    SetLog,
    SetSegment,
    StoredEntry,
)
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Member
from duramen.limits import RETRY_BACKOFF


class RecoveryState(enum.Enum):
    """See the module's head."""

    MARK = "mark"
    SEAL = "seal"
    SEALED = "sealed"
    READ = "read"
    WRITE_BACK = "write back"
    CLOSE = "close"
    DONE = "done"


@dataclass(slots=True)
class _Position:
    """The entry that is being read or written back."""

    entry: EntryId
    absent: list[Member] = field(default_factory=list)
    failed: list[Member] = field(default_factory=list)
    stored: StoredEntry | None = None
    holders: list[Member] = field(default_factory=list)
    lost: list[Member] = field(default_factory=list)
    refused: list[Member] = field(default_factory=list)
    """Every member that failed to store it since the last pause: not to be chosen again at once."""


class Recovery:
    """Recovers one segment after the LCE of `log`; it is read and closed when it is the next one.

    Args:
        segment: as read; with `version` of its node.
        log: as read in the same view; with `log_version`.
        needs_bound: newer epochs may be appended to before this one is closed.
        unix_ms: wall-clock time of the driver's `now_us`, to be shown only.
    """

    def __init__(
        self,
        segment: Segment,
        version: int,
        log: LogNode,
        log_version: int,
        *,
        rule: PlacementRule,
        ports: Ports,
        unix_ms: Callable[[int], int],
        needs_bound: bool = False,
    ) -> None:
        assert segment.epoch > log.last_clean_epoch, (segment, log)
        self.state = RecoveryState.MARK
        self.segment = segment
        self.version = version
        self.log = log
        self.log_version = log_version
        self.recovered_count = 0
        self._rule = rule
        self._ports = ports
        self._unix_ms = unix_ms
        self._needs_bound = needs_bound
        self._frozen = segment.last_fragment
        self._sealed: dict[Member, tuple[EntryId, EntryId]] = {}
        self._doubtful: list[Member] = []
        self._lac = NOTHING
        self._fragments = list(segment.fragments)
        self._position: _Position | None = None
        self._highest = NOTHING
        self._last_found = NOTHING
        self._absent_entries: list[EntryId] = []
        self._end: EntryId | None = None
        self._end_totals = Totals()
        self._end_has_state = True
        self._token: int | None = None
        self._changed: Segment | None = None
        self._closing: tuple[SetSegment, SetLog] | None = None
        self._retry_at_us: int | None = None
        self._retry_delay_us = RETRY_BACKOFF.first_us

    @property
    def is_done(self) -> bool:
        """The segment is closed, by us or by another; `log` is the node as it was read then."""
        return self.state is RecoveryState.DONE

    @property
    def epoch(self) -> Epoch:
        """The epoch that is recovered."""
        return self.segment.epoch

    @property
    def progress(self) -> tuple[Epoch, RecoveryState, EntryId | None]:
        """Differs whenever it has come further."""
        position = self._position
        return self.epoch, self.state, None if position is None else position.entry

    @property
    def may_have_state(self) -> bool:
        """Whether the segment may carry producers or control records, as far as was seen."""
        return self._end_has_state

    @property
    def is_bounded(self) -> bool:
        """A cover is sealed, and nothing that is not stored by now will ever be part of it."""
        return self.segment.bound is not None and self.state not in (
            RecoveryState.MARK,
            RecoveryState.SEAL,
        )

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        return self._retry_at_us

    def start(self, now_us: int) -> None:
        """Begin with MARK, or go on from what the segment's state says."""
        self._go_on(now_us)

    def follow(self, view: LogView, now_us: int) -> None:
        """The nodes as they were just read: this one's turn comes with the close of the others."""
        if view.log_version > self.log_version:
            self.log, self.log_version = view.log, view.log_version
        if self._token is not None or self.state in (RecoveryState.MARK, RecoveryState.CLOSE):
            return  # an answer is on its way, or it reads the nodes by itself
        for segment, version in view.segments:
            # A view that was asked for before our own change came into force may come after it.
            is_news = segment.epoch == self.segment.epoch and version > self.version
            if is_news and not segment.is_closed:
                self.segment, self.version = segment, version
        if self.state is RecoveryState.SEALED:
            self._leave_sealed(now_us)
        elif self._position is not None and self._is_above_bound(self._position.entry):
            self._begin_reading_anew(now_us)

    # --- metadata --------------------------------------------------------------------------------

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """MARK or CLOSE was applied or not."""
        if token != self._token:
            return
        self._token = None
        if outcome is not CommitOutcome.APPLIED:
            # Whatever it was, the nodes decide: read them again, after a pause.
            self._retry_later(now_us)
        elif self.state is RecoveryState.CLOSE:
            self._finish_by_own_close()
        else:
            assert self._changed is not None
            self.segment, self.version = self._changed, self.version + 1
            self._go_on(now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The nodes as they are after a conflict, an unknown outcome or a pause."""
        if token != self._token:
            return
        self._token = None
        if view is None:
            self._retry_later(now_us)
            return
        if view.log_version > self.log_version:
            self.log, self.log_version = view.log, view.log_version
        if view.log.last_clean_epoch >= self.segment.epoch:
            self.state = RecoveryState.DONE
            # Another may have closed it at an end that was not seen here.
            self._end_has_state = True
            return
        for segment, version in view.segments:
            if segment.epoch == self.segment.epoch:
                self.segment, self.version = segment, version
        self._go_on(now_us)

    # --- seal ------------------------------------------------------------------------------------

    def on_seal(
        self, member: Member, status: BookieStatus, lac: EntryId, highest: EntryId, now_us: int
    ) -> None:
        """A member is sealed and told its marks, or did not answer as it should."""
        if self.state is not RecoveryState.SEAL or member not in self._frozen.ensemble:
            return
        # UNKNOWN: sealed for certain, but damage may hide entries. Reads of an `ordered` segment
        # find that out one by one; a scan to the highest entry needs somebody who knows it.
        is_ordered = self.segment.ack_mode == "ordered"
        if status is not BookieStatus.OK and not (status is BookieStatus.UNKNOWN and is_ordered):
            self._retry_later(now_us)
            return
        self._sealed[member] = (lac, highest)
        if status is BookieStatus.UNKNOWN:
            _note(member, self._doubtful)
        elif member in self._doubtful:
            self._doubtful.remove(member)
        if self._is_sealed_by_cover():
            self._lac = EntryId(max(seen for seen, _ in self._sealed.values()))
            self._highest = EntryId(max(seen for _, seen in self._sealed.values()))
            self.state = RecoveryState.SEALED
            self._retry_at_us = None
            self._leave_sealed(now_us)

    def _is_sealed_by_cover(self) -> bool:
        """R12 holds, and R13: the cover has seen the entry that its highest LAC speaks of."""
        sets = write_sets(self._frozen.ensemble, self.segment.quorum)
        if not covers(self._sealed.keys(), sets, self.segment.quorum.ack_quorum):
            return False
        lac = max(seen for seen, _ in self._sealed.values())
        highest = max(seen for _, seen in self._sealed.values())
        return lac <= max(highest, self._frozen.first_entry - 1)

    def _leave_sealed(self, now_us: int) -> None:
        """Write the bound where one is wanted, then wait for the epoch before to be closed."""
        if self._needs_bound and self.segment.bound is None and self._knows_bound():
            bound = max(self._highest, self._lac, self._frozen.first_entry - 1)
            self._change(self.segment.bounded(EntryId(bound), self._ports.new_nonce()))
        elif self.log.last_clean_epoch == self.segment.epoch - 1:
            self._begin_reading(now_us)

    def _knows_bound(self) -> bool:
        """A member with damage may hide an acknowledged entry, so the others have to cover."""
        certain = [member for member in self._sealed if member not in self._doubtful]
        sets = write_sets(self._frozen.ensemble, self.segment.quorum)
        return covers(certain, sets, self.segment.quorum.ack_quorum)

    def _begin_reading_anew(self, now_us: int) -> None:
        """Another wrote a bound meanwhile: what was found above it does not count."""
        self._end = None
        self._fragments = list(self.segment.fragments)
        self._begin_reading(now_us)

    def _begin_reading(self, now_us: int) -> None:
        """R13: from the highest LAC on, but never below the last fragment."""
        self._retry_at_us = None
        self._absent_entries.clear()
        first = self._frozen.first_entry
        self._last_found = EntryId(max(self._lac, first - 1))
        if self._lac >= first:
            # The entry at the LAC is there for certain; it is read for the totals up to it.
            self._read(self._lac, now_us)
        else:
            self._end_totals = self._frozen.totals_before
            self._end_has_state = first > 0
            self._read(first, now_us)

    # --- read and write back ---------------------------------------------------------------------

    def on_read(
        self,
        member: Member,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
        now_us: int,
    ) -> None:
        """A member returned the entry, proved that it has none, or left it in doubt."""
        position = self._position
        if self.state is not RecoveryState.READ or position is None or entry != position.entry:
            return
        if status is BookieStatus.OK and stored is not None:
            self._found(position, stored, now_us)
        elif status is BookieStatus.NO_ENTRY:
            _note(member, position.absent)
            self._judge_absence(position, now_us)
        else:
            _note(member, position.failed)
            self._judge_absence(position, now_us)

    def _read(self, entry: EntryId, now_us: int) -> None:
        self._retry_delay_us = RETRY_BACKOFF.first_us
        if self._is_above_bound(entry) and entry > self._lac:
            self._conclude(now_us)
            return
        self.state = RecoveryState.READ
        self._position = _Position(entry)
        self._ask_next(self._position, now_us)

    def _is_above_bound(self, entry: EntryId) -> bool:
        return self.segment.bound is not None and entry > self.segment.bound

    def _conclude(self, now_us: int) -> None:
        """What was found last is the end."""
        self._end = self._last_found
        self._position = None
        self._close(now_us)

    def _ask_next(self, position: _Position, now_us: int) -> None:
        """One replica at a time: nearly always the first one has it."""
        members = write_set(self._frozen.ensemble, self.segment.quorum, position.entry)
        waiting = [m for m in members if m not in position.absent and m not in position.failed]
        if waiting:
            first = waiting[self._ports.rng.randrange(len(waiting))]
            self._ports.put(SendRecoveryRead(first, self.segment.ledger_id, position.entry))
        else:
            # Doubt is left: forget who failed, keep who proved, ask again after a pause (R15).
            position.failed.clear()
            self._retry_later(now_us)

    def _judge_absence(self, position: _Position, now_us: int) -> None:
        members = write_set(self._frozen.ensemble, self.segment.quorum, position.entry)
        proved = covers(position.absent, (members,), self.segment.quorum.ack_quorum)
        if not proved or position.entry <= self._lac:
            self._ask_next(position, now_us)
        elif self.segment.ack_mode == "out_of_order" and position.entry < self._highest:
            # Entries above it may be acknowledged: the absence is a hole, not the end.
            self._absent_entries.append(position.entry)
            self._read(EntryId(position.entry + 1), now_us)
        else:
            self._conclude(now_us)

    def _found(self, position: _Position, stored: StoredEntry, now_us: int) -> None:
        if position.entry <= self._lac:
            self._end_totals = stored.totals
            self._end_has_state = stored.has_state
            self._read(EntryId(position.entry + 1), now_us)
            return
        self.state = RecoveryState.WRITE_BACK
        position.stored = stored
        self._write_back(position, self._write_set(position.entry))

    def _write_set(self, entry: EntryId) -> tuple[Member, ...]:
        fragment = next(f for f in reversed(self._fragments) if f.first_entry <= entry)
        return write_set(fragment.ensemble, self.segment.quorum, entry)

    def _write_back(self, position: _Position, members: Collection[Member]) -> None:
        assert position.stored is not None
        for member in members:
            self._ports.put(
                SendAdd(
                    member,
                    self.segment.ledger_id,
                    position.entry,
                    EntryId(min(self._lac, position.entry - 1)),
                    position.stored.payload,
                    is_recovery=True,
                )
            )

    def on_add(self, member: Member, entry: EntryId, status: BookieStatus, now_us: int) -> None:
        """A member stored a write-back, or failed to."""
        position = self._position
        if (
            self.state is not RecoveryState.WRITE_BACK
            or position is None
            or entry != position.entry
            or member not in self._write_set(entry)
        ):
            return
        _note(member, position.holders if status is BookieStatus.OK else position.lost)
        members = self._write_set(entry)
        answered = [m for m in members if m in position.holders or m in position.lost]
        if len(answered) < len(members):
            return
        if len(position.holders) >= self.segment.quorum.ack_quorum:
            self._complete(position, now_us)
        else:
            self._replace_lost(position, now_us)

    def _complete(self, position: _Position, now_us: int) -> None:
        """At least Qa hold it durably; what the others miss is marked for repair (R16)."""
        assert position.stored is not None
        for member in self._write_set(position.entry):
            if member not in position.holders:
                ledger_id = self.segment.ledger_id
                self._ports.put(PersistOwed(ledger_id, member, position.entry, position.entry))
        self.recovered_count += 1
        self._last_found = position.entry
        self._end_totals = position.stored.totals
        self._end_has_state = position.stored.has_state
        self._read(EntryId(position.entry + 1), now_us)

    def _replace_lost(self, position: _Position, now_us: int) -> None:
        """Another ensemble from this entry on, kept in memory until CLOSE (R16)."""
        last = self._fragments[-1]
        position.refused += position.lost
        ensemble = choose_replacements(
            last.ensemble,
            position.lost,
            [c for c in self._ports.candidates() if c.member not in position.refused],
            self.segment.quorum,
            self._rule,
            self._ports.locations(),
            self._ports.rng,
        )
        position.lost.clear()
        if ensemble is None:
            position.refused.clear()
            self._retry_later(now_us)
            return
        if last.first_entry == position.entry:
            self._fragments.pop()
        self._fragments.append(Fragment(position.entry, ensemble, self._end_totals))
        members = self._write_set(position.entry)
        position.holders = [member for member in position.holders if member in members]
        self._write_back(position, [m for m in members if m not in position.holders])

    # --- close -----------------------------------------------------------------------------------

    def _close(self, now_us: int) -> None:
        """One `multi()` closes the segment and moves LCE and totals; requires LCE = epoch − 1."""
        assert self._end is not None and self._end >= self._lac, self
        self.state = RecoveryState.CLOSE
        nonce = self._ports.new_nonce()
        closed = self.segment.closed(
            last_entry=self._end,
            totals=self._end_totals,
            start_seq_num=self.log.totals.record_count,
            completed_unix_ms=self._unix_ms(now_us),
            nonce=nonce,
            holes=_join([entry for entry in self._absent_entries if entry < self._end]),
            fragments=self._list_fragments(),
        )
        self._token = self._ports.new_token()
        log = self.log.with_clean(closed, nonce)
        if self.log.is_stateless and not self._end_has_state:
            # Retention need not wait for an owner's close to know that nothing is to be rebuilt.
            log = log.with_stateless()
        self._closing = (SetSegment(closed, self.version), SetLog(log, self.log_version))
        self._ports.put(Commit(self._token, self._closing))

    def _list_fragments(self) -> tuple[Fragment, ...]:
        """R3, R13: ours from the frozen one on, the earlier ones as they are now: repair's."""
        first = self._frozen.first_entry
        earlier = [f for f in self.segment.fragments if f.first_entry < first]
        return (*earlier, *[f for f in self._fragments if f.first_entry >= first])

    def _finish_by_own_close(self) -> None:
        assert self._closing is not None
        segment, log = self._closing
        self.segment, self.version = segment.segment, segment.version + 1
        self.log, self.log_version = log.log, log.version + 1
        self.state = RecoveryState.DONE

    # --- progress --------------------------------------------------------------------------------

    def _go_on(self, now_us: int) -> None:
        """Do what the segment's state, as just read, asks for."""
        if self.segment.is_closed:
            # Another closed it between the reads of the two nodes: LCE will show it.
            self._retry_later(now_us)
        elif self.segment.state is SegmentState.OPEN:
            assert self.state is RecoveryState.MARK, self
            self._change(self.segment.marked(self._ports.new_nonce()))
        elif self.state is RecoveryState.MARK:
            self._seal(now_us)
        elif self.state is RecoveryState.SEALED:
            self._leave_sealed(now_us)
        elif self.state is RecoveryState.CLOSE:
            assert self._end is not None
            if self._is_above_bound(self._end):
                self._begin_reading_anew(now_us)
            else:
                self._close(now_us)

    def _change(self, segment: Segment) -> None:
        self._token = self._ports.new_token()
        self._changed = segment
        self._ports.put(Commit(self._token, (SetSegment(segment, self.version),)))

    def _seal(self, now_us: int) -> None:
        """From here on the ensembles are those frozen at MARK (R14)."""
        self.state = RecoveryState.SEAL
        self._frozen = self.segment.last_fragment
        self._fragments = list(self.segment.fragments)
        self._send_seals()
        self._retry_later(now_us)

    def _send_seals(self) -> None:
        for member in self._frozen.ensemble:
            self._ports.put(SendSeal(member, self.segment.log_id, self.segment.epoch))

    def _retry_later(self, now_us: int) -> None:
        if self._retry_at_us is None:
            self._retry_at_us = now_us + self._retry_delay_us
            self._retry_delay_us = RETRY_BACKOFF.next_us(self._retry_delay_us)

    def on_timer(self, now_us: int) -> None:
        """Ask again where doubt or silence was left."""
        if self._retry_at_us is None or now_us < self._retry_at_us:
            return
        self._retry_at_us = None
        match self.state:
            case RecoveryState.MARK | RecoveryState.SEALED | RecoveryState.CLOSE:
                if self._token is None:
                    self._token = self._ports.new_token()
                    self._ports.put(ReadMetadata(self._token))
            case RecoveryState.SEAL:
                self._send_seals()
                self._retry_later(now_us)
            case RecoveryState.READ:
                assert self._position is not None
                self._ask_next(self._position, now_us)
            case RecoveryState.WRITE_BACK:
                assert self._position is not None
                members = self._write_set(self._position.entry)
                holders = self._position.holders
                self._write_back(self._position, [m for m in members if m not in holders])
            case RecoveryState.DONE:
                pass

    def validate(self) -> None:
        """Assert invariants 1 to 4."""
        if self.state in (RecoveryState.READ, RecoveryState.WRITE_BACK, RecoveryState.CLOSE):
            assert self._is_sealed_by_cover(), f"1: {self}"
            assert self.log.last_clean_epoch == self.epoch - 1, f"1: {self}"
        if self._end is not None:
            assert self.state in (RecoveryState.CLOSE, RecoveryState.DONE), f"2: {self}"
            assert self._end >= self._lac, f"3: {self}"
            assert self.segment.is_closed or not self._is_above_bound(self._end), f"4: {self}"

    def __repr__(self) -> str:
        at = "" if self._position is None else f" at={self._position.entry}"
        return (
            f"<recovery {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"lac={self._lac}{at} sealed={list(self._sealed)}>"
        )


def _note(member: Member, members: list[Member]) -> None:
    if member not in members:
        members.append(member)


def _join(entries: list[EntryId]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Ascending entries as closed ranges."""
    ranges: list[tuple[EntryId, EntryId]] = []
    for entry in entries:
        if ranges and ranges[-1][1] == entry - 1:
            ranges[-1] = (ranges[-1][0], entry)
        else:
            ranges.append((entry, entry))
    return tuple(ranges)
