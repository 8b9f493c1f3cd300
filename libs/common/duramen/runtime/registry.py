"""Who is there: one's own ephemeral node kept alive, and nodes of others kept in view.

`Registration` creates an ephemeral node and creates it again whenever it is gone; a node that a
former life of the same process left is replaced. `Follower` is the one loop of whoever mirrors
nodes: a look, and another after every change; `Roster` mirrors by it the children of a parent
with their data. What they show is a hint for routing and placement and proves nothing (R4): while
ZooKeeper cannot be reached it stays what it was. Each node says in `formats` what its process
understands; `refuse_unspoken` asks that before something is written that an older
process would refuse. What the read proxy keeps of logs is not this but
a cache that reads on demand (`duramen.runtime.reading.metadata`).

Called by every service. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from duramen.errors import DuramenError
from duramen.runtime.security.peers import Learn
from duramen.runtime.stores.metadata_store import (
    Conflict,
    MetadataError,
    MetadataStore,
    Rejected,
    SessionState,
    Stored,
    Watch,
)
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node
from duramen.wire.nodes.formats import FORMATS, PROCESS_FORMATS, understands

_LOG = logging.getLogger(__name__)
_RETRY_S: Final = 0.3
_UNREAD_LOOK_S: Final = 30.0
"""No watch tells that a node may be read again."""
_NAMED_MAX: Final = 5

T = TypeVar("T")


class Registration:
    """One's own ephemeral node, for as long as the process wants it.

    It is watched too: a deletion that a former attempt sent may be applied late, after the node was
    made anew, and nobody else would notice that a process which lives is not there.
    """

    def __init__(self, store: MetadataStore, path: str, fields: Mapping[str, Any]) -> None:
        self._store = store
        self._path = path
        self._fields = _describe(fields)
        self._follower = Follower(store, f"registration of {path}", self._write)

    async def start(self) -> None:
        """Register; returns once the node is there."""
        await self._follower.start()

    def update(self, fields: Mapping[str, Any]) -> None:
        """Change the node's fields, soon."""
        self._fields = _describe(fields)
        self._follower.look_again()

    def change(self, fields: Mapping[str, Any]) -> None:
        """Change some of the node's fields, soon; the others stay."""
        self.update({**self._fields, **fields})

    async def stop(self) -> None:
        """Stop keeping the node; it vanishes with the session."""
        await self._follower.stop()

    async def _write(self) -> None:
        data = encode_node(self._fields)
        await self._store.sync(self._path)
        found = await self._follower.get(self._path)
        if found is not None and found.ephemeral_session != self._store.session_id:
            with contextlib.suppress(Conflict):
                await self._store.delete(self._path, version=found.version)
            found = None
        if found is None:
            await self._store.create(self._path, data, ephemeral=True, make_parents=True)
        elif found.data != data:
            await self._store.set(self._path, data, version=found.version)


