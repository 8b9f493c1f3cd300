"""The nodes that a run reads, and the few changes it makes: each by compare-and-set (R3).

Logs by the listing of names, which may miss one that is made meanwhile (the next run sees it);
segments by point reads (R4), or from the log's metadata log once they have moved there. Such a
segment is never changed: its cold copy is final. After a conflict or an unknown outcome a node is
read again and judged anew; one's own change is known by its nonce.

Called by `driver`, `commit`, `recheck`, `sweep` and the archive's other jobs. Source:
docs/protocol/metadata.md "Rules for every change", docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import SegmentListing
from duramen.ids import Epoch, LogId
from duramen.runtime.cluster_node import find_cluster
from duramen.runtime.metadata_log.records import FetchRun, MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
)
from duramen.wire.metadata_json import (
    Paths,
    encode_segment,
    read_any_segment,
    read_log,
    read_node,
)

_TRIES: Final = 20
"""Of one change: conflicts are with repair's swaps, which are few."""

Change = Callable[[AnySegment, str], AnySegment | None]
"""From a segment and a nonce to the changed one; None: nothing is to be changed."""


class ClusterNodes:
    """The metadata of one cluster, as the archive uses it.

    Args:
        store: started.
        fetch_run: reads entries of metadata logs.
    """

    def __init__(self, store: MetadataStore, paths: Paths, fetch_run: FetchRun) -> None:
        self._store = store
        self._paths = paths
        self._segments = SegmentNodes(store, paths, MetadataRecords(store, paths, fetch_run))

    async def read_uuid(self) -> str | None:
        """The cluster's uuid; None: there is no cluster there."""
        return await find_cluster(self._store, self._paths)

    async def list_logs(self) -> list[LogNode]:
        """Every log that has a name now."""
        await self._store.sync(self._paths.names)
        logs = []
        for namespace in await self._store.children(self._paths.names) or ():
            for name in await self._store.children(self._paths.names_of(namespace)) or ():
                node = await self._store.get(self._paths.name(namespace, name))
                if node is None:
                    continue
                log = await self.read_log(LogId(int(read_node(node.data)["log_id"])))
                if log is not None:
                    logs.append(log)
        return logs

    async def read_log(self, log_id: LogId) -> LogNode | None:
        """The node of a log."""
        found = await self._store.get(self._paths.log(log_id))
        return None if found is None else read_log(found.data)

    async def read_segment(self, log_id: LogId, epoch: Epoch) -> AnySegment | None:
        """The metadata of a segment, wherever they are; None: it was given up, or never was.

        Raises:
            DuramenError: `metadata_unavailable`: nothing is known of it; `log_not_found`.
            MetadataError: the metadata store does not say.
        """
        return await self._segments.find(log_id, epoch)

    async def list_segments(self, log_id: LogId) -> SegmentListing:
        """Segments of a log from the first live one on, wherever their metadata are.

        Raises:
            As `read_segment`. Moved epochs without a record are `unreadable` in the listing.
        """
        return await self._segments.list_all(log_id)

    async def list_stored(self, log: LogNode) -> list[AnySegment]:
        """Segments up to the last closed one that the archive may still change.

        What has moved was archived and looked at again before, or has no entry.
        """
        segments = []
        first = max(log.first_live_epoch, log.metadata.through + 1)
        for epoch in range(first, log.last_clean_epoch + 1):
            found = await self._store.get(self._paths.segment(log.log_id, Epoch(epoch)))
            if found is not None:
                segments.append(read_any_segment(found.data))
        return segments

    async def change_segment(
        self, log_id: LogId, epoch: Epoch, change: Change, *, only_hot: bool = False
    ) -> AnySegment | None:
        """Change a segment's node; what stands there afterwards, None: no node.

        A segment that has moved is not changed, even where a person has put its node back: its
        record names the same cold copy.

        Args:
            only_hot: not once its hot copies were released: checked in the same `multi()`.

        Raises:
            MetadataError: it may be applied or not.
        """
        path, log_path = self._paths.segment(log_id, epoch), self._paths.log(log_id)
        nonces: set[str] = set()
        for _ in range(_TRIES):
            await self._store.sync(path)
            log_node = await self._store.get(log_path)
            found = await self._store.get(path)
            if found is None or log_node is None:
                return None
            segment = read_any_segment(found.data)
            if segment.nonce in nonces:
                return segment
            log = read_log(log_node.data)
            if epoch <= log.metadata.through or (only_hot and epoch < log.first_hot_epoch):
                return segment
            nonce = secrets.token_hex(12)
            changed = change(segment, nonce)
            if changed is None:
                return segment
            ops: list[Op] = [Set(path, encode_segment(changed), found.version)]
            if only_hot:
                ops.append(Check(log_path, log_node.version))
            try:
                await self._store.commit(ops)
            except OutcomeUnknown:
                nonces.add(nonce)
            except Conflict:
                continue
            else:
                return changed
        raise MetadataError(f"segment e{epoch} of log {log_id} changed {_TRIES} times meanwhile")
