"""A client of the metadata store whose server of the ensemble is behind until it syncs.

ZooKeeper answers reads from the server that one is connected to, which may not have the last
changes yet; `MemoryStore` alone is always current. Used by component tests of readers and owners.
"""

from __future__ import annotations

import asyncio

from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch


class LaggingStore(MemoryStore):
    """See the module; writes are never behind."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self._seen: dict[str, Stored | None] = {}
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hold_answers(self) -> asyncio.Event:
        """Reads and syncs from now on are answered when the event is set."""
        self._may_answer = asyncio.Event()
        return self._may_answer

    def answer(self) -> None:
        """What is asked from now on is answered at once, before what is held."""
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    async def fall_behind(self, *paths: str) -> None:
        """From now on reads show these nodes as they are now, until the next `sync`."""
        for path in paths:
            self._seen[path] = await super().get(path)

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        """As the server that lags knows it."""
        may_answer = self._may_answer
        found = await super().get(path, watch)
        await may_answer.wait()
        return self._seen.get(path, found)

    async def sync(self, path: str) -> None:
        """The server has everything that was written before the call."""
        await self._may_answer.wait()
        await super().sync(path)
        self._seen.clear()
