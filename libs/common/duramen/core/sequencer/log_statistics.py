"""Figures of one log in one sequencer process, for the admin API: what waits and what was done.

Called by `log_sequencer`. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duramen.core.sequencer.log_sequencer import LogSequencer


def statistics_of(log: LogSequencer) -> dict[str, object]:
    """Of a log, whatever its state."""
    writer = log.writer
    return {
        "state": log.state.value,
        "epoch": None if writer is None else writer.segment.epoch,
        "lac": None if writer is None else writer.lac,
        "lap": None if writer is None else writer.lap,
        **log.pipeline.queue_statistics(),
        "window_bytes": 0 if writer is None else writer.window_bytes,
        "owed_bytes": 0 if writer is None else writer.owed_bytes,
        "suspended": [] if writer is None else [m.bookie for m in writer.suspended],
        "ensemble_changes": 0 if writer is None else writer.change_count,
        "rolls": log.roll_count,
        "takeovers": log.takeover_count,
        **log.pipeline.statistics(),
        "recoveries": log.older.recovery_count,
        "unrecovered_epochs": [recovery.epoch for recovery in log.older.recoveries],
    }
