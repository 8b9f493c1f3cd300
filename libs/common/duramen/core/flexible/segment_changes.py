"""What a flexible segment may become, seen from the version that the change is based on.

A value cannot say that nothing frozen was changed, that no number was used twice, or that
`nodeset_version` moved exactly with the map: each is about two values. The methods of
`FlexibleSegment` keep to it. These functions prove it of any two versions that follow one another,
as drivers, checkers and tests meet them; each gives the faults as sentences, none if all is well.

Pure. Source: R17, R24, R26, docs/protocol/flexible.md "The segment node".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.segment_base import TRANSITIONS, SegmentState

_NEVER_CHANGED: Final = (
    "log_id", "epoch", "ack_mode", "placement", "own_count", "created_unix_ms"
)  # fmt: skip
_NOT_BEFORE_THE_END: Final = ("replication", "nodeset_version")
_FINAL: Final = (
    "guest_count", "last_entry", "holes", "totals", "start_seq_num", "completed_unix_ms", "bound"
)  # fmt: skip


def find_frozen_faults(before: FlexibleSegment, after: FlexibleSegment) -> list[str]:
    """What changed although it never does, not before the segment is CLOSED, or not after."""
    names = list(_NEVER_CHANGED)
    names += _FINAL if before.is_closed else _NOT_BEFORE_THE_END
    faults = [
        f"{name} is frozen: {getattr(before, name)} became {getattr(after, name)}"
        for name in names
        if getattr(before, name) != getattr(after, name)
    ]
    if before.replication.extras != after.replication.extras:
        faults.append("extras are frozen: they are those of the claim")
    if after.state not in {before.state, *TRANSITIONS[before.state]}:
        faults.append(f"{before.state.value} became {after.state.value}")
    return faults + (
        _find_undone(before, after) if before.is_closed else _find_moved(before, after)
    )


def find_map_faults(before: FlexibleSegment, after: FlexibleSegment) -> list[str]:
    """Numbers that were used twice, and moves of the map that `nodeset_version` does not show."""
    faults = []
    if after.next_number < before.next_number:
        faults.append(f"next_number fell from {before.next_number} to {after.next_number}")
    held = {row.number: row for row in before.nodes}
    for row in after.nodes:
        known = held.get(row.number)
        if known is None and row.number < before.next_number:
            faults.append(f"number {row.number} was given before, and is {row.member}'s now")
        elif known is not None and (known.member, known.weight) != (row.member, row.weight):
            faults.append(f"the row of {known.member} is {row.member}'s now, or has another weight")
    moves = list(_list_moves(before, after))
    if after.nodeset_version != before.nodeset_version + bool(moves):
        versions = f"{before.nodeset_version} became {after.nodeset_version}"
        faults.append(f"nodeset_version {versions}: {', '.join(moves) or 'the map stayed'}")
    return faults


def _list_moves(before: FlexibleSegment, after: FlexibleSegment) -> Iterator[str]:
    """What readers, repair and the audit judge by, and is another now; more nodes are not."""
    kept = {row.number: row.node for row in after.nodes}
    for row in before.nodes:
        node = kept.get(row.number)
        if node is None:
            yield f"{row.member} was taken out"
        elif (node.region, node.rack) != (row.node.region, row.node.rack):
            yield f"{row.member} lies elsewhere"
    if before.replication != after.replication:
        yield "the property changed"


def _find_moved(before: FlexibleSegment, after: FlexibleSegment) -> list[str]:
    """Of a segment that was not CLOSED: rows and bound."""
    faults = []
    if after.nodes[: len(before.nodes)] != before.nodes:
        faults.append("rows are frozen until the segment is CLOSED")
    is_recovered = before.state is after.state is SegmentState.IN_RECOVERY
    if len(after.nodes) > len(before.nodes) and not is_recovered:
        faults.append("guests come while the segment is IN_RECOVERY, and not with its CLOSE")
    if before.bound not in {None, after.bound}:
        faults.append(f"the first bound stays: {before.bound} became {after.bound}")
    return faults


def _find_undone(before: FlexibleSegment, after: FlexibleSegment) -> list[str]:
    """Of a CLOSED segment: what only grows."""
    faults = []
    lost = EntryRanges(after.lost)
    if any(lost.count_run(first, last) <= last - first for first, last in before.lost):
        faults.append(f"what is lost stays lost: {before.lost} became {after.lost}")
    if after.missing_record_count < before.missing_record_count:
        faults.append("missing records came back")
    if after.missing_record_count != before.missing_record_count and after.lost == before.lost:
        faults.append("missing records move with what is lost")
    if before.is_proved and not after.is_proved:
        faults.append("what is proved stays so")
    return faults
