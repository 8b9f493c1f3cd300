"""The metadata store on ZooKeeper: kazoo's threads behind asyncio, with honest outcomes.

kazoo is used for its protocol and its reconnecting, not for its recipes or retries. What it leaves
open is decided here: no write is ever sent twice; a write that kazoo may have sent and not seen
answered is `OutcomeUnknown` whatever kazoo calls it (its ConnectionClosedError leaves the request
in the queue); a call made without a connection is `Unavailable` at once, never queued for later;
every call has a deadline. Every write is a multi, so single operations and commits have one path
and one set of errors.

Runs on the event loop that called `start`; kazoo's threads reach it by `call_soon_threadsafe`
alone. Called by the services' wiring; everybody else sees `metadata_store.MetadataStore` (rule
R3).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from kazoo import exceptions as kx
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from duramen.runtime.stores.access import WORLD, NodeRight, find_rights
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
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
    validate_ops,
    validate_path,
)

if TYPE_CHECKING:
    from duramen.runtime.stores.secure_connection import SecureConnections

_log = logging.getLogger("duramen.runtime.zookeeper")
# kazoo logs every attempt to connect; the changes of state that matter are logged here instead.
_kazoo_log = logging.getLogger("duramen.runtime.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_CONFLICTS: dict[type[Exception], ConflictKind] = {
    kx.BadVersionError: ConflictKind.BAD_VERSION,
    kx.NodeExistsError: ConflictKind.NODE_EXISTS,
    kx.NoNodeError: ConflictKind.NO_NODE,
    kx.NotEmptyError: ConflictKind.NOT_EMPTY,
}
# Answers by which the server says that it understood the request and will never do it.
_REJECTED = (
    kx.NoAuthError,
    kx.AuthFailedError,
    kx.InvalidACLError,
    kx.BadArgumentsError,
    kx.NoChildrenForEphemeralsError,
    kx.UnimplementedError,
    kx.QuotaExceededError,
)
# In the answer to a refused multi: operations before and after the one that was refused.
_BYSTANDERS = (kx.RolledBackError, kx.RuntimeInconsistency)
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
# A server that is just starting or dying may take a connection and never answer. kazoo allows an
# attempt (session time-out / number of hosts), which with one host is the whole session; with three
# attempts per session time-out the session survives one or two of them.
_ATTEMPTS_PER_SESSION_COUNT = 3
_SCHEME = "x509"
_COUNTERS = (
    "reads",
    "writes",
    "conflicts",
    "unknown",
    "unavailable",
    "sessions",
    "watches_fired",
)


class _OneShot:
    """A watch between kazoo and its caller: called once, after the call that set it has
    returned."""

    def __init__(self, store: ZooKeeperStore, callback: Watch) -> None:
        self._store = store
        self._callback: Watch | None = callback
        self._is_armed = False
        self._is_fired = False

    def on_event(self, _event: object) -> None:
        """Called on kazoo's thread, perhaps more than once."""
        self._store.post(self._fire)

    def arm(self) -> None:
        self._is_armed = True
        if self._is_fired:
            self._store.post(self._fire)

    def _fire(self) -> None:
        self._is_fired = True
        if self._is_armed and self._callback is not None:
            callback, self._callback = self._callback, None
            self._store.on_watch(callback)


