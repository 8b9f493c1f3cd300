"""What a bookie is told by ZooKeeper and tells there, for tests that run one bookie alone.

Log nodes as truncation leaves them behind say which ledgers are dead; nothing else does (R4). One
ZooKeeper serves several tests as one cluster: each uses log ids of its own.
Used by the bookie's process tests. `change_node` is for the nodes of a whole cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from duramen.cluster.layout import CLUSTER_NAME
from duramen.ids import Epoch, LogId
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths, encode_log, read_node
from tests.process.copies import ask_until
from tests.process.times import HANG_S
from tests.unit.nodes import make_log

_PATHS = Paths(CLUSTER_NAME)


class MetadataNodes:
    """Reads and writes them; see `open_nodes`."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._store = store

    async def truncate(self, log_ids: Iterable[int], first_live_epoch: int) -> None:
        """Every epoch of these logs below is dead."""
        for log_id in log_ids:
            node = replace(
                make_log(), log_id=LogId(log_id), next_epoch=Epoch(first_live_epoch + 1),
                last_clean_epoch=first_live_epoch - 1, first_live_epoch=Epoch(first_live_epoch),
            )  # fmt: skip
            path = _PATHS.log(LogId(log_id))
            found = await self._store.get(path)
            if found is None:
                await self._store.create(path, encode_log(node), make_parents=True)
            else:
                await self._store.set(path, encode_log(node), version=found.version)

    async def registration(self, node_id: str) -> dict[str, Any]:
        """What a bookie says of itself; empty if it is not registered."""
        found = await self._store.get(f"{_PATHS.available}/{node_id}")
        return {} if found is None else read_node(found.data)


@asynccontextmanager
async def open_nodes(zookeeper: str) -> AsyncIterator[MetadataNodes]:
    """With a session of their own."""
    store = ZooKeeperStore(zookeeper)
    await store.start()
    try:
        yield MetadataNodes(store)
    finally:
        await store.close()


async def change_node(
    store: ZooKeeperStore, path: str, change: Callable[[bytes], bytes | None]
) -> None:
    """Write to a node as the product does, which may write to it at the same time.

    The auditor proves the copies of a segment just after its close, an owner rolls: who was
    overtaken reads the node anew.

    Args:
        change: gives the node's new data, or None as long as it is not to be changed yet.
    """

    async def is_written() -> bool:
        found = await store.get(path)
        assert found is not None, path
        data = change(found.data)
        if data is not None:
            await store.set(path, data, version=found.version)
        return data is not None

    await ask_until(is_written, HANG_S, f"a change of {path}")
