"""Simulated metadata store: versioned nodes, atomic commits, sessions, and what may befall them.

`StoreSession` is the MetadataStore port, so the production MetadataLink runs on it. A commit whose
answer is lost raises OutcomeUnknown and is applied, applied later, or never. Reads without a sync
may be behind, but never behind what the same process has seen; watches come late. What a process
asks arrives and is answered in order, as the port promises; only "no answer" comes out of turn.
A listing of children may come back empty. A session that is not heard of for the session time-out
expires, and its ephemeral nodes vanish. The roster of bookies is what stands in their nodes.

Called by `processes`, `reading` and `nemesis`. Source: docs/protocol/metadata.md "Rules for every
change", R2, R3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from duramen.ids import LogId
from duramen.limits import ZOOKEEPER_SESSION_S
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
    MetadataError,
    Op,
    OutcomeUnknown,
    SessionState,
    Set,
    Stored,
    Unavailable,
    Watch,
    create_parents,
    parent_path,
)
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen.wire.nodes.fields import read_versioned
from duramen.wire.nodes.segments import FLEXIBLE_SCHEMA
from tests.sim.network import STORE, Network
from tests.sim.node_loop import Promise
from tests.sim.options import Options
from tests.sim.world import Node, World

T = TypeVar("T")

PATHS: Final = Paths("sim")
_HEARTBEAT_US: Final = 400 * MS
_SUSPEND_US: Final = 1_500 * MS
_SESSION_US: Final = int(ZOOKEEPER_SESSION_S * SECOND)
_ANSWER_TIMEOUT_US: Final = 2 * SECOND

_LATER: Final = "of_a_later_version"
_LATER_BYTES: Final = _LATER.encode()

OnApplied = Callable[[Op, bytes | None, "StoreSession"], None]


class _Version(NamedTuple):
    zxid: int
    stored: Stored | None


class Store:
    """The ensemble as one: what is applied is applied.

    Args:
        on_applied: called for each operation of a commit that was applied.
    """

    def __init__(
        self, world: World, network: Network, options: Options, on_applied: OnApplied
    ) -> None:
        self.world = world
        self.network = network
        self.options = options
        self.unknown_ratio = options.unknown_ratio
        self.stale_us = options.stale_us
        self.watch_us = options.watch_us
        self.down_until_us = 0
        self.slow_us = 0
        """How much longer every request takes, about."""
        self.empty_listings = ("", 0.0)
        """How many listings come back empty, of paths with this in it."""
        self.bookies: dict[str, dict[str, Any]] = {}
        """What `available/<id>` of the bookies hold."""
        self.moved_us: dict[str, int] = {}
        """When that was changed last."""
        self.newer = options.newer
        self.sequencers: dict[str, StoreSession] = {}
        self.unreached: dict[str, tuple[str, ...]] = {}
        """What each sequencer says in its roster node; it goes with the node."""
        self._parted: dict[str, tuple[int, int]] = {}
        """Processes whose server has lost the others: until when, and what it saw last."""
        self._on_applied = on_applied
        self._history: dict[str, list[_Version]] = {}
        self._names: dict[str, dict[str, None]] = {}
        """Every child that a path ever had."""
        self._applied_us: list[int] = [0]
        self._session_count = 0
        self._sessions: list[StoreSession] = []
        self._watchers: list[tuple[LogId, str, StoreSession, Callable[[], None]]] = []
        self._armed: dict[tuple[bool, str], list[_ArmedWatch]] = {}
        """One-shot watches: of a node's children (True) or its data, by path."""
        world.at(_HEARTBEAT_US, self._beat)

    @property
    def parents(self) -> Mapping[str, Any]:
        """Paths that ever had children."""
        return self._names

    @property
    def zxid(self) -> int:
        """Number of the last commit."""
        return len(self._applied_us) - 1

    def heal(self) -> None:
        """No more faults."""
        self.down_until_us = 0
        self.slow_us = 0
        self.unknown_ratio = 0.0
        self.empty_listings = ("", 0.0)
        self._parted.clear()
        self.stale_us = min(self.stale_us, 20 * MS)
        self.watch_us = min(self.watch_us, 100 * MS)

    def new_session_id(self) -> int:
        """Never used before."""
        self._session_count += 1
        return self._session_count

    def join(self, session: StoreSession) -> None:
        """Follow this process's session from now on."""
        self._sessions.append(session)

    def is_reachable(self, name: str) -> bool:
        """Whether requests of a process come here."""
        return self.world.now_us >= self.down_until_us and not self.network.is_cut(name, STORE)

    def part(self, names: Iterable[str], until_us: int) -> None:
        """The server of these processes loses the others: it goes on giving what it has."""
        for name in names:
            self._parted[name] = until_us, self.zxid

    def parted_zxid(self, name: str) -> int | None:
        """The last commit that the server of a process has seen, while it has lost the others."""
        until_us, zxid = self._parted.get(name, (0, 0))
        return zxid if until_us > self.world.now_us else None

    # --- Data ------------------------------------------------------------------------------------

    def find(self, path: str, zxid: int | None = None) -> Stored | None:
        """The node as of a commit; now, if None."""
        history = self._history.get(path)
        if not history:
            return None
        if zxid is None:
            return history[-1].stored
        index = bisect_right(history, zxid, key=lambda version: version.zxid) - 1
        return history[index].stored if index >= 0 else None

    def list_children(self, path: str, zxid: int) -> tuple[str, ...]:
        """Names of the nodes right below a path, as of a commit."""
        return tuple(n for n in self._names.get(path, ()) if self.find(f"{path}/{n}", zxid))

    def zxid_at(self, instant_us: int) -> int:
        """The last commit at or before an instant."""
        return max(0, bisect_right(self._applied_us, instant_us) - 1)

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node, and those above it, before anything begins."""
        if path.count("/") > 1 and self.find(parent_path(path)) is None:
            self.put(parent_path(path))
        self._applied_us.append(self.world.now_us)
        self._add(path, Stored(data, 0, 0, 0, made=self.zxid))

    def _add(self, path: str, stored: Stored | None) -> None:
        history = self._history.get(path)
        if history is None:
            history = self._history[path] = []
            parent, _, name = path.rpartition("/")
            self._names.setdefault(parent, {})[name] = None
        history.append(_Version(self.zxid, stored))

    def apply(self, ops: Sequence[Op], session: StoreSession, session_id: int) -> tuple[int, ...]:
        """All or nothing; raises Conflict."""
        fresh: dict[str, Stored | None] = {}
        before: list[bytes | None] = []
        for index, op in enumerate(ops):
            found = fresh[op.path] if op.path in fresh else self.find(op.path)
            before.append(None if found is None else found.data)
            fresh[op.path] = _step(index, op, found, session_id, self.zxid + 1)
            if self.newer and found is not None and isinstance(op, Set):
                self._check_kept(op, found.data)  # not of one that came too late, and is refused
            self._check_parent(index, op, fresh)
        self._applied_us.append(self.world.now_us)
        zxid = self.zxid
        for path, stored in fresh.items():
            self._add(path, stored)
        session.view = max(session.view, zxid)
        for op, data in zip(ops, before, strict=True):
            self._on_applied(op, data, session)
        self._wake(fresh)
        return tuple(0 if isinstance(op, Create) else op.version + 1 for op in ops)

    def _check_kept(self, op: Set, before: bytes) -> None:
        """What a newer version wrote travels through the rewrite of an older one untouched."""
        if _LATER_BYTES in before:
            self.world.counts["later field kept"] += 1
            assert _LATER_BYTES in op.data, f"a field of a later version is lost in {op.path}"

    def _check_parent(self, index: int, op: Op, fresh: dict[str, Stored | None]) -> None:
        parent = parent_path(op.path)
        if isinstance(op, Create) and parent not in fresh and self.find(parent) is None:
            raise Conflict(index, ConflictKind.NO_NODE, op.path)
        if isinstance(op, DeleteNode) and self.list_children(op.path, self.zxid):
            raise Conflict(index, ConflictKind.NOT_EMPTY, op.path)

    def expire(self, session_id: int) -> None:
        """A session ends: its ephemeral nodes vanish."""
        gone = [
            path
            for path, history in self._history.items()
            if (stored := history[-1].stored) is not None and stored.ephemeral_session == session_id
        ]
        if gone:
            self._applied_us.append(self.world.now_us)
            for path in gone:
                self._add(path, None)
            self._wake(dict.fromkeys(gone))

    # --- Watches and rosters ---------------------------------------------------------------------

    def watch(self, log_id: LogId, path: str, session: StoreSession, call: Watch) -> None:
        """Call, late, after every change of a node of a log at or below `path`."""
        self._watchers.append((log_id, path, session, call))

    def arm(self, path: str, watch: _ArmedWatch, *, of_children: bool) -> None:
        """Call, late and once, after the first change that the watcher has not seen."""
        if of_children:
            names = self._names.get(path, ())
            is_late = any(self._changes_after(f"{path}/{n}", watch.view) for n in names)
        else:
            is_late = self._changes_after(path, watch.view)
        if is_late:
            watch.fire_in(self._watch_delay_us())
        else:
            self._armed.setdefault((of_children, path), []).append(watch)

    def _changes_after(self, path: str, zxid: int) -> bool:
        history = self._history.get(path)
        return history is not None and history[-1].zxid > zxid

    def _fire(self, of_children: bool, path: str) -> None:
        for watch in self._armed.pop((of_children, path), ()):
            watch.fire_in(self._watch_delay_us())

    def _learn_bookie(self, path: str) -> None:
        """A bookie's `available/<id>` was changed: everybody learns it in a while."""
        name = path.rpartition("/")[2]
        stored = self.find(path)
        fields = None if stored is None else read_node(stored.data)
        if fields != self.bookies.get(name):
            self.bookies.pop(name, None)
            self.moved_us[name] = self.world.now_us
            if fields is not None:
                self.bookies[name] = fields
            self.report_rosters()

    def read_registered(self) -> dict[str, dict[str, Any]]:
        """What `bookies/<id>` hold."""
        found = {n: self.find(f"{PATHS.bookies}/{n}") for n in self._names.get(PATHS.bookies, ())}
        return {name: read_node(node.data) for name, node in found.items() if node is not None}

    def _wake(self, changed: dict[str, Any]) -> None:
        for path in changed:
            self._fire(False, path)
            self._fire(True, path.rpartition("/")[0])
            if path.startswith(f"{PATHS.available}/"):
                self._learn_bookie(path)
            elif path.startswith(f"{PATHS.bookies}/"):
                self.report_rosters()
        for _, prefix, session, call in self._watchers:
            if any(path.startswith(prefix) for path in changed):
                session.node.after(self._watch_delay_us(), call)

    def report_rosters(self) -> None:
        """Bookies or sequencers came or went: everybody learns it in a while."""
        for session in self._sessions:
            if session.node.is_up:
                session.node.after(self._watch_delay_us(), session.learn_rosters)

    def _watch_delay_us(self) -> int:
        if self.world.chance(0.1):
            return self.world.between(1 * MS, self.watch_us + 2 * MS)
        return self.world.between(1 * MS, min(self.watch_us, 20 * MS) + 2 * MS)

    # --- Sessions --------------------------------------------------------------------------------

    def _beat(self) -> None:
        for session in self._sessions:
            session.beat()
        self.world.at(_HEARTBEAT_US, self._beat)


