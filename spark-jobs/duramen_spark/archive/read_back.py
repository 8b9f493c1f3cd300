"""Reads a stored file back, whole, and compares it with what the manifest says or is to say of it.

Every section's SHA-256, every entry's identity, every count and sum: what passes here is the
segment, record for record. Blocking, a row group at a time.

Called by `part_task` and `recheck`. Source: docs/protocol/archive.md "From hot to cold: five
steps", step 2, A1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.runtime.cold import ColdStore
from duramen.wire.cold.chain import Chain, chain_identities, chain_records
from duramen.wire.cold.manifest import FilePart
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.rebuild import ColdDataError

_MAGIC: Final = b"PAR1"
"""What precedes the first row group; all that no section's checksum speaks of."""


def read_back(store: ColdStore, path: str, part: FilePart, segment: AnySegment) -> None:
    """Compare a file.

    Raises:
        ColdDataError: it is not what `part` says.
        NotThere: there is none.
        ColdStoreDown: it cannot be read now.
    """
    assert segment.start_seq_num is not None, segment
    if store.size(path) != part.size_bytes:
        raise ColdDataError(f"{path} has {store.size(path)} bytes, not {part.size_bytes}")
    if part.row_groups[0].offset != len(_MAGIC) or store.read(path, 0, len(_MAGIC)) != _MAGIC:
        raise ColdDataError(f"{path} is no Parquet file")
    reader = PartReader(
        partial(store.read, path),
        part,
        ledger_id=segment.ledger_id,
        start_seq_num=segment.start_seq_num,
    )
    identities, records = Chain(), Chain()
    for index in range(len(part.row_groups)):
        sums = [entry.sum for entry in reader.read_entries(index)]
        identities = identities.plus(
            chain_identities(segment.ledger_id, [(one.entry_id, one.identity_crc) for one in sums])
        )
        records = records.plus(
            chain_records(
                segment.ledger_id, [(one.entry_id, one.flags, one.plain_crc) for one in sums]
            )
        )
    if identities != part.identities:
        raise ColdDataError(f"{path} has other entries than were written to it")
    if records != part.records:
        raise ColdDataError(f"{path} has other records than were written to it")
