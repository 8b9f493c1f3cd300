"""Mutants of a log's life: truncation, retention, what bookies forget.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from duramen.core.life import retention
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.ids import NOTHING, EntryId, Epoch, LogId, lsn_of
from duramen_bookie.upkeep import deletion
from duramen_bookie.upkeep.deletion import DeletionPlan, LedgerSight
from duramen_sequencer.life.operations import LifeOperations
from tests.sim.mutants.mutant import Mutant

_with_clean = LogNode.with_clean
_find_extent = LifeOperations._find_extent
_judge_truncated = retention._judge_truncated


def _clean_without_trim(self: LogNode, segment: Any, nonce: str) -> LogNode:
    return replace(_with_clean(self, segment, nonce), trim_lsn=0, trim_seq_num=0, trim_slot=0)


async def _extent_up_to_the_lap(self: LifeOperations, log_id: LogId, tried: tuple[str, ...]) -> Any:
    extent = await _find_extent(self, log_id, tried)
    writer = self._host.drive(log_id).core.writer
    if extent.open_segment is None or writer is None:
        return extent
    lsn = lsn_of(writer.segment.epoch, EntryId(writer.lap + 1))
    seq_num = extent.log.totals.record_count + writer.totals.record_count
    return extent._replace(end=extent.end._replace(lsn=lsn, seq_num=seq_num))


def _with_the_open_segment(self: LogNode, unix_ms: int) -> LogNode:
    """A trim at the end of what is acknowledged passes the open segment, too."""
    point = self.trim.dlsn
    below = Epoch(point.epoch + (point.entry > 0))
    if below <= self.first_live_epoch:
        return self
    return replace(self, truncated_below=below, truncated_unix_ms=unix_ms)


def _give_up_all_that_is_closed(log: LogNode, *_: Any) -> tuple[Epoch, bool, None]:
    return Epoch(log.last_clean_epoch + 1), False, None


def _set_first_live_epoch(self: LogNode, epoch: Epoch, *, unix_ms: int, nonce: str) -> LogNode:
    return replace(self, first_live_epoch=epoch, nonce=nonce)


def _expired_when_completed(segment: Segment, config: Any) -> int | None:
    return None if config.age is None else segment.completed_unix_ms


def _judge_without_snapshot(log: LogNode, segments: Any, now_unix_ms: int) -> Any:
    return _judge_truncated(
        replace(log, snapshot_lsn=lsn_of(Epoch(log.last_clean_epoch + 1), NOTHING)),
        segments,
        now_unix_ms,
    )


def _judge_without_any_snapshot(log: LogNode, segments: Any, now_unix_ms: int) -> Any:
    if log.snapshot_lsn is None:
        return _judge_without_snapshot(log, segments, now_unix_ms)
    return _judge_truncated(log, segments, now_unix_ms)


def _dead_below_the_trim_point(node: LogNode, ledgers: Any) -> Epoch:
    return node.trim.dlsn.epoch


def _purge_beyond_the_lac(self: DeletionPlan, segment: Segment, ledger: LedgerSight) -> Any:
    return ledger.lac if segment.is_closed and ledger.highest > ledger.lac else None


MUTANTS: Final[dict[str, Mutant]] = {
    "trim-point-regresses": Mutant(
        "T1", "a close forgets the trim point",
        ((LogNode, "with_clean", _clean_without_trim),),
    ),
    "trim-above-the-lac": Mutant(
        "T1", "a truncation to the tail passes what is sent and not acknowledged",
        ((LifeOperations, "_find_extent", _extent_up_to_the_lap),),
    ),
    "open-segment-given-up": Mutant(
        "R4", "what is truncated in an open segment makes `first_live_epoch` pass it",
        ((LogNode, "_with_next_truncated", _with_the_open_segment),),
    ),
    "retention-removes-a-live-record": Mutant(
        "T1", "segments are given up that nobody truncated",
        (
            (retention, "_judge_truncated", _give_up_all_that_is_closed),
            (LogNode, "with_first_live_epoch", _set_first_live_epoch),
        ),
    ),
    "retention-expires-early": Mutant(
        "T1", "a segment expires when it is completed, whatever `retention.age` says",
        ((retention, "_expires_ms", _expired_when_completed),),
    ),
    "retention-forgets-the-snapshot": Mutant(
        "retention.md", "segments are given up that a rebuild of producers and token needs",
        ((retention, "_judge_truncated", _judge_without_snapshot),),
    ),
    "retention-before-any-snapshot": Mutant(
        "retention.md", "segments are given up where no snapshot was ever named",
        ((retention, "_judge_truncated", _judge_without_any_snapshot),),
    ),
    "bookie-drops-what-is-truncated": Mutant(
        "R4", "a bookie drops what is truncated and not yet given up",
        ((deletion, "_dead_below", _dead_below_the_trim_point),),
    ),
    "bookie-purges-beyond-the-lac": Mutant(
        "R17", "a bookie purges beyond its LAC instead of the segment's end",
        ((DeletionPlan, "judge_segment", _purge_beyond_the_lac),),
    ),
}  # fmt: skip
