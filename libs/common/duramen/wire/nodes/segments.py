"""Segment nodes: striped ones are of schema 1, flexible ones of schema 2.

Versions are counted for each kind of node: log nodes have a second one of their own. Who knows
striped segments alone calls `read_segment`: to it a flexible one is a node of a newer version, as
it is to programs that were made before it.

Called by the drivers of sequencer, proxies and bookie. Source: docs/protocol/metadata.md "Nodes",
docs/protocol/flexible.md "The segment node".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.core.segment_base import SegmentBase
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    NodeNumber,
)
from duramen.wire.nodes.fields import (
    SCHEMA,
    MetadataJsonError,
    check_incarnation,
    check_text,
    check_truth,
    check_weight,
    check_whole,
    check_whole_or_none,
    encode_document,
    encode_totals,
    read_node,
    read_number,
    read_totals,
    read_versioned,
    take_field,
    take_if_there,
    take_version,
)

FLEXIBLE_SCHEMA: Final = 2


def encode_segment(segment: Segment | FlexibleSegment) -> bytes:
    """Encode a segment node."""
    return encode_document(list_segment_fields(segment))


def list_segment_fields(segment: Segment | FlexibleSegment) -> dict[str, Any]:
    """All of a segment's node, with its schema version, as another document may hold it."""
    fields = {**segment.extra, **_encode_life_of(segment)}
    if isinstance(segment, FlexibleSegment):
        return {**fields, **_encode_map(segment), "v": FLEXIBLE_SCHEMA}
    return {**fields, **_encode_fragments(segment), "v": SCHEMA}


def _encode_life_of(segment: SegmentBase) -> dict[str, Any]:
    """What every segment's node has."""
    return {
        "log_id": str(segment.log_id),
        "epoch": segment.epoch,
        "state": segment.state.value,
        "ack_mode": segment.ack_mode,
        "placement": segment.placement,
        "last_entry": segment.last_entry,
        **({"holes": [list(hole) for hole in segment.holes]} if segment.holes else {}),
        **({} if segment.bound is None else {"bound": segment.bound}),
        **({"lost": [list(lost) for lost in segment.lost]} if segment.lost else {}),
        **({} if segment.cold_copy is None else {"cold_copy": _encode_cold(segment.cold_copy)}),
        "totals": None if segment.totals is None else encode_totals(segment.totals),
        "start_seq_num": segment.start_seq_num,
        "created_unix_ms": segment.created_unix_ms,
        "completed_unix_ms": segment.completed_unix_ms,
        "nonce": segment.nonce,
    }


def _encode_fragments(segment: Segment) -> dict[str, Any]:
    return {
        "ensemble_size": segment.quorum.ensemble_size,
        "write_quorum": segment.quorum.write_quorum,
        "ack_quorum": segment.quorum.ack_quorum,
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "ensemble": [list(member) for member in fragment.ensemble],
                "totals_before": encode_totals(fragment.totals_before),
                **({"proved": True} if fragment.is_proved else {}),
            }
            for fragment in segment.fragments
        ],
    }


def _encode_map(segment: FlexibleSegment) -> dict[str, Any]:
    """What only a flexible segment's node has: all of it always."""
    wanted = segment.replication
    return {
        "property": {"node": wanted.node, "rack": wanted.rack, "region": wanted.region},
        "extras": wanted.extras,
        "nodes": [
            [row.number, *row.member, row.node.region, row.node.rack, row.weight]
            for row in segment.nodes
        ],
        "own_count": segment.own_count,
        "guest_count": segment.guest_count,
        "next_number": segment.next_number,
        "nodeset_version": segment.nodeset_version,
        "proved": segment.is_proved,
        "missing_records": segment.missing_record_count,
    }


def read_segment(data: bytes) -> Segment:
    """Read a striped segment's node.

    Raises:
        MetadataJsonError: the node is not a valid segment, or a flexible one.
    """
    return _read_striped(read_node(data))


def read_any_segment(data: bytes) -> Segment | FlexibleSegment:
    """Read a segment's node, for who knows what to do with both kinds.

    Raises:
        MetadataJsonError: the node is not a valid segment.
    """
    return _read_either(*read_versioned(data, FLEXIBLE_SCHEMA))


def read_segment_fields(document: object) -> Segment | FlexibleSegment:
    """The inverse of `list_segment_fields`; takes the fields out of the document.

    Raises:
        MetadataJsonError: it is no valid segment.
    """
    return _read_either(*take_version(document, FLEXIBLE_SCHEMA))


def _read_either(version: int, document: dict[str, Any]) -> Segment | FlexibleSegment:
    return _read_striped(document) if version < FLEXIBLE_SCHEMA else _read_flexible(document)


def _read_striped(document: dict[str, Any]) -> Segment:
    take = document.pop
    try:
        if "nodes" in document:
            raise ValueError("nodes: no striped segment has them")
        return Segment(
            quorum=Quorum(take("ensemble_size"), take("write_quorum"), take("ack_quorum")),
            fragments=take_field(document, "fragments", _read_fragments),
            **_take_life(document),
            extra=document,  # what is left of it
        ).validated()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise MetadataJsonError(f"the node is no segment: {error!r}") from error


