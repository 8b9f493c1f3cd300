"""Finds the manifest of a cold copy: the one that the segment's node vouches for, by its SHA-256.

A copy is named by its attempt. The first attempt's manifest has the segment's one well-known name,
which is asked first; those of compaction, and of whoever found the first one broken, lie beside it,
under names with their attempts (ADR 0016). What has another SHA-256 is not this copy.

A copy that compaction has replaced goes after a delay: `NotThere` tells a reader to read the node
again. Called by cold reads, the data source, verify, compaction, restore and export.
"""

from __future__ import annotations

import hashlib
from typing import Final

from duramen.ids import Epoch, LogId
from duramen.runtime.cold.store import ColdStore, NotThere
from duramen.units import MIB
from duramen.wire.cold.manifest import Manifest, ManifestError, read_manifest
from duramen.wire.cold.paths import attempt_manifest_path, manifest_path

MANIFEST_BYTES_MAX: Final = 256 * MIB
"""Of a segment of a terabyte in row groups of 16 MiB: some 40 MB."""


def read_manifest_bytes(store: ColdStore, path: str) -> bytes:
    """The bytes under a manifest's path. Blocking.

    Raises:
        NotThere: no such file.
        ManifestError: far too many.
        ColdStoreDown: retry later.
    """
    size_bytes = store.size(path)
    if size_bytes > MANIFEST_BYTES_MAX:
        raise ManifestError(f"{path} has {size_bytes} bytes")
    return store.read(path, 0, size_bytes)


def find_manifest(
    store: ColdStore, cluster: str, log_id: LogId, epoch: Epoch, *, attempt: str, sha256: str
) -> Manifest:
    """The manifest of a segment's cold copy. Blocking.

    Args:
        attempt, sha256: `attempt` and `manifest_sha256` of the copy, as the segment's node says.

    Raises:
        NotThere: there is none: the copy is gone, or was replaced since the node was read.
        ManifestError: there is one under its name, and it is not what was verified.
        ColdStoreDown: retry later.
    """
    other = ""
    for path in (
        manifest_path(cluster, log_id, epoch),
        attempt_manifest_path(cluster, log_id, epoch, attempt),
    ):
        try:
            data = read_manifest_bytes(store, path)
        except NotThere:
            continue
        if hashlib.sha256(data).hexdigest() != sha256:
            other = path
            continue
        manifest = read_manifest(data)
        found = (manifest.cluster, manifest.log_id, manifest.epoch, manifest.attempt)
        if found != (cluster, log_id, epoch, attempt):
            raise ManifestError(f"{path} is of another segment or attempt: {found}")
        return manifest
    if other:
        raise ManifestError(f"{other} is not the manifest that was verified")
    raise NotThere(manifest_path(cluster, log_id, epoch))
