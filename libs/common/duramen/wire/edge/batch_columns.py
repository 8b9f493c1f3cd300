"""A record batch's columns as they lie in its bytes, without an object for each record.

For whoever puts records into tables: columns are views, to be copied or wrapped in bulk. What a
batch is, and its limits, are `wire.record_batch`'s; objects are made by `decode_batch` there.

Called by the Spark data source. Source: docs/protocol/wire.md "Record batch", ADR 0002.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.wire.record_batch import (
    HEADERS,
    TIMESTAMPS,
    TXIDS,
    BatchError,
    BatchInfo,
    Header,
    decode_headers,
    read_columns,
)


class BatchColumns(NamedTuple):
    """The columns of a checked batch of n records, little-endian; None where a batch has none.

    Attributes:
        txids, timestamps: n × 8 bytes, signed.
        header_sizes: n × 4 bytes, unsigned; `headers` holds the records' headers one after another.
        body_sizes: n × 4 bytes, unsigned; `bodies` holds the bodies, of as many bytes in all.
    """

    info: BatchInfo
    txids: memoryview | None
    timestamps: memoryview | None
    header_sizes: memoryview | None
    headers: memoryview
    body_sizes: memoryview
    bodies: memoryview

    def list_headers(self) -> list[tuple[Header, ...]] | None:
        """The headers of each record; None: no record has any.

        Raises:
            BatchError: damaged.
        """
        if self.header_sizes is None:
            return None
        found, at = [], 0
        for size in self.header_sizes.cast("I"):
            found.append(decode_headers(bytes(self.headers[at : at + size])))
            at += size
        return found


def open_columns(batch: bytes) -> BatchColumns:
    """The columns of exactly one batch; its CRC is checked, and that its lengths add up.

    Raises:
        BatchError: no batch, beyond the limits, or damaged.
    """
    info, plain, at = read_columns(batch)
    data = memoryview(plain)
    count = info.record_count

    def take(width: int, *, is_there: bool) -> memoryview | None:
        nonlocal at
        if not is_there:
            return None
        column = data[at : at + count * width]
        if len(column) != count * width:
            raise BatchError("the record batch's lengths do not add up")
        at += len(column)
        return column

    txids = take(8, is_there=bool(info.flags & TXIDS))
    timestamps = take(8, is_there=bool(info.flags & TIMESTAMPS))
    header_sizes = take(4, is_there=bool(info.flags & HEADERS))
    body_sizes = take(4, is_there=True)
    assert body_sizes is not None
    header_bytes = 0 if header_sizes is None else sum(header_sizes.cast("I"))
    bodies = data[at + header_bytes :]
    if at + header_bytes > len(data) or sum(body_sizes.cast("I")) != len(bodies):
        raise BatchError("the record batch's lengths do not add up")
    headers = data[at : at + header_bytes]
    return BatchColumns(info, txids, timestamps, header_sizes, headers, body_sizes, bodies)
