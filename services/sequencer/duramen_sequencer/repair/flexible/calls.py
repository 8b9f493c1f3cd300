"""What an attempt at repairing a flexible segment asks of bookies, through their data ports.

Holdings and copies are those of striped segments (`copying`); copies carry the map, so that they
get envelopes. Marks are asked of the bookies themselves, by a call that reads nothing.

Called by `attempts`. Source: docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.repair.attempt import CopyOrder, CopyOrders, HoldingsQuestion
from duramen.core.flexible.repair.evidence import DamageMark
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import Holdings
from duramen.core.repair.tasks import Backlog
from duramen.core.status import BookieStatus
from duramen.ids import LedgerId, Member, NodeNumber
from duramen.limits import PULL_SOURCE_COUNT_MAX
from duramen.units import MS, SECOND
from duramen.wire.repair_calls import PullMap
from duramen_sequencer.repair.copying import Copier, OnBytes

_BUSY_PAUSE_US: Final = 250 * MS
"""Until a bookie that copies for others is looked at again."""


class MarkAnswers(NamedTuple):
    """Who told a damage mark, and who is there and knows none: its version is too old."""

    told: Mapping[Member, DamageMark]
    unaware: Collection[Member]


class AttemptCalls:
    """Asks for one auditor.

    Args:
        backlog: bounds the copies that a bookie makes at once, of striped segments too.
    """

    def __init__(self, copier: Copier, backlog: Backlog) -> None:
        self._copier = copier
        self._backlog = backlog

    async def ask_marks(
        self, ledger_id: LedgerId, rows: Sequence[NodesetRow], view: ClusterView
    ) -> MarkAnswers:
        """Ask all at once."""
        members = [row.member for row in rows]
        answers = await asyncio.gather(
            *(self._copier.ask_mark(ledger_id, member, view) for member in members)
        )
        pairs = list(zip(members, answers, strict=True))
        told = {member: mark for member, mark in pairs if not isinstance(mark, BookieStatus)}
        unaware = [member for member, answer in pairs if answer is BookieStatus.INVALID]
        return MarkAnswers(told, unaware)

    async def ask_holdings(
        self, ledger_id: LedgerId, question: HoldingsQuestion, view: ClusterView
    ) -> dict[Member, Holdings]:
        """What those who answered hold."""
        members = [row.member for row in question.rows]
        found, _ = await self._copier.take_holdings_of(ledger_id, question.piece, members, view)
        return found

    async def copy(
        self, ledger_id: LedgerId, orders: CopyOrders, view: ClusterView, on_bytes: OnBytes
    ) -> None:
        """Have each target fetch what it is to hold; what came of it the targets are asked."""
        await asyncio.gather(
            *(
                self._copy_one(ledger_id, order, orders.map_numbers, view, on_bytes)
                for order in orders.orders
            )
        )

    async def _copy_one(
        self,
        ledger_id: LedgerId,
        order: CopyOrder,
        numbers: tuple[NodeNumber, ...],
        view: ClusterView,
        on_bytes: OnBytes,
    ) -> None:
        target = order.target.member
        while not self._backlog.claim(target):  # noqa: ASYNC110 - nobody says when it is free
            await asyncio.sleep(_BUSY_PAUSE_US / SECOND)
        try:
            sources = [row.member for row in order.sources]
            node_map = PullMap(order.target.number, numbers)
            for at in range(0, len(sources), PULL_SOURCE_COUNT_MAX):
                some = sources[at : at + PULL_SOURCE_COUNT_MAX]
                await self._copier.pull(
                    ledger_id, target, order.ranges, some, view, on_bytes, node_map
                )
        finally:
            self._backlog.release(target)
