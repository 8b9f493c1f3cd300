"""What this bookie holds of a ledger, read anew from its disks: identities and doubts.

An inventory is what repair believes in: bytes that were read past the page cache and whose
checksums match. Damage that it meets is reported as the scrub reports it (UNKNOWN from then on, and
the repair queue). It reads piece by piece in a thread, each charged to the pace of repair.

Not here: who may ask (`calls`), what follows from it (`core.repair`). Called by `calls`.
Source: R9, R15, R21, R26, docs/protocol/repair.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.limits import (
    INVENTORY_BYTES_MAX,
    INVENTORY_ROW_COUNT_MAX,
    INVENTORY_TIME_US,
    REPAIR_PIECE_BYTES,
)
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.repair_calls import Inventory, InventoryAnswer
from duramen_bookie.entry_log.entry_log import ReadFault
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.pacing import Pace, run_in_thread

_Row = tuple[EntryId, int | None]


class InventoryTaker:
    """Takes inventories of one bookie.

    Args:
        pace: of repair; a stop ends what is under way.
        on_damage: an entry of this ledger turned out to be damaged.
    """

    def __init__(
        self, storage: Storage, pace: Pace, *, on_damage: Callable[[LedgerId], None]
    ) -> None:
        self._storage = storage
        self._pace = pace
        self._on_damage = on_damage
        self._verified_count = 0
        self._damaged_count = 0

    async def take(self, wanted: Inventory) -> InventoryAnswer:
        """Read what is held of a range, from its first entry on, as far as one call goes."""
        core = self._storage.core
        ledger_id, first, last, is_marked = wanted
        if not core.is_alive(ledger_id):
            return InventoryAnswer(BookieStatus.GONE)
        # As it is before the first byte is read: what is lost from here on makes it another one.
        mark = core.damage_mark_of(ledger_id) if is_marked else None
        if wanted.is_empty:
            return InventoryAnswer(BookieStatus.OK, *core.marks_of(ledger_id), mark=mark)
        good: list[tuple[EntryId, int]] = []
        bad: list[EntryId] = []
        following = await self._verify(ledger_id, core.list_held(ledger_id, first, last), good, bad)
        end = last if following is None else EntryId(following - 1)
        unknown = EntryRanges(core.list_unknown(ledger_id, first, end) if end >= first else ())
        for entry_id in bad:
            unknown.add(entry_id)
        for entry_id, _ in good:  # it may have come back, or been added, while the rest was read
            unknown.remove(entry_id)
        ranges = unknown.list_ranges()
        if len(ranges) > INVENTORY_ROW_COUNT_MAX:
            ranges = ranges[:INVENTORY_ROW_COUNT_MAX]
            following = EntryId(ranges[-1][1] + 1)
            good = [row for row in good if row[0] < following]
        if not core.is_alive(ledger_id):
            return InventoryAnswer(BookieStatus.GONE)
        lac, highest = core.marks_of(ledger_id)
        return InventoryAnswer(BookieStatus.OK, lac, highest, following, good, ranges, mark)

    def statistics(self) -> dict[str, int]:
        """Since the start."""
        return {"verified_entries": self._verified_count, "damaged_entries": self._damaged_count}

    async def _verify(
        self,
        ledger_id: LedgerId,
        held: Sequence[tuple[EntryId, EntryId]],
        good: list[tuple[EntryId, int]],
        bad: list[EntryId],
    ) -> EntryId | None:
        """Put what is good and what is not into the lists; returns where one call has enough."""
        read_bytes = 0
        deadline_us = _clock_us() + INVENTORY_TIME_US
        for first, last in held:
            cursor = first
            while cursor <= last:
                if len(good) + len(bad) >= INVENTORY_ROW_COUNT_MAX:
                    return cursor
                if read_bytes >= INVENTORY_BYTES_MAX:
                    return cursor
                if (good or bad) and _clock_us() >= deadline_us:
                    return cursor
                room = INVENTORY_ROW_COUNT_MAX - len(good) - len(bad)
                rows, size = await self._verify_piece(
                    ledger_id, cursor, EntryId(min(last, cursor + room - 1))
                )
                good += [(entry_id, crc) for entry_id, crc in rows if crc is not None]
                bad += [entry_id for entry_id, crc in rows if crc is None]
                read_bytes += size
                cursor = EntryId(cursor + len(rows))
        return None

    async def _verify_piece(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId
    ) -> tuple[list[_Row], int]:
        """Entries from `first` on, one at least, and the bytes that were read for them."""
        core = self._storage.core
        wanted = ReadRange(ledger_id, first, last, REPAIR_PIECE_BYTES, service=ServiceClass.REPAIR)
        ((reading,), _) = self._storage.select([core.plan(wanted)])
        if not reading.places and not reading.entry_log_count:
            return [(first, None)], 0  # it was damaged or dropped since the call began
        rows, fault = await run_in_thread(partial(self._storage.identify, reading))
        del reading  # it pins files of the journal
        size = sum([length for _, _, length in rows])
        await self._pace.admit(size)
        if not rows:
            if fault is ReadFault.UNREADABLE:
                self._report(ledger_id, first)
            return [(first, None)], 0
        for entry_id, crc, _ in rows:
            if crc is None:
                self._report(ledger_id, entry_id)
        self._verified_count += len(rows)
        return [(entry_id, crc) for entry_id, crc, _ in rows], size

    def _report(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        self._damaged_count += 1
        self._storage.core.on_unreadable(ledger_id, entry_id)
        self._on_damage(ledger_id)


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