class ZooKeeperStore:
    """A client of a ZooKeeper ensemble; implements `MetadataStore`.

    Args:
        hosts: "host:port,host:port"; no chroot.
        call_timeout_s: bound on every call, waiting for a free slot included.
        session_timeout_s: asked of the server, which clamps it to its own limits.
        in_flight_max_count: requests at kazoo at once. kazoo wakes its thread by a byte per
            request in a blocking socket pair, which holds 278 such bytes by Linux's default: above
            that the event loop would block while the server does not read.
        identity_dir: the folder of the identity to connect with, read anew for each connection.
            Then each node that is made has the rights of its path, in the tree of its cluster.
            Without one the connection is plain, and nodes are `world`.
        gives_rights: False: nodes are `world` with an identity as well.
    """

    def __init__(
        self,
        hosts: str,
        *,
        call_timeout_s: float = 5.0,
        session_timeout_s: float = 6.0,
        in_flight_max_count: int = 128,
        identity_dir: Path | None = None,
        gives_rights: bool = True,
    ) -> None:
        if "/" in hosts:
            raise ValueError(f"a chroot is not supported, callers pass full paths: {hosts!r}")
        self._hosts = hosts
        self._call_timeout_s = call_timeout_s
        self._session_timeout_s = session_timeout_s
        self._slots = asyncio.Semaphore(in_flight_max_count)
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._is_closed = False
        self._session = SessionState.LOST
        self._session_id = 0
        self._is_connected = asyncio.Event()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._secure = None if identity_dir is None else _secure_by(identity_dir)
        self._gives_rights = gives_rights
        self._domain: str | None = None

    @property
    def session(self) -> SessionState:
        return self._session

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_password(self) -> bytes:
        """With `session_id`, what another client needs to take the session over (fault
        injection)."""
        client_id = self._client.client_id if self._client is not None else None
        return bytes(client_id[1]) if client_id else b""

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.append(callback)

    def statistics(self) -> dict[str, int]:
        return {**self._counts, "in_flight": len(self._in_flight)}

    # --- Life ---

    async def start(self) -> None:
        """As `MetadataStore.start`.

        Raises:
            Unavailable: as there.
            Rejected: what listens speaks TLS to a store without an identity, or the other way
                round.
            IdentityError: it has a folder for its identity, and none that is valid lies there.
        """
        if self._is_closed:
            raise Unavailable("the store is closed")
        if self._client is None:
            if self._secure is not None:
                domain = (await asyncio.to_thread(self._secure.read)).domain
                self._domain = domain if self._gives_rights else None
            self._loop = asyncio.get_running_loop()
            self._open_client()
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._is_connected.wait()
        except TimeoutError as error:
            if (misfit := await self._find_misfit()) is not None:
                raise Rejected(misfit) from None
            why = f": {self._secure.refusal}" if self._secure and self._secure.refusal else ""
            raise Unavailable(f"no session with {self._hosts}{why}") from error

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._session, self._session_id = SessionState.LOST, 0
        self._is_connected.clear()
        for future in self._in_flight:
            if not future.done():
                future.set_result((None, kx.ConnectionClosedError("the store is closed")))
        if self._client is None:
            return
        done = asyncio.Event()
        self._retire(self._client, lambda: self.post(done.set))
        with suppress(TimeoutError):  # the session then ends by its own time-out
            async with asyncio.timeout(self._call_timeout_s):
                await done.wait()

    async def _find_misfit(self) -> str | None:
        # Loaded when something is wrong, and not before.
        from duramen.runtime.stores.misfits import find_misfit  # noqa: PLC0415

        return await find_misfit(self._hosts, has_identity=self._secure is not None)

    def _open_client(self) -> None:
        """Makes a kazoo client and lets it connect; only quick calls, its threads do the rest."""
        handler = SequentialThreadingHandler()
        hosts = self._hosts.split(",")
        client = KazooClient(
            hosts=",".join(hosts * -(-_ATTEMPTS_PER_SESSION_COUNT // len(hosts))),
            timeout=self._session_timeout_s,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=0.5),
            command_retry=KazooRetry(max_tries=0),  # unused: the asynchronous calls never retry
            logger=_kazoo_log,
        )
        handler.spawn = partial(self._spawn, client, handler.spawn)
        handler.create_connection = partial(self._connect, handler.create_connection)
        if self._secure is not None:
            handler.select = partial(self._secure.wait_ready, handler.select)
        client.add_listener(partial(self._on_kazoo_state, client))
        client._reset = partial(_reset_client, client, client._reset)
        if self._client is not None:
            client.last_zxid = self._client.last_zxid
        self._client = client
        client.start_async()

    def _spawn(self, client: Any, spawn: Callable[..., Any], func: Any, *args: Any) -> Any:
        """kazoo's `spawn`, but what ends a thread is seen: kazoo's connection thread dies on
        surprises."""

        def body() -> None:
            try:
                func(*args)
            except InterruptedError:
                pass  # kazoo's way to stop while it waits to connect again
            except Exception:
                _log.exception("a ZooKeeper client thread died")
            finally:
                if func == client._connection.zk_loop:
                    self.post(partial(self._on_connection_thread_end, client))

        return spawn(body)

    def _connect(self, create_connection: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """kazoo's `create_connection` with a bound on TCP's part of an attempt, too."""
        timeout_s = self._session_timeout_s / _ATTEMPTS_PER_SESSION_COUNT
        if self._secure is not None:
            return self._secure.open(options["address"], options["hostname"], timeout_s)
        options["timeout"] = timeout_s
        return create_connection(*args, **options)

    @staticmethod
    def _retire(client: Any, on_done: Callable[[], None]) -> None:
        """Stops a kazoo client on a thread of its own: its `stop` may block for 10 seconds and
        more."""

        def body() -> None:
            with suppress(Exception):  # nobody is left to tell
                client.stop()
                client.close()
            on_done()

        threading.Thread(target=body, name="zookeeper-close", daemon=True).start()

    # --- From kazoo's threads ---

    def post(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the event loop; from any thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    def _on_kazoo_state(self, client: Any, kazoo_state: str) -> None:
        client_id = client.client_id
        state = _STATES[kazoo_state]
        session_id = client_id[0] if client_id and state is SessionState.CONNECTED else 0
        self.post(partial(self._on_state, client, state, session_id))

    def _on_state(self, client: Any, state: SessionState, session_id: int) -> None:
        if self._is_closed or client is not self._client or state is self._session:
            return
        self._session = state
        match state:
            case SessionState.CONNECTED:
                self._counts["sessions"] += session_id != self._session_id
                self._session_id = session_id
                self._is_connected.set()
            case SessionState.SUSPENDED:
                self._is_connected.clear()
            case SessionState.LOST:
                self._session_id = 0
                self._is_connected.clear()
            case _:
                assert_never(state)
        _log.info("metadata session %s, id 0x%x", state.value, self._session_id & (1 << 64) - 1)
        for listener in self._listeners:
            try:
                listener(state)
            except Exception:
                _log.exception("a session listener failed")

    def _on_connection_thread_end(self, client: Any) -> None:
        if self._is_closed or client is not self._client:
            return
        _log.warning("the connection thread ended by itself; opening a new session")
        self._on_state(client, SessionState.LOST, 0)
        self._retire(client, lambda: None)
        self._open_client()

    def on_watch(self, callback: Watch) -> None:
        """Calls a watch, unless nothing is called any more. For `_OneShot`."""
        if not self._is_closed:
            self._counts["watches_fired"] += 1
            callback()

    # --- Reads ---

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        found = await self._read_or_await_creation(path, watch, KazooClient.get_async)
        if found is None:
            return None
        data, stat = found
        return Stored(
            data or b"", stat.version, stat.ephemeralOwner, stat.numChildren, stat.czxid, stat.mtime
        )

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...] | None:
        found = await self._read_or_await_creation(path, watch, KazooClient.get_children_async)
        return None if found is None else tuple(sorted(found))

    async def sync(self, path: str) -> None:
        """A multi that only checks: it changes nothing but goes through the quorum and comes back
        after everything before it was applied where we read. ZooKeeper's own sync asks the leader
        alone, and one that was deposed without knowing still answers (rule: a zombie may not
        refuse or mislead)."""
        validate_path(path)

        def submit(client: Any) -> Any:
            transaction = client.transaction()
            transaction.check(path, -1)  # any version; a missing node refuses it just as late
            return transaction.commit_async()

        await self._read(submit, self._deadline())

    async def _read_or_await_creation(
        self, path: str, watch: Watch | None, read: Callable[..., Any]
    ) -> Any:
        """Reads; None for a missing node. ZooKeeper keeps a read's watch only if the node exists,
        so the creation is awaited by `exists`, and if that finds the node it is read again."""
        validate_path(path)
        deadline = self._deadline()
        if watch is None:
            with suppress(kx.NoNodeError):
                return await self._read(lambda client: read(client, path), deadline)
            return None
        one_shot = _OneShot(self, watch)
        found: Any = None
        while True:
            with suppress(kx.NoNodeError):
                found = await self._read(
                    lambda client: read(client, path, watch=one_shot.on_event), deadline
                )
                break
            stat = await self._read(
                lambda client: client.exists_async(path, watch=one_shot.on_event), deadline
            )
            if stat is None:
                break
        one_shot.arm()
        return found

    async def _read(self, submit: Callable[[Any], Any], deadline: float) -> Any:
        """Raises NoNodeError, Rejected or Unavailable."""
        self._counts["reads"] += 1
        value, error = await self._call(submit, deadline)
        if error is None:
            return value
        if isinstance(error, kx.NoNodeError):
            # A new one: this frame, which its traceback holds, would hold the one that came.
            raise kx.NoNodeError
        if isinstance(error, _REJECTED):
            raise Rejected(repr(error)) from error
        self._counts["unavailable"] += 1
        raise Unavailable(repr(error)) from error

    # --- Rights ---

    async def get_rights(self, path: str) -> tuple[NodeRight, ...] | None:
        """Who may do what with a node; None when it is missing.

        Whoever is no identity is named with the scheme, as in `world:anyone`.

        Raises: as `get`.
        """
        validate_path(path)
        try:
            found, _ = await self._read(
                lambda client: client.get_acls_async(path), self._deadline()
            )
        except kx.NoNodeError:
            return None
        return tuple(_decode_right(one) for one in found)

    async def set_rights(self, path: str, rights: Sequence[NodeRight]) -> None:
        """Replaces the rights of a node, if it is there; may be repeated, so it has no version.

        Raises:
            Unavailable: no answer, and perhaps done.
            Rejected: it is no operator's store.
        """
        validate_path(path)
        wanted = _encode_rights(rights)
        with suppress(kx.NoNodeError):
            await self._read(lambda client: client.set_acls_async(path, wanted), self._deadline())

    # --- Writes ---

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = False
    ) -> int:
        ops = (Create(path, data, ephemeral),)
        deadline = self._deadline()
        try:
            return (await self._commit(ops, deadline))[0]
        except Conflict as conflict:
            if not make_parents or conflict.kind is not ConflictKind.NO_NODE:
                raise
        await create_parents(partial(self._commit, deadline=deadline), path)
        return (await self._commit(ops, deadline))[0]

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        return (await self.commit((Set(path, data, version),)))[0]

    async def delete(self, path: str, *, version: int) -> None:
        await self.commit((DeleteNode(path, version),))

    async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
        return await self._commit(tuple(ops), self._deadline())

    async def _commit(self, ops: Sequence[Op], deadline: float) -> tuple[int, ...]:
        validate_ops(ops)
        if not ops:
            self._require_session()
            return ()
        self._counts["writes"] += 1
        results, error = await self._call(
            partial(_submit_ops, ops=ops, domain=self._domain), deadline
        )
        if error is not None:
            if isinstance(error, _REJECTED):
                raise Rejected(repr(error)) from error
            if isinstance(error, kx.ThrottledOpError):
                raise Unavailable(repr(error)) from error
            self._counts["unknown"] += 1
            raise OutcomeUnknown(repr(error)) from error
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _BYSTANDERS):
                self._raise_refusal(index, ops[index].path, result)
        if len(results) != len(ops) or any(isinstance(result, Exception) for result in results):
            self._counts["unknown"] += 1
            raise OutcomeUnknown(f"an answer that fits no multi: {results!r}")
        return tuple(_version_after(op, result) for op, result in zip(ops, results, strict=True))

    def _raise_refusal(self, index: int, path: str, error: Exception) -> None:
        kind = _CONFLICTS.get(type(error))
        if kind is None:
            raise Rejected(f"operation {index} {path}: {error!r}") from error
        self._counts["conflicts"] += 1
        raise Conflict(index, kind, path) from error

    # --- One request ---

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._call_timeout_s

    def _require_session(self) -> None:
        """Raises unless a request that is sent now goes out in the session that callers know of."""
        if self._client is None or self._is_closed:
            raise Unavailable("the store is not open")
        if self._session is SessionState.LOST and self._counts["sessions"]:
            raise SessionExpired("the session has expired")
        client_id = self._client.client_id  # None without a connection
        if self._session is not SessionState.CONNECTED or not client_id:
            raise Unavailable(f"no connection to {self._hosts}")
        if client_id[0] != self._session_id:
            raise SessionExpired("the session has expired")

    async def _call(
        self, submit: Callable[[Any], Any], deadline: float
    ) -> tuple[Any, Exception | None]:
        """Sends one request; its result or kazoo's error.

        Raises:
            Unavailable, SessionExpired: nothing was sent.
        """
        assert self._loop is not None or self._client is None
        is_sent = False
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                self._require_session()
                is_sent = True
                return await self._send(submit)
        except TimeoutError as error:
            if is_sent:
                return None, kx.OperationTimeoutError("no answer in time")
            self._counts["unavailable"] += 1
            raise Unavailable("too many requests in flight") from error
        except Unavailable:
            self._counts["unavailable"] += 1
            raise

    async def _send(self, submit: Callable[[Any], Any]) -> tuple[Any, Exception | None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()

        def deliver(outcome: tuple[Any, Exception | None]) -> None:
            if not future.done():
                future.set_result(outcome)

        self._in_flight.add(future)
        try:
            submit(self._client).rawlink(
                lambda result: self.post(partial(deliver, (result.value, result.exception)))
            )
            return await future
        finally:
            self._in_flight.discard(future)


def _reset_client(client: Any, reset: Callable[[], None]) -> None:
    """kazoo's `_reset` at a session's end, but the next session's server has seen what we have.

    Else reads could step back: servers refuse who has seen more than they have, and only that.
    """
    seen_zxid = client.last_zxid
    reset()
    client.last_zxid = seen_zxid


def _submit_ops(client: Any, ops: Sequence[Op], domain: str | None) -> Any:
    transaction = client.transaction()
    for op in ops:
        match op:
            case Create():
                rights = None if domain is None else _encode_rights(find_rights(op.path, domain))
                transaction.create(op.path, op.data, acl=rights, ephemeral=op.ephemeral)
            case Set():
                transaction.set_data(op.path, op.data, op.version)
            case DeleteNode():
                transaction.delete(op.path, op.version)
            case Check():
                transaction.check(op.path, op.version)
            case _:
                assert_never(op)
    return transaction.commit_async()


def _secure_by(folder: Path) -> SecureConnections:
    # Those who have no identity load nothing of X.509.
    from duramen.runtime.stores.secure_connection import SecureConnections  # noqa: PLC0415

    return SecureConnections(folder)


def _encode_rights(rights: Sequence[NodeRight]) -> list[ACL]:
    return [ACL(right.permissions, _encode_who(right.who)) for right in rights]


def _encode_who(who: str) -> Id:
    return Id(*WORLD.split(":")) if who == WORLD else Id(_SCHEME, who)


def _decode_right(found: ACL) -> NodeRight:
    scheme, who = found.id.scheme, found.id.id
    return NodeRight(who if scheme == _SCHEME else f"{scheme}:{who}", found.perms)


def _version_after(op: Op, result: Any) -> int:
    match op:
        case Create():
            return 0
        case Set():
            return int(result.version)
        case DeleteNode() | Check():
            return op.version
        case _:
            assert_never(op)