def _describe(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {FORMATS: dict(PROCESS_FORMATS), **fields}


async def refuse_unspoken(store: MetadataStore, paths: Paths, field: str) -> None:
    """Refuse a configuration while a process is there that does not say that it understands it.

    A courtesy to an upgrade under way: who is not registered now may come (R4). What an older
    process must not do with it, it does not do in any case: it knows no compressed entry, and does
    not start on the tree of a cluster with `out_of_order` logs.

    Args:
        field: `compression` or `ack_mode`.

    Raises:
        DuramenError: `invalid_argument`, naming who must be upgraded first.
    """
    kind, what, parents = {
        "compression": (
            "entry", "compressed entries are not read",
            (paths.available, paths.sequencers, paths.read_proxies),
        ),
        "ack_mode": (
            "ack_mode", "out_of_order is not known",
            (paths.sequencers, paths.write_proxies, paths.read_proxies),
        ),
    }[field]  # fmt: skip
    older: list[str] = []
    for parent in parents:
        for name in await store.children(parent) or ():
            try:
                found = await store.get(f"{parent}/{name}")
            except Rejected as error:
                # Whoever lives can be read: what it says of itself nobody hears in any case.
                _LOG.warning("%s/%s is passed over: %s", parent, name, error)
                continue
            if found is not None and not understands(read_node(found.data), (kind,)):
                older.append(name)
    if older:
        more = "" if len(older) <= _NAMED_MAX else f" and {len(older) - _NAMED_MAX} more"
        named = ", ".join(sorted(older)[:_NAMED_MAX])
        raise DuramenError(
            "invalid_argument", f"{field}: {what} by {named}{more}: upgrade first", field=field
        )


class Follower:
    """Calls `look` once, and again after a change of any node that it read through this follower.

    Args:
        what: names it in the log.
        look: reads by `get` and `children` of this follower and keeps what it made of it. It is
            never called twice at once. A MetadataError that it raises means: try again soon.
    """

    def __init__(
        self, store: MetadataStore, what: str, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._what = what
        self._look = look
        self._armed: set[tuple[str, str]] = set()
        self._dirty = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Look once, and follow from then on; returns after the first look that succeeded."""
        self._task = asyncio.create_task(self._follow())
        self._dirty.set()
        await self._first.wait()

    async def stop(self) -> None:
        """Stop following; what was armed in the store wakes nobody any more."""
        if self._later is not None:
            self._later.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def look_again(self) -> None:
        """Look once more, soon, although nothing changed in the store."""
        self._dirty.set()

    def look_later(self, delay_s: float) -> None:
        """Look once more after a while; a call takes the place of the one before."""
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(delay_s, self._dirty.set)

    async def get(self, path: str) -> Stored | None:
        """As `MetadataStore.get`; a change of the node leads to another look."""
        return await self._watched("data", path, self._store.get)

    async def children(self, path: str) -> tuple[str, ...] | None:
        """As `MetadataStore.children`; children that come and go lead to another look."""
        return await self._watched("children", path, self._store.children)

    async def _watched(
        self, kind: str, path: str, read: Callable[[str, Watch | None], Awaitable[T]]
    ) -> T:
        key = (kind, path)
        if key in self._armed:
            # It has not fired yet, and another beside it would only pile up.
            return await read(path, None)
        self._armed.add(key)
        try:
            return await read(path, partial(self._on_change, key))
        except BaseException:
            # Only a call that returned has armed its watch.
            self._armed.discard(key)
            raise

    def _on_change(self, key: tuple[str, str]) -> None:
        self._armed.discard(key)
        self._dirty.set()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            # No watch outlives its session, whether or not it was told so.
            self._armed.clear()
        self._dirty.set()

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._look()
            except MetadataError as error:
                _LOG.info("%s: %s", self._what, error)
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)
                continue
            self._first.set()


class Roster:
    """The live nodes under a parent: name → fields, kept current by watches.

    A node that is not understood, or that may not be read, is passed over: it keeps no other from
    being known.

    Args:
        learn: who calls these nodes has to know who they are; told before `on_change`.
    """

    def __init__(
        self,
        store: MetadataStore,
        parent: str,
        on_change: Callable[[], None] | None = None,
        *,
        learn: Learn | None = None,
    ) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.made: dict[str, int] = {}
        """Name → the transaction that made the node: another number is another registration."""
        self._parent = parent
        self._on_change = on_change
        self._learn = learn
        self._is_known = False
        self._unread: frozenset[str] = frozenset()
        self._later: asyncio.TimerHandle | None = None
        self._follower = Follower(store, f"roster of {parent}", self._look)

    async def start(self) -> None:
        """Read the nodes once and follow them from then on."""
        await self._follower.start()

    async def stop(self) -> None:
        """Stop following."""
        if self._later is not None:
            self._later.cancel()
        await self._follower.stop()

    async def _look(self) -> None:
        nodes, made, unread = {}, {}, set()
        for name in await self._follower.children(self._parent) or ():
            try:
                found = await self._follower.get(f"{self._parent}/{name}")
            except Rejected as error:
                unread.add(name)
                if name not in self._unread:
                    _LOG.warning("%s/%s is passed over: %s", self._parent, name, error)
                continue
            if found is None:
                continue
            try:
                nodes[name] = read_node(found.data)
                made[name] = found.made
            except MetadataJsonError as error:
                _LOG.warning("%s/%s is passed over: %s", self._parent, name, error)
        self._look_later(frozenset(unread))
        is_news = (nodes, made) != (self.nodes, self.made) or not self._is_known
        self.nodes, self.made, self._is_known = nodes, made, True
        if self._learn is not None:
            # One that left its place to another is behind it.
            self._learn({name: nodes[name] for name in sorted(nodes, key=made.__getitem__)})
        if is_news and self._on_change is not None:
            self._on_change()

    def _look_later(self, unread: frozenset[str]) -> None:
        self._unread = unread
        if self._later is not None:
            self._later.cancel()
        self._later = None
        if unread:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(_UNREAD_LOOK_S, self._follower.look_again)
