"""Cache of verified entries, bounded in bytes, least recently used out first.

An entry's bytes never change once it exists: one writer per epoch encodes it once, and resends,
recovery and repair copy it. So there is nothing to invalidate, and entries above the LAC may lie
here as well: whether an entry may be *shown* is decided by the reader core, never by the cache.

Called by `bookies.RangeFetcher`. Source: docs/protocol/read-answers.md "Who shares what".
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from duramen.ids import EntryId, LedgerId
from duramen.units import MIB

CACHE_BYTES_DEFAULT: Final = 256 * MIB
"""Enough for the last seconds of a node's traffic, which is what tailing readers share."""

_OVERHEAD_BYTES: Final = 200
"""Key, dictionary slot and bytes object of one entry."""


class EntryCache:
    """Entries by (ledger, entry id)."""

    def __init__(self, bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[LedgerId, EntryId], bytes] = OrderedDict()
        self._bytes = 0
        self._hit_count = 0
        self._miss_count = 0

    @property
    def hit_ratio(self) -> float:
        """Entries served from here per entry served since the start; 0 before the first."""
        total = self._hit_count + self._miss_count
        return self._hit_count / total if total else 0.0

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """One entry, if it is here; not counted as a hit."""
        return self._entries.get((ledger_id, entry_id))

    def has(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether an entry is here; it is not used, and may be the next to go."""
        return (ledger_id, entry_id) in self._entries

    def get_run(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """The entries from `first` on that are here without a gap: at most `bytes_max`, but one."""
        run: list[tuple[EntryId, bytes]] = []
        size = 0
        for entry in range(first, last + 1):
            key = (ledger_id, EntryId(entry))
            body = self._entries.get(key)
            if body is None or (run and size + len(body) > bytes_max):
                break
            self._entries.move_to_end(key)
            run.append((key[1], body))
            size += len(body)
        self._hit_count += len(run)
        return run

    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Keep a verified entry that came from a bookie."""
        self._miss_count += 1
        key = (ledger_id, entry_id)
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        self._entries[key] = body
        self._bytes += len(body) + _OVERHEAD_BYTES
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= len(oldest) + _OVERHEAD_BYTES

    def statistics(self) -> dict[str, int | float]:
        """Size, bound and hits."""
        return {
            "entries": len(self._entries),
            "bytes": self._bytes,
            "bytes_max": self._bytes_max,
            "hits": self._hit_count,
            "misses": self._miss_count,
            "hit_ratio": round(self.hit_ratio, 4),
        }
