"""Requests and answers of the bookie's data plane: add, read, seal, LAC.

Each call is one frame (`wire.frame`) with one row per item, and its answer is one frame with one
row per item in the same order. A request names the incarnation that it is meant for (R1).
LACs are entry ids of the ledger; 0xFFFF_FFFF means `NOTHING`. An add whose rows have envelopes is
version 2 of its frame; without one it stays version 1, byte for byte. Reads of version 2 stand in
`wire.flexible`.

Source: docs/protocol/wire.md, docs/protocol/envelopes.md, R1, R10, R13, R14.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, WIRE_NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId
from duramen.limits import ENTRY_BYTES_MAX, LONG_POLL_MAX_US, READ_ROW_COUNT_MAX
from duramen.units import MS
from duramen.wire.entry import EntryError, check_entry, read_entry_info
from duramen.wire.flexible.envelope import ENVELOPE_BYTES_MAX
from duramen.wire.frame import (
    Frame,
    FrameError,
    frame_version,
    pack_frame,
    parse_frame,
    split_payload,
)

# add    row  ledger u64, entry u32, LAC u32, class u8, flags u8, wave u16, bytes u32, 0 u32;
#             payload: the entries
#             version 2: bytes of the envelope u16 in place of the wave;
#             payload: for each row its entry, then its envelope
#        row  status u8
# read   row  ledger u64, first u32, last u32, most bytes u32, seal epoch u32, wait ms u32,
#             wait for u32, class u8, flags u8, 0 u16
#        row  status u8, flags u8, 0 u16, LAC u32, highest entry u32, entries u32, bytes u32
#             payload: per row, entries × (entry u32, bytes u32), then the entries
# seal   row  log u32, epoch u32, ledger u64
#        row  status u8, 0 u8, 0 u16, LAC u32, highest entry u32
# LAC    row  ledger u64, LAC u32, flags u32 (1: write)
#        row  as of seal

ADD_VERSION_ENVELOPES: Final = 2

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
    envelope: bytes | memoryview = b""
    """Of an entry of a flexible segment (`wire.flexible.envelope`); such a row has no wave."""


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
    """Encode an add request: version 2 if an entry has an envelope."""
    version = ADD_VERSION_ENVELOPES if any(a.envelope for a in adds) else 1
    assert version == 1 or not any(a.wave for a in adds), "envelope and wave have one place"
    rows = [
        (
            a.ledger_id, a.entry_id, encode_entry_id(a.lac), a.service, a.is_recovery,
            a.wave if version == 1 else len(a.envelope), len(a.entry), 0,
        )
        for a in adds
    ]  # fmt: skip
    payload = [a.entry for a in adds]
    if version == ADD_VERSION_ENVELOPES:
        payload = [part for a in adds for part in (a.entry, a.envelope)]
    return pack_frame(b"DADD", _ADD, rows, payload, incarnation=incarnation, version=version)


def parse_adds(data: bytes) -> tuple[Incarnation, list[Add]]:
    """Read an add request of version 1; the entries are views of `data`, their checksums not yet
    verified.

    Raises:
        FrameError: no such frame, an entry over the limit, or a LAC not below its entry.
    """
    frame = parse_frame(data, b"DADD", _ADD)
    bodies = split_payload(frame.payload, [row[6] for row in frame.rows])
    adds = [_read_add(row, body) for row, body in zip(frame.rows, bodies, strict=True)]
    return frame.incarnation, adds


def parse_any_adds(data: bytes) -> tuple[Incarnation, list[Add]]:
    """Read an add request of either version, for who keeps envelopes: whoever does not has to
    refuse the whole frame. Envelopes are views of `data` too, not yet verified.

    Raises:
        FrameError: as of `parse_adds`, or an envelope over the limit.
    """
    if frame_version(data) != ADD_VERSION_ENVELOPES:
        return parse_adds(data)
    frame = parse_frame(data, b"DADD", _ADD, version=ADD_VERSION_ENVELOPES)
    sizes = [(row[6], row[5]) for row in frame.rows]
    parts = split_payload(frame.payload, [size for pair in sizes for size in pair])
    adds = [
        _put_beside(_read_add(row, entry), envelope)
        for row, entry, envelope in zip(frame.rows, parts[::2], parts[1::2], strict=True)
    ]
    return frame.incarnation, adds


def _read_add(row: tuple[Any, ...], body: memoryview) -> Add:
    ledger_id, entry_id, number, service, flags, wave, size, _ = row
    lac = read_entry_id(number)
    if size > ENTRY_BYTES_MAX or entry_id == WIRE_NOTHING or lac >= entry_id:
        raise FrameError(f"add of entry {entry_id}: {size} bytes with LAC {lac}")
    return Add(ledger_id, entry_id, lac, body, bool(flags & 1), read_service(service), wave)


def _put_beside(add: Add, envelope: memoryview) -> Add:
    """The entry of a row of version 2 with its envelope."""
    if len(envelope) > ENVELOPE_BYTES_MAX:
        raise FrameError(f"add of entry {add.entry_id}: an envelope of {len(envelope)} bytes")
    return add._replace(wave=0, envelope=envelope)


def pack_statuses(statuses: Iterable[BookieStatus]) -> bytes:
    """Encode an add answer."""
    return pack_frame(b"DADR", _STATUS, [(status,) for status in statuses])


def parse_statuses(data: bytes) -> list[BookieStatus]:
    """Read an add answer.

    Raises:
        FrameError: no such frame.
    """
    return [read_status(row[0]) for row in parse_frame(data, b"DADR", _STATUS).rows]


def pack_reads(incarnation: Incarnation, ranges: Sequence[ReadRange]) -> bytes:
    """Encode a read request."""
    rows = [(*list_range_fields(r), r.headers_only, 0) for r in ranges]
    return pack_frame(b"DRDQ", _READ, rows, incarnation=incarnation)


def list_range_fields(wanted: ReadRange) -> tuple[int, ...]:
    """What a row of either version begins with."""
    return (
        wanted.ledger_id, wanted.first, encode_entry_id(wanted.last), wanted.bytes_max,
        wanted.seal_epoch, wanted.wait_ms, encode_entry_id(wanted.wait_for), wanted.service,
    )  # fmt: skip


def parse_reads(data: bytes) -> tuple[Incarnation, list[ReadRange]]:
    """Read a read request; only a request of a single range may wait.

    Raises:
        FrameError: no such frame, too many ranges, or a wait that is too long or in company.
    """
    frame = parse_frame(data, b"DRDQ", _READ)
    ranges = [read_range(row[:8], headers_only=bool(row[8])) for row in frame.rows]
    check_ranges(ranges)
    return frame.incarnation, ranges


def read_range(row: Sequence[Any], *, headers_only: bool) -> ReadRange:
    """The range of a row of either version, from what both begin with.

    Raises:
        FrameError: the class of service is not known.
    """
    ledger_id, first, last, bytes_max, seal_epoch, wait_ms, wait_for, service = row
    return ReadRange(
        ledger_id, first, read_entry_id(last), bytes_max, seal_epoch, wait_ms,
        read_entry_id(wait_for), read_service(service), headers_only,
    )  # fmt: skip


def check_ranges(ranges: Sequence[ReadRange]) -> None:
    """Refuse what no request of either version has.

    Raises:
        FrameError: too many ranges, or a wait that is too long or in company.
    """
    if len(ranges) > READ_ROW_COUNT_MAX:
        raise FrameError(f"a read has {READ_ROW_COUNT_MAX} ranges at most")
    if any(r.wait_ms for r in ranges) and len(ranges) > 1:
        raise FrameError("only a request of a single range may wait")
    if any(r.wait_ms * MS > LONG_POLL_MAX_US for r in ranges):
        raise FrameError("a long poll waits 60 s at most")


def pack_read_answers(answers: Sequence[ReadAnswer]) -> bytes:
    """Encode a read answer."""
    rows = []
    payload: list[bytes | memoryview] = []
    for answer in answers:
        table = b"".join([_ITEM.pack(entry_id, len(body)) for entry_id, body in answer.entries])
        size = len(table) + sum(len(body) for _, body in answer.entries)
        rows.append(
            (
                answer.status, answer.is_sealed, 0, encode_entry_id(answer.lac),
                encode_entry_id(answer.highest), len(answer.entries), size,
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
            ReadAnswer(
                read_status(status),
                read_entry_id(lac),
                read_entry_id(highest),
                bool(flags),
                entries,
            )
        )
    return answers


def verify_read(answer: ReadAnswer, wanted: ReadRange) -> ReadAnswer:
    """The answer up to before the first entry that is not what it should be; none left: UNKNOWN.

    Whole entries are verified by their checksum, headers by what they name.
    """
    checked: list[tuple[EntryId, bytes]] = []
    for entry_id, view in answer.entries:
        body = bytes(view)
        if not is_body_of(body, wanted, entry_id):
            break
        checked.append((entry_id, body))
    if len(checked) == len(answer.entries):
        return answer._replace(entries=checked)
    status = answer.status if checked else BookieStatus.UNKNOWN
    return answer._replace(entries=checked, status=status)


def is_body_of(body: bytes, wanted: ReadRange, entry_id: EntryId) -> bool:
    """Whether a body is this entry, whole and unharmed, or its header where only that was asked."""
    try:
        info = read_entry_info(body) if wanted.headers_only else check_entry(body)
    except EntryError:
        return False
    return (info.ledger_id, info.entry_id) == (wanted.ledger_id, entry_id)


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
    rows = [(u.ledger_id, encode_entry_id(u.lac), u.is_write) for u in updates]
    return pack_frame(b"DLCQ", _LAC, rows, incarnation=incarnation)


def parse_lacs(data: bytes) -> tuple[Incarnation, list[LacUpdate]]:
    """Read a LAC request.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, b"DLCQ", _LAC)
    updates = [LacUpdate(row[0], read_entry_id(row[1]), bool(row[2] & 1)) for row in frame.rows]
    return frame.incarnation, updates


