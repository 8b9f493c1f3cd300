"""Recovery of one flexible segment: what its nodes report, made durable until RP holds.

    MARK → SEAL → SEALED → DIGEST → READ ⇄ WRITE_BACK ⇄ GUEST → CLOSE → DONE

SEAL fences N(e) until those that are sure of what they have are a cover (R23). DIGEST asks all
nodes what they have from LNG on. READ takes a body from a reporter; an entry that nobody gives is
absent once those that vouch for that are a cover. WRITE_BACK stores what is found at as many more
nodes as RP asks for; where N(e) is not enough, a bookie is made a guest first (GUEST). Doubt proves
nothing: it is asked again. What it does in the metadata: `takeover.segment_recovery`.
Invariants, beside those there:
 5 nothing is written back to a bookie that is no node of the segment's node as stored.
 6 who gave no body, also when asked again, or has other disks by now, is no holder.
Source: docs/protocol/recovery.md "Recovery of a flexible segment", R23, R24.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from duramen.core.entry_ranges import join_entries
from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.segment_base import Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import (
    SendDigest,
    SendRecoveryRead,
    SendSeal,
    SendWave,
    StoredEntry,
)
from duramen.core.sequencer.takeover.segment_recovery import RecoveryState, SegmentRecovery
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Member
from duramen.limits import RETRY_BACKOFF

_SEALED_STATUSES = (BookieStatus.OK, BookieStatus.UNKNOWN)
_METADATA_STATES = (
    RecoveryState.MARK, RecoveryState.SEAL, RecoveryState.SEALED, RecoveryState.CLOSE,
    RecoveryState.DONE,
)  # fmt: skip
_SURE_REFUSALS = (BookieStatus.NO_ENTRY, BookieStatus.UNKNOWN, BookieStatus.GONE)
"""A reporter that answers so to a read has lost the entry since it reported it."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What one node has of a range: entries with their identities."""

    entries: Mapping[EntryId, int]
    unvouched: frozenset[EntryId] = frozenset()
    """Entries of the range of which it cannot say whether it has them."""

    def lacks(self, entry: EntryId) -> bool:
        """Whether it vouches that it does not have this entry of the range."""
        return entry not in self.entries and entry not in self.unvouched


@dataclass(slots=True)
class _FlexiblePosition:
    """The entry that is being read or written back."""

    entry: EntryId
    unreadable: set[Member] = field(default_factory=set)
    """Reporters that gave no body: no copies until they give one, whatever a store is answered."""
    tried: set[Member] = field(default_factory=set)
    """Reporters that were asked since the last pause and gave no body."""
    asked: Member | None = None
    bodies: dict[int, StoredEntry] = field(default_factory=dict)
    """Verified ones, by identity: one, unless two writers were at work."""
    holders: list[Member] = field(default_factory=list)
    pending: set[Member] = field(default_factory=set)
    failed: set[Member] = field(default_factory=set)

    @property
    def stored(self) -> StoredEntry:
        """The body that was found, with the envelope of that copy."""
        (found,) = self.bodies.values()
        return found


