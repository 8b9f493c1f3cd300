"""Nodes in ZooKeeper: JSON with sorted keys, a schema version, a nonce, unknown fields kept.

Pure encoding: which node changes when is decided by the cores. Newer code reads older versions;
fields that this version does not know travel through a rewrite untouched (`extra`). The paths of
docs/protocol/metadata.md "Nodes" are here as well, so that a path is written in one place only.

Called by the drivers of sequencer, proxies and bookie. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.config import read_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.duty import Duty
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member

SCHEMA: Final = 1
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")

_CONFIRMED: Final = "confirmed_tombstone"

PLACED_BY: Final = "placed_by"
BY_ADMIN: Final = "admin"
"""In `bookies/<id>`: a person has said where the bookie is, so its flags do not change that."""


class MetadataJsonError(ValueError):
    """A node does not hold what its place promises; never to be overwritten blindly."""


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
        self.auditor = f"{self.root}/auditor"
        self.regions = f"{self.root}/regions"

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

    def tombstone(self, sequence: int) -> str:
        """Purged logs that bookies may still have ledgers of."""
        return f"{self.tombstones}/{sequence}"


def encode_node(fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> bytes:
    """Encode a node: sorted keys, schema version added, unknown fields kept."""
    document = {**(extra or {}), **fields, "v": SCHEMA}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def read_node(data: bytes) -> dict[str, Any]:
    """Any node as a dict, without its schema version.

    Raises:
        MetadataJsonError: no JSON object, or of a schema that is newer than this code.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataJsonError("the node is no JSON") from error
    if not isinstance(document, dict) or not isinstance(document.get("v"), int):
        raise MetadataJsonError("the node has no schema version")
    if document["v"] > SCHEMA:
        raise MetadataJsonError(f"the node's schema {document['v']} is newer than {SCHEMA}")
    del document["v"]
    return document


def encode_segment(segment: Segment) -> bytes:
    """Encode a segment node."""
    fields = {
        "log_id": str(segment.log_id),
        "epoch": segment.epoch,
        "state": segment.state.value,
        "ensemble_size": segment.quorum.ensemble_size,
        "write_quorum": segment.quorum.write_quorum,
        "ack_quorum": segment.quorum.ack_quorum,
        "ack_mode": segment.ack_mode,
        "placement": segment.placement,
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "ensemble": [list(member) for member in fragment.ensemble],
                "totals_before": _encode_totals(fragment.totals_before),
                **({"proved": True} if fragment.is_proved else {}),
            }
            for fragment in segment.fragments
        ],
        "last_entry": segment.last_entry,
        **({"holes": [list(hole) for hole in segment.holes]} if segment.holes else {}),
        **({} if segment.bound is None else {"bound": segment.bound}),
        **({"lost": [list(lost) for lost in segment.lost]} if segment.lost else {}),
        **({} if segment.cold_copy is None else {"cold_copy": _encode_cold(segment.cold_copy)}),
        "totals": None if segment.totals is None else _encode_totals(segment.totals),
        "start_seq_num": segment.start_seq_num,
        "created_unix_ms": segment.created_unix_ms,
        "completed_unix_ms": segment.completed_unix_ms,
        "nonce": segment.nonce,
    }
    return encode_node(fields, segment.extra)


