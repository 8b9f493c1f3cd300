"""The second look at a cold copy, after a delay: only then may the hot copies go.

What is looked for is what a first look cannot see: a manifest that was replaced, files that were
removed by somebody's sweep or a bucket's rule. So it reads the manifest again by its SHA-256 and
asks for every file's size, or reads every file back, if told to. A copy that is not whole loses its
mark, as long as hot copies are there, and the segment is archived anew. What lies in the store
stays until retention removes it by age: a removal by name might meet what was put there since.

Called by `driver`. Source: docs/protocol/archive.md "From hot to cold: five steps", step 5.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.runtime.cold import ColdStore, NotThere, find_manifest
from duramen.units import MS
from duramen.wire.cold.manifest import ManifestError
from duramen.wire.cold.rebuild import ColdDataError
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import check_fits
from duramen_spark.archive.read_back import read_back

_steps = logging.getLogger("duramen.archive.steps")


class Recheck(NamedTuple):
    """What the second look found; `fault` is empty where the copy is whole."""

    fault: str
    is_released: bool
    """The hot copies are gone already: a broken copy stays marked, for a person to see to."""


def is_due(segment: AnySegment, delay_us: int, now_unix_ms: int) -> bool:
    """Whether a segment's cold copy is to be looked at again."""
    copy = segment.cold_copy
    if copy is None or copy.is_rechecked:
        return False
    return now_unix_ms - copy.verified_unix_ms >= delay_us // MS


async def recheck(
    nodes: ClusterNodes, store: ColdStore, cluster: str, segment: AnySegment, *, reads_files: bool
) -> Recheck:
    """Look at a cold copy again, and record in the segment's node what was found.

    Raises:
        ColdStoreDown: nothing was found out.
        MetadataError: the record may be there or not; the next run finds out.
    """
    fault = await asyncio.to_thread(find_fault, store, cluster, segment, reads_files=reads_files)
    _steps.debug("copy looked at: e%d", segment.epoch)
    now_unix_ms = time.time_ns() // 1_000_000
    seen = segment.cold_copy

    def confirm(found: AnySegment, nonce: str) -> AnySegment | None:
        return found.with_recheck(now_unix_ms, nonce) if found.cold_copy == seen else None

    def refute(found: AnySegment, nonce: str) -> AnySegment | None:
        return found.without_cold_copy(nonce) if found.cold_copy == seen else None

    log_id, epoch = segment.log_id, segment.epoch
    if not fault:
        await nodes.change_segment(log_id, epoch, confirm)
        _steps.debug("copy confirmed: e%d", epoch)
        return Recheck("", is_released=False)
    after = await nodes.change_segment(log_id, epoch, refute, only_hot=True)
    if after is None or after.cold_copy is not None:
        return Recheck(fault, is_released=True)
    _steps.debug("copy refuted: e%d", epoch)
    return Recheck(fault, is_released=False)


def find_fault(store: ColdStore, cluster: str, segment: AnySegment, *, reads_files: bool) -> str:
    """Why a cold copy is not whole; empty: it is. Blocking.

    Raises:
        ColdStoreDown: nothing was found out.
    """
    copy = segment.cold_copy
    assert copy is not None, segment
    try:
        manifest = find_manifest(
            store,
            cluster,
            segment.log_id,
            segment.epoch,
            attempt=copy.attempt,
            sha256=copy.manifest_sha256,
        )
        check_fits(manifest, segment)
        for part in manifest.files:
            path = manifest.path_of(part)
            if store.size(path) != part.size_bytes:
                return f"{path} has {store.size(path)} bytes, not {part.size_bytes}"
            if reads_files:
                read_back(store, path, part, segment)
    except (ManifestError, ColdDataError) as error:
        return str(error)
    except NotThere as error:
        return f"{error} is not there"
    return ""
