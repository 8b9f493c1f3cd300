"""What of the entries that were read goes into one answer, and in which form.

A `Pick` takes record batches until a bound is reached: `RecordPick` decodes them and cuts exactly,
for JSON and NDJSON; `BatchPick` takes whole batches and never looks at a record, for the binary
form (docs/protocol/read-answers.md). The first record is taken whatever its size, so that a reader
always moves.

Called by `following` and the REST routes. Source: docs/protocol/read-answers.md "JSON".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.reading.effects import Deliver
from duramen.errors import DuramenError
from duramen.runtime.reading.positioning.positions import Start
from duramen.wire.entry import EntryError
from duramen.wire.read_answers import PlacedBatch, pack_batches, place_batches
from duramen.wire.record_batch import BatchError, decoded_size
from duramen.wire.record_json import DeliveredRecord, encode_record, iterate_records
from duramen_readproxy.gaps import GapNote

BATCH_COUNT_MAX: Final = 50_000
"""Batches of one binary answer: half of the rows that a frame may have (`wire.frame`)."""

GAP_COUNT_MAX: Final = 1_000
"""Holes of one answer: records need not lie between them."""


class Bounds(NamedTuple):
    """Where an answer ends; None is no bound. `until` is a sequence number, exclusive."""

    record_count: int | None
    size_bytes: int | None
    until: int | None


class Pick(Protocol):
    """Takes batches until it is full."""

    @property
    def is_full(self) -> bool:
        """Whether a bound is reached."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell yet: no record, and no gap."""

    @property
    def next_seq_num(self) -> int | None:
        """Where the next answer begins; None while that is not known."""

    @property
    def wanted_seq_num(self) -> int:
        """The record that is wanted next."""

    def offer(self, placed: PlacedBatch) -> bool:
        """Take a batch, or what fits of it; False if not all of it was taken."""

    def pass_hole(self, gap: GapNote, end_seq_num: int) -> None:
        """The numbers from the wanted one up to `end_seq_num` are those of no record."""


def place_delivered(delivered: Deliver) -> Iterator[PlacedBatch]:
    """The batches of delivered entries.

    Raises:
        DuramenError: `internal`: an entry's batches do not add up.
    """
    for _, body in delivered.entries:
        with translated():
            yield from place_batches(body, delivered.epoch, delivered.start_seq_num)