def read_segment(data: bytes) -> Segment:
    """Read a segment node.

    Raises:
        MetadataJsonError: the node is not a valid segment.
    """
    document = read_node(data)
    take = document.pop
    try:
        totals = take("totals")
        segment = Segment(
            log_id=LogId(_number(take("log_id"))),
            epoch=Epoch(_whole(take("epoch"))),
            quorum=Quorum(take("ensemble_size"), take("write_quorum"), take("ack_quorum")),
            fragments=tuple(_read_fragment(fragment) for fragment in take("fragments")),
            state=SegmentState(take("state")),
            ack_mode=take("ack_mode"),
            placement=take("placement"),
            last_entry=_entry(take("last_entry")),
            holes=_read_ranges(document.pop("holes", ())),
            lost=_read_ranges(document.pop("lost", ())),
            cold_copy=_read_cold(document.pop("cold_copy", None)),
            bound=_entry(document.pop("bound", None)),
            totals=None if totals is None else _read_totals(totals),
            start_seq_num=_whole_or_none(take("start_seq_num")),
            created_unix_ms=take("created_unix_ms"),
            completed_unix_ms=take("completed_unix_ms"),
            nonce=take("nonce"),
            extra=document,  # what is left of it
        )
        return segment.validated()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise MetadataJsonError(f"the node is no segment: {error!r}") from error


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
        "totals": _encode_totals(log.totals),
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
    return encode_node(fields, log.extra)


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
    return fields


def read_log(data: bytes) -> LogNode:
    """Read a log node.

    Raises:
        MetadataJsonError: the node is not a valid log.
    """
    document = read_node(data)
    take = document.pop
    try:
        snapshot_lsn = take("snapshot_lsn")
        log = LogNode(
            log_id=LogId(_number(take("log_id"))),
            namespace=take("namespace"),
            name=take("name"),
            config=read_log_config(take("config")),
            config_version=_whole(take("config_version")),
            next_epoch=Epoch(_whole(take("next_epoch"))),
            last_clean_epoch=_whole(take("last_clean_epoch")),
            totals=_read_totals(take("totals")),
            trim_lsn=_number(take("trim_lsn")),
            trim_seq_num=_whole(take("trim_seq_num")),
            first_live_epoch=Epoch(_whole(take("first_live_epoch"))),
            snapshot_lsn=None if snapshot_lsn is None else _number(snapshot_lsn),
            first_hot_epoch=Epoch(_whole(document.pop("first_hot_epoch", 1))),
            is_ended=take("ended"),
            is_deleted=take("deleted"),
            trim_slot=_whole(document.pop("trim_slot", 0)),
            truncated_below=Epoch(_whole(document.pop("truncated_below", 1))),
            truncated_unix_ms=_whole(document.pop("truncated_unix_ms", 0)),
            deleted_unix_ms=_whole_or_none(document.pop("deleted_unix_ms", None)),
            is_purged=document.pop("purged", False),
            created_unix_ms=take("created_unix_ms"),
            nonce=take("nonce"),
            config_nonce=_text(document.pop("config_nonce", "")),
            extra=document,  # what is left of it
        )
        return log.validated()
    except (KeyError, TypeError, ValueError, AssertionError, DuramenError) as error:
        raise MetadataJsonError(f"the node is no log: {error!r}") from error


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
        return tuple(LogId(_number(text)) for text in log_ids)
    except (TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no tombstone: {error!r}") from error


def encode_confirmed(fields: Mapping[str, Any], sequence: int) -> bytes:
    """Encode `bookies/<id>` with the tombstone up to which the bookie confirms."""
    return encode_node({**fields, _CONFIRMED: sequence})


def read_confirmed(fields: Mapping[str, Any]) -> int:
    """Up to which tombstone a bookie confirms that it holds nothing of their logs; 0: none.

    Raises:
        MetadataJsonError: the field is there and is no number.
    """
    return read_whole(fields.get(_CONFIRMED, 0))


def read_whole(value: object) -> int:
    """A whole number ≥ 0 of a node.

    Raises:
        MetadataJsonError: it is none.
    """
    try:
        return _whole(value)
    except ValueError as error:
        raise MetadataJsonError(str(error)) from error


def _read_fragment(document: Mapping[str, Any]) -> Fragment:
    return Fragment(
        EntryId(_whole(document["first_entry"])),
        tuple(
            Member(BookieId(bookie), Incarnation(incarnation))
            for bookie, incarnation in document["ensemble"]
        ),
        _read_totals(document["totals_before"]),
        _truth(document.get("proved", False)),
    )


def _encode_cold(copy: ColdCopy) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "verified": True,
        "attempt": copy.attempt,
        "manifest_sha256": copy.manifest_sha256,
        "size_bytes": copy.size_bytes,
        "verified_unix_ms": copy.verified_unix_ms,
    }
    if copy.rechecked_unix_ms is not None:
        fields["rechecked_unix_ms"] = copy.rechecked_unix_ms
    return fields


