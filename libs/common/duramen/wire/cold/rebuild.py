"""Rows → entries: one row group's table becomes the entries that it was made of.

What comes out is encoded as `wire.entry` does, so that everything behind a reader stays as it is.
An entry whose batches were all stored plain must have the identity checksum it had: one that has
not is never given out. Batches and entries that were stored compressed come back plain, with the
same records; for them the row group's SHA-256 has to vouch (`part_reader`).

Not here: which row groups to read. Called by cold reads, verify, restore and the archive job's
read-back. Source: docs/protocol/archive.md "Files".
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId, epoch_of
from duramen.wire.cold.rows import EntrySum
from duramen.wire.cold.schema import (
    BATCH_SHIFT,
    HAS_HEADERS,
    HAS_STATE,
    HAS_TIMESTAMPS,
    IS_CONTROL,
    SCHEMA,
    WAS_COMPRESSED,
)
from duramen.wire.entry import CONTROL, STATE, encode_entry, read_entry_info
from duramen.wire.record_batch import (
    HEADER_BYTES as BATCH_HEADER_BYTES,
)
from duramen.wire.record_batch import (
    HEADERS,
    TIMESTAMPS,
    TXIDS,
    BatchProducer,
    encode_headers,
    wrap_columns,
)

assert sys.byteorder == "little", "columns of batches are taken over as they are"

_KNOWN_FLAGS: Final = IS_CONTROL | HAS_STATE | HAS_TIMESTAMPS | HAS_HEADERS | WAS_COMPRESSED


class ColdDataError(ValueError):
    """Rows are not what they were when they were written, or never were of this format."""


class RebuiltEntry(NamedTuple):
    """An entry out of the archive."""

    entry_id: EntryId
    data: bytes
    """As `wire.entry` encodes it."""

    totals: Totals
    """Of the segment up to and with it, as its header says."""

    sum: EntrySum
    is_exact: bool
    """Whether `data` is what the bookies stored; False: it, or a batch, came back decompressed."""


class _Run(NamedTuple):
    """Rows `begin` … `end` - 1 are one batch."""

    begin: int
    end: int
    entry: int
    flags: int
    crc: int
    entry_bytes: int
    seq_num: int | None
    producer: BatchProducer | None
    has_txids: bool


def rebuild_entries(
    table: pa.Table, *, ledger_id: LedgerId, totals_before: Totals, start_seq_num: int
) -> Iterator[RebuiltEntry]:
    """The entries of one row group, in their order.

    Args:
        table: all rows of a row group, with all columns of the schema, in their order.
        totals_before: of the segment up to before the first row, as the manifest says.
        start_seq_num: of the segment.

    Raises:
        ColdDataError: rows that no entry has, or an entry with another identity than it had.
    """
    columns = _Columns.of(table, ledger_id)
    running = totals_before
    for entry, group in groupby(columns.list_runs(), key=lambda run: run.entry):
        runs = list(group)
        built = columns.build(EntryId(entry), runs, ledger_id, running, start_seq_num)
        running = built.totals
        yield built


@dataclass(slots=True)
class _Columns:
    """Columns as buffers: slicing them costs nothing, and joins copy once."""

    table: pa.Table
    txids: memoryview[int]
    timestamps: memoryview[int]
    offsets: memoryview[int]
    sizes: memoryview[int]
    bodies: memoryview[int]

    @staticmethod
    def of(table: pa.Table, ledger_id: LedgerId) -> _Columns:
        if table.schema.names != SCHEMA.names or table.num_rows == 0:
            raise ColdDataError("these are no rows of an archived segment")
        table = table.combine_chunks()
        if pc.any(pc.not_equal(table["epoch"], epoch_of(ledger_id))).as_py():
            raise ColdDataError(f"rows of another epoch than {epoch_of(ledger_id)}")
        bodies = _flat(table["body"])
        return _Columns(
            table,
            _numbers(_flat(table["txid"]), "q"),
            _numbers(_flat(table["timestamp_ms"]), "q"),
            memoryview(bodies.buffers()[1]).cast("b").cast("i"),
            _numbers(_flat(pc.binary_length(table["body"])), "i"),
            memoryview(bodies.buffers()[2] or b""),
        )

    def list_runs(self) -> list[_Run]:
        """One a batch: where entry or flags change."""
        table = self.table
        key = pc.add(
            pc.shift_left_checked(table["entry"].cast(pa.int64()), pa.scalar(24, pa.int64())),
            table["flags"].cast(pa.int64()),
        )
        encoded = pc.run_end_encode(_flat(key), run_end_type=pa.int32())
        begins = [0, *encoded.run_ends.to_pylist()]
        first = table.take(pa.array(begins[:-1], pa.int32()))
        names = ("entry", "flags", "entry_crc", "entry_bytes", "seq_num", "slot")
        entries, flags, crcs, sizes, seqs, slots = (first[name].to_pylist() for name in names)
        has_txids = pc.is_valid(first["txid"]).to_pylist()
        producers = zip(
            first["producer_id"].to_pylist(),
            first["producer_epoch"].to_pylist(),
            first["producer_seq"].to_pylist(),
            strict=True,
        )
        runs = []
        expected = 0
        for index, (name, epoch, sequence) in enumerate(producers):
            producer = None
            if name is not None:
                producer = BatchProducer(name, epoch % (1 << 64), sequence % (1 << 64))
            begin, end = begins[index], begins[index + 1]
            if index and entries[index] != entries[index - 1]:
                expected = 0
            if slots[index] != expected:
                raise ColdDataError(f"entry {entries[index]} lacks rows before slot {slots[index]}")
            expected += end - begin
            runs.append(
                _Run(
                    begin, end, entries[index], flags[index], crcs[index], sizes[index],
                    seqs[index], producer, has_txids[index],
                )
            )  # fmt: skip
        if any(one.entry > two.entry for one, two in pairwise(runs)):
            raise ColdDataError("entries do not rise")
        return runs

    def build(
        self,
        entry_id: EntryId,
        runs: list[_Run],
        ledger_id: LedgerId,
        running: Totals,
        start_seq_num: int,
    ) -> RebuiltEntry:
        first = runs[0]
        is_control = bool(first.flags & IS_CONTROL)
        count = 0 if is_control else runs[-1].end - first.begin
        if first.flags & ~_KNOWN_FLAGS & ((1 << BATCH_SHIFT) - 1):
            raise ColdDataError(f"entry {entry_id} has flags that are not known here")
        if not is_control and first.seq_num != start_seq_num + running.record_count:
            raise ColdDataError(f"entry {entry_id} begins at another sequence number than it did")
        if is_control:
            batches, max_txid, max_ms = [self._bytes_of(first)], None, None
            plain_crc = google_crc32c.value(batches[0])
        else:
            batches, max_txid, max_ms, plain_crc = self._build_batches(runs)
        after = running.plus(Totals(count, first.entry_bytes, max_txid, max_ms))
        payload_bytes = sum(map(len, batches))
        flags = CONTROL * is_control | STATE * bool(first.flags & HAS_STATE)
        data = encode_entry(
            ledger_id=ledger_id,
            entry_id=entry_id,
            # Of these the header has the count only; the lengths are those of what was stored.
            before=Totals(running.record_count, after.length_bytes - payload_bytes),
            batches=batches,
            record_count=count,
            after=after,
            flags=flags,
        )
        is_exact = not any(run.flags & WAS_COMPRESSED for run in runs)
        if is_exact and (
            payload_bytes != first.entry_bytes or read_entry_info(data).crc != first.crc
        ):
            raise ColdDataError(f"entry {entry_id} has another identity checksum than it had")
        identity = EntrySum(entry_id, first.crc, flags, plain_crc)
        return RebuiltEntry(entry_id, data, after, identity, is_exact)

    def _bytes_of(self, run: _Run) -> bytes:
        return bytes(self.bodies[self.offsets[run.begin] : self.offsets[run.end]])

    def _build_batches(self, runs: list[_Run]) -> tuple[list[bytes], int | None, int | None, int]:
        """Batches, greatest txid and timestamp, CRC32C of all plain columns."""
        batches = []
        txids: list[int] = []
        stamps: list[int] = []
        plain_crc = 0
        for index, run in enumerate(runs):
            if run.flags >> BATCH_SHIFT != index:
                raise ColdDataError(f"entry {run.entry} lacks batch {index}")
            batch = self._build_batch(run, txids, stamps)
            batches.append(batch)
            name_bytes = 0 if run.producer is None else len(run.producer.producer_id)
            plain_crc = google_crc32c.extend(plain_crc, batch[BATCH_HEADER_BYTES + name_bytes :])
        return batches, max(txids, default=None), max(stamps), plain_crc

    def _build_batch(self, run: _Run, txids: list[int], stamps: list[int]) -> bytes:
        begin, end = run.begin, run.end
        flags = 0
        columns: list[bytes | memoryview] = []
        txid_range = None
        if run.has_txids:
            flags |= TXIDS
            own = self.txids[begin:end]
            columns.append(own.cast("B"))
            txid_range = (min(own), max(own))
            txids.append(txid_range[1])
        max_ms = self.timestamps[begin]
        if run.flags & HAS_TIMESTAMPS:
            flags |= TIMESTAMPS
            own = self.timestamps[begin:end]
            columns.append(own.cast("B"))
            max_ms = max(own)
        stamps.append(max_ms)
        blobs: list[bytes] = []
        if run.flags & HAS_HEADERS:
            flags |= HEADERS
            rows = self.table["headers"].slice(begin, end - begin).to_pylist()
            blobs = [encode_headers([(p["name"], p["value"]) for p in row]) for row in rows]
            columns.append(array("I", map(len, blobs)).tobytes())
        columns.append(self.sizes[begin:end].cast("B"))
        bodies = self.bodies[self.offsets[begin] : self.offsets[end]]
        return wrap_columns(
            [*columns, *blobs, bodies],
            flags=flags,
            record_count=end - begin,
            txids=txid_range,
            max_timestamp_ms=max_ms,
            producer=run.producer,
        )


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array that begins where its buffers do."""
    array_ = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array_, pa.ChunkedArray):
        array_ = pa.concat_arrays(array_.chunks)
    return pa.concat_arrays([array_, array_.slice(0, 0)]) if array_.offset else array_


def _numbers(column: pa.Array, code: Literal["i", "q"]) -> memoryview[int]:
    """The values, those of nulls too, as a view that can be sliced by row."""
    data = memoryview(column.buffers()[1]).cast("B")
    return data[: len(column) * (8 if code == "q" else 4)].cast(code)
