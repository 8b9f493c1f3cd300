"""Bytes of the bookie's journal: file header, records that verify alone, a recycled file's sidecar.

    offset  size  field                         offset  size  field
    0       4     magic "DJR1"                  40      8     offset of this record in its file
    4       1     version (1)                   48      4     LAC at send (0xFFFF_FFFF: nothing)
    5       1     kind                          52      2+2   wave; bytes of the envelope (STORE)
    6       1     flags: 1 recovery, 2 below    56      4     bytes of the commit before this
    7       1     class of service              60      4     bytes of the whole commit
    8       4     bytes of the body             64      4     previous record's CRC, then 4 zeros
    12      4     entry id                      72      4     CRC32C of incarnation, bytes 0–71
    16      8     ledger id                     76      4     the same, continued with the body
    24, 32  8     commit number, file id        80      …     body, zeros to a multiple of 8

Pure: no files, no decision about what damage means (`duramen_bookie.journal`). Called by the
bookie's journal. Source: docs/protocol/journal.md "Files" and "Start".
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from duramen.ids import NOTHING, WIRE_NOTHING, EntryId, Incarnation, LedgerId

VERSION: Final = 1
RECORD_MAGIC: Final = b"DJR1"
FILE_MAGIC: Final = b"DJF1"
GENERATION_MAGIC: Final = b"DJG1"
HEADER_BYTES: Final = 80
BLOCK_BYTES: Final = 4096
"""What a disk may tear as a whole: marks stand in blocks of their own."""

_HEAD: Final = struct.Struct("<4sBBBBIIQQQQIHHIII4x")
_CRCS: Final = struct.Struct("<II")
_FILE: Final = struct.Struct("<4sBBHQ16sQQQQI")
_CRC: Final = struct.Struct("<I")
_CUT: Final = struct.Struct("<QQII")
_RANGE: Final = struct.Struct("<QQ")
_GENERATION: Final = struct.Struct("<4sBxHQQ16sI")
_RECOVERY_RECORD: Final = 1
_BELOW_RECORD: Final = 2
_RECOVERY_FILE: Final = 1
_RECYCLED_FILE: Final = 2
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))
assert _HEAD.size + _CRCS.size == HEADER_BYTES


class JournalFormatError(ValueError):
    """Intact bytes that this version cannot read: start is refused, nothing is changed."""


class RecordKind(enum.IntEnum):
    """Kind of a record. COMMIT_MARK and END stand outside the chain of CRCs and in no commit.

    The body of a STORE is its entry, then its envelope; wherever a record has a place, or a `body`
    beside an `envelope`, that is the entry's alone.
    """

    ADD = 1
    SEAL = 2
    LAC = 3
    LEDGER_KNOWN = 4
    TOMBSTONE = 5
    COMMIT_MARK = 6
    CUT = 7
    END = 8
    STORE = 9
    """As ADD, with an envelope."""

    @property
    def is_mark(self) -> bool:
        """Whether it only says that every commit up to its number is durable."""
        return self in (RecordKind.COMMIT_MARK, RecordKind.END)

    @property
    def holds_entry(self) -> bool:
        """Whether its body is an entry, perhaps with its envelope."""
        return self in (RecordKind.ADD, RecordKind.STORE)


class JournalRecord(NamedTuple):
    """What is to be kept: an add with what travels beside its entry, or another change of state.

    For SEAL, LAC, LEDGER_KNOWN and TOMBSTONE the bookie chooses what fields and body mean.
    `is_all_below`: of a TOMBSTONE, that it is for every epoch of the log below the ledger's.
    """

    kind: RecordKind
    ledger_id: LedgerId
    entry_id: EntryId = NOTHING
    lac: EntryId = NOTHING
    body: bytes = b""
    service: int = 0
    wave: int = 0
    is_recovery: bool = False
    is_all_below: bool = False
    envelope: bytes = b""
    """Of a STORE alone (`wire.flexible.envelope`)."""

    @property
    def size_bytes(self) -> int:
        """What it takes of a file."""
        return record_bytes(len(self.body) + len(self.envelope))


class Location(NamedTuple):
    """Where the body of a record lies, without its envelope."""

    file_id: int
    offset: int
    length_bytes: int


class RecordHeader(NamedTuple):
    """A record's header that passed its CRC; the body may still be damaged."""

    kind: RecordKind
    flags: int
    service: int
    body_bytes: int
    entry_id: EntryId
    ledger_id: LedgerId
    commit: int
    file_id: int
    offset: int
    lac: EntryId
    wave: int
    commit_offset: int
    commit_bytes: int
    previous_crc: int
    header_crc: int
    crc: int
    envelope_bytes: int = 0

    @property
    def end(self) -> int:
        """Offset of what follows the record."""
        return self.offset + HEADER_BYTES + align(self.body_bytes, 8)

    @property
    def commit_start(self) -> int:
        """Offset of the first record of the same commit."""
        return self.offset - self.commit_offset

    @property
    def commit_end(self) -> int:
        """Offset of what follows the last record of the same commit."""
        return self.commit_start + self.commit_bytes

    @property
    def location(self) -> Location:
        """Where the body lies, without its envelope."""
        return Location(self.file_id, self.offset + HEADER_BYTES, self.entry_bytes)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the body without its envelope."""
        return self.body_bytes - self.envelope_bytes

    @property
    def is_recovery(self) -> bool:
        """Whether the add was a write-back of recovery (R16)."""
        return bool(self.flags & _RECOVERY_RECORD)

    @property
    def is_all_below(self) -> bool:
        """Whether the tombstone is for every epoch of the log below the ledger's."""
        return bool(self.flags & _BELOW_RECORD)

    def is_body_intact(self, body: bytes) -> bool:
        """Whether this is the body that the header was written with."""
        size = len(body)
        return size == self.body_bytes and google_crc32c.extend(self.header_crc, body) == self.crc

    def record(self, body: bytes) -> JournalRecord:
        """The record as it was given to the journal, of the whole body."""
        return JournalRecord(
            self.kind, self.ledger_id, self.entry_id, self.lac, body[: self.entry_bytes],
            self.service, self.wave, self.is_recovery, self.is_all_below, body[self.entry_bytes :],
        )  # fmt: skip


