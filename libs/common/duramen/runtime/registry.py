"""Who is there: one's own ephemeral node kept alive, and the live nodes under a parent.

`Registration` creates an ephemeral node and creates it again after every lost session; a node that
a former life of the same process left is replaced. `Roster` mirrors the children of a parent
with their data. A roster is a hint for routing and placement and proves nothing (R4): while
ZooKeeper cannot be reached it keeps what it knew.

Called by every service. Source: 08-interfaces "ZooKeeper" (`available`, `sequencers`, …).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from duramen.runtime.metadata_store import Conflict, MetadataError, MetadataStore, SessionState
from duramen.wire.metadata_json import MetadataJsonError, read_node, spell_node

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.3


class Registration:
    """One's own ephemeral node, for as long as the process wants it."""

    def __init__(self, store: MetadataStore, path: str, fields: Mapping[str, Any]) -> None:
        self._store = store
        self._path = path
        self._fields = dict(fields)
        self._dirty = asyncio.Event()
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Register; returns once the node is there."""
        self._task = asyncio.create_task(self._keep())
        self._dirty.set()
        await self._done.wait()

    def update(self, fields: Mapping[str, Any]) -> None:
        """Change the node's fields, soon."""
        self._fields = dict(fields)
        self._dirty.set()

    async def stop(self) -> None:
        """Stop keeping the node; it vanishes with the session."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._dirty.set()

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write()
                self._done.set()
            except MetadataError as error:
                _LOG.info("registration of %s: %s", self._path, error)
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _write(self) -> None:
        data = spell_node(self._fields)
        await self._store.sync(self._path)
        found = await self._store.get(self._path)
        if found is not None and found.ephemeral_session != self._store.session_id:
            with contextlib.suppress(Conflict):
                await self._store.delete(self._path, version=found.version)
            found = None
        if found is None:
            await self._store.create(self._path, data, ephemeral=True, make_parents=True)
        elif found.data != data:
            await self._store.set(self._path, data, version=found.version)


class Roster:
    """The live nodes under a parent: name → fields, kept current by watches."""

    def __init__(
        self, store: MetadataStore, parent: str, on_change: Callable[[], None] | None = None
    ) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self._store = store
        self._parent = parent
        self._on_change = on_change
        self._dirty = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.on_session(lambda _state: self._dirty.set())

    async def start(self) -> None:
        """Read the nodes once and follow them from then on."""
        self._task = asyncio.create_task(self._follow())
        self._dirty.set()
        await self._first.wait()

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                nodes = await self._read()
            except MetadataError as error:
                _LOG.info("roster of %s: %s", self._parent, error)
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)
                continue
            changed = nodes != self.nodes or not self._first.is_set()
            self.nodes = nodes
            self._first.set()
            if changed and self._on_change is not None:
                self._on_change()

    async def _read(self) -> dict[str, dict[str, Any]]:
        names = await self._store.children(self._parent, self._dirty.set)
        nodes = {}
        for name in names or ():
            found = await self._store.get(f"{self._parent}/{name}", self._dirty.set)
            if found is None:
                continue
            try:
                nodes[name] = read_node(found.data)
            except MetadataJsonError as error:
                _LOG.warning("%s/%s is passed over: %s", self._parent, name, error)
        return nodes
