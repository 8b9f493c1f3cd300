"""Envelopes: their bytes, and that nothing else is taken for one.

Source: docs/protocol/envelopes.md "The envelope".
"""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.ids import EntryId, LedgerId, NodeNumber
from duramen.wire.flexible.envelope import (
    ENVELOPE_BYTES_MAX,
    ENVELOPE_BYTES_MIN,
    MEMBERS_MAX,
    Envelope,
    EnvelopeError,
    encode_envelope,
    parse_envelope,
)
from tests.golden import read_golden

LEDGER, ENTRY, IDENTITY = LedgerId(0x0102_0304_0506_0708), EntryId(9), 0xA1B2_C3D4
PLAIN = Envelope((NodeNumber(4), NodeNumber(0), NodeNumber(300)))
STICKY = PLAIN._replace(block=EntryId(7))

numbers = st.lists(st.integers(0, 0xFFFE), min_size=1, max_size=MEMBERS_MAX, unique=True)


def encode(envelope: Envelope) -> bytes:
    return encode_envelope(envelope, LEDGER, ENTRY, IDENTITY)


def with_crc(content: bytes) -> bytes:
    """Bytes with a checksum that is right."""
    bound = LEDGER.to_bytes(8, "little") + ENTRY.to_bytes(4, "little")
    bound += IDENTITY.to_bytes(4, "little")
    crc: int = google_crc32c.value(bound + content)
    return content + crc.to_bytes(4, "little")


@pytest.mark.parametrize(("name", "envelope"), [("plain", PLAIN), ("sticky", STICKY)])
def test_golden_envelopes(name: str, envelope: Envelope) -> None:
    golden = read_golden(f"envelope-{name}-v1.bin", encode(envelope))
    assert parse_envelope(golden, LEDGER, ENTRY, IDENTITY) == envelope
    assert len(golden) == 16


@given(numbers, st.none() | st.integers(0, 0xFFFF_FFFE))
def test_what_was_encoded_is_read(copyset: list[int], block: int | None) -> None:
    members = tuple(NodeNumber(number) for number in copyset)
    envelope = Envelope(members, None if block is None else EntryId(block))
    data = encode(envelope)
    assert parse_envelope(data, LEDGER, ENTRY, IDENTITY) == envelope
    assert ENVELOPE_BYTES_MIN <= len(data) <= ENVELOPE_BYTES_MAX


def test_it_names_no_more_than_fit() -> None:
    members = tuple(NodeNumber(number) for number in range(MEMBERS_MAX + 5))
    data = encode(Envelope(members))
    assert parse_envelope(data, LEDGER, ENTRY, IDENTITY).copyset == members[:MEMBERS_MAX]


def test_it_is_that_of_one_entry() -> None:
    data = encode(STICKY)
    for other in (
        (LedgerId(LEDGER + 1), ENTRY, IDENTITY),
        (LEDGER, EntryId(ENTRY + 1), IDENTITY),
        (LEDGER, ENTRY, IDENTITY ^ 1),
    ):
        with pytest.raises(EnvelopeError, match="checksum"):
            parse_envelope(data, *other)


def test_each_flipped_bit_and_each_cut_is_found() -> None:
    data = encode(STICKY)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EnvelopeError):
            parse_envelope(bytes(flipped), LEDGER, ENTRY, IDENTITY)
    for size in range(len(data)):
        with pytest.raises(EnvelopeError):
            parse_envelope(data[:size], LEDGER, ENTRY, IDENTITY)
    with pytest.raises(EnvelopeError):
        parse_envelope(data + b"\0", LEDGER, ENTRY, IDENTITY)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\2\1\xff\xff\xff\xff\0\0", "version 2"),
        (b"\1\2\xff\xff\xff\xff\0\0", "2 members"),
        (b"\1\0\xff\xff\xff\xff\0\0", "0 members"),
        (b"\1\2\xff\xff\xff\xff\3\0\3\0", r"\[3, 3\]"),
        (b"\1\1\xff\xff\xff\xff\xff\xff", "65535"),
    ],
)
def test_what_no_writer_makes_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(EnvelopeError, match=why):
        parse_envelope(with_crc(content), LEDGER, ENTRY, IDENTITY)