def size_of(record: DeliveredRecord) -> int:
    """Bytes of a record's body and headers."""
    return len(record.body) + sum(len(n) + len(v) for n, v in record.headers)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Refuse what is stored and cannot be shown: `internal`."""
    try:
        yield
    except (BatchError, EntryError) as error:
        raise DuramenError("internal", f"stored data are not valid: {error}") from error


class _PlacingPick:
    """Where the answer begins and ends, in sequence numbers."""

    __slots__ = (
        "_bounds", "_bytes", "_count", "_gap_count", "_start", "is_full", "next_seq_num",
    )  # fmt: skip

    def __init__(self, start: Start, bounds: Bounds) -> None:
        self._start = start
        self._bounds = bounds
        self._count = 0
        self._bytes = 0
        self._gap_count = 0
        self.is_full = bounds.until is not None and start.seq_num >= bounds.until
        self.next_seq_num: int | None = None

    @property
    def is_empty(self) -> bool:
        return self._count == 0 and self._gap_count == 0

    @property
    def wanted_seq_num(self) -> int:
        return max(self._start.seq_num, self.next_seq_num or 0)

    def pass_hole(self, gap: GapNote, end_seq_num: int) -> None:
        """A hole is told once: the answer goes on behind it, or ends there."""
        self._gap_count += 1
        self.go_behind(end_seq_num)
        self.is_full |= self._gap_count >= GAP_COUNT_MAX

    def go_behind(self, end_seq_num: int) -> None:
        """Nothing before this number is wanted any more."""
        self.next_seq_num = end_seq_num
        until = self._bounds.until
        self.is_full |= until is not None and end_seq_num >= until

    def _first_index(self, placed: PlacedBatch) -> int:
        """How many records of the batch precede the start."""
        return min(max(self._start.seq_num - placed.seq_num, 0), placed.record_count)


class RecordPick(_PlacingPick):
    """Exact cut by decoding; `drain` gives what was taken as JSON objects."""

    __slots__ = ("_documents", "_is_base64", "gaps")

    def __init__(self, start: Start, bounds: Bounds, *, is_base64: bool) -> None:
        super().__init__(start, bounds)
        self._is_base64 = is_base64
        self._documents: list[dict[str, Any]] = []
        self.gaps: list[GapNote] = []
        """Holes that were passed, in their order."""

    def pass_hole(self, gap: GapNote, end_seq_num: int) -> None:
        """The answer has it among its gaps."""
        self.gaps.append(gap)
        super().pass_hole(gap, end_seq_num)

    def offer(self, placed: PlacedBatch) -> bool:
        """Take the batch's records from the start to a bound."""
        for _ in self.take_each(placed):
            pass
        return self.next_seq_num == placed.end_seq_num

    def take_each(self, placed: PlacedBatch) -> Iterator[int]:
        """As `offer`, record by record: the bytes of each that was taken."""
        first = self._first_index(placed)
        if first == placed.record_count:
            self.next_seq_num = placed.end_seq_num
            return
        with translated():
            for record in iterate_records(placed, first):
                size_bytes = size_of(record)
                if not self._take(record, size_bytes):
                    self.is_full = True
                    return
                yield size_bytes

    def drain(self) -> list[dict[str, Any]]:
        """What was taken since the last call."""
        documents, self._documents = self._documents, []
        return documents

    def rest(self) -> tuple[int | None, int | None]:
        """What is left of the bounds in records and in bytes; None where there is none."""
        count, size_bytes, _ = self._bounds
        return (
            None if count is None else count - self._count,
            None if size_bytes is None else max(0, size_bytes - self._bytes),
        )

    def _take(self, record: DeliveredRecord, size: int) -> bool:
        bounds = self._bounds
        if bounds.until is not None and record.seq_num >= bounds.until:
            if self.next_seq_num is None:
                self.next_seq_num = record.seq_num
            return False
        if self._count:
            if bounds.record_count is not None and self._count >= bounds.record_count:
                return False
            if bounds.size_bytes is not None and self._bytes + size > bounds.size_bytes:
                return False
        self._documents.append(encode_record(record, is_base64=self._is_base64))
        self._count += 1
        self._bytes += size
        self.next_seq_num = record.seq_num + 1
        self.is_full = self.next_seq_num == bounds.until or self._count == bounds.record_count
        return True


class BatchPick(_PlacingPick):
    """Whole batches, untouched."""

    __slots__ = ("_batches", "first_seq_num")

    def __init__(self, start: Start, bounds: Bounds) -> None:
        super().__init__(start, bounds)
        self._batches: list[PlacedBatch] = []
        self.first_seq_num: int | None = None
        """Where the answer begins: the first batch may begin before it, or a hole lies between."""

    def offer(self, placed: PlacedBatch) -> bool:
        """Take the batch if a record of it is wanted and the bounds leave room."""
        bounds = self._bounds
        first = self._first_index(placed)
        if first == placed.record_count:
            self.next_seq_num = placed.end_seq_num
            return True
        # A client decodes what it is given: what that comes to is what it asked a bound for.
        size = max(len(placed.batch), decoded_size(placed.batch))
        if self._batches and bounds.size_bytes is not None:
            self.is_full |= self._bytes + size > bounds.size_bytes
        self.is_full |= bounds.until is not None and placed.seq_num >= bounds.until
        if self.is_full:
            if self.next_seq_num is None:
                self.next_seq_num = placed.seq_num + first
            return False
        if self.first_seq_num is None:
            self.first_seq_num = placed.seq_num + first
        self._batches.append(placed)
        self._count += placed.record_count - first
        self._bytes += size
        self.next_seq_num = placed.end_seq_num
        is_counted = bounds.record_count is not None and self._count >= bounds.record_count
        is_counted |= len(self._batches) >= BATCH_COUNT_MAX
        is_past = bounds.until is not None and placed.end_seq_num >= bounds.until
        self.is_full = is_counted or is_past
        return True

    def pass_hole(self, gap: GapNote, end_seq_num: int) -> None:
        """A hole before the first batch is part of the answer; numbers tell of the others."""
        if self.first_seq_num is None:
            self.first_seq_num = self.wanted_seq_num
        super().pass_hole(gap, end_seq_num)

    def pack(self) -> bytes:
        """The binary answer."""
        return pack_batches(self._batches)
