"""Envelope: who was to have an entry of a flexible segment, kept beside each copy of it.

A hint of who sends the entry to a reader, and never evidence: a lost or wrong one costs calls and
no record. A copy keeps the envelope that it was stored with (ADR 0028). Its CRC binds it to one
entry, so that it is never taken for another's. Source: docs/protocol/envelopes.md "The envelope".
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c

from duramen.ids import EntryId, LedgerId, NodeNumber

# offset  size  field
# 0       1     version (1)
# 1       1     members n, 1 … 255
# 2       4     sticky block: the id of its first entry; 0xFFFF_FFFF: none
# 6       2n    copyset: node numbers, each once, in the order in which they send
#               (up to here: the content)
# 6 + 2n  4     CRC32C of ledger id (8), entry id (4), identity (4) and all bytes before

VERSION: Final = 1
MEMBERS_MAX: Final = 255
_NO_BLOCK: Final = 0xFFFF_FFFF
_NO_NUMBER: Final = 0xFFFF
_HEAD: Final = struct.Struct("<BBI")
_BOUND_TO: Final = struct.Struct("<QII")
_CRC: Final = struct.Struct("<I")

ENVELOPE_BYTES_MIN: Final = _HEAD.size + 2 + _CRC.size
ENVELOPE_BYTES_MAX: Final = _HEAD.size + 2 * MEMBERS_MAX + _CRC.size


class EnvelopeError(ValueError):
    """The bytes are no envelope, a damaged one, or another entry's."""


class NewerEnvelope(EnvelopeError):
    """Intact, of a version that is not known here: no damage, but somebody newer wrote it."""


class Envelope(NamedTuple):
    """What one copy is kept with."""

    copyset: tuple[NodeNumber, ...]
    """Nodes that had the entry or were to have it, in the order in which they send it."""
    block: EntryId | None = None
    """The first entry of its sticky block."""


def encode_envelope(
    envelope: Envelope, ledger_id: LedgerId, entry: EntryId, identity: int
) -> bytes:
    """Encode the envelope of one entry; members beyond MEMBERS_MAX are not named."""
    content = encode_content(envelope)
    return content + _CRC.pack(_checksum(content, ledger_id, entry, identity))


def encode_content(envelope: Envelope) -> bytes:
    """Encode all but the checksum: what entries of a block have in common."""
    copyset = envelope.copyset[:MEMBERS_MAX]
    assert copyset and len(set(copyset)) == len(copyset), envelope
    block = _NO_BLOCK if envelope.block is None else envelope.block
    return _HEAD.pack(VERSION, len(copyset), block) + struct.pack(f"<{len(copyset)}H", *copyset)


def parse_envelope(data: bytes, ledger_id: LedgerId, entry: EntryId, identity: int) -> Envelope:
    """Read the envelope of one entry.

    Raises:
        NewerEnvelope: intact, but of a version that is not known here.
        EnvelopeError: the bytes are none, or of another entry.
    """
    if len(data) <= _CRC.size:
        raise EnvelopeError(f"an envelope of {len(data)} bytes")
    content, crc = data[: -_CRC.size], data[-_CRC.size :]
    if _CRC.unpack(crc)[0] != _checksum(content, ledger_id, entry, identity):
        raise EnvelopeError(f"the envelope's checksum is not that of entry {entry}")
    return parse_content(content)


def parse_content(content: bytes) -> Envelope:
    """Read all but the checksum, which was verified or stands elsewhere.

    Raises:
        NewerEnvelope: of a version that is not known here.
        EnvelopeError: the bytes are none.
    """
    if content and content[0] != VERSION:
        raise NewerEnvelope(f"the envelope's version {content[0]} is not known")
    if len(content) < _HEAD.size:
        raise EnvelopeError(f"an envelope's content of {len(content)} bytes")
    _, count, block = _HEAD.unpack_from(content)
    if not count or len(content) != _HEAD.size + 2 * count:
        raise EnvelopeError(f"an envelope's content of {len(content)} bytes for {count} members")
    copyset = struct.unpack_from(f"<{count}H", content, _HEAD.size)
    if len(set(copyset)) != count or _NO_NUMBER in copyset:
        raise EnvelopeError(f"the envelope names {list(copyset)}")
    members = tuple(NodeNumber(number) for number in copyset)
    return Envelope(members, None if block == _NO_BLOCK else EntryId(block))


def cut_content(data: bytes, ledger_id: LedgerId, entry: EntryId, identity: int) -> bytes:
    """The content of the envelope that `data` begins with, which says itself where it ends.

    Raises:
        EnvelopeError: none of that entry, of this version, is there.
    """
    if len(data) < _HEAD.size:
        raise EnvelopeError("no envelope is there")
    envelope = data[: content_bytes(data, 0) + _CRC.size]
    parse_envelope(envelope, ledger_id, entry, identity)
    return content_of(envelope)


def content_bytes(data: bytes | bytearray, start: int) -> int:
    """Bytes of the content that begins at `data[start:]`, by its own count of members."""
    return _HEAD.size + 2 * data[start + 1]


def content_of(envelope: bytes) -> bytes:
    """All of an envelope but its checksum."""
    return envelope[: -_CRC.size]


def _checksum(content: bytes, ledger_id: LedgerId, entry: EntryId, identity: int) -> int:
    head = google_crc32c.value(_BOUND_TO.pack(ledger_id, entry, identity))
    return int(google_crc32c.extend(head, content))
