"""Record batches: the golden file, round trips, limits, and refusal of everything damaged.

Source: docs/protocol/wire.md "Record batch".
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.limits import BATCH_BYTES_MAX, BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.edge.content_coding import zstd
from duramen.wire.record_batch import (
    HEADER_BYTES,
    BatchError,
    BatchProducer,
    check_batch,
    check_records,
    decode_batch,
    encode_batch,
    header_size,
    read_info,
    split_batches,
)
from tests.golden import read_golden

NOW_MS = 1_700_000_000_000
BODIES = [b"first", b"", bytes(range(256))]
FULL: dict[str, Any] = {
    "timestamps_ms": [NOW_MS, NOW_MS + 2, NOW_MS + 1],
    "txids": [5, 5, -9],
    "headers": [[(b"k", b"v"), (b"", b"")], [], [(b"name", b"\xff\x00")]],
}

int64 = st.integers(-(2**63) + 1, 2**63 - 1)
pairs = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], dict[str, Any]]:
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
    count = len(bodies)
    columns = {"timestamps_ms": int64, "txids": int64, "headers": pairs}
    fields = {
        name: draw(st.none() | st.lists(column, min_size=count, max_size=count))
        for name, column in columns.items()
    }
    return bodies, fields


def test_golden_batches() -> None:
    plain = read_golden("record-batch-plain-v1.bin", encode_batch(BODIES, NOW_MS))
    batch = decode_batch(plain)
    assert batch.bodies == BODIES and batch.txids is None and batch.headers is None
    assert list(batch.timestamps_ms) == [NOW_MS] * 3 and batch.info.max_timestamp_ms == NOW_MS
    full = decode_batch(read_golden("record-batch-full-v1.bin", encode_batch(BODIES, 0, **FULL)))
    assert list(full.timestamps_ms) == FULL["timestamps_ms"]
    assert full.txids is not None and list(full.txids) == FULL["txids"]
    assert full.headers == [tuple(one) for one in FULL["headers"]]
    assert full.info.max_txid == 5 and full.info.max_timestamp_ms == NOW_MS + 2


def test_a_producers_batch() -> None:
    producer = BatchProducer("spark 7/3", 2, 1 << 40)
    batch = encode_batch(BODIES, NOW_MS, producer=producer, txids=[5, 5, 9])
    decoded = decode_batch(read_golden("record-batch-producer-v1.bin", batch))
    assert decoded.bodies == BODIES and decoded.info.producer == producer
    assert (decoded.info.min_txid, decoded.info.max_txid) == (5, 9)
    with pytest.raises(BatchError, match="producer's id"):
        read_info(batch[:64] + b"\n" + batch[65:])


def test_a_compressed_batch_is_read_whatever_made_it() -> None:
    """zstd may spell the same otherwise tomorrow; what is stored must be read for ever."""
    stored = read_golden("record-batch-zstd-v1.bin", None)
    batch = decode_batch(stored)
    assert batch.info.codec is Codec.ZSTD and len(stored) < batch.info.decoded_bytes
    assert batch.bodies == [b"again " * 40] * 3 and list(batch.txids or ()) == [5, 5, -9]
    assert decode_batch(encode_batch(batch.bodies, NOW_MS, **FULL))[1:] == batch[1:]


@given(batches(), int64, st.sampled_from(Codec))
def test_round_trip(drawn: tuple[list[bytes], dict[str, Any]], now_ms: int, codec: Codec) -> None:
    bodies, fields = drawn
    data = encode_batch(bodies, now_ms, codec=codec, **fields)
    assert len(data) <= len(encode_batch(bodies, now_ms, **fields)), "never larger for it"
    info = check_batch(data)
    assert info.size_bytes == len(data) and info.record_count == len(bodies)
    batch = decode_batch(data)
    assert batch.bodies == bodies
    assert list(batch.timestamps_ms) == (fields["timestamps_ms"] or [now_ms] * len(bodies))
    assert fields["txids"] == (None if batch.txids is None else list(batch.txids))
    headers = fields["headers"]
    assert batch.headers == (None if headers is None else [tuple(one) for one in headers])
    assert info.max_txid == (None if fields["txids"] is None else max(fields["txids"]))


@given(st.lists(batches(), max_size=4))
def test_concatenated_batches_come_apart_again(
    drawn: list[tuple[list[bytes], dict[str, Any]]],
) -> None:
    spelt = [encode_batch(bodies, 0, **fields) for bodies, fields in drawn]
    assert split_batches(b"".join(spelt)) == spelt


@given(batches(), st.sampled_from(Codec), st.data())
def test_every_flipped_bit_is_noticed(
    drawn: tuple[list[bytes], dict[str, Any]], codec: Codec, data: st.DataObject
) -> None:
    spelt = bytearray(encode_batch(drawn[0], 0, codec=codec, **drawn[1]))
    at = data.draw(st.integers(0, len(spelt) - 1))
    spelt[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BatchError):
        decode_batch(bytes(spelt))


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_refused(data: bytes, has_magic: bool) -> None:
    data = b"DRB1" + data if has_magic else data
    for read in (decode_batch, check_batch):
        with pytest.raises(BatchError):
            read(data)


def sign(spelt: bytes | bytearray) -> bytes:
    """The bytes with the CRC that they should have."""
    crc: bytes = google_crc32c.value(bytes(spelt[8:])).to_bytes(4, "little")
    return bytes(spelt[:4]) + crc + bytes(spelt[8:])


def forge(columns: bytes, *, decoded_bytes: int, codec: int = Codec.ZSTD) -> bytes:
    """A batch of one record whose header says this of its columns."""
    head = bytearray(encode_batch([b""], NOW_MS)[:HEADER_BYTES])
    head[8] = codec
    head[16:20] = len(columns).to_bytes(4, "little")
    head[20:24] = decoded_bytes.to_bytes(4, "little")
    return sign(head + columns)


def test_nothing_is_decompressed_beyond_what_the_header_says() -> None:
    columns = (10).to_bytes(4, "little") + b"0123456789"
    coded = zstd.compress(columns)
    assert decode_batch(forge(coded, decoded_bytes=14)).bodies == [b"0123456789"]
    for bad, decoded_bytes in (
        (coded, 13),
        (coded, 15),
        (coded[:-1], 14),
        (coded + b"x", 14),
        (coded + coded, 28),
        (b"", 14),
        (columns, 14),
        (zstd.compress(bytes(64 << 20)), 14),
        (zstd.compress(bytes(64 << 20)), BATCH_BYTES_MAX),
    ):
        with pytest.raises(BatchError, match="cannot be decompressed"):
            decode_batch(forge(bad, decoded_bytes=decoded_bytes))
    for size in (BATCH_BYTES_MAX + BATCH_RECORD_COUNT_MAX * 24 + 1, (1 << 32) - 1):
        with pytest.raises(BatchError) as caught:
            read_info(forge(coded, decoded_bytes=size))
        assert caught.value.code == "batch_too_large", "before it is decompressed"
    for codec in (1, 3, 255):
        with pytest.raises(BatchError) as caught:
            read_info(forge(coded, decoded_bytes=14, codec=codec))
        assert caught.value.code == "unsupported_media"


@settings(max_examples=300)
@given(batches(), st.sampled_from(Codec), st.data())
def test_columns_that_lie_are_refused_even_under_a_right_crc(
    drawn: tuple[list[bytes], dict[str, Any]], codec: Codec, data: st.DataObject
) -> None:
    """What a hostile sender can make: any bytes with a CRC that matches."""
    bodies = [*drawn[0], bytes(200)] if codec else drawn[0]
    fields = {} if codec else drawn[1]
    spelt = bytearray(encode_batch(bodies, 0, codec=codec, **fields))
    for _ in range(data.draw(st.integers(1, 4))):
        spelt[data.draw(st.integers(8, len(spelt) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode_batch(sign(spelt))
    except BatchError:
        return
    assert len(batch.bodies) == batch.info.record_count


def test_a_batch_cut_short_or_with_a_tail_is_refused() -> None:
    spelt = encode_batch(BODIES, NOW_MS, **FULL)
    for size in range(len(spelt)):
        with pytest.raises(BatchError):
            check_batch(spelt[:size])
    with pytest.raises(BatchError):
        check_batch(spelt + b"x")
    with pytest.raises(BatchError):
        split_batches(spelt + spelt[:HEADER_BYTES])
    assert read_info(spelt + b"x").size_bytes == len(spelt), "the header alone says where it ends"


@pytest.mark.parametrize(
    ("bodies", "header_bytes", "code"),
    [
        ([], None, "invalid_argument"),
        ([b""] * (BATCH_RECORD_COUNT_MAX + 1), None, "too_many_records"),
        ([b"x" * (RECORD_BYTES_MAX + 1)], None, "record_too_large"),
        ([b"x" * RECORD_BYTES_MAX], [1], "record_too_large"),
        ([b"x" * RECORD_BYTES_MAX] * 4 + [b"x"], None, "batch_too_large"),
    ],
)
def test_limits(bodies: list[bytes], header_bytes: list[int] | None, code: str) -> None:
    with pytest.raises(BatchError) as caught:
        check_records(bodies, header_bytes)
    assert caught.value.code == code


def test_the_largest_legal_batch_passes() -> None:
    bodies = [b"x" * RECORD_BYTES_MAX] * (BATCH_BYTES_MAX // RECORD_BYTES_MAX)
    check_records(bodies)
    for codec in Codec:
        assert decode_batch(encode_batch(bodies, 0, codec=codec)).bodies == bodies
    assert header_size(FULL["headers"][0]) == 2 + 2 * 6 + 2
