"""Frames and lines of an append session: the golden file, any cuts, and what is refused.

Source: docs/protocol/rest.md "Append sessions", docs/protocol/wire.md "Append session".
"""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.limits import SEQ_NUM_MAX
from duramen.wire.edge.batch_stream import (
    HEAD_BYTES,
    Frames,
    Lines,
    StreamedBatch,
    Units,
    pack_streamed,
    parse_streamed,
)
from duramen.wire.record_batch import BATCH_ENCODED_MAX, encode_batch
from tests.golden import read_golden

BATCHES = [
    StreamedBatch(encode_batch([b"one"], 1_700_000_000_000)),
    StreamedBatch(encode_batch([b"two", b""], 1_700_000_000_001), 7, "holder-β"),
    StreamedBatch(encode_batch([b"three"], 1_700_000_000_002), 0, ""),
]

streamed = st.builds(
    StreamedBatch,
    st.binary(max_size=300),
    st.none() | st.integers(0, SEQ_NUM_MAX),
    st.none() | st.text(max_size=16),
)


def cut(units: Units, body: bytes, size: int) -> list[bytes]:
    """The units of a body that comes in pieces of this size."""
    found = []
    taken_bytes = 0
    for start in range(0, len(body), size):
        units.feed(body[start : start + size])
        if start + size >= len(body):
            units.end()
        while (unit := units.take()) is not None:
            found += [unit[0]] if unit[0] else []
            taken_bytes += unit[1]
    assert taken_bytes + units.kept_bytes == len(body)
    return found


def test_golden_session() -> None:
    golden = read_golden("append-session-v1.bin", b"".join(map(pack_streamed, BATCHES)))
    assert [parse_streamed(frame) for frame in cut(Frames(), golden, len(golden))] == BATCHES


@given(st.lists(streamed, min_size=1, max_size=5), st.integers(1, 80))
def test_frames_are_cut_wherever_they_begin(batches: list[StreamedBatch], size: int) -> None:
    body = b"".join(map(pack_streamed, batches))
    assert [parse_streamed(frame) for frame in cut(Frames(), body, size)] == batches


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(1, 30))
def test_lines_are_cut_wherever_they_end(lines: list[bytes], size: int) -> None:
    body = b"\n".join(lines)
    if body:
        expected = [line.lstrip() for line in body.split(b"\n")]
        expected = [line for line in expected if line]
        assert cut(Lines(100), body, size) == expected


def _sealed(head: bytes) -> bytes:
    return head + struct.pack("<I", google_crc32c.value(head)) + bytes(200)


BAD = {
    "magic": (b"DAS2" + bytes(300), "invalid_argument"),
    "version": (_sealed(struct.pack("<4sBBHQI", b"DAS1", 2, 0, 0, 0, 9)), "invalid_argument"),
    "flag": (_sealed(struct.pack("<4sBBHQI", b"DAS1", 1, 4, 0, 0, 9)), "invalid_argument"),
    "token": (_sealed(struct.pack("<4sBBHQI", b"DAS1", 1, 2, 65, 0, 9)), "invalid_argument"),
    "number": (
        _sealed(struct.pack("<4sBBHQI", b"DAS1", 1, 1, 0, SEQ_NUM_MAX + 1, 9)),
        "invalid_argument",
    ),
    "size": (
        _sealed(struct.pack("<4sBBHQI", b"DAS1", 1, 0, 0, 0, BATCH_ENCODED_MAX + 1)),
        "batch_too_large",
    ),
    "short head": (pack_streamed(BATCHES[0])[: HEAD_BYTES - 1], "invalid_argument"),
    "short batch": (pack_streamed(BATCHES[0])[:-1], "invalid_argument"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_frames_are_refused(name: str) -> None:
    body, code = BAD[name]
    for size in (1, len(body)):
        with pytest.raises(DuramenError) as caught:
            cut(Frames(), body, size)
        assert caught.value.code == code


@given(st.integers(0, HEAD_BYTES * 8 + 63))
def test_every_bit_of_a_head_and_its_token_counts(bit: int) -> None:
    frame = bytearray(pack_streamed(BATCHES[1]))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DuramenError):
        cut(Frames(), bytes(frame), len(frame))


def test_a_token_that_is_no_text_is_refused() -> None:
    head = struct.pack("<4sBBHQI", b"DAS1", 1, 2, 1, 0, 0)
    crc = google_crc32c.extend(google_crc32c.value(head), b"\xff")
    [frame] = cut(Frames(), head + struct.pack("<I", crc) + b"\xff", 100)
    with pytest.raises(DuramenError, match="UTF-8"):
        parse_streamed(frame)


def test_a_line_is_refused_before_it_is_whole() -> None:
    lines = Lines(10)
    lines.feed(b"x" * 11)
    with pytest.raises(DuramenError) as caught:
        lines.take()
    assert caught.value.code == "batch_too_large"
    exact = Lines(10)
    exact.feed(b"x" * 10 + b"\n")
    assert exact.take() == (b"x" * 10, 11)
