"""Requests and answers of the sequencer's data plane: append, and the LAC. Control is JSON.

An append request is one frame: a row per batch (log, deadline, bytes), the batches as payload.
The answer is a *stream* of frames: each carries the rows that were decided together, and every row
names the batch that it answers, so that a log which is being taken over delays no other log.

Code 0 is success, 1 … are those of `duramen.errors`; NOT_OWNER (1000) is a redirect whose detail
names the owner, EARLY (1001) a success whose sequence number is not known yet.
Source: docs/protocol/wire.md "Sequencer: POST /s/append", docs/protocol/owner-lac.md "The call".
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.errors import ERRORS_BY_WIRE, DuramenError
from duramen.ids import NOTHING, WIRE_NOTHING, Dlsn, EntryId, Epoch, LogId, SequencerId
from duramen.wire.frame import (
    HEADER_BYTES,
    FrameError,
    frame_size,
    pack_frame,
    parse_frame,
    row_size,
)
from duramen.wire.frame import split_payload as _split

# append  row  log u32, deadline ms u32, bytes u32, bytes of the options u32 (not in version 1)
#              payload: per row, the batch, then the options as JSON (none: 0 bytes)
# answer  row  index u32, code u16, flags u16 (1: a duplicate, 2: its positions are not kept any
#              more), then as far as code = 0:
#              epoch u32, entry u32, slot u32, records u32, start sequence number u64,
#              timestamp ms i64, tail epoch u32, tail entry u32, tail slot u32, 0 u32,
#              tail sequence number u64, tail timestamp ms i64; bytes of the detail u32, 0 u32
#              code = 1001: as 0, but sequence numbers and the tail are not known, and 0
#              payload: per row, the detail as JSON
# lac     row  log u32, epoch u32, above u32 (2³² − 1: nothing), how long to wait in ms u32
# answer  row  the epoch that is open u32 (0: none), its LAC u32

NOT_OWNER: Final = 1000
EARLY: Final = 1001

_OPTIONS_KEPT: Final = 256
"""Spellings of options that are kept: of one proxy nearly all appends have the same."""

_DUPLICATE: Final = 1
_NO_POSITION: Final = 2

LAC_PATH: Final = "/s/lac"
LAC_WAIT_MS_MAX: Final = 10_000

_APPEND = struct.Struct("<IIII")
_APPEND_V1 = struct.Struct("<III")
_RESULT = struct.Struct("<IHHIIIIQqIIIIQqII")
_LAC_WAIT = struct.Struct("<IIII")
_OPEN_LAC = struct.Struct("<II")


class AppendOptions(NamedTuple):
    """What few appends carry: conditions of the client, and where a proxy has been with it.

    Attributes:
        match_seq_num: refused unless the batch's first record gets this sequence number.
        fencing_token: refused unless the log's token is this one.
        tried: sequencers that redirected or could not be reached; none of them is named again.
        region: where the proxy is, and so about where the writer is; None: it does not say.
    """

    match_seq_num: int | None = None
    fencing_token: str | None = None
    tried: tuple[str, ...] = ()
    region: str | None = None


NO_OPTIONS: Final = AppendOptions()


class Append(NamedTuple):
    """One record batch for one log; `deadline_ms` from arrival bounds its wait."""

    log_id: LogId
    deadline_ms: int
    batch: bytes | memoryview
    options: AppendOptions = NO_OPTIONS


class LacWait(NamedTuple):
    """A wait for the LAC of `epoch` to rise above `above`, for at most `wait_ms` (to 10,000)."""

    log_id: LogId
    epoch: Epoch
    above: EntryId
    wait_ms: int


class OpenLac(NamedTuple):
    """The epoch that a sequencer has open of a log, and the LAC there, `NOTHING` at first."""

    epoch: Epoch
    lac: EntryId


class LogMark(NamedTuple):
    """A position between two records: the next record will be here or later."""

    dlsn: Dlsn
    seq_num: int
    timestamp_ms: int


class AppendedBatch(NamedTuple):
    """A batch is in the log, durably and once; a duplicate was there before this request."""

    start: LogMark
    record_count: int
    tail: LogMark
    is_duplicate: bool = False

    @property
    def end(self) -> LogMark:
        """One past the batch's last record."""
        dlsn = self.start.dlsn
        after = Dlsn(dlsn.epoch, dlsn.entry, dlsn.slot + self.record_count)
        return LogMark(after, self.start.seq_num + self.record_count, self.start.timestamp_ms)


class AppendedEarly(NamedTuple):
    """A batch is in the log (`early_append`); how many records lie before it is not known yet."""

    dlsn: Dlsn
    record_count: int
    timestamp_ms: int


