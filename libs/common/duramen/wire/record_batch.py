"""Record batch: records encoded together at the edge, opaque to everything behind it.

Columns instead of interleaved varints make encoding and decoding bulk operations (ADR 0002).
Limits are checked before anything is allocated or decompressed. Source: docs/protocol/wire.md
"Record batch".
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from duramen.limits import BATCH_BYTES_MAX, BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX
from duramen.wire.edge.batch_codec import Codec, compress, decompress

# offset  size  field
# 0       4     magic "DRB1"
# 4       4     CRC32C of everything from offset 8 to the end
# 8       1     codec (0 none, 2 zstd: of the columns)
# 9       1     producer id length in bytes (0: no producer)
# 10      2     flags: 1 txids, 2 timestamps, 4 headers
# 12      4     record count
# 16      4     encoded bytes (what follows the producer id)
# 20      4     decoded bytes
# 24      8     producer epoch
# 32      8     first producer sequence
# 40      8     smallest txid   (−2^63: none)
# 48      8     greatest txid   (−2^63: none)
# 56      8     greatest timestamp, unix ms
# 64      …     producer id, then columns: [txid i64 × n] [timestamp i64 × n]
#               [header bytes u32 × n] [body bytes u32 × n] headers bodies

Header = tuple[bytes, bytes]

MAGIC: Final = b"DRB1"
HEADER_BYTES: Final = 64
NO_TXID: Final = -(1 << 63)
TXIDS: Final = 1
TIMESTAMPS: Final = 2
HEADERS: Final = 4
_FLAGS: Final = TXIDS | TIMESTAMPS | HEADERS
PRODUCER_ID_BYTES_MAX: Final = 64
_CODECS: Final = {codec.value: codec for codec in Codec}
_COLUMNS_BYTES_MAX: Final = BATCH_BYTES_MAX + BATCH_RECORD_COUNT_MAX * 24
"""The largest legal records with every column."""

BATCH_ENCODED_MAX: Final = HEADER_BYTES + PRODUCER_ID_BYTES_MAX + _COLUMNS_BYTES_MAX

_HEAD: Final = struct.Struct("<4sIBBHIIIQQqqq")
_NAME: Final = struct.Struct("<HI")
_COUNT: Final = struct.Struct("<H")
_CODEC_AT: Final = 8
_FLAGS_AT: Final = 10
_DECODED: Final = struct.Struct("<I")
_DECODED_AT: Final = 20


class BatchError(ValueError):
    """The bytes are no record batch; `code` is the error code for the sender."""

    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code


class BatchProducer(NamedTuple):
    """Who made a batch, and which of its batches it is: what makes a retry safe.

    Attributes:
        producer_id: 1 to 64 printable ASCII characters, chosen by the client.
        epoch: ≥ 0; a higher one fences the lower ones of the same id.
        sequence: counts the batches of (log, id, epoch) from 0.
    """

    producer_id: str
    epoch: int
    sequence: int


class BatchInfo(NamedTuple):
    """What the fixed header says; `decoded_bytes`: of the columns."""

    record_count: int
    size_bytes: int
    flags: int
    max_txid: int | None
    max_timestamp_ms: int
    min_txid: int | None
    producer: BatchProducer | None
    codec: Codec
    decoded_bytes: int


class Batch(NamedTuple):
    """A decoded batch; the columns have `record_count` items each, or are None."""

    info: BatchInfo
    bodies: list[bytes]
    timestamps_ms: Sequence[int]
    txids: Sequence[int] | None
    headers: list[tuple[Header, ...]] | None


def encode_batch(
    bodies: Sequence[bytes],
    timestamp_ms: int,
    *,
    timestamps_ms: Sequence[int] | None = None,
    txids: Sequence[int] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
    producer: BatchProducer | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Encode records that passed `check_records`.

    Args:
        bodies: one per record, 1 to BATCH_RECORD_COUNT_MAX.
        timestamp_ms: of all records, where `timestamps_ms` does not give one each.
        txids: one per record, or None.
        headers: (name, value) pairs per record, or None.
        codec: by which the columns are compressed, where that makes them smaller.
    """
    count = len(bodies)
    assert 0 < count <= BATCH_RECORD_COUNT_MAX, count
    columns: list[bytes] = []
    flags = 0
    if txids is not None:
        flags |= TXIDS
        columns.append(_little(array("q", txids)))
    if timestamps_ms is not None:
        flags |= TIMESTAMPS
        columns.append(_little(array("q", timestamps_ms)))
    blobs: list[bytes] = []
    if headers is not None:
        flags |= HEADERS
        blobs = [encode_headers(pairs) for pairs in headers]
        columns.append(_little(array("I", map(len, blobs))))
    columns.append(_little(array("I", map(len, bodies))))
    decoded = b"".join([*columns, *blobs, *bodies])
    codec, body = compress(decoded, codec)
    return _encode(
        (codec, flags, count, len(body), len(decoded)), body, producer,
        (NO_TXID, NO_TXID) if txids is None else (min(txids), max(txids)),
        timestamp_ms if timestamps_ms is None else max(timestamps_ms),
    )  # fmt: skip


def wrap_columns(
    columns: Sequence[bytes | memoryview],
    *,
    flags: int,
    record_count: int,
    txids: tuple[int, int] | None,
    max_timestamp_ms: int,
    producer: BatchProducer | None,
) -> bytes:
    """A plain batch out of the columns that `read_columns` gave of it.

    Args:
        columns: those that `flags` names, in their order; then body sizes, headers, bodies.
        txids: the smallest and the greatest.
    """
    body = b"".join(columns)
    return _encode(
        (Codec.NONE, flags, record_count, len(body), len(body)), body, producer,
        txids or (NO_TXID, NO_TXID), max_timestamp_ms,
    )  # fmt: skip


def compress_batch(batch: bytes, codec: Codec) -> bytes:
    """The same batch with its columns compressed, where that makes them smaller.

    Raises:
        BatchError: no batch, or a damaged one.
    """
    info, data, at = read_columns(batch)
    columns = data[at:] if at else data
    codec, body = compress(columns, codec)
    txids = (NO_TXID, NO_TXID)
    if info.min_txid is not None and info.max_txid is not None:
        txids = info.min_txid, info.max_txid
    return _encode(
        (codec, info.flags, info.record_count, len(body), len(columns)), body, info.producer,
        txids, info.max_timestamp_ms,
    )  # fmt: skip


def _encode(
    shape: tuple[Codec, int, int, int, int],
    body: bytes,
    producer: BatchProducer | None,
    txids: tuple[int, int],
    max_timestamp_ms: int,
) -> bytes:
    """`shape`: codec, flags, records, encoded and decoded bytes."""
    codec, flags, count, encoded_bytes, decoded_bytes = shape
    name = b"" if producer is None else producer.producer_id.encode("ascii")
    assert len(name) <= PRODUCER_ID_BYTES_MAX, producer
    _, epoch, sequence = producer or ("", 0, 0)
    head = _HEAD.pack(
        MAGIC, 0, codec, len(name), flags, count, encoded_bytes, decoded_bytes, epoch, sequence,
        *txids, max_timestamp_ms,
    )  # fmt: skip
    crc = google_crc32c.extend(google_crc32c.value(head[8:] + name), body)
    return b"".join([MAGIC, crc.to_bytes(4, "little"), head[8:], name, body])


