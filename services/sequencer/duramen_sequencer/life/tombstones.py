"""Tombstones: which purged logs bookies may still have ledgers of, and when nobody has any more.

A purge writes the tombstone, a node with the next sequence number and the log's id, in the same
`multi()` that marks the log node. Every bookie confirms, in its own node, up to which sequence it
holds nothing (`duramen_bookie.upkeep.tombstones`). What all of them have confirmed is removed: the
log node, which was the proof that the ledgers are dead (R4), and then nobody needs it. A bookie
that is away keeps it, for as long as it stays away. A log's metadata log is purged when the log's
node goes, and not before: until then it is what says where the log's segments were.

The bookies are listed after a sync. One that joins later began with empty disks, and a purged log
takes no entries. Called by `retention`. Source: docs/protocol/metadata.md "tombstones and
tombstones/<sequence>", R4, docs/protocol/retention.md, docs/protocol/metadata-logs.md "Changes".
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from duramen.core.log_node import Ending, LogNode
from duramen.ids import LogId, is_metadata_log, metadata_log_of
from duramen.runtime.stores.metadata_store import (
    Conflict,
    Create,
    DeleteNode,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
)
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    encode_log,
    encode_node,
    encode_tombstone,
    read_confirmed,
    read_log,
    read_node,
    read_tombstone,
    read_whole,
)

_LOG = logging.getLogger(__name__)

SWEEP_COUNT_MAX: Final = 100
"""Tombstones that one round removes; the next ones come with the next round."""


class Tombstones:
    """The tombstones of a cluster, as one sequencer writes and removes them."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self.turn = asyncio.Lock()
        """Held from `plan` to the commit: two purges of one process would only meet."""
        self._store = store
        self._paths = paths
        self._counts = dict.fromkeys(("removed", "conflicts"), 0)
        self._waiting_count = 0

    def statistics(self) -> dict[str, int]:
        """Removed since the start; those that still waited for a bookie when looked at last."""
        return {**self._counts, "waiting": self._waiting_count}

    async def plan(self, *log_ids: LogId) -> list[Op]:
        """What a purge adds to its `multi()`: the logs' tombstone, with the next sequence.

        Numbers are never given twice, however many tombstones were removed: what a bookie confirmed
        would cover a log that it has not seen.

        Raises:
            MetadataError, MetadataJsonError: try again later.
        """
        parent = self._paths.tombstones
        stored = await self._store.get(parent)
        if stored is None:
            data = encode_node({"last_sequence": 1})
            return [Create(parent, data), self._create(1, log_ids)]
        fields = read_node(stored.data)
        sequence = read_whole(fields.get("last_sequence")) + 1
        data = encode_node({**fields, "last_sequence": sequence})
        return [Set(parent, data, stored.version), self._create(sequence, log_ids)]

    async def sweep(self, is_ours: Callable[[LogNode], bool]) -> None:
        """Remove what every bookie has confirmed, oldest first.

        Args:
            is_ours: whether this process looks after that log; of a log that is gone everybody
                removes the tombstone.

        Raises:
            MetadataError: the next round goes on.
        """
        await self._store.sync(self._paths.tombstones)
        names = await self._store.children(self._paths.tombstones) or ()
        sequences = sorted(int(name) for name in names if name.isdecimal())
        confirmed = await self._read_confirmed_by_all() if sequences else 0
        ripe = [sequence for sequence in sequences if sequence <= confirmed]
        self._waiting_count = len(sequences) - len(ripe)
        for sequence in ripe[:SWEEP_COUNT_MAX]:
            try:
                await self._remove(sequence, is_ours)
            except (Conflict, OutcomeUnknown):
                # Another sequencer was there, or was it us: the next round sees what is left (R3).
                self._counts["conflicts"] += 1
            except MetadataJsonError as error:
                _LOG.warning("tombstone %d is passed over: %s", sequence, error)

    async def _read_confirmed_by_all(self) -> int:
        """Up to which sequence every bookie holds nothing; 0 where one has not said anything."""
        lowest: int | None = None
        for bookie_id in await self._store.children(self._paths.bookies) or ():
            stored = await self._store.get(f"{self._paths.bookies}/{bookie_id}")
            if stored is None:
                return 0
            try:
                confirmed = read_confirmed(read_node(stored.data))
            except MetadataJsonError as error:
                _LOG.warning("bookie %s confirms nothing: %s", bookie_id, error)
                return 0
            lowest = confirmed if lowest is None else min(lowest, confirmed)
        return lowest or 0

    async def _remove(self, sequence: int, is_ours: Callable[[LogNode], bool]) -> None:
        """The logs' nodes and the tombstone, in one `multi()`."""
        path = self._paths.tombstone(sequence)
        tombstone = await self._store.get(path)
        if tombstone is None:
            return
        ops: list[Op] = []
        for log_id in read_tombstone(tombstone.data):
            stored = await self._store.get(self._paths.log(log_id))
            if stored is None:
                continue
            log = read_log(stored.data)
            if not log.is_purged:
                raise MetadataJsonError(f"log {log_id} is not purged")
            if not is_ours(log):
                return
            ops += await self._list_children(log_id)
            ops.append(DeleteNode(self._paths.log(log_id), stored.version))
        ops.append(DeleteNode(path, tombstone.version))
        async with self.turn:
            burials = await self._bury_metadata_logs(read_tombstone(tombstone.data))
            if burials is None:
                return
            await self._store.commit([*ops, *burials])
        self._counts["removed"] += 1
        _LOG.info("tombstone %d: every bookie has dropped what it had", sequence)

    async def _bury_metadata_logs(self, log_ids: Sequence[LogId]) -> list[Op] | None:
        """The metadata logs of these logs are purged in the same change, with a tombstone.

        There is no moment at which neither is there to say so. None: one is not closed yet; whoever
        looks after orphans closes it.
        """
        ops: list[Op] = []
        buried = []
        for log_id in log_ids:
            if is_metadata_log(log_id):
                continue
            metadata_log = metadata_log_of(log_id)
            stored = await self._store.get(self._paths.log(metadata_log))
            if stored is None:
                continue
            log = read_log(stored.data)
            if log.unclosed_epochs:
                return None
            nonce = secrets.token_hex(12)
            purged = log.with_ending(Ending.DELETE, unix_ms=0, nonce=nonce).purged(nonce)
            ops.append(Set(self._paths.log(metadata_log), encode_log(purged), stored.version))
            buried.append(metadata_log)
        return [*ops, *await self.plan(*buried)] if buried else []

    async def _list_children(self, log_id: LogId) -> list[Op]:
        """The parent of the segment nodes; those themselves went with the purge."""
        path = self._paths.segments(log_id)
        stored = await self._store.get(path)
        return [] if stored is None else [DeleteNode(path, stored.version)]

    def _create(self, sequence: int, log_ids: Sequence[LogId]) -> Create:
        return Create(self._paths.tombstone(sequence), encode_tombstone(log_ids))
