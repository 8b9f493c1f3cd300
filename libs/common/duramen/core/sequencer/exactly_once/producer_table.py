"""Producer table: what the acknowledged part of a log says of its producers, and the fencing token.

`apply` is the one way in, for an acknowledgement now and for a replay of the log alike, so that a
rebuilt table equals the one that was lost. A row leaves only by `forget_unused` and `make_room`: an
unknown producer's batch 0 is fresh, so what may still be retried must not be forgotten.

Invariants (checked by `validate`):
 1 a row has 1 to `results_kept` results, and `last` is not below their number - 1.
 2 results of a row lie one after the other in the log.
 3 at most PRODUCER_COUNT_MAX rows.
Called by `admission`, `snapshots` and `rebuild`. Source: 08-interfaces "Producers".
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from duramen.core.sequencer.exactly_once.stamps import ProducerRow, Result, Stamp
from duramen.limits import PRODUCER_COUNT_MAX, PRODUCER_REST_US
from duramen.units import MS


@dataclass(slots=True)
class _Row:
    epoch: int
    last: int
    used_unix_ms: int
    results: deque[Result]


class ProducerTable:
    """Producers of one log, least recently used first, and its fencing token.

    Args:
        results_kept: of each producer.
    """

    def __init__(self, results_kept: int) -> None:
        self.results_kept = results_kept
        self.token = ""
        self._rows: dict[str, _Row] = {}

    @property
    def is_empty(self) -> bool:
        """There is nothing that a new owner would have to know."""
        return not self._rows and not self.token

    @property
    def producer_count(self) -> int:
        """Rows."""
        return len(self._rows)

    def last_of(self, producer_id: str) -> tuple[int, int] | None:
        """Epoch and last sequence of a producer, or None if it is not known."""
        row = self._rows.get(producer_id)
        return None if row is None else (row.epoch, row.last)

    def result_of(self, stamp: Stamp) -> Result | None:
        """Where a batch lies, if it is kept."""
        row = self._rows.get(stamp.producer_id)
        if row is None or row.epoch != stamp.epoch:
            return None
        index = stamp.sequence - row.last - 1
        return row.results[index] if -len(row.results) <= index < 0 else None

    def apply(self, stamp: Stamp, result: Result, unix_ms: int) -> None:
        """A batch is in the log. What the log says is true, also if a row said otherwise."""
        row = self._rows.pop(stamp.producer_id, None)
        if row is None or (row.epoch, row.last + 1) != (stamp.epoch, stamp.sequence):
            row = _Row(stamp.epoch, stamp.sequence, unix_ms, deque())
        row.last = stamp.sequence
        row.used_unix_ms = max(row.used_unix_ms, unix_ms)
        row.results.append(result)
        if len(row.results) > self.results_kept:
            row.results.popleft()
        self._rows[stamp.producer_id] = row

    def keep(self, results_kept: int) -> None:
        """The configuration says how many results there are from now on."""
        if results_kept < self.results_kept:
            for row in self._rows.values():
                while len(row.results) > results_kept:
                    row.results.popleft()
        self.results_kept = results_kept

    def make_room(self, unix_ms: int, in_flight: Collection[str]) -> bool:
        """Whether one more producer may come; forgets the one that has rested longest.

        Args:
            in_flight: producers with batches on their way: not to be forgotten, or yet to come.
        """
        if len(self._rows) + len(in_flight) < PRODUCER_COUNT_MAX:
            return True
        if not self._rows:
            return False
        oldest, row = next(iter(self._rows.items()))
        if oldest in in_flight or unix_ms - row.used_unix_ms < PRODUCER_REST_US // MS:
            return False
        del self._rows[oldest]
        return True

    def forget_unused(self, before_unix_ms: int, in_flight: Container[str]) -> None:
        """Forget the producers that were last used before that time."""
        unused = [
            producer_id
            for producer_id, row in self._rows.items()
            if row.used_unix_ms < before_unix_ms and producer_id not in in_flight
        ]
        for producer_id in unused:
            del self._rows[producer_id]

    def list_rows(self) -> list[ProducerRow]:
        """Everything, for a snapshot."""
        return [
            ProducerRow(name, row.epoch, row.last, row.used_unix_ms, tuple(row.results))
            for name, row in self._rows.items()
        ]

    def load(self, token: str, rows: Iterable[ProducerRow]) -> None:
        """Become what a snapshot says."""
        self.token = token
        self._rows = {
            name: _Row(epoch, last, used_unix_ms, deque(results[-self.results_kept :]))
            for name, epoch, last, used_unix_ms, results in rows
        }

    def validate(self) -> None:
        """Assert invariants 1 to 3."""
        for name, row in self._rows.items():
            assert 1 <= len(row.results) <= self.results_kept, f"1: {name} {row}"
            assert row.last >= len(row.results) - 1, f"1: {name} {row}"
            pairs = itertools.pairwise(row.results)
            assert all(a.seq_num + a.record_count <= b.seq_num for a, b in pairs), f"2: {name}"
        assert len(self._rows) <= PRODUCER_COUNT_MAX, f"3: {self}"

    def __repr__(self) -> str:
        return f"<producers {len(self._rows)} token={self.token!r}>"
