"""Segments as the API shows them, striped and flexible ones, and the history of epochs.

A flexible segment has the property and the nodes of its node in ZooKeeper in the place of quorums
and fragments; each kind lacks what the other one has.

Called by `rest`. Source: docs/protocol/rest.md "Segments", docs/protocol/flexible.md "Interfaces".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.life.trim import min_active_dlsn, status_of
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.history import ToldEpoch
from duramen.core.metadata_log.listing import Whereabouts
from duramen.core.segment import Fragment
from duramen.ids import ledger_of
from duramen.runtime.public.answers import (
    ColdCopyAnswer,
    CopyAnswer,
    EpochAnswer,
    EpochsAnswer,
    FragmentAnswer,
    PropertyAnswer,
    SegmentAnswer,
    SegmentNodeAnswer,
)
from duramen.runtime.reading.positioning.segment_edges import NO_RECORDS, Edges
from duramen.texts import format_time


def describe_segment(
    segment: AnySegment, log: LogNode, edges: Edges | None = None
) -> SegmentAnswer:
    """A segment as the API shows it; None where an unclosed segment does not know yet.

    Args:
        edges: what it begins with, if that is known.
    """
    totals = segment.totals
    first_txid, first_ms = edges or NO_RECORDS
    start_seq_num = segment.start_seq_num
    if segment.epoch == log.last_clean_epoch + 1:
        # Every earlier one is closed, so its first record has the number of what they hold.
        start_seq_num = log.totals.record_count
    active = min_active_dlsn(segment, log)
    return SegmentAnswer(
        epoch=segment.epoch,
        ledger_id=str(ledger_of(segment.log_id, segment.epoch)),
        state=segment.state.value,
        status=status_of(segment, log).value,
        min_active_dlsn=None if active is None else str(active),
        first_entry=0,
        last_entry=segment.last_entry,
        lost=[list(lost) for lost in segment.lost],
        start_seq_num=start_seq_num,
        records=None if totals is None else totals.record_count,
        bytes=None if totals is None else totals.length_bytes,
        first_txid=first_txid,
        last_txid=None if totals is None else totals.max_txid,
        first_timestamp=_format_time(first_ms),
        last_timestamp=_format_time(None if totals is None else totals.max_timestamp_ms),
        created=format_time(segment.created_unix_ms),
        completed=_format_time(segment.completed_unix_ms),
        cold_copy=_describe_cold_copy(segment.cold_copy),
        hot_copies="released" if segment.epoch < log.first_hot_epoch else "kept",
        **_describe_placing(segment),
        **_describe_holes(segment),
    )


_PLACES: Final[Mapping[Whereabouts, Literal["zookeeper", "metadata_log", "history"]]] = {
    Whereabouts.STORED: "zookeeper",
    Whereabouts.MOVED: "metadata_log",
    Whereabouts.GIVEN_UP: "history",
}


def describe_epochs(log: LogNode, told: Sequence[ToldEpoch]) -> EpochsAnswer:
    """The history of a log as the API shows it: each configuration once, by its version."""
    configs = {str(one.config_version): dict(one.config) for one in told if one.config is not None}
    epochs = [
        EpochAnswer(
            epoch=one.epoch,
            metadata=_PLACES[one.where],
            config_version=one.config_version,
            segment=None if one.segment is None else describe_segment(one.segment, log),
        )
        for one in told
    ]
    return EpochsAnswer(epochs=epochs, configs=configs)


def _describe_placing(segment: AnySegment) -> dict[str, Any]:
    """Who may have its entries: what the other kind of segment has is left out, never invented."""
    if not isinstance(segment, FlexibleSegment):
        return {
            "ensemble_size": segment.quorum.ensemble_size,
            "write_quorum": segment.quorum.write_quorum,
            "ack_quorum": segment.quorum.ack_quorum,
            "fragments": [_describe_fragment(fragment) for fragment in segment.fragments],
        }
    wanted = segment.replication
    return {
        "property": PropertyAnswer(node=wanted.node, rack=wanted.rack, region=wanted.region),
        "nodes": [_describe_node(segment, row) for row in segment.nodes],
    }


def _describe_holes(segment: AnySegment) -> dict[str, Any]:
    """What was never acknowledged and is not there; most segments have nothing to say."""
    told: dict[str, Any] = {}
    if segment.holes:
        told["holes"] = [list(hole) for hole in segment.holes]
    if isinstance(segment, FlexibleSegment) and segment.missing_record_count:
        told["missing_records"] = segment.missing_record_count
    return told


def _describe_node(segment: FlexibleSegment, row: NodesetRow) -> SegmentNodeAnswer:
    role: Literal["own", "guest", "added"] = "added"
    if row.number < segment.own_count:
        role = "own"
    elif row.number < segment.own_count + segment.guest_count:
        role = "guest"
    return SegmentNodeAnswer(
        number=row.number,
        bookie=row.node.bookie,
        incarnation=row.node.incarnation,
        region=row.node.region,
        rack=row.node.rack,
        weight=row.node.weight,
        role=role,
    )


def _describe_cold_copy(copy: ColdCopy | None) -> ColdCopyAnswer | None:
    if copy is None:
        return None
    return ColdCopyAnswer(
        attempt=copy.attempt,
        manifest_sha256=copy.manifest_sha256,
        bytes=copy.size_bytes,
        verified=format_time(copy.verified_unix_ms),
        rechecked=_format_time(copy.rechecked_unix_ms),
    )


def _format_time(unix_ms: int | None) -> str | None:
    return None if unix_ms is None else format_time(unix_ms)


def _describe_fragment(fragment: Fragment) -> FragmentAnswer:
    return FragmentAnswer(
        first_entry=fragment.first_entry,
        ensemble=[
            CopyAnswer(bookie=member.bookie, incarnation=member.incarnation)
            for member in fragment.ensemble
        ],
    )
