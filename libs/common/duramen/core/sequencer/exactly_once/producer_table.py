"""Producer table: what the acknowledged part of a log says of its producers, and the fencing token.

`apply` is the only way in, for an acknowledgement now and for a replay of the log alike. So a
rebuilt table equals the one that was lost. A row leaves only by `forget_unused` and `make_room`:
batch 0 of an unknown producer counts as fresh, so a producer that may still retry is kept.

Invariants (checked by `validate`):
 1 a row has 1 to `results_kept` results, and a loss mark if it ends in one; `last` is at
   least their number - 1.
 2 results of a row lie one after the other in the log.
 3 at most PRODUCER_COUNT_MAX rows.
Called by `admission`, `snapshots` and `rebuild`. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from typing import Final

from duramen.core.sequencer.exactly_once.stamps import ProducerRow, Result, Stamp
from duramen.limits import FENCING_TOKEN_BYTES_MAX, PRODUCER_COUNT_MAX, PRODUCER_REST_US
from duramen.units import MS

UNKNOWN_TOKEN: Final = "not known: the entry that set it may be lost".ljust(
    FENCING_TOKEN_BYTES_MAX + 1, "."
)
"""The token after a loss: longer than any that a client can name, so that nobody has it."""


@dataclass(slots=True)
class _ProducerRow:
    epoch: int
    last: int
    used_unix_ms: int
    results: deque[Result]

    @property
    def is_in_doubt(self) -> bool:
        """What followed in this epoch may be lost, and newer epochs with it."""
        return self.results[-1].is_lost


class ProducerTable:
    """Producers of one log, least recently used first, and its fencing token.

    Entries that are lost (R15) leave loss marks, results without records, which snapshots keep.
    Where a replay finds that batches of a producer are missing before the next one, each of them
    gets a mark: it is not in the log, and neither a duplicate nor fresh. And every row ends in a
    mark after a loss that may have held anything of its producer, a newer epoch of it included:
    whoever goes on in that epoch may be fenced, and is refused, until a later batch is found or a
    newer epoch begins.

    Args:
        results_kept: of each producer.
    """

    def __init__(self, results_kept: int) -> None:
        self.results_kept = results_kept
        self.token = ""
        self._rows: dict[str, _ProducerRow] = {}

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
        if row is not None and row.is_in_doubt:
            row.results.pop()
            row.last -= 1
        if row is None or row.epoch != stamp.epoch or row.last >= stamp.sequence:
            row = _ProducerRow(stamp.epoch, -1, unix_ms, deque())
        missing_count = stamp.sequence - row.last - 1
        row.results.extend([result.as_loss_mark()] * min(missing_count, self.results_kept))
        row.results.append(result)
        row.last = stamp.sequence
        row.used_unix_ms = max(row.used_unix_ms, unix_ms)
        self._cut(row)
        self._rows[stamp.producer_id] = row
        if len(self._rows) > PRODUCER_COUNT_MAX:
            # Only in a replay, which does not forget as the owner did then.
            del self._rows[next(iter(self._rows))]

    def note_loss(self) -> None:
        """Entries that come next in the log are lost, and may have held anything of anybody."""
        self.token = UNKNOWN_TOKEN
        for row in self._rows.values():
            if not row.is_in_doubt:
                row.results.append(row.results[-1].as_loss_mark(is_behind=True))
                row.last += 1

    def is_lost(self, stamp: Stamp) -> bool:
        """Whether a batch is not in the log and can never be: it is lost, or comes in doubt."""
        row = self._rows.get(stamp.producer_id)
        if row is None or row.epoch != stamp.epoch:
            return False
        result = self.result_of(stamp)
        return result.is_lost if result else row.is_in_doubt and stamp.sequence > row.last

    def _cut(self, row: _ProducerRow) -> None:
        while len(row.results) > self.results_kept + row.is_in_doubt:
            row.results.popleft()

    def keep(self, results_kept: int) -> None:
        """The configuration says how many results there are from now on."""
        self.results_kept = results_kept
        for row in self._rows.values():
            self._cut(row)

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
            name: _ProducerRow(epoch, last, used_unix_ms, deque(results))
            for name, epoch, last, used_unix_ms, results in rows
            if results
        }
        self.keep(self.results_kept)

    def validate(self) -> None:
        """Assert invariants 1 to 3."""
        for name, row in self._rows.items():
            count = len(row.results) - row.is_in_doubt
            assert 1 <= count <= self.results_kept, f"1: {name} {row}"
            assert row.last >= len(row.results) - 1, f"1: {name} {row}"
            pairs = itertools.pairwise(row.results)
            assert all(a.seq_num + a.record_count <= b.seq_num for a, b in pairs), f"2: {name}"
        assert len(self._rows) <= PRODUCER_COUNT_MAX, f"3: {self}"

    def __repr__(self) -> str:
        return f"<producers {len(self._rows)} token={self.token!r}>"
