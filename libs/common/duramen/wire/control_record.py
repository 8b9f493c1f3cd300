"""Control records: what a sequencer writes into the log for later sequencers, never for readers.

A control entry (flag of `wire.entry`) has one as its only batch, and no records: it has a place in
the stream and no sequence number. Kinds that are not known here are passed over: a newer sequencer
wrote them for what only it does.

Called by sequencers (through `entry_history`) and tools. Source: docs/protocol/write.md "Exactly
once", docs/protocol/wire.md.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from duramen.core.sequencer.exactly_once.stamps import (
    ControlRecord,
    ProducerRow,
    Result,
    SnapshotPart,
    TokenRecord,
)
from duramen.ids import Dlsn, EntryId, Epoch, Lsn

# offset  size  field
# 0       4     magic "DCR1"
# 4       4     CRC32C of everything from offset 8 to the end
# 8       1     kind: 1 fencing token, 2 part of a snapshot
# 9       3     0
# 12      …     token: bytes u32, then the token in UTF-8 (none in force: 0 bytes)
#               and for a part of a snapshot:
#               complete through LSN u64, number u32, parts u32, rows u32; then the rows:
#               bytes of the id u32, producer epoch u64, last sequence u64, used unix ms i64,
#               results u32, id; results × (epoch u32, entry u32, slot u32, records u32,
#               sequence number u64, timestamp ms i64), oldest first

MAGIC: Final = b"DCR1"
TOKEN: Final = 1
SNAPSHOT: Final = 2

_HEAD: Final = struct.Struct("<4sIB3xI")
_PART: Final = struct.Struct("<QIII")
_ROW: Final = struct.Struct("<IQQqI")
_RESULT: Final = struct.Struct("<IIIIQq")


class ControlRecordError(ValueError):
    """The bytes are no control record, or a damaged one."""


def encode_control(record: ControlRecord) -> bytes:
    """Encode a control record."""
    token = record.token.encode()
    kind = TOKEN if isinstance(record, TokenRecord) else SNAPSHOT
    parts = [_HEAD.pack(MAGIC, 0, kind, len(token)), token]
    if isinstance(record, SnapshotPart):
        counts = (record.number, record.part_count, len(record.rows))
        parts.append(_PART.pack(record.through, *counts))
        for name, epoch, last, used_unix_ms, results in record.rows:
            spelt = name.encode("ascii")
            parts += (_ROW.pack(len(spelt), epoch, last, used_unix_ms, len(results)), spelt)
            parts += (
                _RESULT.pack(*start, record_count, seq_num, timestamp_ms)
                for start, seq_num, record_count, timestamp_ms in results
            )
    data = b"".join(parts)
    return b"".join([MAGIC, google_crc32c.value(data[8:]).to_bytes(4, "little"), data[8:]])


def read_control(data: bytes) -> ControlRecord | None:
    """Read a control record; None: of a kind that is not known here.

    Raises:
        ControlRecordError: no control record, cut short, or damaged.
    """
    try:
        magic, crc, kind, token_bytes = _HEAD.unpack_from(data)
        if magic != MAGIC or crc != google_crc32c.value(data[8:]):
            raise ControlRecordError("no control record, or a damaged one")
        if kind not in (TOKEN, SNAPSHOT):
            return None
        at = _HEAD.size + token_bytes
        token = data[_HEAD.size : at].decode()
        if kind == TOKEN:
            record: ControlRecord = TokenRecord(token)
        else:
            record, at = _read_part(data, at, token)
    except (struct.error, UnicodeDecodeError) as error:
        raise ControlRecordError("the control record is cut short") from error
    if at != len(data):
        raise ControlRecordError("the control record's lengths do not add up")
    return record


def _read_part(data: bytes, at: int, token: str) -> tuple[SnapshotPart, int]:
    through, number, part_count, row_count = _PART.unpack_from(data, at)
    at += _PART.size
    rows = []
    for _ in range(row_count):
        id_bytes, epoch, last, used_unix_ms, result_count = _ROW.unpack_from(data, at)
        at += _ROW.size + id_bytes
        name = data[at - id_bytes : at].decode("ascii")
        results = []
        for _ in range(result_count):
            first, entry, slot, record_count, seq_num, time_ms = _RESULT.unpack_from(data, at)
            at += _RESULT.size
            start = Dlsn(Epoch(first), EntryId(entry), slot)
            results.append(Result(start, seq_num, record_count, time_ms))
        rows.append(ProducerRow(name, epoch, last, used_unix_ms, tuple(results)))
    return SnapshotPart(Lsn(through), number, part_count, token, tuple(rows)), at
