"""Compressed entries: the same batches, numbers and rows for every reader, bounds, every bit.

Source: docs/protocol/wire.md "Compressed entry", ADR 0029.
"""

from __future__ import annotations

import random
import struct
import tracemalloc

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch, LedgerId
from duramen.limits import ENTRY_BYTES_MAX
from duramen.units import MIB
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.edge.content_coding import zstd
from duramen.wire.entry import (
    COMPRESSIBLE_BYTES_MIN,
    CONTROL,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    STATE,
    VERSION,
    VERSION_COMPRESSED,
    EntryError,
    check_entry,
    encode_entry,
    open_payload,
    read_entry_info,
)
from duramen.wire.entry_history import read_history
from duramen.wire.read_answers import place_batches
from duramen.wire.record_batch import BatchProducer, encode_batch, read_info, split_batches
from tests.golden import read_golden

LEDGER = LedgerId(7 << 32 | 3)
BEFORE = Totals(10, 1_000, 4, 900)
LINES = [b'{"sensor": %d, "state": "nothing happens here"}' % number for number in range(40)]
BATCHES = [
    encode_batch(LINES, 1_000, producer=BatchProducer("who", 3, 17)),
    encode_batch(LINES[:3], 2_000, txids=[5, 5, 7]),
    encode_batch([b"again " * 40] * 3, 1_500, codec=Codec.ZSTD),
]


def encode(
    batches: list[bytes], *, is_compressing: bool = True, flags: int = STATE, entry_id: int = 17
) -> bytes:
    after = BEFORE
    for batch in batches:
        info = read_info(batch)
        after = after.plus(
            Totals(info.record_count, len(batch), info.max_txid, info.max_timestamp_ms)
        )
    return encode_entry(
        ledger_id=LEDGER,
        entry_id=EntryId(entry_id),
        before=BEFORE,
        batches=batches,
        record_count=after.record_count - BEFORE.record_count,
        after=after,
        flags=flags,
        is_compressing=is_compressing,
    )


def forge(frame: bytes, *, payload_bytes: int, flags: int = 0) -> bytes:
    """An entry whose checksum is right, whatever else it is."""
    head = bytearray(encode(BATCHES)[:HEADER_BYTES])
    head[9] = flags
    struct.pack_into("<I", head, 36, payload_bytes)
    body = bytes(head[8:]) + frame
    crc: int = google_crc32c.value(body)
    return bytes(head[:4]) + crc.to_bytes(4, "little") + body


def test_a_compressed_entry_is_read_whatever_made_it() -> None:
    """zstd may spell the same otherwise tomorrow; what is stored must be read for ever."""
    stored = read_golden("entry-zstd-v2.bin", None)
    info = check_entry(stored)
    assert stored[8] == VERSION_COMPRESSED and info.is_compressed and info.has_state
    assert info.payload_bytes == sum(map(len, BATCHES)) > len(stored)
    assert split_batches(bytes(open_payload(stored))) == BATCHES


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
    codec = draw(st.sampled_from(Codec))
    return encode_batch([body * draw(st.sampled_from([1, 9])) for body in bodies], 5, codec=codec)


@given(st.lists(batches(), min_size=1, max_size=6))
def test_what_is_compressed_says_the_same(drawn: list[bytes]) -> None:
    plain, small = encode(drawn, is_compressing=False), encode(drawn)
    assert len(small) <= len(plain) and small == encode(drawn), "made again, the same bytes"
    info, meant = check_entry(small), check_entry(plain)
    assert info._replace(crc=0, is_compressed=False) == meant._replace(crc=0)
    assert info.is_compressed == (small != plain)
    assert bytes(open_payload(small)) == b"".join(drawn) == bytes(open_payload(plain))
    # What looks into batches sees one and the same entry.
    assert read_history(small, is_header_only=False) == read_history(plain, is_header_only=False)
    one, two = (list(place_batches(entry, Epoch(3), 0)) for entry in (small, plain))
    assert one == two