class _ArmedWatch:
    """A watch of one session: called once, after the change or when the connection is lost."""

    def __init__(self, session: StoreSession, view: int, call: Watch) -> None:
        self.view = view
        self._session = session
        self._life = session.node.life
        self._call: Watch | None = call
        session.watches.append(self)

    @property
    def is_over(self) -> bool:
        """Whether it was called."""
        return self._call is None

    def fire_in(self, delay_us: int) -> None:
        """Call in a while, or when the process notices that it does not hear of the store."""
        self._session.store.world.at(delay_us, self._session.node.run, self._life, self._fire)

    def fire(self) -> None:
        """Call now, as a part of the process's life."""
        if self._call is not None and self._life == self._session.node.life:
            call, self._call = self._call, None
            self._session.node.loop.enter(call)

    def _fire(self) -> None:
        session = self._session
        store, name = session.store, session.node.name
        is_told = session.session is SessionState.CONNECTED and store.is_reachable(name)
        if is_told and store.parted_zxid(name) is None:
            self.fire()
        elif self._call is not None:
            self.fire_in(SECOND)


class _Pipe:
    """One direction of a connection: nothing that is sent overtakes what was sent before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_us = 0

    def send(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do something after `delay_us`, or when everything before it is done."""
        now_us = self._world.now_us
        self._last_us = max(self._last_us, now_us + delay_us)
        self._world.at(self._last_us - now_us, action, *args)


