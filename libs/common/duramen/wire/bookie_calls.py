"""Requests and answers of the bookie's data plane: add, read, seal, LAC.

Each call is one frame (`wire.frame`) with one row per item, and its answer is one frame with one
row per item in the same order. A request names the incarnation that it is meant for (R1).
LACs are entry ids of the ledger; 0xFFFF_FFFF means `NOTHING`.

Source: docs/protocol/wire.md, R1, R10, R13, R14.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, WIRE_NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId
from duramen.limits import ENTRY_BYTES_MAX, LONG_POLL_MAX_US, READ_ROW_COUNT_MAX
from duramen.units import MS
from duramen.wire.entry import EntryError, check_entry, read_entry_info
from duramen.wire.frame import Frame, FrameError, pack_frame, parse_frame, split_payload

# add    row  ledger u64, entry u32, LAC u32, class u8, flags u8, wave u16, bytes u32, 0 u32;
#             payload: the entries
#        row  status u8
# read   row  ledger u64, first u32, last u32, most bytes u32, seal epoch u32, wait ms u32,
#             wait for u32, class u8, flags u8, 0 u16
#        row  status u8, flags u8, 0 u16, LAC u32, highest entry u32, entries u32, bytes u32
#             payload: per row, entries × (entry u32, bytes u32), then the entries
# seal   row  log u32, epoch u32, ledger u64
#        row  status u8, 0 u8, 0 u16, LAC u32, highest entry u32
# LAC    row  ledger u64, LAC u32, flags u32 (1: write)
#        row  as of seal

_ADD = struct.Struct("<QIIBBHII")
_STATUS = struct.Struct("<B")
_READ = struct.Struct("<QIIIIIIBBH")
_READ_ANSWER = struct.Struct("<BBHIIII")
_SEAL = struct.Struct("<IIQ")
_MARKS = struct.Struct("<BBHII")
_LAC = struct.Struct("<QII")
_ITEM = struct.Struct("<II")


class ServiceClass(enum.IntEnum):
    """Class of service of a request."""

    APPEND = 0
    TAIL_READ = 1
    CATCH_UP_READ = 2
    RECOVERY = 3
    REPAIR = 4


class Add(NamedTuple):
    """One entry to be stored, with what travels beside it."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    entry: bytes | memoryview
    is_recovery: bool = False
    service: ServiceClass = ServiceClass.APPEND
    wave: int = 0


class ReadRange(NamedTuple):
    """Entries `first` … `last` of a ledger, as far as they are stored.

    `seal_epoch` > 0: seal the log up to it first (R14). `wait_ms` > 0: if `first` is not stored and
    the LAC is below `wait_for`, answer when either changes, or then.
    """

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes_max: int
    seal_epoch: int = 0
    wait_ms: int = 0
    wait_for: EntryId = NOTHING
    service: ServiceClass = ServiceClass.TAIL_READ
    headers_only: bool = False


class ReadAnswer(NamedTuple):
    """What a bookie knows of a range; `status` is about its first entry.

    `entries`: (entry id, bytes) of stored entries of the range, ascending, beginning with the first
    (only the 64 header bytes each if headers only were asked for).
    """

    status: BookieStatus
    lac: EntryId
    highest: EntryId
    is_sealed: bool
    entries: Sequence[tuple[EntryId, bytes | memoryview]]


class Seal(NamedTuple):
    """Refuse adds of epochs ≤ `epoch` of a log; tell about `ledger_id`."""

    log_id: LogId
    epoch: Epoch
    ledger_id: LedgerId


class LacUpdate(NamedTuple):
    """Write (or only read) a ledger's LAC."""

    ledger_id: LedgerId
    lac: EntryId
    is_write: bool


class Marks(NamedTuple):
    """Answer to a seal or LAC row: where this bookie sees the ledger's LAC and highest entry."""

    status: BookieStatus
    lac: EntryId
    highest: EntryId


