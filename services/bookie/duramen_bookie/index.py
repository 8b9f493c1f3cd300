"""Where each entry lies: per ledger, compact arrays in memory, 20 bytes an entry.

With the 8 bytes of the core's table that is 28 bytes an entry. Places come from the journal: at
replay and when a commit is durable, always before the core is told, so that whatever the core plans
to read is found here. A place that is given again (a resend, a copy at start) replaces the older.

Not here: what may be read (`core.bookie`), the bytes (`storage`). Source: 02-storage "Files".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from duramen.core.bookie_state import EntryTable
from duramen.ids import EntryId, LedgerId
from duramen.wire.journal_format import Location


class Place(NamedTuple):
    """An entry and where it lies."""

    entry_id: EntryId
    location: Location


class EntryIndex:
    """Ledger → entry → place."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, EntryTable] = {}
        self._entry_bytes = 0

    def put(self, ledger_id: LedgerId, entry_id: EntryId, location: Location) -> None:
        """An entry is durable at this place."""
        table = self._ledgers.get(ledger_id)
        if table is None:
            table = self._ledgers[ledger_id] = EntryTable("IQI")
        before = len(table)
        table.put(entry_id, *location)
        if len(table) != before:
            self._entry_bytes += location.length_bytes

    def select(
        self, ledger_id: LedgerId, first: EntryId, entry_count: int, bytes_max: int
    ) -> list[Place]:
        """Places of `entry_count` entries from `first` on, one at least, while they fit."""
        table = self._ledgers[ledger_id]
        places: list[Place] = []
        for entry_id in range(first, first + entry_count):
            values = table.get(entry_id)
            assert values is not None, (ledger_id, entry_id)
            bytes_max -= values[2]
            if bytes_max < 0 and places:
                break
            places.append(Place(EntryId(entry_id), Location(*values)))
        return places

    def statistics(self) -> dict[str, Any]:
        """Sizes."""
        return {
            "ledgers": len(self._ledgers),
            "entries": sum(map(len, self._ledgers.values())),
            "entry_bytes": self._entry_bytes,
        }
