"""Entries → rows: a row group's worth of entries becomes one Arrow table, in bulk.

A record batch is columnar already (ADR 0002), so columns are joined, not walked: only what is
constant in a batch is handled once a batch, and only headers once a record. Where an entry's header
says other totals than those that follow from the rows before it (a hole, a lost range), a new row
group begins, so that `rebuild` gets every header back.

Not here: files (`part_writer`). Called by the archive job and compaction. Source:
docs/protocol/archive.md "Files".
"""

from __future__ import annotations

import itertools
import sys
from array import array
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId, epoch_of
from duramen.wire.cold.schema import (
    BATCH_SHIFT,
    HAS_HEADERS,
    HAS_STATE,
    HAS_TIMESTAMPS,
    IS_CONTROL,
    ROW_FIXED_BYTES,
    SCHEMA,
    WAS_COMPRESSED,
)
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import CONTROL, STATE, EntryError, EntryInfo, check_entry, open_payload
from duramen.wire.record_batch import (
    HEADERS,
    TIMESTAMPS,
    TXIDS,
    BatchInfo,
    decode_headers,
    read_columns,
    split_batches,
)

assert sys.byteorder == "little", "columns of batches are taken over as they are"

_U32: Final = 4
_I64: Final = 8


class EntrySum(NamedTuple):
    """What the checksums of `chain` are taken over."""

    entry_id: EntryId
    identity_crc: int
    flags: int
    """Those of `wire.entry`."""

    plain_crc: int
    """CRC32C of the payload with every batch decompressed."""


OpenedBatch = tuple[BatchInfo, bytes, int]
"""Header, bytes that hold the plain columns, where these begin."""


class ReadyEntry(NamedTuple):
    """An entry that was checked and whose batches are decompressed: what one row group takes."""

    info: EntryInfo
    batches: list[OpenedBatch]
    """None for a control entry."""

    control: bytes
    totals_before: Totals
    """Such that rows and these totals give the header's ones."""

    row_bytes: int
    """About what the rows take before they are encoded."""


def prepare_entry(entry: bytes, running: Totals | None) -> ReadyEntry:
    """Check an entry, and open its batches.

    Args:
        running: totals up to before the entry, as its predecessor says; None: it has none.

    Raises:
        EntryError: no entry, a damaged one, or one that rows cannot hold.
        BatchError: one of its batches is damaged.
    """
    info = check_entry(entry)
    payload = bytes(open_payload(entry))
    batches: list[OpenedBatch] = []
    own = Totals(0, info.payload_bytes)
    if info.is_control:
        if info.record_count or info.batch_count != 1:
            raise EntryError("a control entry has one record of control, and no others")
        row_bytes = len(payload) + ROW_FIXED_BYTES
    else:
        batches = [read_columns(batch) for batch in split_batches(payload)]
        for batch, _, _ in batches:
            own = own.plus(Totals(batch.record_count, 0, batch.max_txid, batch.max_timestamp_ms))
        if (own.record_count, len(batches)) != (info.record_count, info.batch_count) or not batches:
            raise EntryError("an entry has as many records and batches as its header says")
        row_bytes = own.record_count * ROW_FIXED_BYTES
        row_bytes += sum(batch.decoded_bytes for batch, _, _ in batches)
    totals = info.totals
    if running is None or running.plus(own) != totals:
        running = Totals(
            info.first_position,
            totals.length_bytes - info.payload_bytes,
            totals.max_txid,
            totals.max_timestamp_ms,
        )
        if running.plus(own) != totals or running.length_bytes < 0:
            raise EntryError("the entry's totals are below what its own records say")
    return ReadyEntry(info, batches, payload if info.is_control else b"", running, row_bytes)


@dataclass(slots=True)
class _Runs:
    """What is constant in a batch: one value a batch, and the row behind its last one."""

    ends: array[int]
    entry: array[int]
    crc: array[int]
    entry_bytes: array[int]
    first_slot: array[int]
    first_seq: list[int | None]
    flags: array[int]
    producer_ids: list[str | None]
    producer_epochs: list[int | None]
    producer_seqs: list[int | None]
    has_txids: list[bool]


