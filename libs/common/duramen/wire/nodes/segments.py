"""Segment nodes: the life of a segment, and where its entries lie.

Called by the drivers of sequencer, proxies and bookie. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duramen.core.cold_copy import ColdCopy
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
)
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_text,
    check_truth,
    check_whole,
    check_whole_or_none,
    encode_node,
    encode_totals,
    read_node,
    read_number,
    read_totals,
    take_field,
    take_if_there,
)


def encode_segment(segment: Segment) -> bytes:
    """Encode a segment node."""
    return encode_node({**_encode_life_of(segment), **_encode_fragments(segment)}, segment.extra)


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


def read_segment(data: bytes) -> Segment:
    """Read a segment node.

    Raises:
        MetadataJsonError: the node is not a valid segment.
    """
    document = read_node(data)
    take = document.pop
    try:
        return Segment(
            quorum=Quorum(take("ensemble_size"), take("write_quorum"), take("ack_quorum")),
            fragments=take_field(document, "fragments", _read_fragments),
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
