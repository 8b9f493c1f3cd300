"""Bookie: which adds are accepted, what is sealed, and when each answer may leave.

The state machine of one bookie incarnation, without disk, network or clock. A driver checks and
feeds requests, drains `outbox` once per batch of events and carries out what it finds: records go
to the journal in the order of their tokens, `on_persisted` comes back in the same order, and an
answer is put out only after every record that it rests on is persisted (R10). The order is what
makes a seal's answer complete: what was accepted before the seal is durable, and known here, when
that answer is made.

Not here: bytes of entries and their places on disk, timers, what the journal has room for.
Called by the bookie's handlers and by the simulator. Source: 01-protocol sections 3, 4 and 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from duramen.core.bookie_state import (
    AddRecord,
    AddRow,
    CheckSegment,
    Effect,
    LacRecord,
    LacRow,
    LedgerState,
    LogState,
    MarksAnswer,
    PendingAdd,
    Persist,
    ReadEntries,
    ReadPlan,
    ReadRow,
    Record,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    SealRecord,
    SealRow,
    StartTimer,
)
from duramen.core.status import BookieStatus
from duramen.ids import (
    LAST_ENTRY_ID,
    LAST_LOG_ID,
    NOTHING,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    epoch_of,
    log_of,
)

WAITER_COUNT_MAX: Final = 10_000
"""Long polls that may wait at once; one more is answered at once, as if its time were over."""

_EMPTY: Final = LedgerState()
"""Stands for a ledger that nothing is known of; never changed."""


class BookieCore:
    """One bookie incarnation.

    Args:
        incarnation: the life of the disks that this is; every request must name it (R1).

    Invariants (checked by `validate`):
     1 a log's pending seal is never below its durable one, and if above, its record is in flight.
     2 no add that is not recovery's is pending behind a seal of its epoch (R10, R11).
     3 a ledger's highest entry is at or above everything stored or unknown.
     4 no entry is both stored and pending or unknown; tables are sound.
     5 tokens in flight rise; what is parked and what is pending waits for one of them.
     6 every waiter is registered once, under its ledger.
     7 no waiter waits for what is there.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.outbox: list[Effect] = []
        self._logs: dict[LogId, LogState] = {}
        self._last_token = 0
        self._in_flight: deque[tuple[int, tuple[Record, ...]]] = deque()
        self._parked: dict[int, list[Callable[[], None]]] = {}
        self._waiters: dict[RequestId, ReadRow] = {}
        self._waiters_of: dict[LedgerId, dict[RequestId, ReadRow]] = {}
        self._is_everything_doubtful = False
        self._proved_open: set[LedgerId] = set()
        self._asked_about: set[LedgerId] = set()
        self._entry_count = 0

    def __repr__(self) -> str:
        return (
            f"<BookieCore {self.incarnation[:4]} logs={len(self._logs)} "
            f"entries={self._entry_count} in_flight={len(self._in_flight)} "
            f"waiters={len(self._waiters)}{' doubtful' * self._is_everything_doubtful}>"
        )

    # --- Replay, before the first request --------------------------------------------------------

    def on_recovered_add(
        self, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId, crc: int, *, is_recovery: bool
    ) -> None:
        """The journal holds this entry, whole."""
        self._store(AddRecord(0, ledger_id, entry_id, lac, crc, is_recovery))

    def on_recovered_seal(self, log_id: LogId, epoch: Epoch) -> None:
        """The journal holds this seal."""
        log = self._log(log_id)
        log.sealed = max(log.sealed, epoch)
        log.pending_seal = max(log.pending_seal, log.sealed)

    def on_recovered_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        """The journal holds this explicit LAC."""
        ledger = self._ledger(ledger_id)
        ledger.lac = max(ledger.lac, lac)

    def on_recovered_damage(
        self, ledger_id: LedgerId | None = None, entry_id: EntryId | None = None
    ) -> None:
        """The journal is damaged below its durable mark (R15, R10).

        Args:
            ledger_id: the ledger that the damaged record was of; None: it may have been anything,
                also a seal, so that no absence is vouched for in any ledger, and adds that are not
                recovery's wait for a proof that their segment is open.
            entry_id: the entry that the damaged record was of; None: any of the ledger, so that
                its LAC is in doubt too.
        """
        if ledger_id is None:
            self._is_everything_doubtful = True
            return
        ledger = self._ledger(ledger_id)
        if entry_id is None:
            ledger.is_doubtful = True
        elif entry_id not in ledger.stored:
            ledger.unknown.add(entry_id)
            ledger.highest = max(ledger.highest, entry_id)

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
            statuses.append(status)
            after = max(after, awaited)
        self._persist(request, records)
        self._when_durable(after, partial(self._reply_statuses, request, statuses))

    def on_seals(
        self, request: RequestId, incarnation: Incarnation, seals: Sequence[SealRow]
    ) -> None:
        """Seals; answered by ReplyMarks, one per row, after every one of them is persisted.

        UNKNOWN says: sealed, but damage may hide entries and LACs of the ledger.

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
        for seal in seals:
            if _is_valid_seal(seal):
                after = max(after, self._seal(seal.log_id, seal.epoch, records))
        self._persist(request, records)
        self._when_durable(after, partial(self._reply_seals, request, seals))

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
        entry or for the LAC.
        """
        if incarnation != self.incarnation:
            wrong = BookieStatus.WRONG_INCARNATION
            self.outbox.append(ReadEntries(request, [_refused(read, wrong) for read in reads]))
            return
        records: list[Record] = []
        after = 0
        for read in reads:
            if read.seal_epoch > 0 and _is_ledger(read.ledger_id):
                log_id = log_of(read.ledger_id)
                after = max(after, self._seal(log_id, Epoch(read.seal_epoch), records))
        self._persist(request, records)
        self._when_durable(after, partial(self._answer_reads, request, reads))

    # --- What the driver reports -----------------------------------------------------------------

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
                case LacRecord(ledger_id=ledger_id, lac=lac):
                    ledger = self._ledger(ledger_id)
                    ledger.lac = max(ledger.lac, lac)
                    touched[ledger_id] = None
        for release in self._parked.pop(token, ()):
            release()
        for ledger_id in touched:
            self._wake(ledger_id)

    def on_wait_over(self, request: RequestId) -> None:
        """A long poll's time is over; nothing happens if it was answered meanwhile."""
        read = self._waiters.get(request)
        if read is not None:
            self._forget_waiter(request, read)
            self._plan_reads(request, [read])

    def on_abandoned(self, request: RequestId) -> None:
        """Nobody waits for the answer to this long poll any more."""
        read = self._waiters.get(request)
        if read is not None:
            self._forget_waiter(request, read)

    def on_unreadable(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A stored entry could not be read or its checksum did not match: UNKNOWN from now on.

        An add of the same entry stores it again.
        """
        ledger = self._find_ledger(ledger_id)
        if entry_id in ledger.stored:
            ledger.stored.remove(entry_id)
            ledger.unknown.add(entry_id)
            self._entry_count -= 1

    def on_segment_checked(self, ledger_id: LedgerId, *, is_open: bool) -> None:
        """A synced read of the segment node, begun after the restart, is there (R10).

        OPEN proves that no recovery had sealed this ledger before: MARK precedes SEAL.
        """
        self._asked_about.discard(ledger_id)
        if is_open:
            self._proved_open.add(ledger_id)

    # --- What is known ---------------------------------------------------------------------------

    def list_ledgers(self) -> list[tuple[LedgerId, LedgerState]]:
        """Every known ledger, ascending. Not to be changed."""
        return [
            (LedgerId(log_id << 32 | epoch), log.ledgers[epoch])
            for log_id, log in sorted(self._logs.items())
            for epoch in sorted(log.ledgers)
        ]

    def sealed_epoch(self, log_id: LogId) -> int:
        """Epochs up to this one are sealed, durably; 0: none."""
        log = self._logs.get(log_id)
        return 0 if log is None else log.sealed

    def list_ranges(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Ranges of durable entries of a ledger; None if it is not known."""
        ledger = self._find_ledger(ledger_id)
        return None if ledger is _EMPTY else ledger.stored.list_ranges()

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
        }

    def validate(self) -> None:
        """Assert the numbered invariants of the module's head; for tests and the simulator."""
        tokens = [token for token, _ in self._in_flight]
        assert tokens == sorted(set(tokens)), "5: tokens rise"
        assert all(token in tokens for token in self._parked), "5: parked on a pending token"
        for log in self._logs.values():
            assert log.sealed <= log.pending_seal, "1: seals"
            assert log.sealed == log.pending_seal or log.pending_token in tokens, (
                "1: seal in flight"
            )
            for epoch, ledger in log.ledgers.items():
                ledger.stored.validate()
                known = [ledger.stored.last(), *ledger.unknown]
                assert ledger.highest >= max(known), "3: highest"
                assert not any(entry in ledger.stored for entry in ledger.pending), "4: pending"
                assert not any(entry in ledger.stored for entry in ledger.unknown), "4: unknown"
                for add in ledger.pending.values():
                    assert add.token in tokens, "5: pending add in flight"
                    if not add.is_recovery and epoch <= log.pending_seal:
                        assert epoch > log.sealed and add.token < log.pending_token, "2: seal"
        registered = [request for rows in self._waiters_of.values() for request in rows]
        assert sorted(registered) == sorted(self._waiters), "6: waiters"
        assert not any(map(self._is_worth_answering, self._waiters.values())), "7: waiters"
        assert _EMPTY.highest == NOTHING and not _EMPTY.stored, "nobody writes to _EMPTY"

    # --- Adds ------------------------------------------------------------------------------------

    def _judge_add(self, add: AddRow, token: int, has_room: bool) -> tuple[BookieStatus, int]:
        """The status of an add, and the token that must be durable before it is said."""
        ledger_id, entry_id, lac, crc, is_recovery, is_valid = add
        if not is_valid or not NOTHING <= lac < entry_id <= LAST_ENTRY_ID:
            return BookieStatus.INVALID, 0
        if not _is_ledger(ledger_id):
            return BookieStatus.INVALID, 0
        log = self._logs.get(log_of(ledger_id))
        if log is not None and not is_recovery and epoch_of(ledger_id) <= log.pending_seal:
            return BookieStatus.SEALED, self._token_of_seal(log, epoch_of(ledger_id))
        if not is_recovery and not self._is_seal_certain(ledger_id):
            return BookieStatus.UNKNOWN, 0
        ledger = None if log is None else log.ledgers.get(epoch_of(ledger_id))
        if ledger is not None:
            stored = ledger.stored.get(entry_id)
            if stored is not None:
                return (BookieStatus.OK if stored[0] == crc else BookieStatus.DIFFERENT), 0
            pending = ledger.pending.get(entry_id)
            if pending is not None:
                same = pending.crc == crc
                return (BookieStatus.OK if same else BookieStatus.DIFFERENT), pending.token
        if not has_room:
            return BookieStatus.OVERLOADED, 0
        return BookieStatus.OK, token

    def _accept(self, add: AddRow, token: int) -> bool:
        """Make an add pending; False if an earlier row of the same request is the same entry."""
        pending = self._ledger(add.ledger_id).pending
        if add.entry_id in pending:
            return False
        pending[add.entry_id] = PendingAdd(add.crc, token, add.is_recovery)
        return True

    def _store(self, add: AddRecord) -> None:
        """An add is durable: its entry can be read, and its LAC counts unless it is recovery's."""
        ledger = self._ledger(add.ledger_id)
        ledger.pending.pop(add.entry_id, None)
        ledger.unknown.discard(add.entry_id)
        before = len(ledger.stored)
        ledger.stored.put(add.entry_id, add.crc)
        self._entry_count += len(ledger.stored) - before
        ledger.highest = max(ledger.highest, add.entry_id)
        if not add.is_recovery:  # R13: LAC moves by the owner alone
            ledger.lac = max(ledger.lac, add.lac)

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

    def _token_of_seal(self, log: LogState, epoch: int) -> int:
        """A refusal or a repeated seal rests on a seal that must be durable first (R10)."""
        return 0 if epoch <= log.sealed else log.pending_token

    def _judge_lac(self, update: LacRow, token: int) -> tuple[BookieStatus, int]:
        ledger_id = update.ledger_id
        if not _is_ledger(ledger_id) or not NOTHING <= update.lac <= LAST_ENTRY_ID:
            return BookieStatus.INVALID, 0
        ledger = self._find_ledger(ledger_id)
        if not update.is_write:
            certain = not (self._is_everything_doubtful or ledger.is_doubtful)
            return (BookieStatus.OK if certain else BookieStatus.UNKNOWN), 0
        log = self._logs.get(log_of(ledger_id))
        if log is not None and epoch_of(ledger_id) <= log.pending_seal:
            return BookieStatus.SEALED, self._token_of_seal(log, epoch_of(ledger_id))
        if not self._is_seal_certain(ledger_id):
            return BookieStatus.UNKNOWN, 0
        return BookieStatus.OK, token if update.lac > ledger.lac else 0

    def _is_seal_certain(self, ledger_id: LedgerId) -> bool:
        """False while damage may have held a seal of this ledger; asks about it once (R10)."""
        if not self._is_everything_doubtful or ledger_id in self._proved_open:
            return True
        if ledger_id not in self._asked_about:
            self._asked_about.add(ledger_id)
            self.outbox.append(CheckSegment(ledger_id))
        return False

    def _reply_seals(self, request: RequestId, seals: Sequence[SealRow]) -> None:
        marks = []
        for seal in seals:
            status = BookieStatus.INVALID
            if _is_valid_seal(seal):
                is_doubtful = self._is_everything_doubtful
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
        ledger = self._find_ledger(ledger_id)
        return MarksAnswer(status, ledger.lac, ledger.highest)

    def _refuse_marks(self, request: RequestId, count: int) -> None:
        wrong = MarksAnswer(BookieStatus.WRONG_INCARNATION, NOTHING, NOTHING)
        self.outbox.append(ReplyMarks(request, [wrong] * count))

    # --- Reads -----------------------------------------------------------------------------------

    def _answer_reads(self, request: RequestId, reads: Sequence[ReadRow]) -> None:
        """Look the ranges up; a single one that asks for it waits, registered before any change."""
        if len(reads) == 1 and reads[0].wait_ms > 0 and len(self._waiters) < WAITER_COUNT_MAX:
            read = reads[0]
            if not self._is_worth_answering(read):
                self._waiters[request] = read
                self._waiters_of.setdefault(read.ledger_id, {})[request] = read
                self.outbox.append(StartTimer(request, read.wait_ms))
                return
        self._plan_reads(request, reads)

    def _is_worth_answering(self, read: ReadRow) -> bool:
        ledger = self._find_ledger(read.ledger_id)
        return ledger.lac >= read.wait_for or self._plan(read).status is not BookieStatus.NO_ENTRY

    def _plan_reads(self, request: RequestId, reads: Sequence[ReadRow]) -> None:
        self.outbox.append(ReadEntries(request, [self._plan(read) for read in reads]))

    def _plan(self, read: ReadRow) -> ReadPlan:
        ledger_id = read.ledger_id
        if not _is_ledger(ledger_id) or not 0 <= read.first <= read.last <= LAST_ENTRY_ID:
            return _refused(read, BookieStatus.INVALID)
        log = self._logs.get(log_of(ledger_id))
        ledger = self._find_ledger(ledger_id)
        entry_count = ledger.stored.count_run(read.first, read.last)
        if entry_count:
            status = BookieStatus.OK
        elif self._is_everything_doubtful or not ledger.can_vouch(read.first):
            status = BookieStatus.UNKNOWN
        else:
            status = BookieStatus.NO_ENTRY
        is_sealed = log is not None and epoch_of(ledger_id) <= log.sealed
        return ReadPlan(
            status, ledger.lac, ledger.highest, is_sealed, ledger_id, read.first, entry_count,
            read.bytes_max, read.headers_only,
        )  # fmt: skip

    def _wake(self, ledger_id: LedgerId) -> None:
        """Answer the waiters of a ledger that have got what they wait for."""
        for request, read in list(self._waiters_of.get(ledger_id, {}).items()):
            if self._is_worth_answering(read):
                self._forget_waiter(request, read)
                self._plan_reads(request, [read])

    def _wake_sealed(self, log_id: LogId, epoch: Epoch) -> None:
        """Answer everybody who waits under a new seal: no owner will add anything there."""
        for ledger_id in list(self._waiters_of):
            if log_of(ledger_id) == log_id and epoch_of(ledger_id) <= epoch:
                for request, read in list(self._waiters_of[ledger_id].items()):
                    self._forget_waiter(request, read)
                    self._plan_reads(request, [read])

    def _forget_waiter(self, request: RequestId, read: ReadRow) -> None:
        del self._waiters[request]
        rows = self._waiters_of[read.ledger_id]
        del rows[request]
        if not rows:
            del self._waiters_of[read.ledger_id]

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

    def _log(self, log_id: LogId) -> LogState:
        log = self._logs.get(log_id)
        if log is None:
            log = self._logs[log_id] = LogState()
        return log

    def _ledger(self, ledger_id: LedgerId) -> LedgerState:
        ledgers = self._log(log_of(ledger_id)).ledgers
        ledger = ledgers.get(epoch_of(ledger_id))
        if ledger is None:
            ledger = ledgers[epoch_of(ledger_id)] = LedgerState()
        return ledger

    def _find_ledger(self, ledger_id: LedgerId) -> LedgerState:
        """A ledger to be read, `_EMPTY` if nothing is known of it."""
        log = self._logs.get(log_of(ledger_id))
        return _EMPTY if log is None else log.ledgers.get(epoch_of(ledger_id), _EMPTY)


def _is_ledger(ledger_id: LedgerId) -> bool:
    return 0 < log_of(ledger_id) <= LAST_LOG_ID and epoch_of(ledger_id) > 0


def _is_valid_seal(seal: SealRow) -> bool:
    if seal.log_id <= 0 or seal.epoch <= 0:
        return False
    return _is_ledger(seal.ledger_id) and log_of(seal.ledger_id) == seal.log_id


def _refused(read: ReadRow, status: BookieStatus) -> ReadPlan:
    return ReadPlan(status, NOTHING, NOTHING, False, read.ledger_id, read.first, 0, 0, False)
