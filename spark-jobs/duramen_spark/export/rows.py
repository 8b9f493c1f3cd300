"""Archived records as rows of a table for other tools: no control entries, no numbers without sign.

The columns are those of the archive (docs/protocol/archive.md) behind `namespace` and `log`, except
that `entry_crc` is an int64 here, since neither Delta nor Iceberg has unsigned numbers. A table a
row group: memory is bounded by it.

Called by `export.driver`. Source: docs/cold-store.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from duramen.runtime.cold import ColdStore
from duramen.wire.cold.manifest import Manifest
from duramen.wire.cold.schema import SCHEMA
from duramen_spark.cold_parts import open_parts


def _widen(field: pa.Field) -> pa.Field:
    """A column as tables of others can have it."""
    return pa.field(field.name, pa.int64()) if field.type == pa.uint32() else field


EXPORT_SCHEMA: Final = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("log", pa.string(), nullable=False),
        *[_widen(field).with_nullable(True) for field in SCHEMA],
    ]
)


def read_rows(store: ColdStore, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """The records of a segment, in their order. Blocking.

    Raises:
        ColdDataError: what is archived is not what it was.
        NotThere, ColdStoreDown: it is not there, or not now.
    """
    for reader in open_parts(store, manifest):
        for index in range(len(reader.part.row_groups)):
            table = reader.read_table(index)
            table = table.filter(pc.is_valid(table["seq_num"]))
            yield from _name(table, manifest).to_batches()


def _name(table: pa.Table, manifest: Manifest) -> pa.Table:
    count = table.num_rows
    columns = [
        pa.repeat(pa.scalar(manifest.namespace), count),
        pa.repeat(pa.scalar(manifest.log), count),
        *[table[field.name].cast(_widen(field).type) for field in SCHEMA],
    ]
    return pa.Table.from_arrays(columns, schema=EXPORT_SCHEMA)
