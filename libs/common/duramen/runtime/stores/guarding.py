"""The rights of a whole tree: what has to be there first, and a walk over every node.

Idempotent: what is right is not written, and each node is done for itself. A walk from `/` covers
what ZooKeeper made itself, and everything else that it keeps.

Called by `duramen access`. Source: docs/protocol/metadata-access.md "Founding, and a tree that is
there".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from duramen.runtime.cluster_node import FORMAT_AT_FIRST, find_cluster
from duramen.runtime.stores.access import NodeRight, find_rights
from duramen.runtime.stores.metadata_store import Conflict, ConflictKind
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths, encode_node

_AT_ONCE_COUNT: Final = 64


class WrongClusterError(Exception):
    """The cluster that is there is not that of the identity; the text says both."""


class Strayed(NamedTuple):
    """A node whose rights are not those of its path."""

    path: str
    found: tuple[NodeRight, ...]


async def found_tree(store: ZooKeeperStore, paths: Paths, domain: str) -> None:
    """Make what others may not make: the cluster node, with this uuid, and the parents.

    Raises:
        WrongClusterError: a cluster of another uuid is there.
        MetadataError: it may be done in part; repeat it.
    """
    fields = {"uuid": domain, "format": FORMAT_AT_FIRST, "last_log_id": 0}
    await _make(store, paths.cluster, encode_node(fields))
    there = await find_cluster(store, paths)
    if there != domain:
        raise WrongClusterError(
            f"the cluster {paths.root} has the uuid {there}, and the identity is of {domain}: give "
            "an identity of that cluster"
        )
    for path in (
        paths.bookies, paths.available, paths.sequencers, paths.write_proxies, paths.read_proxies,
        paths.namespaces, paths.names, paths.logs, paths.repair_queue, paths.repair_owed,
        paths.repair_lost,
    ):  # fmt: skip
        await _make(store, path, b"")


async def walk_rights(
    store: ZooKeeperStore, domain: str, *, is_mending: bool
) -> AsyncIterator[Strayed]:
    """Each node whose rights are not those of its path, from `/` on; mended, if asked for.

    A node that is made or removed meanwhile may be missed: who makes one gives it its rights.

    Raises:
        MetadataError: the rest was not looked at.
    """
    waiting = ["/"]
    while waiting:
        batch, waiting = waiting[:_AT_ONCE_COUNT], waiting[_AT_ONCE_COUNT:]
        looks = [_look(store, path, domain, is_mending=is_mending) for path in batch]
        for strayed, below in await asyncio.gather(*looks):
            waiting += below
            if strayed is not None:
                yield strayed


async def _look(
    store: ZooKeeperStore, path: str, domain: str, *, is_mending: bool
) -> tuple[Strayed | None, list[str]]:
    found, wanted = await store.get_rights(path), find_rights(path, domain)
    names = await store.children(path)
    if found is None or names is None:
        return None, []
    below = [f"{path.rstrip('/')}/{name}" for name in names]
    if set(found) == set(wanted):
        return None, below
    if is_mending:
        await store.set_rights(path, wanted)
    return Strayed(path, found), below


async def _make(store: ZooKeeperStore, path: str, data: bytes) -> None:
    try:
        await store.create(path, data, make_parents=True)
    except Conflict as conflict:
        if conflict.kind is not ConflictKind.NODE_EXISTS:
            raise
