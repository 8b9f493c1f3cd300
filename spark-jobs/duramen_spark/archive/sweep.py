"""Removes files that no manifest names: what killed attempts and lost races left behind, by age.

Age is the only proof that nobody is still at work on an attempt, so it is long, and an attempt that
has lasted half as long may not put its manifest any more (`driver`). Kept is whatever a manifest or
a segment's metadata name, wherever these are, and all of a segment of which metadata or manifest
cannot be read. Manifests, what they name, and files of segments and logs that are gone are the
archive's retention to remove.

Called by `driver`. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import NamedTuple

from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.runtime.cold import ColdFile, ColdStore
from duramen.units import MS
from duramen.wire.cold.manifest import ManifestError
from duramen.wire.cold.paths import (
    ColdPath,
    cluster_folder,
    manifest_path,
    parse_compacted,
    parse_path,
)
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import read_stored_manifest

_steps = logging.getLogger("duramen.archive.steps")


class _Orphan(NamedTuple):
    file: ColdFile
    path: ColdPath


async def sweep(
    nodes: ClusterNodes, store: ColdStore, cluster: str, *, age_us: int, now_unix_ms: int
) -> int:
    """Remove orphans that were last written so long ago; how many.

    Raises:
        ColdStoreDown: some may be left.
        MetadataError: the same.
    """
    before_unix_ms = now_unix_ms - age_us // MS
    old, vouched = await asyncio.to_thread(_list_old, store, cluster, before_unix_ms)
    removed = 0
    for (log_id, epoch), group in itertools.groupby(old, key=_segment_of):
        orphans = list(group)
        named = await _find_named(nodes, store, cluster, log_id, epoch)
        if named is None:
            continue
        for orphan in orphans:
            if orphan.file.path in named or orphan.path.attempt in named | vouched:
                continue
            await asyncio.to_thread(store.delete, orphan.file.path)
            _steps.debug("orphan removed: %s", orphan.file.path)
            removed += 1
    return removed + await asyncio.to_thread(store.drop_unfinished, before_unix_ms)


def _list_old(
    store: ColdStore, cluster: str, before_unix_ms: int
) -> tuple[list[_Orphan], set[str | None]]:
    """Parts that are old enough, those of a segment together; attempts with their own manifest."""
    found = []
    vouched: set[str | None] = set()
    for file in store.list(cluster_folder(cluster)):
        path, own = parse_path(file.path), parse_compacted(file.path)
        if own is not None and own.epoch is not None:
            vouched.add(own.attempt)
        is_part = path is not None and not path.is_manifest
        if path is not None and is_part and file.modified_unix_ms < before_unix_ms:
            found.append(_Orphan(file, path))
    return sorted(found, key=lambda orphan: orphan.file.path), vouched


def _segment_of(orphan: _Orphan) -> tuple[LogId, Epoch]:
    return orphan.path.log_id, orphan.path.epoch


async def _find_named(
    nodes: ClusterNodes, store: ColdStore, cluster: str, log_id: LogId, epoch: Epoch
) -> set[str | None] | None:
    """Paths that the manifest names, and the attempt that the metadata name; None: nobody can say.

    The metadata are read first: an attempt that is named only now has its manifest already.
    """
    try:
        segment = await nodes.read_segment(log_id, epoch)
    except DuramenError as error:
        _steps.debug("kept: %s", error)
        return None
    if segment is None:
        return None
    named: set[str | None] = set()
    if segment.cold_copy is not None:
        named.add(segment.cold_copy.attempt)
    try:
        path = manifest_path(cluster, log_id, epoch)
        found = await asyncio.to_thread(read_stored_manifest, store, path)
    except ManifestError:
        return None
    if found is not None:
        manifest, _ = found
        named.update(manifest.path_of(part) for part in manifest.files)
    return named