class FileHeader(NamedTuple):
    """First block of a journal file.

    `first_commit`: number of the first commit that may stand here. `previous_file_id`: the file
    that was written before (0: none), `previous_crc`: the CRC of the last record in it.
    `is_recovery`: opened at an unclean start, so that its existence proves nothing about the
    previous file's last commit; otherwise it proves all of that file durable. `is_recycled`: made
    of a retired file, whose old content stands wherever nothing was written since.
    """

    file_id: int
    incarnation: Incarnation
    created_unix_us: int
    first_commit: int
    previous_file_id: int
    previous_crc: int
    size_bytes: int
    is_recovery: bool
    is_recycled: bool = False


class Generation(NamedTuple):
    """Sidecar of a recycled file: what stood in its blocks before.

    `file_id`: the file beside which it stands. `old_file_id`: the one that its blocks were of.
    `block_crcs`: the CRC32C of every block of the old content.
    """

    file_id: int
    old_file_id: int
    incarnation: Incarnation
    block_crcs: array[int]

    def is_old(self, block_index: int, block: bytes) -> bool:
        """Whether a block still holds what it held before."""
        crcs = self.block_crcs
        return block_index < len(crcs) and google_crc32c.value(block) == crcs[block_index]


class Cut(NamedTuple):
    """Body of a CUT record: what of `file_id` stands at or beyond `offset` is void.

    `previous_crc`: CRC of the last record below. `ranges`: (start, end) of what was found damaged
    in that file when it was cut, on either side, and so stays damage for ever.
    """

    file_id: int
    offset: int
    previous_crc: int
    ranges: tuple[tuple[int, int], ...] = ()


class EncodedCommit(NamedTuple):
    """Buffers to write side by side, and what the journal has to remember."""

    buffers: list[bytes]
    locations: list[Location]
    last_crc: int
    size_bytes: int


def align(offset: int, step: int) -> int:
    """The least multiple of `step` (a power of two) that is not below `offset`."""
    return (offset + step - 1) & -step


def record_bytes(body_bytes: int) -> int:
    """Bytes that a record with such a body takes."""
    return HEADER_BYTES + (body_bytes + 7 & -8)  # `align`, without a call: asked most of all


def seed_of(incarnation: Incarnation) -> int:
    """What every CRC of a bookie's records begins with: foreign bytes never verify."""
    return int(google_crc32c.value(bytes.fromhex(incarnation)))


