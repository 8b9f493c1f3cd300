"""The nodes that a run reads, and the few changes it makes: each by compare-and-set (R3).

Logs by the listing of names, which may miss one that is made meanwhile (the next run sees it);
segments by point reads (R4). After a conflict or an unknown outcome a node is read again and judged
anew; one's own change is known by its nonce.

Called by `driver`, `commit`, `recheck`, `sweep`. Source: docs/protocol/metadata.md "Rules for every
change".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.ids import Epoch, LogId
from duramen.runtime.cluster_node import find_cluster
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
)
from duramen.wire.metadata_json import Paths, encode_segment, read_any_segment, read_log, read_node

_TRIES: Final = 20
"""Of one change: conflicts are with repair's swaps, which are few."""

Change = Callable[[AnySegment, str], AnySegment | None]
"""From a segment and a nonce to the changed one; None: nothing is to be changed."""


class ClusterNodes:
    """The metadata of one cluster, as the archive uses it.

    Args:
        store: started.
    """

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths

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
        """The node of a segment."""
        found = await self._store.get(self._paths.segment(log_id, epoch))
        return None if found is None else read_any_segment(found.data)

    async def list_segments(self, log: LogNode) -> list[AnySegment]:
        """Segments of a log from the first live one up to the last closed one."""
        segments = []
        for epoch in range(log.first_live_epoch, log.last_clean_epoch + 1):
            segment = await self.read_segment(log.log_id, Epoch(epoch))
            if segment is not None:
                segments.append(segment)
        return segments

    async def change_segment(
        self, log_id: LogId, epoch: Epoch, change: Change, *, only_hot: bool = False
    ) -> AnySegment | None:
        """Change a segment's node; what stands there afterwards, None: no node.

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
            if only_hot and read_log(log_node.data).first_hot_epoch > epoch:
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
