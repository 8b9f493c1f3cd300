"""Codecs of record batches: what follows a batch's producer id, or a whole entry's batches, made
smaller.

Pure and bounded: nothing is decoded beyond the bytes that the header promises, which were held
against the limits before. What zstd does not make smaller stays as it is, so a batch is never
larger for being compressed. lz4 has a number and no code: zstd's fastest level is near enough.

Called by `wire.record_batch` and `wire.entry`. Source: docs/protocol/wire.md "Record batch",
"Compressed entry".
"""

from __future__ import annotations

import enum
from typing import Final

from duramen.wire.edge.content_coding import zstd

_LEVEL: Final = 1
"""The fastest: who appends waits for it."""

_WINDOW_BITS_MAX: Final = 23
"""8 MiB: more than a batch can have, so that none is refused for it."""


class Codec(enum.IntEnum):
    """How the columns of a batch are written; 1 is kept for lz4."""

    NONE = 0
    ZSTD = 2


def compress(columns: bytes, codec: Codec) -> tuple[Codec, bytes]:
    """The columns by the codec, or as they are where that is no larger."""
    if codec is Codec.ZSTD:
        coded = zstd.compress(columns, _LEVEL)
        if len(coded) < len(columns):
            return codec, coded
    return Codec.NONE, columns


def decompress(coded: bytes | memoryview, decoded_bytes: int) -> bytes | None:
    """Exactly so many bytes out of zstd; None: they are others, fewer, or more."""
    frame = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _WINDOW_BITS_MAX}
    )
    try:
        # One byte more than it may be: that it has ended is seen only when nothing is held back.
        columns = frame.decompress(coded, decoded_bytes + 1)
    except zstd.ZstdError:
        return None
    is_whole = frame.eof and not frame.unused_data and len(columns) == decoded_bytes
    return columns if is_whole else None
