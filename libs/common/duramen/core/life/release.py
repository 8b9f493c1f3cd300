"""How far a log may release its hot copies: the epoch from which on bookies must keep entries.

Segments are released oldest first and without a gap, since one number in the log node says how far.
A segment is passed when it is CLOSED, was completed longer than `tiering.keep_hot` ago, and has a
cold copy that a second look found whole. A segment without any entry is passed as well: nobody can
miss anything of it. A segment that a takeover may read is not passed, because takeovers ask bookies
alone. The `multi()` that writes the number checks that the segments are still what they were.

Pure. Called by `retention`. Source: docs/protocol/archive.md "Release".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.segment_base import SegmentBase
from duramen.ids import NOTHING, Epoch
from duramen.limits import RELEASE_SEGMENT_COUNT_MAX
from duramen.units import MS


class HotRelease(NamedTuple):
    """How far hot copies may go now."""

    first_hot_epoch: Epoch
    """What `first_hot_epoch` may become; not above what it is: nothing is to be released."""
    waiting_epoch: Epoch | None
    """The oldest segment that only waits for the archive."""
    due_unix_ms: int | None
    """When time alone allows more; None: the archive must come first, or the log node change."""


def judge_release(log: LogNode, segments: Sequence[SegmentBase], now_unix_ms: int) -> HotRelease:
    """What of a log may be released.

    Args:
        segments: the CLOSED ones from `first_kept_epoch` on, oldest first, as many as are known.
    """
    epoch = log.first_kept_epoch
    if log.config.tiering.policy != "move":
        return HotRelease(epoch, None, None)
    for segment in segments[:RELEASE_SEGMENT_COUNT_MAX]:
        assert segment.is_closed and segment.epoch == epoch, (log, segment)
        if epoch >= log.first_stateful_epoch:
            return HotRelease(epoch, None, None)  # the next snapshot changes the log node
        ripe_ms = (segment.completed_unix_ms or 0) + log.config.tiering.keep_hot // MS
        if now_unix_ms < ripe_ms:
            return HotRelease(epoch, None, ripe_ms)
        if not can_do_without_hot_copies(segment):
            return HotRelease(epoch, epoch, None)
        epoch = Epoch(epoch + 1)
    is_cut = len(segments) > RELEASE_SEGMENT_COUNT_MAX
    return HotRelease(epoch, None, now_unix_ms if is_cut else None)


def can_do_without_hot_copies(segment: SegmentBase) -> bool:
    """Whether nothing of a CLOSED segment is lost to readers without its hot copies."""
    if segment.last_entry == NOTHING:
        return True
    return segment.cold_copy is not None and segment.cold_copy.is_rechecked
