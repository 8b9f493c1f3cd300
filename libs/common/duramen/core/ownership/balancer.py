"""When logs are moved without a person who asks: a plan, held back by everything that is in doubt.

Loads are sampled every while. A plan is made of the last SAMPLE_COUNT samples, all of them whole
and of the same sequencers; one that is not whole begins the row anew. A sequencer gives only if in
each of them it carried BEGIN_RATIO times its share, and EXCESS_MIN more than it. Once begun,
balancing goes on to the closer bound of `balance`, so that it neither begins nor ends by chance.

A log that is given away stays where it went for HOLD_OFF_US. Its owner knows that best, and says
for how long it has had a log: so a balancer that has just begun, or a second one, moves no log
back. Moves a sample and moves a minute are bounded.

Called by the sequencer's `ownership.balancing`. Source: docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from duramen.core.ownership.balance import LogLoad, LogMove, plan_moves, pressures
from duramen.units import MINUTE, SECOND

SAMPLE_INTERVAL_US: Final = 10 * SECOND
"""Rates are those of 5 to 10 s: two samples share nothing."""

SAMPLE_COUNT: Final = 3
"""What lasts half a minute is no burst."""

BEGIN_RATIO: Final = 1.4
EXCESS_MIN: Final = 200.0
"""In appends per second: what burdens nobody is not worth the pause of a move."""

HOLD_OFF_US: Final = 5 * MINUTE
"""For so long a log stays with an owner that has just got it, in whatever way."""

MOVES_PER_SAMPLE: Final = 5
MOVES_PER_MINUTE: Final = 10


class Sample(NamedTuple):
    """What all live sequencers carry at one moment, by their own words.

    Attributes:
        loads: of every log that takes appends.
        weights: of every live sequencer.
        fresh: ids of logs whose owner has had them for less than HOLD_OFF_US.
    """

    loads: tuple[LogLoad, ...]
    weights: Mapping[str, float]
    fresh: frozenset[str]


class Balancer:
    """The decisions of one balancer.

    Invariants (checked by `validate`):
     1 the samples of a row are of the same sequencers, and are at most SAMPLE_COUNT.
     2 within a minute at most MOVES_PER_MINUTE moves were given out.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLE_COUNT)
        self._moved_us: deque[int] = deque()
        self._is_begun = False
        self.ratios: Mapping[str, float] = {}
        """How many times its share each sequencer carried in the last sample."""

    def forget(self) -> None:
        """Begin anew: a sequencer is silent, leaves or came, or logs must not move now."""
        self._samples.clear()
        self._is_begun = False

    def on_sample(self, sample: Sample, now_us: int) -> list[LogMove]:
        """The moves to make now, the most useful first; the row begins anew if there are any."""
        if self._samples and self._samples[-1].weights != sample.weights:
            self.forget()
        self._samples.append(sample)
        self.ratios = _ratios(sample)
        room = self._room(now_us)
        if len(self._samples) < SAMPLE_COUNT or room <= 0:
            return []
        givers = self._find_givers()
        moves = self._plan(givers, min(room, MOVES_PER_SAMPLE)) if givers else []
        self._is_begun = bool(moves)
        if moves:
            # What a log asks of its new owner is told in full only by the second sample from now.
            self._samples.clear()
            self._moved_us.extend(now_us for _ in moves)
        return moves

    def validate(self) -> None:
        """Assert the invariants."""
        assert len({frozenset(sample.weights.items()) for sample in self._samples}) <= 1, (
            f"1 {self}"
        )
        assert len(self._moved_us) <= MOVES_PER_MINUTE, f"2 {self}"

    def _room(self, now_us: int) -> int:
        while self._moved_us and now_us - self._moved_us[0] >= MINUTE:
            self._moved_us.popleft()
        return MOVES_PER_MINUTE - len(self._moved_us)

    def _find_givers(self) -> frozenset[str]:
        """Who carried too much in every sample of the row."""
        over = [self._burdened(sample) for sample in self._samples]
        return frozenset.intersection(*over)

    def _burdened(self, sample: Sample) -> frozenset[str]:
        cost = _costs(sample)
        total = sum(cost.values())
        total_weight = sum(sample.weights.values())
        # Once begun, the plan's own closer bound decides where to stop.
        limit = 0.0 if self._is_begun else BEGIN_RATIO
        return frozenset(
            name
            for name, ratio in _ratios(sample).items()
            if ratio >= limit
            and cost[name] - total * sample.weights[name] / total_weight >= EXCESS_MIN
        )

    def _plan(self, givers: frozenset[str], count_max: int) -> list[LogMove]:
        """Moves by the mean of the row, of logs that stood still in it and are not fresh."""
        last = self._samples[-1]
        seen: dict[str, list[LogLoad]] = {}
        for sample in self._samples:
            for load in sample.loads:
                seen.setdefault(load.log_id, []).append(load)
        loads, fixed = [], set(last.fresh)
        for load in last.loads:
            row = seen[load.log_id]
            owners = {each.sequencer_id for each in row}
            if len(row) != SAMPLE_COUNT or len(owners) > 1 or load.sequencer_id not in givers:
                fixed.add(load.log_id)
            loads.append(_mean_of(load, row))
        return plan_moves(loads, last.weights, move_count_max=count_max, fixed=fixed)

    def __repr__(self) -> str:
        return f"<balancer {len(self._samples)} samples, moved {list(self._moved_us)}>"


def _mean_of(load: LogLoad, row: list[LogLoad]) -> LogLoad:
    return load._replace(
        appends_per_s=sum(each.appends_per_s for each in row) / len(row),
        bytes_per_s=sum(each.bytes_per_s for each in row) / len(row),
    )


def _costs(sample: Sample) -> dict[str, float]:
    cost = dict.fromkeys(sample.weights, 0.0)
    for load in sample.loads:
        if load.sequencer_id in cost:
            cost[load.sequencer_id] += load.cost
    return cost


def _ratios(sample: Sample) -> dict[str, float]:
    """How many times its share each sequencer carries; none where there is no load or weight."""
    cost = _costs(sample)
    total, total_weight = sum(cost.values()), sum(sample.weights.values())
    if total <= 0 or total_weight <= 0:
        return {}
    share = total / total_weight
    return {name: each / share for name, each in pressures(cost, sample.weights).items()}


def is_held_off(held_us: int) -> bool:
    """Whether a log stays with its owner because it has just come to it."""
    return held_us < HOLD_OFF_US
