"""The port to the metadata store: versioned nodes, atomic changes, one-shot watches, sessions.

Everything that services decide about logs, segments, owners and bookies is a compare-and-set
against this port. It is written in ZooKeeper's terms because ZooKeeper is the store
(`zookeeper_store`); the in-memory twin (`memory_store`) passes the same contract tests and is what
other tests use. The port knows nothing of logs or segments: paths and JSON are its callers', and so
is the recognition of one's own write by its nonce after `OutcomeUnknown` (rule R3: a write is never
retried here). Source: docs/protocol/metadata.md "Rules for every change".

Paths are absolute, such as "/duramen/c1/logs/0000/0001/segments/3". Every call ends within the
store's time-out, whatever the network does. Callbacks run on the event loop's thread, never inside
a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol, assert_never

# ZooKeeper drops the connection of a client whose request exceeds jute.maxbuffer (1,048,575 bytes
# by default), which would look like an unknown outcome. Refusing below it keeps the answer
# definite.
REQUEST_BYTES_MAX = 1_040_000
# Header, version, flags, lengths of one operation (about 60 bytes), with room.
OPERATION_OVERHEAD_BYTES = 128
# Of a node that is made: four identities of 140 bytes at most.
RIGHTS_BYTES_MAX = 600

Watch = Callable[[], None]


class SessionState(Enum):
    """What the store knows of its session; ephemeral nodes live as long as the session.

    LOST → CONNECTED (new session) → SUSPENDED (no connection; the session may or may not live) →
    CONNECTED (the same session) or LOST (expired, its ephemeral nodes are gone) → CONNECTED (a new
    one). Expiry is learnt from the server, so a store that is cut off stays SUSPENDED however long
    it lasts: who must act on time (rule: stop background work) counts from SUSPENDED.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class ConflictKind(StrEnum):
    """Why an operation was refused; compares equal to its text."""

    BAD_VERSION = "bad_version"
    NODE_EXISTS = "node_exists"
    NO_NODE = "no_node"
    NOT_EMPTY = "not_empty"


class MetadataError(Exception):
    """Root of everything that a metadata store raises."""


class Conflict(MetadataError):
    """Definite: a predicate did not hold and nothing was applied. Re-read and decide again.

    `index` is the position of the refused operation in the commit (0 for single operations).
    """

    def __init__(self, index: int, kind: ConflictKind, path: str = "") -> None:
        super().__init__(f"operation {index} refused: {kind} {path}".rstrip())
        self.index = index
        self.kind = kind
        self.path = path


class Rejected(MetadataError):
    """Definite: nothing was applied, and the same request will never succeed (too large, no access,
    a child under an ephemeral node). A fault of the caller or of the configuration; never retry."""


class OutcomeUnknown(MetadataError):
    """The write may have been applied, may be applied later, or never.

    Read back (sync, then get) and recognise one's own write by its nonce; "not applied" is certain
    only after a later write of one's own moved the version (rule R3). Never retry unconditionally.
    """


class Unavailable(MetadataError):
    """Definite: the write was never sent, or a read got no answer. May be retried."""


class SessionExpired(Unavailable):
    """Not sent, because the session has expired and the next one is not open yet."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A node as it was read. `version` counts the changes of the data from 0.

    `made` is the transaction that made the node: of two nodes of one store the one with the
    greater number was made later. 0: not known. `changed_unix_ms` is when the store, not this
    process, last wrote the data, by the clock of the server that led it then.
    """

    data: bytes
    version: int
    ephemeral_session: int  # 0: persistent
    children_count: int
    made: int = field(default=0, compare=False)
    changed_unix_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a node under an existing one; ephemeral: it vanishes with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replaces the data of a node that has `version`, which grows by one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Deletes a node that has `version` and no children."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing; refuses the whole commit unless the node has `version`."""

    path: str
    version: int


Op = Create | Set | DeleteNode | Check


