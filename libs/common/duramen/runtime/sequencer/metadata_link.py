"""A log's metadata effects against the store: read a view, commit writes, record what is owed.

Translates the store's exceptions into outcomes that cores understand and nodes into values. A write
is sent once; whether it is tried again is the core's decision (R3).

Called by `log_driver`. Source: docs/protocol/metadata.md "Rules for every change", R2, R3, R9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.sequencer.effects import (
    CommitOutcome,
    CreateSegment,
    LogView,
    Owner,
    PersistOwed,
    ReplaceOwner,
    SetLog,
    SetSegment,
    Write,
)
from duramen.ids import Epoch, LogId, SequencerId
from duramen.runtime.stores.metadata_store import (
    Conflict,
    Create,
    DeleteNode,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Rejected,
    SessionState,
    Set,
    Stored,
    Unavailable,
)
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    encode_log,
    encode_node,
    encode_segment,
    read_any_segment,
    read_log,
    read_node,
)

LOOK_COUNT_MAX: Final = 8
"""Looks of one process that may be under way, of the store's 128 requests; one waits for each log
that misses its bookies."""

_LOG = logging.getLogger(__name__)
_OWED_TRIES = 5


class MetadataLink:
    """Reads and writes the nodes of logs for one process that owns logs.

    Args:
        data_url: where it takes appends; empty: it is an embedded writer and takes none.
    """

    def __init__(
        self, store: MetadataStore, paths: Paths, sequencer_id: SequencerId, data_url: str
    ) -> None:
        self.store = store
        self.paths = paths
        self.sequencer_id = sequencer_id
        self.data_url = data_url
        self._looks = asyncio.Semaphore(LOOK_COUNT_MAX)

    async def look_at_view(self, log_id: LogId) -> LogView | None:
        """As `read_view`, a few at a time: thousands of logs may miss the same bookies, and what
        has to be changed goes first.
        """
        async with self._looks:
            return await self.read_view(log_id)

    async def read_view(self, log_id: LogId) -> LogView | None:
        """Sync, then the log node, the segments after its LCE, the owner; None if it failed.

        Segments are read after the log node whose version a `multi()` will check (R2), and by
        their numbers, never by a listing (R4).
        """
        path = self.paths.log(log_id)
        try:
            await self.store.sync(path)
            stored = await self.store.get(path)
            if stored is None:
                return None
            log = read_log(stored.data)
            segments: list[tuple[AnySegment, int]] = []
            for epoch in log.unclosed_epochs:
                node = await self.store.get(self.paths.segment(log_id, epoch))
                if node is None:
                    # The log node moved on between the reads: not a consistent view.
                    return None
                segments.append((read_any_segment(node.data), node.version))
            owner = await self.read_owner(log_id)
        except MetadataError as error:
            _LOG.info("log %d cannot be read: %s", log_id, error)
            return None
        except MetadataJsonError as error:
            _LOG.error("log %d has a node that is not understood: %s", log_id, error)
            return None
        return LogView(log, stored.version, tuple(segments), owner)

    async def read_segment(self, log_id: LogId, epoch: Epoch) -> AnySegment | None:
        """A segment node of the past, or None if it could not be read."""
        try:
            stored = await self.store.get(self.paths.segment(log_id, epoch))
            return None if stored is None else read_any_segment(stored.data)
        except (MetadataError, MetadataJsonError) as error:
            _LOG.info("segment %d of log %d cannot be read: %s", epoch, log_id, error)
            return None

    async def read_owner(self, log_id: LogId) -> Owner | None:
        """The owner node, if there is one.

        Raises:
            MetadataError: it could not be read.
        """
        stored = await self.store.get(self.paths.owner(log_id))
        if stored is None:
            return None
        node = read_node(stored.data)
        return Owner(
            SequencerId(node["sequencer"]),
            Epoch(node["epoch"]),
            node["data_url"],
            stored.version,
            by_hint=node.get("by_hint") is True,
        )

    async def read_keeper(self, log_id: LogId) -> SequencerId | None:
        """Who owns the log and looks after it: an embedded writer does nothing but append.

        Raises:
            MetadataError: it could not be read.
        """
        owner = await self.read_owner(log_id)
        return None if owner is None or owner.is_embedded else owner.sequencer_id

    async def commit(self, log_id: LogId, writes: Sequence[Write]) -> CommitOutcome:
        """Apply all writes at once or none."""
        return await self.commit_with(log_id, writes, ())

    async def commit_with(
        self, log_id: LogId, writes: Sequence[Write], others: Sequence[Op]
    ) -> CommitOutcome:
        """The same, with changes of other nodes in the same `multi()`."""
        if self.store.session is not SessionState.CONNECTED:
            return CommitOutcome.UNAVAILABLE
        ops: list[Op] = []
        for write in writes:
            ops += self._encode(log_id, write)
        ops += others
        try:
            await self.store.commit(ops)
        except Conflict:
            return CommitOutcome.CONFLICT
        except OutcomeUnknown:
            return CommitOutcome.UNKNOWN
        except Unavailable:
            return CommitOutcome.UNAVAILABLE
        except Rejected:
            _LOG.exception("log %d: a change was rejected", log_id)
            return CommitOutcome.CONFLICT
        return CommitOutcome.APPLIED

    async def keep_owner(self, log_id: LogId, epoch: Epoch, *, by_hint: bool = False) -> bool:
        """Put the owner node back after a lost session, unless another sequencer put its own.

        Args:
            by_hint: the log was taken over by a hint a moment ago.

        Returns:
            False: another one did, so the log went on without us.
        """
        path = self.paths.owner(log_id)
        try:
            stored = await self.store.get(path)
            if stored is not None and not self._is_ours(stored):
                # The server that we have now may lag behind the one that we had.
                await self.store.sync(path)
                stored = await self.store.get(path)
            if stored is not None:
                if not self._is_ours(stored):
                    return False
                if stored.ephemeral_session == self.store.session_id:
                    return True
                await self.store.delete(path, version=stored.version)
            await self.store.create(path, self._encode_owner(epoch, by_hint), ephemeral=True)
        except MetadataError as error:
            # The node is advisory: seals and compare-and-set keep the log safe without it.
            _LOG.info("owner node of log %d: %s", log_id, error)
        return True

    async def drop_owner(self, log_id: LogId) -> None:
        """Remove the owner node if it is ours: we have let go of the log without closing it."""
        path = self.paths.owner(log_id)
        try:
            stored = await self.store.get(path)
            if stored is not None and self._is_ours(stored):
                await self.store.delete(path, version=stored.version)
        except MetadataError as error:
            # It is ephemeral: it goes with the session at the latest.
            _LOG.info("owner node of log %d: %s", log_id, error)

    async def persist_owed(self, owed: PersistOwed) -> bool:
        """Add a range to what a bookie incarnation is owed; False if it could not be recorded."""
        path = self.paths.owed(owed.ledger_id, owed.member)
        wanted = [int(owed.first), int(owed.last)]
        for _ in range(_OWED_TRIES):
            try:
                stored = await self.store.get(path)
                if stored is None:
                    data = encode_node({"ranges": [wanted]})
                    await self.store.create(path, data, make_parents=True)
                    return True
                node = read_node(stored.data)
                ranges = merge_ranges([*node["ranges"], wanted])
                if ranges != node["ranges"]:
                    data = encode_node({**node, "ranges": ranges})
                    await self.store.set(path, data, version=stored.version)
            except (Conflict, OutcomeUnknown):
                # Adding a range twice is the same as once: read again and see.
                continue
            except MetadataError as error:
                _LOG.info("owed range of %s: %s", owed.member.bookie, error)
                return False
            return True
        return False

    def _encode(self, log_id: LogId, write: Write) -> list[Op]:
        match write:
            case SetSegment(segment, version):
                path = self.paths.segment(log_id, segment.epoch)
                return [Set(path, encode_segment(segment), version)]
            case CreateSegment(segment):
                path = self.paths.segment(log_id, segment.epoch)
                return [Create(path, encode_segment(segment))]
            case SetLog(log, version):
                return [Set(self.paths.log(log_id), encode_log(log), version)]
            case ReplaceOwner(epoch, replaces, by_hint):
                path = self.paths.owner(log_id)
                ops: list[Op] = []
                if replaces is not None:
                    ops.append(DeleteNode(path, replaces.version))
                if epoch is not None:
                    ops.append(Create(path, self._encode_owner(epoch, by_hint), ephemeral=True))
                return ops

    def _is_ours(self, owner: Stored) -> bool:
        return bool(read_node(owner.data)["sequencer"] == self.sequencer_id)

    def _encode_owner(self, epoch: Epoch, by_hint: bool) -> bytes:
        fields = {"sequencer": self.sequencer_id, "epoch": epoch, "data_url": self.data_url}
        return encode_node({**fields, "by_hint": True} if by_hint else fields)


def merge_ranges(ranges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Closed ranges, sorted and joined where they touch."""
    merged: list[list[int]] = []
    for first, last in sorted((int(a), int(b)) for a, b in ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged
