"""Writes one shared file: the row groups of several segments, copied, and the file read back.

A plain function over plain values. What it gives back says what each segment's manifest is to say;
nothing counts before the nodes name the attempt. Memory: a row group, a few times.

Called by `compact.driver` through a runner. Source: ADR 0016.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.errors import DuramenError
from duramen.runtime.cold import AlreadyThere, ColdStore, NotThere, find_manifest, open_cold_store
from duramen.wire.cold.chain import Chain
from duramen.wire.cold.manifest import FilePart, Manifest, ManifestError
from duramen.wire.cold.paths import part_name, shared_folder
from duramen.wire.cold.rebuild import ColdDataError
from duramen.wire.cold.shared_writer import SharedWriter
from duramen.wire.metadata_json import read_any_segment
from duramen_spark.cold_parts import open_parts
from duramen_spark.verify.check import is_whole

_FAULTS: Final = (
    ColdDataError, ManifestError, NotThere, AlreadyThere, DuramenError, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Segments of one log that are to share a file.

    Attributes:
        segments: their nodes, by epoch; none is empty.
        unix_ms: now.
    """

    cold_store: str
    cluster_uuid: str
    segments: tuple[bytes, ...]
    attempt: str
    row_group_bytes: int
    unix_ms: int


@dataclass(frozen=True, slots=True)
class CompactResult:
    """New manifests of the segments, in their order, read back; `failure`: why there are none."""

    manifests: tuple[Manifest, ...] = ()
    failure: str = ""


def compact_segments(task: CompactTask) -> CompactResult:
    """Run one task."""
    try:
        store = open_cold_store(task.cold_store)
        return CompactResult(tuple(write_shared(store, task)))
    except _FAULTS as error:
        return CompactResult(failure=f"{type(error).__name__}: {error}")


def write_shared(store: ColdStore, task: CompactTask) -> list[Manifest]:
    """Write the file; the new manifests.

    Raises:
        ColdDataError, ManifestError, NotThere: an old copy is not whole, or the new one is not.
        ColdStoreDown: nothing is known.
    """
    segments = [read_any_segment(data) for data in task.segments]
    olds = [load_manifest(store, task.cluster_uuid, segment) for segment in segments]
    name = part_name(0)
    path = shared_folder(task.cluster_uuid, segments[0].log_id, task.attempt) + name
    file = store.open_writer(path)
    writer = SharedWriter(file.write, name=name, row_group_bytes=task.row_group_bytes)
    try:
        for old in olds:
            writer.begin(old.epoch, old.identities, old.records)
            for reader in open_parts(store, old):
                for index, group in enumerate(reader.part.row_groups):
                    writer.add(group, reader.read_table(index))
        parts = writer.finish()
        file.commit()
    finally:
        writer.abandon()
        file.abort()
    news = [make_compacted(old, task, parts[old.epoch]) for old in olds]
    for new in news:
        fault = is_whole(store, new)
        if fault:
            raise ColdDataError(f"read back: {fault}")
    return news


def load_manifest(store: ColdStore, cluster: str, segment: AnySegment) -> Manifest:
    """The manifest of a segment's cold copy. Raises: as `find_manifest`."""
    copy = segment.cold_copy
    assert copy is not None, segment
    return find_manifest(
        store,
        cluster,
        segment.log_id,
        segment.epoch,
        attempt=copy.attempt,
        sha256=copy.manifest_sha256,
    )


def make_compacted(old: Manifest, task: CompactTask, part: FilePart) -> Manifest:
    """What is said of a segment after compaction: the same, in another file.

    Raises:
        ColdDataError: the file has not the same entries.
    """
    new = replace(
        old,
        attempt=task.attempt,
        files=(part,),
        archived_unix_ms=task.unix_ms,
        history={
            **old.history,
            "compacted": {
                "from": old.attempt,
                "archived_unix_ms": old.archived_unix_ms,
                "files": len(old.files),
            },
        },
    )
    of_old = old.identities, old.records, old.entry_count, old.row_count, _ends(old)
    if of_old != (new.identities, new.records, new.entry_count, new.row_count, _ends(new)):
        raise ColdDataError(f"e{old.epoch} has other entries after compaction than before")
    assert new.identities != Chain(), new
    return new


def _ends(manifest: Manifest) -> tuple[object, ...]:
    first, last = manifest.files[0].row_groups[0], manifest.files[-1].row_groups[-1]
    return first.first_entry, first.totals_before, last.last_entry, last.totals_after
