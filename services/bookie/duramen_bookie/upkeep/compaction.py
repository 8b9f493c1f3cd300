"""Compaction: entry log files of which little is alive are rewritten, so that their space comes
back.

Ledgers die whole (truncation, deletion); their records stay in files that others live in. Once an
hour files with at most a fifth alive are rewritten, where little is copied for much space; once a
day those with at most four fifths. A file with nothing alive is let go of without copying. An index
that turned out to be damaged is made anew here as well, from the data beside it, and soon.

Not here: copying (`transfer`), checkpoint and turn (`settling.Carrier`). Called by `rounds`.
Source: docs/bookie.md "Upkeep".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from duramen.limits import COMPACT_DAILY_RATIO, COMPACT_HOURLY_RATIO
from duramen.units import DAY
from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen_bookie.entry_log.entry_log_file import EntryLogFile
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.checkpointing import begin_compaction, has_room
from duramen_bookie.upkeep.pacing import Pace
from duramen_bookie.upkeep.settling import Carrier
from duramen_bookie.upkeep.transfer import Transfer

_FRAME_BYTES: Final = 2 * BLOCK_BYTES
"""Of a data file beside its records: header and END."""


class Compaction:
    """Decides what to compact; `run_round` is for a `Periodic` of an hour.

    Args:
        now_us: a monotonic clock.
    """

    def __init__(
        self, storage: Storage, carrier: Carrier, pace: Pace, now_us: Callable[[], int]
    ) -> None:
        self._storage = storage
        self._carrier = carrier
        self._pace = pace
        self._now_us = now_us
        self._daily_at_us = now_us() + DAY
        self._compacted_count = 0
        self._rebuilt_count = 0

    async def run_round(self) -> None:
        """Compact what is worth it now."""
        ratio = COMPACT_HOURLY_RATIO
        if self._now_us() >= self._daily_at_us:
            ratio = COMPACT_DAILY_RATIO
            self._daily_at_us = self._now_us() + DAY
        await self.compact(ratio)

    async def compact(self, ratio: float) -> int:
        """Rewrite every file of which at most `ratio` (0 to 1) is alive, as far as there is room;
        how many there were."""
        count = 0
        for file in self._storage.entry_log.list_files():
            # What is dead takes no room: letting go of it is what makes some.
            if live_ratio(file) <= ratio and (
                file.live_bytes == 0 or has_room(self._storage, file.row_count, file.live_bytes)
            ):
                begin = partial(self._begin, file.file_id)
                is_done = await self._carrier.carry_out(begin, self._pace)
                if not is_done:
                    break
                count += 1
        self._compacted_count += count
        return count

    async def rebuild_indexes(self) -> None:
        """Make damaged indexes anew."""
        for file in self._storage.entry_log.list_files():
            if file.is_index_damaged:
                await self._carrier.work_alone(partial(self._rebuild_index, file.file_id))

    def _begin(self, file_id: int) -> Transfer | None:
        """As the file is now: its index may have been made anew while it waited for its turn."""
        file = self._storage.entry_log.find_file(file_id)
        return None if file is None else begin_compaction(self._storage, file)

    def _rebuild_index(self, file_id: int) -> None:
        """For a thread; the file may have been compacted while it waited for its turn."""
        file = self._storage.entry_log.find_file(file_id)
        if file is not None and file.is_index_damaged:
            self._storage.rebuild_index(file.ref)
            self._rebuilt_count += 1

    def statistics(self) -> dict[str, Any]:
        """What was done since the start."""
        return {
            "compacted_file_count": self._compacted_count,
            "rebuilt_index_count": self._rebuilt_count,
            "pace": self._pace.statistics(),
        }


def live_ratio(file: EntryLogFile) -> float:
    """How much of a file's records is of ledgers that are alive: 0 to 1."""
    record_bytes = file.ref.data_bytes - _FRAME_BYTES
    return file.live_bytes / record_bytes if record_bytes > 0 else 0.0
