"""How long a sequencer leaves a log alone that another one took from it.

Two sequencers that each believe to be the owner would seal one another for ever, and every turn
would cost the log's clients a recovery. So a sequencer claims a log that it lost only after a
pause. The pause doubles with every loss, and jitter keeps two rivals out of step. When the log was
held in peace for long enough, its losses are forgotten. The memory is bounded: the oldest losses
are forgotten first.

Called by the sequencer's `ownership.claims`. Source: docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from duramen.backoff import Backoff
from duramen.ids import LogId
from duramen.units import MS, SECOND

FIRST_US: Final = 200 * MS
LAST_US: Final = 5 * SECOND
_BACKOFF: Final = Backoff(FIRST_US, LAST_US, spread=(0.5, 1.5))
FORGOTTEN_AFTER_US: Final = 30 * SECOND
"""A loss so long after the one before is a first loss again."""

LOG_COUNT_MAX: Final = 10_000


class _Loss(NamedTuple):
    in_a_row: int
    at_us: int
    until_us: int


class LossPauses:
    """The pauses of all logs of one process."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._losses: dict[LogId, _Loss] = {}

    def note_loss(self, log_id: LogId, now_us: int) -> None:
        """Another sequencer took the log."""
        last = self._losses.pop(log_id, None)
        in_a_row = 1
        if last is not None and now_us - last.at_us < FORGOTTEN_AFTER_US:
            in_a_row = last.in_a_row + 1
        pause_us = _BACKOFF.spread_us(_BACKOFF.pause_us(in_a_row - 1), self._rng)
        if len(self._losses) >= LOG_COUNT_MAX:
            del self._losses[next(iter(self._losses))]
        self._losses[log_id] = _Loss(in_a_row, now_us, now_us + pause_us)

    def left_us(self, log_id: LogId, now_us: int) -> int:
        """How long the log is still to be left alone; 0: it may be claimed."""
        loss = self._losses.get(log_id)
        return 0 if loss is None else max(loss.until_us - now_us, 0)

    def __len__(self) -> int:
        return len(self._losses)
