"""Collects the records of a producer into batches: full ones at once, others when they are due.

No I/O and no event loop. Records are taken in from any thread, one lock around a few list
operations; a batch is taken out and settled by the loop's thread alone. What is held (collected, on
its way, not settled) is bounded in bytes. A ticket is two words: its batch, and its index there.
Used by `sdk.producer`. The limits are those of a record batch (docs/protocol/wire.md "Record
batch").
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from duramen.client.rest_client import Appended
from duramen.client.sdk.values import Receipt
from duramen.errors import DuramenError
from duramen.ids import Dlsn, parse_dlsn
from duramen.limits import BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import BatchProducer, Header, encode_batch, header_size

_RECORD_COST_BYTES: Final = 64
"""What a record without a body costs the process: small records must not make the bound a lie."""


class PendingBatch:
    """Records that are appended together, and what has become of them."""

    __slots__ = (
        "_first_dlsn", "appended", "bodies", "encoded", "fault", "headers", "held_bytes", "is_due",
        "is_sent", "listeners", "sequence", "size_bytes", "timestamps_ms", "txids",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[tuple[Header, ...]] | None = None
        self.txids: list[int] | None = None
        self.timestamps_ms: list[int | None] | None = None
        self.size_bytes = 0
        self.held_bytes = 0
        self.is_due = False
        self.is_sent = False
        self.sequence = -1
        self.encoded = b""
        self.appended: Appended | None = None
        self.fault: DuramenError | None = None
        self.listeners: list[Callable[[], None]] = []
        """Called by the loop's thread when the batch is settled."""
        self._first_dlsn: Dlsn | None = None

    @property
    def is_settled(self) -> bool:
        """Whether its fate is known, or given up."""
        return self.appended is not None or self.fault is not None

    def receipt(self, index: int) -> Receipt:
        """Where the record `index` stands.

        Raises:
            DuramenError: it was not appended, or nobody knows.
        """
        if self.fault is not None:
            raise self.fault.with_traceback(None)
        assert self.appended is not None, "settled"
        start, _, dlsn, _ = self.appended
        if not dlsn:
            return Receipt(None, "")
        if self._first_dlsn is None:
            self._first_dlsn = parse_dlsn(dlsn)
        first = self._first_dlsn
        place = str(first._replace(slot=first.slot + index))
        return Receipt(None if start is None else start + index, place)

    def encode(self, producer: BatchProducer | None, codec: Codec = Codec.NONE) -> bytes:
        """The record batch; columns that are not needed any more are dropped."""
        now_ms = time.time_ns() // 1_000_000
        times = self.timestamps_ms
        self.encoded = encode_batch(
            self.bodies,
            now_ms,
            timestamps_ms=None if times is None else [now_ms if t is None else t for t in times],
            txids=self.txids,
            headers=self.headers,
            producer=producer,
            codec=codec,
        )
        self.headers = self.txids = self.timestamps_ms = None
        return self.encoded


class RecordRun(NamedTuple):
    """Consecutive records of one batch."""

    batch: PendingBatch
    first: int
    record_count: int


