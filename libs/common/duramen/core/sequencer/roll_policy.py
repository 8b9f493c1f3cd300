"""When a segment has been open long enough: by size, by age, by request, by silence (R19).

Both bounds of the configuration (size, age) are active. Each has jitter, so that logs opened
together do not roll together. A segment that nobody appends to is closed, and none is opened after
it: idle logs cost nothing at takeover. `RollQueue` bounds how many logs of a process roll at once,
because each roll is a few calls to ZooKeeper.

Not here: how a segment ends (`segment_end`). Called by `open_epoch` and `segment_end`.
Source: docs/protocol/write.md "Roll", docs/protocol/ownership.md "Idle logs".
"""

from __future__ import annotations

import random
from itertools import islice
from typing import Final

from duramen.config import Roll
from duramen.core.segment import Totals
from duramen.ids import LAST_ENTRY_ID, EntryId, LogId
from duramen.units import SECOND

_JITTER: Final = 0.1
_PAUSE_US: Final = 5 * SECOND
"""After a roll that was called off, whatever was in its way needs a while; and what takes members
from one segment after the other."""

_LAST_ENTRY: Final = LAST_ENTRY_ID - 1_000_000
"""Roll well before entry ids run out (docs/protocol/wire.md "Identities")."""

_NEVER_US: Final = 1 << 50
"""35 years: longer than any process lives."""

_ROLLS_AT_ONCE: Final = 16
"""A roll takes some 10 ms of ZooKeeper's time: 16 keep it busy and let others in between."""


class RollQueue:
    """Which logs of a process may roll now: the first few of those that want to, in their order.

    Args:
        limit: logs that roll at once, ≥ 1.
    """

    def __init__(self, limit: int = _ROLLS_AT_ONCE) -> None:
        assert limit >= 1, limit
        self._limit = limit
        self._logs: dict[LogId, None] = {}

    def enter(self, log_id: LogId) -> bool:
        """The log wants to roll; whether it may now. Ask again until it may, or `leave`."""
        self._logs.setdefault(log_id)
        return log_id in islice(self._logs, self._limit)

    def leave(self, log_id: LogId) -> None:
        """The log has rolled, or does not want to any more."""
        self._logs.pop(log_id, None)

    def __contains__(self, log_id: LogId) -> bool:
        return log_id in self._logs

    def statistics(self) -> dict[str, int]:
        """Logs that roll and logs that wait for their turn."""
        rolling = min(len(self._logs), self._limit)
        return {"rolling": rolling, "waiting": len(self._logs) - rolling}


class RollPolicy:
    """The end of one open segment.

    Args:
        config: of the log.
        rng: draws the jitter.
        now_us: when the segment was opened.
        closes_idle: whether silence ends it.
    """

    def __init__(
        self, config: Roll, rng: random.Random, now_us: int, *, closes_idle: bool = True
    ) -> None:
        self._jitter = rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._closes_idle = closes_idle
        self.configure(config)
        self._opened_at_us = now_us
        self._last_append_us = now_us
        self._not_before_us = now_us
        self._is_requested = False

    def configure(self, config: Roll) -> None:
        """The bounds of the configuration hold from now on, for the open segment too."""
        self._size_bytes = max(int(config.size * self._jitter), 1)
        self._interval_us = int(config.interval * self._jitter)
        self._idle_us = config.idle_close if self._closes_idle else _NEVER_US

    def note_append(self, now_us: int) -> None:
        """Somebody appends: the segment is not idle."""
        self._last_append_us = now_us

    def request(self) -> None:
        """Roll as soon as it can be done."""
        self._is_requested = True

    def has_lasted(self, now_us: int) -> bool:
        """It was open for a while: what ends it is not what ended the one before."""
        return now_us - self._opened_at_us >= _PAUSE_US

    def postpone(self, now_us: int) -> None:
        """A roll was called off: not again for a while."""
        self._not_before_us = now_us + _PAUSE_US

    def is_idle(self, now_us: int) -> bool:
        """Nobody has appended for so long that the log shall cost nothing."""
        return now_us - self._last_append_us >= self._idle_us

    def due_us(self, totals: Totals) -> int:
        """When it ends without another append: on request, by age (with records), by idleness."""
        if self._is_requested:
            return self._not_before_us
        due_us = self._last_append_us + self._idle_us
        if totals.record_count and self._opened_at_us + self._interval_us < due_us:
            due_us = self._opened_at_us + self._interval_us
        return due_us if due_us > self._not_before_us else self._not_before_us

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