def _read_flexible(document: dict[str, Any]) -> FlexibleSegment:
    try:
        if "fragments" in document:
            raise ValueError("fragments: no flexible segment has them")
        _check_texts_and_times(document)
        return FlexibleSegment(
            replication=_take_property(document),
            nodes=take_field(document, "nodes", _read_rows),
            own_count=take_field(document, "own_count", check_whole),
            guest_count=take_field(document, "guest_count", check_whole),
            next_number=take_field(document, "next_number", check_whole),
            nodeset_version=take_field(document, "nodeset_version", check_whole),
            is_proved=take_field(document, "proved", check_truth),
            missing_record_count=take_field(document, "missing_records", check_whole),
            **_take_life(document),
            extra=document,  # what is left of it
        ).validated()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise MetadataJsonError(f"the node is no segment: {error!r}") from error


def _take_life(document: dict[str, Any]) -> dict[str, Any]:
    """What every segment has, by its names in the core."""
    take = document.pop
    return {
        "log_id": LogId(take_field(document, "log_id", read_number)),
        "epoch": Epoch(take_field(document, "epoch", check_whole)),
        "state": take_field(document, "state", SegmentState),
        "ack_mode": take("ack_mode"),
        "placement": take("placement"),
        "last_entry": take_field(document, "last_entry", _entry),
        "holes": take_if_there(document, "holes", _read_ranges) or (),
        "lost": take_if_there(document, "lost", _read_ranges) or (),
        "cold_copy": take_if_there(document, "cold_copy", _read_cold),
        "bound": take_if_there(document, "bound", _entry),
        "totals": take_field(document, "totals", _read_totals_or_none),
        "start_seq_num": take_field(document, "start_seq_num", check_whole_or_none),
        "created_unix_ms": take("created_unix_ms"),
        "completed_unix_ms": take("completed_unix_ms"),
        "nonce": take("nonce"),
    }


def _take_property(document: dict[str, Any]) -> ReplicationProperty:
    extras = take_field(document, "extras", check_whole)

    def read(found: Mapping[str, Any]) -> ReplicationProperty:
        if set(found) != {"node", "rack", "region"}:
            raise ValueError(f"{sorted(found)} are not node, rack and region")
        node, rack, region = (check_whole(found[name]) for name in ("node", "rack", "region"))
        return ReplicationProperty(node, rack, region, extras)

    return take_field(document, "property", read)


def _read_rows(document: object) -> tuple[NodesetRow, ...]:
    if not isinstance(document, list):
        raise TypeError("rows are a list")
    return tuple(
        NodesetRow(
            NodeNumber(check_whole(number)),
            ServingBookie(
                BookieId(check_text(bookie)),
                check_text(region),
                check_text(rack),
                check_incarnation(incarnation),
                check_weight(weight),
            ),
        )
        for number, bookie, incarnation, region, rack, weight in document
    )


def _check_texts_and_times(document: Mapping[str, Any]) -> None:
    """What striped segments' readers always took as it is."""
    readers: tuple[tuple[str, Callable[[object], object]], ...] = (
        ("nonce", check_text), ("ack_mode", check_text), ("placement", check_text),
        ("created_unix_ms", check_whole), ("completed_unix_ms", check_whole_or_none),
    )  # fmt: skip
    for name, read in readers:
        take_field({name: document[name]}, name, read)


def _read_fragments(document: Sequence[Mapping[str, Any]]) -> tuple[Fragment, ...]:
    return tuple(
        Fragment(
            EntryId(check_whole(fragment["first_entry"])),
            tuple(
                Member(BookieId(bookie), Incarnation(incarnation))
                for bookie, incarnation in fragment["ensemble"]
            ),
            read_totals(fragment["totals_before"]),
            check_truth(fragment.get("proved", False)),
        )
        for fragment in document
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
        attempt=check_text(document["attempt"]),
        manifest_sha256=check_text(document["manifest_sha256"]),
        size_bytes=check_whole(document["size_bytes"]),
        verified_unix_ms=check_whole(document["verified_unix_ms"]),
        rechecked_unix_ms=check_whole_or_none(document.get("rechecked_unix_ms")),
    )


def _read_ranges(document: Sequence[Any]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Closed ranges of entries."""
    return tuple(
        (EntryId(check_whole(first)), EntryId(check_whole(last))) for first, last in document
    )


def _read_totals_or_none(document: Mapping[str, Any] | None) -> Totals | None:
    return None if document is None else read_totals(document)


def _entry(value: object) -> EntryId | None:
    """A last entry: None while the segment is not closed, `NOTHING` if it closed empty."""
    return (
        NOTHING if value == NOTHING else EntryId(check_whole(value)) if value is not None else None
    )
