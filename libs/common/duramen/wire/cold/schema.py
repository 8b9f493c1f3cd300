"""The Parquet schema of archived records, and what its numbers mean.

One row a record, and one a control entry (`seq_num` null), sorted by (epoch, entry, slot). With the
columns from `flags` on, entries are rebuilt as they were written: byte for byte, but for batches
and entries that were compressed, which come back plain. A row group holds whole entries of one
epoch.

Not here: how rows are made (`rows`) and read back (`rebuild`). Source: docs/protocol/archive.md
"Files", ADR 0014.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from duramen.units import MIB

SCHEMA_VERSION: Final = 1
SCHEMA_KEY: Final = b"duramen.schema"
"""In the file's metadata: the version as decimal text."""

ROW_GROUP_BYTES_MAX: Final = 16 * MIB
"""Of a row group before it is encoded. One entry of fixed columns for many tiny records may pass
it: an entry is never cut."""

ROW_FIXED_BYTES: Final = 100
"""What a record takes besides header and body: 84 bytes of fixed columns, three offsets."""

IS_CONTROL: Final = 1
"""The entry is a control entry: its body is what the sequencer wrote."""

HAS_STATE: Final = 2
"""The entry carries the flag `STATE` of `wire.entry`."""

HAS_TIMESTAMPS: Final = 4
"""The batch has a timestamp for each of its records, not one for all."""

HAS_HEADERS: Final = 8
"""The batch has a column of headers, be they all empty."""

WAS_COMPRESSED: Final = 16
"""The batch, or its entry as a whole, was stored compressed: `entry_crc` is that of bytes that are
not rebuilt."""

BATCH_SHIFT: Final = 8
"""From this bit on: which batch of its entry the record is in, from 0."""

_BINARY = pa.binary()
SCHEMA: Final = pa.schema(
    [
        pa.field("seq_num", pa.int64()),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("txid", pa.int64()),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("producer_id", pa.string()),
        # Both are 64 bits without sign on the wire: above 2^63 they are negative here.
        pa.field("producer_epoch", pa.int64()),
        pa.field("producer_seq", pa.int64()),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [
                            pa.field("name", _BINARY, nullable=False),
                            pa.field("value", _BINARY, nullable=False),
                        ]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
        pa.field("body", _BINARY, nullable=False),
        pa.field("entry_crc", pa.uint32(), nullable=False),
        # The entry's payload as it was stored: with it running totals stay what they were.
        pa.field("entry_bytes", pa.int32(), nullable=False),
    ],
    metadata={SCHEMA_KEY: str(SCHEMA_VERSION).encode()},
)
