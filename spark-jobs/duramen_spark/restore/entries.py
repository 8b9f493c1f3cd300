"""Archived entries as entries of another log: same ids, records and totals, another ledger.

Entries carry their ledger and a checksum over it, so each is encoded anew. Batches that were stored
compressed are compressed again, which may take other bytes than it took then: lengths are counted
as they are now, everything else as it was.

Called by `restore.writer`. Source: docs/protocol/wire.md "Entry", ADR 0014.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.core.segment import Totals
from duramen.ids import EntryId, LedgerId
from duramen.wire.cold.rebuild import RebuiltEntry
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import CONTROL, HEADER_BYTES, STATE, encode_entry, read_entry_info
from duramen.wire.record_batch import compress_batch, split_batches


class NewEntry(NamedTuple):
    """An entry of the restored log."""

    entry_id: EntryId
    data: bytes
    crc: int


class Reencoding:
    """Encodes the entries of one segment anew, in their order.

    Attributes:
        drift_bytes: by how much batches so far are longer than they were.
    """

    def __init__(self, ledger_id: LedgerId) -> None:
        self._ledger_id = ledger_id
        self.drift_bytes = 0

    def encode(self, entry: RebuiltEntry, length_before: int) -> NewEntry:
        """An entry of the restored log.

        Args:
            length_before: bytes of batches before it in the archived segment, as its row group
                or the entry before it says.
        """
        info = read_entry_info(entry.data)
        payload = entry.data[HEADER_BYTES:]
        batches = [payload]
        if not entry.is_exact:
            batches = [compress_batch(batch, Codec.ZSTD) for batch in split_batches(payload)]
        elif not info.is_control:
            batches = split_batches(payload)
        stored_bytes = entry.totals.length_bytes - length_before
        now_bytes = sum(map(len, batches))
        begin = length_before + self.drift_bytes
        self.drift_bytes += now_bytes - stored_bytes
        data = encode_entry(
            ledger_id=self._ledger_id,
            entry_id=entry.entry_id,
            before=Totals(info.first_position, begin),
            batches=batches,
            record_count=info.record_count,
            after=entry.totals._replace(length_bytes=begin + now_bytes),
            flags=CONTROL * info.is_control | STATE * info.has_state,
        )
        return NewEntry(entry.entry_id, data, read_entry_info(data).crc)
