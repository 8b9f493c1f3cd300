"""What is known of a range of a flexible segment at one moment: what a read of it rests on.

A plan says what the bookie can say of the range by its book: marks, seal, what is here with its
identity, and what it cannot vouch for. In the classes that serve clients it ends at what may be
shown. It ends before its range also where entries go from the journal to the entry log or back, and
where it has met enough: what is from `end` on is not looked at, and asked for again.

All of it is copied in one step, so that a thread reads what no other step changes.

Not here: envelopes and bodies, what is sent of it (`range_choice`), waits (`ledger_reads`). Called
by `ledger_reads`. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", R15, R30.
"""

from __future__ import annotations

from duramen.core.bookie.bookie_state import (
    NO_ENTRIES,
    FilteredRow,
    LedgerState,
    RangePlan,
    Ranges,
    ReadRow,
)
from duramen.core.status import BookieStatus
from duramen.ids import LAST_ENTRY_ID, NOTHING, EntryId
from duramen.limits import FILTERED_RANGE_COUNT_MAX

_NOTHING_MET = (NO_ENTRIES, (), (), False)


def plan_range(
    row: FilteredRow, ledger: LedgerState, *, is_doubtful: bool, is_sealed: bool, met_count_max: int
) -> RangePlan:
    """What is known of a range of a ledger that was not dropped.

    Args:
        is_doubtful: damage that told nothing of itself may have held anything of the ledger.
        met_count_max: entries that may be met, 1 at least. The plan has one more, so that whoever
            goes through it sees where it has met enough.
    """
    wanted = row.wanted
    first, last = wanted.first, wanted.last
    marks = (ledger.lac, ledger.highest, is_sealed, wanted.ledger_id, first)
    if row.is_cut:
        last = min(last, find_limit(row, ledger))
        if last < first:
            return RangePlan(BookieStatus.NOT_RELEASED, *marks, first, *_NOTHING_MET)
    hot_first, settled_first = ledger.stored.next_id(first), ledger.settled.next_number(first)
    hot = NO_ENTRIES
    settled: Ranges = ()
    if hot_first != NOTHING and (settled_first == NOTHING or hot_first < settled_first):
        last = last if settled_first == NOTHING else min(last, EntryId(settled_first - 1))
        hot = ledger.stored.cut(first, last, met_count_max + 1)
        if len(hot) > met_count_max:
            last = hot.last()
    elif settled_first != NOTHING:
        last = last if hot_first == NOTHING else min(last, EntryId(hot_first - 1))
        settled = ledger.settled.cut(first, last, met_count_max + 1)
        if len(settled) > met_count_max:
            last = settled[-1][1]
    unvouched = ledger.unknown.cut(first, last, FILTERED_RANGE_COUNT_MAX + 1)
    if len(unvouched) > FILTERED_RANGE_COUNT_MAX:
        last = unvouched[-1][1]
    return RangePlan(
        BookieStatus.OK, *marks, last + 1, hot, settled, unvouched,
        is_doubtful or ledger.is_doubtful,
    )  # fmt: skip


def find_limit(row: FilteredRow, ledger: LedgerState) -> EntryId:
    """Up to where entries may be shown to clients (R30); the bound is used and forgotten."""
    return max(ledger.lac, row.bound)


def refuse_range(row: FilteredRow, status: BookieStatus) -> RangePlan:
    """The answer to a range that is not looked up."""
    wanted = row.wanted
    return RangePlan(
        status, NOTHING, NOTHING, False, wanted.ledger_id, wanted.first, wanted.first,
        *_NOTHING_MET,
    )  # fmt: skip


def give_up(plan: RangePlan, status: BookieStatus) -> RangePlan:
    """The answer to a range of which nothing was looked at after all; its marks are told."""
    return plan._replace(
        status=status, end=plan.first, hot=NO_ENTRIES, settled=(), unvouched=(), is_doubtful=False
    )


def is_range(row: ReadRow) -> bool:
    """Whether the numbers are those of entries that can be."""
    return 0 <= row.first <= row.last <= LAST_ENTRY_ID
