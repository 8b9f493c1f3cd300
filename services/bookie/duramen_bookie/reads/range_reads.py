"""Answers to ranges of flexible segments: what is here, what of it is sent, its bytes.

A request's plans become one job on the event loop, with all that memory knows of them. The job is
answered there, if it is short, or on a thread: row by row it goes through what is here, chooses,
reads bodies, and puts what broke among what nobody vouches for.

Not here: what a row may be told (`core.bookie.range_plan`), who sends
(`core.flexible.sending`). Called by the data plane. Source: docs/protocol/envelopes.md
"Read: `POST /b/read`, version 2", R15, R24, R30.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from duramen.core.bookie.bookie_state import RangePlan
from duramen.core.bookie.range_choice import AnswerRoom, Choice, Wish, choose, finish
from duramen.core.bookie.range_plan import give_up
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.limits import READ_BYTES_MAX
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_answers import FilteredAnswer, group_runs
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen_bookie.reads.entry_bodies import Body, read_bodies
from duramen_bookie.reads.held_entries import HotEntries, Met, SettledEntries, copy_hot, list_hot
from duramen_bookie.storage import INLINE_READ_BYTES_MAX, INLINE_READ_ENTRY_COUNT_MAX

if TYPE_CHECKING:
    from duramen_bookie.storage import Storage

_ROW_BYTES: Final = 256
"""What a planned entry takes in memory while it waits: its place, and its part of the tables."""


class RangeResult(NamedTuple):
    """Answers to a request's rows, and entries that turned out to be unreadable."""

    answers: list[FilteredAnswer]
    unreadable: list[tuple[LedgerId, EntryId]]


class RangeJob:
    """One request's ranges, with all that the event loop had to copy.

    Attributes:
        is_short: it reads little, and nothing but the journal.
        is_empty: no row has an entry, so that nothing is read.
        queue_bytes: what it takes while it waits.
        answer_bytes: what its bodies take of memory, at most.
    """

    def __init__(
        self, storage: Storage, plans: Sequence[RangePlan], rows: Sequence[FilteredRange]
    ) -> None:
        self._storage = storage
        self._rows = [
            (row, plan, copy_hot(storage, plan)) for row, plan in zip(rows, plans, strict=True)
        ]
        met_count = sum([plan.met_count for plan in plans])
        self.queue_bytes = _ROW_BYTES * met_count
        self.answer_bytes = min(READ_BYTES_MAX, sum([_bound(*one) for one in self._rows]))
        self.is_empty = not met_count
        self.is_short = (
            not any(plan.settled for plan in plans)
            and met_count <= INLINE_READ_ENTRY_COUNT_MAX
            and sum([hot.places.size_bytes for _, _, hot in self._rows]) <= INLINE_READ_BYTES_MAX
        )

    def read(self) -> RangeResult:
        """Answer every row; on any thread, blocks for the disk."""
        result = RangeResult([], [])
        room = AnswerRoom()
        for row, plan, hot in self._rows:
            result.answers.append(self._answer(row, plan, hot, room, result.unreadable))
        return result

    def refuse(self) -> list[FilteredAnswer]:
        """OVERLOADED where something was to be looked at; what the core knows is told."""
        overloaded = BookieStatus.OVERLOADED
        return [
            _refuse(row, give_up(plan, overloaded) if plan.status is BookieStatus.OK else plan)
            for row, plan, _ in self._rows
        ]

    def _answer(
        self,
        row: FilteredRange,
        plan: RangePlan,
        hot: HotEntries,
        room: AnswerRoom,
        unreadable: list[tuple[LedgerId, EntryId]],
    ) -> FilteredAnswer:
        if plan.status is not BookieStatus.OK:
            return _refuse(row, plan)
        is_named = row.with_envelopes or row.read_filter is not None
        settled = SettledEntries(self._storage, plan, with_envelopes=is_named)
        known: Iterable[Met] = settled
        if plan.hot:
            known = list_hot(plan, hot, with_envelopes=is_named)
        choice = choose(plan, known, _wish_of(row), room)
        unreadable += settled.unreadable
        if choice.next == plan.first:
            return _refuse(row, give_up(plan, BookieStatus.OVERLOADED))
        if row.is_digest:
            return _tell(row, plan, choice, [])
        found = read_bodies(
            self._storage, plan, hot, choice.sent, headers_only=row.wanted.headers_only
        )
        unreadable += found.unreadable
        return _tell(row, plan, finish(choice, found.broken, found.end), found.bodies)


def _tell(
    row: FilteredRange, plan: RangePlan, choice: Choice[Envelope], bodies: Sequence[Body]
) -> FilteredAnswer:
    told = [met for met in choice.sent if met.identity is not None]
    digests = [(met.entry_id, met.identity or 0) for met in told] if row.is_digest else None
    runs = group_runs((met.entry_id, met.envelope) for met in told) if row.with_envelopes else ()
    return FilteredAnswer(
        plan.status, plan.lac, plan.highest, plan.is_sealed, row.filter_number,
        EntryId(choice.next),
        entries=[body for body in bodies if body[0] < choice.next],
        digests=digests, unvouched=choice.unvouched, runs=runs,
    )  # fmt: skip


def _refuse(row: FilteredRange, plan: RangePlan) -> FilteredAnswer:
    """Nothing was looked at: the row ends where it begins."""
    return FilteredAnswer(
        plan.status, plan.lac, plan.highest, plan.is_sealed, row.filter_number, plan.first
    )


def _wish_of(row: FilteredRange) -> Wish:
    wanted = row.wanted
    return Wish(row.read_filter, row.own, wanted.bytes_max, wanted.headers_only, row.is_digest)


def _bound(row: FilteredRange, plan: RangePlan, hot: HotEntries) -> int:
    """The most that the bodies of a row take, but that the first may be larger."""
    if row.is_digest or not plan.met_count:
        return 0
    most = READ_BYTES_MAX if row.wanted.headers_only else row.wanted.bytes_max
    return most if plan.settled else min(most, hot.places.size_bytes)
