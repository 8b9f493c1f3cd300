"""Bodies of an append: raw, JSON, NDJSON or an encoded batch become one record batch.

Pure: bytes and the time of the request go in, an encoded batch comes out, or a DuramenError that
names the field. Nothing of a body that has one fault is used. JSON strings are UTF-8, or base64
for bodies, header names and header values. An encoded batch is passed on as it came, after a look
at its columns, so that no reader meets a batch that cannot be decoded.

Called by `intake.encoder`. Source: docs/protocol/rest.md "Append", docs/protocol/wire.md "Record
batch".
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from duramen.errors import DuramenError
from duramen.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORD_COUNT_MAX,
    RECORD_BYTES_MAX,
    SEQ_NUM_MAX,
)
from duramen.runtime.rest import parse_json, parse_object, shorten_field, unknown_field
from duramen.texts import LAST_TIME_MS, parse_time_ms
from duramen.units import KIB
from duramen.wire.record_batch import (
    BATCH_ENCODED_MAX,
    NO_TXID,
    TIMESTAMPS,
    Batch,
    BatchError,
    BatchProducer,
    Header,
    check_batch,
    check_records,
    decode_batch,
    encode_batch,
    header_size,
    may_have_headers,
)
from duramen_writeproxy.intake.conditions import (
    NO_CONDITIONS,
    Conditions,
    join_conditions,
    take_document_conditions,
)
from duramen_writeproxy.intake.json_pieces import Cutter, check_values

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
BATCH: Final = "application/vnd.duramen.batch"
RAW: Final = ("application/octet-stream", "text/plain")


TXID_MAX: Final = (1 << 63) - 1
HEADER_COUNT_MAX: Final = 1_000
"""Headers of one record: far below what the batch's 16 bits can count."""

WHOLE_BYTES_MAX: Final = 128 * KIB
"""What is parsed in one go, and on the loop: 40 ms of the hardest JSON, or of headers."""

_HEADER_NAME_BYTES_MAX: Final = (1 << 16) - 1
_DOCUMENT_FIELDS: Final = ("records",)
_RECORD_FIELDS: Final = frozenset({"body", "headers", "timestamp", "txid"})

# Places in the fixed header of `duramen.wire.record_batch`.
_PRODUCER_ID_BYTES_AT: Final = 9
_PRODUCER_AT: Final = slice(24, 40)
_SMALLEST_TXID_AT: Final = 40
_SMALLEST_TXID: Final = struct.Struct("<q")

# JSON encodes a byte as up to six characters (\u0000) or 4/3 in base64, and each record needs its
# braces and names. Twice the batch with room for names covers what people send; a batch full of
# control characters goes as base64 or as an encoded batch.
JSON_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX + BATCH_RECORD_COUNT_MAX * KIB // 4


def parse_media(content_type: str) -> str:
    """The media type of a Content-Type header, if an append can have it.

    Raises:
        DuramenError: `unsupported_media`, field `Content-Type`.
    """
    media, _, rest = content_type.partition(";")
    media = media.strip().lower()
    if media not in (JSON, NDJSON, BATCH, *RAW):
        raise unsupported_media(
            f"an append is {JSON}, {NDJSON}, {', '.join(RAW)} or {BATCH}, "
            f"not {shorten_field(content_type)!r}"
        )
    if rest and media in (JSON, NDJSON):
        name, _, value = rest.strip().partition("=")
        if name.lower() == "charset" and value.strip('" ').lower() not in ("utf-8", "utf8"):
            raise unsupported_media("JSON is UTF-8")
    return media


def unsupported_media(detail: str) -> DuramenError:
    """The refusal of a Content-Type."""
    return DuramenError("unsupported_media", detail, field="Content-Type")


def body_limit(media: str) -> tuple[int, str]:
    """The most bytes that a body of this media type may have, and the error code beyond it."""
    if media in RAW:
        return RECORD_BYTES_MAX, "record_too_large"
    return (BATCH_ENCODED_MAX if media == BATCH else JSON_BYTES_MAX), "batch_too_large"


def takes_long(media: str, body: bytes) -> bool:
    """Whether a body takes more time than the loop has for one; an encoded batch by its headers."""
    if media == BATCH:
        return may_have_headers(body, WHOLE_BYTES_MAX)
    return media not in RAW and len(body) > WHOLE_BYTES_MAX


class Prepared(NamedTuple):
    """An append that is ready to be sent."""

    batch: bytes
    conditions: Conditions