def _read_cold(document: Mapping[str, Any] | None) -> ColdCopy | None:
    """A cold copy; what is there and does not say that it was verified is none of ours."""
    if document is None:
        return None
    if document["verified"] is not True:
        raise ValueError("the cold copy is not verified")
    return ColdCopy(
        attempt=_text(document["attempt"]),
        manifest_sha256=_text(document["manifest_sha256"]),
        size_bytes=_whole(document["size_bytes"]),
        verified_unix_ms=_whole(document["verified_unix_ms"]),
        rechecked_unix_ms=_whole_or_none(document.get("rechecked_unix_ms")),
    )


def _read_ranges(document: Sequence[Any]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Closed ranges of entries."""
    return tuple((EntryId(_whole(first)), EntryId(_whole(last))) for first, last in document)


def _encode_totals(totals: Totals) -> dict[str, Any]:
    return {
        "records": totals.record_count,
        "bytes": totals.length_bytes,
        "max_txid": totals.max_txid,
        "max_timestamp_ms": totals.max_timestamp_ms,
    }


def _read_totals(document: Mapping[str, Any]) -> Totals:
    return Totals(
        _whole(document["records"]),
        _whole(document["bytes"]),
        document["max_txid"],
        document["max_timestamp_ms"],
    )


def _whole(value: object) -> int:
    """A whole number ≥ 0; `bool` is an int to Python, and no number to anybody else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number ≥ 0")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)


def _entry(value: object) -> EntryId | None:
    """A last entry: None while the segment is not closed, `NOTHING` if it closed empty."""
    return NOTHING if value == NOTHING else EntryId(_whole(value)) if value is not None else None


def _number(text: object) -> int:
    """A number that is a text in JSON, because it may pass 2^53."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{text!r} is no number as text")
    return int(text)


@dataclass(frozen=True, slots=True)
class BookieNode:
    """Who a bookie is, where it stands, and what it takes on."""

    incarnation: Incarnation
    region: str = ""
    rack: str = ""
    weight: float = 1.0
    duty: Duty = Duty.SERVING
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_bookie(node: BookieNode) -> bytes:
    """Encode `bookies/<id>`; the duty of a serving bookie is not written."""
    fields: dict[str, Any] = {
        "incarnation": node.incarnation,
        "region": node.region,
        "rack": node.rack,
        "weight": node.weight,
    }
    if node.duty is not Duty.SERVING:
        fields["duty"] = node.duty.value
    return encode_node(fields, node.extra)


def read_bookie(data: bytes) -> BookieNode:
    """Read `bookies/<id>`.

    Raises:
        MetadataJsonError: the node is not a bookie's, or names a duty that is not known here.
    """
    document = read_node(data)
    take = document.pop
    try:
        node = BookieNode(
            incarnation=_incarnation(take("incarnation")),
            region=_text(document.pop("region", "")),
            rack=_text(document.pop("rack", "")),
            weight=_weight(document.pop("weight", 1.0)),
            duty=Duty(document.pop("duty", Duty.SERVING.value)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataJsonError(f"the node is no bookie's: {error!r}") from error
    return BookieNode(node.incarnation, node.region, node.rack, node.weight, node.duty, document)


def _incarnation(value: object) -> Incarnation:
    if not isinstance(value, str) or not _INCARNATION.fullmatch(value):
        raise ValueError(f"{value!r} is no incarnation")
    return Incarnation(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _weight(value: object) -> float:
    """A finite number ≥ 0; `bool` is an int to Python, and no number to anybody else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no weight: it is a number ≥ 0")
    return float(value)
