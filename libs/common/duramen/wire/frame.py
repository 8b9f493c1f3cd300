"""The frame that every binary data-plane call and answer travels in.

Rows carry what is decided on (LAC, flags, lengths) and are under the CRC, so nothing of them is
used unchecked; payloads (entries, batches) carry their own checksums. All integers little-endian.
Source: docs/protocol/wire.md "Frame", docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c

from duramen.ids import Incarnation
from duramen.limits import ENTRY_BYTES_MAX, FRAME_BYTES_MAX

# offset  size  field
# 0       4     magic: which call this is
# 4       1     version (1, of some calls a later one)
# 5       1     flags, of the call
# 6       2     size of one row in bytes
# 8       4     number of rows
# 12      16    incarnation: whom a request is meant for (R1), zeros where none is
# 28      4     size of the payload in bytes
# 32      4     CRC32C of bytes 0–31 and of all rows
# 36      …     rows, fixed size each; then the payload

VERSION: Final = 1
HEADER_BYTES: Final = 36
NO_INCARNATION: Final = Incarnation("0" * 32)
ROW_COUNT_MAX: Final = 100_000
FRAME_BYTES_HARD_MAX: Final = FRAME_BYTES_MAX + ENTRY_BYTES_MAX
"""A sender stops filling at FRAME_BYTES_MAX, so the last item may stand out by one entry."""

RETRY_AFTER_HEADER: Final = "duramen-retry-after-ms"
"""Of a 503: the server was overloaded, nothing was done, ask again after so many milliseconds."""

IDENTITY_HEADER: Final = "duramen-identity"
"""Who calls, and whom: docs/protocol/identity.md "The caller's header"."""

PROCESS_HEADER: Final = "duramen-process"
"""Which life of a process calls, so that a bookie can share its room out by processes."""

TIME_HEADER: Final = "duramen-time"
"""Seconds since 1970 of who refuses a caller's header for its time."""

_HEAD: Final = struct.Struct("<4sBBHI16sI")
_CRC: Final = struct.Struct("<I")


class FrameError(ValueError):
    """The bytes are no frame of the expected kind: refuse the request, nothing was done."""


class Frame(NamedTuple):
    """A frame that passed its checks."""

    flags: int
    incarnation: Incarnation
    rows: list[tuple[Any, ...]]
    payload: memoryview


def pack_frame(
    magic: bytes,
    row: struct.Struct,
    rows: Iterable[Sequence[Any]],
    payload: Sequence[bytes | memoryview] = (),
    *,
    incarnation: Incarnation = NO_INCARNATION,
    flags: int = 0,
    version: int = VERSION,
) -> bytes:
    """Encode a frame: one pass over the rows, one copy of the payload."""
    table = b"".join([row.pack(*values) for values in rows])
    count = len(table) // row.size
    payload_bytes = sum(map(len, payload))
    head = _HEAD.pack(
        magic, version, flags, row.size, count, bytes.fromhex(incarnation), payload_bytes
    )
    crc = google_crc32c.extend(google_crc32c.value(head), table)
    return b"".join([head, _CRC.pack(crc), table, *payload])


def parse_frame(data: bytes, magic: bytes, row: struct.Struct, *, version: int = VERSION) -> Frame:
    """Check a frame of a version and give its rows and payload.

    Raises:
        FrameError: too short, too long, another kind or version, or the CRC does not match.
    """
    if not HEADER_BYTES <= len(data) <= FRAME_BYTES_HARD_MAX:
        raise FrameError(f"a frame has {HEADER_BYTES} to {FRAME_BYTES_HARD_MAX} bytes")
    found, stated, flags, row_bytes, count, incarnation, payload_bytes = _HEAD.unpack_from(data)
    if found != magic:
        raise FrameError(f"expected a {magic!r} frame, not {found!r}")
    if stated != version or row_bytes != row.size:
        raise FrameError(f"frame version {stated} with rows of {row_bytes} bytes is not spoken")
    end = HEADER_BYTES + count * row_bytes
    if count > ROW_COUNT_MAX or end + payload_bytes != len(data):
        raise FrameError("the frame's lengths do not add up")
    table = data[HEADER_BYTES:end]
    crc = google_crc32c.extend(google_crc32c.value(data[: _HEAD.size]), table)
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc:
        raise FrameError("the frame's CRC does not match")
    return Frame(
        flags, Incarnation(incarnation.hex()), list(row.iter_unpack(table)), memoryview(data)[end:]
    )


def frame_size(head: bytes, magic: bytes) -> int:
    """Bytes of the whole frame that begins with these HEADER_BYTES bytes (streamed answers).

    Raises:
        FrameError: another kind, or longer than any frame may be.
    """
    found, _, _, row_bytes, count, _, payload_bytes = _HEAD.unpack_from(head)
    size = HEADER_BYTES + int(row_bytes) * int(count) + int(payload_bytes)
    if found != magic or size > FRAME_BYTES_HARD_MAX:
        raise FrameError(f"a {magic!r} frame of at most {FRAME_BYTES_HARD_MAX} bytes was expected")
    return size


def row_size(data: bytes) -> int:
    """Bytes of a row, which tell versions of a kind apart; 0 if there is no whole head."""
    return int(_HEAD.unpack_from(data)[3]) if len(data) >= HEADER_BYTES else 0


def frame_version(data: bytes) -> int:
    """The version that a frame states, which is not checked yet; 0 if there is no whole head."""
    return int(_HEAD.unpack_from(data)[1]) if len(data) >= HEADER_BYTES else 0


def split_payload(payload: memoryview, lengths: Iterable[int]) -> list[memoryview]:
    """Cut a payload into its items.

    Raises:
        FrameError: the lengths do not add up to the payload.
    """
    items = []
    start = 0
    for length in lengths:
        items.append(payload[start : start + length])
        start += length
    if start != len(payload):
        raise FrameError("the frame's lengths do not add up")
    return items
