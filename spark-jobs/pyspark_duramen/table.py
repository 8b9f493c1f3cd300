"""The table: its columns, and which of them a query asks for.

The columns are those of the archive's files (docs/protocol/archive.md "Files") that a reader of
records may know, with the log's name; the archive's `flags` and `entry_crc` serve to rebuild
entries, and control records are not records. A schema of fewer columns is how PySpark's Python
sources prune. Pure. Called by `source` and everything that makes or takes rows. Source:
docs/spark.md.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duramen.errors import DuramenError

_SPARK_TYPES: Final = {
    "namespace": "string",
    "log": "string",
    "seq_num": "bigint",
    "epoch": "bigint",
    "entry": "bigint",
    "slot": "int",
    "txid": "bigint",
    "timestamp": "timestamp",
    "timestamp_ms": "bigint",
    "producer_id": "string",
    "producer_epoch": "bigint",
    "producer_seq": "bigint",
    "headers": "array<struct<name:binary,value:binary>>",
    "body": "binary",
    "gap": "struct<reason:string,first_seq_num:bigint,end_seq_num:bigint>",
}
DDL: Final = ", ".join(f"{name} {kind}" for name, kind in _SPARK_TYPES.items())

_HEADER: Final = pa.struct([("name", pa.binary()), ("value", pa.binary())])
_GAP: Final = pa.struct(
    [("reason", pa.string()), ("first_seq_num", pa.int64()), ("end_seq_num", pa.int64())]
)
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "namespace": pa.string(),
    "log": pa.string(),
    "seq_num": pa.int64(),
    "epoch": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int32(),
    "txid": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ms": pa.int64(),
    "producer_id": pa.string(),
    "producer_epoch": pa.int64(),
    "producer_seq": pa.int64(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "body": pa.binary(),
    "gap": _GAP,
}
"""Of each column, as Spark names its own types in Arrow."""


def check_schema(schema: StructType) -> pa.Schema:
    """The columns that are asked for, as Arrow's schema of what is given to Spark.

    Raises:
        DuramenError: `invalid_argument`: a column that there is not, or of another type.
    """
    for field in schema.fields:
        wanted = _SPARK_TYPES.get(field.name)
        found = field.dataType.simpleString()
        if wanted is None:
            detail = f"there is no column {field.name!r}; there are {', '.join(_SPARK_TYPES)}"
            raise DuramenError("invalid_argument", detail, field=field.name)
        if found != wanted:
            detail = f"column {field.name} is {wanted}, not {found}"
            raise DuramenError("invalid_argument", detail, field=field.name)
    names = [field.name for field in schema.fields]
    if len(set(names)) != len(names):
        raise DuramenError("invalid_argument", "a column is named twice", field="schema")
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow
