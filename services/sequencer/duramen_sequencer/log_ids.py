"""Ids for new logs, taken from the cluster's counter in blocks: no id is ever given twice.

The counter, `last_log_id` in the cluster node, is raised by compare-and-set. One id at a time made
creations at many sequencers collide there; a block costs one write for BLOCK_COUNT logs. What is
left of a block when the process ends is lost, as is a block whose write has an unknown outcome: ids
need not be dense, and those of logs made one after the other need not rise.

Called by `control`. Source: docs/protocol/metadata.md "cluster".
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.stores.metadata_store import Conflict, MetadataStore
from duramen.wire.metadata_json import Paths, encode_node, read_node

BLOCK_COUNT: Final = 64
"""Ids per block: of 2^31, a process that starts anew wastes so few that 30 million starts are free,
and the counter's node is written so rarely that nobody meets anybody there."""

_TRIES: Final = 20


class LogIds:
    """The ids that this process may give to logs."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._path = paths.cluster
        self._left = iter(range(0))
        self._unused: list[LogId] = []
        self._lock = asyncio.Lock()

    async def take(self) -> LogId:
        """An id that no log has had; one that is not used then is lost, which is harmless.

        Raises:
            DuramenError: `metadata_unavailable` (retry): no block could be taken; `internal`: all
                ids are used up.
            MetadataError: the metadata store cannot be reached (retry).
        """
        if self._unused:
            return self._unused.pop()
        async with self._lock:
            log_id = next(self._left, None)
            if log_id is None:
                self._left = iter(await self._take_block())
                log_id = next(self._left)
        return LogId(log_id)

    def give_back(self, log_id: LogId) -> None:
        """An id that was taken here, and that no log was made with: it is given next."""
        self._unused.append(log_id)

    async def _take_block(self) -> range:
        """The next ids, at least one."""
        for _ in range(_TRIES):
            stored = await self._store.get(self._path)
            if stored is None:
                raise DuramenError("metadata_unavailable", "the cluster node is missing")
            node = read_node(stored.data)
            first = int(node["last_log_id"]) + 1
            last = min(first + BLOCK_COUNT - 1, LAST_LOG_ID)
            if first > last:
                raise DuramenError("internal", "the cluster has used all its log ids")
            try:
                data = encode_node({**node, "last_log_id": last})
                await self._store.set(self._path, data, version=stored.version)
            except Conflict:
                continue
            return range(first, last + 1)
        raise DuramenError("metadata_unavailable", "too many sequencers are taking log ids at once")
