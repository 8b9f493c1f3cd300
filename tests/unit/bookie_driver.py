"""A driver of the bookie's core for its tests: carries effects out, with a journal that it plays.

The journal persists only when a test says so, in the order of the tokens; the core's invariants are
validated after every step. The entry log is a table of identity checksums.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    AddRow,
    CheckSegment,
    MarksAnswer,
    Persist,
    RangePlan,
    ReadEntries,
    ReadPlan,
    ReadRanges,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    StartTimer,
)
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, ledger_of
from duramen.wire.bookie_calls import LacUpdate, ReadRange, Seal
from duramen.wire.flexible.filtered_reads import FilteredRange

LIFE = Incarnation("a" * 32)
OTHER_LIFE = Incarnation("b" * 32)
LOG = LogId(7)
LEDGER = ledger_of(LOG, Epoch(3))
NEXT_LEDGER = ledger_of(LOG, Epoch(4))

OK = BookieStatus.OK

Answer = list[BookieStatus] | list[MarksAnswer] | list[ReadPlan] | list[RangePlan]


class Driver:
    """Carries out effects; the journal persists only when the test says so."""

    def __init__(self) -> None:
        self.entry_log: dict[tuple[LedgerId, EntryId], int | None] = {}
        self.core = BookieCore(LIFE, identity_of=lambda *entry: self.entry_log[entry])
        self.journal: deque[Persist] = deque()
        self.answers: dict[int, Answer] = {}
        self.timers: list[RequestId] = []
        self.checks: list[LedgerId] = []
        self._last = 0

    def add(self, *rows: AddRow, life: Incarnation = LIFE, has_room: bool = True) -> int:
        self.core.on_adds(self._request(), life, rows, has_room=has_room)
        return self.drain()

    def seal(self, *rows: Seal, life: Incarnation = LIFE) -> int:
        self.core.on_seals(self._request(), life, rows)
        return self.drain()

    def lac(self, *rows: LacUpdate, life: Incarnation = LIFE) -> int:
        self.core.on_lacs(self._request(), life, rows)
        return self.drain()

    def read(self, *rows: ReadRange, life: Incarnation = LIFE) -> int:
        self.core.on_reads(self._request(), life, rows)
        return self.drain()

    def look(self, *rows: FilteredRange, life: Incarnation = LIFE) -> int:
        """A read of a flexible segment."""
        self.core.on_filtered_reads(self._request(), life, rows)
        return self.drain()

    def drop(self, epoch: int, *, below: bool = False) -> None:
        self.core.drop(LOG, Epoch(epoch), is_all_below=below)
        self.drain()

    def settle(self, *entries: int, ledger: LedgerId = LEDGER) -> None:
        """Copies of hot entries are in the entry log, and their checkpoint is durable."""
        for entry in entries:
            stored = self.core._find_ledger(ledger).stored.get(entry)
            self.entry_log[ledger, EntryId(entry)] = stored[0] if stored else None
        self.core.on_settled(ledger, [EntryId(entry) for entry in entries])
        self.drain()

    def lose(self, entry: int, ledger: LedgerId = LEDGER) -> None:
        """The disk cannot read an entry any more."""
        self.core.on_unreadable(ledger, EntryId(entry))
        self.drain()

    def persist(self, count: int | None = None) -> None:
        """The journal commits the oldest `count` units, or all."""
        for _ in range(len(self.journal) if count is None else count):
            self.core.on_persisted(self.journal.popleft().token)
            self.drain()

    def drain(self) -> int:
        effects, self.core.outbox = self.core.outbox, []
        for effect in effects:
            match effect:
                case Persist():
                    self.journal.append(effect)
                case ReplyStatuses(request=request, statuses=statuses):
                    self._answer(request, list(statuses))
                case ReplyMarks(request=request, marks=marks):
                    self._answer(request, list(marks))
                case ReadEntries(request=request, plans=plans):
                    self._answer(request, list(plans))
                case ReadRanges(request=request, plans=ranges):
                    self._answer(request, list(ranges))
                case StartTimer(request=request):
                    self.timers.append(request)
                case CheckSegment(ledger_id=ledger_id):
                    self.checks.append(ledger_id)
        self.core.validate()
        return self._last

    def statuses(self, request: int) -> list[BookieStatus]:
        return [
            one if isinstance(one, BookieStatus) else one.status for one in self.answers[request]
        ]

    def plan(self, request: int) -> ReadPlan:
        (plan,) = self.answers[request]
        assert isinstance(plan, ReadPlan)
        return plan

    def range(self, request: int) -> RangePlan:
        (plan,) = self.answers[request]
        assert isinstance(plan, RangePlan)
        return plan

    def mark(self, request: int) -> MarksAnswer:
        (mark,) = self.answers[request]
        assert isinstance(mark, MarksAnswer)
        return mark

    def stored(self, *rows: AddRow) -> None:
        """Adds that are accepted and durable."""
        request = self.add(*rows)
        self.persist()
        assert self.answers[request] == [OK] * len(rows)

    def _request(self) -> RequestId:
        self._last += 1
        return RequestId(self._last)

    def _answer(self, request: RequestId, answer: Answer) -> None:
        assert request not in self.answers, "answered twice"
        self.answers[request] = answer


def row(
    entry: int,
    *,
    ledger: LedgerId = LEDGER,
    lac: int = -1,
    crc: int | None = None,
    recovery: bool = False,
    valid: bool = True,
) -> AddRow:
    crc = 1000 + entry if crc is None else crc
    return AddRow(ledger, EntryId(entry), EntryId(lac), crc, recovery, valid)


def seal(epoch: int, ledger: LedgerId = LEDGER) -> Seal:
    return Seal(LOG, Epoch(epoch), ledger)


def write_lac(lac: int, ledger: LedgerId = LEDGER) -> LacUpdate:
    return LacUpdate(ledger, EntryId(lac), True)


def read_lac(ledger: LedgerId = LEDGER) -> LacUpdate:
    return LacUpdate(ledger, NOTHING, False)


def span(first: int, last: int | None = None, *, ledger: LedgerId = LEDGER) -> ReadRange:
    return ReadRange(ledger, EntryId(first), EntryId(first if last is None else last), 1 << 20)


def holding(*entries: int) -> Driver:
    driver = Driver()
    driver.stored(*[row(entry) for entry in entries])
    return driver


def add_again(driver: Driver, entry: int, **more: Any) -> BookieStatus:
    """The answer to an add that needs no record, or whose record is persisted at once."""
    request = driver.add(row(entry, **more))
    driver.persist()
    return driver.statuses(request)[0]


def read(driver: Driver, first: int, last: int | None = None) -> tuple[BookieStatus, int]:
    plan = driver.plan(driver.read(span(first, last)))
    return plan.status, plan.entry_count
