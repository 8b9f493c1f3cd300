"""Bytes of the entry log: settled entries sorted by (ledger, entry), and the index of each such
file.

A data file is a header block, the journal's records (`journal_format`, with another seed), and an
END block. Its index is, in blocks of 4096 bytes, a header, rows of 32 bytes, and a directory:

    block   header: counts, and one CRC over the CRCs of all other blocks
    row     ledger 8, entry 4, bytes of the entry 4, offset of the entry 8, identity 4, and
            in version 2 the row beside whose entry the content of its envelope stands 4
    ledger  ledger 8, first row 4, rows 4, bytes of its records 8, first entry 4, last entry 4
    both    127 a block, then: number of the block 8, rows 4, zeros 16, CRC32C 4

An index follows from its data file alone, byte for byte: nothing else is in it, no time either.
Pure: no files. Called by the bookie's entry log. Source: docs/protocol/entry-log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import google_crc32c

from duramen.ids import EntryId, Incarnation, LedgerId
from duramen.wire.disk.journal_format import BLOCK_BYTES, record_bytes, seed_of

VERSION: Final = 1
VERSION_ENVELOPES: Final = 2
"""Of files in which there may be envelopes: data file and index alike."""

NO_ENVELOPE: Final = 0xFFFF_FFFF
"""Stands in version 2 for the row of an entry without an envelope."""

DATA_MAGIC: Final = b"DES1"
INDEX_MAGIC: Final = b"DEI1"
ROW_BYTES: Final = 32
ROWS_PER_BLOCK: Final = BLOCK_BYTES // ROW_BYTES - 1
"""127: the last 32 bytes of a block are its trailer."""

ROW_COUNT_MAX: Final = (1 << 32) - 1

_HEAD: Final = struct.Struct("<4sBBHQ16s")
_COUNTS: Final = struct.Struct("<QIII")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_TRAILER: Final = struct.Struct("<QI16xI")
_ROW: Final = struct.Struct("<QIIQII")
_ENTRY_AT: Final = 8
_LEDGER: Final = struct.Struct("<QIIQII")
_BODY_BYTES: Final = BLOCK_BYTES - _U32.size
_ROWS_BYTES: Final = ROWS_PER_BLOCK * ROW_BYTES
assert _ROW.size == _LEDGER.size == _TRAILER.size == ROW_BYTES

# What the index knows of an entry, where `wire.entry` has it: magic, identity, entry, ledger.
_ENTRY_HEAD: Final = struct.Struct("<4sI4xIQ")
_ENTRY_MAGIC: Final = b"DEN1"
_SUMMED_FROM: Final = 8


class EntryLogFormatError(ValueError):
    """Intact bytes that this version cannot read: start is refused, nothing is changed."""


class IndexRow(NamedTuple):
    """One entry: where it lies in the data file, its identity checksum, and its envelope.

    `content_row`: the number of the row beside whose entry the content stands, or NO_ENVELOPE; in
    version 1 it is 0 and says nothing.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    length_bytes: int
    offset: int
    crc: int
    content_row: int = 0

    @property
    def next_offset(self) -> int:
        """Offset of the next row's entry, if the data file goes on and no envelope is between."""
        return self.offset + record_bytes(self.length_bytes)


# What `IndexRow._make` does, without its detour through Python: rows are unpacked by the thousand.
_make_row: Final = partial(tuple.__new__, IndexRow)


class IndexLedgerRow(NamedTuple):
    """One ledger of a file: its rows, and the bytes of its records with headers and padding."""

    ledger_id: LedgerId
    first_row: int
    row_count: int
    record_bytes: int
    first_entry: EntryId
    last_entry: EntryId


class DataHeader(NamedTuple):
    """First block of a data file."""

    file_id: int
    incarnation: Incarnation
    version: int = VERSION


