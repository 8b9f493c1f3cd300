"""Content codings: round trips in any pieces, bombs that stay small, q-values, and what is refused.

The codec alone; what a port does with it is `tests/component/test_content_codings.py`'s.
Source: RFC 9110 sections 8.4 and 12.5.3, docs/protocol/rest.md "Content coding".
"""

import gzip
import itertools
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.wire.edge import content_coding
from duramen.wire.edge.content_coding import (
    CODINGS,
    FRAME_COUNT_MAX,
    STEP_INPUT_BYTES_MAX,
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
        while not decoder.needs_input:
            step = decoder.step(most_bytes)
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
        assert decoder.needs_input


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


EMPTY_FRAMES = {
    "empty frames": ("zstd", zstd.compress(b"")),
    "skippable frames": ("zstd", bytes.fromhex("502a4d1800000000")),
    "empty members": ("gzip", gzip.compress(b"")),
}
FULL_FRAMES = {
    "frames of a byte": ("zstd", zstd.compress(b"x")),
    "members of a byte": ("gzip", gzip.compress(b"x")),
}


class Counted:
    """A decoder of the library, and what all of its kind were given and gave."""

    taken_bytes = 0
    call_count = 0
    made_count = 0

    def __init__(self, inner: Any) -> None:
        Counted.made_count += 1
        self._inner = inner

    def decompress(self, data: bytes, most_bytes: int) -> Any:
        Counted.call_count += 1
        Counted.taken_bytes += len(data)
        return self._inner.decompress(data, most_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counted]]:
    """Everything that the libraries decode is counted from here on."""
    Counted.taken_bytes = Counted.call_count = Counted.made_count = 0
    open_member, open_frame = zlib.decompressobj, content_coding._open_frame
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "decompressobj", lambda bits: Counted(open_member(bits)))
        patch.setattr(content_coding, "_open_frame", lambda: Counted(open_frame()))
        yield Counted


@pytest.mark.parametrize("name", EMPTY_FRAMES | FULL_FRAMES)
def test_a_body_has_so_many_frames_and_no_more(name: str) -> None:
    coding, frame = (EMPTY_FRAMES | FULL_FRAMES)[name]
    for size in (1, 1 << 20):
        whole = decode(coding, cut(frame * FRAME_COUNT_MAX, size))
        assert len(whole) == (FRAME_COUNT_MAX if name in FULL_FRAMES else 0)
        with pytest.raises(DuramenError, match="64 frames") as caught:
            decode(coding, cut(frame * (FRAME_COUNT_MAX + 1), size))
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "Content-Encoding")


@pytest.mark.parametrize("name", EMPTY_FRAMES | FULL_FRAMES)
def test_many_frames_cost_no_more_than_the_first_ones(name: str, counted: type[Counted]) -> None:
    """300,000 of them in one piece, 2.3 MiB and more, were 10 s of work without an answer."""
    coding, frame = (EMPTY_FRAMES | FULL_FRAMES)[name]
    with pytest.raises(DuramenError, match="64 frames"):
        decode(coding, [frame * 300_000], 1 << 18)
    assert counted.made_count <= FRAME_COUNT_MAX
    assert counted.taken_bytes <= (FRAME_COUNT_MAX + 1) * STEP_INPUT_BYTES_MAX


def make_bodies() -> dict[str, tuple[str, bytes]]:
    """Coded bodies of up to 16 MiB that make a decoder work, each in its own way."""
    few_letters = itertools.cycle([b"aaaaaaaabbbbccd" * 8, b"eeeeffg" * 16])
    tables = zlib.compressobj(9, wbits=31)
    blocks = [tables.compress(next(few_letters)) + tables.flush(zlib.Z_FULL_FLUSH)]
    blocks += [
        tables.compress(next(few_letters)) + tables.flush(zlib.Z_FULL_FLUSH) for _ in range(50_000)
    ]
    noise = bytes(range(256)) * 4_096  # zstd and gzip alike find repetitions only
    return {
        "gzip of zeros": ("gzip", gzip.compress(bytes(64 * MIB), 1)),
        "zstd of zeros": ("zstd", zstd.compress(bytes(512 * MIB), 1)),
        "gzip of tables": ("gzip", b"".join(blocks) + tables.flush()),
        "gzip of nothing": ("gzip", gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 3_000_000),
        "zstd of nothing": ("zstd", bytes.fromhex("28b52ffd0058") + bytes(15 * MIB)),
        "gzip stored": ("gzip", gzip.compress(noise * 15, 0)),
    }


BODIES = make_bodies()


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("size", [60_000, 1 << 24])
def test_a_step_takes_a_bounded_piece_and_all_steps_what_there_is(
    name: str, size: int, counted: type[Counted]
) -> None:
    coding, body = BODIES[name]
    decoder = make_decoder(coding)
    longest_s, step_count, given_bytes = 0.0, 0, 0
    for piece in cut(body, size):
        decoder.feed(piece)
        while not decoder.needs_input:
            before_bytes, began_s = counted.taken_bytes, time.thread_time()
            given_bytes += len(decoder.step(1 << 18))
            longest_s = max(longest_s, time.thread_time() - began_s)
            step_count += 1
            assert counted.taken_bytes - before_bytes <= STEP_INPUT_BYTES_MAX
    pieces = sum(-(-len(piece) // STEP_INPUT_BYTES_MAX) for piece in cut(body, size))
    assert step_count <= pieces + 2 * -(-given_bytes // (1 << 18)) + 2, "no step for nothing"
    # A loop is to be held for 50 ms at most; a step is 2 ms of CPU here, and more on a slow one.
    assert longest_s < 0.05, f"{longest_s * 1e3:.1f} ms of CPU in one step"


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