class Collector:
    """The records of one producer until they are settled."""

    def __init__(self, *, batch_bytes: int, batch_records: int, held_bytes_max: int) -> None:
        """Batches have at most `batch_bytes` (a larger record is one of its own) and
        `batch_records`; `held_bytes_max` bounds what is held, give or take a record."""
        self._batch_bytes = batch_bytes
        self._batch_records = min(batch_records, BATCH_RECORD_COUNT_MAX)
        self._held_max = held_bytes_max
        self._lock = threading.Lock()
        self._open: PendingBatch | None = None
        self._full: deque[PendingBatch] = deque()
        self.held_bytes = 0
        self.fault: DuramenError | None = None

    @property
    def has_room(self) -> bool:
        """Whether a record is taken in now."""
        return self.held_bytes < self._held_max

    def add(
        self, body: bytes, headers: tuple[Header, ...], txid: int | None, timestamp_ms: int | None
    ) -> tuple[PendingBatch, int, bool]:
        """Take one record in: its batch, its index there, and whether the loop must look.

        Raises:
            DuramenError: `record_too_large`; `overloaded`: no room now; why the producer failed.
        """
        size = len(body) + (header_size(headers) if headers else 0)
        if size > RECORD_BYTES_MAX:
            raise _too_large(size)
        with self._lock:
            self._check_open()
            batch = self._open
            if batch is None or (
                batch.size_bytes + size > self._batch_bytes
                or len(batch.bodies) >= self._batch_records
                or (batch.txids is None) != (txid is None)
            ):
                batch = self._next()
            index = len(batch.bodies)
            if headers or batch.headers is not None:
                if batch.headers is None:
                    batch.headers = [()] * index
                batch.headers.append(headers)
            if txid is not None:
                if batch.txids is None:
                    batch.txids = []
                batch.txids.append(txid)
            if timestamp_ms is not None or batch.timestamps_ms is not None:
                if batch.timestamps_ms is None:
                    batch.timestamps_ms = [None] * index
                batch.timestamps_ms.append(timestamp_ms)
            batch.bodies.append(body)
            self._count(batch, size, 1)
            return batch, index, index == 0 or batch.size_bytes >= self._batch_bytes

    def add_many(self, bodies: Sequence[bytes], at: int) -> RecordRun:
        """Take in as many bodies from `at` on as fit into one batch, at least one.

        Raises:
            As `add`.
        """
        with self._lock:
            self._check_open()
            batch = self._open
            if batch is None or batch.txids is not None or self._is_filled(batch, len(bodies[at])):
                batch = self._next()
            index = len(batch.bodies)
            window = bodies[at : at + self._batch_records - index]
            ends = list(accumulate(map(len, window)))
            count = max(1, bisect_right(ends, self._batch_bytes - batch.size_bytes))
            taken = window if count == len(window) else window[:count]
            largest = max(map(len, taken))
            if largest > RECORD_BYTES_MAX:
                raise _too_large(largest)
            batch.bodies.extend(taken)
            if batch.headers is not None:
                batch.headers.extend([()] * count)
            if batch.timestamps_ms is not None:
                batch.timestamps_ms.extend([None] * count)
            self._count(batch, ends[count - 1], count)
            return RecordRun(batch, index, count)

    def take(self) -> PendingBatch | None:
        """The next batch to send: a full one, or the open one if it is due."""
        with self._lock:
            if self._full:
                return self._full.popleft()
            batch = self._open
            if batch is not None and batch.is_due:
                self._open = None
                return batch
            return None

    def open_batch(self) -> PendingBatch | None:
        """The batch that still takes records in."""
        return self._open

    def make_due(self) -> None:
        """The open batch is to be sent as it is."""
        with self._lock:
            if self._open is not None:
                self._open.is_due = True

    def settle(self, batch: PendingBatch, outcome: Appended | DuramenError) -> None:
        """The fate of a batch is known; its bytes are free again."""
        assert not batch.is_settled, "settled once"
        if isinstance(outcome, DuramenError):
            batch.fault = outcome
        else:
            batch.appended = outcome
        batch.encoded = b""
        batch.bodies = []
        batch.headers = batch.txids = batch.timestamps_ms = None
        with self._lock:
            self.held_bytes -= batch.held_bytes
        for listener in batch.listeners:
            listener()
        batch.listeners = []

    def waiting(self) -> list[PendingBatch]:
        """The batches that were not taken out, oldest first."""
        with self._lock:
            return [*self._full] if self._open is None else [*self._full, self._open]

    def refuse(self, fault: DuramenError) -> list[PendingBatch]:
        """Nothing is taken in any more; gives the batches that were not taken out."""
        with self._lock:
            self.fault = fault
        left = self.waiting()
        self._full.clear()
        self._open = None
        return left

    def check_alive(self) -> None:
        """Raises why nothing is taken in any more (DuramenError, nothing has happened)."""
        if self.fault is not None:
            raise self.fault.with_traceback(None)

    def statistics(self) -> dict[str, int]:
        """Bytes held, their bound, and full batches that wait."""
        return {
            "held_bytes": self.held_bytes,
            "held_bytes_max": self._held_max,
            "full_batches": len(self._full),
        }

    def _check_open(self) -> None:
        self.check_alive()
        if self.held_bytes >= self._held_max:
            raise DuramenError(
                "overloaded",
                f"{self.held_bytes} bytes wait to be acknowledged: wait for room() before append()",
            )

    def _is_filled(self, batch: PendingBatch, size: int) -> bool:
        return (
            batch.size_bytes + size > self._batch_bytes or len(batch.bodies) >= self._batch_records
        )

    def _next(self) -> PendingBatch:
        if self._open is not None:
            self._full.append(self._open)
        self._open = PendingBatch()
        return self._open

    def _count(self, batch: PendingBatch, size: int, count: int) -> None:
        held = size + count * _RECORD_COST_BYTES
        batch.size_bytes += size
        batch.held_bytes += held
        self.held_bytes += held


def _too_large(size: int) -> DuramenError:
    return DuramenError(
        "record_too_large",
        f"a record has {size} bytes: at most {RECORD_BYTES_MAX}",
        field="records",
    )
