"""Nodes in ZooKeeper: JSON with sorted keys, a schema version, a nonce, unknown fields kept.

Pure encoding: which node changes when is decided by the cores. Newer code reads older versions;
fields that this version does not know travel through a rewrite untouched (`extra`). The paths of
docs/protocol/metadata.md "Nodes" are here as well, so that a path is written in one place only.
Segments, bookies, and the fields that all kinds of nodes share are in `wire.nodes`.

Called by the drivers of sequencer, proxies and bookie. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.errors import DuramenError
from duramen.ids import Epoch, Incarnation, LogId, Lsn, Member, is_log_id, is_metadata_log
from duramen.wire.nodes.bookies import (
    BY_ADMIN,
    PLACED_BY,
    BookieNode,
    encode_bookie,
    encode_confirmed,
    read_bookie,
    read_confirmed,
)
from duramen.wire.nodes.fields import (
    SCHEMA,
    MetadataJsonError,
    check_text,
    check_whole,
    check_whole_or_none,
    encode_node,
    encode_totals,
    read_node,
    read_number,
    read_totals,
    read_versioned,
    read_whole,
)
from duramen.wire.nodes.segments import encode_segment, read_any_segment, read_segment

__all__ = [
    "BY_ADMIN",
    "PLACED_BY",
    "BookieNode",
    "MetadataJsonError",
    "Paths",
    "encode_bookie",
    "encode_confirmed",
    "encode_log",
    "encode_name",
    "encode_node",
    "encode_segment",
    "encode_tombstone",
    "read_any_segment",
    "read_bookie",
    "read_confirmed",
    "read_log",
    "read_node",
    "read_segment",
    "read_tombstone",
    "read_whole",
]

METADATA_SCHEMA: Final = 2
"""Of log nodes with a metadata log, and of those of metadata logs."""


class Paths:
    """The paths of one cluster's nodes."""

    def __init__(self, cluster: str) -> None:
        self.root = f"/duramen/{cluster}"
        self.cluster = f"{self.root}/cluster"
        self.bookies = f"{self.root}/bookies"
        self.available = f"{self.root}/available"
        self.sequencers = f"{self.root}/sequencers"
        self.write_proxies = f"{self.root}/writeproxies"
        self.read_proxies = f"{self.root}/readproxies"
        self.namespaces = f"{self.root}/namespaces"
        self.names = f"{self.root}/names"
        self.logs = f"{self.root}/logs"
        self.maintenance = f"{self.root}/maintenance"
        self.repair_queue = f"{self.root}/repair/queue"
        self.repair_owed = f"{self.root}/repair/owed"
        self.repair_lost = f"{self.root}/repair/lost"
        self.tombstones = f"{self.root}/tombstones"
        self.rebalance = f"{self.root}/repair/rebalance"
        self.disruptions = f"{self.root}/repair/disruptions"
        self.auditor = f"{self.root}/auditor"
        self.regions = f"{self.root}/regions"
        self.access_tokens = f"{self.root}/access-tokens"
        self.grants = f"{self.root}/grants"

    def namespace(self, namespace: str) -> str:
        """Configuration of a namespace."""
        return f"{self.namespaces}/{namespace}"

    def names_of(self, namespace: str) -> str:
        """Parent of a namespace's log names."""
        return f"{self.names}/{namespace}"

    def name(self, namespace: str, log: str) -> str:
        """Log id of a name."""
        return f"{self.names}/{namespace}/{log}"

    def log(self, log_id: LogId) -> str:
        """The log node: its hex id in two levels of four digits."""
        digits = f"{log_id:08x}"
        return f"{self.logs}/{digits[:4]}/{digits[4:]}"

    def owner(self, log_id: LogId) -> str:
        """Ephemeral claim of a log."""
        return f"{self.log(log_id)}/owner"

    def segments(self, log_id: LogId) -> str:
        """Parent of a log's segment nodes."""
        return f"{self.log(log_id)}/segments"

    def segment(self, log_id: LogId, epoch: Epoch) -> str:
        """A segment node."""
        return f"{self.log(log_id)}/segments/{epoch}"

    def bookie(self, bookie: str) -> str:
        """A bookie's identity, location and duty."""
        return f"{self.bookies}/{bookie}"

    def queued(self, ledger_id: int) -> str:
        """Damage of a ledger that waits for repair."""
        return f"{self.repair_queue}/{ledger_id}"

    def owed(self, ledger_id: int, member: Member) -> str:
        """Ranges of a ledger that a bookie incarnation is owed (R9)."""
        return f"{self.repair_owed}/{ledger_id}/{member.bookie}.{member.incarnation}"

    def lost(self, incarnation: Incarnation) -> str:
        """A bookie incarnation whose disks are gone for ever, with all copies on them."""
        return f"{self.repair_lost}/{incarnation}"

    def access_token(self, token_id: str) -> str:
        """An API token, without its secret."""
        return f"{self.access_tokens}/{token_id}"

    def tombstone(self, sequence: int) -> str:
        """Purged logs that bookies may still have ledgers of."""
        return f"{self.tombstones}/{sequence}"


