"""A client of the metadata store whose server of the ensemble is behind until it syncs.

ZooKeeper answers reads from the server that one is connected to, which may not have the last
changes yet; `MemoryStore` alone is always current. Used by component tests of readers and owners.
"""

from __future__ import annotations

from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch


class LaggingStore(MemoryStore):
    """See the module; writes are never behind."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self._seen: dict[str, Stored | None] = {}

    async def fall_behind(self, *paths: str) -> None:
        """From now on reads show these nodes as they are now, until the next `sync`."""
        for path in paths:
            self._seen[path] = await super().get(path)

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        """As the server that lags knows it."""
        found = await super().get(path, watch)
        return self._seen.get(path, found)

    async def sync(self, path: str) -> None:
        """The server has everything that was written before the call."""
        await super().sync(path)
        self._seen.clear()
