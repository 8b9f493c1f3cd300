"""Entry: what one sequencer wrote as one unit; the unit of replication and of checksums.

An entry is encoded once; LAC, class, recovery flag, incarnation and wave travel beside it, outside
the identity, so that a resend or a write-back is the same entry. Source: docs/protocol/wire.md
"Entry", docs/protocol/write.md "Entries".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId
from duramen.limits import ENTRY_BYTES_MAX
from duramen.wire.record_batch import BATCH_ENCODED_MAX

# offset  size  field
# 0       4     magic "DEN1"
# 4       4     identity CRC32C of everything from offset 8 to the end
# 8       1     version (1)
# 9       1     flags: 1 control; 2 state: the segment carries producers or control records up to
#               and with this entry
# 10      2     number of record batches
# 12      4     entry id
# 16      8     ledger id
# 24      8     first position in the segment (records before this entry)
# 32      4     record count of this entry
# 36      4     bytes of the record batches
# 40      8     cumulative length: bytes of record batches up to and with this entry
# 48      8     running greatest txid (−2^63: none)
# 56      8     running greatest timestamp, unix ms (−2^63: none)
# 64      …     record batches

MAGIC: Final = b"DEN1"
VERSION: Final = 1
HEADER_BYTES: Final = 64
NONE: Final = -(1 << 63)
CONTROL: Final = 1
STATE: Final = 2

_HEAD: Final = struct.Struct("<4sIBBHIQQIIQqq")

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
    crc: int
    totals: Totals
    """Of the segment up to and with this entry."""

    has_state: bool


def encode_entry(
    *,
    ledger_id: LedgerId,
    entry_id: EntryId,
    before: Totals,
    batches: Sequence[bytes],
    record_count: int,
    after: Totals,
    flags: int = 0,
) -> bytes:
    """Encode an entry; `before` and `after` are the segment's totals around it."""
    payload_bytes = sum(map(len, batches))
    assert after.length_bytes == before.length_bytes + payload_bytes, (before, after)
    head = _HEAD.pack(
        MAGIC, 0, VERSION, flags, len(batches), entry_id, ledger_id, before.record_count,
        record_count, payload_bytes, after.length_bytes,
        NONE if after.max_txid is None else after.max_txid,
        NONE if after.max_timestamp_ms is None else after.max_timestamp_ms,
    )  # fmt: skip
    crc = google_crc32c.value(head[8:])
    for batch in batches:
        crc = google_crc32c.extend(crc, batch)
    return b"".join([MAGIC, crc.to_bytes(4, "little"), head[8:], *batches])


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
    if magic != MAGIC or version != VERSION:
        raise EntryError("this is no entry of a version that is spoken here")
    totals = Totals(
        first_position + record_count,
        length_bytes,
        None if txid == NONE else txid,
        None if timestamp_ms == NONE else timestamp_ms,
    )
    return EntryInfo(
        LedgerId(ledger_id), EntryId(entry_id), bool(flags & CONTROL), batch_count,
        record_count, first_position, payload_bytes, crc, totals, bool(flags & STATE),
    )  # fmt: skip


def check_entry(entry: bytes) -> EntryInfo:
    """Header and identity checksum of one whole entry (BK#1046).

    Raises:
        EntryError: too large, no entry, cut short, or damaged.
    """
    if len(entry) > ENTRY_BYTES_MAX:
        raise EntryError(f"an entry of {len(entry)} bytes: at most {ENTRY_BYTES_MAX}")
    info = read_entry_info(entry)
    if info.payload_bytes != len(entry) - HEADER_BYTES:
        raise EntryError("the entry's lengths do not add up")
    if info.crc != google_crc32c.value(entry[8:]):
        raise EntryError("the entry's identity checksum does not match")
    return info