def encode_commit(
    records: Sequence[JournalRecord],
    *,
    file_id: int,
    offset: int,
    commit: int,
    previous_crc: int,
    seed: int,
) -> EncodedCommit:
    """Encode the records of one commit; bodies are passed on, not copied.

    Args:
        records: what the commit holds, at least one.
        file_id: the file that they will stand in.
        offset: where in it, a multiple of 8.
        commit: number of the commit.
        previous_crc: CRC of the record (or file header) before.
        seed: `seed_of` the bookie's incarnation.
    """
    assert records and offset % 8 == 0, (len(records), offset)
    commit_bytes = sum([record_bytes(len(r.body) + len(r.envelope)) for r in records])
    start = offset
    padding = b""
    buffers: list[bytes] = []
    locations: list[Location] = []
    for (
        kind, ledger_id, entry_id, lac, body, service, wave, is_recovery, is_below, envelope,
    ) in records:  # fmt: skip
        size = len(body) + len(envelope)
        flags = is_recovery | is_below << 1
        head = _HEAD.pack(
            RECORD_MAGIC, VERSION, kind, flags, service, size, entry_id & WIRE_NOTHING,
            ledger_id, commit, file_id, offset, lac & WIRE_NOTHING, wave, len(envelope),
            offset - start, commit_bytes, previous_crc,
        )  # fmt: skip
        header_crc = google_crc32c.extend(seed, head)
        previous_crc = google_crc32c.extend(header_crc, body)
        if envelope:
            assert kind is RecordKind.STORE, kind
            previous_crc = google_crc32c.extend(previous_crc, envelope)
        buffers.append(padding + head + _CRCS.pack(header_crc, previous_crc))
        buffers.append(body)
        if envelope:
            buffers.append(envelope)
        locations.append(Location(file_id, offset + HEADER_BYTES, len(body)))
        padding = _PADDING[size % 8]
        offset += HEADER_BYTES + size + len(padding)
    buffers.append(padding)
    return EncodedCommit(buffers, locations, previous_crc, commit_bytes)


def encode_mark(
    kind: RecordKind, *, file_id: int, offset: int, commit: int, previous_crc: int, seed: int
) -> bytes:
    """Encode a COMMIT_MARK or END: a whole block that says "every commit ≤ `commit` is durable"."""
    assert kind.is_mark and offset % BLOCK_BYTES == 0, (kind, offset)
    head = _HEAD.pack(
        RECORD_MAGIC, VERSION, kind, 0, 0, 0, WIRE_NOTHING,
        0, commit, file_id, offset, WIRE_NOTHING, 0, 0, 0, 0, previous_crc,
    )  # fmt: skip
    crc = google_crc32c.extend(seed, head)
    return (head + _CRCS.pack(crc, crc)).ljust(BLOCK_BYTES, b"\0")


def parse_header(
    data: bytes, index: int, *, file_id: int, offset: int, seed: int
) -> RecordHeader | None:
    """The header at `data[index:]`, or None if none that verifies for this place is there.

    Raises:
        JournalFormatError: an intact header of a kind or version that this code does not know.
    """
    if data[index : index + 4] != RECORD_MAGIC or len(data) < index + HEADER_BYTES:
        return None
    (
        _, version, kind, flags, service, body_bytes, entry_id, ledger_id, commit, found_file,
        found_offset, lac, wave, envelope_bytes, commit_offset, commit_bytes, previous_crc,
    ) = _HEAD.unpack_from(data, index)  # fmt: skip
    if found_file != file_id or found_offset != offset:
        return None
    header_crc, crc = _CRCS.unpack_from(data, index + _HEAD.size)
    if google_crc32c.extend(seed, data[index : index + _HEAD.size]) != header_crc:
        return None
    if version != VERSION or kind not in _KINDS:
        raise JournalFormatError(f"file {file_id} at {offset}: kind {kind}, version {version}")
    if kind != RecordKind.STORE:
        envelope_bytes = 0  # two bytes that nobody has read before
    elif envelope_bytes > body_bytes:
        raise JournalFormatError(f"file {file_id} at {offset}: an envelope of {envelope_bytes}")
    return RecordHeader(
        _KINDS[kind], flags, service, body_bytes, _entry(entry_id), LedgerId(ledger_id), commit,
        file_id, offset, _entry(lac), wave, commit_offset, commit_bytes, previous_crc,
        header_crc, crc, envelope_bytes,
    )  # fmt: skip


def encode_file_header(header: FileHeader) -> bytes:
    """Encode the first block of a file."""
    flags = header.is_recovery * _RECOVERY_FILE | header.is_recycled * _RECYCLED_FILE
    head = _FILE.pack(
        FILE_MAGIC, VERSION, flags, BLOCK_BYTES,
        header.file_id, bytes.fromhex(header.incarnation), header.created_unix_us,
        header.first_commit, header.previous_file_id, header.size_bytes, header.previous_crc,
    )  # fmt: skip
    return (head + _CRC.pack(google_crc32c.value(head))).ljust(BLOCK_BYTES, b"\0")


