"""How often who did what to which namespace, and what came of it: a bounded table, once a minute.

Whoever finds no room counts as `others`, so no call is left out however many callers there are.

Called by `runtime.audit.trail`. Source: docs/protocol/audit.md "What is recorded".
"""

from __future__ import annotations

from typing import Final, NamedTuple

ROW_COUNT_MAX: Final = 1_024
"""Rows with names; one more for each verb and outcome has none."""

OTHERS: Final = "others"


class CountKey(NamedTuple):
    """Of one row; who and namespace are None where nobody, or no namespace, is known."""

    who: str | None
    namespace: str | None
    verb: str | None
    outcome: str


class CallCounts:
    """Calls since the table was last taken."""

    def __init__(self) -> None:
        self._counts: dict[CountKey, int] = {}
        self._named_count = 0
        self._since_ms: int | None = None

    def add(self, key: CountKey, now_ms: int) -> None:
        """Count one call."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if key not in self._counts:
            if self._named_count >= ROW_COUNT_MAX:
                key = CountKey(OTHERS, None, key.verb, key.outcome)
            else:
                self._named_count += 1
        self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> tuple[int, list[tuple[CountKey, int]]] | None:
        """All rows and since when they count, in unix ms; empties the table. None: no calls."""
        if self._since_ms is None:
            return None
        taken = self._since_ms, list(self._counts.items())
        self._counts = {}
        self._named_count = 0
        self._since_ms = None
        return taken

    def __len__(self) -> int:
        return len(self._counts)
