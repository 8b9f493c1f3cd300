"""Names, positions and times as people type them: one grammar for REST, command line, Spark.

`LOG` is `namespace/log`. A position says where a read starts: `head`, `tail`, `tail-N`, `seq:N` or
a bare number, `dlsn:…`, `lsn:…`, `txid:N`, `time:…`, `ago:…`. Parsing only; what a position means
in a given log is decided by the reader.

Called by the proxies, the SDK and the command line. Source: docs/protocol/rest.md "Texts".
"""

from __future__ import annotations

import datetime
import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, Dlsn, LogId, parse_dlsn, parse_lsn
from duramen.limits import SEQ_NUM_MAX
from duramen.units import parse_duration_us

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LOG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_LOG_ID = re.compile(r"[1-9][0-9]{0,9}")
_TXID_MAX = (1 << 63) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

LAST_TIME_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last moment that RFC 3339 can express."""


class PositionKind(enum.Enum):
    """What a position is counted in."""

    HEAD = "head"
    TAIL = "tail"
    SEQ = "seq"
    DLSN = "dlsn"
    LSN = "lsn"
    TXID = "txid"
    TIME = "time"
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Position:
    """A parsed position; `number` is N, unix ms for TIME, microseconds for AGO, the LSN for LSN."""

    kind: PositionKind
    number: int = 0
    dlsn: Dlsn | None = None


def check_namespace(name: str) -> str:
    """The name itself, if it is a legal namespace.

    Raises:
        DuramenError: `invalid_name`, field `namespace`.
    """
    if _NAMESPACE.fullmatch(name) is None:
        raise DuramenError(
            "invalid_name",
            f"namespace {name!r}: use 1 to 63 of a-z, 0-9 and '-', "
            "beginning and ending with a letter or digit",
            field="namespace",
        )
    return name


def check_log_name(name: str) -> str:
    """The name itself, if a user may give it to a log.

    Raises:
        DuramenError: `invalid_name`, field `log`.
    """
    if _LOG.fullmatch(name) is None:
        raise DuramenError(
            "invalid_name",
            f"log {name!r}: use 1 to 255 of A-Z, a-z, 0-9, '.', '_' and '-', "
            "beginning with a letter or digit",
            field="log",
        )
    return name


def parse_log(text: str) -> tuple[str, str]:
    """Namespace and log of `namespace/log`.

    Raises:
        DuramenError: `invalid_name`, field `log`.
    """
    namespace, slash, log = text.partition("/")
    if not slash:
        raise DuramenError("invalid_name", f"{text!r}: write NAMESPACE/LOG", field="log")
    return check_namespace(namespace), check_log_name(log)


def parse_log_id(text: str) -> LogId:
    """The id of a log that was made by name, in the form of answers.

    Raises:
        DuramenError: `invalid_argument`, field `log_id`.
    """
    if _LOG_ID.fullmatch(text) is None or int(text) > LAST_LOG_ID:
        detail = f"{text!r} is no log id: write it as GET of the log shows it"
        raise DuramenError("invalid_argument", detail, field="log_id")
    return LogId(int(text))


def parse_position(text: str) -> Position:
    """Read a position.

    Raises:
        DuramenError: `invalid_position`, field `from`.
    """
    try:
        return _parse_position(text)
    except ValueError as error:
        raise DuramenError(
            "invalid_position",
            f"{error}; a position is head, tail, tail-N, seq:N or N, dlsn:e1n2s3, lsn:e1n2, "
            "txid:N, time:RFC 3339 or unix ms, ago:1h30m",
            field="from",
        ) from None


def _parse_position(text: str) -> Position:
    if text in ("head", "tail"):
        return Position(PositionKind(text))
    if text.startswith("tail-"):
        return Position(PositionKind.TAIL, _number(text[5:], SEQ_NUM_MAX))
    kind, colon, rest = text.partition(":")
    if not colon:
        return Position(PositionKind.SEQ, _number(text, SEQ_NUM_MAX))
    match kind:
        case "seq":
            return Position(PositionKind.SEQ, _number(rest, SEQ_NUM_MAX))
        case "dlsn":
            return Position(PositionKind.DLSN, dlsn=parse_dlsn(rest))
        case "lsn":
            return Position(PositionKind.LSN, parse_lsn(rest))
        case "txid":
            return Position(PositionKind.TXID, _number(rest, _TXID_MAX))
        case "time":
            return Position(PositionKind.TIME, parse_time_ms(rest))
        case "ago":
            return Position(PositionKind.AGO, parse_duration_us(rest))
        case _:
            raise ValueError(f"{text!r} is no position")


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise ValueError(f"{text!r} is no whole number from 0 to {most}")
    return int(text)


def parse_time_ms(text: str) -> int:
    """Unix milliseconds of an RFC 3339 time with a zone, or of a number of milliseconds.

    Raises:
        ValueError: neither, or outside 1970 … 9999.
    """
    if text.isascii() and text.isdigit():
        return _number(text, LAST_TIME_MS)
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone: end it with Z or +hh:mm")
    time_ms = (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
    if not 0 <= time_ms <= LAST_TIME_MS:
        raise ValueError(f"{text!r} is outside 1970 … 9999")
    return time_ms


@lru_cache(maxsize=1024)
def format_time(unix_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds; times that it cannot express become the nearest it can."""
    moment = _EPOCH + datetime.timedelta(milliseconds=min(max(unix_ms, 0), LAST_TIME_MS))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
