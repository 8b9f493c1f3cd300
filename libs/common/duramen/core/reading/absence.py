"""When entries that no node of a flexible segment has are lost: metadata that are read afterwards.

Each node of the map looked past them and vouches that it has none. Repair may have changed the map
meanwhile, the segment may have been released or truncated, or the log deleted: then the copies lie
elsewhere, or nobody wants them, and nothing is lost. So log node and segment node are read after a
sync that began after the last answer, and must say what they said. Below the trim point nothing is
a loss, whatever is there.

Pure. Called by `core.reading.reader`. Source: R25.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.reading.range_read import NodesAbsence
from duramen.core.segment_base import SegmentBase
from duramen.ids import EntryId


class SuspectedAbsence(NamedTuple):
    """Entries that no node has, and the metadata by which they were asked for."""

    first: EntryId
    last: EntryId
    log: LogNode
    segment: SegmentBase

    def is_loss(self, log: LogNode, segment: SegmentBase | None) -> bool:
        """Whether metadata that were read since are those by which the nodes were asked."""
        if segment is None or not segment.is_closed:
            return False
        known, kept = self.segment, self.log
        is_same_map = (
            segment.last_entry == known.last_entry
            and segment.holes == known.holes
            and segment.lost == known.lost
            and segment.list_holders(self.first) == known.list_holders(self.first)
        )
        is_same_log = (
            (log.trim, log.first_live_epoch, log.first_hot_epoch)
            == (kept.trim, kept.first_live_epoch, kept.first_hot_epoch)
            and (log.is_deleted, log.is_purged) == (kept.is_deleted, kept.is_purged)
        )  # fmt: skip
        return is_same_map and is_same_log


def suspect(
    absent: NodesAbsence, wanted: EntryId, log: LogNode | None, segment: SegmentBase | None
) -> SuspectedAbsence | None:
    """What may be lost; None if it is not what is wanted, or other nodes than those of the map as
    it is known now were asked."""
    if log is None or segment is None or absent.first != wanted:
        return None
    if set(absent.nodes) != set(segment.list_holders(wanted)):
        return None
    return SuspectedAbsence(absent.first, absent.last, log, segment)
