"""Puts segments into a cold store without Spark: entries in, files, manifest and `ColdCopy` out.

It takes the formats' own writer (`duramen.wire.cold`) and none of the archive job's care, for tests
of what reads archives. Used by tests of cold reads; not a test itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import uuid4

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.runtime.cold import ColdStore
from duramen.wire.cold.manifest import FilePart, Manifest, encode_manifest
from duramen.wire.cold.part_writer import PartWriter
from duramen.wire.cold.paths import attempt_folder, manifest_path, part_name
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX

UNIX_MS = 1_790_000_000_000


def archive_segment(
    store: ColdStore,
    cluster: str,
    log: LogNode,
    segment: AnySegment,
    entries: Sequence[bytes],
    *,
    part_count: int = 1,
    row_group_bytes: int = ROW_GROUP_BYTES_MAX,
) -> ColdCopy:
    """Archive a CLOSED segment; the copy is rechecked already.

    Args:
        cluster: its uuid.
        entries: all of the segment, ascending.
        part_count: files that they are put into.
    """
    assert segment.last_entry is not None and segment.totals is not None, segment
    attempt = uuid4().hex
    folder = attempt_folder(cluster, segment.log_id, segment.epoch, attempt)
    files = []
    per_part = max(1, -(-len(entries) // part_count))
    for index, begin in enumerate(range(0, len(entries), per_part)):
        name = part_name(index)
        writer = store.open_writer(folder + name)
        files.append(
            _write(writer.write, name, segment, entries[begin : begin + per_part], row_group_bytes)
        )
        writer.commit()
    manifest = Manifest(
        cluster=cluster,
        namespace=log.namespace,
        log=log.name,
        log_id=segment.log_id,
        epoch=segment.epoch,
        attempt=attempt,
        start_seq_num=segment.start_seq_num or 0,
        last_entry=segment.last_entry,
        totals=segment.totals,
        files=tuple(files),
        holes=segment.holes,
        lost=segment.lost,
        archived_unix_ms=UNIX_MS,
    )
    data = encode_manifest(manifest)
    store.put_new(manifest_path(cluster, segment.log_id, segment.epoch), data)
    sha256 = hashlib.sha256(data).hexdigest()
    return ColdCopy(attempt, sha256, manifest.size_bytes, UNIX_MS, UNIX_MS + 1)


def _write(
    write: object, name: str, segment: AnySegment, entries: Sequence[bytes], row_group_bytes: int
) -> FilePart:
    assert callable(write)
    writer = PartWriter(
        write,
        name=name,
        ledger_id=segment.ledger_id,
        start_seq_num=segment.start_seq_num or 0,
        row_group_bytes=row_group_bytes,
    )
    for entry in entries:
        writer.add(entry)
    return writer.finish()
