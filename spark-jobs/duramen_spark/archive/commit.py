"""Makes an archived segment count: the manifest, put once, then the segment's node.

Steps 3 and 4 of the commit. Exactly one attempt's manifest gets the segment's well-known name, and
keeps it; whoever finds another's there removes the files of its own. If that one is not whole, the
next attempt's manifest has a name of its own, and the node alone decides between several. An
attempt whose manifest may have been put is never removed by hand: sweep and retention decide by
age, when nothing can be under way any more.

Called by `driver`. Source: docs/protocol/archive.md "From hot to cold: five steps".
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from duramen import __version__
from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.ids import EntryId
from duramen.runtime.cold import AlreadyThere, ColdStore, ColdStoreDown, NotThere
from duramen.wire.cold.manifest import (
    FilePart,
    Manifest,
    ManifestError,
    encode_manifest,
    read_manifest,
)
from duramen.wire.cold.paths import attempt_manifest_path, manifest_path
from duramen_spark.archive.cluster_nodes import ClusterNodes

_steps = logging.getLogger("duramen.archive.steps")

MANIFEST_BYTES_MAX = 256 << 20
"""Of a segment of a terabyte in row groups of 16 MiB: some 40 MB."""


class SegmentOutcome(enum.Enum):
    """What became of a segment; the values are those of the report."""

    ARCHIVED = "archived"
    ADOPTED = "adopted"
    """Files and manifest of another attempt were whole: only the node was still to be changed."""
    LOST_RACE = "lost race"
    GONE = "gone"
    """The segment was given up meanwhile."""


def make_manifest(
    cluster: str, log: LogNode, segment: AnySegment, attempt: str, parts: Sequence[FilePart]
) -> Manifest:
    """The manifest of an attempt whose files were all read back.

    Raises:
        ManifestError: files and segment do not fit together.
    """
    assert segment.last_entry is not None and segment.totals is not None, segment
    assert segment.start_seq_num is not None, segment
    manifest = Manifest(
        cluster=cluster,
        namespace=log.namespace,
        log=log.name,
        log_id=segment.log_id,
        epoch=segment.epoch,
        attempt=attempt,
        start_seq_num=segment.start_seq_num,
        last_entry=segment.last_entry,
        totals=segment.totals,
        files=tuple(sorted(parts, key=lambda part: part.first_entry)),
        holes=segment.holes,
        lost=segment.lost,
        archived_unix_ms=time.time_ns() // 1_000_000,
        history=_encode_history(log, segment),
    )
    check_fits(manifest, segment)
    encode_manifest(manifest)
    return manifest


def check_fits(manifest: Manifest, segment: AnySegment) -> None:
    """Whether a manifest is of this segment, and says of it what its node says.

    Raises:
        ManifestError: it is not.
    """
    of_manifest = (
        manifest.ledger_id, manifest.last_entry, manifest.totals, manifest.holes,
        manifest.start_seq_num,
    )  # fmt: skip
    of_node = (
        segment.ledger_id, segment.last_entry, segment.totals, segment.holes,
        segment.start_seq_num,
    )  # fmt: skip
    if of_manifest != of_node:
        raise ManifestError(f"the manifest is not of this segment: {of_manifest} {of_node}")
    last = segment.last_entry
    assert last is not None
    if manifest.files and segment.lost_at(EntryId(last)) is None:
        found = manifest.files[-1].row_groups[-1].totals_after
        if found != segment.totals:
            raise ManifestError(f"the files end with {found}, the segment with {segment.totals}")


def read_stored_manifest(store: ColdStore, path: str) -> tuple[Manifest, bytes] | None:
    """The manifest under a path, and its bytes; None: there is none. Blocking.

    Raises:
        ManifestError: what is there is no manifest.
        ColdStoreDown: it cannot be read now.
    """
    try:
        size_bytes = store.size(path)
        if size_bytes > MANIFEST_BYTES_MAX:
            raise ManifestError(f"{path} has {size_bytes} bytes")
        data = store.read(path, 0, size_bytes)
    except NotThere:
        return None
    return read_manifest(data), data


def name_manifest(manifest: Manifest, *, is_replacement: bool) -> str:
    """The path of an attempt's manifest.

    Args:
        is_replacement: what has the segment's well-known name is not whole.
    """
    place = manifest.cluster, manifest.log_id, manifest.epoch
    if is_replacement:
        return attempt_manifest_path(*place, manifest.attempt)
    return manifest_path(*place)


async def put_manifest(store: ColdStore, path: str, manifest: Manifest) -> bool:
    """Put an attempt's manifest under its path; False: another attempt's is there.

    Raises:
        ColdStoreDown: it may be there, or appear later.
        ManifestError: something else is there.
    """
    try:
        await asyncio.to_thread(store.put_new, path, encode_manifest(manifest))
    except AlreadyThere:
        found = await asyncio.to_thread(read_stored_manifest, store, path)
        if found is None:
            raise ColdStoreDown(f"{path} was taken and is not there: it is being removed") from None
        if found[0].attempt != manifest.attempt:
            return False
    return True


async def remove_attempt(store: ColdStore, folder: str, kept: Sequence[FilePart]) -> int:
    """Remove files of an attempt's folder that `kept` does not name; how many there were."""
    kept_paths = {folder + part.name for part in kept}
    removed = 0
    for file in await asyncio.to_thread(lambda: list(store.list(folder))):
        if file.path not in kept_paths:
            await asyncio.to_thread(store.delete, file.path)
            removed += 1
            _steps.debug("file removed: %s", file.path)
    return removed


