"""One read that was admitted, on its way to a thread: plain ranges, or those of flexible segments.

A job is made on the event loop, from the core's plans. It says what it costs, answers itself on any
thread, and can be refused when its turn does not come in time.

Not here: admission and threads (`handlers`). Called by the data plane. Source:
docs/protocol/wire.md "Overload".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from duramen.core.bookie.bookie_state import ReadPlan
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.wire.bookie_calls import ReadAnswer

if TYPE_CHECKING:
    from duramen_bookie.storage import Storage

_PLACE_BYTES: Final = 256
"""One place of an entry in memory: two tuples and their numbers."""


class ReadOutcome(Protocol):
    """What a job found out."""

    @property
    def answers(self) -> Sequence[Any]: ...
    @property
    def unreadable(self) -> Sequence[tuple[LedgerId, EntryId]]: ...


class ReadJob(Protocol):
    """A read of either version."""

    @property
    def is_short(self) -> bool:
        """Whether it may be done on the event loop, if it is one of the tail."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""

    @property
    def queue_bytes(self) -> int:
        """What it takes while it waits."""

    @property
    def answer_bytes(self) -> int:
        """What its entries take, about."""

    def read(self) -> ReadOutcome:
        """Answer it; on any thread, blocks for the disk."""

    def refuse(self) -> Sequence[Any]:
        """Answers without entries; what the core knows of the ledgers is told."""


class PlainJob:
    """A read of version 1."""

    def __init__(self, storage: Storage, plans: Sequence[ReadPlan]) -> None:
        self._storage = storage
        self._plans = plans
        self._readings, self.is_short = storage.select(plans)
        self.is_empty = not any(plan.entry_count for plan in plans)
        self.queue_bytes = _PLACE_BYTES * sum([len(one.places) for one in self._readings])
        self.answer_bytes = sum([reading.size_bytes for reading in self._readings])

    def read(self) -> ReadOutcome:
        """Fetch and check the entries."""
        return self._storage.read(self._readings)

    def refuse(self) -> list[ReadAnswer]:
        """OVERLOADED instead of entries."""
        return [
            ReadAnswer(
                BookieStatus.OVERLOADED if plan.entry_count else plan.status,
                plan.lac, plan.highest, plan.is_sealed, [],
            )
            for plan in self._plans
        ]  # fmt: skip