class RowGroupBuilder:
    """Collects entries of one row group; `finish` gives their table and starts over.

    Memory: the entries' plain bytes, and as much again while `finish` joins them.
    """

    def __init__(self, ledger_id: LedgerId, start_seq_num: int) -> None:
        self._ledger_id = ledger_id
        self._start_seq_num = start_seq_num
        self._clear()

    def _clear(self) -> None:
        self._runs = _Runs(
            array("i"), array("q"), array("I"), array("i"), array("i"), [], array("i"), [], [], [],
            [],
        )  # fmt: skip
        self._row_count = 0
        self._txids: list[bytes | memoryview] = []
        self._timestamps: list[bytes | memoryview] = []
        self._sizes: list[bytes | memoryview] = []
        self._header_counts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._bodies: list[bytes | memoryview] = []
        self.row_bytes = 0
        self.sums: list[EntrySum] = []
        self.totals_before: Totals | None = None
        self.totals_after: Totals | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the last `finish`."""
        return not self.sums

    def add(self, ready: ReadyEntry) -> None:
        """Add the entry that follows; its `totals_before` are the group's `totals_after`."""
        info = ready.info
        assert info.ledger_id == self._ledger_id, info
        if self.totals_before is None:
            self.totals_before = ready.totals_before
        else:
            assert self.totals_after == ready.totals_before, (self.totals_after, ready)
        flags = IS_CONTROL * info.is_control | HAS_STATE * info.has_state
        plain_crc = 0
        if info.is_control:
            self._add_control(ready, flags)
            plain_crc = google_crc32c.value(ready.control)
        slot = 0
        for index, opened in enumerate(ready.batches):
            batch, data, at = opened
            self._add_batch(info, opened, flags=flags | index << BATCH_SHIFT, slot=slot)
            slot += batch.record_count
            plain_crc = google_crc32c.extend(plain_crc, data[at:] if at else data)
        wire_flags = CONTROL * info.is_control | STATE * info.has_state
        self.sums.append(EntrySum(info.entry_id, info.crc, wire_flags, plain_crc))
        self.totals_after = info.totals
        self.row_bytes += ready.row_bytes

    def _add_run(
        self, info: EntryInfo, flags: int, count: int, slot: int, batch: BatchInfo | None
    ) -> None:
        runs = self._runs
        self._row_count += count
        runs.ends.append(self._row_count)
        runs.entry.append(info.entry_id)
        runs.crc.append(info.crc)
        runs.entry_bytes.append(info.payload_bytes)
        runs.first_slot.append(slot)
        runs.flags.append(flags)
        seq_num = self._start_seq_num + info.first_position + slot
        runs.first_seq.append(None if batch is None else seq_num)
        producer = None if batch is None else batch.producer
        runs.producer_ids.append(None if producer is None else producer.producer_id)
        runs.producer_epochs.append(None if producer is None else producer.epoch)
        runs.producer_seqs.append(None if producer is None else producer.sequence)
        runs.has_txids.append(batch is not None and bool(batch.flags & TXIDS))

    def _add_control(self, ready: ReadyEntry, flags: int) -> None:
        self._add_run(ready.info, flags, 1, 0, None)
        self._txids.append(bytes(_I64))
        stamp = ready.info.totals.max_timestamp_ms or 0
        self._timestamps.append(stamp.to_bytes(_I64, "little", signed=True))
        self._sizes.append(len(ready.control).to_bytes(_U32, "little"))
        self._header_counts.append(bytes(_U32))
        self._bodies.append(ready.control)

    def _add_batch(self, info: EntryInfo, opened: OpenedBatch, *, flags: int, slot: int) -> None:
        batch, data, at = opened
        count = batch.record_count
        view = memoryview(data)
        if batch.flags & TXIDS:
            self._txids.append(view[at : at + count * _I64])
            at += count * _I64
        else:
            self._txids.append(bytes(count * _I64))
        if batch.flags & TIMESTAMPS:
            flags |= HAS_TIMESTAMPS
            self._timestamps.append(view[at : at + count * _I64])
            at += count * _I64
        else:
            stamp = batch.max_timestamp_ms.to_bytes(_I64, "little", signed=True)
            self._timestamps.append(stamp * count)
        header_sizes: memoryview | None = None
        if batch.flags & HEADERS:
            flags |= HAS_HEADERS
            header_sizes = view[at : at + count * _U32]
            at += count * _U32
        sizes = view[at : at + count * _U32]
        self._sizes.append(sizes)
        at += count * _U32
        if header_sizes is None:
            self._header_counts.append(bytes(count * _U32))
        else:
            at = self._add_headers(data, at, array("I", bytes(header_sizes)))
        if at + sum(sizes.cast("I")) != len(data):
            raise EntryError("a batch's bodies do not add up")
        if info.is_compressed or batch.codec is not Codec.NONE:
            flags |= WAS_COMPRESSED
        self._bodies.append(view[at:])
        self._add_run(info, flags, count, slot, batch)

    def _add_headers(self, data: bytes, at: int, sizes: array[int]) -> int:
        ends = list(itertools.accumulate(sizes, initial=at))
        counts = array("i")
        for begin, end in itertools.pairwise(ends):
            pairs = decode_headers(data[begin:end])
            counts.append(len(pairs))
            self._headers += pairs
        self._header_counts.append(counts.tobytes())
        return ends[-1]

    def finish(self) -> pa.Table:
        """The rows of what was added; the builder is empty afterwards."""
        assert self._row_count, "nothing was added"
        runs, count = self._runs, self._row_count
        ends = pa.array(runs.ends, pa.int32())

        def spread(values: object, kind: pa.DataType) -> pa.Array:
            return pc.run_end_decode(
                pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind))
            )

        starts = array("i", [0, *runs.ends[:-1]])
        row = pa.arange(0, count)
        slot = pc.add(
            pc.subtract(row, spread(starts, pa.int64())), spread(runs.first_slot, pa.int64())
        )
        first = [
            None if a is None else a - b
            for a, b in zip(runs.first_seq, runs.first_slot, strict=True)
        ]
        headers = _headers_array(self._header_counts, self._headers, count)
        columns = [
            pc.add(spread(first, pa.int64()), slot),
            pa.repeat(pa.scalar(epoch_of(self._ledger_id), pa.int64()), count),
            spread(runs.entry, pa.int64()),
            slot.cast(pa.int32()),
            _i64_array(self._txids, count, spread(runs.has_txids, pa.bool_())),
            _i64_array(self._timestamps, count, None),
            spread(runs.producer_ids, pa.string()),
            spread(runs.producer_epochs, pa.uint64()).view(pa.int64()),
            spread(runs.producer_seqs, pa.uint64()).view(pa.int64()),
            spread(runs.flags, pa.int32()),
            headers,
            _binary_array(self._sizes, self._bodies, count),
            spread(runs.crc, pa.uint32()),
            spread(runs.entry_bytes, pa.int32()),
        ]
        self._clear()
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _i64_array(parts: list[bytes | memoryview], count: int, valid: pa.Array | None) -> pa.Array:
    data = pa.py_buffer(b"".join(parts))
    validity = None if valid is None or valid.true_count == count else valid.buffers()[1]
    return pa.Array.from_buffers(pa.int64(), count, [validity, data])


def _offsets(sizes: list[bytes | memoryview] | list[bytes], count: int) -> pa.Buffer:
    """Where each item begins, from the sizes of all; one more than there are sizes."""
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(b"".join(sizes))])
    ends = pc.cumulative_sum_checked(lengths).buffers()[1]
    return pa.py_buffer(bytes(_U32) + ends.to_pybytes()[: count * _U32])


def _binary_array(
    sizes: list[bytes | memoryview], bodies: list[bytes | memoryview], count: int
) -> pa.Array:
    data = pa.py_buffer(b"".join(bodies))
    return pa.Array.from_buffers(pa.binary(), count, [None, _offsets(sizes, count), data])


def _headers_array(counts: list[bytes], headers: list[tuple[bytes, bytes]], count: int) -> pa.Array:
    kind = SCHEMA.field("headers").type
    struct_kind = kind.value_type
    names = pa.array([name for name, _ in headers], pa.binary())
    values = pa.array([value for _, value in headers], pa.binary())
    pairs = pa.StructArray.from_arrays(
        [names, values], fields=[struct_kind.field(0), struct_kind.field(1)]
    )
    offsets = _offsets(counts, count)
    return pa.Array.from_buffers(kind, count, [None, offsets], children=[pairs])
