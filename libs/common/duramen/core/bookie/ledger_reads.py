"""What a read is answered, and the long polls that wait for more.

This is `BookieCore` without changes of state. A read is looked up in what is durable, or it is
registered before anything can change and woken by what it waits for: an entry, the LAC, a seal, a
drop.

A range of a flexible segment is planned whole (`range_plan`). In the classes that serve clients it
waits until it may be shown, and not for an entry: one that is not released yet wakes nobody.

Not here: the seal that a read may carry (`bookie_core`), bytes, timers. Called by `BookieCore`,
and by drivers when a long poll is over. Source: R15, docs/protocol/reading.md "Long polls",
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duramen.core.bookie.bookie_state import (
    CheckSegment,
    Effect,
    FilteredRow,
    RangePlan,
    ReadEntries,
    ReadPlan,
    ReadRanges,
    ReadRow,
    RequestId,
    StartTimer,
)
from duramen.core.bookie.ledger_book import LedgerBook, is_ledger
from duramen.core.bookie.range_plan import (
    find_limit,
    give_up,
    is_range,
    plan_range,
    refuse_range,
)
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, Epoch, LedgerId, LogId, epoch_of, log_of
from duramen.limits import FILTERED_ENTRY_COUNT_MAX

WAITER_COUNT_MAX: Final = 10_000
"""Long polls that may wait at once; one more is answered at once, as if its time were over."""


class _Waiter(NamedTuple):
    """A long poll."""

    read: ReadRow
    filtered: FilteredRow | None = None
    """The same row, if it is one of a flexible segment."""


class LedgerReads(LedgerBook):
    """The durable knowledge of one bookie, and who reads it.

    Invariants (checked by `validate`):
     6 every waiter is registered once, under its ledger.
     7 no waiter waits for what is there, or for a ledger that was dropped.
    """

    def __init__(self, start_number: int = 0) -> None:
        super().__init__(start_number)
        self.outbox: list[Effect] = []
        self._waiters: dict[RequestId, _Waiter] = {}
        self._waiters_of: dict[LedgerId, dict[RequestId, _Waiter]] = {}
        self._asked_about: set[LedgerId] = set()
        self._older: dict[LogId, Epoch] = {}
        """Up to which epoch of a log it is known that its ledgers were there before the damage."""

    def on_wait_over(self, request: RequestId) -> None:
        """A long poll's time is over; nothing happens if it was answered meanwhile."""
        waiter = self._waiters.get(request)
        if waiter is not None:
            self._answer_waiter(request, waiter)

    def on_abandoned(self, request: RequestId) -> None:
        """Nobody waits for the answer to this long poll any more."""
        waiter = self._waiters.get(request)
        if waiter is not None:
            self._forget_waiter(request, waiter)

    def validate(self) -> None:
        """Assert the numbered invariants; for tests and the simulator."""
        super().validate()
        registered = [request for rows in self._waiters_of.values() for request in rows]
        assert sorted(registered) == sorted(self._waiters), "6: waiters"
        assert not any(map(self._is_worth_answering, self._waiters.values())), "7: waiters"

    def _answer_reads(self, request: RequestId, reads: Sequence[ReadRow]) -> None:
        """Look the ranges up; a single one that asks for it waits, registered before any change."""
        if len(reads) != 1 or not self._wait(request, _Waiter(reads[0])):
            self._plan_reads(request, reads)

    def _answer_ranges(self, request: RequestId, rows: Sequence[FilteredRow]) -> None:
        """As `_answer_reads`, of a flexible segment."""
        if len(rows) != 1 or not self._wait(request, _Waiter(rows[0].wanted, rows[0])):
            self._plan_ranges(request, rows)

    def _wait(self, request: RequestId, waiter: _Waiter) -> bool:
        """Let a row wait, if it asks for that and there is something to wait for."""
        read = waiter.read
        if read.wait_ms <= 0 or len(self._waiters) >= WAITER_COUNT_MAX:
            return False
        if self._is_worth_answering(waiter):
            return False
        self._waiters[request] = waiter
        self._waiters_of.setdefault(read.ledger_id, {})[request] = waiter
        self.outbox.append(StartTimer(request, read.wait_ms))
        return True

    def _is_worth_answering(self, waiter: _Waiter) -> bool:
        read, row = waiter
        ledger = self._find_ledger(read.ledger_id)
        if ledger.lac >= read.wait_for:
            return True
        if row is None or not row.is_cut:
            return self.plan(read).status is not BookieStatus.NO_ENTRY
        is_gone = not is_ledger(read.ledger_id) or not self.is_alive(read.ledger_id)
        return is_gone or not is_range(read) or find_limit(row, ledger) >= read.first

    def ask_if_newer(self, ledger_id: LedgerId) -> None:
        """A ledger in doubt was asked about: find out whether it began after the damage.

        Nothing is asked while the damage has no bound, nor of a ledger that is known to be older.
        What is asked for now is answered with doubt; who asks again is answered by what was found.
        """
        if not self._doubt_until or not self.is_in_doubt(ledger_id) or not is_ledger(ledger_id):
            return
        if epoch_of(ledger_id) > self._older.get(log_of(ledger_id), 0):
            self._ask_about(ledger_id)

    def _ask_about(self, ledger_id: LedgerId) -> None:
        if ledger_id not in self._asked_about:
            self._asked_about.add(ledger_id)
            self.outbox.append(CheckSegment(ledger_id))

    def _note_made(self, ledger_id: LedgerId, made: int) -> None:
        """A segment node was made in this transaction: its epoch is older or newer than the damage,
        and so is every epoch below it, or above it."""
        if not self._doubt_until or not made:
            return
        log_id, epoch = log_of(ledger_id), epoch_of(ledger_id)
        if made <= self._doubt_until:
            self._older[log_id] = max(self._older.get(log_id, epoch), epoch)
            return
        log = self._log(log_id)
        log.newer_from = min(log.newer_from or epoch, epoch)

    def _plan_reads(self, request: RequestId, reads: Sequence[ReadRow]) -> None:
        plans = [self.plan(read) for read in reads]
        self.outbox.append(ReadEntries(request, plans))
        for plan in plans:
            if plan.status is BookieStatus.UNKNOWN:
                self.ask_if_newer(plan.ledger_id)

    def _plan_ranges(self, request: RequestId, rows: Sequence[FilteredRow]) -> None:
        """Plan rows as long as there is room for what they meet: the rest is OVERLOADED."""
        plans: list[RangePlan] = []
        left = FILTERED_ENTRY_COUNT_MAX
        for row in rows:
            plan = self.plan_range(row, max(1, left))
            if left < 1 and plan.status is BookieStatus.OK:
                plan = give_up(plan, BookieStatus.OVERLOADED)
            left -= plan.met_count
            plans.append(plan)
        self.outbox.append(ReadRanges(request, plans))
        for plan in plans:
            if plan.is_doubtful:
                self.ask_if_newer(plan.ledger_id)

    def plan_range(
        self, row: FilteredRow, met_count_max: int = FILTERED_ENTRY_COUNT_MAX
    ) -> RangePlan:
        """What is known of a range of a flexible segment as things are now."""
        ledger_id = row.wanted.ledger_id
        if not is_ledger(ledger_id) or not is_range(row.wanted):
            return refuse_range(row, BookieStatus.INVALID)
        ledger = self._find_ledger(ledger_id)
        is_sealed = epoch_of(ledger_id) <= self.sealed_epoch(log_of(ledger_id))
        if not self.is_alive(ledger_id):
            return refuse_range(row, BookieStatus.GONE)._replace(is_sealed=is_sealed)
        return plan_range(
            row, ledger,
            is_doubtful=self.is_in_doubt(ledger_id), is_sealed=is_sealed,
            met_count_max=met_count_max,
        )  # fmt: skip

    def plan(self, read: ReadRow) -> ReadPlan:
        """The answer to a range as things are now, but for the bytes."""
        ledger_id = read.ledger_id
        if not is_ledger(ledger_id) or not is_range(read):
            return refuse_read(read, BookieStatus.INVALID)
        log = self._logs.get(log_of(ledger_id))
        ledger = self._find_ledger(ledger_id)
        entry_count = ledger.count_run(read.first, read.last)
        if entry_count:
            status = BookieStatus.OK
        elif not self.is_alive(ledger_id):
            status = BookieStatus.GONE
        elif self.is_in_doubt(ledger_id) or not ledger.can_vouch(read.first):
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
        for request, waiter in list(self._waiters_of.get(ledger_id, {}).items()):
            if self._is_worth_answering(waiter):
                self._answer_waiter(request, waiter)

    def _wake_sealed(self, log_id: LogId, epoch: Epoch) -> None:
        """Answer everybody who waits under a new seal: no owner will add anything there."""
        self._wake_log(log_id, lambda waited: waited <= epoch)

    def _wake_log(self, log_id: LogId, is_over: Callable[[Epoch], bool]) -> None:
        """Answer everybody who waits in ledgers of a log where nothing will come any more."""
        for ledger_id in list(self._waiters_of):
            if log_of(ledger_id) == log_id and is_over(epoch_of(ledger_id)):
                for request, waiter in list(self._waiters_of[ledger_id].items()):
                    self._answer_waiter(request, waiter)

    def _answer_waiter(self, request: RequestId, waiter: _Waiter) -> None:
        self._forget_waiter(request, waiter)
        if waiter.filtered is None:
            self._plan_reads(request, [waiter.read])
        else:
            self._plan_ranges(request, [waiter.filtered])

    def _forget_waiter(self, request: RequestId, waiter: _Waiter) -> None:
        del self._waiters[request]
        rows = self._waiters_of[waiter.read.ledger_id]
        del rows[request]
        if not rows:
            del self._waiters_of[waiter.read.ledger_id]


def refuse_read(read: ReadRow, status: BookieStatus) -> ReadPlan:
    """The answer to a range that is not looked up."""
    return ReadPlan(status, NOTHING, NOTHING, False, read.ledger_id, read.first, 0, 0, False)
