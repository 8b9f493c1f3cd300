"""The frames of a pipelined append session: one encoded batch each, with its conditions.

`Frames` and `Lines` cut what arrives of a session's body into units, one unit a batch: framed or
NDJSON. Both hold at most one unit that has not arrived whole, and refuse one that is too long by
its head, before it is kept. What a batch means is `record_batch`'s.

Called by the write proxy's sessions, and by clients that encode frames.
Source: docs/protocol/rest.md "Append sessions", docs/protocol/wire.md.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Protocol

import google_crc32c

from duramen.errors import DuramenError
from duramen.limits import FENCING_TOKEN_BYTES_MAX, SEQ_NUM_MAX
from duramen.wire.record_batch import BATCH_ENCODED_MAX

# offset  size  field
# 0       4     magic "DAS1"
# 4       1     version (1)
# 5       1     flags: 1 the batch must get the sequence number, 2 the token must be the log's
# 6       2     bytes of the fencing token
# 8       8     sequence number that the batch's first record must get; 0 without flag 1
# 16      4     bytes of the batch
# 20      4     CRC32C of bytes 0–19 and of the token
# 24      …     token (UTF-8); then the encoded record batch, which has a CRC of its own

MAGIC: Final = b"DAS1"
VERSION: Final = 1
HEAD_BYTES: Final = 24
MEDIA_TYPE: Final = "application/vnd.duramen.batch-stream"

_MATCH: Final = 1
_TOKEN: Final = 2
_HEAD: Final = struct.Struct("<4sBBHQI")
_CRC: Final = struct.Struct("<I")


class StreamedBatch(NamedTuple):
    """One frame: an encoded batch and what it demands of the log."""

    batch: bytes
    match_seq_num: int | None = None
    fencing_token: str | None = None


class Units(Protocol):
    """Cuts the pieces of a body into units."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        ...

    def take(self) -> tuple[bytes, int] | None:
        """The next whole unit and the bytes that it took of the body; an empty unit is none.

        Raises:
            DuramenError: the body cannot be cut from here on.
        """
        ...

    def end(self) -> None:
        """No piece follows: `take` gives what is left, or refuses it."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the rest of their unit, or to be taken."""
        ...


def pack_streamed(streamed: StreamedBatch) -> bytes:
    """Encode one frame.

    Args:
        streamed: token of at most 64 bytes, batch of at most BATCH_ENCODED_MAX.
    """
    token = b"" if streamed.fencing_token is None else streamed.fencing_token.encode()
    flags = _MATCH * (streamed.match_seq_num is not None)
    flags |= _TOKEN * (streamed.fencing_token is not None)
    head = _HEAD.pack(
        MAGIC, VERSION, flags, len(token), streamed.match_seq_num or 0, len(streamed.batch)
    )
    crc = google_crc32c.extend(google_crc32c.value(head), token)
    return b"".join([head, _CRC.pack(crc), token, streamed.batch])


def parse_streamed(frame: bytes) -> StreamedBatch:
    """Read a frame that `Frames` cut.

    Raises:
        DuramenError: `invalid_argument`.
    """
    _, _, flags, token_bytes, match, _ = _HEAD.unpack_from(frame)
    try:
        token = frame[HEAD_BYTES : HEAD_BYTES + token_bytes].decode()
    except UnicodeDecodeError:
        raise _refuse("a fencing token is UTF-8") from None
    return StreamedBatch(
        frame[HEAD_BYTES + token_bytes :],
        match if flags & _MATCH else None,
        token if flags & _TOKEN else None,
    )


