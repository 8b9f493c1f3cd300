"""Record batches as Arrow columns, in bulk: no object for a record, bodies never copied one by one.

An answer of some MiB becomes one RecordBatch with the columns that are asked for. Only headers are
taken apart record by record. Called by `reading.hot`. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from duramen.limits import BATCH_RECORD_COUNT_MAX
from duramen.wire.edge.batch_columns import BatchColumns, open_columns
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import BatchError
from pyspark_duramen.table import ARROW_TYPES

_UP: Final = pa.array(range(BATCH_RECORD_COUNT_MAX), pa.int64())
_ZERO: Final = pa.array([0], pa.int32())


class BatchSlice(NamedTuple):
    """An opened batch and which of its records are wanted: `skip` up to, not including, `stop`."""

    placed: PlacedBatch
    columns: BatchColumns
    skip: int
    stop: int

    @property
    def first(self) -> int:
        """Sequence number of the first record that is wanted."""
        return self.placed.seq_num + self.skip

    @property
    def end(self) -> int:
        """Sequence number after the last record that is wanted."""
        return self.placed.seq_num + self.stop

    @property
    def record_count(self) -> int:
        """Records that are wanted."""
        return self.stop - self.skip


def open_pieces(batches: Sequence[PlacedBatch], first: int, end: int) -> list[BatchSlice]:
    """The records from `first` up to, not including, `end`, of whole batches.

    Raises:
        BatchError: a batch is damaged, or holds another number of records than was said.
    """
    pieces = []
    for placed in batches:
        skip = max(0, first - placed.seq_num)
        stop = min(placed.record_count, end - placed.seq_num)
        if skip >= stop:
            continue
        columns = open_columns(bytes(placed.batch))
        if columns.info.record_count != placed.record_count:
            raise BatchError(f"{columns.info.record_count} records, not {placed.record_count}")
        pieces.append(BatchSlice(placed, columns, skip, stop))
    return pieces


def make_rows(
    pieces: Sequence[BatchSlice], log: tuple[str, str], schema: pa.Schema
) -> pa.RecordBatch:
    """At least one piece's records as rows of a schema.

    Args:
        log: namespace and name.
        schema: any columns of the table.
    """
    count = sum(piece.record_count for piece in pieces)
    arrays = []
    for field in schema:
        if field.name in ("namespace", "log"):
            value = log[0] if field.name == "namespace" else log[1]
            array = pa.repeat(pa.scalar(value, field.type), count)
        elif field.name == "gap":
            array = pa.nulls(count, field.type)
        else:
            make = _MAKERS[field.name]
            array = _join([make(piece).cast(field.type) for piece in pieces])
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _join(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _number(piece: BatchSlice, first: int) -> pa.Array:
    return pc.add(_UP.slice(piece.skip, piece.record_count), first)


def _constant(
    find: Callable[[BatchSlice], Any], kind: pa.DataType
) -> Callable[[BatchSlice], pa.Array]:
    return lambda piece: pa.repeat(pa.scalar(find(piece), kind), piece.record_count)


def _wrap(view: memoryview, kind: pa.DataType) -> pa.Array:
    """Numbers of a column; copied, because they need not be aligned where they lie."""
    data = pa.py_buffer(bytes(view))
    return pa.Array.from_buffers(kind, len(view) // (kind.bit_width // 8), [None, data])


def _txids(piece: BatchSlice) -> pa.Array:
    txids = piece.columns.txids
    if txids is None:
        return pa.nulls(piece.record_count, pa.int64())
    return _wrap(txids, pa.int64()).slice(piece.skip, piece.record_count)


def _times_ms(piece: BatchSlice) -> pa.Array:
    times = piece.columns.timestamps
    if times is None:
        return pa.repeat(
            pa.scalar(piece.columns.info.max_timestamp_ms, pa.int64()), piece.record_count
        )
    return _wrap(times, pa.int64()).slice(piece.skip, piece.record_count)


def _times(piece: BatchSlice) -> pa.Array:
    return _times_ms(piece).cast(pa.timestamp("ms", tz="UTC")).cast(ARROW_TYPES["timestamp"])


def _bodies(piece: BatchSlice) -> pa.Array:
    columns = piece.columns
    try:
        sizes = _wrap(columns.body_sizes, pa.uint32()).cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise BatchError(f"a body's length is not possible: {error}") from error
    ends = pa.concat_arrays([_ZERO, pc.cumulative_sum(sizes)])
    buffers = [None, ends.buffers()[1], pa.py_buffer(columns.bodies)]
    count = columns.info.record_count
    return pa.Array.from_buffers(pa.binary(), count, buffers).slice(piece.skip, piece.record_count)


def _headers(piece: BatchSlice) -> pa.Array:
    kind = ARROW_TYPES["headers"]
    found = piece.columns.list_headers()
    if found is None:
        starts = pa.repeat(pa.scalar(0, pa.int32()), piece.record_count + 1)
        return pa.ListArray.from_arrays(starts, pa.array([], kind.value_type)).cast(kind)
    rows = [
        [{"name": name, "value": value} for name, value in pairs]
        for pairs in found[piece.skip : piece.stop]
    ]
    return pa.array(rows, kind)


def _of_producer(index: int, kind: pa.DataType) -> Callable[[BatchSlice], pa.Array]:
    def find(piece: BatchSlice) -> Any:
        producer = piece.columns.info.producer
        return None if producer is None else producer[index]

    return _constant(find, kind)


_MAKERS: Final[dict[str, Callable[[BatchSlice], pa.Array]]] = {
    "seq_num": lambda piece: _number(piece, piece.placed.seq_num),
    "epoch": _constant(lambda piece: piece.placed.dlsn.epoch, pa.int64()),
    "entry": _constant(lambda piece: piece.placed.dlsn.entry, pa.int64()),
    "slot": lambda piece: _number(piece, piece.placed.dlsn.slot),
    "txid": _txids,
    "timestamp": _times,
    "timestamp_ms": _times_ms,
    "producer_id": _of_producer(0, pa.string()),
    "producer_epoch": _of_producer(1, pa.int64()),
    "producer_seq": _of_producer(2, pa.int64()),
    "headers": _headers,
    "body": _bodies,
}