def test_only_what_is_worth_it_is_compressed() -> None:
    line = encode_batch([b"x" * (COMPRESSIBLE_BYTES_MIN - HEADER_BYTES - 4)], 1)
    assert len(line) == COMPRESSIBLE_BYTES_MIN
    shorter = encode_batch([b"x" * (COMPRESSIBLE_BYTES_MIN - HEADER_BYTES - 5)], 1)
    noise = encode_batch([random.Random(1).randbytes(2_000)], 1)
    packed = encode_batch([b"again " * 4_000], 1, codec=Codec.ZSTD)
    assert encode([line])[8] == VERSION_COMPRESSED
    a_tenth = encode_batch([random.Random(1).randbytes(2_000) + bytes(220)], 1)
    assert 0 < len(a_tenth) - len(zstd.compress(a_tenth)) < len(a_tenth) // 8
    for kept in ([shorter], [noise], [packed], [packed] * 30, [a_tenth]):
        assert encode(kept)[8] == VERSION and encode(kept) == encode(kept, is_compressing=False)
    mixed = encode([line, packed])
    assert split_batches(bytes(open_payload(mixed))) == [line, packed], "as its client sent it"


@given(st.integers(0, len(encode(BATCHES)) * 8 - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(encode(BATCHES))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EntryError):
        check_entry(bytes(damaged))


def test_the_identity_is_that_of_the_bytes_that_are_stored() -> None:
    small = encode(BATCHES)
    assert check_entry(small).crc == google_crc32c.value(small[8:])
    assert check_entry(small).crc != check_entry(encode(BATCHES, is_compressing=False)).crc


def test_nothing_is_decompressed_beyond_what_the_header_says() -> None:
    payload = b"".join(BATCHES)
    frame = zstd.compress(payload)
    size = len(payload)
    assert bytes(open_payload(forge(frame, payload_bytes=size))) == payload
    bomb = zstd.compress(bytes(64 * MIB))
    for bad, said in (
        (frame, size - 1),
        (frame, size + 1),
        (frame[:-1], size),
        (frame + b"x", size),
        (frame + frame, 2 * size),
        (b"", size),
        (payload[: size - 1], size),
        (bomb, size),
        (bomb, PAYLOAD_BYTES_MAX),
    ):
        entry = forge(bad, payload_bytes=said)
        if len(bad) < said:
            check_entry(entry)
        with pytest.raises(EntryError, match="cannot be decompressed"):
            open_payload(entry)


def test_what_a_few_bytes_claim_to_be_is_never_in_memory() -> None:
    entry = forge(zstd.compress(bytes(64 * MIB)), payload_bytes=100_000)
    tracemalloc.start()
    try:
        with pytest.raises(EntryError):
            open_payload(entry)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("said", [PAYLOAD_BYTES_MAX + 1, 64 * MIB, (1 << 32) - 1])
def test_an_entry_of_more_than_an_entry_is_refused_by_its_header(said: int) -> None:
    entry = forge(zstd.compress(bytes(64 * MIB)), payload_bytes=said)
    for read in (read_entry_info, check_entry, open_payload):
        with pytest.raises(EntryError, match="beyond the limits"):
            read(entry)
    read_entry_info(forge(b"x", payload_bytes=PAYLOAD_BYTES_MAX))


def test_entries_that_nobody_makes_are_refused() -> None:
    frame = zstd.compress(b"".join(BATCHES))
    for entry in (
        forge(frame, payload_bytes=len(frame)),
        forge(frame, payload_bytes=0),
        forge(frame, payload_bytes=9_999, flags=CONTROL),
        forge(bytes(ENTRY_BYTES_MAX), payload_bytes=PAYLOAD_BYTES_MAX),
    ):
        with pytest.raises(EntryError):
            check_entry(entry)
    with pytest.raises(AssertionError, match="never compressed"):
        encode(BATCHES, flags=CONTROL)


@pytest.mark.parametrize("version", [0, VERSION_COMPRESSED + 1, 255])
def test_another_version_is_refused_and_never_taken_for_batches(version: int) -> None:
    """As version 2 is by who knows version 1 alone: by that byte, before anything else."""
    entry = bytearray(encode(BATCHES))
    entry[8] = version
    entry[4:8] = google_crc32c.value(bytes(entry[8:])).to_bytes(4, "little")
    for read in (read_entry_info, check_entry, open_payload):
        with pytest.raises(EntryError, match="version that is spoken here"):
            read(bytes(entry))


def test_headers_alone_say_what_a_compressed_entry_holds() -> None:
    small = encode(BATCHES)
    assert read_entry_info(small[:HEADER_BYTES]) == check_entry(small)
    found = read_history(small[:HEADER_BYTES], is_header_only=True)
    assert (found.entry, found.has_state) == (17, True)
