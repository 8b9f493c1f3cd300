"""Which segments a run archives: closed, not archived yet, and wanted by log and operator.

A log's own `tiering` says whether it is archived at all; a run's selector narrows that, and a
selector that names one log (no wildcard) takes it whatever its policy is. A log whose retention
requires cold copies keeps each segment until it has one, so nothing of the log itself exempts a
segment there: neither `tiering`, nor truncation. Pure functions of nodes, so that a run can say of
every segment why it was left alone.

Called by `driver`; the operator's `plan.archive.waiting` says the same of what REST shows, and a
test compares the two. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from duramen.core.flexible.segment import AnySegment
from duramen.core.life.trim import SegmentStatus, status_of
from duramen.core.log_node import LogNode
from duramen.units import MS

_WILDCARDS = frozenset("*?[")


class ArchiveVerdict(enum.Enum):
    """What a run does with a segment, or why it does nothing; the report has the values."""

    ARCHIVE = "archive"
    ARCHIVED = "archived before"
    NOT_CLOSED = "not closed"
    TOO_YOUNG = "completed too recently"
    TOO_SMALL = "smaller than the minimum"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator asks of a run.

    Attributes:
        selectors: globs over `namespace/log`; a segment's log has to match one.
        keep_hot_us: only segments that were completed so long ago.
        min_bytes: only segments with so many bytes of batches, besides what their log demands.
        includes_truncated: also segments that no reader is shown any more, while bookies have them;
            where the log requires cold copies they are taken in any case.
    """

    selectors: tuple[str, ...] = ("*/*",)
    keep_hot_us: int = 0
    min_bytes: int = 0
    includes_truncated: bool = False

    def takes(self, log: LogNode) -> bool:
        """Whether the run looks at a log at all."""
        if log.is_deleted:
            return False
        name = f"{log.namespace}/{log.name}"
        is_tiered = log.config.tiering.policy != "none" or log.config.retention.require_cold_copy
        for selector in self.selectors:
            is_named = not _WILDCARDS.intersection(selector)
            if selector == name if is_named else is_tiered and fnmatchcase(name, selector):
                return True
        return False

    def judge(self, log: LogNode, segment: AnySegment, now_unix_ms: int) -> ArchiveVerdict:
        """What the run does with a segment of a log that it looks at."""
        if not segment.is_closed:
            return ArchiveVerdict.NOT_CLOSED
        if segment.cold_copy is not None:
            return ArchiveVerdict.ARCHIVED
        is_required = log.config.retention.require_cold_copy
        takes_truncated = self.includes_truncated or is_required
        if not takes_truncated and status_of(segment, log) is SegmentStatus.TRUNCATED:
            return ArchiveVerdict.TRUNCATED
        completed_ms = segment.completed_unix_ms or 0
        if now_unix_ms - completed_ms < self.keep_hot_us // MS:
            return ArchiveVerdict.TOO_YOUNG
        assert segment.totals is not None, segment
        min_bytes = max(self.min_bytes, 0 if is_required else log.config.tiering.min_size)
        if segment.totals.length_bytes < min_bytes:
            return ArchiveVerdict.TOO_SMALL
        return ArchiveVerdict.ARCHIVE


def find_lag_ms(waiting: Sequence[AnySegment], now_unix_ms: int) -> int:
    """How long ago the oldest of segments that wait for the archive was completed; 0: none."""
    times = [segment.completed_unix_ms or now_unix_ms for segment in waiting]
    return max([0, *[now_unix_ms - at for at in times]])
