"""Which log is taken over next: hottest first, a bounded number at once.

A dead sequencer leaves hundreds of logs at one moment. Taken over all at once, they would fill
every queue on the way and all be late; one after the other, the last would wait for minutes. Logs
for which appends wait come first, those with the most of them ahead. The others follow by the rate
last known here, then by the bytes that they hold. An append that comes later moves its log forward.

Invariants (checked by `validate`):
 1 at most `running_count_max` run.
 2 every waiting log that does not run has an entry in the heap.
Called by the sequencer's `log_host`. Source: docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from duramen.ids import LogId


class _Rank(NamedTuple):
    """Smaller is sooner."""

    demand: int
    rate: float
    size: int
    turn: int


class TakeoverQueue:
    """Logs that wait to be taken over, and those that are being taken over."""

    def __init__(self, running_count_max: int) -> None:
        self._running_count_max = running_count_max
        self._heap: list[tuple[_Rank, LogId]] = []
        self._waiting: dict[LogId, _Rank] = {}
        self._running: set[LogId] = set()
        self._turn = 0

    def want(self, log_id: LogId, *, demand: int = 0, rate: float = 0.0, size: int = 0) -> None:
        """The log is to be taken over; more appends wait for it than before if it waits already.

        Args:
            demand: appends that wait for the log; 0: it is only to be closed.
            rate: of appends, as last known here, per second.
            size: bytes in the log.
        """
        last = self._waiting.get(log_id)
        if last is None:
            self._turn += 1
            rank = _Rank(-demand, -rate, -size, self._turn)
        else:
            rank = last._replace(demand=last.demand - demand)
        self._waiting[log_id] = rank
        # Entries of an earlier rank stay behind in the heap: one a doubling bounds them by a few.
        if last is None or rank.demand.bit_length() > last.demand.bit_length():
            heapq.heappush(self._heap, (rank, log_id))

    def is_wanted(self, log_id: LogId) -> bool:
        """Whether it waits and appends wait for it."""
        rank = self._waiting.get(log_id)
        return rank is not None and rank.demand < 0

    def start(self) -> list[tuple[LogId, bool]]:
        """Logs to begin with now, and of each whether appends wait for it."""
        begun = []
        while self._heap and len(self._running) < self._running_count_max:
            _, log_id = heapq.heappop(self._heap)
            if log_id in self._running:
                # Wanted again before the last takeover was said to be over: `end` begins anew.
                continue
            rank = self._waiting.pop(log_id, None)
            if rank is not None:
                self._running.add(log_id)
                begun.append((log_id, rank.demand < 0))
        return begun

    def end(self, log_id: LogId) -> None:
        """The takeover has come to an end, or goes on without being waited for."""
        self._running.discard(log_id)
        if log_id in self._waiting:
            heapq.heappush(self._heap, (self._waiting[log_id], log_id))

    def drop_unwanted(self) -> None:
        """Forget the logs that are only to be closed."""
        self._waiting = {log_id: rank for log_id, rank in self._waiting.items() if rank.demand}

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self._heap.clear()

    @property
    def waiting_count(self) -> int:
        """Logs that wait for their turn."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Logs that are being taken over."""
        return len(self._running)

    def validate(self) -> None:
        """Assert invariants 1 and 2."""
        assert len(self._running) <= self._running_count_max, f"1: {self}"
        listed = {log_id for _, log_id in self._heap}
        assert listed | self._running >= self._waiting.keys(), f"2: {self}"

    def __repr__(self) -> str:
        return f"<takeovers waiting={len(self._waiting)} running={sorted(self._running)}>"
