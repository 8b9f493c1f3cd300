"""What of a log is in the archive, found without the cluster that wrote it: by listing alone.

Of a segment the newest manifest counts whose files are all there: segments are immutable, so every
manifest of one is right. Blocking.

Called by the command `duramen-spark restore`. Source: ADR 0016.
"""

from __future__ import annotations

from collections import defaultdict

from duramen.ids import Epoch, LogId
from duramen.runtime.cold import ColdStore, NotThere
from duramen.runtime.cold.manifests import read_manifest_bytes
from duramen.wire.cold.manifest import Manifest, ManifestError, read_manifest
from duramen.wire.cold.paths import cluster_folder, log_folder, parse_compacted, parse_path
from duramen_spark.restore.plan import RestoreError
from duramen_spark.verify.check import find_sizes_fault


def find_archived_log(store: ColdStore, cluster: str, namespace: str, name: str) -> LogId:
    """The id of the log that had a name when it was archived.

    Raises:
        RestoreError: there is none, or there are several.
        ColdStoreDown: nothing is known.
    """
    newest: dict[LogId, tuple[Epoch, str]] = {}
    for file in store.list(cluster_folder(cluster)):
        place = _place_of(file.path)
        if place is not None:
            log_id, epoch = place
            newest[log_id] = max(newest.get(log_id, (epoch, "")), (epoch, file.path))
    named = []
    for log_id, (_, path_text) in sorted(newest.items()):
        manifest = _read(store, path_text)
        if manifest is not None and (manifest.namespace, manifest.log) == (namespace, name):
            named.append(log_id)
    if not named:
        raise RestoreError(f"no log of this name is in the archive: {namespace}/{name}")
    if len(named) > 1:
        ids = ", ".join(map(str, named))
        raise RestoreError(f"several logs had this name: say --log-id, one of {ids}")
    return named[0]


def load_log(store: ColdStore, cluster: str, log_id: LogId) -> list[Manifest]:
    """A manifest of each segment that is there, by epoch.

    Raises:
        RestoreError: a segment has manifests, and files of none of them are all there.
        ColdStoreDown: nothing is known.
    """
    paths: dict[Epoch, list[str]] = defaultdict(list)
    for file in store.list(log_folder(cluster, log_id)):
        place = _place_of(file.path)
        if place is not None:
            paths[place[1]].append(file.path)
    return [_choose(store, epoch, paths[epoch]) for epoch in sorted(paths)]


def _place_of(path: str) -> tuple[LogId, Epoch] | None:
    """The segment that a path is a manifest of, the archive job's or compaction's; else None."""
    plain, compacted = parse_path(path), parse_compacted(path)
    if plain is not None and plain.is_manifest:
        return plain.log_id, plain.epoch
    if compacted is not None and compacted.epoch is not None:
        return compacted.log_id, compacted.epoch
    return None


def _choose(store: ColdStore, epoch: Epoch, paths: list[str]) -> Manifest:
    manifests = [one for path in paths if (one := _read(store, path)) is not None]
    fault = "its manifest cannot be read"
    for manifest in sorted(manifests, key=lambda one: one.archived_unix_ms, reverse=True):
        fault = find_sizes_fault(store, manifest)
        if not fault:
            return manifest
    raise RestoreError(f"e{epoch} is not whole: {fault}")


def _read(store: ColdStore, path: str) -> Manifest | None:
    try:
        return read_manifest(read_manifest_bytes(store, path))
    except (ManifestError, NotThere):
        return None
