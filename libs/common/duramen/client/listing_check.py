"""Rebuilds the listing of a log from its metadata log alone, and compares ZooKeeper with it.

For a metadata store that has lost nodes, or was restored from an older snapshot. Everything that
bookies still have of the metadata log is read, whether it counts or not; nothing is changed: a
person puts nodes back, and an existing node beats any record.

Called by `cli.cluster.rebuild`. Source: docs/protocol/metadata-logs.md "When something fails".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from duramen.core.metadata_log.moving import StoredNode
from duramen.core.metadata_log.rebuilding import EpochFinding, EpochReport, examine
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import (
    Paths,
    encode_segment,
    read_any_segment,
    read_log,
    read_node,
)


@dataclass(frozen=True, slots=True)
class ListingReport:
    """What a check found."""

    log_id: LogId
    has_log_node: bool
    epochs: list[EpochReport]
    unreadable: list[Epoch]
    """Epochs of the metadata log, not of the log, of which not everything can be read."""

    @property
    def is_good(self) -> bool:
        """Whether ZooKeeper holds what it should, as far as anybody can tell."""
        finds = all(one.finding is EpochFinding.GOOD for one in self.epochs)
        return self.has_log_node and finds and not self.unreadable

    def to_json(self) -> dict[str, Any]:
        """For `--json`; `node` is what ZooKeeper should hold, or the record has, and `recorded`
        whether the metadata log tells of the epoch at all."""
        return {
            "log_id": str(self.log_id),
            "ok": self.is_good,
            "log_node": self.has_log_node,
            "unreadable": [int(epoch) for epoch in self.unreadable],
            "epochs": [_describe(one) for one in self.epochs],
        }


class ListingCheck:
    """Checks logs of one cluster.

    Args:
        store: started.
        records: reads entries of metadata logs.
    """

    def __init__(self, store: MetadataStore, paths: Paths, records: MetadataRecords) -> None:
        self._store = store
        self._paths = paths
        self._records = records

    async def find_log(self, namespace: str, name: str) -> LogId:
        """The id of a log.

        Raises:
            DuramenError: `log_not_found`.
            MetadataError: the metadata store gives no answer.
        """
        found = await self._store.get(self._paths.name(namespace, name))
        if found is None:
            detail = f"no node names {namespace}/{name}; --log-id finds a log whose name is lost"
            raise DuramenError("log_not_found", detail, field="log")
        return LogId(int(read_node(found.data)["log_id"]))

    async def check(self, log_id: LogId) -> ListingReport:
        """Read both places, and compare.

        Raises:
            DuramenError: `metadata_unavailable`: the log has no metadata log.
            MetadataError: the metadata store gives no answer.
            MetadataJsonError: a node is not understood.
        """
        path = self._paths.log(log_id)
        await self._store.sync(path)
        found = await self._store.get(path)
        log = None if found is None else read_log(found.data)
        nodes = await self._read_nodes(log_id)
        records, unreadable = await self._records.salvage(log_id)
        return ListingReport(log_id, log is not None, examine(log, nodes, records), unreadable)

    async def _read_nodes(self, log_id: LogId) -> dict[Epoch, StoredNode]:
        nodes = {}
        for name in await self._store.children(self._paths.segments(log_id)) or ():
            if not name.isdecimal():
                continue
            found = await self._store.get(self._paths.segment(log_id, Epoch(int(name))))
            if found is not None:
                segment = read_any_segment(found.data)
                size_bytes = len(found.data)
                node = StoredNode(segment, found.version, found.made, size_bytes)
                nodes[segment.epoch] = node
        return nodes


def _describe(one: EpochReport) -> dict[str, Any]:
    record = one.record
    best = one.segment if one.finding is EpochFinding.GOOD or record is None else record.segment
    return {
        "epoch": int(one.epoch),
        "finding": one.finding.name.lower(),
        "explained": one.finding.value,
        "recorded": record is not None,
        "config_version": None if record is None else record.config_version,
        "node": None if best is None else json.loads(encode_segment(best)),
    }
