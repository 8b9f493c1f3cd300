"""Where an epoch's metadata are, and which records of a metadata log count.

Both follow from one version of the log node. A record counts if it is of kind MOVED, lies from
`first_lsn` to `lsn` of the marks, and is of an epoch that lives and is at or below `through`; of
several for one epoch the last. An existing segment node beats any record: a store that was restored
from an older snapshot, or a person, put it there.

Pure. Called by `lookup` and `moving`. Source: docs/protocol/metadata-logs.md "Words", "Reading".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import Epoch, Lsn


class PlacedRecord(NamedTuple):
    """A record, and where in the metadata log it lies."""

    lsn: Lsn
    record: MetadataRecord


class Whereabouts(enum.Enum):
    """Where the metadata of an epoch are, by one version of the log node."""

    GIVEN_UP = "given up"
    MOVED = "in the metadata log"
    STORED = "in the metadata store"
    NOT_YET = "not there yet"


class SegmentListing(NamedTuple):
    """The segments of a log by one version of its node."""

    log: LogNode
    segments: tuple[AnySegment, ...]
    """Oldest first."""

    unreadable: tuple[Epoch, ...] = ()
    """Live epochs that have moved, and of which no record counts: nothing is known of them."""


def whereabouts_of(log: LogNode, epoch: int) -> Whereabouts:
    """Where the metadata of an epoch are to be looked for once its node was not found."""
    if epoch < log.first_live_epoch:
        return Whereabouts.GIVEN_UP
    if epoch >= log.next_epoch:
        return Whereabouts.NOT_YET
    return Whereabouts.MOVED if epoch <= log.metadata.through else Whereabouts.STORED


def find_counting(log: LogNode, records: Iterable[PlacedRecord]) -> dict[Epoch, MetadataRecord]:
    """The records that count, by epoch.

    Args:
        records: at least those from `first_lsn` to `lsn`, in the order in which they lie.
    """
    marks = log.metadata
    counting: dict[Epoch, MetadataRecord] = {}
    if marks.lsn is None:
        return counting
    for lsn, record in records:
        lies_within = (marks.first_lsn or 0) <= lsn <= marks.lsn
        is_moved = whereabouts_of(log, record.epoch) is Whereabouts.MOVED
        if record.kind is MetadataKind.MOVED and lies_within and is_moved:
            counting[record.epoch] = record
    return counting


def join(
    log: LogNode, nodes: Mapping[Epoch, AnySegment], records: Iterable[PlacedRecord]
) -> SegmentListing | None:
    """All segments of a log; None: the node of a segment that should be there is not.

    Then it was moved or given up since `log` was read, and everything is to be read again.

    Args:
        nodes: those that are there, read after `log`; at least of all epochs that have not moved.
        records: as for `find_counting`.
    """
    counting = find_counting(log, records)
    segments: list[AnySegment] = []
    unreadable: list[Epoch] = []
    for epoch in map(Epoch, range(log.first_live_epoch, log.next_epoch)):
        node = nodes.get(epoch)
        if node is not None:
            segments.append(node)
        elif whereabouts_of(log, epoch) is Whereabouts.STORED:
            return None
        elif epoch in counting:
            segments.append(counting[epoch].segment)
        else:
            unreadable.append(epoch)
    return SegmentListing(log, tuple(segments), tuple(unreadable))
