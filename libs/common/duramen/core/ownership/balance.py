"""Which logs to move so that sequencers carry load by their weights: a plan, and nothing else.

A move costs its log a short pause, so the plan is cautious. It moves logs only while a sequencer
carries more than HYSTERESIS times its share. It makes a move only if the worse of the two
sequencers gets better, and moves at most a given number of logs. Run again on the loads that its
own moves lead to, it moves nothing.

Called by the write proxy's `cluster.sequencers` and by `balancer`, which decides when a plan is
carried out without a person. Source: docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from duramen.units import KIB

HYSTERESIS: Final = 1.25
"""Loads that differ by less than a quarter differ by chance."""

MOVE_COUNT_DEFAULT: Final = 10
MOVE_COUNT_MAX: Final = 1_000

BYTES_PER_APPEND: Final = 16 * KIB
"""What costs a sequencer about as much as one more append: copying and sending this many bytes."""


class LogLoad(NamedTuple):
    """What one log asks of the sequencer that owns it."""

    log_id: str
    sequencer_id: str
    appends_per_s: float
    bytes_per_s: float

    @property
    def cost(self) -> float:
        """In appends per second."""
        return self.appends_per_s + self.bytes_per_s / BYTES_PER_APPEND


class LogMove(NamedTuple):
    """One log to hand over."""

    log_id: str
    source: str
    target: str
    cost: float
    is_for_region: bool = False
    """So that the log is where its writers are, whatever the loads."""


def plan_moves(
    loads: Iterable[LogLoad],
    weights: Mapping[str, float],
    *,
    move_count_max: int = MOVE_COUNT_DEFAULT,
    fixed: Container[str] = (),
) -> list[LogMove]:
    """Plan at most `move_count_max` moves, the most useful first.

    Args:
        loads: of every log that has an owner; those of unknown sequencers are left where they are.
        weights: live sequencers; those of weight 0 give all that they have and get nothing.
        fixed: ids of logs that stay where they are, and count there.
    """
    held: dict[str, list[LogLoad]] = {name: [] for name in sorted(weights)}
    for load in sorted(loads):
        if load.sequencer_id in held and load.cost > 0:
            held[load.sequencer_id].append(load)
    cost = {name: sum(load.cost for load in logs) for name, logs in held.items()}
    total_weight = sum(weights.values())
    moves: list[LogMove] = []
    while total_weight > 0 and len(moves) < move_count_max:
        move = _next_move(held, cost, weights, fixed)
        if move is None:
            break
        load, target = move
        held[load.sequencer_id].remove(load)
        cost[load.sequencer_id] -= load.cost
        held[target].append(load._replace(sequencer_id=target))
        cost[target] += load.cost
        moves.append(LogMove(load.log_id, load.sequencer_id, target, load.cost))
    return moves


def pressures(cost: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """What each sequencer carries for its weight; infinite where nothing should be carried."""
    return {name: _pressure(cost[name], weights[name]) for name in cost}


def _pressure(carried: float, weight: float) -> float:
    if weight > 0:
        return carried / weight
    return float("inf") if carried > 1e-9 else 0.0


def _next_move(
    held: Mapping[str, list[LogLoad]],
    cost: Mapping[str, float],
    weights: Mapping[str, float],
    fixed: Container[str],
) -> tuple[LogLoad, str] | None:
    """The move that helps the most burdened sequencer that can be helped; None: there is none.

    A log that is too hot for any sequencer cannot be helped by moves. It does not keep the others
    from being evened out.
    """
    share = sum(cost.values()) / sum(weights.values())
    pressure = pressures(cost, weights)
    for source in sorted(held, key=lambda name: (pressure[name], name), reverse=True):
        takers = [name for name in held if name != source and weights[name] > 0]
        if not takers or pressure[source] <= HYSTERESIS * share:
            return None
        target = min(takers, key=lambda name: (pressure[name], name))
        movable = [load for load in held[source] if load.log_id not in fixed]
        load = _pick_log(movable, source, target, cost, weights)
        if load is not None:
            return load, target
    return None


def _pick_log(
    movable: Iterable[LogLoad],
    source: str,
    target: str,
    cost: Mapping[str, float],
    weights: Mapping[str, float],
) -> LogLoad | None:
    """The log whose move leaves the worse of giver and taker best; None: each leaves it worse."""
    before = _pressure(cost[source], weights[source])
    best: tuple[float, float, str] | None = None
    chosen: LogLoad | None = None
    for load in movable:
        left = _pressure(cost[source] - load.cost, weights[source]) if weights[source] > 0 else 0.0
        worse = max(left, _pressure(cost[target] + load.cost, weights[target]))
        rank = (worse, load.cost, load.log_id)
        if worse < before and (best is None or rank < best):
            best, chosen = rank, load
    return chosen
