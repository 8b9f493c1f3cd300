"""Maintenance of ZooKeeper: a node that says whether rolling and ensemble changes are suspended.

It is the cluster's, outlives restarts, and every process that owns logs watches it: with it set, an
open segment needs nothing of ZooKeeper, so that appends go on however long ZooKeeper is away.
Members that fail meanwhile are suspended, not replaced. Who cannot read it keeps what it knew.

Called by the sequencer's service and `control`, and by `duramen.client.core`.
Source: docs/protocol/write.md "Roll", docs/protocol/metadata.md "maintenance".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from duramen.errors import DuramenError
from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import Conflict, MetadataStore, OutcomeUnknown
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node

_LOG = logging.getLogger(__name__)
_TRIES: Final = 20
_SETTLE_TICK_S: Final = 0.02

SETTLE_S: Final = 2.0
"""A roll or an ensemble change whose `multi()` was sent takes some 10 ms: this is a hundred."""


class Maintenance:
    """Follows the node, and changes it.

    Args:
        on_change: called with every value that differs from the one before; at first False.
        count_changing: logs here that are in the middle of a change of the nodes.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        on_change: Callable[[bool], None],
        count_changing: Callable[[], int],
    ) -> None:
        self.is_rolling_suspended = False
        self._store = store
        self._path = paths.maintenance
        self._on_change = on_change
        self._count_changing = count_changing
        self._follower = Follower(store, "maintenance", self._look)

    async def start(self) -> None:
        """Read the node once and follow it from then on."""
        await self._follower.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    async def suspend(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Control call: `rolling` True suspends, False resumes; answers once this process obeys.

        Returns:
            `under_way`: logs whose last change of the nodes has not ended within SETTLE_S; 0 means
            that ZooKeeper may go away now as far as this process is concerned.

        Raises:
            DuramenError: `invalid_argument`, `metadata_unavailable` (try again).
        """
        wanted = request.get("rolling")
        if not isinstance(wanted, bool):
            raise DuramenError("invalid_argument", "rolling: true or false", field="rolling")
        for _ in range(_TRIES):
            await self._store.sync(self._path)
            stored = await self._store.get(self._path)
            fields = {} if stored is None else read_node(stored.data)
            if fields.get("rolling_suspended", False) == wanted:
                self._apply(is_suspended=wanted)
                return {"rolling_suspended": wanted, "under_way": await self._settle()}
            data = encode_node({**fields, "rolling_suspended": wanted})
            # The node decides: after a conflict or an unknown outcome it is read again (R3).
            with contextlib.suppress(Conflict, OutcomeUnknown):
                if stored is None:
                    await self._store.create(self._path, data)
                else:
                    await self._store.set(self._path, data, version=stored.version)
        raise DuramenError("metadata_unavailable", "the node changes too often: try again")

    async def _settle(self) -> int:
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while self.is_rolling_suspended and self._count_changing():
            if asyncio.get_running_loop().time() >= deadline:
                return self._count_changing()
            await asyncio.sleep(_SETTLE_TICK_S)
        return 0

    async def _look(self) -> None:
        stored = await self._follower.get(self._path)
        try:
            fields = {} if stored is None else read_node(stored.data)
        except MetadataJsonError as error:
            _LOG.error("%s is not understood: %s", self._path, error)
            return
        self._apply(is_suspended=fields.get("rolling_suspended") is True)

    def _apply(self, *, is_suspended: bool) -> None:
        if is_suspended != self.is_rolling_suspended:
            _LOG.info("rolling is %s", "suspended" if is_suspended else "resumed")
            self.is_rolling_suspended = is_suspended
            self._on_change(is_suspended)
