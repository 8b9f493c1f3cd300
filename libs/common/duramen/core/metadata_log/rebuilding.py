"""Rebuilds the listing of a log from its metadata log alone, and says what ZooKeeper should hold.

For a store that has lost nodes, or was restored from an older snapshot. Then the log node's numbers
may be old as well, so everything in the metadata log is looked at, whether it counts or not: of an
epoch the record of the newest version of its node, of equal versions the last. That is evidence for
a person, who puts nodes back; nothing here decides what a reader is shown (`listing`).

Pure. Called by tools. Source: docs/protocol/metadata-logs.md "When something fails".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import (
    PlacedRecord,
    Whereabouts,
    find_counting,
    whereabouts_of,
)
from duramen.core.metadata_log.moving import StoredNode
from duramen.core.metadata_log.record import MetadataRecord
from duramen.ids import Epoch


class EpochFinding(enum.Enum):
    """What is found of one epoch; the values are those of the report."""

    GOOD = "as it should be"
    MISSING_NODE = "its node should be there"
    MISSING_RECORD = "it has moved, and no record of it counts"
    OLDER_NODE = "its node is older than what was told of it"
    LEFT_NODE = "it has moved, and its node is there: the node is believed"
    UNKNOWN_EPOCH = "it was told, and the log node does not know it"


class EpochReport(NamedTuple):
    """One epoch of a log."""

    epoch: Epoch
    finding: EpochFinding
    segment: AnySegment | None
    """What readers are shown; where that is nothing, what is told of it; None: nothing is."""

    record: MetadataRecord | None
    """The best that the metadata log has."""


def rebuild(records: Iterable[PlacedRecord]) -> dict[Epoch, MetadataRecord]:
    """The best record of each epoch that was ever told, with the configuration that any had.

    Args:
        records: all that can be read, in the order in which they lie.
    """
    best: dict[Epoch, MetadataRecord] = {}
    for _, record in records:
        before = best.get(record.epoch)
        if before is None:
            best[record.epoch] = record
        elif record.age >= before.age:
            best[record.epoch] = record.with_config_of(before)
        else:
            best[record.epoch] = before.with_config_of(record)
    return best


def examine(
    log: LogNode | None, nodes: Mapping[Epoch, StoredNode], records: Sequence[PlacedRecord]
) -> list[EpochReport]:
    """Every epoch that lives, or may live, oldest first.

    Args:
        log: None: its node is lost, and everything that was told is missing.
        nodes: those that are there.
    """
    best = rebuild(records)
    counting = {} if log is None else find_counting(log, records)
    known = set() if log is None else set(range(log.first_live_epoch, log.next_epoch))
    live = known | {
        epoch
        for epoch in best
        if log is None or whereabouts_of(log, epoch) is not Whereabouts.GIVEN_UP
    }
    return [
        _report(log, Epoch(epoch), nodes.get(Epoch(epoch)), counting.get(Epoch(epoch)), best)
        for epoch in sorted(live)
    ]


def _report(
    log: LogNode | None,
    epoch: Epoch,
    node: StoredNode | None,
    counting: MetadataRecord | None,
    best: Mapping[Epoch, MetadataRecord],
) -> EpochReport:
    record = best.get(epoch)
    finding = _find(log, epoch, node, counting, record)
    shown = counting.segment if counting is not None else record.segment if record else None
    return EpochReport(epoch, finding, shown if node is None else node.segment, record)


def _find(
    log: LogNode | None,
    epoch: Epoch,
    node: StoredNode | None,
    counting: MetadataRecord | None,
    record: MetadataRecord | None,
) -> EpochFinding:
    if log is None or epoch >= log.next_epoch:
        return EpochFinding.UNKNOWN_EPOCH
    is_moved = whereabouts_of(log, epoch) is Whereabouts.MOVED
    if node is None and not is_moved:
        return EpochFinding.MISSING_NODE
    if node is None:
        return EpochFinding.MISSING_RECORD if counting is None else EpochFinding.GOOD
    if record is not None and (node.made, node.version) < record.age:
        return EpochFinding.OLDER_NODE
    return EpochFinding.LEFT_NODE if is_moved else EpochFinding.GOOD