def check_records(bodies: Sequence[bytes], header_bytes: Sequence[int] | None = None) -> None:
    """Refuse records that no batch may hold.

    Raises:
        BatchError: with the code `record_too_large`, `batch_too_large`, `too_many_records`.
    """
    count = len(bodies)
    if count == 0:
        raise BatchError("an append needs at least one record")
    if count > BATCH_RECORD_COUNT_MAX:
        raise BatchError(
            f"{count} records: at most {BATCH_RECORD_COUNT_MAX} in a batch", "too_many_records"
        )
    sizes = list(map(len, bodies))
    if header_bytes is not None:
        sizes = [a + b for a, b in zip(sizes, header_bytes, strict=True)]
    if max(sizes) > RECORD_BYTES_MAX:
        raise BatchError(
            f"record {sizes.index(max(sizes))} has {max(sizes)} bytes: at most {RECORD_BYTES_MAX}",
            "record_too_large",
        )
    if sum(sizes) > BATCH_BYTES_MAX:
        raise BatchError(
            f"{sum(sizes)} bytes of records: at most {BATCH_BYTES_MAX} in a batch",
            "batch_too_large",
        )


def read_info(batch: bytes | memoryview) -> BatchInfo:
    """What the header says, without a look at the records; lengths and limits are checked.

    Raises:
        BatchError: no batch, or one beyond the limits.
    """
    if len(batch) < HEADER_BYTES:
        raise BatchError("a record batch has at least 64 bytes")
    (
        magic, _, codec_number, id_bytes, flags, count, encoded, decoded, epoch, sequence,
        min_txid, txid, timestamp_ms,
    ) = _HEAD.unpack_from(batch)  # fmt: skip
    if magic != MAGIC or flags & ~_FLAGS:
        raise BatchError("this is no record batch of a version that is spoken here")
    codec = _CODECS.get(codec_number)
    if codec is None:
        raise BatchError("a record batch is compressed by zstd, or not", "unsupported_media")
    size = HEADER_BYTES + id_bytes + encoded
    if size > len(batch) or max(encoded, decoded) > _COLUMNS_BYTES_MAX:
        raise BatchError("the record batch's lengths do not add up", "batch_too_large")
    if codec is Codec.NONE and encoded != decoded:
        raise BatchError("the record batch's lengths do not add up")
    if count == 0:
        raise BatchError("a record batch has at least one record")
    if count > BATCH_RECORD_COUNT_MAX:
        raise BatchError(
            f"{count} records: at most {BATCH_RECORD_COUNT_MAX} in a batch", "too_many_records"
        )
    producer = _read_producer(batch, id_bytes, epoch, sequence) if id_bytes else None
    if txid == NO_TXID:
        txid = min_txid = None
    return BatchInfo(count, size, flags, txid, timestamp_ms, min_txid, producer, codec, decoded)


def decoded_size(batch: bytes | memoryview) -> int:
    """Bytes of a checked batch's columns when they are decoded, without a look at the rest."""
    size: int = _DECODED.unpack_from(batch, _DECODED_AT)[0]
    return size


def came_compressed(batch: bytes) -> bool:
    """Whether a batch, checked or not, says that its columns are compressed."""
    return batch[_CODEC_AT : _CODEC_AT + 1] not in {b"", b"\0"}


def may_have_headers(batch: bytes, most_bytes: int) -> bool:
    """Whether a batch, checked or not, says that it has headers in columns beyond `most_bytes`."""
    if len(batch) < HEADER_BYTES or not batch[_FLAGS_AT] & HEADERS:
        return False
    return decoded_size(batch) > most_bytes


def check_batch(batch: bytes) -> BatchInfo:
    """Header, length and CRC of exactly one batch: what a process that passes it on must know.

    Raises:
        BatchError: no batch, beyond the limits, or damaged.
    """
    info = read_info(batch)
    if info.size_bytes != len(batch):
        raise BatchError("bytes follow the record batch")
    if int.from_bytes(batch[4:8], "little") != google_crc32c.value(batch[8:]):
        raise BatchError("the record batch's CRC does not match")
    return info