def encode_name(
    log_id: LogId,
    before: Mapping[str, Any] | None = None,
    *,
    replaced: LogId | None = None,
    is_deleted: bool = False,
) -> bytes:
    """Encode the node of a log's name.

    Args:
        before: fields of the node that is written over: those that are not known are kept.
        replaced: the deleted log that had the name before.
        is_deleted: the name is hidden from listings.
    """
    fields: dict[str, Any] = {"log_id": str(log_id)}
    if replaced is not None:
        fields["replaces"] = str(replaced)
    if is_deleted:
        fields["deleted"] = True
    known = ("log_id", "replaces", "deleted")
    return encode_node(fields, {k: v for k, v in (before or {}).items() if k not in known})


def encode_log(log: LogNode) -> bytes:
    """Encode a log node."""
    fields = {
        "log_id": str(log.log_id),
        "namespace": log.namespace,
        "name": log.name,
        "config": log.config.to_stored(),
        "config_version": log.config_version,
        "next_epoch": log.next_epoch,
        "last_clean_epoch": log.last_clean_epoch,
        "totals": encode_totals(log.totals),
        "trim_lsn": str(log.trim_lsn),
        "trim_seq_num": log.trim_seq_num,
        "first_live_epoch": log.first_live_epoch,
        "snapshot_lsn": None if log.snapshot_lsn is None else str(log.snapshot_lsn),
        "ended": log.is_ended,
        "deleted": log.is_deleted,
        "created_unix_ms": log.created_unix_ms,
        "nonce": log.nonce,
        **_encode_life(log),
    }
    is_later = log.metadata.epoch or is_metadata_log(log.log_id)
    return encode_node(fields, log.extra, METADATA_SCHEMA if is_later else SCHEMA)


def _encode_life(log: LogNode) -> dict[str, Any]:
    """Fields that not every log has: what became of it, and who wrote its configuration."""
    fields: dict[str, Any] = {}
    if log.trim_slot:
        fields["trim_slot"] = log.trim_slot
    if log.truncated_below > 1:
        fields["truncated_below"] = log.truncated_below
        fields["truncated_unix_ms"] = log.truncated_unix_ms
    if log.deleted_unix_ms is not None:
        fields["deleted_unix_ms"] = log.deleted_unix_ms
    if log.is_purged:
        fields["purged"] = True
    if log.first_hot_epoch > 1:
        fields["first_hot_epoch"] = log.first_hot_epoch
    if log.config_nonce:
        fields["config_nonce"] = log.config_nonce
    if log.metadata.epoch:
        fields["metadata_epoch"] = log.metadata.epoch
    if log.metadata.through:
        fields["metadata_through"] = log.metadata.through
    if log.metadata.lsn is not None:
        fields["metadata_lsn"] = str(log.metadata.lsn)
    if log.metadata.first_lsn is not None:
        fields["metadata_first_lsn"] = str(log.metadata.first_lsn)
    return fields