class AlreadyStored(NamedTuple):
    """A duplicate of a batch that is in the log, older than the results that are kept."""


class Redirect(NamedTuple):
    """Another sequencer owns the log, or should."""

    sequencer_id: SequencerId
    url: str


Stored = AppendedBatch | AppendedEarly | AlreadyStored
"""What success is told by."""

AppendResult = Stored | Redirect | DuramenError


def encode_redirect(redirect: Redirect) -> dict[str, Any]:
    """The answer to a control call that another sequencer is to be asked."""
    return {"redirect": {"sequencer_id": redirect.sequencer_id, "url": redirect.url}}


def read_redirect(answer: Mapping[str, Any]) -> Redirect | None:
    """Whom the answer to a control call names as the owner; None if it is no redirect.

    Raises:
        FrameError: it is one and names nobody.
    """
    named = answer.get("redirect")
    if named is None:
        return None
    name = named.get("sequencer_id") if isinstance(named, dict) else None
    url = named.get("url") if isinstance(named, dict) else None
    if not isinstance(name, str) or not isinstance(url, str):
        raise FrameError("a redirect names no sequencer")
    return Redirect(SequencerId(name), url)


def pack_appends(appends: Sequence[Append]) -> bytes:
    """Encode an append request."""
    rows = []
    payload: list[bytes | memoryview] = []
    for log_id, deadline_ms, batch, options in appends:
        spelt = b"" if options == NO_OPTIONS else _encode_options(options)
        rows.append((log_id, deadline_ms, len(batch), len(spelt)))
        payload += (batch, spelt)
    return pack_frame(b"DAPQ", _APPEND, rows, payload)


def parse_appends(data: bytes) -> list[Append]:
    """Read an append request of either version; the batches are not yet checked.

    Raises:
        FrameError: no such frame.
    """
    if row_size(data) == _APPEND_V1.size:
        frame = parse_frame(data, b"DAPQ", _APPEND_V1)
        batches = _split(frame.payload, [row[2] for row in frame.rows])
        return [Append(row[0], row[1], b) for row, b in zip(frame.rows, batches, strict=True)]
    frame = parse_frame(data, b"DAPQ", _APPEND)
    parts = iter(_split(frame.payload, [size for row in frame.rows for size in row[2:]]))
    return [Append(row[0], row[1], next(parts), _read_options(next(parts))) for row in frame.rows]


def pack_results(results: Sequence[tuple[int, AppendResult]]) -> bytes:
    """Encode one frame of an append answer: (index in the request, result) each."""
    rows = []
    details = []
    for index, result in results:
        code, fields, detail = _encode_result(result)
        flags = 0
        if isinstance(result, AlreadyStored):
            flags = _DUPLICATE | _NO_POSITION
        elif isinstance(result, AppendedBatch) and result.is_duplicate:
            flags = _DUPLICATE
        rows.append((index, code, flags, *fields, len(detail), 0))
        details.append(detail)
    return pack_frame(b"DAPR", _RESULT, rows, details)