class IndexHeader(NamedTuple):
    """First block of an index.

    `data_bytes`: length of the data file. `blocks_crc`: CRC over the CRCs of all later blocks, in
    their order, so that this block vouches for the others.
    """

    file_id: int
    incarnation: Incarnation
    data_bytes: int
    row_count: int
    ledger_count: int
    blocks_crc: int
    version: int = VERSION

    @property
    def row_block_count(self) -> int:
        """Blocks of rows, which begin with block 1; the directory follows them."""
        return count_blocks(self.row_count)

    @property
    def index_bytes(self) -> int:
        """Length of the whole index file."""
        return (1 + self.row_block_count + count_blocks(self.ledger_count)) * BLOCK_BYTES


def data_seed(incarnation: Incarnation) -> int:
    """What the CRCs of a data file's records begin with: a journal's record never verifies here."""
    return int(google_crc32c.extend(seed_of(incarnation), b"shelf"))


def index_seed(incarnation: Incarnation, file_id: int) -> int:
    """What the CRCs of an index file's blocks begin with."""
    return int(
        google_crc32c.extend(data_seed(incarnation), b"index" + file_id.to_bytes(8, "little"))
    )


def count_blocks(row_count: int) -> int:
    """Blocks that so many rows fill."""
    return -(-row_count // ROWS_PER_BLOCK)


def row_position(block_number: int, row: int) -> int:
    """Offset in the index file of row `row` of the table that begins with a block."""
    return (block_number + row // ROWS_PER_BLOCK) * BLOCK_BYTES + row % ROWS_PER_BLOCK * ROW_BYTES


# --- Data file -----------------------------------------------------------------------------------


def encode_data_header(header: DataHeader) -> bytes:
    """Encode the first block of a data file."""
    return _close_header(_encode_head(DATA_MAGIC, header))


def parse_data_header(block: bytes) -> DataHeader | None:
    """Read the first block of a data file; None if it is damaged.

    Raises:
        EntryLogFormatError: intact, but of a version or block size not known here.
    """
    return _parse_head(block, DATA_MAGIC)


def identify_entry(body: bytes, ledger_id: LedgerId, entry_id: EntryId) -> int | None:
    """The identity checksum of a whole entry; None if the body is not that entry, intact."""
    if len(body) < _ENTRY_HEAD.size:
        return None
    magic, crc, found_entry, found_ledger = _ENTRY_HEAD.unpack_from(body)
    if (magic, found_entry, found_ledger) != (_ENTRY_MAGIC, entry_id, ledger_id):
        return None
    return int(crc) if google_crc32c.value(body[_SUMMED_FROM:]) == crc else None


def cut_entries(data: bytes, rows: Sequence[IndexRow]) -> list[tuple[EntryId, memoryview]]:
    """The entries that rows name, as views of `data`, up to the first that is not intact.

    The rows are trusted (their blocks were verified), so this is as much as the records' own CRCs
    would tell: an entry's first 8 bytes are compared, and the rest is under its identity.

    Args:
        data: of the data file, from the body of the first row on; may end early.
        rows: at least one.
    """
    view = memoryview(data)
    base = rows[0].offset
    unpack, value = _ENTRY_HEAD.unpack_from, google_crc32c.value
    end_max = len(data)
    entries = []
    for ledger_id, entry_id, length, offset, crc, _ in rows:
        start = offset - base
        end = start + length
        if not 0 <= start <= end - _ENTRY_HEAD.size <= end <= end_max:
            break
        if unpack(data, start) != (_ENTRY_MAGIC, crc, entry_id, ledger_id):
            break
        if value(data[start + _SUMMED_FROM : end]) != crc:
            break
        entries.append((entry_id, view[start:end]))
    return entries


# --- Index file ----------------------------------------------------------------------------------


def encode_row(row: IndexRow) -> bytes:
    """Encode a row."""
    return _ROW.pack(*row)


def encode_ledger_row(row: IndexLedgerRow) -> bytes:
    """Encode a row of the directory."""
    return _LEDGER.pack(*row)


def encode_block(rows: bytes, number: int, seed: int) -> bytes:
    """Encode a block of up to 127 rows, of either table; its last 4 bytes are its CRC."""
    count = len(rows) // ROW_BYTES
    assert 0 < count <= ROWS_PER_BLOCK and number > 0, (count, number)
    block = rows.ljust(_ROWS_BYTES, b"\0") + _TRAILER.pack(number, count, 0)[: -_U32.size]
    return block + _U32.pack(google_crc32c.extend(seed, block))


def is_block_intact(block: bytes, number: int, row_count: int, seed: int) -> bool:
    """Whether a block is the one with that number, with so many rows, of the file of the seed."""
    if len(block) != BLOCK_BYTES:
        return False
    found, count, crc = _TRAILER.unpack_from(block, _ROWS_BYTES)
    if found != number or count != row_count:
        return False
    return bool(google_crc32c.extend(seed, block[:_BODY_BYTES]) == crc)


def block_crc(block: bytes) -> bytes:
    """What `IndexHeader.blocks_crc` is made from: the block's stored CRC."""
    return block[_BODY_BYTES:]


def unpack_rows(view: memoryview, position: int, count: int) -> list[IndexRow]:
    """`count` rows of one verified block, from a position on."""
    part = view[position : position + count * ROW_BYTES]
    return list(map(_make_row, _ROW.iter_unpack(part)))


def unpack_ledger_rows(view: memoryview, position: int, count: int) -> list[IndexLedgerRow]:
    """`count` rows of one verified block of the directory, from a position on."""
    part = view[position : position + count * ROW_BYTES]
    return [IndexLedgerRow._make(values) for values in _LEDGER.iter_unpack(part)]


def unpack_ledger_id(view: memoryview, position: int, row: int) -> int:
    """The ledger of row `row`, counted from a position in the same block, of either table."""
    return int(_U64.unpack_from(view, position + row * ROW_BYTES)[0])


def unpack_entry_id(view: memoryview, position: int) -> int:
    """The entry of a row."""
    return int(_U32.unpack_from(view, position + _ENTRY_AT)[0])


def encode_index_header(header: IndexHeader) -> bytes:
    """Encode the first block of an index."""
    file_id, incarnation, *counts, version = header
    head = _encode_head(INDEX_MAGIC, DataHeader(file_id, incarnation, version))
    return _close_header(head + _COUNTS.pack(*counts))


def parse_index_header(block: bytes) -> IndexHeader | None:
    """Read the first block of an index; None if it is damaged.

    Raises:
        EntryLogFormatError: intact, but of a version or block size not known here.
    """
    head = _parse_head(block, INDEX_MAGIC)
    if head is None:
        return None
    data_bytes, row_count, ledger_count, blocks_crc = _COUNTS.unpack_from(block, _HEAD.size)
    return IndexHeader(
        head.file_id, head.incarnation, data_bytes, row_count, ledger_count, blocks_crc,
        head.version,
    )  # fmt: skip


def header_crc(block: bytes) -> int:
    """The CRC of a header block; an index's vouches for all of the index."""
    return int(_U32.unpack_from(block, _BODY_BYTES)[0])


def _encode_head(magic: bytes, header: DataHeader) -> bytes:
    file_id, incarnation, version = header
    return _HEAD.pack(magic, version, 0, BLOCK_BYTES, file_id, bytes.fromhex(incarnation))


def _close_header(head: bytes) -> bytes:
    block = head.ljust(_BODY_BYTES, b"\0")
    return block + _U32.pack(google_crc32c.value(block))


def _parse_head(block: bytes, wanted: bytes) -> DataHeader | None:
    if len(block) != BLOCK_BYTES:
        return None
    magic, version, flags, block_bytes, file_id, incarnation = _HEAD.unpack_from(block)
    if magic != wanted or google_crc32c.value(block[:_BODY_BYTES]) != header_crc(block):
        return None
    is_known = VERSION <= version <= VERSION_ENVELOPES
    if not is_known or flags or block_bytes != BLOCK_BYTES:
        raise EntryLogFormatError(f"{wanted!r} {file_id}: version {version}, flags {flags:#x}")
    return DataHeader(file_id, Incarnation(incarnation.hex()), version)
