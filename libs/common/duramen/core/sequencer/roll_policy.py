"""When a segment has been open long enough: by size, by age, by request, by silence (R19).

Both bounds of the configuration are active, each with jitter, so that logs that were opened at one
time do not roll at one time. A segment that nobody appends to is closed and none is opened after
it: idle logs cost nothing at takeover. Rolling itself is `log_sequencer`'s.

Source: 01-protocol section 5 (roll), section 2 (idle logs).
"""

from __future__ import annotations

import random
from typing import Final

from duramen.config import Roll
from duramen.core.segment import Totals
from duramen.ids import LAST_ENTRY_ID, EntryId
from duramen.units import SECOND

_JITTER: Final = 0.1
_PAUSE_US: Final = 5 * SECOND
"""After a roll that was called off: whatever was in its way needs a while."""

_LAST_ENTRY: Final = LAST_ENTRY_ID - 1_000_000
"""Roll well before entry ids run out (01-protocol section 1)."""


class RollPolicy:
    """The end of one open segment.

    Args:
        config: of the log.
        rng: draws the jitter.
        now_us: when the segment was opened.
    """

    def __init__(self, config: Roll, rng: random.Random, now_us: int) -> None:
        jitter = rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._size_bytes = int(config.size * jitter)
        self._interval_us = int(config.interval * jitter)
        self._idle_us = config.idle_close
        self._opened_at_us = now_us
        self._last_append_us = now_us
        self._not_before_us = now_us
        self._is_requested = False

    def note_append(self, now_us: int) -> None:
        """Somebody appends: the segment is not idle."""
        self._last_append_us = now_us

    def request(self) -> None:
        """Roll as soon as it can be done."""
        self._is_requested = True

    def postpone(self, now_us: int) -> None:
        """A roll was called off: not again for a while."""
        self._not_before_us = now_us + _PAUSE_US

    def is_idle(self, now_us: int) -> bool:
        """Nobody has appended for so long that the log shall cost nothing."""
        return now_us - self._last_append_us >= self._idle_us

    def due_us(self, totals: Totals) -> int:
        """When time alone ends the segment: its age if it holds records, its idleness anyway."""
        due_us = self._last_append_us + self._idle_us
        if totals.record_count:
            due_us = min(due_us, self._opened_at_us + self._interval_us)
        return max(due_us, self._not_before_us)

    def must_end(self, totals: Totals, last: EntryId, now_us: int) -> bool:
        """Whether the segment, which holds `totals` up to `last`, ends now."""
        if now_us < self._not_before_us:
            return False
        return (
            self._is_requested
            or totals.length_bytes >= self._size_bytes
            or last >= _LAST_ENTRY
            or now_us >= self.due_us(totals)
        )