def pack_marks(magic: bytes, marks: Sequence[Marks]) -> bytes:
    """Encode the answer to a seal (`b"DSLR"`) or LAC (`b"DLCR"`) request."""
    rows = [(m.status, 0, 0, encode_entry_id(m.lac), encode_entry_id(m.highest)) for m in marks]
    return pack_frame(magic, _MARKS, rows)


def parse_marks(data: bytes, magic: bytes) -> list[Marks]:
    """Read the answer to a seal (`b"DSLR"`) or LAC (`b"DLCR"`) request.

    Raises:
        FrameError: no such frame.
    """
    frame: Frame = parse_frame(data, magic, _MARKS)
    return [
        Marks(read_status(row[0]), read_entry_id(row[3]), read_entry_id(row[4]))
        for row in frame.rows
    ]


def encode_entry_id(entry: EntryId) -> int:
    """An entry id or LAC as a row has it."""
    return entry & WIRE_NOTHING


def read_entry_id(number: int) -> EntryId:
    """An entry id or LAC of a row."""
    return NOTHING if number == WIRE_NOTHING else EntryId(number)


def read_status(number: int) -> BookieStatus:
    """The status of a row.

    Raises:
        FrameError: the number is not known.
    """
    try:
        return BookieStatus(number)
    except ValueError:
        raise FrameError(f"status {number} is not known") from None


def read_service(number: int) -> ServiceClass:
    """The class of service of a row.

    Raises:
        FrameError: the number is not known.
    """
    try:
        return ServiceClass(number)
    except ValueError:
        raise FrameError(f"class of service {number} is not known") from None