class StoreSession:
    """One process's client: the MetadataStore port, as far as the production link uses it.

    Args:
        on_state: called, as an event of the node, after each change of `session`.
        on_rosters: called when bookies or sequencers may have changed.
    """

    def __init__(
        self,
        store: Store,
        node: Node,
        on_state: Callable[[SessionState], None],
        on_rosters: Callable[[], None],
    ) -> None:
        self.store = store
        self.node = node
        self.view = 0
        self.session = SessionState.LOST
        self.session_id = 0
        self._own_on_state = on_state
        self._listeners: list[Callable[[SessionState], None]] = []
        self.watches: list[_ArmedWatch] = []
        self._on_rosters = on_rosters
        self._heard_us = 0
        self._is_alive = False
        self._requests = _Pipe(store.world)
        self._answers = _Pipe(store.world)
        store.join(self)

    # --- Life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """A new process: the session of the one before lives on until it expires."""
        old = self.session_id if self._is_alive else 0
        if old:
            self.store.world.at(self._left_us(), self.store.expire, old)
        self.session_id = self.store.new_session_id()
        self._is_alive = True
        self._heard_us = self.store.world.now_us
        self.session = SessionState.CONNECTED
        self._listeners, self.watches = [], []
        self.view = self.store.zxid

    def _left_us(self) -> int:
        return max(0, self._heard_us + _SESSION_US - self.store.world.now_us)

    def end(self) -> None:
        """Close in peace: the ephemeral nodes vanish at once."""
        if self._is_alive:
            self._expire()

    def force_expiry(self) -> None:
        """The server gives the session up although the process lives."""
        if self._is_alive:
            self.store.world.counts["session expired"] += 1
            self._expire()

    def _expire(self) -> None:
        self._is_alive = False
        self.store.expire(self.session_id)
        self._unregister()

    def _unregister(self) -> None:
        store, name = self.store, self.node.name
        if name in store.sequencers:
            del store.sequencers[name]
            store.unreached.pop(name, None)
            store.report_rosters()

    def beat(self) -> None:
        """The store looks whether it still hears of the process, and the process of the store."""
        store, node = self.store, self.node
        now_us = store.world.now_us
        if now_us < store.down_until_us:
            self._heard_us = now_us  # while the ensemble is down nothing expires
        is_heard = node.is_up and not node.is_paused and store.is_reachable(node.name)
        is_heard = is_heard and not store.network.is_cut(STORE, node.name)
        if is_heard:
            self._heard_us = now_us
            if self.session is not SessionState.CONNECTED or not self._is_alive:
                node.run(node.life, self._reconnect)
            return
        if self._is_alive and now_us - self._heard_us > _SESSION_US:
            store.world.counts["session expired"] += 1
            self._expire()
        is_silent = now_us - self._heard_us > _SUSPEND_US or now_us < store.down_until_us
        if is_silent and self.session is SessionState.CONNECTED:
            node.run(node.life, self._suspend)

    def _suspend(self) -> None:
        if self.session is SessionState.CONNECTED:
            self.session = SessionState.SUSPENDED
            self._on_state(self.session)

    def _reconnect(self) -> None:
        if not self._is_alive:
            self.session = SessionState.LOST
            self._on_state(self.session)
            self.session_id = self.store.new_session_id()
            self._is_alive = True
        self.session = SessionState.CONNECTED
        self.store.world.counts["session reconnected"] += 1
        self._on_state(self.session)
        self._on_rosters()

    def learn_rosters(self) -> None:
        """A roster's watch has fired: read it, or later when there is a connection."""
        if self.session is SessionState.CONNECTED and self.store.is_reachable(self.node.name):
            self._on_rosters()
        else:
            self.node.after(SECOND, self.learn_rosters)

    # --- MetadataStore ---------------------------------------------------------------------------

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.append(callback)

    def _on_state(self, state: SessionState) -> None:
        self._own_on_state(state)
        if state is not SessionState.CONNECTED:
            watches, self.watches = self.watches, []
            for watch in watches:
                watch.fire()
        for call in self._listeners:
            self.node.loop.enter(partial(call, state))

    async def start(self) -> None:
        self.open()

    async def close(self) -> None:
        self.end()

    def statistics(self) -> dict[str, int]:
        return {}

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        found, view = await self._ask(partial(self._read_node, path))
        if watch is not None:
            self.store.arm(path, self._arm(view, watch), of_children=False)
        return found

    def _read_node(self, path: str) -> tuple[Stored | None, int]:
        store = self.store
        lag_us = store.world.between(0, store.stale_us) if store.stale_us else 0
        seen = store.zxid_at(store.world.now_us - lag_us)
        parted_zxid = store.parted_zxid(self.node.name)
        if parted_zxid is not None:
            seen = min(seen, parted_zxid)
        if seen < store.zxid:
            store.world.counts["stale read"] += 1
        self.view = max(self.view, seen)
        found = store.find(path, self.view)
        if found is not None and path in store.parents:
            count = len(store.list_children(path, self.view))
            found = Stored(
                found.data, found.version, found.ephemeral_session, count, made=found.made
            )
        return found, self.view

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...] | None:
        names, view = await self._ask(partial(self._list_children, path))
        if watch is not None:
            self.store.arm(path, self._arm(view, watch), of_children=True)
        return names

    def _list_children(self, path: str) -> tuple[tuple[str, ...], int]:
        store = self.store
        names = store.list_children(path, self.view)
        part, ratio = store.empty_listings
        if names and ratio and part in path and store.world.chance(ratio):
            store.world.counts["listing came back empty"] += 1
            names = ()
        return names, self.view

    def _arm(self, view: int, watch: Watch) -> _ArmedWatch:
        self.watches = [one for one in self.watches if not one.is_over]
        armed = _ArmedWatch(self, view, watch)
        if self.session is not SessionState.CONNECTED:
            armed.fire_in(1)
        return armed

    async def sync(self, path: str) -> None:
        await self._ask(self._catch_up)

    def _catch_up(self) -> None:
        if self.store.parted_zxid(self.node.name) is not None:
            self.store.world.counts["no quorum to sync with"] += 1
            raise Unavailable("the server has lost the others")
        self.view = self.store.zxid

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = False
    ) -> int:
        ops = (Create(path, data, ephemeral),)
        try:
            return (await self.commit(ops))[0]
        except Conflict as conflict:
            if not make_parents or conflict.kind is not ConflictKind.NO_NODE:
                raise
        await create_parents(self.commit, path)
        return (await self.commit(ops))[0]

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        return (await self.commit((Set(path, data, version),)))[0]

    async def delete(self, path: str, *, version: int) -> None:
        await self.commit((DeleteNode(path, version),))

    async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
        if self.session is not SessionState.CONNECTED:
            raise Unavailable("no connection")
        if self.node.name in self.store.newer:
            ops = [_as_newer(op) for op in ops]
        promise: Promise[tuple[int, ...]] = Promise()
        self._requests.send(self._delay_us(), self._arrive, ops, self.session_id, promise)
        return await promise

    # --- On the way ------------------------------------------------------------------------------

    def _delay_us(self) -> int:
        slow_us = self.store.slow_us
        return self.store.world.between(300 + slow_us // 4, 3 * MS + slow_us)

    def _ask(self, read: Callable[[], T]) -> Awaitable[T]:
        """What `read` gives when the request is at the store; fails where it does not get there."""
        promise: Promise[T] = Promise()
        store = self.store
        is_cut = store.network.is_cut(STORE, self.node.name)
        if is_cut or not store.is_reachable(self.node.name):
            store.world.counts["metadata read failed"] += 1
            error = Unavailable("no answer")
            store.world.at(_ANSWER_TIMEOUT_US, promise.fail, error)
        elif self.session is not SessionState.CONNECTED:
            store.world.at(1, promise.fail, Unavailable("no connection"))
        else:
            self._requests.send(self._delay_us(), self._carry_out, read, promise)
        return promise

    def _carry_out(self, read: Callable[[], T], promise: Promise[T]) -> None:
        try:
            value = read()
        except Unavailable as error:
            self._answers.send(self._delay_us(), promise.fail, error)
        else:
            self._answers.send(self._delay_us(), promise.settle, value)

    def _arrive(
        self, ops: Sequence[Op], session_id: int, promise: Promise[tuple[int, ...]]
    ) -> None:
        store = self.store
        world = store.world
        is_parted = store.parted_zxid(self.node.name) is not None
        if is_parted or not store.is_reachable(self.node.name):
            world.counts["commit lost on its way"] += 1
            error: MetadataError = OutcomeUnknown("no answer")
            if world.chance(0.2):
                error = Unavailable("never sent")
            elif world.chance(0.3):
                late_us = world.between(10 * MS, 3 * SECOND)
                world.at(late_us, self._apply_late, ops, session_id)
            world.at(world.between(1 * MS, _ANSWER_TIMEOUT_US), promise.fail, error)
            return
        draw = world.rng.random()
        is_unknown = draw < store.unknown_ratio
        if is_unknown and draw < store.unknown_ratio * 0.3:
            world.counts["commit unknown, never applied"] += 1
            world.at(self._delay_us(), promise.fail, OutcomeUnknown("connection lost"))
            return
        if is_unknown and draw < store.unknown_ratio * 0.65:
            world.at(world.between(1 * MS, 800 * MS), self._apply_late, ops, session_id)
            world.at(self._delay_us(), promise.fail, OutcomeUnknown("connection lost"))
            return
        self._apply(ops, session_id, promise, is_unknown=is_unknown)

    def _apply(
        self,
        ops: Sequence[Op],
        session_id: int,
        promise: Promise[tuple[int, ...]],
        *,
        is_unknown: bool,
    ) -> None:
        store = self.store
        world = store.world
        result: tuple[int, ...] = ()
        error: MetadataError | None = None
        if session_id != self.session_id or not self._is_alive:
            error = Unavailable("the session has expired")
        else:
            try:
                result = store.apply(ops, self, session_id)
            except Conflict as conflict:
                error = conflict
        if is_unknown or store.network.is_cut(STORE, self.node.name):
            if error is None:
                world.counts["commit unknown, applied"] += 1
            world.at(_ANSWER_TIMEOUT_US, promise.fail, OutcomeUnknown("no answer"))
        elif error is not None:
            world.counts[f"commit {type(error).__name__.lower()}"] += 1
            self._answers.send(self._delay_us(), promise.fail, error)
        else:
            self._answers.send(self._delay_us(), promise.settle, result)

    def _apply_late(self, ops: Sequence[Op], session_id: int) -> None:
        if session_id != self.session_id or not self._is_alive:
            return
        try:
            self.store.apply(ops, self, session_id)
        except Conflict:
            return
        self.store.world.counts["commit unknown, applied late"] += 1


def _as_newer(op: Op) -> Op:
    """As a version to come would write it, with a field that is not known yet; not what a process
    says of itself alone: it compares that with what it has written."""
    is_own = op.path.startswith(f"{PATHS.available}/")
    if isinstance(op, Set | Create) and op.data.startswith(b"{") and not is_own:
        schema, fields = read_versioned(op.data, FLEXIBLE_SCHEMA)
        return replace(op, data=encode_node({**fields, _LATER: "kept"}, schema=schema))
    return op


def _step(index: int, op: Op, found: Stored | None, session_id: int, zxid: int) -> Stored | None:
    """What a node is after an operation of a commit."""
    if isinstance(op, Create):
        if found is not None:
            raise Conflict(index, ConflictKind.NODE_EXISTS, op.path)
        return Stored(op.data, 0, session_id if op.ephemeral else 0, 0, made=zxid)
    if found is None:
        raise Conflict(index, ConflictKind.NO_NODE, op.path)
    if found.version != op.version:
        raise Conflict(index, ConflictKind.BAD_VERSION, op.path)
    match op:
        case Set():
            return Stored(op.data, found.version + 1, found.ephemeral_session, 0, made=found.made)
        case DeleteNode():
            return None
        case Check():
            return found