def encode_body(
    media: str,
    body: bytes,
    now_ms: int,
    *,
    is_base64: bool = False,
    conditions: Conditions = NO_CONDITIONS,
) -> Prepared:
    """The record batch that a body means, with what it demands of the log.

    Args:
        media: what `parse_media` gave.
        body: within `body_limit`.
        now_ms: unix time of records that have none.
        is_base64: bodies, header names and values of JSON and NDJSON are base64.
        conditions: of the headers; a JSON body and an encoded batch may bring their own.

    Raises:
        DuramenError: `invalid_argument`, `unknown_field`, `record_too_large`, `batch_too_large`,
            `too_many_records`, `unsupported_media`, with the field.
    """
    try:
        if media in RAW:
            return Prepared(encode_batch([body], now_ms, producer=conditions.producer), conditions)
        if media == BATCH:
            return _take_encoded(body, conditions)
        reader = _RecordReader(is_base64=is_base64)
        if media == NDJSON:
            _read_lines(body, reader)
        else:
            conditions = join_conditions(conditions, _read_document(body, reader))
        batch = reader.encode(now_ms, conditions.producer)
    except BatchError as error:
        raise DuramenError(error.code, str(error), field="records") from None
    return Prepared(batch, conditions)


def _read_document(body: bytes, reader: _RecordReader) -> Conditions:
    """Read a document's records, the pieces of a large one as they come; gives its conditions."""
    frame = body
    if len(body) > WHOLE_BYTES_MAX:
        cutter = Cutter(body)
        for number, piece in enumerate(cutter.cut()):
            _check_count(number + 1)
            place = f"records[{number}]"
            reader.read(parse_json(piece, place), place)
        frame = bytes(cutter.frame)
    document = parse_object(frame)
    conditions = NO_CONDITIONS
    if len(document) > 1 or "records" not in document:
        conditions = take_document_conditions(document)
    for name in document:
        if name not in _DOCUMENT_FIELDS:
            raise unknown_field(name)
    items = document.get("records")
    if not isinstance(items, list):
        raise DuramenError("invalid_argument", "a list of records is expected", field="records")
    if frame is body:
        _check_count(len(items))
    for number, item in enumerate(items):
        reader.read(item, f"records[{number}]")
    return conditions


def _read_lines(body: bytes, reader: _RecordReader) -> None:
    """Read the lines that are not blank; errors count all lines from 1."""
    _check_count(max(1, body.count(b"\n")))
    for number, line in enumerate(body.split(b"\n"), start=1):
        if line.strip():
            place = f"line {number}"
            if len(line) > WHOLE_BYTES_MAX:
                check_values(line, place)
            reader.read(parse_json(line, place), place)


def _check_count(count: int) -> None:
    """Before any work per record."""
    if count == 0:
        raise BatchError("an append needs at least one record")
    if count > BATCH_RECORD_COUNT_MAX:
        raise BatchError(
            f"{count} records: at most {BATCH_RECORD_COUNT_MAX} in a batch", "too_many_records"
        )


def _same_presence(txids: Sequence[int | None], places: Sequence[str]) -> list[int] | None:
    given = [txid for txid in txids if txid is not None]
    if not given:
        return None
    if len(given) != len(txids):
        place = places[txids.index(None)]
        raise DuramenError(
            "invalid_argument", "either all records have a txid or none", field=f"{place}.txid"
        )
    return given


class _RecordReader:
    """Columns of the records that were read so far."""

    def __init__(self, *, is_base64: bool) -> None:
        self._places: list[str] = []
        self._bodies: list[bytes] = []
        self._headers: list[tuple[Header, ...]] = []
        self._timestamps_ms: list[int | None] = []
        self._txids: list[int | None] = []
        self._size_bytes = 0
        self._read_text = _read_base64 if is_base64 else _read_utf8

    def read(self, item: Any, place: str) -> None:
        """Read one record; `place` names it in errors, such as `records[3]`."""
        if not isinstance(item, dict):
            raise DuramenError("invalid_argument", f"{place}: an object is expected", field=place)
        if not item.keys() <= _RECORD_FIELDS:
            raise unknown_field(next(name for name in item if name not in _RECORD_FIELDS), place)
        body = self._read_text(item.get("body"))
        if body is None:
            raise self._no_text(f"{place}.body")
        headers = self._read_headers(item["headers"], place) if "headers" in item else ()
        self._places.append(place)
        self._bodies.append(body)
        self._headers.append(headers)
        self._timestamps_ms.append(_read_time(item, place))
        self._txids.append(_read_number(item, "txid", TXID_MAX, place))
        self._size_bytes += len(body) + (header_size(headers) if headers else 0)
        if self._size_bytes > BATCH_BYTES_MAX:
            self._check()  # before more work is spent on it

    def encode(self, now_ms: int, producer: BatchProducer | None) -> bytes:
        """The batch of what was read.

        Args:
            now_ms: unix time of records that have none.

        Raises:
            BatchError: no batch may hold it.
        """
        headers = self._check()
        times = self._timestamps_ms
        timestamps_ms = None
        if any(time is not None for time in times):
            timestamps_ms = [now_ms if time is None else time for time in times]
        return encode_batch(
            self._bodies,
            now_ms,
            timestamps_ms=timestamps_ms,
            txids=_same_presence(self._txids, self._places),
            headers=headers,
            producer=producer,
        )

    def _check(self) -> list[tuple[Header, ...]] | None:
        """Refuse what no batch may hold; gives the column of headers if there is one."""
        headers = self._headers if any(self._headers) else None
        sizes = None if headers is None else [header_size(pairs) for pairs in headers]
        check_records(self._bodies, sizes)
        return headers

    def _read_headers(self, pairs: Any, place: str) -> tuple[Header, ...]:
        field = f"{place}.headers"
        if not isinstance(pairs, list) or len(pairs) > HEADER_COUNT_MAX:
            raise DuramenError(
                "invalid_argument",
                f"{field}: a list of at most {HEADER_COUNT_MAX} [name, value] is expected",
                field=field,
            )
        return tuple(
            self._read_header(pair, f"{field}[{index}]") for index, pair in enumerate(pairs)
        )

    def _read_header(self, pair: Any, field: str) -> Header:
        if not isinstance(pair, list) or len(pair) != 2:
            raise DuramenError("invalid_argument", f"{field}: [name, value] expected", field=field)
        name, value = self._read_text(pair[0]), self._read_text(pair[1])
        if name is None or value is None:
            raise self._no_text(field)
        if not 0 < len(name) <= _HEADER_NAME_BYTES_MAX:
            raise DuramenError(
                "invalid_argument",
                f"{field}: a header's name has 1 to {_HEADER_NAME_BYTES_MAX} bytes",
                field=field,
            )
        return name, value

    def _no_text(self, field: str) -> DuramenError:
        kind = "base64 as text" if self._read_text is _read_base64 else "a text"
        return DuramenError("invalid_argument", f"{field}: {kind} is expected", field=field)


