"""Logs that this process took over by a hint alone: their epochs say so for a while.

A hint may be false, and false again. An epoch that was opened by one names it in its owner node
(`by_hint`), and no hint takes the log from there: only its owner's session does, or its peace. So
false hints never move a log twice in a row. The mark outlives a roll, so that it lasts longer than
any bound that is promised on it. The memory is bounded: the oldest marks are forgotten first.

Called by the sequencer's `ownership.claims` and by the cores that propose epochs.
Source: docs/protocol/members.md "What a confirmed suspicion does".
"""

from __future__ import annotations

from typing import Final

from duramen.ids import LogId
from duramen.units import SECOND

KEPT_US: Final = 60 * SECOND
"""From the hint on. A claim that takes longer is not made: its log is looked at anew by then."""

LOG_COUNT_MAX: Final = 100_000


class HintedLogs:
    """The marks of one process."""

    def __init__(self) -> None:
        self._until_us: dict[LogId, int] = {}

    def note(self, log_id: LogId, now_us: int) -> None:
        """The log is taken over because its owner is said to be away."""
        self.forget(log_id)
        if len(self._until_us) >= LOG_COUNT_MAX:
            del self._until_us[next(iter(self._until_us))]
        self._until_us[log_id] = now_us + KEPT_US

    def forget(self, log_id: LogId) -> None:
        """The log is taken over for a better reason: its owner's process or session is gone."""
        self._until_us.pop(log_id, None)

    def has(self, log_id: LogId, now_us: int) -> bool:
        """Whether an epoch that this process opens now is one by a hint."""
        return now_us < self._until_us.get(log_id, now_us)

    def __len__(self) -> int:
        return len(self._until_us)
