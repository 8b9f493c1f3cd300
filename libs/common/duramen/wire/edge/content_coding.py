"""Content codings of HTTP, gzip and zstd: which one, and piece by piece in both directions.

Decoding gives at most so many bytes a step, whatever the input claims, so that what a few bytes
can grow to (a decompression bomb) is met by the reader's own bound before it is in memory. A step
takes a bounded piece of the input too, and a body has a bounded number of frames, so that the cost
of a body grows as its bytes do and is paid in small parts. A zstd window is at most 8 MiB, as
RFC 9659 demands of this coding. Pure; the transport is `runtime.edge`.

Source: docs/protocol/rest.md "Content coding"; RFC 9110 section 8.4 and 12.5.3.
"""

from __future__ import annotations

import sys
import zlib
from typing import Final, Protocol

from duramen.errors import DuramenError
from duramen.units import KIB

if sys.version_info >= (3, 14):
    from compression import zstd as zstd  # noqa: PLC0414 - tests code with it, too
else:
    from backports import zstd as zstd  # noqa: PLC0414 - tests code with it, too

GZIP: Final = "gzip"
ZSTD: Final = "zstd"
CODINGS: Final = (ZSTD, GZIP)
"""Those that are spoken, the better one first."""

_ALIASES: Final = {"x-gzip": GZIP, "gzip": GZIP, "zstd": ZSTD}
_GZIP_WINDOW_BITS: Final = 31
"""zlib: 15 bits of window, 16 for gzip's own head and checksum."""

_ZSTD_WINDOW_BITS_MAX: Final = 23
_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 1
"""The fastest: records are coded while others wait for the same event loop."""

_ACCEPTED_CHARACTERS_MAX: Final = 1_000

STEP_INPUT_BYTES_MAX: Final = 64 * KIB
"""Coded bytes that one step takes: of the most expensive ones, blocks of a few bytes with tables of
their own, about two milliseconds."""

FRAME_COUNT_MAX: Final = 64
"""Frames (of gzip: members) of one body. An encoder makes one, and flushes where a reader is to see
something; an empty one costs as much as 100 KB of text, for 9 bytes."""


class Decoder(Protocol):
    """Decodes one body."""

    @property
    def needs_input(self) -> bool:
        """Whether everything that was fed is decoded and given."""
        ...

    def feed(self, data: bytes) -> None:
        """Take the next piece of the coded body; only while it is needed."""
        ...

    def step(self, most_bytes: int) -> bytes:
        """At most so many decoded bytes, out of at most STEP_INPUT_BYTES_MAX coded ones.

        Empty: there were none in them; `needs_input` says whether there is more to be decoded.

        Raises:
            DuramenError: `invalid_argument`, field `Content-Encoding`: the body is damaged, or has
                more than FRAME_COUNT_MAX frames.
        """
        ...

    def end(self) -> None:
        """No piece follows, and input is needed.

        Raises:
            DuramenError: `invalid_argument`: the body was cut short.
        """
        ...


class ContentEncoder(Protocol):
    """Encodes one answer."""

    def encode(self, data: bytes, *, is_last: bool) -> bytes:
        """Everything that the reader needs to see all of `data`."""
        ...


def parse_coding(value: str) -> str | None:
    """The coding that a Content-Encoding names; None: the body is as it is.

    Raises:
        DuramenError: `unsupported_media`, field `Content-Encoding`.
    """
    name = value.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _ALIASES:
        raise DuramenError(
            "unsupported_media", "a body is coded by zstd or gzip, once", field="Content-Encoding"
        )
    return _ALIASES[name]


def choose_coding(accepted: str) -> str | None:
    """The coding for a client with this Accept-Encoding; None: identity.

    The greatest q-value wins, zstd among equals. A client that accepts nothing of ours, not even
    identity, gets identity: that may help it, and a refusal could not be read either.
    """
    weights: dict[str, float] = {}
    for part in accepted[:_ACCEPTED_CHARACTERS_MAX].lower().split(","):
        name, _, parameters = part.partition(";")
        name = name.strip()
        weights[_ALIASES.get(name, name)] = _read_weight(parameters)
    others = weights.get("*", 0.0)
    identity = weights.get("identity", 0.0)
    best = max(CODINGS, key=lambda coding: weights.get(coding, others))
    weight = weights.get(best, others)
    return best if weight > 0 and weight >= identity else None


def _read_weight(parameters: str) -> float:
    """A q-value; one that is none counts as 0, so that nothing is coded by mistake."""
    name, _, value = parameters.partition("=")
    if not name.strip():
        return 1.0
    try:
        weight = float(value) if name.strip() == "q" else 0.0
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def make_decoder(coding: str) -> Decoder:
    """A decoder for a body of this coding."""
    return _ZstdDecoder() if coding == ZSTD else _GzipDecoder()