class FlexibleRecovery(SegmentRecovery[FlexibleSegment]):
    """Recovers one flexible segment.

    Args: as of `SegmentRecovery`.
    """

    def __init__(
        self,
        segment: FlexibleSegment,
        version: int,
        log: LogNode,
        log_version: int,
        *,
        ports: Ports,
        unix_ms: Callable[[int], int],
        needs_bound: bool = False,
    ) -> None:
        super().__init__(
            segment, version, log, log_version,
            ports=ports, unix_ms=unix_ms, needs_bound=needs_bound,
        )  # fmt: skip
        self._own = {row.member: row for row in segment.own_nodes}
        self._sealed: dict[Member, tuple[EntryId, EntryId]] = {}
        self._doubtful: set[Member] = set()
        self._highest = NOTHING
        self._digests: dict[Member, Digest] = {}
        self._gone: set[Member] = set()
        """Nodes whose disks were replaced: what they reported is no copy any more."""
        self._guest_count = 0
        """Guests that were made since the last pause."""
        self._position: _FlexiblePosition | None = None
        self._last_found = NOTHING
        self._absent_entries: list[EntryId] = []
        self._missing_record_count = 0

    @property
    def members(self) -> frozenset[Member]:
        """Of every row; guests stand in the node before they are sent anything."""
        return frozenset(row.member for row in self.segment.nodes)

    @property
    def _reading_at(self) -> EntryId | None:
        return None if self._position is None else self._position.entry

    # --- seal ------------------------------------------------------------------------------------

    def _freeze(self) -> None:
        self._own = {row.member: row for row in self.segment.own_nodes}

    def _send_seals(self) -> None:
        for member in self._own:
            if member not in self._sealed or member in self._doubtful:
                self._ports.put(SendSeal(member, self.segment.log_id, self.segment.epoch))

    def on_seal(
        self, member: Member, status: BookieStatus, lac: EntryId, highest: EntryId, now_us: int
    ) -> None:
        """A node is sealed and told its marks, or did not answer as it should."""
        if self.state is not RecoveryState.SEAL or member not in self._own:
            return
        if status not in _SEALED_STATUSES:
            self._retry_later(now_us)
            return
        self._sealed[member] = (lac, highest)
        if status is BookieStatus.UNKNOWN:
            self._doubtful.add(member)
        else:
            self._doubtful.discard(member)
        if self._is_sealed_by_cover():
            self._lac = EntryId(max(seen for seen, _ in self._sealed.values()))
            self._highest = EntryId(max(self._sealed[m][1] for m in self._list_certain()))
            self.state = RecoveryState.SEALED
            self._retry_at_us = None
            self._leave_sealed(now_us)

    def _list_certain(self) -> list[Member]:
        return [member for member in self._sealed if member not in self._doubtful]

    def _is_sealed_by_cover(self) -> bool:
        """R23, and R13: those that are sure have seen the entry that the highest LNG tells."""
        certain = self._list_certain()
        if not self._covers(certain):
            return False
        lac = max(seen for seen, _ in self._sealed.values())
        return lac <= max(self._sealed[member][1] for member in certain)

    def _covers(self, members: Collection[Member]) -> bool:
        """Whether they meet every set of N(e) that satisfies RP."""
        own = [row.node for row in self._own.values()]
        responders = [self._own[member].node for member in members if member in self._own]
        return self.segment.replication.is_covered_by(responders, own)

    def _find_bound(self) -> EntryId:
        return self._highest

    # --- digests ---------------------------------------------------------------------------------

    @property
    def _first(self) -> EntryId:
        """The entry at LNG is read for the totals up to it."""
        return EntryId(max(self._lac, 0))

    @property
    def _last(self) -> EntryId:
        """The end of the range."""
        bound = self.segment.bound
        return self._highest if bound is None else min(self._highest, bound)

    def _begin_reading(self, now_us: int) -> None:
        self._retry_at_us = None
        self._digests = {m: digest for m, digest in self._digests.items() if m in self._gone}
        self._position = None
        self._absent_entries.clear()
        self._missing_record_count = 0
        self._last_found, self._end_totals = self._lac, Totals()
        self._end_has_state = False
        if self._last == NOTHING:
            self._conclude(now_us)
            return
        self.state = RecoveryState.DIGEST
        self._send_digests()
        self._retry_later(now_us)

    def _send_digests(self) -> None:
        """To whoever has not answered, or could not vouch for what is looked for."""
        position = self._position
        for member in self._own:
            digest = self._digests.get(member)
            is_vouched = digest is not None and not digest.unvouched
            if digest is not None and position is not None:
                is_vouched = position.entry not in digest.unvouched
            if not is_vouched and member not in self._gone:
                self._ports.put(SendDigest(member, self.segment.ledger_id, self._first, self._last))

    def on_digest(
        self, member: Member, status: BookieStatus, digest: Digest | None, now_us: int
    ) -> None:
        """A node told what it has of the range, or did not answer."""
        if self.state in _METADATA_STATES or member not in self._own or member in self._gone:
            return
        if status is BookieStatus.WRONG_INCARNATION:
            self._on_gone(member, now_us)
        elif status is BookieStatus.OK and digest is not None:
            self._digests[member] = digest
            if self.state is RecoveryState.DIGEST and len(self._digests) == len(self._own):
                self._begin_entries(now_us)
            elif self.state is RecoveryState.READ:
                self._ask_next(self._at, now_us)

    def _begin_entries(self, now_us: int) -> None:
        self._retry_at_us = None
        self._read(self._first, now_us)

    def _on_gone(self, member: Member, now_us: int) -> None:
        """Its disks were replaced: nothing that it holds counts, of any entry of the range."""
        self._gone.add(member)
        self._begin_reading(now_us)

    # --- read ------------------------------------------------------------------------------------

    @property
    def _at(self) -> _FlexiblePosition:
        assert self._position is not None, self
        return self._position

    def _read(self, entry: EntryId, now_us: int) -> None:
        self._retry_delay_us = RETRY_BACKOFF.first_us
        if entry > self._last:
            self._conclude(now_us)
            return
        self.state = RecoveryState.READ
        self._position = _FlexiblePosition(entry)
        self._ask_next(self._position, now_us)

    def _list_reporters(self, position: _FlexiblePosition) -> list[Member]:
        """Who says that it has the entry, on disks that are still there."""
        digests = self._digests.items()
        reporting = [m for m, digest in digests if position.entry in digest.entries]
        return [member for member in reporting if member not in self._gone]

    def _ask_next(self, position: _FlexiblePosition, now_us: int) -> None:
        """One reporter at a time: nearly always the first one has it."""
        if position.asked is not None:
            return
        reporters = self._list_reporters(position)
        identities = {m: self._digests[m].entries[position.entry] for m in reporters}
        unread = [m for m in reporters if identities[m] not in position.bodies]
        waiting = [m for m in unread if m not in position.tried]
        if waiting:
            self._retry_at_us = None
            position.asked = waiting[self._ports.rng.randrange(len(waiting))]
            self._ask_body(position.asked, position.entry)
        elif not position.bodies:
            self._judge_absence(position, now_us)
        elif set(unread) - position.unreadable or len(position.bodies) > 1:
            self._retry_later(now_us)  # of two identities, one is damage that shows when it is read
        else:
            self._found(position, now_us)

    def _ask_body(self, member: Member, entry: EntryId) -> None:
        self._ports.put(SendRecoveryRead(member, self.segment.ledger_id, entry, is_flexible=True))

    def _judge_absence(self, position: _FlexiblePosition, now_us: int) -> None:
        """Nobody gives it: absent, if those that vouch for that are a cover."""
        lacking = [m for m, digest in self._digests.items() if digest.lacks(position.entry)]
        if position.entry <= self._lac or not self._covers(lacking):
            self._retry_later(now_us)
        elif self.segment.ack_mode == "out_of_order":
            self._absent_entries.append(position.entry)
            self._read(EntryId(position.entry + 1), now_us)
        else:
            self._conclude(now_us)

    def on_read(
        self,
        member: Member,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
        now_us: int,
    ) -> None:
        """A reporter gave the entry, or did not."""
        position = self._position
        if position is None or entry != position.entry:
            return
        if member in position.pending & position.unreadable:
            self._on_given_again(position, member, status, stored, now_us)
            return
        if self.state is not RecoveryState.READ or member != position.asked:
            return
        position.asked = None
        if status is BookieStatus.WRONG_INCARNATION:
            self._on_gone(member, now_us)
            return
        if status is BookieStatus.OK and stored is not None:
            if stored.identity == self._digests[member].entries.get(entry):
                position.bodies[stored.identity] = stored
                position.unreadable.discard(member)
            else:
                position.unreadable.add(member)
        elif status in _SURE_REFUSALS:
            position.unreadable.add(member)
        position.tried.add(member)
        self._ask_next(position, now_us)

    def _found(self, position: _FlexiblePosition, now_us: int) -> None:
        if position.entry <= self._lac:
            self._take(position.entry, position.stored)
            self._read(EntryId(position.entry + 1), now_us)
            return
        reporters = self._list_reporters(position)
        position.holders = [member for member in reporters if member not in position.unreadable]
        position.failed = set(position.unreadable)
        self._write_back(position, now_us)

    def _take(self, entry: EntryId, stored: StoredEntry) -> None:
        """It is part of the segment. What its totals leave unexplained lay in holes before it."""
        before = stored.totals.record_count - stored.record_count
        if entry > self._lac:
            self._missing_record_count += before - self._end_totals.record_count
        self._last_found = entry
        self._end_totals = stored.totals
        self._end_has_state = stored.has_state

    def _conclude(self, now_us: int) -> None:
        """What was found last is the end."""
        self._end = self._last_found
        self._position = None
        self._close(now_us)

    # --- write back ------------------------------------------------------------------------------

    def _write_back(self, position: _FlexiblePosition, now_us: int) -> None:
        """Store it where RP lacks it; whoever is asked already may suffice."""
        rows = {row.member: row for row in self.segment.nodes}
        if self._suffices(position.holders, rows):
            self._complete(position, now_us)
            return
        self.state = RecoveryState.WRITE_BACK
        hoped_for = [*position.holders, *position.pending]
        left = position.failed | self._gone
        added = self._choose(hoped_for, [m for m in rows if m not in left], rows)
        if added is None:
            if not position.pending:
                self._invite(position, now_us)
            return
        for member in added:
            self._store(position, member, [*hoped_for, *added], rows)

    def _choose(
        self,
        hoped_for: Sequence[Member],
        pool: Sequence[Member],
        rows: Mapping[Member, NodesetRow],
    ) -> list[Member] | None:
        """As few more of the pool as RP asks for, those that are not listed first; or None.

        Then those whom the copy names: they need not wait for each other when they send it.
        """
        shunned = self._ports.shunned()
        named = self._at.stored.copyset
        others = [member for member in pool if member not in hoped_for]
        self._ports.rng.shuffle(others)
        others.sort(key=lambda member: (member in shunned, rows[member].number not in named))
        if not self._suffices([*hoped_for, *others], rows):
            return None
        added = others
        for member in reversed(others):
            rest = [one for one in added if one != member]
            if self._suffices([*hoped_for, *rest], rows):
                added = rest
        return added

    def _suffices(self, members: Collection[Member], rows: Mapping[Member, NodesetRow]) -> bool:
        nodes = [rows[member].node for member in members if member in rows]
        return self.segment.replication.is_satisfied_by(nodes)

    def _store(
        self,
        position: _FlexiblePosition,
        member: Member,
        copyset: Sequence[Member],
        rows: Mapping[Member, NodesetRow],
    ) -> None:
        stored = position.stored
        position.pending.add(member)
        numbers = [rows[one].number for one in copyset]
        # In the order of the copy that was read, so that holders do not wait for each other.
        named = [number for number in stored.copyset if number in numbers]
        order = tuple(dict.fromkeys([*named, *numbers]))
        lac = EntryId(min(self._lac, position.entry - 1))
        self._ports.put(
            SendWave(member, self.segment.ledger_id, position.entry, lac,
                     stored.payload, order, None, is_recovery=True)
        )  # fmt: skip

    def on_add(self, member: Member, entry: EntryId, status: BookieStatus, now_us: int) -> None:
        """A node stored a write-back, or failed to."""
        position = self._position
        if position is None or entry != position.entry or member not in position.pending:
            return
        if status is BookieStatus.OK and member in position.unreadable:
            # Its book may say "here" where its disk does not: it is asked for what it stored.
            self._ask_body(member, entry)
            return
        self._on_stored(position, member, status, now_us)

    def _on_given_again(
        self,
        position: _FlexiblePosition,
        member: Member,
        status: BookieStatus,
        stored: StoredEntry | None,
        now_us: int,
    ) -> None:
        """Who once gave no body, and took it since, was asked for it."""
        is_whole = stored is not None and stored.identity == position.stored.identity
        if status is BookieStatus.OK and is_whole:
            position.unreadable.discard(member)
        elif status is BookieStatus.OK:
            status = BookieStatus.UNKNOWN
        self._on_stored(position, member, status, now_us)

    def _on_stored(
        self, position: _FlexiblePosition, member: Member, status: BookieStatus, now_us: int
    ) -> None:
        position.pending.discard(member)
        if status is BookieStatus.WRONG_INCARNATION:
            self._on_gone(member, now_us)
            return
        if status is BookieStatus.OK:
            position.holders.append(member)
        else:
            position.failed.add(member)
        if self.state is RecoveryState.WRITE_BACK:
            self._write_back(position, now_us)

    def _complete(self, position: _FlexiblePosition, now_us: int) -> None:
        self.recovered_count += 1
        self._take(position.entry, position.stored)
        self._read(EntryId(position.entry + 1), now_us)

    # --- guests ----------------------------------------------------------------------------------

    def _invite(self, position: _FlexiblePosition, now_us: int) -> None:
        """N(e) and the guests are not enough: one more bookie, before it is sent anything (R24)."""
        guest = self._find_guest(position)
        is_enough = self._guest_count >= self.segment.replication.node
        if guest is None or is_enough or not self.segment.has_room:
            self._retry_later(now_us)
            return
        self._guest_count += 1
        self.state = RecoveryState.GUEST
        self._change(self.segment.with_guest(guest, self._ports.new_nonce()))

    def _find_guest(self, position: _FlexiblePosition) -> ServingBookie | None:
        """A bookie with which the copies come nearer to RP."""
        left = position.failed | self._gone
        usable = [row.node for row in self.segment.nodes if row.member not in left]
        # A bookie on new disks may be one, beside its row of before.
        members = {row.member for row in self.segment.nodes}
        names = {node.bookie for node in usable}
        free = [c for c in self._ports.candidates() if c.member not in members]
        free = [c for c in free if c.member.bookie not in names]
        free.sort(key=lambda candidate: not candidate.is_steady)
        wanted = self.segment.replication
        guests = [_serve(candidate) for candidate in free]
        if not wanted.is_satisfied_by([*usable, *guests]):
            return None
        needed = guests
        for guest in reversed(guests):
            rest = [one for one in needed if one is not guest]
            if wanted.is_satisfied_by([*usable, *rest]):
                needed = rest
        return needed[0] if needed else None

    # --- progress --------------------------------------------------------------------------------

    def _ask_again(self, now_us: int) -> None:
        if self.state is RecoveryState.DIGEST:
            self._ask_digests_again(now_us)
            return
        position = self._at
        if self.state is RecoveryState.READ:
            position.tried.clear()
            self._send_digests()
            self._ask_next(position, now_us)
        elif self.state is RecoveryState.WRITE_BACK:
            self._guest_count = 0
            position.failed.clear()
            self._write_back(position, now_us)
        else:
            self._read_nodes()

    def _ask_digests_again(self, now_us: int) -> None:
        """Those that have answered may do; else all others are asked once more."""
        if self._covers(self._digests.keys()):
            self._begin_entries(now_us)
        else:
            self._send_digests()
            self._retry_later(now_us)

    def _resume(self, now_us: int) -> None:
        """The nodes were changed or read again: there may be a guest more."""
        if self.state is RecoveryState.GUEST and self._position is not None:
            self._write_back(self._position, now_us)

    def _make_closed(self, nonce: str, now_us: int) -> FlexibleSegment:
        assert self._end is not None
        holes = [entry for entry in self._absent_entries if entry < self._end]
        return self.segment.closed_by_recovery(
            last_entry=self._end,
            totals=self._end_totals,
            start_seq_num=self.log.totals.record_count,
            completed_unix_ms=self._unix_ms(now_us),
            nonce=nonce,
            holes=join_entries(holes),
            missing_record_count=self._missing_record_count,
        )

    def validate(self) -> None:
        """Assert invariants 1 to 6."""
        super().validate()
        if self._position is not None:
            position = self._position
            members = {row.member for row in self.segment.nodes}
            assert position.pending <= members, f"5: {self}"
            left = position.unreadable | self._gone
            assert left.isdisjoint(position.holders), f"6: {self}"

    def __repr__(self) -> str:
        at = "" if self._position is None else f" at={self._position.entry}"
        return (
            f"<flexible recovery {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"lng={self._lac} last={self._highest}{at} sealed={list(self._sealed)}>"
        )


def _serve(candidate: Candidate) -> ServingBookie:
    """A candidate as a row of the segment's node has it."""
    member = candidate.member
    return ServingBookie(
        member.bookie, candidate.region, candidate.rack, member.incarnation, candidate.weight
    )
