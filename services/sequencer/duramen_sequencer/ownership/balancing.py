"""The balancer of the cluster: asks all sequencers for their loads, and has logs handed over.

It runs in the process that is the auditor, so there is one at a time; two at once would be held by
the owners, which give no log away that has just come. It does nothing while a sequencer is silent
or stopping, while rolling is suspended, or without a session. Moves are made one after the other,
and each is its owner's deed: whatever happens to the balancer, no log is left in between.

Called by `service`. Decisions are `core.ownership.balancer`'s.
Source: docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import Counter, Gauge

from duramen.core.hashing import weights_of
from duramen.core.ownership.balance import LogMove
from duramen.core.ownership.balancer import (
    REGION_HOLD_OFF_US,
    SAMPLE_INTERVAL_US,
    Balancer,
    Sample,
    is_held_off,
)
from duramen.errors import DuramenError
from duramen.runtime.registry import Roster
from duramen.runtime.roster_calls import (
    HAND_OVER_TIMEOUT_US,
    Answers,
    RosterCalls,
    movable_logs,
    read_load,
)
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND

_LOG = logging.getLogger(__name__)

MOVES: Final = Counter("duramen_balancer_moves", "Logs that the balancer moved", ["outcome"])
LOAD_RATIO: Final = Gauge(
    "duramen_balancer_load_ratio", "The greatest load of a sequencer, in shares; 0: no balancer"
)
_RATIO_SHOWN_MAX: Final = 1_000.0
"""A sequencer of weight 0 with a load carries infinitely more than its share."""


class Balancing:
    """The balancer of one process; it works while that is the auditor.

    Args:
        may_move: whether this process has a session, and logs may roll.
        is_wanted: False with `--no-balance`.
    """

    def __init__(
        self,
        roster: Roster,
        calls: RosterCalls,
        may_move: Callable[[], bool],
        *,
        is_wanted: bool = True,
    ) -> None:
        self.balancer = Balancer()
        self._roster = roster
        self._calls = calls
        self._may_move = may_move
        self._is_wanted = is_wanted
        self._task: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(("samples", "samples_dropped", "moved", "moves_failed"), 0)

    def on_leadership(self, is_held: bool) -> None:
        """This process is the auditor now, or no longer."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.balancer.forget()
        LOAD_RATIO.set(0)
        if is_held and self._is_wanted:
            self._task = asyncio.create_task(self._balance_for_ever())

    async def stop(self) -> None:
        """Move nothing any more."""
        task = self._task
        self.on_leadership(False)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def statistics(self) -> dict[str, Any]:
        """Samples, moves, and how uneven the loads were last."""
        return {
            "is_wanted": self._is_wanted,
            "is_balancer": self._task is not None,
            "load_ratio": self._load_ratio(),
            **self._counts,
        }

    def _load_ratio(self) -> float:
        greatest = max(self.balancer.ratios.values(), default=0.0)
        return round(min(greatest, _RATIO_SHOWN_MAX), 3)

    async def _balance_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_US / SECOND)
            try:
                await self.balance(now_us)
            except Exception:
                _LOG.exception("a round of balancing failed")
                self.balancer.forget()

    async def balance(self, clock_us: Callable[[], int]) -> None:
        """One sample, and the moves that follow from it."""
        sample = await self._take_sample() if self._may_move() else None
        if sample is None:
            self._counts["samples_dropped"] += 1
            self.balancer.forget()
            return
        self._counts["samples"] += 1
        moves = self.balancer.on_sample(sample, clock_us())
        LOAD_RATIO.set(self._load_ratio())
        for move in moves:
            if not self._may_move():
                self.balancer.forget()
                return
            await self._move(move)

    async def _take_sample(self) -> Sample | None:
        """None: a sequencer did not answer, or takes leave: loads are not known, or change."""
        weights = weights_of(self._roster.nodes)
        try:
            answers, _ = await self._calls.ask_all({"op": "owned"})
        except DuramenError:
            return None
        is_leaving = any(answer.get("stopping") is True for _, answer in answers)
        if is_leaving or {name for name, _ in answers} != weights.keys():
            return None
        regions = {name: str(node.get("region")) for name, node in self._roster.nodes.items()}
        return read_sample(answers, weights, regions)

    async def _move(self, move: LogMove) -> None:
        ratio = min(self.balancer.ratios[move.source], _RATIO_SHOWN_MAX)
        reason = f"{move.source} carried {ratio:.1f} times its share"
        if move.is_for_region:
            reason = "its writers are in that region"
        message = {
            "op": "hand_over", "log_id": move.log_id, "to": move.target, "balancing": True,
            "reason": reason, **({"for_region": True} if move.is_for_region else {}),
        }  # fmt: skip
        try:
            await self._calls.ask(move.source, message, HAND_OVER_TIMEOUT_US)
        except DuramenError as error:
            outcome = "unknown" if error.uncertain else "refused"
            self._counts["moves_failed"] += 1
            _LOG.info("log %s did not move to %s: %s", move.log_id, move.target, error)
        else:
            outcome = "moved"
            self._counts["moved"] += 1
            _LOG.info("log %s moved to %s: %s", move.log_id, move.target, reason)
        MOVES.labels(outcome).inc()


def read_sample(
    answers: Answers, weights: Mapping[str, float], regions: Mapping[str, str]
) -> Sample:
    """What the answers to `owned` say; an owner that does not tell since when has just got it."""
    logs = list(movable_logs(answers))
    by_id = {str(log["log_id"]): log for _, log in logs}
    return Sample(
        tuple(read_load(sequencer_id, log) for sequencer_id, log in logs),
        weights,
        fresh=frozenset(n for n, log in by_id.items() if is_held_off(_held_us(log))),
        wishes={
            log_id: region
            for log_id, log in by_id.items()
            if isinstance(region := log.get("writers_region"), str)
        },
        followed=frozenset(
            log_id
            for log_id, log in by_id.items()
            if log.get("came_for_region") is True and _held_us(log) < REGION_HOLD_OFF_US
        ),
        regions=regions,
    )


def _held_us(log: dict[str, Any]) -> int:
    held_s = log.get("held_s")
    return held_s * SECOND if isinstance(held_s, int) else 0
