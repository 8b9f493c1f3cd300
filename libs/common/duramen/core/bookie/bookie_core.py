"""Bookie: which adds are accepted, what is sealed, and when each answer may leave.

The state machine of one bookie incarnation, without disk, network or clock. A driver checks and
feeds requests, drains `outbox` once per batch of events and carries the effects out. Records go to
the journal in the order of their tokens, and `on_persisted` comes back in the same order. An answer
is put out only after every record that it rests on is persisted (R10). That order makes a seal's
answer complete: every add accepted before the seal is durable, and known here, by then.

Not here: bytes of entries and their places, timers, what the journal has room for, and what upkeep
changes (`ledger_book`). Called by the bookie's handlers and by the simulator.
Source: R4, R10, R11, docs/protocol/write.md "Entries", docs/protocol/recovery.md "Seal",
docs/protocol/reading.md "Long polls".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from duramen.core.bookie.bookie_state import (
    NO_REQUEST,
    AddRecord,
    AddRow,
    BookieLogState,
    DropRecord,
    FilteredRow,
    LacRecord,
    LacRow,
    LedgerState,
    MarksAnswer,
    PendingAdd,
    PendingDrop,
    Persist,
    ReadEntries,
    ReadRanges,
    ReadRow,
    Record,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    SealRecord,
    SealRow,
    SpaceLevel,
)
from duramen.core.bookie.ledger_book import is_ledger
from duramen.core.bookie.ledger_reads import WAITER_COUNT_MAX, LedgerReads, refuse_read
from duramen.core.bookie.range_plan import refuse_range
from duramen.core.duty import Duty
from duramen.core.status import BookieStatus
from duramen.ids import (
    LAST_ENTRY_ID,
    LAST_EPOCH,
    NOTHING,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    epoch_of,
    is_log_id,
    log_of,
)

IdentityOf = Callable[[LedgerId, EntryId], int | None]
"""Finds the identity checksum of a settled entry; None: it cannot be read."""


def _find_no_identity(_ledger_id: LedgerId, _entry_id: EntryId) -> int | None:
    return None


class BookieCore(LedgerReads):
    """One bookie incarnation.

    Args:
        incarnation: the life of the disks that this is; every request must name it (R1).
        identity_of: the identity checksum of a settled entry, from the entry log's index; None if
            that cannot be read. Called while an add is judged, so it may not call back; whoever
            finds damage there reports it afterwards with `on_unreadable`.
        start_number: as `LedgerBook` has it.

    Invariants (checked by `validate`):
     1 a log's pending seal is never below its durable one, and if above, its record is in flight.
     2 no add that is not recovery's is pending behind a seal of its epoch (R10, R11).
     3 a ledger's highest entry is at or above everything hot, settled or unknown.
     4 no entry is two of hot, settled and unknown, none is pending that is hot or settled.
     5 tokens in flight rise; what is parked and what is pending waits for one of them.
     6 every waiter is registered once, under its ledger.
     7 no waiter waits for what is there, or for a ledger that was dropped.
     8 no dropped ledger has a state, and `gone` holds nothing below `gone_below`.
     9 the entries counted are the entries known.
    10 no add is pending behind a drop of its ledger.
    11 a doubt is bounded, and an epoch newer than the damage, only where all is in doubt.
    12 no seal is further above the epochs that metadata has shown than it may be without.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        *,
        identity_of: IdentityOf = _find_no_identity,
        start_number: int = 0,
    ) -> None:
        super().__init__(start_number)
        self.incarnation = incarnation
        self._identity_of = identity_of
        self._space = SpaceLevel.WRITABLE
        self._duty = Duty.SERVING
        self._last_token = 0
        self._in_flight: deque[tuple[int, tuple[Record, ...]]] = deque()
        self._parked: dict[int, list[Callable[[], None]]] = {}
        self._proved_open: set[LedgerId] = set()

    def __repr__(self) -> str:
        return (
            f"<BookieCore {self.incarnation[:4]} logs={len(self._logs)} "
            f"entries={self._entry_count} in_flight={len(self._in_flight)} "
            f"waiters={len(self._waiters)}{' doubtful' * self._is_everything_doubtful}>"
        )

    # --- Requests --------------------------------------------------------------------------------

    def on_adds(
        self,
        request: RequestId,
        incarnation: Incarnation,
        adds: Sequence[AddRow],
        *,
        has_room: bool = True,
    ) -> None:
        """Entries to be stored; answered by ReplyStatuses, one per row.

        Args:
            has_room: False: the journal's queue is full, so that nothing new is accepted.
        """
        if incarnation != self.incarnation:
            wrong = [BookieStatus.WRONG_INCARNATION] * len(adds)
            self.outbox.append(ReplyStatuses(request, wrong))
            return
        token = self._last_token + 1
        records: list[Record] = []
        statuses = []
        after = 0
        for row, add in enumerate(adds):
            status, awaited = self._judge_add(add, token, has_room)
            if awaited == token and status is BookieStatus.OK and self._accept(add, token):
                records.append(AddRecord(row, *add[:4], add.is_recovery))
            elif status is BookieStatus.OK and self._owes_lac(add):
                status, awaited = self._judge_lac_beside(token, has_room)
                if status is BookieStatus.OK:
                    records.append(LacRecord(add.ledger_id, add.lac))
            statuses.append(status)
            after = max(after, awaited)
        self._persist(request, records)
        self._when_durable(after, partial(self._reply_statuses, request, statuses))

    def on_seals(
        self, request: RequestId, incarnation: Incarnation, seals: Sequence[SealRow]
    ) -> None:
        """Seals; answered by ReplyMarks, one per row, after every one of them is persisted.

        UNKNOWN says: sealed, but damage may hide entries and LACs of the ledger. INVALID: not
        sealed; so is a seal that needs a proof (`needs_proof`), which the driver reports before.

        The answer is computed then, not now. Adds that were accepted before the seal may still be
        pending in the journal; they will become durable and be acknowledged. Since the journal
        keeps the order of tokens, all of them are durable when the seal is, so an answer that is
        made at that moment includes them: recovery then sees every entry that this bookie ever
        acknowledges without the recovery flag.
        """
        if incarnation != self.incarnation:
            self._refuse_marks(request, len(seals))
            return
        records: list[Record] = []
        after = 0
        # Judged once, for what is shown may rise before the answer: nobody is told of a seal that
        # was not taken.
        taken = [_is_valid_seal(s) and not self.needs_proof(s.log_id, s.epoch) for s in seals]
        for seal, is_taken in zip(seals, taken, strict=True):
            if is_taken:
                after = max(after, self._seal(seal.log_id, seal.epoch, records))
        self._persist(request, records)
        self._when_durable(after, partial(self._reply_seals, request, seals, taken))

    def on_lacs(
        self, request: RequestId, incarnation: Incarnation, updates: Sequence[LacRow]
    ) -> None:
        """LACs to be written or read; answered by ReplyMarks, one per row.

        A write that raises nothing is OK without a record: what it says is durable already, and
        that it was accepted unsealed is all that an ack round asks for.
        """
        if incarnation != self.incarnation:
            self._refuse_marks(request, len(updates))
            return
        token = self._last_token + 1
        records: list[Record] = []
        statuses = []
        after = 0
        for update in updates:
            status, awaited = self._judge_lac(update, token)
            if awaited == token and status is BookieStatus.OK:
                records.append(LacRecord(update.ledger_id, update.lac))
            statuses.append(status)
            after = max(after, awaited)
        self._persist(request, records)
        self._when_durable(after, partial(self._reply_lacs, request, updates, statuses))

    def on_reads(
        self, request: RequestId, incarnation: Incarnation, reads: Sequence[ReadRow]
    ) -> None:
        """Ranges to be read; answered by ReadEntries, one plan per row.

        A range that carries a seal is looked up after the seal is durable (R14), thus after
        everything that was accepted before it. A single range may wait (StartTimer) for its first
        entry or for the LAC. If a seal needs a proof (`needs_proof`), all ranges are INVALID.
        """
        refusal = self._judge_reads(incarnation, reads)
        if refusal is not None:
            plans = [refuse_read(read, refusal) for read in reads]
            self.outbox.append(ReadEntries(request, plans))
            return
        after = self._seal_for(request, reads)
        self._when_durable(after, partial(self._answer_reads, request, reads))

    def on_filtered_reads(
        self, request: RequestId, incarnation: Incarnation, rows: Sequence[FilteredRow]
    ) -> None:
        """As `on_reads`, of flexible segments; answered by ReadRanges."""
        reads = [row.wanted for row in rows]
        refusal = self._judge_reads(incarnation, reads)
        if refusal is not None:
            ranges = [refuse_range(row, refusal) for row in rows]
            self.outbox.append(ReadRanges(request, ranges))
            return
        after = self._seal_for(request, reads)
        self._when_durable(after, partial(self._answer_ranges, request, rows))

    def _judge_reads(
        self, incarnation: Incarnation, reads: Sequence[ReadRow]
    ) -> BookieStatus | None:
        """Why none of these reads is looked up; None: they are."""
        if incarnation != self.incarnation:
            return BookieStatus.WRONG_INCARNATION
        is_unproved = any(
            self.needs_proof(log_of(read.ledger_id), read.seal_epoch) for read in _sealing(reads)
        )
        return BookieStatus.INVALID if is_unproved else None

    def _seal_for(self, request: RequestId, reads: Sequence[ReadRow]) -> int:
        """Take the seals that reads carry; returns the token that makes all of them durable."""
        records: list[Record] = []
        after = 0
        for read in _sealing(reads):
            log_id = log_of(read.ledger_id)
            after = max(after, self._seal(log_id, Epoch(read.seal_epoch), records))
        self._persist(request, records)
        return after

    def drop(self, log_id: LogId, epoch: Epoch, *, is_all_below: bool) -> None:
        """Forget ledgers whose deletion is proved by the log's metadata (R4); may be repeated.

        From now on adds and LAC writes of them are refused; when the record is durable, what was
        known of them is forgotten and every request is answered GONE. Seals of the log stay, and
        are accepted as before.

        Args:
            epoch: 1 to LAST_EPOCH.
            is_all_below: every epoch below `epoch`; False: that one ledger.
        """
        assert is_log_id(log_id) and 0 < epoch <= LAST_EPOCH, (log_id, epoch)
        log = self._log(log_id)
        if log.is_drop_needed(epoch, is_all_below=is_all_below):
            self._persist(NO_REQUEST, [DropRecord(log_id, epoch, is_all_below)])
            log.pending_drops += (PendingDrop(self._last_token, epoch, is_all_below),)

    # --- What the driver reports -----------------------------------------------------------------

    def set_read_only(self, level: SpaceLevel) -> None:
        """Which new entries there is room for, from now on; accepted ones are stored anyway."""
        self._space = level

    def set_duty(self, duty: Duty) -> None:
        """What the bookie takes on, from now on; what was accepted before is stored anyway."""
        self._duty = duty

    @property
    def duty(self) -> Duty:
        """What is enforced now."""
        return self._duty

    def on_persisted(self, token: int) -> None:
        """The records of `token` are durable; called once per token, in their order."""
        assert self._in_flight and self._in_flight[0][0] == token, (token, self)
        _, records = self._in_flight.popleft()
        touched: dict[LedgerId, None] = {}
        for record in records:
            match record:
                case AddRecord(ledger_id=ledger_id):
                    self._store(record)
                    touched[ledger_id] = None
                case SealRecord(log_id=log_id, epoch=epoch):
                    log = self._log(log_id)
                    log.sealed = max(log.sealed, epoch)
                    self._wake_sealed(log_id, epoch)
                case DropRecord(log_id=log_id):
                    self._drop(record, token)
                case LacRecord(ledger_id=ledger_id, lac=lac):
                    ledger = self._ledger(ledger_id)
                    ledger.lac = max(ledger.lac, lac)
                    touched[ledger_id] = None
        for release in self._parked.pop(token, ()):
            release()
        for ledger_id in touched:
            self._wake(ledger_id)

    def on_segment_checked(self, ledger_id: LedgerId, *, is_open: bool, made: int = 0) -> None:
        """A synced read of the segment node, begun after the restart, is there (R10).

        OPEN proves that no recovery had sealed this ledger before: MARK precedes SEAL. A node that
        was made after the damage proves that nothing of this ledger was in it, a seal neither.

        Args:
            made: the metadata store's transaction that made the node; 0: not known.
        """
        self._asked_about.discard(ledger_id)
        if is_open:
            self._proved_open.add(ledger_id)
        self._note_made(ledger_id, made)

    # --- What is known ---------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Sizes of everything that is kept."""
        return {
            "logs": len(self._logs),
            "sealed_logs": sum(1 for log in self._logs.values() if log.sealed),
            "ledgers": sum(len(log.ledgers) for log in self._logs.values()),
            "entries": self._entry_count,
            "requests_parked": sum(map(len, self._parked.values())),
            "tokens_in_flight": len(self._in_flight),
            "waiters": len(self._waiters),
            "waiters_max": WAITER_COUNT_MAX,
            "is_everything_doubtful": self._is_everything_doubtful,
            "doubt_until": self._doubt_until,
            "space": self._space.value,
            "duty": self._duty.value,
        }

    def validate(self) -> None:
        """Assert the numbered invariants; for tests and the simulator."""
        super().validate()
        tokens = [token for token, _ in self._in_flight]
        assert tokens == sorted(set(tokens)), "5: tokens rise"
        assert all(token in tokens for token in self._parked), "5: parked on a pending token"
        for log in self._logs.values():
            assert log.sealed <= log.pending_seal, "1: seals"
            assert log.sealed == log.pending_seal or log.pending_token in tokens, (
                "1: seal in flight"
            )
            assert all(drop.token in tokens for drop in log.pending_drops), "5: drop in flight"
            for epoch, ledger in log.ledgers.items():
                drops = [drop.token for drop in log.pending_drops if drop.covers(epoch)]
                for add in ledger.pending.values():
                    assert add.token in tokens, "5: pending add in flight"
                    assert all(add.token < token for token in drops), "10: drop"
                    if not add.is_recovery and epoch <= log.pending_seal:
                        assert epoch > log.sealed and add.token < log.pending_token, "2: seal"

    # --- Adds ------------------------------------------------------------------------------------

    def _judge_add(self, add: AddRow, token: int, has_room: bool) -> tuple[BookieStatus, int]:
        """The status of an add, and the token that must be durable before it is said."""
        ledger_id, entry_id, lac, _, is_recovery, is_valid, _ = add
        if not is_valid or not NOTHING <= lac < entry_id <= LAST_ENTRY_ID:
            return BookieStatus.INVALID, 0
        if not is_ledger(ledger_id):
            return BookieStatus.INVALID, 0
        log = self._logs.get(log_of(ledger_id))
        ledger = None
        if log is not None:
            epoch = epoch_of(ledger_id)
            drop_token = log.token_of_drop(epoch)
            if drop_token is not None:
                return BookieStatus.GONE, drop_token
            if not is_recovery and epoch <= log.pending_seal:
                return BookieStatus.SEALED, self._token_of_seal(log, epoch)
            ledger = log.ledgers.get(epoch)
        if self._is_off_duty(ledger, is_recovery=is_recovery):
            return BookieStatus.READ_ONLY, 0
        if not is_recovery and not self._is_seal_certain(ledger_id):
            return BookieStatus.UNKNOWN, 0
        known = None if ledger is None else self._judge_repeated(ledger, add)
        if known is not None:
            return known
        space = self._space
        if space is SpaceLevel.FULL or (space is SpaceLevel.READ_ONLY and not is_recovery):
            return BookieStatus.READ_ONLY, 0
        if not has_room:
            return BookieStatus.OVERLOADED, 0
        return BookieStatus.OK, token

    def _is_off_duty(self, ledger: LedgerState | None, *, is_recovery: bool) -> bool:
        """Whether the bookie's duty forbids to write into a ledger; one step with accepting (R11).

        Who leaves acknowledges nothing any more, not even what it has: a recovery that believes in
        it must not end after the auditor has looked.
        """
        if not self._duty.takes_adds:
            return True
        return ledger is None and not is_recovery and not self._duty.takes_new_ledgers

    def _judge_repeated(self, ledger: LedgerState, add: AddRow) -> tuple[BookieStatus, int] | None:
        """As `_judge_add` for an entry that is here or on its way; None for any other."""
        entry_id = add.entry_id
        crc: int | None
        token = 0
        stored = ledger.stored.get(entry_id)
        if stored is not None:
            crc = stored[0]
        elif entry_id in ledger.settled:
            crc = self._identity_of(add.ledger_id, entry_id)
            if crc is None:
                return BookieStatus.UNKNOWN, 0
        elif (pending := ledger.pending.get(entry_id)) is not None:
            crc, token = pending.crc, pending.token
        else:
            return None
        return (BookieStatus.OK if crc == add.crc else BookieStatus.DIFFERENT), token

    def _accept(self, add: AddRow, token: int) -> bool:
        """Make an add pending; False if an earlier row of the same request is the same entry."""
        pending = PendingAdd(add.crc, token, add.is_recovery)
        return self._ledger(add.ledger_id).accept(add.entry_id, pending)

    def _owes_lac(self, add: AddRow) -> bool:
        """Whether a LAC record is needed so that OK to what is here, or on its way, holds."""
        if not add.has_envelope or add.is_recovery:  # R13: LAC moves by the owner alone
            return False
        return add.lac > self._find_ledger(add.ledger_id).lac

    def _judge_lac_beside(self, token: int, has_room: bool) -> tuple[BookieStatus, int]:
        """What becomes of a row whose entry needs nothing and whose LAC needs a record."""
        if self._space is SpaceLevel.FULL:
            return BookieStatus.READ_ONLY, 0
        return (BookieStatus.OK, token) if has_room else (BookieStatus.OVERLOADED, 0)

    def _reply_statuses(self, request: RequestId, statuses: Sequence[BookieStatus]) -> None:
        self.outbox.append(ReplyStatuses(request, statuses))

    # --- Seals and LACs --------------------------------------------------------------------------

    def _seal(self, log_id: LogId, epoch: Epoch, records: list[Record]) -> int:
        """Raise a log's seal; returns the token that makes it durable, 0 if it is already."""
        log = self._log(log_id)
        if epoch > log.pending_seal:
            log.pending_seal = epoch
            log.pending_token = self._last_token + 1
            records.append(SealRecord(log_id, epoch))
        return self._token_of_seal(log, epoch)

    def _token_of_seal(self, log: BookieLogState, epoch: int) -> int:
        """A refusal or a repeated seal rests on a seal that must be durable first (R10)."""
        return 0 if epoch <= log.sealed else log.pending_token

    def _judge_lac(self, update: LacRow, token: int) -> tuple[BookieStatus, int]:
        ledger_id = update.ledger_id
        if not is_ledger(ledger_id) or not NOTHING <= update.lac <= LAST_ENTRY_ID:
            return BookieStatus.INVALID, 0
        ledger = self._find_ledger(ledger_id)
        if not update.is_write:
            certain = not (ledger.is_doubtful or self.is_in_doubt(ledger_id))
            if not certain:
                self.ask_if_newer(ledger_id)
            return (BookieStatus.OK if certain else BookieStatus.UNKNOWN), 0
        log = self._logs.get(log_of(ledger_id))
        if log is not None:
            epoch = epoch_of(ledger_id)
            drop_token = log.token_of_drop(epoch)
            if drop_token is not None:
                return BookieStatus.GONE, drop_token
            if epoch <= log.pending_seal:
                return BookieStatus.SEALED, self._token_of_seal(log, epoch)
        known = None if log is None else log.ledgers.get(epoch_of(ledger_id))
        if self._is_off_duty(known, is_recovery=False):
            return BookieStatus.READ_ONLY, 0
        if not self._is_seal_certain(ledger_id):
            return BookieStatus.UNKNOWN, 0
        if update.lac <= ledger.lac:
            return BookieStatus.OK, 0
        if self._space is SpaceLevel.FULL:
            return BookieStatus.READ_ONLY, 0
        return BookieStatus.OK, token

    def _is_seal_certain(self, ledger_id: LedgerId) -> bool:
        """False while damage may have held a seal of this ledger; asks about it once (R10)."""
        if not self.is_in_doubt(ledger_id) or ledger_id in self._proved_open:
            return True
        self._ask_about(ledger_id)
        return False

    def _reply_seals(
        self, request: RequestId, seals: Sequence[SealRow], taken: Sequence[bool]
    ) -> None:
        marks = []
        for seal, is_taken in zip(seals, taken, strict=True):
            status = BookieStatus.INVALID
            if is_taken:
                is_doubtful = self.is_in_doubt(seal.ledger_id)
                if is_doubtful:
                    self.ask_if_newer(seal.ledger_id)
                is_doubtful |= self._find_ledger(seal.ledger_id).is_doubtful
                status = BookieStatus.UNKNOWN if is_doubtful else BookieStatus.OK
            marks.append(self._marks(status, seal.ledger_id))
        self.outbox.append(ReplyMarks(request, marks))

    def _reply_lacs(
        self, request: RequestId, updates: Sequence[LacRow], statuses: Sequence[BookieStatus]
    ) -> None:
        marks = [
            self._marks(status, update.ledger_id)
            for update, status in zip(updates, statuses, strict=True)
        ]
        self.outbox.append(ReplyMarks(request, marks))

    def _marks(self, status: BookieStatus, ledger_id: LedgerId) -> MarksAnswer:
        """Marks as they are now, when the answer leaves: a drop may have come since the request."""
        if status is not BookieStatus.INVALID and not self.is_alive(ledger_id):
            status = BookieStatus.GONE
        ledger = self._find_ledger(ledger_id)
        return MarksAnswer(status, ledger.lac, ledger.highest)

    def _refuse_marks(self, request: RequestId, count: int) -> None:
        wrong = MarksAnswer(BookieStatus.WRONG_INCARNATION, NOTHING, NOTHING)
        self.outbox.append(ReplyMarks(request, [wrong] * count))

    # --- Drops -----------------------------------------------------------------------------------

    def _drop(self, record: DropRecord, token: int) -> None:
        """A drop is durable: forget, and answer GONE to those who wait."""
        log = self._log(record.log_id)
        log.pending_drops = tuple([drop for drop in log.pending_drops if drop.token != token])
        self._forget(log, record.epoch, is_all_below=record.is_all_below)
        self._proved_open = set(filter(self.is_alive, self._proved_open))
        self._wake_log(record.log_id, log.is_gone)

    # --- Order -----------------------------------------------------------------------------------

    def _persist(self, request: RequestId, records: list[Record]) -> None:
        if not records:
            return
        self._last_token += 1
        batch = tuple(records)
        self._in_flight.append((self._last_token, batch))
        self.outbox.append(Persist(self._last_token, request, batch))

    def _when_durable(self, token: int, release: Callable[[], None]) -> None:
        """Release an answer once `token` is durable; tokens become durable in their order."""
        if self._in_flight and token >= self._in_flight[0][0]:
            self._parked.setdefault(token, []).append(release)
        else:
            release()


def _sealing(reads: Sequence[ReadRow]) -> list[ReadRow]:
    return [read for read in reads if read.seal_epoch > 0 and is_ledger(read.ledger_id)]


def _is_valid_seal(seal: SealRow) -> bool:
    if seal.log_id <= 0 or seal.epoch <= 0:
        return False
    return is_ledger(seal.ledger_id) and log_of(seal.ledger_id) == seal.log_id
