"""Content codings of HTTP, gzip and zstd: which one, and piece by piece in both directions.

Decoding gives at most so many bytes a step, whatever the input claims, so that what a few bytes
can grow to (a decompression bomb) is met by the reader's own bound before it is in memory. A zstd
window is at most 8 MiB, as RFC 9659 demands of this coding. Pure; the transport is `runtime.edge`.

Source: 03-api "REST v1", RFC 9110 section 8.4 and 12.5.3; written up in docs/protocol/rest.md.
"""

from __future__ import annotations

import sys
import zlib
from typing import Final, Protocol

from duramen.errors import DuramenError

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


class Decoder(Protocol):
    """Decodes one body."""

    def feed(self, data: bytes) -> None:
        """Take the next piece of the coded body."""
        ...

    def step(self, most_bytes: int) -> bytes:
        """At most so many decoded bytes; empty: more input is needed.

        Raises:
            DuramenError: `invalid_argument`, field `Content-Encoding`: the body is damaged.
        """
        ...

    def end(self) -> None:
        """No piece follows, and `step` gives nothing any more.

        Raises:
            DuramenError: `invalid_argument`: the body was cut short.
        """
        ...


class Encoder(Protocol):
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


def make_encoder(coding: str) -> Encoder:
    """An encoder for an answer in this coding."""
    return _ZstdEncoder() if coding == ZSTD else _GzipEncoder()


class _GzipDecoder:
    """Members behind one another are one body."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        self._input = b""

    def feed(self, data: bytes) -> None:
        self._input += data

    def step(self, most_bytes: int) -> bytes:
        while True:
            if self._member.eof:
                if not self._input:
                    return b""
                self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            try:
                # Also without input: zlib may keep output back that it had no room for.
                decoded = self._member.decompress(self._input, most_bytes)
            except zlib.error as error:
                raise _damaged(GZIP) from error
            is_whole = self._member.eof
            self._input = self._member.unused_data if is_whole else self._member.unconsumed_tail
            if decoded or not is_whole:
                return decoded

    def end(self) -> None:
        if not self._member.eof:
            raise _cut_short()


class _ZstdDecoder:
    """Frames behind one another are one body."""

    def __init__(self) -> None:
        self._frame = _open_frame()
        self._input = b""
        self._is_whole = False

    def feed(self, data: bytes) -> None:
        self._input += data

    def step(self, most_bytes: int) -> bytes:
        while self._input or not self._frame.needs_input:
            data, self._input = self._input, b""
            self._is_whole = False
            try:
                decoded = self._frame.decompress(data, most_bytes)
            except zstd.ZstdError as error:
                raise _damaged(ZSTD) from error
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = _open_frame()
                self._is_whole = True
            if decoded:
                return decoded
        return b""

    def end(self) -> None:
        if not self._is_whole:
            raise _cut_short()


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