def file_header_crc(block: bytes) -> int:
    """The CRC in a file header: what the first record of the file names as previous."""
    return int(_CRC.unpack_from(block, _FILE.size)[0])


def parse_file_header(block: bytes) -> FileHeader | None:
    """Read the first block of a file; None if it is damaged or was never written.

    Raises:
        JournalFormatError: an intact header with a version, flag or block size not known here.
    """
    if len(block) < _FILE.size + _CRC.size:
        return None
    head = block[: _FILE.size]
    (
        magic, version, flags, block_bytes, file_id, incarnation, created_unix_us, first_commit,
        previous_file_id, size_bytes, previous_crc,
    ) = _FILE.unpack(head)  # fmt: skip
    if magic != FILE_MAGIC or google_crc32c.value(head) != file_header_crc(block):
        return None
    known = _RECOVERY_FILE | _RECYCLED_FILE
    if version != VERSION or flags & ~known or block_bytes != BLOCK_BYTES:
        raise JournalFormatError(f"file {file_id}: version {version}, flags {flags:#x}")
    return FileHeader(
        file_id, Incarnation(incarnation.hex()), created_unix_us, first_commit,
        previous_file_id, previous_crc, size_bytes, bool(flags & _RECOVERY_FILE),
        bool(flags & _RECYCLED_FILE),
    )  # fmt: skip


def block_crcs(data: bytes) -> list[int]:
    """CRC32C of each block of a file's bytes, which begin and end at blocks' borders."""
    assert len(data) % BLOCK_BYTES == 0, len(data)
    value = google_crc32c.value
    return [value(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]


def encode_generation(generation: Generation) -> bytes:
    """Encode the sidecar of a recycled file: 48 bytes, then 4 for each block."""
    crcs = generation.block_crcs
    head = _GENERATION.pack(
        GENERATION_MAGIC, VERSION, BLOCK_BYTES, generation.file_id, generation.old_file_id,
        bytes.fromhex(generation.incarnation), len(crcs),
    )  # fmt: skip
    rows = struct.pack(f"<{len(crcs)}I", *crcs)
    return head + _CRC.pack(google_crc32c.extend(google_crc32c.value(head), rows)) + rows


def parse_generation(data: bytes) -> Generation | None:
    """Read a sidecar; None if it is damaged or was not written to its end.

    Raises:
        JournalFormatError: an intact sidecar with a version or block size not known here.
    """
    start = _GENERATION.size + _CRC.size
    if len(data) < start:
        return None
    head, rows = data[: _GENERATION.size], data[start:]
    magic, version, block_bytes, file_id, old_file_id, incarnation, count = _GENERATION.unpack(head)
    crc = google_crc32c.extend(google_crc32c.value(head), rows)
    if magic != GENERATION_MAGIC or crc != _CRC.unpack_from(data, _GENERATION.size)[0]:
        return None
    if version != VERSION or block_bytes != BLOCK_BYTES or len(rows) != count * _CRC.size:
        raise JournalFormatError(f"sidecar of file {file_id}: version {version}, {count} blocks")
    crcs = array("I", struct.unpack(f"<{count}I", rows))
    return Generation(file_id, old_file_id, Incarnation(incarnation.hex()), crcs)


def encode_cut(cut: Cut) -> bytes:
    """Encode the body of a CUT record."""
    head = _CUT.pack(cut.file_id, cut.offset, cut.previous_crc, len(cut.ranges))
    return b"".join([head, *[_RANGE.pack(*pair) for pair in cut.ranges]])


def parse_cut(body: bytes) -> Cut:
    """Read the body of a CUT record whose CRC was checked.

    Raises:
        JournalFormatError: it has another form.
    """
    if len(body) < _CUT.size:
        raise JournalFormatError(f"a cut of {len(body)} bytes")
    file_id, offset, previous_crc, count = _CUT.unpack_from(body)
    if len(body) != _CUT.size + count * _RANGE.size:
        raise JournalFormatError(f"a cut of {len(body)} bytes with {count} ranges")
    ranges = tuple((start, end) for start, end in _RANGE.iter_unpack(body[_CUT.size :]))
    return Cut(file_id, offset, previous_crc, ranges)


_KINDS: Final = {int(kind): kind for kind in RecordKind}


def _entry(number: int) -> EntryId:
    return NOTHING if number == WIRE_NOTHING else EntryId(number)
