"""Records as JSON: one object each, in the answer to a read and in every line of NDJSON.

    {"seq_num": 17, "dlsn": "e3n5s0", "txid": 9, "timestamp": "2026-01-02T03:04:05.678Z",
     "headers": [["name", "value"]], "body": "…"}

`txid` and `headers` are left out where a record has none. Strings are UTF-8. A record of which one
is not has all of them, body, header names and header values, as base64, and says so by
`"format": "base64"`. Who asks for base64 (header `Duramen-Format: base64`) gets it in every record,
and none says so. Times are RFC 3339 in UTC. Encoding is a bulk operation: one decode per batch.

Called by the read proxy and the command line. Source: docs/protocol/read-answers.md "JSON".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from duramen.ids import Dlsn, parse_dlsn
from duramen.texts import format_time, parse_time_ms
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import Header

NDJSON_MEDIA_TYPE: Final = "application/x-ndjson"
FORMAT_HEADER: Final = "Duramen-Format"


class DeliveredRecord(NamedTuple):
    """One record as a reader sees it.

    Attributes:
        seq_num: its sequence number, from 0.
        dlsn: its place: epoch, entry and slot.
        txid: 0 … 2^63 − 1; None: it has none.
        timestamp_ms: unix milliseconds, as its writer gave it.
        headers: pairs of bytes, name and value.
        body: its bytes.
    """

    seq_num: int
    dlsn: Dlsn
    txid: int | None
    timestamp_ms: int
    headers: tuple[Header, ...]
    body: bytes


def encode_mark(seq_num: int | None, timestamp_ms: int | None, dlsn: Dlsn) -> dict[str, Any]:
    """A position P of docs/protocol/rest.md "Texts": between two records; the number may not be
    known yet.

    Args:
        timestamp_ms: None where there is no record that has one.
    """
    return {
        "seq_num": seq_num,
        "timestamp": None if timestamp_ms is None else format_time(timestamp_ms),
        "lsn": f"e{dlsn.epoch}n{dlsn.entry}",
        "dlsn": str(dlsn),
    }


def encode_tail(seq_num: int, timestamp_ms: int, dlsn: Dlsn) -> dict[str, Any]:
    """The mark behind a log's last record; an empty log has had no time yet."""
    return encode_mark(seq_num, timestamp_ms if seq_num else None, dlsn)


def iterate_records(placed: PlacedBatch, first: int = 0) -> Iterator[DeliveredRecord]:
    """The records of a batch with their places.

    Args:
        first: the first one's number in the batch, 0 … their count.

    Raises:
        BatchError: damaged.
    """
    batch = placed.decode()
    epoch, entry, slot = placed.dlsn
    for index in range(first, len(batch.bodies)):
        yield DeliveredRecord(
            placed.seq_num + index,
            Dlsn(epoch, entry, slot + index),
            None if batch.txids is None else batch.txids[index],
            batch.timestamps_ms[index],
            () if batch.headers is None else batch.headers[index],
            batch.bodies[index],
        )


def encode_record(record: DeliveredRecord, *, is_base64: bool) -> dict[str, Any]:
    """The JSON object of a record.

    Args:
        is_base64: base64 was asked for, of every record.
    """
    document: dict[str, Any] = {"seq_num": record.seq_num, "dlsn": str(record.dlsn)}
    if record.txid is not None:
        document["txid"] = record.txid
    document["timestamp"] = format_time(record.timestamp_ms)
    if is_base64:
        return document | _encode_content(record, _format_base64)
    try:
        return document | _encode_content(record, bytes.decode)
    except UnicodeDecodeError:
        return document | {"format": "base64"} | _encode_content(record, _format_base64)


def read_record(document: dict[str, Any], *, is_base64: bool) -> DeliveredRecord:
    """A record from its JSON object.

    Args:
        is_base64: base64 was asked for, of every record.

    Raises:
        ValueError: the object is no record.
    """
    try:
        if document.get("format", "base64") != "base64":
            raise ValueError(f"{document['format']!r} is no format of a record")
        read = _read_base64 if is_base64 or "format" in document else str.encode
        return DeliveredRecord(
            document["seq_num"],
            parse_dlsn(document["dlsn"]),
            document.get("txid"),
            parse_time_ms(document["timestamp"]),
            tuple((read(name), read(value)) for name, value in document.get("headers", ())),
            read(document["body"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no record: {error!r}") from error


def _encode_content(record: DeliveredRecord, encode: Callable[[bytes], str]) -> dict[str, Any]:
    body: dict[str, Any] = {"body": encode(record.body)}
    if not record.headers:
        return body
    return {"headers": [[encode(name), encode(value)] for name, value in record.headers]} | body


def _format_base64(data: bytes) -> str:
    return b64encode(data).decode()


def _read_base64(text: str) -> bytes:
    return b64decode(text, validate=True)