def _read_utf8(value: Any) -> bytes | None:
    """The bytes of a text; `parse_json` saw to it that every text is valid Unicode."""
    return value.encode() if isinstance(value, str) else None


def _read_base64(value: Any) -> bytes | None:
    try:
        return binascii.a2b_base64(value, strict_mode=True) if isinstance(value, str) else None
    except ValueError:
        return None


def _read_time(item: dict[str, Any], place: str) -> int | None:
    """A record's `timestamp`: RFC 3339 with a zone, or unix milliseconds as a number."""
    value = item.get("timestamp")
    if not isinstance(value, str):
        return _read_number(item, "timestamp", LAST_TIME_MS, place)
    try:
        return parse_time_ms(value)
    except (ValueError, OverflowError) as error:
        field = f"{place}.timestamp"
        raise DuramenError("invalid_argument", f"{field}: {error}", field=field) from None


def _read_number(item: dict[str, Any], name: str, most: int, place: str) -> int | None:
    if name not in item:
        return None
    value = item[name]
    # bool is an int to Python, and no number to anybody else.
    if type(value) is not int or not 0 <= value <= most:
        field = f"{place}.{name}"
        raise DuramenError(
            "invalid_argument",
            f"{field}: a whole number from 0 to {most} is expected",
            field=field,
        )
    return value


def _take_encoded(body: bytes, conditions: Conditions) -> Prepared:
    """An encoded batch as it came, or with the producer that the header names.

    One that is damaged or that no reader could decode is refused.
    """
    info = check_batch(body)
    if not body[_PRODUCER_ID_BYTES_AT] and any(body[_PRODUCER_AT]):
        raise DuramenError("invalid_argument", "a producer has an id", field="producer")
    if info.producer is not None:
        # Whole numbers beyond 2^53 would be others to a JSON reader.
        if max(info.producer[1:]) > SEQ_NUM_MAX:
            detail = f"epoch and sequence are at most {SEQ_NUM_MAX}"
            raise DuramenError("invalid_argument", detail, field="producer")
        conditions = join_conditions(conditions, Conditions(producer=info.producer))
    batch = _check_encoded(body)
    if conditions.producer == info.producer:
        return Prepared(body, conditions)
    stamped = encode_batch(
        batch.bodies,
        info.max_timestamp_ms,
        timestamps_ms=batch.timestamps_ms if info.flags & TIMESTAMPS else None,
        txids=batch.txids,
        headers=batch.headers,
        producer=conditions.producer,
        codec=info.codec,
    )
    return Prepared(stamped, conditions)


def _check_encoded(body: bytes) -> Batch:
    batch = decode_batch(body)
    sizes = None if batch.headers is None else [header_size(pairs) for pairs in batch.headers]
    check_records(batch.bodies, sizes)
    _check_extremes(batch, *_SMALLEST_TXID.unpack_from(body, _SMALLEST_TXID_AT))
    return batch


def _check_extremes(batch: Batch, smallest: int) -> None:
    """Searches rely on the extremes in the fixed header, so they must be those of the columns."""
    info = batch.info
    times = batch.timestamps_ms
    if not 0 <= min(times) <= max(times) == info.max_timestamp_ms <= LAST_TIME_MS:
        raise DuramenError(
            "invalid_argument",
            f"timestamps are from 0 to {LAST_TIME_MS}, and the header has the greatest",
            field="timestamp",
        )
    txids = batch.txids
    if txids is None:
        is_true = info.max_txid is None and smallest == NO_TXID
    else:
        is_true = 0 <= min(txids) == smallest and max(txids) == info.max_txid
    if not is_true:
        raise DuramenError(
            "invalid_argument",
            "txids are ≥ 0, and the header has the smallest and the greatest",
            field="txid",
        )
