"""Segments for tests of the archive's formats: entries of every kind of record, as bytes.

Called by tests of `duramen.wire.cold` and of what archives and reads it. Not a test itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duramen.core.segment import Totals
from duramen.core.sequencer.exactly_once.stamps import TokenRecord
from duramen.ids import EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.wire.cold.manifest import FilePart
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.part_writer import PartWriter
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX
from duramen.wire.control_record import encode_control
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import CONTROL, STATE, check_entry, encode_entry
from duramen.wire.record_batch import BatchProducer, encode_batch, read_info

LOG = LogId(7)
EPOCH = Epoch(3)
LEDGER = ledger_of(LOG, EPOCH)
START_SEQ_NUM = 1_000


@dataclass
class SegmentBytes:
    """A segment's entries as its sequencer would have written them."""

    ledger_id: LedgerId = LEDGER
    start_seq_num: int = START_SEQ_NUM
    entries: dict[EntryId, bytes] = field(default_factory=dict)
    totals: Totals = Totals()
    next_entry: EntryId = EntryId(0)

    def add(self, *batches: bytes, has_state: bool = False, is_compressing: bool = False) -> None:
        """Append an entry of record batches."""
        own = Totals()
        for batch in batches:
            info = read_info(batch)
            own = own.plus(
                Totals(info.record_count, len(batch), info.max_txid, info.max_timestamp_ms)
            )
        self._add(batches, own, STATE * has_state, is_compressing=is_compressing)

    def add_control(self, data: bytes = encode_control(TokenRecord("a token"))) -> None:
        """Append a control entry."""
        self._add([data], Totals(0, len(data)), CONTROL | STATE)

    def lose(self) -> None:
        """The last entry is not there any more; its totals stay in those that follow."""
        del self.entries[EntryId(self.next_entry - 1)]

    def _add(
        self, batches: Sequence[bytes], own: Totals, flags: int, *, is_compressing: bool = False
    ) -> None:
        after = self.totals.plus(own)
        self.entries[self.next_entry] = encode_entry(
            ledger_id=self.ledger_id,
            entry_id=self.next_entry,
            before=self.totals,
            batches=batches,
            record_count=own.record_count,
            after=after,
            flags=flags,
            is_compressing=is_compressing,
        )
        self.totals = after
        self.next_entry = EntryId(self.next_entry + 1)


def make_every_kind(
    ledger_id: LedgerId = LEDGER, start_seq_num: int = START_SEQ_NUM
) -> SegmentBytes:
    """Every kind of record and entry that a log may hold, holes and lost ranges too."""
    segment = SegmentBytes(ledger_id, start_seq_num)
    segment.add(encode_batch([b"plain", b"", b"third"], 1_000))
    segment.add(encode_batch([b"a"], 1_001, txids=[5]), encode_batch([b"b"], 1_002, txids=[5]))
    headers = [[(b"name", b"one"), (b"name", b"two"), (b"", b"")], []]
    segment.add(encode_batch([b"with", b"headers"], 900, headers=headers, txids=[5, 6]))
    segment.add(encode_batch([b"empty headers"], 1_003, headers=[[]]))
    segment.add(encode_batch([b""], 1_004), encode_batch([b"", b""], 1_004))
    producer = BatchProducer("who", 2**53 - 1, 17)
    segment.add(
        encode_batch([b"x", b"y"], 0, timestamps_ms=[1_010, 1_009], producer=producer),
        encode_batch([b"z"], 1_011, producer=producer._replace(sequence=18)),
        has_state=True,
    )
    segment.add_control()
    segment.add(encode_batch([b"once lost"], 9_000, txids=[900]))
    segment.lose()
    segment.add_control()
    segment.add(encode_batch([b"behind"], 1_012))
    segment.add(encode_batch([b"press me " * 200] * 3, 1_013, codec=Codec.ZSTD), has_state=True)
    segment.add(
        encode_batch([b"after"], -5, txids=[901], producer=BatchProducer("old", 0, 2**64 - 1))
    )
    segment.add(encode_batch([bytes(range(256)) * 4096], 1_014))
    return segment


def make_compressed(ledger_id: LedgerId = LEDGER) -> SegmentBytes:
    """Compressed entries between plain ones, with batches that clients compressed among them."""
    segment = SegmentBytes(ledger_id)
    producer = BatchProducer("who", 3, 17)
    segment.add(encode_batch([b"plain"], 1_000))
    segment.add(
        encode_batch([b"press us " * 200] * 3, 1_013, producer=producer),
        encode_batch([b"together " * 200], 1_013, txids=[900]),
        has_state=True,
        is_compressing=True,
    )
    segment.add_control()
    segment.add(
        encode_batch([b"press me " * 200] * 3, 1_014, codec=Codec.ZSTD),
        encode_batch([b"and me " * 200] * 3, 1_014, headers=[[(b"name", b"one")], [], []]),
        is_compressing=True,
    )
    segment.add(encode_batch([b"lost " * 400], 1_015), is_compressing=True)
    segment.lose()
    segment.add(encode_batch([b"last " * 400], 1_016), is_compressing=True)
    assert sum(check_entry(entry).is_compressed for entry in segment.entries.values()) == 3
    return segment


def write_part(
    segment: SegmentBytes, *, row_group_bytes: int = ROW_GROUP_BYTES_MAX, name: str | None = None
) -> tuple[bytes, FilePart]:
    """All entries as one file."""
    written: list[bytes] = []
    writer = PartWriter(
        written.append,
        name=name or "part-00000.parquet",
        ledger_id=segment.ledger_id,
        start_seq_num=segment.start_seq_num,
        row_group_bytes=row_group_bytes,
    )
    for entry in segment.entries.values():
        writer.add(entry)
    part = writer.finish()
    return b"".join(written), part


def open_part(data: bytes, part: FilePart) -> PartReader:
    """A reader of a file in memory."""

    def read(offset: int, size_bytes: int) -> bytes:
        return data[offset : offset + size_bytes]

    return PartReader(read, part, ledger_id=LEDGER, start_seq_num=START_SEQ_NUM)