class MetadataStore(Protocol):
    """One client of the metadata store, with one session at a time, in one event loop.

    Requests are carried out, and answered, in the order in which they were made, also where callers
    do not wait for one another; so what is read never steps back, nor behind what this store has
    written, over its sessions too. Out of turn come refusals of what was never sent, and "no
    answer": a write of unknown fate may be applied later. (A call of several requests, which
    `make_parents` and a watch for a missing node are, counts as its last one.)

    A call that is cancelled is one whose outcome is unknown. A watch is armed only if the call
    that sets it returns; it is called once: after the change, when the connection was lost
    (changes may have been missed), or both at once; then it is gone. Set a new one only after
    that, or they pile up.
    """

    @property
    def session(self) -> SessionState:
        """LOST before the first session and after `close`."""
        ...

    @property
    def session_id(self) -> int:
        """The session whose ephemeral nodes are ours (kept while SUSPENDED); 0 while LOST."""
        ...

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        """Registers a listener for every change of `session`, also LOST → CONNECTED with a new id,
        after which callers create their ephemeral nodes again. Nothing is called after `close`
        began."""
        ...

    async def start(self) -> None:
        """Waits for a session; on Unavailable the store goes on trying, and start may be called
        again."""
        ...

    async def close(self) -> None:
        """Ends the session, so that its ephemeral nodes vanish at once; safe to call twice."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        """Reads a node; None when it is missing, and then the watch waits for its creation.

        May be behind what others have been told is written: `sync` first where that matters.

        Raises:
            Unavailable: no answer within the time-out.
            Rejected: no access.
        """
        ...

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...] | None:
        """Names of the children, sorted; None when the node is missing (the watch: as with `get`).

        The watch is for children that come and go and for the node itself, not for anybody's data.
        An absent name proves nothing (rule R4)."""
        ...

    async def sync(self, path: str) -> None:
        """After it, reads of this store see every write that was acknowledged to anybody before
        the call.

        Raises:
            Unavailable: nothing was proved.
        """
        ...

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = False
    ) -> int:
        """Creates a node and returns its version, 0. `make_parents` adds missing ancestors
        (persistent, empty) in steps of their own.

        Raises: as `commit`.
        """
        ...

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """Replaces the data if the node has `version`; returns the new version. Raises: as
        `commit`."""
        ...

    async def delete(self, path: str, *, version: int) -> None:
        """Deletes a childless node if it has `version`. Raises: as `commit`."""
        ...

    async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
        """Applies all operations, in order and at once, or none.

        Returns:
            Per operation the node's new version (for Delete and Check the version that was passed).

        Raises:
            Conflict: nothing applied; names the first operation whose predicate failed.
            OutcomeUnknown: read back before anything else.
            Unavailable, SessionExpired: not sent; may be retried.
            Rejected: nothing applied; never retry.
        """
        ...

    def statistics(self) -> dict[str, int]:
        """Counters since construction and sizes now."""
        ...


def validate_path(path: str) -> None:
    """Raises ValueError unless the path is absolute and plain (no empty, "." or ".." component)."""
    if path == "/":
        return
    components = path.split("/")
    if components[0] or len(components) < 2 or {"", ".", ".."} & set(components[1:]):
        raise ValueError(f"not a plain absolute path: {path!r}")
    if "\0" in path:
        raise ValueError(f"a path cannot hold NUL: {path!r}")


def validate_ops(ops: Sequence[Op]) -> None:
    """Refuses what no store accepts, before anything is sent.

    Raises:
        ValueError: a bad path or a negative version (ZooKeeper would read −1 as "any": R3 forbids
        it).
        Rejected: the request exceeds REQUEST_BYTES_MAX.
    """
    size_bytes = 0
    for op in ops:
        validate_path(op.path)
        size_bytes += OPERATION_OVERHEAD_BYTES + len(op.path.encode())
        match op:
            case Create():
                size_bytes += len(op.data) + RIGHTS_BYTES_MAX
            case Set():
                size_bytes += len(op.data)
                _validate_version(op.version)
            case DeleteNode() | Check():
                _validate_version(op.version)
            case _:
                assert_never(op)
    if size_bytes > REQUEST_BYTES_MAX:
        raise Rejected(f"request of {size_bytes} bytes exceeds {REQUEST_BYTES_MAX}")


def _validate_version(version: int) -> None:
    if version < 0:
        raise ValueError(f"a version is mandatory and not negative, not {version}")


def parent_path(path: str) -> str:
    """The path without its last component; "/" is its own parent."""
    return path.rpartition("/")[0] or "/"


async def create_parents(commit: Callable[[Sequence[Op]], Awaitable[object]], path: str) -> None:
    """Creates the missing ancestors of `path` from the nearest existing one downwards.

    Raises:
        Unavailable: also when an ancestor's outcome is unknown, since `path` itself was not sent.
    """
    missing = [parent_path(path)]
    while missing:
        try:
            await commit((Create(missing[-1], b""),))
        except Conflict as conflict:
            if conflict.kind is ConflictKind.NO_NODE:
                missing.append(parent_path(missing[-1]))
                continue
        except OutcomeUnknown as error:
            raise Unavailable(f"ancestor {missing[-1]}: {error}") from error
        missing.pop()
