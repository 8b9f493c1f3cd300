"""What owners know of copies and metadata do not tell: who is behind, and where a recovery writes.

An owner keeps in memory what a member missed, until the member has it or it is noted for repair. So
whoever wants to stop a bookie asks the owners first and reads the metadata then: what an owner has
in memory when it is asked goes into the metadata before its segment is closed.

Called by `service` (the answer), `judging` and `granting` (the question).
Source: docs/protocol/disruption.md "What owners are asked", R9, R16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from duramen.core.repair.audit import Debts
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.ids import (
    LAST_ENTRY_ID,
    NOTHING,
    BookieId,
    EntryId,
    Incarnation,
    LedgerId,
    Member,
)
from duramen.runtime.roster_calls import Answers
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.units import SECOND

REPORT_LAGS: Final = "report_lags"
TIMEOUT_US: Final = 5 * SECOND

_SETTLED_WITHIN_S: Final = 2.0
"""A copy that was sent comes, or its member is suspended, within that (the time-out of an add)."""
_LOOK_S: Final = 0.05

_WHOLE: Final = (0, LAST_ENTRY_ID)


class AskedSequencers(Protocol):
    """All that are registered."""

    async def ask_all(
        self, message: Mapping[str, Any], timeout_us: int = TIMEOUT_US
    ) -> tuple[Answers, list[str]]:
        """Answers by sequencer, and those who gave none."""

    def weight_of(self, name: str) -> float:
        """Its share of the logs; 0: none."""


@dataclass(frozen=True, slots=True)
class Lags:
    """What all owners said.

    Args:
        behind: members by the ledger of an open segment; every ledger that somebody writes is here.
        recovering: bookies to which somebody who recovers a segment writes.
        answered, silent: sequencers; who does not know the question is silent.
    """

    behind: Mapping[LedgerId, frozenset[Member]] = field(default_factory=dict)
    recovering: frozenset[BookieId] = frozenset()
    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    def is_written(self, ledger_id: LedgerId) -> bool:
        """Whether an owner said that it writes this segment."""
        return ledger_id in self.behind

    def add_to(self, ledger_id: LedgerId, debts: Debts) -> Debts:
        """What is noted about a ledger, and that who is behind holds nothing good of it."""
        behind = self.behind.get(ledger_id)
        if not behind:
            return debts
        return replace(debts, owed={**debts.owed, **dict.fromkeys(behind, (_WHOLE,))})

    def has_news_for(self, earlier: Lags, read_again: Collection[LedgerId]) -> bool:
        """Whether somebody is behind, or is recovered to, of whom nothing was said before.

        Args:
            read_again: ledgers that are judged by the later word anyway.
        """
        is_behind = any(
            members - earlier.behind.get(ledger_id, frozenset())
            for ledger_id, members in self.behind.items()
            if ledger_id not in read_again
        )
        return is_behind or bool(self.recovering - earlier.recovering)


async def report_lags(list_drivers: Callable[[], Sequence[LogDriver]]) -> dict[str, Any]:
    """The answer of one sequencer, once what was appended before the question is everywhere where
    it is to be, or it is clear who lacks it.

    In a busy log the last copies of an entry come a little after its acknowledgement, all the time.
    """
    asked_at: dict[LedgerId, EntryId] = {
        writer.segment.ledger_id: writer.lap for writer in _list_writers(list_drivers())
    }
    left = dict(asked_at)
    for _ in range(round(_SETTLED_WITHIN_S / _LOOK_S)):
        owing = set()
        for writer in _list_writers(list_drivers()):
            ledger_id = writer.segment.ledger_id
            if ledger_id in left and writer.owes_up_to(left[ledger_id]):
                owing.add(ledger_id)
                await asyncio.sleep(0)  # appends go on between two logs that owe much
        left = {ledger_id: last for ledger_id, last in left.items() if ledger_id in owing}
        if not left:
            break
        await asyncio.sleep(_LOOK_S)
    behind = {}
    for writer in _list_writers(list_drivers()):
        ledger_id = writer.segment.ledger_id
        # Of a segment that was opened meanwhile nothing was acknowledged before the question.
        members = writer.list_behind(asked_at.get(ledger_id, NOTHING))
        behind[str(ledger_id)] = [[*member] for member in members]
    recovering = {
        member.bookie
        for driver in list_drivers()
        for recovery in driver.core.older.recoveries
        for member in recovery.members
    }
    return {"behind": behind, "recovering": sorted(recovering)}


def _list_writers(drivers: Iterable[LogDriver]) -> list[SegmentWriter]:
    return [driver.core.writer for driver in drivers if driver.core.writer is not None]


async def ask_lags(sequencers: AskedSequencers) -> Lags:
    """Ask every registered sequencer at once.

    Raises:
        DuramenError: `log_unavailable`: there is none.
    """
    answers, silent = await sequencers.ask_all({"op": REPORT_LAGS}, TIMEOUT_US)
    behind: dict[LedgerId, frozenset[Member]] = {}
    recovering: set[BookieId] = set()
    answered = []
    for name, answer in answers:
        try:
            told = {
                LedgerId(int(ledger)): frozenset(
                    Member(BookieId(str(bookie)), Incarnation(str(incarnation)))
                    for bookie, incarnation in members
                )
                for ledger, members in answer["behind"].items()
            }
            recovering |= {BookieId(str(bookie)) for bookie in answer["recovering"]}
        except (AttributeError, KeyError, TypeError, ValueError):
            silent = [*silent, name]
            continue
        answered.append(name)
        for ledger_id, members in told.items():
            # Two who both take themselves for its owner: what either misses is missed.
            behind[ledger_id] = behind.get(ledger_id, frozenset()) | members
    return Lags(behind, frozenset(recovering), tuple(answered), tuple(sorted(silent)))
