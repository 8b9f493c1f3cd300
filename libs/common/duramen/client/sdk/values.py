"""Plain values that the SDK takes and gives: records, marks, receipts.

No behaviour but spelling. What a reader gets is in `sdk.read_batch`.
Used by `client.sdk` and `client.blocking`. Source: docs/protocol/rest.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from duramen.errors import DuramenError
from duramen.texts import parse_time_ms
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import Header

_HEADER_COUNT_MAX: Final = 1_000
_HEADER_NAME_BYTES_MAX: Final = (1 << 16) - 1
_TXID_MAX: Final = (1 << 63) - 1

HeaderPair = tuple[str | bytes, str | bytes]
"""Name and value; a str is written as UTF-8."""

Headers = Sequence[HeaderPair] | Mapping[str, str | bytes]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to append.

    Attributes:
        body: up to 1 MiB, headers included.
        headers: pairs, or a mapping.
        txid: 0 … 2^63 − 1, not below the greatest of the log; all records of a batch have one, or
            none has.
        timestamp: unix milliseconds, or a datetime with a zone; None: when it is sent.
    """

    body: bytes
    headers: Headers = ()
    txid: int | None = None
    timestamp: int | datetime | None = None


class Mark(NamedTuple):
    """A place between two records.

    Attributes:
        seq_num: of the next record behind it.
        timestamp_ms: the greatest timestamp before it, unix milliseconds; None: the log has had no
            record.
        dlsn: the next record has this DLSN or a later one.
    """

    seq_num: int
    timestamp_ms: int | None
    dlsn: str


class Receipt(NamedTuple):
    """Where one record of a producer stands.

    Attributes:
        seq_num: its sequence number; None where it was stored so long ago that the log has
            forgotten its place.
        dlsn: its DLSN; empty where that is so.
    """

    seq_num: int | None
    dlsn: str


Compression = Literal["zstd"]
"""How what is appended can be made smaller, on its way, on disk and for who reads batches."""

_CODECS: Final = {None: Codec.NONE, "zstd": Codec.ZSTD}


def find_codec(compression: str | None) -> Codec:
    """The batch's codec.

    Raises:
        DuramenError: `invalid_argument`, field `compression`.
    """
    codec = _CODECS.get(compression)
    if codec is None:
        raise _invalid("compression", f'compression is "zstd" or None, not {compression!r}')
    return codec


class Moved(NamedTuple):
    """What was asked for is truncated; reading went on at the oldest record that is left.

    Attributes:
        wanted: the position that was asked for.
        seq_num: where reading went on.
    """

    wanted: str
    seq_num: int


class Lost(NamedTuple):
    """Records are lost for ever, as a person has accepted; reading went on behind them.

    Attributes:
        wanted: the position that was asked for.
        next: the position at which the log goes on.
    """

    wanted: str
    next: str


def encode_headers(headers: Headers) -> tuple[Header, ...]:
    """Pairs of bytes.

    Raises:
        DuramenError: `invalid_argument`, field `headers`.
    """
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        encoded = tuple((_encode(name), _encode(value)) for name, value in pairs)
    except (TypeError, ValueError):
        raise _invalid("headers", "headers are pairs of str or bytes") from None
    if len(encoded) > _HEADER_COUNT_MAX:
        raise _invalid("headers", f"{len(encoded)} headers: at most {_HEADER_COUNT_MAX}")
    if not all(0 < len(name) <= _HEADER_NAME_BYTES_MAX for name, _ in encoded):
        raise _invalid("headers", f"names have 1 to {_HEADER_NAME_BYTES_MAX} bytes")
    return encoded


def check_body(body: object) -> None:
    """Refuse what is not bytes: encoding it later would be too late.

    Raises:
        DuramenError: `invalid_argument`, field `body`.
    """
    if not isinstance(body, bytes):
        raise _invalid("body", f"a body is bytes, not {type(body).__name__}")


def check_txid(txid: int | None) -> None:
    """Refuse a txid that no log can take.

    Raises:
        DuramenError: `invalid_argument`, field `txid`.
    """
    if txid is not None and not (isinstance(txid, int) and 0 <= txid <= _TXID_MAX):
        raise _invalid("txid", f"a txid is from 0 to {_TXID_MAX}, not {txid!r}")


def find_time_ms(timestamp: int | datetime) -> int:
    """Unix milliseconds.

    Raises:
        DuramenError: `invalid_argument`, field `timestamp`.
    """
    try:
        text = timestamp.isoformat() if isinstance(timestamp, datetime) else str(timestamp)
        return parse_time_ms(text)
    except ValueError as error:
        raise _invalid("timestamp", str(error)) from None


def read_mark(document: Mapping[str, Any]) -> Mark:
    """The mark of an answer.

    Raises:
        DuramenError: `internal`: it is none.
    """
    try:
        text = document["timestamp"]
        time_ms = None if text is None else parse_time_ms(text)
        return Mark(int(document["seq_num"]), time_ms, str(document["dlsn"]))
    except (LookupError, TypeError, ValueError) as error:
        raise DuramenError("internal", f"the answer has no mark: {error}") from error


def _invalid(field: str, detail: str) -> DuramenError:
    return DuramenError("invalid_argument", detail, field=field)


def _encode(part: str | bytes) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes):
        return part
    raise TypeError(part)
