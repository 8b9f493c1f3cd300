"""Which nodes of a map are up in a reader's filters: not those that failed, nor those to blame.

A node that failed, or was late where others answered, is down for a time. A node that is named
first for an entry, vouches for itself and has nothing to send is to blame: it is down for the rest
of the block, for twice as many blocks each time it is met again, 64 at most. All of that chooses
whom to wait for and is evidence of nothing: an entry that nobody sends is asked of all nodes.

Shared by the reads of one segment in a process. Called by `flexible_pass`. Source:
docs/protocol/envelopes.md "What nobody sends".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.reading.replica_order import (
    FAILURE_MEMORY_US,
    OVERLOAD_MEMORY_US,
    SILENCE_MEMORY_US,
    ReplicaOrder,
)
from duramen.core.status import BOOKIE_FAULTS, BookieStatus
from duramen.ids import EntryId, NodeNumber

BLOCK_COUNT_MAX: Final = 64
"""A node that is to blame once more is asked again after so many blocks at the latest."""


@dataclass(slots=True)
class _Blame:
    block_count: int
    """For so many blocks it is down."""
    until_count: int
    """Until so many blocks were met."""


class NodeStanding:
    """Who of one segment's nodes is up."""

    def __init__(self) -> None:
        self._down_until_us: dict[NodeNumber, int] = {}
        self._late_until_us: dict[NodeNumber, int] = {}
        """An answer does not end it: who is always late would cost each read its delay."""
        self._blames: dict[NodeNumber, _Blame] = {}
        self._met_count = 0
        self._last_block: EntryId | None = None

    def list_up(self, rows: Iterable[NodesetRow], now_us: int) -> frozenset[NodeNumber]:
        """Who of a map is up now."""
        return frozenset(
            row.number
            for row in rows
            if now_us >= self._down_until_us.get(row.number, 0)
            and now_us >= self._late_until_us.get(row.number, 0)
            and not self.is_blamed(row.number)
        )

    def is_blamed(self, number: NodeNumber) -> bool:
        """Whether it did not have what it was to send, a few blocks ago."""
        blame = self._blames.get(number)
        return blame is not None and self._met_count < blame.until_count

    def blame(self, number: NodeNumber) -> None:
        """It was to send an entry, vouches for itself, and does not have it."""
        known = self._blames.get(number)
        count = 1 if known is None else min(2 * known.block_count, BLOCK_COUNT_MAX)
        self._blames[number] = _Blame(count, self._met_count + count)

    def on_block(self, block: EntryId) -> None:
        """A block is being read: the number of its first entry."""
        if block != self._last_block:
            self._met_count += self._last_block is not None
            self._last_block = block

    def on_failure(
        self, row: NodesetRow, status: BookieStatus, now_us: int, order: ReplicaOrder
    ) -> None:
        """It did not answer, or refused: others are asked for a while."""
        if status in BOOKIE_FAULTS:
            order.on_failure(row.member, now_us)
            self._put_down(row.number, now_us + FAILURE_MEMORY_US)
        elif status is BookieStatus.GONE:  # the segment is, and no bookie has failed
            self._put_down(row.number, now_us + FAILURE_MEMORY_US)
        else:
            order.on_overload(row.member, now_us)
            self._put_down(row.number, now_us + OVERLOAD_MEMORY_US)

    def on_late(self, row: NodesetRow, now_us: int) -> None:
        """Others answered meanwhile."""
        self._late_until_us[row.number] = now_us + SILENCE_MEMORY_US

    def on_success(self, number: NodeNumber) -> None:
        """It answered: it failed no more."""
        self._down_until_us.pop(number, None)

    def _put_down(self, number: NodeNumber, until_us: int) -> None:
        self._down_until_us[number] = max(until_us, self._down_until_us.get(number, 0))
