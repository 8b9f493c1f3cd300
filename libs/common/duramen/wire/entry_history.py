"""What an entry says to a rebuild: its control record, or the producers of its batches.

Only headers of batches are looked at, so of a compressed entry with state all is decompressed, and
of one without nothing. Bytes were checked before (`wire.entry.check_entry`).
Called by the sequencer's driver and those of the tests. Source: docs/protocol/recovery.md
"Takeover".
"""

from __future__ import annotations

from duramen.core.sequencer.exactly_once.stamps import HistoryEntry, Stamp, StampedBatch
from duramen.wire.control_record import ControlRecordError, read_control
from duramen.wire.entry import EntryError, open_payload, read_entry_info
from duramen.wire.record_batch import BatchError, read_info


def read_history(entry: bytes | memoryview, *, is_header_only: bool) -> HistoryEntry:
    """The state that one entry carries.

    Raises:
        EntryError: no entry, or one with a batch or control record that is none.
    """
    info = read_entry_info(entry)
    # A control entry of `commit: control` is empty: it only carried the LAC.
    is_control = info.is_control and info.payload_bytes > 0
    if is_header_only:
        return HistoryEntry(info.entry_id, info.has_state, is_control)
    if not (is_control or info.has_state):
        return HistoryEntry(info.entry_id, False, False)
    body = open_payload(entry)
    try:
        if is_control:
            record = read_control(bytes(body))
            return HistoryEntry(info.entry_id, info.has_state, True, record)
        return HistoryEntry(info.entry_id, True, False, None, _stamps(body, info.first_position))
    except (BatchError, ControlRecordError) as error:
        raise EntryError(f"entry {info.entry_id}: {error}") from error


def _stamps(body: memoryview, first_position: int) -> tuple[StampedBatch, ...]:
    stamped = []
    at = slot = 0
    while at < len(body):
        batch = read_info(body[at:])
        if batch.producer is not None:
            stamp = Stamp(*batch.producer)
            position = first_position + slot
            stamped.append(
                StampedBatch(stamp, slot, position, batch.record_count, batch.max_timestamp_ms)
            )
        at += batch.size_bytes
        slot += batch.record_count
    return tuple(stamped)
