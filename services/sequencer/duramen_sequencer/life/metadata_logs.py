"""What a keeper of a metadata log reads and changes in the metadata store.

Each change is one `multi()` that names the versions of what was looked at, and is sent once: a
keeper looks again whatever became of it (R3), so nothing here tells an applied change from a
refused one. Only the creation of parents is tried again, which concludes nothing.

Not here: the claim itself, which is that of any log (`core.sequencer.proposals`); `bind_claim` is
what it has in addition. Called by the driver of a keeper. Source: docs/protocol/metadata-logs.md
"Changes".
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from duramen.core.log_node import LogNode, TrimPoint
from duramen.core.metadata_log.configuring import metadata_log_config
from duramen.core.metadata_log.keeper import (
    ClaimEpoch,
    CommitMarks,
    KeeperView,
    MakeLog,
    TrimLog,
)
from duramen.core.metadata_log.moving import (
    MOVE_COUNT_MAX,
    StoredNode,
    first_to_move,
    is_rewrite_due,
)
from duramen.ids import Epoch, LogId, metadata_log_of
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
    create_parents,
)
from duramen.wire.metadata_json import Paths, encode_log, read_any_segment, read_log


class MetadataLogNodes:
    """The nodes of logs and of their metadata logs."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths

    async def look(
        self,
        log_id: LogId,
        is_keeper: Callable[[LogNode], Awaitable[bool]],
        *,
        rested_unix_ms: int,
    ) -> KeeperView | None:
        """What stands there now, the log node first; None: there is no such log.

        Args:
            is_keeper: whether this process looks after the log.
            rested_unix_ms: cold copies that were rechecked after it stay.

        Raises:
            MetadataError: the store does not say.
            MetadataJsonError: a node is not understood.
        """
        path = self._paths.log(log_id)
        await self._store.sync(path)
        found = await self._store.get(path)
        if found is None:
            return None
        log = read_log(found.data)
        stored = await self._store.get(self._paths.log(metadata_log_of(log_id)))
        metadata_log = None if stored is None else read_log(stored.data)
        # What bookies keep may not leave; a rewrite tells of it all the same.
        is_all_told = metadata_log is not None and is_rewrite_due(metadata_log)
        return KeeperView(
            log,
            found.version,
            metadata_log,
            await self._read_stored(log, log.next_epoch if is_all_told else log.first_hot_epoch),
            rested_unix_ms,
            is_keeper=await is_keeper(log),
        )

    async def make(self, want: MakeLog, *, created_unix_ms: int, nonce: str) -> None:
        """The metadata log's nodes; it has no epoch yet.

        Raises:
            MetadataError: it may be there or not.
        """
        log = LogNode(
            metadata_log_of(want.log.log_id),
            want.log.namespace,
            want.log.name,
            metadata_log_config(want.log.config),
            created_unix_ms=created_unix_ms,
            nonce=nonce,
        )
        path = self._paths.log(log.log_id)
        ops: list[Op] = [
            Create(path, encode_log(log)),
            Create(self._paths.segments(log.log_id), b""),
            Check(self._paths.log(want.log.log_id), want.version),
        ]
        try:
            await self._store.commit(ops)
        except Conflict as conflict:
            if conflict.kind is not ConflictKind.NO_NODE or conflict.index != 0:
                return
            await create_parents(self._store.commit, path)
            await self._commit(ops)

    def bind_claim(self, want: ClaimEpoch, epoch: Epoch, nonce: str) -> Set:
        """What the `multi()` that opens `epoch` of the metadata log sets in the log's own node."""
        after = want.log.with_metadata(want.log.metadata.claimed(epoch), nonce)
        return Set(self._paths.log(want.log.log_id), encode_log(after), want.version)

    async def commit(self, want: CommitMarks) -> None:
        """Other records count, and the nodes that they stand for are gone, each as it was recorded.

        Raises:
            MetadataError: nothing was applied.
        """
        log_id = want.log.log_id
        deleted = [
            DeleteNode(self._paths.segment(log_id, node.segment.epoch), node.version)
            for node in want.deleted
        ]
        await self._commit(
            [Set(self._paths.log(log_id), encode_log(want.log), want.version), *deleted]
        )

    async def read_stored(self, log_id: LogId, epoch: Epoch) -> StoredNode | None:
        """One segment's node; None: it is not there.

        Raises:
            MetadataError, MetadataJsonError: as `look`.
        """
        found = await self._store.get(self._paths.segment(log_id, epoch))
        if found is None:
            return None
        return StoredNode(read_any_segment(found.data), found.version, found.made, len(found.data))

    async def trim(self, log_id: LogId, want: TrimLog, *, unix_ms: int, nonce: str) -> None:
        """The metadata log is trimmed to the first record that counts.

        Args:
            unix_ms: now, from which what is trimmed is kept for `retention.truncated`.

        Raises:
            MetadataError: nothing was applied.
            MetadataJsonError: the node of the metadata log is not understood.
        """
        path = self._paths.log(metadata_log_of(log_id))
        found = await self._store.get(path)
        if found is None:
            return
        log = read_log(found.data)
        first = await self.read_stored(log.log_id, Epoch(want.lsn >> 32))
        if first is None or log.trim.lsn >= want.lsn:
            return
        # An epoch has one append, so the first record that counts is the first of its epoch.
        point = TrimPoint(want.lsn, 0, first.segment.start_seq_num or 0)
        trimmed = log.with_trim(point, release=log.closed_end, unix_ms=unix_ms, nonce=nonce)
        await self._commit(
            [Set(path, encode_log(trimmed), found.version),
             Check(self._paths.log(log_id), want.version)]
        )  # fmt: skip

    async def _read_stored(self, log: LogNode, end: Epoch) -> list[StoredNode]:
        """The nodes from the next one to move to before `end`, or the first that is not there."""
        stored: list[StoredNode] = []
        first = first_to_move(log)
        for epoch in map(Epoch, range(first, min(end, first + MOVE_COUNT_MAX))):
            node = await self.read_stored(log.log_id, epoch)
            if node is None:
                break
            stored.append(node)
        return stored

    async def _commit(self, ops: Sequence[Op]) -> None:
        """Send it; what became of it is seen by the next look."""
        with contextlib.suppress(Conflict, OutcomeUnknown):
            await self._store.commit(ops)
