"""Rows that Spark gives, as records: which columns there must be, and what each becomes.

`body` is needed; `headers`, `txid`, `timestamp` or `timestamp_ms`, and `namespace` with `log` may
be there. Any other column is refused by name: what is not written should not look as if it were.
Pure. Called by `writing.task` and `writing.writers`. Source: docs/spark.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from duramen.errors import DuramenError
from duramen.wire.record_batch import Header, header_size
from pyspark_duramen.catalog import LogName

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "headers": (
        "array<struct<name:binary,value:binary>>",
        "array<struct<name:string,value:string>>",
        "map<string,string>",
        "map<string,binary>",
    ),
    "txid": ("bigint", "int"),
    "timestamp": ("timestamp",),
    "timestamp_ms": ("bigint",),
    "namespace": ("string",),
    "log": ("string",),
}


class Row(NamedTuple):
    """A record to be written; `timestamp_ms` is None where it is that of its sending."""

    body: bytes
    headers: tuple[Header, ...] = ()
    txid: int | None = None
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """What it counts in a batch."""
        return len(self.body) + (header_size(self.headers) if self.headers else 2)


def check_columns(schema: StructType, log: LogName | None) -> None:
    """Refuse a table that cannot be written.

    Raises:
        DuramenError: `invalid_argument`; `field` names the column or option.
    """
    names = set()
    for field in schema.fields:
        kinds = _KINDS.get(field.name)
        found = field.dataType.simpleString()
        if kinds is None:
            detail = f"column {field.name} cannot be written: select those of {', '.join(_KINDS)}"
            raise DuramenError("invalid_argument", detail, field=field.name)
        if found not in kinds:
            detail = f"column {field.name} is {found}, and should be {' or '.join(kinds)}"
            raise DuramenError("invalid_argument", detail, field=field.name)
        names.add(field.name)
    if "body" not in names:
        raise DuramenError("invalid_argument", "there is no column body", field="body")
    if {"timestamp", "timestamp_ms"} <= names:
        detail = "timestamp and timestamp_ms say the same: select one"
        raise DuramenError("invalid_argument", detail, field="timestamp")
    has_names = {"namespace", "log"} <= names
    if (log is None) != has_names or (log is not None and {"namespace", "log"} & names):
        detail = "where rows go is said by option logs, or by the columns namespace and log"
        raise DuramenError("invalid_argument", detail, field="logs")


def read_rows(batch: pa.RecordBatch, log: LogName | None) -> Iterator[tuple[LogName, list[Row]]]:
    """The rows of an Arrow batch, runs of one log together, in their order.

    Args:
        log: where all of them go; None: where their columns say.

    Raises:
        DuramenError: `invalid_argument`: a body or a log's name is null.
    """
    count = batch.num_rows
    names = batch.schema.names

    def column(name: str) -> Sequence[Any]:
        return batch.column(names.index(name)).to_pylist() if name in names else [None] * count

    bodies = _read_bodies(batch.column(names.index("body")))
    if "timestamp" in names:
        times = batch.column(names.index("timestamp")).cast(
            pa.timestamp("ms", tz="UTC"), safe=False
        )
        times_ms: Sequence[Any] = times.cast(pa.int64()).to_pylist()
    else:
        times_ms = column("timestamp_ms")
    headers = (
        [read_headers(each) for each in column("headers")] if "headers" in names else [()] * count
    )
    rows = list(map(Row, bodies, headers, column("txid"), times_ms))
    if log is not None:
        yield log, rows
        return
    begin = 0
    logs = list(zip(column("namespace"), column("log"), strict=True))
    for index in range(1, count + 1):
        if index == count or logs[index] != logs[begin]:
            if None in logs[begin]:
                detail = "a row's namespace or log is null: it says where the row goes"
                raise DuramenError("invalid_argument", detail, field="log")
            yield logs[begin], rows[begin:index]
            begin = index


def read_headers(value: Any) -> tuple[Header, ...]:
    """Headers of one row, as a list of pairs or of a map (in the order that it has)."""
    if not value:
        return ()
    pairs = [(p["name"], p["value"]) if isinstance(p, dict) else p for p in value]
    return tuple((_to_bytes(name), _to_bytes(item)) for name, item in pairs)


def find_key(
    body: bytes, headers: Sequence[Header], txid: int | None, time_ms: int | None
) -> bytes:
    """What two equal records have in common, and no others.

    Args:
        time_ms: None where the record got the time of its sending.
    """
    digest = hashlib.blake2b(body, digest_size=16)
    for name, value in headers:
        digest.update(b"%d,%d:" % (len(name), len(value)) + name + value)
    digest.update(b"/%d/" % len(body) + repr((len(headers), txid, time_ms)).encode())
    return digest.digest()


def _read_bodies(column: pa.Array) -> list[bytes]:
    if column.null_count:
        raise DuramenError("invalid_argument", "a row's body is null", field="body")
    bodies: list[bytes] = column.cast(pa.binary()).to_pylist()
    return bodies


def _to_bytes(text: str | bytes | None) -> bytes:
    if text is None:
        raise DuramenError("invalid_argument", "a header's name or value is null", field="headers")
    return text.encode() if isinstance(text, str) else bytes(text)
