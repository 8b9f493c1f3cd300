"""The rights of a whole tree: what has to be there first, and a walk over every node.

Idempotent: what is right is not written, and each node is done for itself. A walk from `/` covers
what ZooKeeper made itself, and everything else that it keeps. `/` itself is done last, so its
rights say whether a walk ever came to its end.

`open_tree` is the way back. Called by `duramen access` and by `cluster.local_identities`.
Source: docs/protocol/metadata-access.md "Founding, and a tree that is there".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from duramen.runtime.cluster_node import FORMAT_AT_FIRST, find_cluster
from duramen.runtime.stores.access import NodeRight, find_rights, is_of_process, open_rights
from duramen.runtime.stores.metadata_store import Conflict, ConflictKind
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths, encode_node

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE_COUNT: Final = 64
_TOP: Final = "/"


class WrongClusterError(Exception):
    """The cluster that is there is not that of the identity; the text says both."""


class Strayed(NamedTuple):
    """A node whose rights are not those of its path, or that outlives the process it is of."""

    path: str
    found: tuple[NodeRight, ...]
    is_stale: bool = False
    """A process makes such a node for as long as it lives, and nobody who is honest keeps one."""


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


async def is_guarded(store: ZooKeeperStore, domain: str) -> bool:
    """Whether a walk has mended a whole tree before; one read.

    Raises:
        MetadataError: it is not known.
    """
    found = await store.get_rights(_TOP)
    return found is not None and set(found) == set(find_rights(_TOP, domain))


async def walk_rights(
    store: ZooKeeperStore, domain: str, *, is_mending: bool
) -> AsyncIterator[Strayed]:
    """Each node that is not as its path says, from `/` on; mended or removed, if asked for.

    A node that is made or removed meanwhile may be missed: who makes one gives it its rights.

    Raises:
        MetadataError: the rest was not looked at.
    """
    top, waiting = await _look(store, _TOP, domain, is_mending=False)
    while waiting:
        batch, waiting = waiting[:_AT_ONCE_COUNT], waiting[_AT_ONCE_COUNT:]
        looks = [_look(store, path, domain, is_mending=is_mending) for path in batch]
        for strayed, below in await asyncio.gather(*looks):
            waiting += below
            if strayed is not None:
                yield strayed
    if top is not None:
        if is_mending:
            await store.set_rights(_TOP, find_rights(_TOP, domain))
        yield top


async def open_tree(store: ZooKeeperStore) -> int:
    """Give each node to anybody, as in a cluster without identities; how many were another's.

    `/` comes first: where it is anybody's, no walk of the other kind came to its end since.

    Raises:
        MetadataError: it is done in part; repeat it.
    """
    opened_count, waiting = 0, [_TOP]
    while waiting:
        batch, waiting = waiting[:_AT_ONCE_COUNT], waiting[_AT_ONCE_COUNT:]
        for is_opened, children in await asyncio.gather(*[_open(store, path) for path in batch]):
            opened_count += is_opened
            waiting += children
    return opened_count


async def _open(store: ZooKeeperStore, path: str) -> tuple[bool, list[str]]:
    found, wanted = await store.get_rights(path), open_rights(path)
    is_other = found is not None and set(found) != set(wanted)
    if is_other:
        await store.set_rights(path, wanted)
    names = await store.children(path) or ()
    return is_other, [f"{path.rstrip('/')}/{name}" for name in names]


async def _look(
    store: ZooKeeperStore, path: str, domain: str, *, is_mending: bool
) -> tuple[Strayed | None, list[str]]:
    if is_of_process(path) and await _is_lasting(store, path):
        rights = await store.get_rights(path) or ()
        if is_mending:
            await _remove(store, path)
        return Strayed(path, rights, is_stale=True), []
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


async def _is_lasting(store: ZooKeeperStore, path: str) -> bool:
    """Whether no session keeps it; of a container, too, clients are told none."""
    found = await store.get(path)
    return found is not None and found.ephemeral_session == 0


async def _remove(store: ZooKeeperStore, path: str) -> None:
    """With what lies below it: its maker may have allowed himself to make that."""
    for name in await store.children(path) or ():
        await _remove(store, f"{path}/{name}")
    found = await store.get(path)
    if found is None:
        return
    try:
        await store.delete(path, version=found.version)
    except Conflict as conflict:
        # Its maker changes it meanwhile: it is named, and the next walk finds it again.
        _LOG.warning("%s stays for now: %s", path, conflict)


async def _make(store: ZooKeeperStore, path: str, data: bytes) -> None:
    try:
        await store.create(path, data, make_parents=True)
    except Conflict as conflict:
        if conflict.kind is not ConflictKind.NODE_EXISTS:
            raise