async def mark_segment(nodes: ClusterNodes, manifest: Manifest, data: bytes) -> SegmentOutcome:
    """Record the cold copy in the segment's node.

    Args:
        manifest: the one that is there, whose files were read back.
        data: its bytes.

    Raises:
        MetadataError: it may be recorded or not; the next run finds out.
    """
    copy = ColdCopy(
        attempt=manifest.attempt,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=manifest.size_bytes,
        verified_unix_ms=time.time_ns() // 1_000_000,
    )

    def change(segment: AnySegment, nonce: str) -> AnySegment | None:
        return segment.with_cold_copy(copy, nonce) if segment.cold_copy is None else None

    segment = await nodes.change_segment(manifest.log_id, manifest.epoch, change)
    if segment is None:
        return SegmentOutcome.GONE
    return SegmentOutcome.ARCHIVED if segment.cold_copy == copy else SegmentOutcome.LOST_RACE


def _encode_history(log: LogNode, segment: AnySegment) -> dict[str, Any]:
    """What happened to the segment before it was archived."""
    return {
        "created_unix_ms": segment.created_unix_ms,
        "completed_unix_ms": segment.completed_unix_ms,
        "trim_seq_num": log.trim_seq_num,
        "ack_mode": segment.ack_mode,
        **_encode_placing(segment),
        "archiver": f"duramen-spark {__version__}",
    }


def _encode_placing(segment: AnySegment) -> dict[str, Any]:
    """Who could hold its entries; what the other kind of segment has is left out."""
    if isinstance(segment, FlexibleSegment):
        wanted = segment.replication
        return {
            "property": {"node": wanted.node, "rack": wanted.rack, "region": wanted.region},
            "nodes": [
                [row.number, *row.member, row.node.region, row.node.rack, row.weight]
                for row in segment.nodes
            ],
            "proved": segment.is_proved,
            "missing_records": segment.missing_record_count,
        }
    return {
        "ensemble_size": segment.quorum.ensemble_size,
        "write_quorum": segment.quorum.write_quorum,
        "ack_quorum": segment.quorum.ack_quorum,
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "ensemble": [list(member) for member in fragment.ensemble],
                "proved": fragment.is_proved,
            }
            for fragment in segment.fragments
        ],
    }
