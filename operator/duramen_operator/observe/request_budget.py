"""How many requests a look may spend on logs that nothing calls for: so many for each, and minute.

Requests accrue with time and are kept for half a minute at most, so that a pass every half minute
finds all of them and a hurry of passes shares them. Every request about a log is paid from it,
those that cannot wait as well; it is never in debt. Lists and namespaces are not.

Pure: time is handed in. Called by `questions` and `log_facts`. Source: docs/kubernetes/one-hand.md
"What a look costs" (16).
"""

from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 30.0
"""A pass comes so often at least (`--resync-seconds`)."""

PER_LOG_COUNT: Final = 1
"""In each window: two a minute."""

LEAST_COUNT: Final = 400
"""In each window, however few logs there are: a small cluster is read whole in each pass."""


class RequestBudget:
    """What has accrued and was not spent; full at first."""

    def __init__(self, clock_s: Callable[[], float], *, least_count: int = LEAST_COUNT) -> None:
        self._clock_s = clock_s
        self._least_count = least_count
        self._most = float(least_count)
        self._free = self._most
        self._at_s = clock_s()

    @property
    def free_count(self) -> int:
        """Requests that may be made now."""
        return int(self._free)

    def accrue(self, log_count: int) -> None:
        """Add what has accrued since it was last asked, for a cluster of so many logs."""
        now_s = self._clock_s()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._most = float(max(log_count * PER_LOG_COUNT, self._least_count))
        self._free = min(self._most, self._free + self._most * passed_s / WINDOW_S)

    def spend(self) -> None:
        """One request is made."""
        self._free = max(0.0, self._free - 1.0)
