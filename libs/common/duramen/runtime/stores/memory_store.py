"""The metadata store in memory: one `MemoryTree` per cluster, a `MemoryStore` per client on it.

The twin of `zookeeper_store`: the same contract tests run on both, so tests that use this one rest
on ZooKeeper's real semantics. It is no simulator of a slow or stale store: reads are always
current and nothing takes time. Faults are explicit: `MemoryTree.expire`, `MemoryStore.disconnect`
and `reconnect`, and `doom_next_write` for the three ways in which a write's outcome can be unknown
(rule R3). The tree itself needs no event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import assert_never

from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
    MetadataError,
    Op,
    OutcomeUnknown,
    Rejected,
    SessionExpired,
    SessionState,
    Set,
    Stored,
    Unavailable,
    Watch,
    create_parents,
    parent_path,
    validate_ops,
    validate_path,
)


@dataclass(slots=True)
class _Node:
    data: bytes
    ephemeral_session: int = 0
    version: int = 0
    made: int = 0
    changed_unix_ms: int = 0
    children: set[str] = field(default_factory=set)


class MemoryTree:
    """The shared state: nodes, sessions and watches. Synchronous; watches are called at the
    change."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(b"")}
        self.now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        """The store's clock, which is not its clients'."""
        self._on_expired: dict[int, Callable[[], None]] = {}
        self._last_session_id = 0
        self._transaction = 0
        self._data_watches: dict[str, list[Watch]] = {}
        self._children_watches: dict[str, list[Watch]] = {}

    def open_session(self, on_expired: Callable[[], None]) -> int:
        self._last_session_id += 1
        self._on_expired[self._last_session_id] = on_expired
        return self._last_session_id

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._on_expired

    def close_session(self, session_id: int) -> None:
        """Ends a session without telling it; its ephemeral nodes vanish."""
        self._on_expired.pop(session_id, None)
        for path, node in list(self._nodes.items()):
            if node.ephemeral_session == session_id:
                self._remove(path)
                self._notify(DeleteNode(path, node.version))

    def expire(self, session_id: int) -> None:
        """Ends a session as the server does after its time-out, and tells the store if it
        listens."""
        on_expired = self._on_expired.get(session_id)
        self.close_session(session_id)
        if on_expired is not None:
            on_expired()

    def get(self, path: str) -> Stored | None:
        node = self._nodes.get(path)
        if node is None:
            return None
        return Stored(
            node.data, node.version, node.ephemeral_session, len(node.children), node.made,
            node.changed_unix_ms,
        )  # fmt: skip

    def children(self, path: str) -> tuple[str, ...] | None:
        node = self._nodes.get(path)
        return None if node is None else tuple(sorted(node.children))

    def watch_data(self, path: str, watch: Watch) -> None:
        """Calls `watch` once, when the node is created, changed or deleted."""
        self._data_watches.setdefault(path, []).append(watch)

    def watch_children(self, path: str, watch: Watch) -> None:
        """Calls `watch` once, when a child comes or goes or the node is created or deleted."""
        where = self._children_watches if path in self._nodes else self._data_watches
        where.setdefault(path, []).append(watch)

    def apply(self, session_id: int, ops: Sequence[Op]) -> tuple[int, ...]:
        """All of the operations or none. Raises Conflict, Rejected, or SessionExpired."""
        if not self.is_alive(session_id):
            raise SessionExpired(f"session {session_id}")
        self._transaction += 1
        undo: list[Callable[[], None]] = []
        versions: list[int] = []
        try:
            for index, op in enumerate(ops):
                versions.append(self._apply_one(session_id, index, op, undo))
        except (Conflict, Rejected):
            for step in reversed(undo):
                step()
            raise
        for op in ops:
            self._notify(op)
        return tuple(versions)

    def _apply_one(
        self, session_id: int, index: int, op: Op, undo: list[Callable[[], None]]
    ) -> int:
        if isinstance(op, Create):
            return self._create(session_id, index, op, undo)
        node = self._nodes.get(op.path)
        if node is None:
            raise Conflict(index, ConflictKind.NO_NODE, op.path)
        if node.version != op.version:
            raise Conflict(index, ConflictKind.BAD_VERSION, op.path)
        match op:
            case Check():
                return op.version
            case Set():
                before = node.data, node.changed_unix_ms
                node.data, node.version = op.data, op.version + 1
                node.changed_unix_ms = self.now_unix_ms()
                undo.append(lambda: self._restore(node, op.version, *before))
                return node.version
            case DeleteNode():
                if node.children:
                    raise Conflict(index, ConflictKind.NOT_EMPTY, op.path)
                self._remove(op.path)
                undo.append(lambda: self._insert(op.path, node))
                return op.version
            case _:
                assert_never(op)

    def _create(
        self, session_id: int, index: int, op: Create, undo: list[Callable[[], None]]
    ) -> int:
        if op.path in self._nodes:
            raise Conflict(index, ConflictKind.NODE_EXISTS, op.path)
        parent = self._nodes.get(parent_path(op.path))
        if parent is None:
            raise Conflict(index, ConflictKind.NO_NODE, op.path)
        if parent.ephemeral_session:
            raise Rejected(f"an ephemeral node has no children: {op.path}")
        session = session_id if op.ephemeral else 0
        node = _Node(op.data, session, 0, self._transaction, self.now_unix_ms())
        self._insert(op.path, node)
        undo.append(lambda: self._remove(op.path))
        return 0

    @staticmethod
    def _restore(node: _Node, version: int, data: bytes, changed_unix_ms: int) -> None:
        node.data, node.version, node.changed_unix_ms = data, version, changed_unix_ms

    def _insert(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[parent_path(path)].children.add(path.rpartition("/")[2])

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        self._nodes[parent_path(path)].children.discard(path.rpartition("/")[2])

    def _notify(self, op: Op) -> None:
        if isinstance(op, Check):
            return
        watches = self._data_watches.pop(op.path, [])
        if isinstance(op, Create | DeleteNode):
            watches += self._children_watches.pop(op.path, [])
            watches += self._children_watches.pop(parent_path(op.path), [])
        for watch in watches:
            watch()


class WriteFate(Enum):
    """What becomes of a write whose caller is told OutcomeUnknown."""

    APPLIED = "applied"  # the reply was lost
    DROPPED = "dropped"  # the request was lost
    LATE = "late"  # the request is still under way: `deliver_late_writes`


class MemoryStore:
    """A client of a `MemoryTree`; implements `MetadataStore`."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session = SessionState.LOST
        self._session_id = 0
        self._listeners: list[Callable[[SessionState], None]] = []
        self._watches: dict[int, Watch] = {}
        self._watches_set_count = 0
        self._is_closed = False
        self._fate: WriteFate | None = None
        self._late_writes: list[Callable[[], object]] = []
        self._counts = {"reads": 0, "writes": 0, "conflicts": 0, "unknown": 0, "sessions": 0}

    @property
    def session(self) -> SessionState:
        return self._session

    @property
    def session_id(self) -> int:
        return self._session_id

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.append(callback)

    async def start(self) -> None:
        if self._is_closed:
            raise Unavailable("the store is closed")
        self._loop = asyncio.get_running_loop()
        if self._session is SessionState.LOST:
            self._open_session()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.clear()
        self._tree.close_session(self._session_id)
        self._session, self._session_id = SessionState.LOST, 0

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        await self._read(path)
        if watch is not None:
            self._tree.watch_data(path, self._arm(watch))
        return self._tree.get(path)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...] | None:
        await self._read(path)
        if watch is not None:
            self._tree.watch_children(path, self._arm(watch))
        return self._tree.children(path)

    async def sync(self, path: str) -> None:
        await self._read(path)

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = False
    ) -> int:
        node = Create(path, data, ephemeral)
        try:
            return (await self.commit((node,)))[0]
        except Conflict as conflict:
            if not make_parents or conflict.kind is not ConflictKind.NO_NODE:
                raise
        await create_parents(self.commit, path)
        return (await self.commit((node,)))[0]

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        return (await self.commit((Set(path, data, version),)))[0]

    async def delete(self, path: str, *, version: int) -> None:
        await self.commit((DeleteNode(path, version),))

    async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
        frozen = tuple(ops)
        validate_ops(frozen)
        await asyncio.sleep(0)  # as with the real store, others may run before the write is applied
        self._require_session()
        if not frozen:
            return ()
        self._counts["writes"] += 1
        write = partial(self._tree.apply, self._session_id, frozen)
        fate, self._fate = self._fate, None
        if fate is None:
            try:
                return write()
            except Conflict:
                self._counts["conflicts"] += 1
                raise
        self._counts["unknown"] += 1
        if fate is WriteFate.APPLIED:
            with suppress(MetadataError):
                write()
        elif fate is WriteFate.LATE:
            self._late_writes.append(write)
        raise OutcomeUnknown("the reply was lost")

    def statistics(self) -> dict[str, int]:
        return {**self._counts, "watches": len(self._watches), "late": len(self._late_writes)}

    # --- Faults ---

    def doom_next_write(self, fate: WriteFate) -> None:
        """The next write raises OutcomeUnknown and meets `fate`."""
        self._fate = fate

    def deliver_late_writes(self) -> None:
        """Applies what is still under way, if its session lives and its predicates hold."""
        late, self._late_writes = self._late_writes, []
        for write in late:
            with suppress(MetadataError):
                write()

    def disconnect(self) -> None:
        """Cuts the connection: SUSPENDED, every watch fires, calls raise Unavailable."""
        self._move_to(SessionState.SUSPENDED)
        self._fire_all()

    def reconnect(self) -> None:
        """CONNECTED again with the same session, or LOST and then a new one if it has expired."""
        if self._tree.is_alive(self._session_id):
            self._move_to(SessionState.CONNECTED)
        else:
            self._on_expired(is_connected=True)

    # --- Session and watches ---

    def _open_session(self) -> None:
        if self._is_closed:
            return
        self._counts["sessions"] += 1
        self._session_id = self._tree.open_session(self._on_expired)
        self._move_to(SessionState.CONNECTED)

    def _on_expired(self, *, is_connected: bool | None = None) -> None:
        """The server ended the session; who is disconnected learns of it when it connects again."""
        if is_connected is None:
            is_connected = self._session is SessionState.CONNECTED
        if is_connected:
            self._session_id = 0
            self._move_to(SessionState.LOST)
            self._fire_all()
            self._call_soon(self._open_session)

    def _move_to(self, state: SessionState) -> None:
        self._session = state
        for listener in self._listeners:
            self._call_soon(partial(self._notify, listener, state))

    def _notify(self, listener: Callable[[SessionState], None], state: SessionState) -> None:
        if not self._is_closed:
            listener(state)

    def _require_session(self) -> None:
        if self._session is SessionState.LOST and self._counts["sessions"] and not self._is_closed:
            raise SessionExpired("the session has expired")
        if self._session is not SessionState.CONNECTED:
            raise Unavailable("not connected")

    async def _read(self, path: str) -> None:
        validate_path(path)
        await asyncio.sleep(0)
        self._require_session()
        self._counts["reads"] += 1

    def _arm(self, watch: Watch) -> Watch:
        self._watches_set_count += 1
        key = self._watches_set_count
        self._watches[key] = watch
        return partial(self._fire, key)

    def _fire(self, key: int) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            self._call_soon(watch)

    def _fire_all(self) -> None:
        for key in list(self._watches):
            self._fire(key)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None, "start() comes first"
        self._loop.call_soon(callback)
