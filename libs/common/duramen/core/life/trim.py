"""Where a log's trim point lies: which of its segments are truncated, wholly or in part.

The trim point in the log node is the truth, and a segment's status follows from it. So a truncation
is one compare-and-set, however many segments it passes. Pure functions of nodes.

Not here: whether a trim is due (`retention`). Called by retention, by the sequencer's truncation
and by the read proxy. Source: docs/protocol/retention.md.
"""

from __future__ import annotations

import enum

from duramen.core.log_node import LogNode, TrimPoint
from duramen.core.segment_base import SegmentBase
from duramen.ids import Dlsn, EntryId, Epoch, lsn_of


class SegmentStatus(enum.Enum):
    """What of a segment may still be read."""

    LIVE = "LIVE"
    PARTIALLY_TRUNCATED = "PARTIALLY_TRUNCATED"
    TRUNCATED = "TRUNCATED"


def end_of(segment: SegmentBase) -> TrimPoint:
    """The end of a CLOSED segment, which is the beginning of the next one."""
    assert segment.totals is not None and segment.start_seq_num is not None, segment
    seq_num = segment.start_seq_num + segment.totals.record_count
    return TrimPoint(lsn_of(Epoch(segment.epoch + 1), EntryId(0)), 0, seq_num)


def is_truncated(segment: SegmentBase, trim: TrimPoint) -> bool:
    """Whether the trim point has passed every entry that the segment has or will have."""
    if trim.lsn >= lsn_of(Epoch(segment.epoch + 1), EntryId(0)):
        return True
    if segment.last_entry is None or segment.last_entry < 0:
        return False
    return trim.lsn > lsn_of(segment.epoch, segment.last_entry)


def status_of(segment: SegmentBase, log: LogNode) -> SegmentStatus:
    """A segment's status in its log."""
    trim = log.trim
    if is_truncated(segment, trim):
        return SegmentStatus.TRUNCATED
    if (trim.lsn, trim.slot) > (lsn_of(segment.epoch, EntryId(0)), 0):
        return SegmentStatus.PARTIALLY_TRUNCATED
    return SegmentStatus.LIVE


def min_active_dlsn(segment: SegmentBase, log: LogNode) -> Dlsn | None:
    """Where the records of a segment begin that may still be read; None if all are truncated."""
    match status_of(segment, log):
        case SegmentStatus.LIVE:
            return Dlsn(segment.epoch, EntryId(0), 0)
        case SegmentStatus.PARTIALLY_TRUNCATED:
            return log.trim.dlsn
        case SegmentStatus.TRUNCATED:
            return None
