"""What retention may do to a log now: trim it, give segments up, release, purge a deleted one.

There are two steps, and each is monotone. A segment is *truncated* when the trim point has passed
it. A request does that, or retention does, oldest first, when the segment was completed longer than
`retention.age` ago or the closed segments after it alone hold `retention.bytes`. It then waits for
`retention.truncated`, at most twice as long (segments wait in groups), so that recovery and readers
still find it. After that `first_live_epoch` passes it, and bookies drop it (R4). Only CLOSED
segments are judged; an open one cannot expire (T1).

A segment without a verified cold copy under `retention.require_cold_copy` neither expires nor is
given up. From the log's last snapshot on no segment is given up, because takeovers read them; none
at all is, while no close has said yet from where they read (every segment was recovered, and one
has producers). Hot copies: `release`. Called by the sequencer's retention.
Source: docs/protocol/retention.md, R4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.config import Retention
from duramen.core.flexible.segment import AnySegment
from duramen.core.life.release import judge_release
from duramen.core.life.trim import end_of, is_truncated
from duramen.core.log_node import LogNode, TrimPoint
from duramen.ids import Epoch
from duramen.units import MINUTE, MS

HELD_AGAIN_MS: Final = 10 * MINUTE // MS
"""Segments that wait for their cold copy are looked at again after that."""


class RetentionVerdict(NamedTuple):
    """What may be done now."""

    trim: TrimPoint | None
    """Where the trim point moves to; None: it stays."""
    first_live_epoch: Epoch | None
    """What `first_live_epoch` becomes; None: it stays."""
    first_hot_epoch: Epoch | None
    """What `first_hot_epoch` becomes, if the segments that it passes stay as they are until it is
    written; None: it stays."""
    unarchived_epoch: Epoch | None
    """The oldest segment of which the hot copies stay only because it is not archived yet."""
    held_epoch: Epoch | None
    """The oldest segment that only waits for its cold copy."""
    due_unix_ms: int | None
    """When time alone may change the verdict; None: only a change of the log node can."""

    def without_giving_up(self, now_unix_ms: int) -> RetentionVerdict:
        """As long as it is not known what a segment is that may go: hot copies still may."""
        return self._replace(trim=None, first_live_epoch=None, due_unix_ms=now_unix_ms)


def judge(
    log: LogNode, segments: Sequence[AnySegment], hot: Sequence[AnySegment], now_unix_ms: int
) -> RetentionVerdict:
    """What retention may do to a log that is not deleted.

    Args:
        segments: the CLOSED ones from `first_live_epoch` on, oldest first, up to LCE or to as many
            as are read at once; what is not among them stays.
        hot: the same from `first_kept_epoch` on.
    """
    assert len(segments) <= log.last_clean_epoch + 1 - log.first_live_epoch, (log, segments)
    for index, segment in enumerate(segments):
        assert segment.epoch == log.first_live_epoch + index, (log, segment)
    trim, held, due = _judge_age_and_size(log, segments, now_unix_ms)
    live_epoch, is_held, live_due = _judge_truncated(log, segments, now_unix_ms)
    if held is None and is_held:
        held = live_epoch
    release = judge_release(log, hot, now_unix_ms)
    dues = [time for time in (due, live_due, release.due_unix_ms) if time is not None]
    if held is not None or release.waiting_epoch is not None:
        dues.append(now_unix_ms + HELD_AGAIN_MS)
    return RetentionVerdict(
        trim if trim > log.trim else None,
        live_epoch if live_epoch > log.first_live_epoch else None,
        release.first_hot_epoch if release.first_hot_epoch > log.first_kept_epoch else None,
        release.waiting_epoch,
        held,
        min(dues, default=None),
    )


def carry_out(
    log: LogNode, verdict: RetentionVerdict, *, now_unix_ms: int, nonce: str
) -> LogNode | None:
    """The log node after `verdict`, which was given on it; None if nothing changes."""
    after = log
    if verdict.trim is not None:
        after = after.with_trim(
            verdict.trim, release=log.closed_end, unix_ms=now_unix_ms, nonce=nonce
        )
    if verdict.first_live_epoch is not None:
        epoch = verdict.first_live_epoch
        after = after.with_first_live_epoch(epoch, unix_ms=now_unix_ms, nonce=nonce)
    if verdict.first_hot_epoch is not None:
        after = after.with_first_hot_epoch(verdict.first_hot_epoch, nonce)
    return None if after is log else after


def is_to_be_purged(log: LogNode, now_unix_ms: int, window_us: int) -> bool:
    """Whether the undelete window of a deleted log is over."""
    if not log.is_deleted or log.is_purged:
        return False
    return now_unix_ms >= purge_time_ms(log, window_us)


def purge_time_ms(log: LogNode, window_us: int) -> int:
    """When the undelete window of a deleted log ends, unix ms."""
    assert log.is_deleted, log
    return (log.deleted_unix_ms or 0) + window_us // MS


def has_cold_copy(segment: AnySegment) -> bool:
    """Whether the archive has verified a cold copy of it."""
    return segment.cold_copy is not None


def _judge_age_and_size(
    log: LogNode, segments: Sequence[AnySegment], now_unix_ms: int
) -> tuple[TrimPoint, Epoch | None, int | None]:
    """How far the trim point may go, what holds it, when the next segment expires."""
    config = log.config.retention
    point = log.trim
    left = [segment for segment in segments if not is_truncated(segment, point)]
    if len(left) < len(segments):
        # A trim at the end of the open segment passes it for good once it is closed there.
        point = max(point, end_of(segments[len(segments) - len(left) - 1]))
    left_bytes = sum(_bytes_of(segment) for segment in left)
    for segment in left:
        left_bytes -= _bytes_of(segment)
        expires_ms = _expires_ms(segment, config)
        is_old = expires_ms is not None and now_unix_ms >= expires_ms
        is_surplus = config.bytes is not None and left_bytes >= config.bytes
        if not is_old and not is_surplus:
            return point, None, expires_ms
        if config.require_cold_copy and not has_cold_copy(segment):
            return point, segment.epoch, None
        point = end_of(segment)
    return point, None, None


def _judge_truncated(
    log: LogNode, segments: Sequence[AnySegment], now_unix_ms: int
) -> tuple[Epoch, bool, int | None]:
    """What `first_live_epoch` may be, whether a cold copy is missing there, when to look again."""
    config = log.config.retention
    if log.truncated_below <= log.first_live_epoch:
        return log.first_live_epoch, False, None
    ripe_ms = log.truncated_unix_ms + config.truncated // MS
    if now_unix_ms < ripe_ms:
        return log.first_live_epoch, False, ripe_ms
    if log.snapshot_lsn is None:
        return log.first_live_epoch, False, None  # a close will tell, and change the log node
    bound = Epoch(min(log.truncated_below, (log.snapshot_lsn + 1) >> 32))
    if config.require_cold_copy:
        # Of what was not read it is not known whether it has one.
        bound = Epoch(min(bound, log.first_live_epoch + len(segments)))
    for segment in segments:
        if segment.epoch >= bound:
            break
        if config.require_cold_copy and not has_cold_copy(segment):
            return segment.epoch, True, None
    return max(bound, log.first_live_epoch), False, None


def _expires_ms(segment: AnySegment, config: Retention) -> int | None:
    if config.age is None:
        return None
    return (segment.completed_unix_ms or 0) + config.age // MS


def _bytes_of(segment: AnySegment) -> int:
    assert segment.totals is not None, segment
    return segment.totals.length_bytes
