"""Brings the rows of one task into one log, each once, however often and by whomever it is tried.

The producer is named after what the task is, not after who runs it: (query, partition), with the
micro-batch as its epoch. So a repeated task, a second attempt beside the first, and a restarted
query send the same sequences, and the log takes each sequence once. One batch is on its way at a
time: sequence k is sent by somebody who knows what 0 … k − 1 hold.

That is enough while a repeated task has the same rows in the same order. Where an answer says that
a sequence is there already, what is there is read back and compared. The same rows in another
order are no trouble: what is missing is sent, what is there already is left out. Rows that are in
the log and not among the task's own are found at its end, and fail it: then its input changed.

Pure: the log is a port. Called by `writing.task`. Source: docs/protocol/rest.md "Append",
docs/spark.md.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Protocol

from duramen.client.rest_client import Appended
from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX
from pyspark_duramen.writing.rows import Row, find_key

AHEAD_COUNT_MAX: Final = 1_000_000
"""Records of another attempt that this one has not come to yet; some 100 bytes each."""


class LogPort(Protocol):
    """One log, for one producer and epoch."""

    def append(self, sequence: int, rows: list[Row]) -> Appended:
        """Append a batch, with as many tries as it takes.

        Raises:
            DuramenError: refused, or its fate is open.
        """

    def read_back(self, sequence: int, appended: Appended) -> list[Row]:
        """The rows of a batch that is in the log; times only where the sender gave them.

        Raises:
            DuramenError: they cannot be read (any more).
        """

    def count_batches(self) -> int:
        """How many batches of this producer and epoch are in the log."""


class RowDelivery:
    """Rows in, batches out; `finish` once there are no more rows."""

    def __init__(self, port: LogPort, batch_bytes: int, *, name: str) -> None:
        """`name`: of log and producer, for errors."""
        self._port = port
        self._name = name
        self._batch_bytes = batch_bytes
        self._waiting: deque[Row] = deque()
        self._ahead: Counter[bytes] = Counter()
        self._is_last_ours = True
        self.waiting_bytes = 0
        self.sequence = 0
        self.record_count = 0
        self.repeated_count = 0
        """Records that were in the log already, by another try of the same task."""

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows in, and send what fills batches.

        Raises:
            DuramenError: refused; an append whose fate is open; see `finish`.
        """
        for row in rows:
            self.record_count += 1
            if self._ahead and self._is_there(row):
                continue
            self._waiting.append(row)
            self.waiting_bytes += row.size_bytes
            is_many = len(self._waiting) >= BATCH_RECORD_COUNT_MAX
            if is_many or self.waiting_bytes >= self._batch_bytes:
                self.flush(is_whole=True)

    def flush(self, *, is_whole: bool = False) -> None:
        """Send what waits; `is_whole`: only full batches."""
        while self._waiting:
            rows, is_full = self._take()
            if is_whole and not is_full:
                self._put_back(rows)
                return
            self._send(rows)

    def finish(self) -> None:
        """Send what is left, and see that the log has nothing else of this task.

        Raises:
            DuramenError: `condition_failed`: it has; the input of a repeated task was another.
        """
        self.flush()
        if not self._is_last_ours and self._port.count_batches() > self.sequence:
            # Another attempt is or was ahead of this one, with rows that this one does not have.
            raise self._refuse(f"batches after {self.sequence - 1}")
        if self._ahead:
            raise self._refuse(f"{self._ahead.total()} records")

    def _take(self) -> tuple[list[Row], bool]:
        """The next batch, and whether it is full; all of its rows have a txid, or none has."""
        rows: list[Row] = []
        size_bytes = 0
        while self._waiting and len(rows) < BATCH_RECORD_COUNT_MAX:
            row = self._waiting[0]
            is_other = rows and (row.txid is None) != (rows[0].txid is None)
            is_other = is_other or (
                bool(rows) and (row.timestamp_ms is None) != (rows[0].timestamp_ms is None)
            )
            if is_other or (rows and size_bytes + row.size_bytes > self._batch_bytes):
                break
            size_bytes += row.size_bytes
            rows.append(self._waiting.popleft())
        self.waiting_bytes -= size_bytes
        is_full = bool(self._waiting) or len(rows) == BATCH_RECORD_COUNT_MAX
        return rows, is_full or size_bytes >= self._batch_bytes

    def _put_back(self, rows: list[Row]) -> None:
        self._waiting.extendleft(reversed(rows))
        self.waiting_bytes += sum(row.size_bytes for row in rows)

    def _send(self, rows: list[Row]) -> None:
        sequence = self.sequence
        appended = self._port.append(sequence, rows)
        self.sequence += 1
        self._is_last_ours = not appended.is_duplicate
        if appended.is_duplicate:
            self._compare(rows, self._port.read_back(sequence, appended))

    def _compare(self, ours: list[Row], theirs: list[Row]) -> None:
        """A sequence is in the log: of an earlier try, or of another attempt at the same time."""
        there = Counter(_key_of(row) for row in theirs)
        missing: list[Row] = []
        for row in ours:
            key = _key_of(row)
            if there[key] > 0:
                there[key] -= 1
                self.repeated_count += 1
            else:
                missing.append(row)
        self._ahead.update(+there)
        if self._ahead.total() > AHEAD_COUNT_MAX:
            raise self._refuse(f"more than {AHEAD_COUNT_MAX} records")
        # Some of what waits may be among what is there; what was not there is sent before it.
        waiting = list(self._waiting)
        self._waiting = deque(missing)
        self._waiting.extend(row for row in waiting if not (self._ahead and self._is_there(row)))
        self.waiting_bytes = sum(row.size_bytes for row in self._waiting)

    def _is_there(self, row: Row) -> bool:
        """Whether another attempt has written a row before this one came to it; once for each."""
        key = _key_of(row)
        if key not in self._ahead:
            return False
        self._ahead[key] -= 1
        if not self._ahead[key]:
            del self._ahead[key]
        self.repeated_count += 1
        return True

    def _refuse(self, what: str) -> DuramenError:
        detail = (
            f"{self._name} has {what} of an earlier try of this task that are not among its rows "
            "now: its input is another than it was, so rows of both are in the log. A query that "
            "is written exactly once must give the same rows when a task is repeated"
        )
        return DuramenError("condition_failed", detail, field="input")


def _key_of(row: Row) -> bytes:
    return find_key(row.body, row.headers, row.txid, row.timestamp_ms)
