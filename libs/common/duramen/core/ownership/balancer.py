"""When logs are moved without a person who asks: a plan, held back by everything that is in doubt.

A plan is made of the last SAMPLE_COUNT samples of the loads, all of them whole and of the same
sequencers. A sequencer gives only if in each of them it carried BEGIN_RATIO times its share, and
EXCESS_MIN more than it. Once begun, balancing goes on to the closer bound of `balance`. Before it
looks at loads, logs that ask for it go to their writers' region, if the whole row names it.

A log stays where it went for HOLD_OFF_US, and one that went to its writers does not leave for that
reason within REGION_HOLD_OFF_US. Its owner knows that best, and says so: thus a balancer that has
just begun, or a second one, moves no log back. Moves a sample and moves a minute are bounded.

Called by the sequencer's `ownership.balancing`. Source: docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from types import MappingProxyType
from typing import Final, NamedTuple

from duramen.core.ownership.balance import LogLoad, LogMove, plan_moves, pressures
from duramen.units import HOUR, MINUTE, SECOND

SAMPLE_INTERVAL_US: Final = 10 * SECOND
"""Rates are those of 5 to 10 s: two samples share nothing."""

SAMPLE_COUNT: Final = 3
"""What lasts half a minute is no burst."""

BEGIN_RATIO: Final = 1.4
EXCESS_MIN: Final = 200.0
"""In appends per second: what burdens nobody is not worth the pause of a move."""

HOLD_OFF_US: Final = 5 * MINUTE
"""For so long a log stays with an owner that has just got it, in whatever way."""

REGION_HOLD_OFF_US: Final = 1 * HOUR
"""Writers that wander between regions take their logs along seldom."""

MOVES_PER_SAMPLE: Final = 5
MOVES_PER_MINUTE: Final = 10


class Sample(NamedTuple):
    """What all live sequencers carry at one moment, by their own words.

    Attributes:
        loads: of every log that takes appends.
        weights: of every live sequencer.
        fresh: ids of logs whose owner has had them for less than HOLD_OFF_US.
        wishes: log id → region in which its owner is to be; only of logs that ask for it.
        followed: ids of logs that came to their owner for that, less than REGION_HOLD_OFF_US ago.
        regions: sequencer → where it is.
    """

    loads: tuple[LogLoad, ...]
    weights: Mapping[str, float]
    fresh: frozenset[str]
    wishes: Mapping[str, str] = MappingProxyType({})
    followed: frozenset[str] = frozenset()
    regions: Mapping[str, str] = MappingProxyType({})


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
        count_max = min(room, MOVES_PER_SAMPLE)
        moves = self._plan_regions(count_max)
        if not moves:
            givers = self._find_givers()
            moves = self._plan(givers, count_max) if givers else []
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
        """Moves by the mean of the row, of logs that stood still in it and are not fresh.

        Logs with a wish are moved only where there is nothing else to move, and only among the
        sequencers of their region.
        """
        last, wishes = self._samples[-1], self._wishes()
        loads = self._mean_loads()
        fixed = {load.log_id for load in loads if load.sequencer_id not in givers}
        fixed |= self._unsteady()
        moves = plan_moves(
            loads, last.weights, move_count_max=count_max, fixed=fixed | wishes.keys()
        )
        for region in sorted(set(wishes.values())):
            weights = {n: w for n, w in last.weights.items() if last.regions.get(n) == region}
            if not moves and len(weights) > 1:
                others = {load.log_id for load in loads if wishes.get(load.log_id) != region}
                moves = plan_moves(loads, weights, move_count_max=count_max, fixed=fixed | others)
        return moves

    def _plan_regions(self, count_max: int) -> list[LogMove]:
        """Moves of logs to where the whole row says that their writers are."""
        last, wishes = self._samples[-1], self._wishes()
        cost, staying = _costs(last), self._unsteady() | last.followed
        moves: list[LogMove] = []
        for load in sorted(last.loads, key=lambda load: (-load.cost, load.log_id)):
            region = wishes.get(load.log_id)
            is_there = region is None or last.regions.get(load.sequencer_id) == region
            if is_there or load.log_id in staying or len(moves) == count_max:
                continue
            pressure = pressures(cost, last.weights)
            target = min(_list_takers(last, region), key=lambda name: (pressure[name], name))
            cost[target] += load.cost
            moves.append(
                LogMove(load.log_id, load.sequencer_id, target, load.cost, is_for_region=True)
            )
        return moves

    def _wishes(self) -> dict[str, str]:
        """Log id → region that the whole row names, and in which a sequencer takes logs."""
        last = self._samples[-1]
        return {
            log_id: region
            for log_id, region in last.wishes.items()
            if all(sample.wishes.get(log_id) == region for sample in self._samples)
            and _list_takers(last, region)
        }

    def _unsteady(self) -> set[str]:
        """Ids of logs that have just come to their owner, or were not there in the whole row."""
        last = self._samples[-1]
        rows = [{(load.log_id, load.sequencer_id) for load in each.loads} for each in self._samples]
        steady = {log_id for log_id, _ in set.intersection(*rows)}
        seen: dict[str, set[str]] = {}
        for row in rows:
            for log_id, owner in row:
                seen.setdefault(log_id, set()).add(owner)
        return {log_id for log_id in seen if log_id not in steady or len(seen[log_id]) > 1} | {
            *last.fresh
        }

    def _mean_loads(self) -> list[LogLoad]:
        """Of each log of the last sample the mean of the row, wherever it was."""
        seen: dict[str, list[LogLoad]] = {}
        for sample in self._samples:
            for load in sample.loads:
                seen.setdefault(load.log_id, []).append(load)
        return [
            load._replace(
                appends_per_s=fmean(each.appends_per_s for each in seen[load.log_id]),
                bytes_per_s=fmean(each.bytes_per_s for each in seen[load.log_id]),
            )
            for load in self._samples[-1].loads
        ]

    def __repr__(self) -> str:
        return f"<balancer {len(self._samples)} samples, moved {list(self._moved_us)}>"


def _list_takers(sample: Sample, region: str | None) -> list[str]:
    """The sequencers of a region that take logs."""
    return [
        name
        for name, weight in sample.weights.items()
        if weight > 0 and sample.regions.get(name) == region
    ]


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
