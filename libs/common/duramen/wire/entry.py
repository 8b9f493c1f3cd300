"""Entry: what one sequencer wrote as one unit; the unit of replication and of checksums.

An entry is encoded once; LAC, class, recovery flag, incarnation and wave travel beside it, outside
the identity, so that a resend or a write-back is the same entry. The record batches of version 2
are compressed together: the identity covers them as they are stored, all numbers speak of what
they were before, and `open_payload` is the one place that decompresses them. Source:
docs/protocol/wire.md "Entry", docs/protocol/write.md "Entries", ADR 0029.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId
from duramen.limits import ENTRY_BYTES_MAX
from duramen.wire.edge.batch_codec import Codec, compress, decompress
from duramen.wire.record_batch import BATCH_ENCODED_MAX, came_compressed

# offset  size  field
# 0       4     magic "DEN1"
# 4       4     identity CRC32C of everything from offset 8 to the end
# 8       1     version (1; 2: what follows the header is one zstd frame of the record batches)
# 9       1     flags: 1 control; 2 state: the segment carries producers or control records up to
#               and with this entry
# 10      2     number of record batches
# 12      4     entry id
# 16      8     ledger id
# 24      8     first position in the segment (records before this entry)
# 32      4     record count of this entry
# 36      4     bytes of the record batches, before they were compressed
# 40      8     cumulative length: bytes of record batches up to and with this entry, as at 36
# 48      8     running greatest txid (−2^63: none)
# 56      8     running greatest timestamp, unix ms (−2^63: none)
# 64      …     record batches

MAGIC: Final = b"DEN1"
VERSION: Final = 1
VERSION_COMPRESSED: Final = 2
HEADER_BYTES: Final = 64
PAYLOAD_BYTES_MAX: Final = ENTRY_BYTES_MAX - HEADER_BYTES
COMPRESSIBLE_BYTES_MIN: Final = 512
"""Of batches that came uncompressed: below it a frame costs more time than it saves bytes."""

NONE: Final = -(1 << 63)
CONTROL: Final = 1
STATE: Final = 2

_HEAD: Final = struct.Struct("<4sIBBHIQQIIQqq")
_SAVING: Final = 8
"""A frame that saves less than this part of the batches is not worth what its readers pay."""

assert HEADER_BYTES + BATCH_ENCODED_MAX <= ENTRY_BYTES_MAX, "every legal batch must fit an entry"


class EntryError(ValueError):
    """The bytes are no entry, or a damaged one."""


class EntryInfo(NamedTuple):
    """What the fixed header says."""

    ledger_id: LedgerId
    entry_id: EntryId
    is_control: bool
    batch_count: int
    record_count: int
    first_position: int
    payload_bytes: int
    """Of the record batches, before they were compressed."""

    crc: int
    totals: Totals
    """Of the segment up to and with this entry."""

    has_state: bool
    is_compressed: bool


def encode_entry(
    *,
    ledger_id: LedgerId,
    entry_id: EntryId,
    before: Totals,
    batches: Sequence[bytes],
    record_count: int,
    after: Totals,
    flags: int = 0,
    is_compressing: bool = False,
) -> bytes:
    """Encode an entry.

    Args:
        before, after: the segment's totals around it.
        is_compressing: the batches are compressed together where that is worth it.
    """
    payload_bytes = sum(map(len, batches))
    assert after.length_bytes == before.length_bytes + payload_bytes, (before, after)
    stored = _compress(batches, payload_bytes) if is_compressing else None
    assert stored is None or not flags & CONTROL, "control entries are never compressed"
    head = _HEAD.pack(
        MAGIC, 0, VERSION if stored is None else VERSION_COMPRESSED, flags, len(batches),
        entry_id, ledger_id, before.record_count, record_count, payload_bytes,
        after.length_bytes,
        NONE if after.max_txid is None else after.max_txid,
        NONE if after.max_timestamp_ms is None else after.max_timestamp_ms,
    )  # fmt: skip
    parts = batches if stored is None else [stored]
    crc = google_crc32c.value(head[8:])
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return b"".join([MAGIC, crc.to_bytes(4, "little"), head[8:], *parts])


def _compress(batches: Sequence[bytes], payload_bytes: int) -> bytes | None:
    """The batches as one frame; None: too few of them came uncompressed, or it saves too little."""
    plain_bytes = sum(len(batch) for batch in batches if not came_compressed(batch))
    if plain_bytes < COMPRESSIBLE_BYTES_MIN:
        return None
    codec, frame = compress(b"".join(batches), Codec.ZSTD)
    is_worth_it = len(frame) <= payload_bytes - payload_bytes // _SAVING
    return frame if codec is Codec.ZSTD and is_worth_it else None


def open_payload(entry: bytes | memoryview) -> memoryview:
    """The record batches of an entry that was checked, one after the other; never kept.

    No more is decompressed than the header says, which is bounded.

    Raises:
        EntryError: no entry of a known version, or they are not what its header says.
    """
    info = read_entry_info(entry)
    stored = memoryview(entry)[HEADER_BYTES:]
    if not info.is_compressed:
        return stored
    payload = decompress(stored, info.payload_bytes)
    if payload is None:
        raise EntryError(f"entry {info.entry_id} cannot be decompressed to what its header says")
    return memoryview(payload)


def read_entry_info(entry: bytes | memoryview) -> EntryInfo:
    """What the header says; the checksum is not verified (see `check_entry`).

    Raises:
        EntryError: no entry of a known version.
    """
    if len(entry) < HEADER_BYTES:
        raise EntryError("an entry has at least 64 bytes")
    (
        magic, crc, version, flags, batch_count, entry_id, ledger_id, first_position,
        record_count, payload_bytes, length_bytes, txid, timestamp_ms,
    ) = _HEAD.unpack_from(entry)  # fmt: skip
    if magic != MAGIC or version not in (VERSION, VERSION_COMPRESSED):
        raise EntryError("this is no entry of a version that is spoken here")
    is_compressed = version == VERSION_COMPRESSED
    if is_compressed and (payload_bytes > PAYLOAD_BYTES_MAX or flags & CONTROL):
        raise EntryError("a compressed entry is beyond the limits, or is one of control")
    totals = Totals(
        first_position + record_count,
        length_bytes,
        None if txid == NONE else txid,
        None if timestamp_ms == NONE else timestamp_ms,
    )
    return EntryInfo(
        LedgerId(ledger_id), EntryId(entry_id), bool(flags & CONTROL), batch_count,
        record_count, first_position, payload_bytes, crc, totals, bool(flags & STATE),
        is_compressed,
    )  # fmt: skip


def check_entry(entry: bytes) -> EntryInfo:
    """Header and identity checksum of one whole entry (BK#1046).

    Raises:
        EntryError: too large, no entry, cut short, or damaged.
    """
    if len(entry) > ENTRY_BYTES_MAX:
        raise EntryError(f"an entry of {len(entry)} bytes: at most {ENTRY_BYTES_MAX}")
    info = read_entry_info(entry)
    stored_bytes = len(entry) - HEADER_BYTES
    fits = stored_bytes == info.payload_bytes
    if info.is_compressed:
        fits = stored_bytes < info.payload_bytes
    if not fits:
        raise EntryError("the entry's lengths do not add up")
    if info.crc != google_crc32c.value(entry[8:]):
        raise EntryError("the entry's identity checksum does not match")
    return info
