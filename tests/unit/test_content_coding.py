"""Content codings: round trips in any pieces, bombs that stay small, q-values, and what is refused.

The codec alone; what a port does with it is `tests/component/test_content_codings.py`'s.
Source: RFC 9110 sections 8.4 and 12.5.3, docs/protocol/rest.md "Content coding".
"""

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.wire.edge.content_coding import (
    CODINGS,
    choose_coding,
    make_decoder,
    make_encoder,
    parse_coding,
    zstd,
)

codings = st.sampled_from(CODINGS)
MIB = 1 << 20


def decode(coding: str, pieces: list[bytes], most_bytes: int = 1_000) -> bytes:
    decoder = make_decoder(coding)
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while step := decoder.step(most_bytes):
            assert len(step) <= most_bytes
            found.append(step)
    decoder.end()
    return b"".join(found)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@settings(max_examples=100)
@given(codings, st.lists(st.binary(max_size=3_000)), st.integers(1, 500), st.integers(1, 5_000))
def test_what_was_coded_piece_by_piece_is_decoded_piece_by_piece(
    coding: str, pieces: list[bytes], size: int, most_bytes: int
) -> None:
    encoder = make_encoder(coding)
    coded = [encoder.encode(piece, is_last=False) for piece in pieces]
    coded.append(encoder.encode(b"", is_last=True))
    assert decode(coding, cut(b"".join(coded), size), most_bytes) == b"".join(pieces)


@pytest.mark.parametrize("coding", CODINGS)
def test_each_flushed_piece_can_be_read_at_once(coding: str) -> None:
    encoder, decoder = make_encoder(coding), make_decoder(coding)
    for piece in (b"one", b"two" * 1_000, b"three"):
        decoder.feed(encoder.encode(piece, is_last=False))
        assert decoder.step(1 << 20) == piece
        assert decoder.step(1 << 20) == b""


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_members_behind_one_another_are_one_body(size: int) -> None:
    for coding, code in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        body = code(b"a" * 5_000) + code(b"") + code(b"b")
        assert decode(coding, cut(body, size)) == b"a" * 5_000 + b"b"


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_gives_no_more_than_was_asked_for(coding: str) -> None:
    encoder = make_encoder(coding)
    zeros = bytes(MIB)
    bomb = b"".join(encoder.encode(zeros, is_last=number == 63) for number in range(64))
    assert len(bomb) < 1_000_000
    decoder = make_decoder(coding)
    decoder.feed(bomb)
    for _ in range(5):
        assert len(decoder.step(10_000)) <= 10_000


@pytest.mark.parametrize("coding", CODINGS)
def test_a_damaged_or_short_body_is_refused(coding: str) -> None:
    encoder = make_encoder(coding)
    whole = encoder.encode(bytes(range(256)) * 20, is_last=True)
    for body in (b"no such thing, but long enough", whole + b"tail", b"", whole[:-1], whole[:9]):
        with pytest.raises(DuramenError) as caught:
            decode(coding, [body])
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "Content-Encoding")
    flipped = bytearray(whole)
    flipped[-6] ^= 1  # the checksum of gzip; zstd as it is made here has none
    if coding == "gzip":
        with pytest.raises(DuramenError):
            decode(coding, [bytes(flipped)])


def test_a_zstd_window_beyond_8_mib_is_refused() -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 24}
    frame = zstd.ZstdCompressor(options=options)
    body = frame.compress(b"x" * 100, frame.FLUSH_BLOCK) + frame.flush(frame.FLUSH_FRAME)
    with pytest.raises(DuramenError, match="zstd"):
        decode("zstd", [body])
    assert zlib.MAX_WBITS == 15  # of gzip every window is small


@pytest.mark.parametrize(
    ("value", "coding"),
    [("", None), ("identity", None), ("gzip", "gzip"), ("X-Gzip", "gzip"), (" zstd ", "zstd")],
)
def test_content_encodings(value: str, coding: str | None) -> None:
    assert parse_coding(value) == coding


@pytest.mark.parametrize("value", ["br", "gzip, zstd", "gzip,gzip", "zstd;level=3"])
def test_other_content_encodings_are_refused(value: str) -> None:
    with pytest.raises(DuramenError) as caught:
        parse_coding(value)
    assert (caught.value.code, caught.value.field) == ("unsupported_media", "Content-Encoding")


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", None),
        ("br", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip;q=0.8", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("*", "zstd"),
        ("*;q=0.1, zstd;q=0", "gzip"),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("identity;q=0", None),
        ("gzip;q=x", None),
        ("gzip;q=7", None),
        ("GZIP ; Q=1", "gzip"),
        ("gzip;level=1", None),
        (",;,gzip", "gzip"),
    ],
)
def test_accept_encodings(accepted: str, coding: str | None) -> None:
    assert choose_coding(accepted) == coding


@given(st.text())
def test_no_text_breaks_the_choice(accepted: str) -> None:
    assert choose_coding(accepted) in (None, *CODINGS)