def pack_adds(incarnation: Incarnation, adds: Sequence[Add]) -> bytes:
    """Encode an add request."""
    rows = [
        (a.ledger_id, a.entry_id, _encode(a.lac), a.service, a.is_recovery, a.wave, len(a.entry), 0)
        for a in adds
    ]
    return pack_frame(b"DADD", _ADD, rows, [a.entry for a in adds], incarnation=incarnation)


def parse_adds(data: bytes) -> tuple[Incarnation, list[Add]]:
    """Read an add request; the entries are views of `data`, their checksums not yet verified.

    Raises:
        FrameError: no such frame, an entry over the limit, or a LAC not below its entry.
    """
    frame = parse_frame(data, b"DADD", _ADD)
    bodies = split_payload(frame.payload, [row[6] for row in frame.rows])
    adds = []
    for row, body in zip(frame.rows, bodies, strict=True):
        ledger_id, entry_id, lac, service, flags, wave, size, _ = row
        if size > ENTRY_BYTES_MAX or entry_id == WIRE_NOTHING or _read(lac) >= entry_id:
            raise FrameError(f"add of entry {entry_id}: {size} bytes with LAC {_read(lac)}")
        adds.append(
            Add(ledger_id, entry_id, _read(lac), body, bool(flags & 1), _service(service), wave)
        )
    return frame.incarnation, adds


def pack_statuses(statuses: Iterable[BookieStatus]) -> bytes:
    """Encode an add answer."""
    return pack_frame(b"DADR", _STATUS, [(status,) for status in statuses])


def parse_statuses(data: bytes) -> list[BookieStatus]:
    """Read an add answer.

    Raises:
        FrameError: no such frame.
    """
    return [_status(row[0]) for row in parse_frame(data, b"DADR", _STATUS).rows]


def pack_reads(incarnation: Incarnation, ranges: Sequence[ReadRange]) -> bytes:
    """Encode a read request."""
    rows = [
        (
            r.ledger_id, r.first, _encode(r.last), r.bytes_max, r.seal_epoch, r.wait_ms,
            _encode(r.wait_for), r.service, r.headers_only, 0,
        )
        for r in ranges
    ]  # fmt: skip
    return pack_frame(b"DRDQ", _READ, rows, incarnation=incarnation)


def parse_reads(data: bytes) -> tuple[Incarnation, list[ReadRange]]:
    """Read a read request; only a request of a single range may wait.

    Raises:
        FrameError: no such frame, too many ranges, or a wait that is too long or in company.
    """
    frame = parse_frame(data, b"DRDQ", _READ)
    if len(frame.rows) > READ_ROW_COUNT_MAX:
        raise FrameError(f"a read has {READ_ROW_COUNT_MAX} ranges at most")
    ranges = [
        ReadRange(
            r[0], r[1], _read(r[2]), r[3], r[4], r[5], _read(r[6]), _service(r[7]), bool(r[8])
        )
        for r in frame.rows
    ]
    if any(r.wait_ms for r in ranges) and len(ranges) > 1:
        raise FrameError("only a request of a single range may wait")
    if any(r.wait_ms * MS > LONG_POLL_MAX_US for r in ranges):
        raise FrameError("a long poll waits 60 s at most")
    return frame.incarnation, ranges


def pack_read_answers(answers: Sequence[ReadAnswer]) -> bytes:
    """Encode a read answer."""
    rows = []
    payload: list[bytes | memoryview] = []
    for answer in answers:
        table = b"".join([_ITEM.pack(entry_id, len(body)) for entry_id, body in answer.entries])
        size = len(table) + sum(len(body) for _, body in answer.entries)
        rows.append(
            (
                answer.status, answer.is_sealed, 0, _encode(answer.lac), _encode(answer.highest),
                len(answer.entries), size,
            )
        )  # fmt: skip
        payload.append(table)
        payload += [body for _, body in answer.entries]
    return pack_frame(b"DRDR", _READ_ANSWER, rows, payload)