def read_log(data: bytes) -> LogNode:
    """Read a log node; segments of it may have their metadata in its metadata log.

    Raises:
        MetadataJsonError: the node is not a valid log.
    """
    return _read_log(*read_versioned(data, METADATA_SCHEMA))


def _read_log(version: int, document: dict[str, Any]) -> LogNode:
    take = document.pop
    try:
        snapshot_lsn = take("snapshot_lsn")
        log = LogNode(
            log_id=LogId(read_number(take("log_id"))),
            namespace=take("namespace"),
            name=take("name"),
            config=parse_log_config(take("config")),
            config_version=check_whole(take("config_version")),
            next_epoch=Epoch(check_whole(take("next_epoch"))),
            last_clean_epoch=check_whole(take("last_clean_epoch")),
            totals=read_totals(take("totals")),
            trim_lsn=read_number(take("trim_lsn")),
            trim_seq_num=check_whole(take("trim_seq_num")),
            first_live_epoch=Epoch(check_whole(take("first_live_epoch"))),
            snapshot_lsn=None if snapshot_lsn is None else read_number(snapshot_lsn),
            first_hot_epoch=Epoch(check_whole(document.pop("first_hot_epoch", 1))),
            is_ended=take("ended"),
            is_deleted=take("deleted"),
            trim_slot=check_whole(document.pop("trim_slot", 0)),
            truncated_below=Epoch(check_whole(document.pop("truncated_below", 1))),
            truncated_unix_ms=check_whole(document.pop("truncated_unix_ms", 0)),
            deleted_unix_ms=check_whole_or_none(document.pop("deleted_unix_ms", None)),
            is_purged=document.pop("purged", False),
            created_unix_ms=take("created_unix_ms"),
            nonce=take("nonce"),
            config_nonce=check_text(document.pop("config_nonce", "")),
            metadata=_take_marks(document),
            extra=document,  # what is left of it
        )
        _check_schema(version, log)
        return log.validated()
    except (KeyError, TypeError, ValueError, AssertionError, DuramenError) as error:
        raise MetadataJsonError(f"the node is no log: {error!r}") from error


def _take_marks(document: dict[str, Any]) -> MetadataMarks:
    """What the node says of its metadata log; most say nothing."""
    first, last = document.pop("metadata_first_lsn", None), document.pop("metadata_lsn", None)
    return MetadataMarks(
        check_whole(document.pop("metadata_epoch", 0)),
        check_whole(document.pop("metadata_through", 0)),
        None if first is None else Lsn(read_number(first)),
        None if last is None else Lsn(read_number(last)),
    )


def _check_schema(version: int, log: LogNode) -> None:
    """Whoever knows the first schema alone must not meet what only the second has."""
    if not is_log_id(log.log_id):
        raise ValueError(f"{log.log_id} is no log id")
    is_later = log.metadata != MetadataMarks() or is_metadata_log(log.log_id)
    if is_later != (version == METADATA_SCHEMA):
        raise ValueError(f"schema {version} does not go with {log.metadata}")


def encode_tombstone(log_ids: Sequence[LogId]) -> bytes:
    """Encode `tombstones/<sequence>`."""
    return encode_node({"log_ids": [str(log_id) for log_id in log_ids]})


def read_tombstone(data: bytes) -> tuple[LogId, ...]:
    """The logs of a tombstone.

    Raises:
        MetadataJsonError: the node is no tombstone.
    """
    log_ids = read_node(data).get("log_ids")
    try:
        if not isinstance(log_ids, list):
            raise TypeError("it names no logs")
        return tuple(LogId(read_number(text)) for text in log_ids)
    except (TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no tombstone: {error!r}") from error