def make_encoder(coding: str) -> ContentEncoder:
    """An encoder for an answer in this coding."""
    return _ZstdEncoder() if coding == ZSTD else _GzipEncoder()


class _Pieces:
    """What was fed, cut into pieces that a step can take."""

    def __init__(self) -> None:
        self._fed = memoryview(b"")
        self._taken_bytes = 0
        self.piece = b""
        """What is left of the piece that is being decoded."""

    @property
    def is_empty(self) -> bool:
        return not self.piece and self._taken_bytes == len(self._fed)

    def feed(self, data: bytes) -> None:
        assert self.is_empty, "what was fed before is decoded first"
        self._fed, self._taken_bytes = memoryview(data), 0

    def fill(self) -> None:
        """Have a piece, as far as there is input."""
        if not self.piece:
            end = self._taken_bytes + STEP_INPUT_BYTES_MAX
            self.piece = bytes(self._fed[self._taken_bytes : end])
            self._taken_bytes = min(end, len(self._fed))


class _GzipDecoder:
    """Members behind one another are one body.

    What zlib has no room to decode waits in the piece, but for the rest of one match, which comes
    with what follows: a flush and the member's end have bytes of their own.
    """

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        self._count = 1

    @property
    def needs_input(self) -> bool:
        return self._pieces.is_empty

    def feed(self, data: bytes) -> None:
        self._pieces.feed(data)

    def step(self, most_bytes: int) -> bytes:
        pieces = self._pieces
        pieces.fill()
        decoded = b""
        while not decoded and pieces.piece:
            if self._member.eof:
                self._count = _count_frame(self._count)
                self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            try:
                decoded = self._member.decompress(pieces.piece, most_bytes)
            except zlib.error as error:
                raise _damaged(GZIP) from error
            is_whole = self._member.eof
            pieces.piece = self._member.unused_data if is_whole else self._member.unconsumed_tail
        return decoded

    def end(self) -> None:
        if not self._member.eof:
            raise _cut_short()


class _ZstdDecoder:
    """Frames behind one another are one body, also those that a decoder skips."""

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self._frame = _open_frame()
        self._count = 1
        self._is_whole = False

    @property
    def needs_input(self) -> bool:
        return self._pieces.is_empty and not self._is_held_back

    @property
    def _is_held_back(self) -> bool:
        """Whether the frame keeps what it had no room to decode; it takes nothing more before."""
        return not self._is_whole and not self._frame.needs_input

    def feed(self, data: bytes) -> None:
        self._pieces.feed(data)

    def step(self, most_bytes: int) -> bytes:
        pieces = self._pieces
        if not self._is_held_back:
            pieces.fill()
        decoded = b""
        while not decoded and (pieces.piece or self._is_held_back):
            if self._is_whole:
                self._count = _count_frame(self._count)
                self._frame, self._is_whole = _open_frame(), False
            data = b""
            if not self._is_held_back:
                data, pieces.piece = pieces.piece, b""
            try:
                decoded = self._frame.decompress(data, most_bytes)
            except zstd.ZstdError as error:
                raise _damaged(ZSTD) from error
            if self._frame.eof:
                pieces.piece, self._is_whole = self._frame.unused_data, True
        return decoded

    def end(self) -> None:
        if not self._is_whole:
            raise _cut_short()


def _count_frame(count: int) -> int:
    """One frame more of a body that has so many."""
    if count >= FRAME_COUNT_MAX:
        detail = (
            f"a body has {FRAME_COUNT_MAX} frames (gzip: members) at most: code it as one, and "
            "flush where a reader is to see what was written"
        )
        raise DuramenError("invalid_argument", detail, field="Content-Encoding")
    return count + 1


def _open_frame() -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_BITS_MAX}
    )


class _GzipEncoder:
    def __init__(self) -> None:
        self._member = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW_BITS)

    def encode(self, data: bytes, *, is_last: bool) -> bytes:
        mode = zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH
        return self._member.compress(data) + self._member.flush(mode)


class _ZstdEncoder:
    def __init__(self) -> None:
        self._frame = zstd.ZstdCompressor(level=_ZSTD_LEVEL)

    def encode(self, data: bytes, *, is_last: bool) -> bytes:
        frame = self._frame
        return frame.compress(data, frame.FLUSH_FRAME if is_last else frame.FLUSH_BLOCK)


def _damaged(coding: str) -> DuramenError:
    return DuramenError(
        "invalid_argument", f"the body cannot be decoded as {coding}", field="Content-Encoding"
    )


def _cut_short() -> DuramenError:
    return DuramenError("invalid_argument", "the body was cut short", field="Content-Encoding")