def decode_batch(batch: bytes) -> Batch:
    """The records of exactly one batch.

    Raises:
        BatchError: no batch, beyond the limits, or damaged.
    """
    info, batch, at = read_columns(batch)
    count = info.record_count
    txids, at = _column(batch, at, "q", count, present=bool(info.flags & TXIDS))
    timestamps, at = _column(batch, at, "q", count, present=bool(info.flags & TIMESTAMPS))
    header_sizes, at = _column(batch, at, "I", count, present=bool(info.flags & HEADERS))
    sizes, at = _column(batch, at, "I", count, present=True)
    assert sizes is not None
    headers = None
    if header_sizes is not None:
        ends = list(itertools.accumulate(header_sizes, initial=at))
        at = ends[-1]
        headers = [decode_headers(batch[a:b]) for a, b in itertools.pairwise(ends)]
    ends = list(itertools.accumulate(sizes, initial=at))
    if ends[-1] != len(batch):
        raise BatchError("the record batch's lengths do not add up")
    bodies = [batch[a:b] for a, b in itertools.pairwise(ends)]
    times = [info.max_timestamp_ms] * count if timestamps is None else timestamps
    return Batch(info, bodies, times, txids, headers)


def read_columns(batch: bytes) -> tuple[BatchInfo, bytes, int]:
    """The columns of exactly one batch, decompressed: bytes that hold them, and where they begin.

    Raises:
        BatchError: no batch, beyond the limits, or damaged.
    """
    info = check_batch(batch)
    at = HEADER_BYTES + batch[9]
    if info.codec is Codec.NONE:
        return info, batch, at
    decoded = decompress(batch[at:], info.decoded_bytes)
    if decoded is None:
        raise BatchError("the record batch cannot be decompressed to what its header says")
    return info, decoded, 0


def split_batches(data: bytes) -> list[bytes]:
    """Cut concatenated batches (an entry's payload) apart by their headers.

    Raises:
        BatchError: the bytes do not end where the last batch does.
    """
    batches = []
    at = 0
    while at < len(data):
        size = read_info(memoryview(data)[at:]).size_bytes
        batches.append(data[at : at + size])
        at += size
    return batches


def header_size(pairs: Sequence[Header]) -> int:
    """Encoded bytes of one record's headers."""
    return _COUNT.size + sum(_NAME.size + len(name) + len(value) for name, value in pairs)


def _read_producer(
    batch: bytes | memoryview, id_bytes: int, epoch: int, sequence: int
) -> BatchProducer:
    name = bytes(batch[HEADER_BYTES : HEADER_BYTES + id_bytes])
    if id_bytes > PRODUCER_ID_BYTES_MAX or not all(0x20 <= byte < 0x7F for byte in name):
        raise BatchError("a producer's id is 1 to 64 printable ASCII characters")
    return BatchProducer(name.decode("ascii"), epoch, sequence)


def encode_headers(pairs: Sequence[Header]) -> bytes:
    """One record's headers, as the column of headers has them."""
    parts = [_COUNT.pack(len(pairs))]
    for name, value in pairs:
        parts += (_NAME.pack(len(name), len(value)), name, value)
    return b"".join(parts)


def decode_headers(blob: bytes) -> tuple[Header, ...]:
    """One record's headers.

    Raises:
        BatchError: they do not end where they should.
    """
    try:
        (count,) = _COUNT.unpack_from(blob)
        pairs = []
        at = _COUNT.size
        for _ in range(count):
            name_bytes, value_bytes = _NAME.unpack_from(blob, at)
            at += _NAME.size
            middle, end = at + name_bytes, at + name_bytes + value_bytes
            pairs.append((blob[at:middle], blob[middle:end]))
            at = end
    except struct.error:
        raise BatchError("a record's headers are cut short") from None
    if at != len(blob):
        raise BatchError("a record's headers do not add up")
    return tuple(pairs)


def _column(
    batch: bytes, at: int, typecode: str, count: int, *, present: bool
) -> tuple[array[int] | None, int]:
    if not present:
        return None, at
    column: array[int] = array(typecode)
    end = at + count * column.itemsize
    if end > len(batch):
        raise BatchError("the record batch's lengths do not add up")
    column.frombytes(batch[at:end])
    if sys.byteorder == "big":
        column.byteswap()
    return column, end


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