def parse_read_answers(data: bytes) -> list[ReadAnswer]:
    """Read a read answer; entries are views of `data`, their checksums not yet verified.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, b"DRDR", _READ_ANSWER)
    parts = split_payload(frame.payload, [row[6] for row in frame.rows])
    answers = []
    for row, part in zip(frame.rows, parts, strict=True):
        status, flags, _, lac, highest, count, _ = row
        if count * _ITEM.size > len(part):
            raise FrameError("the frame's lengths do not add up")
        table = list(_ITEM.iter_unpack(part[: count * _ITEM.size]))
        bodies = split_payload(part[count * _ITEM.size :], [size for _, size in table])
        entries = [(EntryId(item[0]), body) for item, body in zip(table, bodies, strict=True)]
        answers.append(
            ReadAnswer(_status(status), _read(lac), _read(highest), bool(flags), entries)
        )
    return answers


def verify_read(answer: ReadAnswer, wanted: ReadRange) -> ReadAnswer:
    """The answer up to before the first entry that is not what it should be; none left: UNKNOWN.

    Whole entries are verified by their checksum, headers by what they name.
    """
    checked: list[tuple[EntryId, bytes]] = []
    for entry_id, view in answer.entries:
        body = bytes(view)
        try:
            info = read_entry_info(body) if wanted.headers_only else check_entry(body)
        except EntryError:
            break
        if (info.ledger_id, info.entry_id) != (wanted.ledger_id, entry_id):
            break
        checked.append((entry_id, body))
    if len(checked) == len(answer.entries):
        return answer._replace(entries=checked)
    status = answer.status if checked else BookieStatus.UNKNOWN
    return answer._replace(entries=checked, status=status)


def pack_seals(incarnation: Incarnation, seals: Sequence[Seal]) -> bytes:
    """Encode a seal request."""
    return pack_frame(b"DSLQ", _SEAL, seals, incarnation=incarnation)


def parse_seals(data: bytes) -> tuple[Incarnation, list[Seal]]:
    """Read a seal request.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, b"DSLQ", _SEAL)
    return frame.incarnation, [Seal(*row) for row in frame.rows]


def pack_lacs(incarnation: Incarnation, updates: Sequence[LacUpdate]) -> bytes:
    """Encode a LAC request."""
    rows = [(u.ledger_id, _encode(u.lac), u.is_write) for u in updates]
    return pack_frame(b"DLCQ", _LAC, rows, incarnation=incarnation)


def parse_lacs(data: bytes) -> tuple[Incarnation, list[LacUpdate]]:
    """Read a LAC request.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, b"DLCQ", _LAC)
    updates = [LacUpdate(row[0], _read(row[1]), bool(row[2] & 1)) for row in frame.rows]
    return frame.incarnation, updates


def pack_marks(magic: bytes, marks: Sequence[Marks]) -> bytes:
    """Encode the answer to a seal (`b"DSLR"`) or LAC (`b"DLCR"`) request."""
    rows = [(m.status, 0, 0, _encode(m.lac), _encode(m.highest)) for m in marks]
    return pack_frame(magic, _MARKS, rows)


def parse_marks(data: bytes, magic: bytes) -> list[Marks]:
    """Read the answer to a seal (`b"DSLR"`) or LAC (`b"DLCR"`) request.

    Raises:
        FrameError: no such frame.
    """
    frame: Frame = parse_frame(data, magic, _MARKS)
    return [Marks(_status(row[0]), _read(row[3]), _read(row[4])) for row in frame.rows]


def _encode(entry: EntryId) -> int:
    return entry & WIRE_NOTHING


def _read(number: int) -> EntryId:
    return NOTHING if number == WIRE_NOTHING else EntryId(number)


def _status(number: int) -> BookieStatus:
    try:
        return BookieStatus(number)
    except ValueError:
        raise FrameError(f"status {number} is not known") from None


def _service(number: int) -> ServiceClass:
    try:
        return ServiceClass(number)
    except ValueError:
        raise FrameError(f"class of service {number} is not known") from None
