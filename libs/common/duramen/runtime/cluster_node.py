"""The node that makes a place in ZooKeeper a cluster: its uuid, format and log-id counter.

Made by the first bookie or sequencer that starts, whichever it is, and never replaced. Bookies keep
the uuid in their cookies, so that disks of one cluster are never taken into another.
Called at start by bookie and sequencer. Source: 08-interfaces "ZooKeeper", 02-storage "Identity".
"""

from __future__ import annotations

import contextlib
from typing import Final
from uuid import uuid4

from duramen.runtime.metadata_store import Conflict, ConflictKind, MetadataStore, OutcomeUnknown
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node, spell_node

FORMAT: Final = 1
"""Of the whole tree of nodes; code refuses a cluster whose format is newer than its own."""


async def ensure_cluster(store: MetadataStore, paths: Paths) -> str:
    """The cluster's uuid; makes the node if there is none.

    A create that loses the race, or whose outcome is unknown, is settled by reading again: whoever
    made the node, its uuid is the cluster's (R3).

    Raises:
        Unavailable: ZooKeeper gives no answer; try again.
        MetadataJsonError: the node is no cluster node, or of a newer format.
    """
    while True:
        uuid = await find_cluster(store, paths)
        if uuid is not None:
            return uuid
        fields = {"uuid": uuid4().hex, "format": FORMAT, "last_log_id": 0}
        with contextlib.suppress(OutcomeUnknown):
            try:
                await store.create(paths.cluster, spell_node(fields), make_parents=True)
            except Conflict as conflict:
                if conflict.kind is not ConflictKind.NODE_EXISTS:
                    raise


async def find_cluster(store: MetadataStore, paths: Paths) -> str | None:
    """The cluster's uuid, None if there is no cluster yet; writes nothing.

    Raises: as `ensure_cluster`.
    """
    await store.sync(paths.cluster)
    found = await store.get(paths.cluster)
    return None if found is None else _read_uuid(found.data)


def _read_uuid(data: bytes) -> str:
    node = read_node(data)
    uuid, version = node.get("uuid"), node.get("format")
    if not isinstance(uuid, str) or not isinstance(version, int):
        raise MetadataJsonError("the node is no cluster node")
    if version > FORMAT:
        raise MetadataJsonError(f"the cluster's format {version} is newer than {FORMAT}")
    return uuid
