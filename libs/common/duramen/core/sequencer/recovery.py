"""Recovery of one striped segment: what its members hold, made durable in its write sets.

    MARK → SEAL → SEALED → READ ⇄ WRITE_BACK → CLOSE → DONE

SEAL fences the last fragment until a cover has answered (R12). READ walks up from the LAC under
seal (R14), WRITE_BACK stores what is found in its whole write set (R16), until a cover has proved
an absence (R15). Doubt (UNKNOWN, errors, silence) proves nothing: recovery asks again. What it does
in the metadata is in `takeover.segment_recovery`.
Invariants, beside those there: the end is below an entry that a cover lacks, or the bound; no entry
up to the highest LAC seen is left out (R13).
Source: docs/protocol/recovery.md "Recovery of a segment" and "Takeover", R10, R12–R17.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from duramen.core.entry_ranges import join_entries
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, choose_replacements
from duramen.core.quorum import covers, write_set, write_sets
from duramen.core.segment import Fragment, Segment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import (
    PersistOwed,
    SendAdd,
    SendRecoveryRead,
    SendSeal,
    StoredEntry,
)
from duramen.core.sequencer.takeover.segment_recovery import RecoveryState, SegmentRecovery
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Member
from duramen.limits import RETRY_BACKOFF

__all__ = ["Recovery", "RecoveryState"]


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


class Recovery(SegmentRecovery[Segment]):
    """Recovers one striped segment.

    Args:
        rule: where members may be replaced.
        The others as of `SegmentRecovery`.
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
        super().__init__(
            segment, version, log, log_version,
            ports=ports, unix_ms=unix_ms, needs_bound=needs_bound,
        )  # fmt: skip
        self._rule = rule
        self._frozen = segment.last_fragment
        self._sealed: dict[Member, tuple[EntryId, EntryId]] = {}
        self._doubtful: list[Member] = []
        self._fragments = list(segment.fragments)
        self._position: _Position | None = None
        self._highest = NOTHING
        self._last_found = NOTHING
        self._absent_entries: list[EntryId] = []

    @property
    def members(self) -> frozenset[Member]:
        """Of every ensemble, those that are kept in memory too (R16)."""
        return frozenset(member for one in self._fragments for member in one.ensemble)

    @property
    def _reading_at(self) -> EntryId | None:
        return None if self._position is None else self._position.entry

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

    def _freeze(self) -> None:
        """From here on the ensembles are those frozen at MARK (R14)."""
        self._frozen = self.segment.last_fragment
        self._fragments = list(self.segment.fragments)

    def _send_seals(self) -> None:
        for member in self._frozen.ensemble:
            self._ports.put(SendSeal(member, self.segment.log_id, self.segment.epoch))

    def _find_bound(self) -> EntryId | None:
        """A member with damage may hide an acknowledged entry, so the others have to cover."""
        certain = [member for member in self._sealed if member not in self._doubtful]
        sets = write_sets(self._frozen.ensemble, self.segment.quorum)
        if not covers(certain, sets, self.segment.quorum.ack_quorum):
            return None
        return EntryId(max(self._highest, self._lac, self._frozen.first_entry - 1))

    def _begin_reading_anew(self, now_us: int) -> None:
        self._fragments = list(self.segment.fragments)
        super()._begin_reading_anew(now_us)

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

    def _conclude(self, now_us: int) -> None:
        """What was found last is the end."""
        self._end = self._last_found
        self._position = None
        self._close(now_us)

    def _ask_again(self, now_us: int) -> None:
        position = self._position
        assert position is not None
        if self.state is RecoveryState.READ:
            self._ask_next(position, now_us)
        else:
            members = self._write_set(position.entry)
            self._write_back(position, [m for m in members if m not in position.holders])

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

    # --- close ---------------------------------------------------------------------------------

    def _make_closed(self, nonce: str, now_us: int) -> Segment:
        assert self._end is not None
        end = self._end
        return self.segment.closed(
            last_entry=end,
            totals=self._end_totals,
            start_seq_num=self.log.totals.record_count,
            completed_unix_ms=self._unix_ms(now_us),
            nonce=nonce,
            holes=join_entries([entry for entry in self._absent_entries if entry < end]),
            fragments=self._list_fragments(),
        )

    def _list_fragments(self) -> tuple[Fragment, ...]:
        """R3, R13: ours from the frozen one on, the earlier ones as they are now: repair's."""
        first = self._frozen.first_entry
        earlier = [f for f in self.segment.fragments if f.first_entry < first]
        return (*earlier, *[f for f in self._fragments if f.first_entry >= first])

    def __repr__(self) -> str:
        at = "" if self._position is None else f" at={self._position.entry}"
        return (
            f"<recovery {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"lac={self._lac}{at} sealed={list(self._sealed)}>"
        )


def _note(member: Member, members: list[Member]) -> None:
    if member not in members:
        members.append(member)
