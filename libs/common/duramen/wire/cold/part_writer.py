"""Writes one Parquet file of a segment's entries, and says what the manifest is to say of it.

Entries are handed in one by one, in their order; bytes go to a sink as row groups fill. What is in
memory is one row group, twice while it is encoded. Offsets and checksums are taken from the bytes
on their way out, so what is compared later is what was meant to be there.

Not here: stores (`duramen.runtime.cold`) and where entries come from. Called by the archive job and
compaction. Source: docs/protocol/archive.md "Files".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId
from duramen.wire.cold.chain import Chain, chain_identities, chain_records
from duramen.wire.cold.manifest import FilePart, RowGroup
from duramen.wire.cold.rows import RowGroupBuilder, prepare_entry
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX, SCHEMA

_DICTIONARY_COLUMNS: Final = [
    "epoch", "entry", "producer_id", "producer_epoch", "producer_seq", "flags", "entry_crc",
    "entry_bytes",
]  # fmt: skip
"""Constant through a batch: a dictionary and runs make next to nothing of them."""

_DELTA_COLUMNS: Final = dict.fromkeys(
    ("seq_num", "slot", "txid", "timestamp_ms"), "DELTA_BINARY_PACKED"
)
_STATISTICS_COLUMNS: Final = [
    "seq_num", "epoch", "entry", "slot", "txid", "timestamp_ms", "producer_id", "producer_epoch",
    "producer_seq", "flags", "entry_crc", "entry_bytes",
]  # fmt: skip
"""All but bodies and headers, whose extremes would be copies of them and tell nobody anything."""

MAGIC: Final = b"PAR1"
"""What a file begins with."""


class HashingSink:
    """What pyarrow writes to: counts and hashes what passes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.position = 0
        self.whole = hashlib.sha256()
        self.section = hashlib.sha256()
        self.closed = False

    def write(self, data: bytes) -> int:
        data = bytes(data)
        self.whole.update(data)
        self.section.update(data)
        self.position += len(data)
        self._write(data)
        return len(data)

    def cut(self) -> str:
        """SHA-256 of what passed since the last cut."""
        digest = self.section.hexdigest()
        self.section = hashlib.sha256()
        return digest

    def mute(self) -> None:
        """Pass nothing on any more: a writer of Parquet that is given up still ends its file."""
        self._write = len

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def open_parquet(sink: HashingSink) -> pq.ParquetWriter:
    """Begin a file of archived rows; the sink stands before its first row group."""
    writer = pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARY_COLUMNS,
        column_encoding=_DELTA_COLUMNS,
        write_statistics=_STATISTICS_COLUMNS,
        store_schema=True,
    )
    assert sink.position == len(MAGIC), sink.position
    sink.cut()
    return writer


class PartWriter:
    """One file; `add` each entry, then `finish`.

    Args:
        write: takes the file's next bytes; its errors pass through.
        name: of the file within its attempt's folder.
        row_group_bytes: of a row group before it is encoded, at most ROW_GROUP_BYTES_MAX.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        name: str,
        ledger_id: LedgerId,
        start_seq_num: int,
        row_group_bytes: int = ROW_GROUP_BYTES_MAX,
    ) -> None:
        assert 0 < row_group_bytes <= ROW_GROUP_BYTES_MAX, row_group_bytes
        self._name = name
        self._ledger_id = ledger_id
        self._row_group_bytes = row_group_bytes
        self._sink = HashingSink(write)
        self._writer: pq.ParquetWriter | None = None
        self._builder = RowGroupBuilder(ledger_id, start_seq_num)
        self._groups: list[RowGroup] = []
        self._running: Totals | None = None
        self._last_entry: EntryId | None = None
        self._identities = Chain()
        self._records = Chain()

    @property
    def is_empty(self) -> bool:
        """Whether no entry was added."""
        return self._last_entry is None

    def add(self, entry: bytes) -> None:
        """Add the entry that follows.

        Raises:
            EntryError, BatchError: it is damaged, or nothing that rows can hold.
        """
        ready = prepare_entry(entry, self._running)
        entry_id = ready.info.entry_id
        assert self._last_entry is None or self._last_entry < entry_id, (self._last_entry, entry_id)
        builder = self._builder
        if not builder.is_empty and (
            builder.row_bytes + ready.row_bytes > self._row_group_bytes
            or builder.totals_after != ready.totals_before
        ):
            self._write_group()
        builder.add(ready)
        self._last_entry = entry_id
        self._running = ready.info.totals

    def finish(self) -> FilePart:
        """Write what is left and the footer; what the manifest is to say of the file."""
        assert not self.is_empty, "a file without entries is not written"
        if not self._builder.is_empty:
            self._write_group()
        assert self._writer is not None
        self._writer.close()
        footer_sha256 = self._sink.cut()
        return FilePart(
            name=self._name,
            size_bytes=self._sink.position,
            sha256=self._sink.whole.hexdigest(),
            footer_sha256=footer_sha256,
            row_groups=tuple(self._groups),
            identities=self._identities,
            records=self._records,
        )

    def _write_group(self) -> None:
        builder, sink = self._builder, self._sink
        sums = builder.sums
        before, after = builder.totals_before, builder.totals_after
        assert before is not None and after is not None
        table = builder.finish()
        if self._writer is None:
            self._writer = open_parquet(sink)
        offset = sink.position
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._groups.append(
            RowGroup(
                offset=offset,
                size_bytes=sink.position - offset,
                sha256=sink.cut(),
                row_count=table.num_rows,
                entry_count=len(sums),
                first_entry=sums[0].entry_id,
                last_entry=sums[-1].entry_id,
                totals_before=before,
                totals_after=after,
            )
        )
        identities = chain_identities(
            self._ledger_id, [(one.entry_id, one.identity_crc) for one in sums]
        )
        records = chain_records(
            self._ledger_id, [(one.entry_id, one.flags, one.plain_crc) for one in sums]
        )
        self._identities = self._identities.plus(identities)
        self._records = self._records.plus(records)
