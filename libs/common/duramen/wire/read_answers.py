"""The binary answer of `GET …/records` (`application/vnd.duramen.batch`): batches passed through.

One frame (`wire.frame`, magic "DBRS"), a row per record batch, the batches as payload, untouched:

    row  epoch u32, entry u32, slot of the batch's first record u32, 0 u32,
         sequence number of the batch's first record u64, bytes u32, records u32

Batches are whole. The first may begin before the position that was asked for and the last may pass
the count that was asked for: whoever decodes them cuts. Called by the read proxy, and by clients to
read its answers. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duramen.ids import Dlsn, EntryId, Epoch
from duramen.wire.entry import EntryError, EntryInfo, open_payload, read_entry_info
from duramen.wire.frame import FrameError, pack_frame, parse_frame, split_payload
from duramen.wire.record_batch import Batch, BatchError, decode_batch, read_info

MEDIA_TYPE: Final = "application/vnd.duramen.batch"
MAGIC: Final = b"DBRS"

START_HEADER: Final = "Duramen-Start"
"""`seq:N` of what was asked for first: a record, or a hole before it; the first batch may begin
before."""

NEXT_HEADER: Final = "Duramen-Next"
MOVED_HEADER: Final = "Duramen-Moved-To"
"""`seq:N`: the position lies in the truncated prefix, this is the oldest record that is left."""

TAIL_HEADER: Final = "Duramen-Tail"

_ROW: Final = struct.Struct("<IIIIQII")


class PlacedBatch(NamedTuple):
    """A record batch, still encoded, with the place of its first record."""

    dlsn: Dlsn
    seq_num: int
    record_count: int
    batch: bytes | memoryview

    @property
    def end_seq_num(self) -> int:
        """One past the sequence number of the last record."""
        return self.seq_num + self.record_count

    def decode(self) -> Batch:
        """The records.

        Raises:
            BatchError: damaged.
        """
        return decode_batch(bytes(self.batch))


def place_batches(
    entry: bytes | memoryview, epoch: Epoch, start_seq_num: int
) -> Iterator[PlacedBatch]:
    """The batches of one checked entry, as views, of it or of what it is decompressed to; control
    entries have none for readers.

    Args:
        start_seq_num: sequence number of the segment's first record.

    Raises:
        EntryError: the entry's batches do not add up to what its header says.
    """
    info = read_entry_info(entry)
    if info.is_control:
        return
    view = open_payload(entry)
    at, slot = 0, 0
    seq_num = start_seq_num + info.first_position
    while at < len(view):
        try:
            batch = read_info(view[at:])
        except BatchError as error:
            raise EntryError(f"entry {info.entry_id}: {error}") from error
        end = at + batch.size_bytes
        dlsn = Dlsn(epoch, info.entry_id, slot)
        yield PlacedBatch(dlsn, seq_num + slot, batch.record_count, view[at:end])
        at, slot = end, slot + batch.record_count
    _check_count(info, slot)


def _check_count(info: EntryInfo, record_count: int) -> None:
    if record_count != info.record_count:
        raise EntryError(f"entry {info.entry_id}: {record_count} records, not {info.record_count}")


def pack_batches(batches: Sequence[PlacedBatch]) -> bytes:
    """Encode a binary answer."""
    rows = [(*b.dlsn, 0, b.seq_num, len(b.batch), b.record_count) for b in batches]
    return pack_frame(MAGIC, _ROW, rows, [b.batch for b in batches])


def parse_batches(data: bytes) -> list[PlacedBatch]:
    """Read a binary answer; the batches are views of `data`, checked when they are decoded.

    Raises:
        FrameError: no such frame.
    """
    frame = parse_frame(data, MAGIC, _ROW)
    if any(row[2] + row[6] > 0xFFFF_FFFF or row[6] == 0 for row in frame.rows):
        raise FrameError("a batch has at least one record, and slots are of 32 bits")
    bodies = split_payload(frame.payload, [row[5] for row in frame.rows])
    return [
        PlacedBatch(Dlsn(Epoch(row[0]), EntryId(row[1]), row[2]), row[4], row[6], body)
        for row, body in zip(frame.rows, bodies, strict=True)
    ]