def parse_results(data: bytes) -> list[tuple[int, AppendResult]]:
    """Read one frame of an append answer.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, b"DAPR", _RESULT)
    details = _split(frame.payload, [row[15] for row in frame.rows])
    return [
        (row[0], _read_result(row, bytes(detail)))
        for row, detail in zip(frame.rows, details, strict=True)
    ]


def take_frame(buffer: bytearray) -> bytes | None:
    """Remove the first whole frame from a stream's buffer, if it is there.

    Raises:
        FrameError: what comes is no frame, or longer than any may be.
    """
    if len(buffer) < HEADER_BYTES:
        return None
    size = frame_size(bytes(buffer[:HEADER_BYTES]), b"DAPR")
    if len(buffer) < size:
        return None
    data = bytes(buffer[:size])
    del buffer[:size]
    return data


@functools.lru_cache(maxsize=_OPTIONS_KEPT)
def _encode_options(options: AppendOptions) -> bytes:
    return _json(
        {name: value for name, value in options._asdict().items() if value not in (None, ())}
    )


def _read_options(data: memoryview) -> AppendOptions:
    return _parse_options(bytes(data)) if data else NO_OPTIONS


@functools.lru_cache(maxsize=_OPTIONS_KEPT)
def _parse_options(data: bytes) -> AppendOptions:
    try:
        fields = json.loads(data)
        match, token = fields.get("match_seq_num"), fields.get("fencing_token")
        region = fields.get("region")
        tried = tuple(fields.get("tried", ()))
    except (ValueError, AttributeError, TypeError) as error:
        raise FrameError("an append's options are not understood") from error
    is_known = (
        (match is None or (type(match) is int and match >= 0))
        and all(text is None or isinstance(text, str) for text in (token, region))
        and all(isinstance(name, str) for name in tried)
    )
    if not is_known:
        raise FrameError("an append's options are not understood")
    return AppendOptions(match, token, tried, region)


def _encode_result(result: AppendResult) -> tuple[int, tuple[int, ...], bytes]:
    match result:
        case AlreadyStored():
            return 0, (0,) * 12, b""
        case AppendedBatch(start, record_count, tail):
            fields = (
                *start.dlsn, record_count, start.seq_num, start.timestamp_ms,
                *tail.dlsn, 0, tail.seq_num, tail.timestamp_ms,
            )  # fmt: skip
            return 0, fields, b""
        case AppendedEarly(dlsn, record_count, timestamp_ms):
            return EARLY, (*dlsn, record_count, 0, timestamp_ms, *(0,) * 6), b""
        case Redirect(sequencer_id, url):
            return NOT_OWNER, (0,) * 12, _json({"owner": sequencer_id, "url": url})
        case DuramenError():
            detail: dict[str, Any] = {"detail": result.detail, "uncertain": result.uncertain}
            if result.field is not None:
                detail["field"] = result.field
            if result.retry_after_ms is not None:
                detail["retry_after_ms"] = result.retry_after_ms
            if result.facts:
                detail["facts"] = result.facts
            return result.kind.wire, (0,) * 12, _json(detail)


def _read_result(row: tuple[Any, ...], detail_bytes: bytes) -> AppendResult:
    code, flags = row[1], row[2]
    if code == 0 and flags & _NO_POSITION:
        return AlreadyStored()
    if code == 0:
        dlsn = Dlsn(Epoch(row[3]), EntryId(row[4]), row[5])
        tail = Dlsn(Epoch(row[9]), EntryId(row[10]), row[11])
        mark = LogMark(tail, row[13], row[14])
        return AppendedBatch(LogMark(dlsn, row[7], row[8]), row[6], mark, bool(flags & _DUPLICATE))
    if code == EARLY:
        return AppendedEarly(Dlsn(Epoch(row[3]), EntryId(row[4]), row[5]), row[6], row[8])
    try:
        detail = json.loads(detail_bytes)
        if code == NOT_OWNER:
            return Redirect(SequencerId(detail["owner"]), detail["url"])
        return DuramenError(
            ERRORS_BY_WIRE[code].code,
            detail["detail"],
            field=detail.get("field"),
            retry_after_ms=detail.get("retry_after_ms"),
            uncertain=detail["uncertain"],
            facts=detail.get("facts"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"the answer's code {code} or its detail is not understood") from error


def _json(detail: dict[str, Any]) -> bytes:
    return json.dumps(detail, sort_keys=True).encode()


def pack_lac_wait(wait: LacWait) -> bytes:
    """A request of `/s/lac`."""
    log_id, epoch, above, wait_ms = wait
    return pack_frame(b"DLWQ", _LAC_WAIT, [(log_id, epoch, above & WIRE_NOTHING, wait_ms)])


def parse_lac_wait(data: bytes) -> LacWait:
    """Raises FrameError where it is none, or is to wait for too long."""
    log_id, epoch, above, wait_ms = _read_row(data, b"DLWQ", _LAC_WAIT)
    if wait_ms > LAC_WAIT_MS_MAX:
        raise FrameError(f"a wait of {wait_ms} ms is longer than {LAC_WAIT_MS_MAX:,} ms")
    return LacWait(LogId(log_id), Epoch(epoch), _read_entry(above), wait_ms)


def pack_open_lac(found: OpenLac | None) -> bytes:
    """An answer of `/s/lac`; None: no epoch of the log is open."""
    epoch, lac = found or (0, NOTHING)
    return pack_frame(b"DLWR", _OPEN_LAC, [(epoch, lac & WIRE_NOTHING)])


def parse_open_lac(data: bytes) -> OpenLac | None:
    """Raises FrameError where it is none."""
    epoch, lac = _read_row(data, b"DLWR", _OPEN_LAC)
    return OpenLac(Epoch(epoch), _read_entry(lac)) if epoch else None


def _read_row(data: bytes, magic: bytes, row: struct.Struct) -> tuple[int, ...]:
    rows = parse_frame(data, magic, row).rows
    if len(rows) != 1:
        raise FrameError(f"expected a frame of one row, not of {len(rows)}")
    return rows[0]


def _read_entry(wire: int) -> EntryId:
    return NOTHING if wire == WIRE_NOTHING else EntryId(wire)
