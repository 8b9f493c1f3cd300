"""What may leave ZooKeeper, and what a metadata log is rewritten to.

Segments leave in order of epochs and without a gap, since one number in the log node says how far.
One leaves that nobody changes any more: CLOSED, released, with a cold copy that was rechecked or
without any entry; only the archive may still replace the copy, and a move names the version of the
node that it deletes. A rewrite copies what counts, and the history of what has not moved; what it
cannot find it does not leave out: then there is none.

Pure. Called by `keeper`. Source: docs/protocol/metadata-logs.md "What may leave ZooKeeper",
"Rewriting".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.life.release import can_do_without_hot_copies
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord, find_counting
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import Epoch, Lsn

MOVE_COUNT_MAX: Final = 200
MOVE_BYTES_MAX: Final = 4 << 20
"""Of segment nodes that leave in one change."""

NODE_BYTES_MAX: Final = 1_000_000
"""Of a node that fits in a record; a larger one stays, and so does what follows it."""

METADATA_SEGMENT_COUNT_MAX: Final = 8
"""Live segments of a metadata log beyond which it is rewritten."""


class StoredNode(NamedTuple):
    """A segment's node as it was read."""

    segment: AnySegment
    version: int
    made: int
    size_bytes: int


def first_to_move(log: LogNode) -> Epoch:
    """The epoch that leaves next: what was given up needs no record."""
    return Epoch(max(log.metadata.through + 1, log.first_live_epoch))


def plan_move(
    log: LogNode, stored: Sequence[StoredNode], rested_unix_ms: int
) -> tuple[StoredNode, ...]:
    """Which segments may leave now, oldest first.

    Args:
        stored: from `first_to_move` on, without a gap, as many as were read.
        rested_unix_ms: a cold copy that was rechecked after it stays: compaction may replace it.
    """
    moved: list[StoredNode] = []
    left_bytes = MOVE_BYTES_MAX
    for index, node in enumerate(stored[:MOVE_COUNT_MAX]):
        assert node.segment.epoch == first_to_move(log) + index, (log, node)
        left_bytes -= node.size_bytes
        if left_bytes < 0 or not _may_leave(log, node, rested_unix_ms):
            break
        moved.append(node)
    return tuple(moved)


def list_move_records(moved: Sequence[StoredNode]) -> list[MetadataRecord]:
    """What stands for these nodes once they are gone."""
    return [
        MetadataRecord(MetadataKind.MOVED, node.segment, node.version, node.made).validated()
        for node in moved
    ]


def carry_move(
    log: LogNode, moved: Sequence[StoredNode], first: Lsn, last: Lsn, nonce: str
) -> LogNode:
    """The log node of the `multi()` that deletes these nodes, each at the version recorded."""
    assert moved and moved[0].segment.epoch == first_to_move(log), (log, moved)
    return log.with_metadata(log.metadata.moved(moved[-1].segment.epoch, first, last), nonce)


def is_rewrite_due(metadata_log: LogNode) -> bool:
    """Whether a metadata log has more segments than it needs."""
    live_count = metadata_log.next_epoch - metadata_log.trim.dlsn.epoch
    return live_count > METADATA_SEGMENT_COUNT_MAX


def plan_rewrite(
    log: LogNode, records: Sequence[PlacedRecord], stored: Sequence[StoredNode]
) -> list[MetadataRecord] | None:
    """Copies that may count instead of everything before them; None: something is missing.

    Args:
        records: everything from `first_lsn`, or from the beginning, to the end of the metadata log.
        stored: nodes that have not moved, which are newer than what was told of them.
    """
    counting = find_counting(log, records)
    fitting = [node for node in stored if node.size_bytes <= NODE_BYTES_MAX]
    history = {node.segment.epoch: _report(node) for node in fitting}
    configs: dict[Epoch, MetadataRecord] = {}
    for _, record in records:
        if record.config is not None:
            configs.setdefault(record.epoch, record)
        if record.kind is MetadataKind.TOLD:
            history.setdefault(record.epoch, record)
            if record.age >= history[record.epoch].age:
                history[record.epoch] = record
    copies: list[MetadataRecord] = []
    for epoch in map(Epoch, range(log.first_live_epoch, log.next_epoch)):
        is_moved = epoch <= log.metadata.through
        found = counting.get(epoch) if is_moved else history.get(epoch)
        if found is not None:
            copies.append(found.with_config_of(configs.get(epoch, found)))
        elif is_moved:
            return None
    return copies


def _report(node: StoredNode) -> MetadataRecord:
    """History, of a node that is there."""
    return MetadataRecord(MetadataKind.TOLD, node.segment, node.version, node.made).validated()


def trim_target(log: LogNode, metadata_log: LogNode) -> Lsn | None:
    """Up to where a metadata log is to be trimmed; None: it is.

    Part of a change that checks this version of `log`.
    """
    first = log.metadata.first_lsn
    return first if first is not None and first > metadata_log.trim.lsn else None


def rechecked_unix_ms(segment: AnySegment) -> int:
    """When its cold copy was; 0: it has none, and needs none."""
    copy = segment.cold_copy
    return 0 if copy is None or copy.rechecked_unix_ms is None else copy.rechecked_unix_ms


def _may_leave(log: LogNode, node: StoredNode, rested_unix_ms: int) -> bool:
    segment = node.segment
    is_released = segment.is_closed and segment.epoch < log.first_hot_epoch
    is_safe = can_do_without_hot_copies(segment) and rechecked_unix_ms(segment) <= rested_unix_ms
    return is_released and is_safe and node.size_bytes <= NODE_BYTES_MAX