class Frames:
    """Cuts a framed session."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._size_bytes = 0
        self._is_ended = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer)

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._buffer += piece

    def take(self) -> tuple[bytes, int] | None:
        """The next whole frame and its size.

        Raises:
            DuramenError: `invalid_argument`, `batch_too_large`: no frame begins here, or one that
                no session may have, or the body was cut short in it. Nothing behind it can be read.
        """
        if not self._size_bytes and self._is_head_here():
            self._size_bytes = _check_head(self._buffer)
        size_bytes = self._size_bytes
        if not size_bytes or len(self._buffer) < size_bytes:
            if self._is_ended and self._buffer:
                raise _refuse("the body was cut short in the middle of a frame")
            return None
        frame = bytes(memoryview(self._buffer)[:size_bytes])
        del self._buffer[:size_bytes]
        self._size_bytes = 0
        return frame, size_bytes

    def end(self) -> None:
        """No piece follows."""
        self._is_ended = True

    def _is_head_here(self) -> bool:
        """Whether the head and its token are here, or a head that is none."""
        if len(self._buffer) < HEAD_BYTES:
            return False
        token_bytes = min(int(_HEAD.unpack_from(self._buffer)[3]), FENCING_TOKEN_BYTES_MAX)
        return len(self._buffer) >= HEAD_BYTES + token_bytes


def _check_head(buffer: bytearray) -> int:
    """Bytes of the frame whose head and token are here."""
    magic, version, flags, token_bytes, match, batch_bytes = _HEAD.unpack_from(buffer)
    if magic != MAGIC or version != VERSION:
        raise _refuse(f"a frame of version {VERSION} begins with {MAGIC.decode()}")
    if flags & ~(_MATCH | _TOKEN) or token_bytes > FENCING_TOKEN_BYTES_MAX or match > SEQ_NUM_MAX:
        raise _refuse("the frame's head has a flag, a token or a number that may not be")
    if batch_bytes > BATCH_ENCODED_MAX:
        raise DuramenError(
            "batch_too_large", f"an encoded batch may have {BATCH_ENCODED_MAX} bytes at most"
        )
    token = bytes(buffer[HEAD_BYTES : HEAD_BYTES + token_bytes])
    crc = google_crc32c.extend(google_crc32c.value(bytes(buffer[: _HEAD.size])), token)
    if _CRC.unpack_from(buffer, _HEAD.size)[0] != crc:
        raise _refuse("the CRC of the frame's head does not match")
    return HEAD_BYTES + int(token_bytes) + int(batch_bytes)


class Lines:
    """Cuts an NDJSON session; blank lines are skipped."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._searched_bytes = 0
        self._is_ended = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the rest of their line, or to be taken."""
        return len(self._buffer)

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._buffer += piece

    def take(self) -> tuple[bytes, int] | None:
        """The next line and its bytes; an empty one: so much of the body was blank.

        Raises:
            DuramenError: `batch_too_large`: where the next batch begins is not known.
        """
        if self._buffer[:1].isspace():
            return self._take_blanks()
        end = self._buffer.find(b"\n", self._searched_bytes)
        if end < 0 and self._is_ended and self._buffer:
            end = len(self._buffer)
        if (end if end >= 0 else len(self._buffer)) > self._line_bytes_max:
            raise DuramenError(
                "batch_too_large", f"a line may have {self._line_bytes_max} bytes at most"
            )
        if end < 0:
            self._searched_bytes = len(self._buffer)
            return None
        line = bytes(memoryview(self._buffer)[:end])
        taken_bytes = min(end + 1, len(self._buffer))
        del self._buffer[:taken_bytes]
        self._searched_bytes = 0
        return line, taken_bytes

    def _take_blanks(self) -> tuple[bytes, int]:
        """Blank lines, and what is blank before the next line, in one go however many they are."""
        rest = self._buffer.lstrip()
        blank_bytes = len(self._buffer) - len(rest)
        self._buffer = rest
        self._searched_bytes = 0
        return b"", blank_bytes

    def end(self) -> None:
        """No piece follows: what is left is a line, too."""
        self._is_ended = True


def _refuse(detail: str) -> DuramenError:
    return DuramenError("invalid_argument", detail, field="frame")
