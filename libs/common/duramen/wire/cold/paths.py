"""Where what is archived lies, relative to the cold store's root.

    v1/<cluster uuid>/<8 hex log_id>/e<epoch, 10 digits>/manifest.json
    v1/<cluster uuid>/<8 hex log_id>/e<epoch, 10 digits>/<attempt>/part-<n>.parquet
    v1/<cluster uuid>/<8 hex log_id>/e<epoch, 10 digits>/manifest-<attempt>.json
    v1/<cluster uuid>/<8 hex log_id>/shared/<attempt>/part-<n>.parquet              compacted

An attempt is one try of one job to archive one segment; its files belong to nobody until the
manifest names it. Where `manifest.json` is not whole the next attempt's has a name of its own, and
counts when the segment's node names the attempt; so have compaction's, whose attempts are many
segments' (ADR 0016). Called by the archive job, cold reads, compaction and sweeps. Source:
docs/protocol/archive.md "Files".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from duramen.ids import LAST_EPOCH, LAST_LOG_ID, Epoch, LogId

LAYOUT: Final = "v1"
MANIFEST: Final = "manifest.json"
PART_COUNT_MAX: Final = 100_000
"""Of an attempt: far more than a segment of any size is split into, and five digits of a name."""

_SEGMENT = r"v1/([0-9a-f][0-9a-f-]{7,63})/([0-9a-f]{8})/e([0-9]{10})"
_COLD_PATH = re.compile(
    rf"{_SEGMENT}/(?:(manifest\.json)|([0-9a-f]{{32}})/part-([0-9]{{5}})\.parquet)"
)
_COMPACTED = re.compile(rf"{_SEGMENT}/manifest-([0-9a-f]{{32}})\.json")
_SHARED = re.compile(
    r"v1/([0-9a-f][0-9a-f-]{7,63})/([0-9a-f]{8})/shared/([0-9a-f]{32})/part-[0-9]{5}\.parquet"
)
_CLUSTER = re.compile(r"[0-9a-f][0-9a-f-]{7,63}")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")


class ColdPath(NamedTuple):
    """What a path says; `attempt` and `part_index` are None for a manifest."""

    cluster: str
    log_id: LogId
    epoch: Epoch
    attempt: str | None
    part_index: int | None

    @property
    def is_manifest(self) -> bool:
        """Whether it is the manifest's path."""
        return self.attempt is None


def cluster_folder(cluster: str) -> str:
    """Everything that was archived of a cluster, with the closing slash of a prefix.

    Args:
        cluster: the cluster's uuid, as its node has it.
    """
    assert _CLUSTER.fullmatch(cluster), cluster
    return f"{LAYOUT}/{cluster}/"


def log_folder(cluster: str, log_id: LogId) -> str:
    """Everything that was archived of a log, with the closing slash of a prefix."""
    assert 0 < log_id <= LAST_LOG_ID, log_id
    return f"{cluster_folder(cluster)}{log_id:08x}/"


def segment_folder(cluster: str, log_id: LogId, epoch: Epoch) -> str:
    """Everything that was archived of a segment, with the closing slash of a prefix."""
    assert 0 < epoch <= LAST_EPOCH, epoch
    return f"{log_folder(cluster, log_id)}e{epoch:010d}/"


def manifest_path(cluster: str, log_id: LogId, epoch: Epoch) -> str:
    """The one file that says which attempt won."""
    return segment_folder(cluster, log_id, epoch) + MANIFEST


def attempt_folder(cluster: str, log_id: LogId, epoch: Epoch, attempt: str) -> str:
    """The files of one attempt, with the closing slash of a prefix.

    Args:
        attempt: a uuid as 32 hex digits.
    """
    assert _ATTEMPT.fullmatch(attempt), attempt
    return f"{segment_folder(cluster, log_id, epoch)}{attempt}/"


def attempt_manifest_path(cluster: str, log_id: LogId, epoch: Epoch, attempt: str) -> str:
    """A manifest that counts while the segment's node names its attempt, and only then."""
    assert _ATTEMPT.fullmatch(attempt), attempt
    return f"{segment_folder(cluster, log_id, epoch)}manifest-{attempt}.json"


def shared_folder(cluster: str, log_id: LogId, attempt: str) -> str:
    """The files of one compaction, each of several segments of a log; with the closing slash."""
    assert _ATTEMPT.fullmatch(attempt), attempt
    return f"{log_folder(cluster, log_id)}shared/{attempt}/"


class CompactedPath(NamedTuple):
    """What an attempt's own manifest's or a shared file's path says; `epoch` is None for that."""

    cluster: str
    log_id: LogId
    epoch: Epoch | None
    attempt: str


def parse_compacted(path: str) -> CompactedPath | None:
    """As `parse_path`, for attempts' own manifests and shared files; None: it is neither."""
    manifest, shared = _COMPACTED.fullmatch(path), _SHARED.fullmatch(path)
    match = manifest or shared
    if match is None:
        return None
    log_id = LogId(int(match[2], 16))
    epoch = None if manifest is None else Epoch(int(manifest[3]))
    if not 0 < log_id <= LAST_LOG_ID or (epoch is not None and not 0 < epoch <= LAST_EPOCH):
        return None
    return CompactedPath(match[1], log_id, epoch, match[match.lastindex or 0])


def part_name(index: int) -> str:
    """Name of a file within its attempt's folder."""
    assert 0 <= index < PART_COUNT_MAX, index
    return f"part-{index:05d}.parquet"


def parse_path(path: str) -> ColdPath | None:
    """What a path below the root says; None: it is not of this layout, so none of our business."""
    match = _COLD_PATH.fullmatch(path)
    if match is None:
        return None
    log_id, epoch = LogId(int(match[2], 16)), Epoch(int(match[3]))
    if not (0 < log_id <= LAST_LOG_ID and 0 < epoch <= LAST_EPOCH):
        return None
    part = None if match[6] is None else int(match[6])
    return ColdPath(match[1], log_id, epoch, match[5], part)
