"""Metadata of logs as readers follow them: names, log nodes, segment nodes.

Readers only read and watch. A name is resolved once and forgotten when its node changes;
a log node and its unclosed segments are cached while a watch is armed on them; a CLOSED segment is
cached as it is (repair may move its copies: whoever fails to read one calls `refresh`).

Nothing is concluded from an absence without a sync before it (R4). Called by `log_reader`, `tail`,
`positions`, the read proxy's routes and `duramen.client.core`. Source: 01-protocol sections 2
and 8, 08-interfaces "ZooKeeper".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.runtime.metadata_store import MetadataError, MetadataStore, Stored
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    read_log,
    read_node,
    read_segment,
)

LOGS_MAX: Final = 10_000
"""Logs whose metadata are kept; the one that was used longest ago goes first."""

SEGMENTS_MAX: Final = 4_096
"""Segment nodes kept per log: about a year of two-hourly rolls."""

_RETRY_S: Final = 0.3


class LogFollower:
    """Log node and segments of one log, current while somebody subscribes.

    `current` gives what a watch vouches for, `refresh` reads afresh. Subscribers are called on the
    event loop after every change.
    """

    def __init__(self, store: MetadataStore, paths: Paths, log_id: LogId) -> None:
        self.log_id = log_id
        self._store = store
        self._paths = paths
        self._log: LogNode | None = None
        self._segments: OrderedDict[Epoch, Segment] = OrderedDict()
        self._log_is_watched = False
        self._watched_epochs: set[Epoch] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._dirty: set[Epoch | None] = set()
        self._task: asyncio.Task[None] | None = None
        self._refreshes: dict[Epoch, asyncio.Task[tuple[LogNode, Segment | None]]] = {}
        self._lac: tuple[Epoch, EntryId] = (Epoch(0), NOTHING)
        self.listed_at_s = -math.inf
        """By the loop's clock: when a listing last read all closed segments afresh."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody follows this log now."""
        return not self._subscribers

    @contextlib.contextmanager
    def subscribe(self, on_change: Callable[[], None]) -> Iterator[None]:
        """Call `on_change` after every change, until the block ends."""
        self._subscribers.append(on_change)
        try:
            yield
        finally:
            self._subscribers.remove(on_change)

    def note_lac(self, epoch: Epoch, lac: EntryId) -> None:
        """Somebody learnt a LAC: the next reader need not ask for it."""
        self._lac = max(self._lac, (epoch, lac))

    def known_lac(self, epoch: Epoch) -> EntryId:
        """The highest LAC that anybody here has learnt of the segment."""
        return self._lac[1] if self._lac[0] == epoch else NOTHING

    def peek(self, epoch: Epoch) -> tuple[LogNode, Segment | None] | None:
        """What is known without a read, as old as it may be."""
        return None if self._log is None else (self._log, self._segments.get(epoch))

    async def current_log(self) -> LogNode:
        """The log node, from the cache while watched. Raises: as `current`."""
        if self._log is not None and self._log_is_watched:
            return self._log
        with _translated():
            return await self._read_log()

    async def current(self, epoch: Epoch) -> tuple[LogNode, Segment | None]:
        """Log node and one segment node (None: there is none), from the cache while watched.

        Raises:
            DuramenError: `log_not_found`, `log_deleted`, `metadata_unavailable`.
        """
        if self._log is None or not self._log_is_watched:
            return await self.refresh(epoch)
        segment = self._segments.get(epoch)
        if segment is None and epoch >= self._log.next_epoch:
            return self._log, None
        if segment is None or not self._is_current(self._log, segment):
            return await self.refresh(epoch)
        return self._log, segment

    def _is_current(self, log: LogNode, segment: Segment) -> bool:
        """Whether a known segment need not be read again."""
        if segment.is_closed:  # one that was released has a cold copy, which its node tells
            return segment.epoch >= log.first_hot_epoch or segment.cold_copy is not None
        # An unclosed segment at or below LCE is older than the log node: its watch comes yet.
        return segment.epoch in self._watched_epochs and segment.epoch > log.last_clean_epoch

    async def refresh(
        self, epoch: Epoch, *, is_synced: bool = False
    ) -> tuple[LogNode, Segment | None]:
        """Read both nodes afresh; concurrent callers share a read unless it must be synced.

        Args:
            is_synced: see every change that was acknowledged to anybody before the call.

        Raises:
            As `current`.
        """
        if is_synced:
            return await self._read_synced(epoch)
        task = self._refreshes.get(epoch)
        if task is None:
            task = asyncio.create_task(self._read(epoch))
            self._refreshes[epoch] = task
            task.add_done_callback(lambda _: self._refreshes.pop(epoch, None))
        return await asyncio.shield(task)

    async def _read_synced(self, epoch: Epoch) -> tuple[LogNode, Segment | None]:
        with _translated():
            await self._store.sync(self._paths.log(self.log_id))
        return await self._read(epoch)

    async def _read(self, epoch: Epoch) -> tuple[LogNode, Segment | None]:
        before = self.peek(epoch)
        with _translated():
            log = await self._read_log()
            segment = await self._read_segment(epoch) if epoch < log.next_epoch else None
        if self.peek(epoch) != before:
            self._tell()
        return log, segment

    async def _read_log(self) -> LogNode:
        watch = None if self._log_is_watched else partial(self._on_change, None)
        found = await self._store.get(self._paths.log(self.log_id), watch)
        self._log_is_watched |= watch is not None
        if found is None:
            self._log = None
            raise DuramenError("log_not_found", f"log {self.log_id} is gone")
        log = read_log(found.data)
        if log.is_deleted:
            self._log = None  # what is cached must not be shown any more, watch or no watch
            raise DuramenError("log_deleted", f"{log.namespace}/{log.name} was deleted")
        self._log = log
        return log

    async def _read_segment(self, epoch: Epoch) -> Segment | None:
        known = self._segments.get(epoch)
        wants_watch = epoch not in self._watched_epochs and not (known and known.is_closed)
        watch = partial(self._on_change, epoch) if wants_watch else None
        found: Stored | None = await self._store.get(self._paths.segment(self.log_id, epoch), watch)
        if wants_watch:
            self._watched_epochs.add(epoch)
        if found is None:
            return None
        segment = read_segment(found.data)
        self._segments[epoch] = segment
        self._segments.move_to_end(epoch)
        while len(self._segments) > SEGMENTS_MAX:
            self._segments.popitem(last=False)
        return segment

    def _on_change(self, epoch: Epoch | None) -> None:
        """A watch fired: it is gone, and what it vouched for is old."""
        if epoch is None:
            self._log_is_watched = False
        else:
            self._watched_epochs.discard(epoch)
        if self._subscribers:
            self._dirty.add(epoch)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Read again what changed, for as long as somebody cares."""
        while self._dirty and self._subscribers:
            epoch = self._dirty.pop()
            try:
                if epoch is None:
                    with _translated():
                        await self._read_log()
                else:
                    await self._read(epoch)
            except DuramenError as error:
                if error.code == "metadata_unavailable":
                    self._dirty.add(epoch)
                    await asyncio.sleep(_RETRY_S)
                    continue
            self._tell()

    def _tell(self) -> None:
        for subscriber in list(self._subscribers):
            subscriber()


class Catalog:
    """Logs by name; one instance per process."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._names: dict[tuple[str, str], LogId] = {}
        self._followers: OrderedDict[LogId, LogFollower] = OrderedDict()

    async def find(self, namespace: str, log: str) -> LogFollower:
        """The log of that name.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`.
        """
        log_id = self._names.get((namespace, log))
        if log_id is None:
            log_id = await self._resolve(namespace, log)
        follower = self._followers.get(log_id)
        if follower is None:
            follower = LogFollower(self._store, self._paths, log_id)
            self._followers[log_id] = follower
            self._evict()
        self._followers.move_to_end(log_id)
        return follower

    def statistics(self) -> dict[str, int]:
        """Names and logs that are cached."""
        return {"names": len(self._names), "logs": len(self._followers)}

    async def _resolve(self, namespace: str, log: str) -> LogId:
        path = self._paths.name(namespace, log)
        with _translated():
            found = await self._store.get(path)
            if found is None:
                # This server of the ensemble may be behind: absence counts only after a sync.
                await self._store.sync(path)
                found = await self._store.get(path)
            if found is not None:
                # Watched only now: names that do not exist must not leave watches behind.
                found = await self._store.get(path, partial(self._forget, namespace, log))
            if found is not None:
                log_id = LogId(int(read_node(found.data)["log_id"]))
                self._names[namespace, log] = log_id
                while len(self._names) > LOGS_MAX:
                    del self._names[next(iter(self._names))]
                return log_id
            if await self._store.get(self._paths.namespace(namespace)) is None:
                raise DuramenError(
                    "namespace_not_found", f"there is no namespace {namespace!r}", field="namespace"
                )
        raise DuramenError("log_not_found", f"there is no log {namespace}/{log}", field="log")

    def _forget(self, namespace: str, log: str) -> None:
        self._names.pop((namespace, log), None)

    def _evict(self) -> None:
        if len(self._followers) <= LOGS_MAX:
            return
        for log_id, follower in list(self._followers.items()):
            if follower.is_idle:
                del self._followers[log_id]
                return


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate the store's errors once, at this border."""
    try:
        yield
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"metadata cannot be read: {error}") from error
    except (MetadataJsonError, KeyError) as error:
        raise DuramenError("internal", f"a metadata node is not understood: {error}") from error
