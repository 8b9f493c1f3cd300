"""Metadata of logs as readers follow them: names, log nodes, segment nodes.

Readers only read and watch. A name is resolved once and forgotten when its node changes;
a log node and its unclosed segments are cached while a watch is armed on them; a CLOSED segment is
cached as it is (repair may move its copies: whoever fails to read one calls `refresh`).

Nothing is concluded from an absence without a sync before it (R4): a segment whose node is missing
may have moved to the metadata log, where `SegmentNodes` looks for it. While ZooKeeper cannot be
read, what was read before is believed for a bounded time: entries and ends of segments do not
change, so it hides only what was opened, truncated or deleted meanwhile (ADR 0021).

Called by `log_reader`, `tail`, `positioning`, the read proxy's routes and `duramen.client.core`.
Source: docs/protocol/metadata.md "Reading" and "Nodes", docs/protocol/reading.md "From segment to
segment", docs/protocol/metadata-logs.md "Reading".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.history import ToldEpoch
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.limits import METADATA_AGE_MAX_US
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.shared_tasks import take_failure
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import SECOND
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    read_any_segment,
    read_log,
    read_node,
)

LOGS_MAX: Final = 10_000
"""Logs whose metadata are kept; the one that was used longest ago goes first."""

SEGMENTS_MAX: Final = 4_096
"""Segment nodes kept per log: about a year of two-hourly rolls."""

LOOK_S: Final = 0.5
"""How long a reader at the tail waits for ZooKeeper: meanwhile it does not ask its bookies."""

_RETRY_S: Final = 0.3

_NAMED_COUNT: Final = 5
"""Epochs that an error names."""


class LogFollower:
    """Log node and segments of one log, current while somebody subscribes.

    `current` gives what a watch vouches for, `refresh` reads afresh, `look` in between. Subscribers
    are called on the event loop after every change.

    Args:
        segment_nodes: finds the segments whose nodes are not there.
        age_max_us: how old what is known may be while ZooKeeper cannot be read.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        log_id: LogId,
        segment_nodes: SegmentNodes,
        *,
        age_max_us: int = METADATA_AGE_MAX_US,
    ) -> None:
        self.log_id = log_id
        self._store = store
        self._paths = paths
        self._segment_nodes = segment_nodes
        self._log: LogNode | None = None
        self._segments: OrderedDict[Epoch, AnySegment] = OrderedDict()
        self._log_is_watched = False
        self._watched_epochs: set[Epoch] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._dirty: dict[Epoch | None, None] = {}
        """What is to be read again, the first that changed first; None: the log itself."""
        self._task: asyncio.Task[None] | None = None
        self._refreshes: dict[Epoch, asyncio.Task[tuple[LogNode, AnySegment | None]]] = {}
        self._lac: tuple[Epoch, EntryId] = (Epoch(0), NOTHING)
        self._age = _Age(age_max_us)
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

    def peek(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None] | None:
        """What is known without a read, as old as it may be."""
        return None if self._log is None else (self._log, self._segments.get(epoch))

    async def current_log(self) -> LogNode:
        """The log node, from the cache while watched. Raises: as `current`."""
        if self._log is not None and self._log_is_watched:
            return self._log
        try:
            with _translated():
                return await self._read_log()
        except DuramenError as error:
            return self._recall_log(error)

    async def current(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None]:
        """Log node and one segment, from the cache while watched.

        The segment is None if the log node says that there is none, yet or any more: one that has
        moved to the metadata log is there.

        Raises:
            DuramenError: `log_not_found`, `log_deleted`; `metadata_unavailable`: ZooKeeper cannot
                be read, or what has moved cannot, and what is known is not enough, or too old.
        """
        if self._log is not None and self._log_is_watched:
            segment = self._segments.get(epoch)
            if segment is None and epoch >= self._log.next_epoch:
                return self._log, None
            if segment is not None and self._is_current(self._log, segment):
                return self._log, segment
        try:
            return await self.refresh(epoch)
        except DuramenError as error:
            return self._recall(epoch, error)

    async def look(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None]:
        """Both nodes, afresh if ZooKeeper answers within `LOOK_S`. Raises: as `current`."""
        try:
            async with asyncio.timeout(LOOK_S):
                return await self.refresh(epoch)
        except TimeoutError:
            error = DuramenError("metadata_unavailable", "ZooKeeper does not answer")
        except DuramenError as refusal:
            error = refusal
        return self._recall(epoch, error)

    def _recall_log(self, error: DuramenError) -> LogNode:
        """The log node as it was known last, where `error` says no more than that none was read."""
        if self._log is None or error.code != "metadata_unavailable":
            raise error
        if not self._log_is_watched:
            self._age.check(error)
        return self._log

    def _recall(self, epoch: Epoch, error: DuramenError) -> tuple[LogNode, AnySegment]:
        """The same of both nodes.

        A segment that is not known, or that was closed since it was read, has to be read.
        """
        log, segment = self._recall_log(error), self._segments.get(epoch)
        if segment is None or not (segment.is_closed or epoch > log.last_clean_epoch):
            detail = f"{error.detail}; the node of e{epoch} is needed and was not read before"
            raise DuramenError("metadata_unavailable", detail) from error
        return log, segment

    def _is_current(self, log: LogNode, segment: AnySegment) -> bool:
        """Whether a known segment need not be read again."""
        if segment.is_closed:  # one that was released has a cold copy, which its node tells
            is_told = segment.cold_copy is not None or segment.last_entry == NOTHING
            return segment.epoch >= log.first_hot_epoch or is_told
        # An unclosed segment at or below LCE is older than the log node: its watch comes yet.
        return segment.epoch in self._watched_epochs and segment.epoch > log.last_clean_epoch

    async def refresh(
        self, epoch: Epoch, *, is_synced: bool = False
    ) -> tuple[LogNode, AnySegment | None]:
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
            task.add_done_callback(take_failure)
        return await asyncio.shield(task)

    async def _read_synced(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None]:
        with _translated():
            await self._store.sync(self._paths.log(self.log_id))
        return await self._read(epoch)

    async def _read(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None]:
        before = self.peek(epoch)
        with _translated():
            log = await self._read_log()
            segment = await self._read_segment(log, epoch) if epoch < log.next_epoch else None
            if segment is None and log.first_live_epoch <= epoch < log.next_epoch:
                log, segment = await self._find_segment(epoch)
        if self.peek(epoch) != before:
            self._notify()
        return log, segment

    async def _read_log(self) -> LogNode:
        watch = None if self._log_is_watched else partial(self._on_change, None)
        found = await self._store.get(self._paths.log(self.log_id), watch)
        self._log_is_watched |= watch is not None
        # What is cached is old now, watch or no watch, also if nobody here understands what came.
        self._log = None
        if found is None:
            raise DuramenError("log_not_found", f"log {self.log_id} is gone")
        log = read_log(found.data)
        if log.is_deleted:
            raise _deleted(log)
        self._log = log
        self._age.on_sure()
        return log

    async def list_all(self) -> tuple[LogNode, Sequence[AnySegment]]:
        """The log node and all its live segments, of one moment, oldest first; nothing is cached.

        For who wants many: one that has moved costs a few reads of its own in `current`.

        Raises:
            DuramenError: as `current`; `metadata_unavailable` also if one of them is not known.
        """
        with _translated():
            log, segments, unreadable = await self._segment_nodes.list_all(self.log_id)
        if log.is_deleted:
            raise _deleted(log)
        if unreadable:
            named = ", ".join(f"e{epoch}" for epoch in unreadable[:_NAMED_COUNT])
            more = "" if len(unreadable) <= _NAMED_COUNT else f" and {len(unreadable)} in all"
            detail = f"the metadata of {named}{more} of log {self.log_id} have moved and are lost"
            raise DuramenError("metadata_unavailable", detail)
        return log, segments

    async def report_epochs(self) -> tuple[LogNode, Sequence[ToldEpoch]]:
        """The log node, and the history of the log's epochs as far as anybody can tell it.

        Raises:
            DuramenError: as `current`.
        """
        with _translated():
            log, told = await self._segment_nodes.report_epochs(self.log_id)
        if log.is_deleted:
            raise _deleted(log)
        return log, told

    async def _find_segment(self, epoch: Epoch) -> tuple[LogNode, AnySegment | None]:
        """A segment whose node is not there, and a log node that is as new as the answer."""
        segment = await self._segment_nodes.find(self.log_id, epoch)
        if segment is not None:
            self._keep(segment)
        return await self._read_log(), segment

    async def _read_segment(self, log: LogNode, epoch: Epoch) -> AnySegment | None:
        known = self._segments.get(epoch)
        is_final = (known is not None and known.is_closed) or epoch <= log.metadata.through
        wants_watch = epoch not in self._watched_epochs and not is_final
        watch = partial(self._on_change, epoch) if wants_watch else None
        found = await self._store.get(self._paths.segment(self.log_id, epoch), watch)
        if wants_watch:
            self._watched_epochs.add(epoch)
        if found is None:
            return None
        self._segments.pop(epoch, None)  # it is old, also if nobody here understands what came
        segment: AnySegment = read_any_segment(found.data)
        self._keep(segment)
        return segment

    def _keep(self, segment: AnySegment) -> None:
        self._segments.pop(segment.epoch, None)
        self._segments[segment.epoch] = segment
        while len(self._segments) > SEGMENTS_MAX:
            self._segments.popitem(last=False)

    def _on_change(self, epoch: Epoch | None) -> None:
        """A watch fired: it is gone, and what it vouched for is old."""
        if epoch is None:
            if self._log_is_watched:
                self._age.on_sure()
            self._log_is_watched = False
        else:
            self._watched_epochs.discard(epoch)
        if self._subscribers:
            self._dirty[epoch] = None
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Read again what changed, for as long as somebody cares."""
        while self._dirty and self._subscribers:
            epoch = next(iter(self._dirty))
            del self._dirty[epoch]
            try:
                if epoch is None:
                    with _translated():
                        await self._read_log()
                else:
                    await self._read(epoch)
            except DuramenError as error:
                if error.code == "metadata_unavailable":
                    self._dirty[epoch] = None
                    await asyncio.sleep(_RETRY_S)
                    continue
            self._notify()

    def _notify(self) -> None:
        for subscriber in list(self._subscribers):
            subscriber()


class _Age:
    """How long ago metadata were known to be current, and how long ago that may be."""

    def __init__(self, age_max_us: int) -> None:
        self._age_max_s = age_max_us / SECOND
        self._sure_s = -math.inf

    def on_sure(self) -> None:
        """They are current now."""
        self._sure_s = asyncio.get_running_loop().time()

    def check(self, error: DuramenError) -> None:
        """Refuse what is too old, because of the error by which nothing newer was read.

        Raises:
            DuramenError: `metadata_unavailable`.
        """
        age_s = asyncio.get_running_loop().time() - self._sure_s
        if age_s > self._age_max_s:
            raise DuramenError(
                "metadata_unavailable",
                f"{error.detail}; what is known of the log is {age_s:.0f} s old, and at most "
                f"{self._age_max_s:g} s are allowed (--metadata-age-max)",
            ) from error


@dataclass(slots=True)
class _Name:
    """A name that was resolved; while it is watched it is current."""

    log_id: LogId
    age: _Age
    is_watched: bool = True


class Catalog:
    """Logs by name; one instance per process.

    Args:
        segment_nodes, age_max_us: as for `LogFollower`.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        segment_nodes: SegmentNodes,
        *,
        age_max_us: int = METADATA_AGE_MAX_US,
    ) -> None:
        self._store = store
        self._paths = paths
        self._segment_nodes = segment_nodes
        self._age_max_us = age_max_us
        self._names: dict[tuple[str, str], _Name] = {}
        self._followers: OrderedDict[LogId, LogFollower] = OrderedDict()

    async def find(self, namespace: str, log: str) -> LogFollower:
        """The log of that name.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`.
        """
        known = self._names.get((namespace, log))
        if known is not None and known.is_watched:
            log_id = known.log_id
        else:
            log_id = await self._resolve_or_recall(namespace, log, known)
        follower = self._followers.get(log_id)
        if follower is None:
            follower = LogFollower(
                self._store, self._paths, log_id, self._segment_nodes, age_max_us=self._age_max_us
            )
            self._followers[log_id] = follower
            self._evict()
        self._followers.move_to_end(log_id)
        return follower

    def statistics(self) -> dict[str, int]:
        """Names and logs that are cached."""
        return {"names": len(self._names), "logs": len(self._followers)}

    async def _resolve_or_recall(self, namespace: str, log: str, known: _Name | None) -> LogId:
        try:
            return await self._resolve(namespace, log)
        except DuramenError as error:
            if error.code != "metadata_unavailable":
                self._names.pop((namespace, log), None)
                raise
            if known is None:
                raise
            known.age.check(error)
            return known.log_id

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
                self._names[namespace, log] = _Name(log_id, _Age(self._age_max_us))
                while len(self._names) > LOGS_MAX:
                    del self._names[next(iter(self._names))]
                return log_id
            if await self._store.get(self._paths.namespace(namespace)) is None:
                raise DuramenError(
                    "namespace_not_found", f"there is no namespace {namespace!r}", field="namespace"
                )
        raise DuramenError("log_not_found", f"there is no log {namespace}/{log}", field="log")

    def _forget(self, namespace: str, log: str) -> None:
        """A name's node changed, or it may have: the connection was lost."""
        known = self._names.get((namespace, log))
        if known is not None and known.is_watched:
            known.is_watched = False
            known.age.on_sure()

    def _evict(self) -> None:
        if len(self._followers) <= LOGS_MAX:
            return
        for log_id, follower in list(self._followers.items()):
            if follower.is_idle:
                del self._followers[log_id]
                return


def _deleted(log: LogNode) -> DuramenError:
    return DuramenError("log_deleted", f"{log.namespace}/{log.name} was deleted")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate the store's errors once, at this border."""
    try:
        yield
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"metadata cannot be read: {error}") from error
    except (MetadataJsonError, KeyError, TypeError, ValueError) as error:
        raise DuramenError("internal", f"a metadata node is not understood: {error}") from error
