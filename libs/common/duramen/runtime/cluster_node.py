"""The node that makes a place in ZooKeeper a cluster: its uuid, format and log-id counter.

Made by the first bookie or sequencer that starts, whichever it is, and never replaced. Bookies keep
the uuid in their cookies, so that disks of one cluster are never taken into another. Where a whole
cluster is started at once, ZooKeeper and even its name may come last: who starts waits for it.
Called at start by every service. Source: docs/protocol/metadata.md "cluster", docs/bookie.md
"Identity".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from uuid import uuid4

from duramen.runtime.identity.names import IdentityError
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    MetadataStore,
    OutcomeUnknown,
    Rejected,
    Unavailable,
)
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node

FORMAT: Final = 3
"""Of the whole tree of nodes; code refuses a cluster whose format is newer than its own."""

FORMAT_AT_FIRST: Final = 1
"""Of a new cluster."""

FORMAT_FLEXIBLE: Final = 2
"""Comes with its first flexible or out-of-order log: docs/protocol/flexible.md."""

FORMAT_METADATA_LOGS: Final = 3
"""Comes with its first metadata log: docs/protocol/metadata-logs.md "Who may meet it"."""

_LOG = logging.getLogger(__name__)
_RETRY_S: Final = 0.3

T = TypeVar("T")


async def wait_session(store: MetadataStore) -> None:
    """Start the store; waits for ZooKeeper, and for its name in DNS, as long as it takes.

    Raises:
        StartRefusedError: it will never let this process in, as it has an identity or has none.
    """
    while True:
        try:
            return await store.start()
        except (Rejected, IdentityError) as error:
            raise StartRefusedError(str(error)) from None
        except Unavailable as error:
            _LOG.warning("waiting for ZooKeeper: %s", error)
            await asyncio.sleep(_RETRY_S)


async def wait_cluster(store: MetadataStore, paths: Paths, domain: str | None = None) -> str:
    """Start the store and return the cluster's uuid, however long that takes.

    Args:
        domain: of this process's identity; None: it has none.

    Raises:
        StartRefusedError: the identity is of another cluster, or ZooKeeper allows it nothing.
        MetadataJsonError: the node is no cluster node, or of a newer format.
    """

    async def ensure() -> str:
        await refuse_other_cluster(store, paths, domain)
        return await ensure_cluster(store, paths, domain)

    try:
        return await repeat_until_answered(store, ensure)
    except Rejected as error:
        raise _refuse(error, domain) from None


async def wait_own_cluster(store: MetadataStore, paths: Paths, domain: str | None) -> None:
    """Start the store, and see that what it holds is the cluster of this process's identity.

    Raises:
        StartRefusedError, MetadataJsonError: it is another one, or is not to be read.
    """

    async def look() -> None:
        await refuse_other_cluster(store, paths, domain)

    try:
        await repeat_until_answered(store, look)
    except Rejected as error:
        raise _refuse(error, domain) from None


async def repeat_until_answered(store: MetadataStore, step: Callable[[], Awaitable[T]]) -> T:
    """Start the store and take a step, again and again until ZooKeeper answered all of it.

    A server that writes slowly loses connections, and what was under way with them: what is done
    once at a start would else end the start.

    Args:
        step: may be done in part, and begun again from there.

    Raises:
        StartRefusedError: ZooKeeper will never let this process in.
        What the step raises, but for answers that did not come.
    """
    while True:
        await wait_session(store)
        try:
            return await step()
        except (Unavailable, OutcomeUnknown) as error:
            _LOG.warning("waiting for ZooKeeper: %s", error)
            await asyncio.sleep(_RETRY_S)


async def refuse_other_cluster(store: MetadataStore, paths: Paths, domain: str | None) -> None:
    """See that an identity is of the cluster that is there; one that is not there is anybody's.

    Raises:
        StartRefusedError: it is of another one.
        Unavailable, MetadataJsonError: as `ensure_cluster`.
    """
    uuid = await find_cluster(store, paths)
    if domain is not None and uuid not in (None, domain):
        raise StartRefusedError(
            f"the identity is of the cluster {domain}, and ZooKeeper holds {uuid} under this name: "
            "check --tls-dir, --cluster and --zookeeper"
        )


async def ensure_cluster(store: MetadataStore, paths: Paths, domain: str | None = None) -> str:
    """The cluster's uuid; makes the node if there is none, with the uuid of an identity if given.

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
        fields = {"uuid": domain or uuid4().hex, "format": FORMAT_AT_FIRST, "last_log_id": 0}
        with contextlib.suppress(OutcomeUnknown):
            try:
                await store.create(paths.cluster, encode_node(fields), make_parents=True)
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


def _refuse(error: Rejected, domain: str | None) -> StartRefusedError:
    if domain is None:
        return StartRefusedError(
            "this process has no identity, and the nodes of the cluster are for those who have "
            f"one: start it with --security on --tls-dir DIR ({error})"
        )
    return StartRefusedError(
        f"ZooKeeper does not allow it: a cluster with identities is founded by an operator, with "
        f"`duramen access apply` ({error})"
    )


def _read_uuid(data: bytes) -> str:
    node = read_node(data)
    uuid, version = node.get("uuid"), node.get("format")
    if not isinstance(uuid, str) or not isinstance(version, int):
        raise MetadataJsonError("the node is no cluster node")
    if version > FORMAT:
        raise MetadataJsonError(f"the cluster's format {version} is newer than {FORMAT}")
    return uuid
