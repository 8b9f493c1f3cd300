"""Entries of metadata logs: records packed into batches to be appended, and read out of entries.

Nodes of one log are alike, so a batch is compressed; what a listing reads is a tenth of them. An
entry is read whole or not at all: of one that is damaged nothing is known, and nothing is passed
over. Control entries hold none.

Called by keepers and readers of metadata logs. Source: docs/protocol/metadata-logs.md "The record".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.metadata_log.record import MetadataRecord
from duramen.ids import LogId, epoch_of, log_of, lsn_of, metadata_log_of
from duramen.limits import BATCH_RECORD_COUNT_MAX, ENTRY_TARGET_BYTES
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import EntryError, check_entry, open_payload
from duramen.wire.nodes.fields import MetadataJsonError
from duramen.wire.nodes.metadata_records import encode_metadata_record, read_metadata_record
from duramen.wire.record_batch import (
    BatchError,
    check_records,
    decode_batch,
    encode_batch,
    split_batches,
)


def pack_metadata_batches(records: Sequence[MetadataRecord], timestamp_ms: int) -> list[bytes]:
    """Batches to be appended one after the other, in the order of the records.

    Raises:
        BatchError: a record is larger than one may be; its writer leaves such nodes where they are.
    """
    batches = []
    for bodies in _group([encode_metadata_record(record) for record in records]):
        check_records(bodies)
        batches.append(encode_batch(bodies, timestamp_ms, codec=Codec.ZSTD))
    return batches


def read_metadata_entry(entry: bytes, log_id: LogId) -> list[PlacedRecord]:
    """The records of one whole entry of the metadata log of `log_id`; kinds not known are left out.

    Raises:
        MetadataJsonError: it is damaged, of a newer version, or of another log.
    """
    try:
        info = check_entry(entry)
        if log_of(info.ledger_id) != metadata_log_of(log_id):
            raise MetadataJsonError(f"ledger {info.ledger_id} is none of log {log_id}'s metadata")
        if info.is_control:
            return []
        batches = [decode_batch(batch) for batch in split_batches(bytes(open_payload(entry)))]
    except (EntryError, BatchError) as error:
        raise MetadataJsonError(f"this is no entry of a metadata log: {error}") from error
    lsn = lsn_of(epoch_of(info.ledger_id), info.entry_id)
    read = [read_metadata_record(body, log_id) for batch in batches for body in batch.bodies]
    return [PlacedRecord(lsn, record) for record in read if record is not None]


def _group(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    """So many at once as an entry is to have; one that is larger has its own."""
    group: list[bytes] = []
    group_bytes = 0
    for body in bodies:
        is_full = group_bytes + len(body) > ENTRY_TARGET_BYTES
        if group and (is_full or len(group) == BATCH_RECORD_COUNT_MAX):
            yield group
            group, group_bytes = [], 0
        group.append(body)
        group_bytes += len(body)
    if group:
        yield group
