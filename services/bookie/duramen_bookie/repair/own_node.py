"""The bookie's own node, followed: what it says of location, weight and duty holds from then on.

The duty is enforced before anybody is told: first the core, then `available/<id>`. A node that
cannot be read, or that is of another incarnation, changes nothing; that one was replaced, and its
successor refuses to share its name.

Not here: who changes the node (the auditor, an admin call), what a duty forbids (`core.bookie`).
Called by `service`. Source: docs/protocol/repair.md "Drain", docs/protocol/metadata.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from duramen.ids import BookieId, Incarnation
from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import BookieNode, MetadataJsonError, Paths, read_bookie

_LOG = logging.getLogger(__name__)


class OwnNode:
    """Keeps `node` as it stands in ZooKeeper.

    Args:
        on_node: told of the first one before `start` returns, and of every other one.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        bookie_id: BookieId,
        incarnation: Incarnation,
        on_node: Callable[[BookieNode], None],
    ) -> None:
        self.node = BookieNode(incarnation)
        self._store = store
        self._path = paths.bookie(bookie_id)
        self._on_node = on_node
        self._follower = Follower(store, self._path, self._look)

    async def start(self) -> None:
        """Read the node, and follow it; returns when it was read, however long that takes."""
        await self._follower.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    async def _look(self) -> None:
        await self._store.sync(self._path)
        found = await self._follower.get(self._path)
        if found is None:
            _LOG.error("%s is gone: somebody removed this bookie from the cluster", self._path)
            return
        try:
            node = read_bookie(found.data)
        except MetadataJsonError as error:
            _LOG.error("%s is passed over: %s", self._path, error)
            return
        if node.incarnation != self.node.incarnation:
            _LOG.error("%s is of incarnation %s now", self._path, node.incarnation)
            return
        if node.duty is not self.node.duty:
            _LOG.info("from now on this bookie is %s", node.duty.value)
        self.node = node
        self._on_node(node)
