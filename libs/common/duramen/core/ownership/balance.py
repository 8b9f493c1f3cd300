"""Which logs to move so that sequencers carry load by their weights: a plan, and nothing else.

A move costs its log a short pause, so the plan is cautious. It moves logs only while a sequencer
carries more than HYSTERESIS times its share. It makes a move only if the worse of the two
sequencers gets better, and moves at most a given number of logs. Run again on the loads that its
own moves lead to, it moves nothing.

Called by the write proxy's `cluster.sequencers`. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def plan_moves(
    loads: Iterable[LogLoad],
    weights: Mapping[str, float],
    *,
    move_count_max: int = MOVE_COUNT_DEFAULT,
) -> list[LogMove]:
    """Plan at most `move_count_max` moves, the most useful first.

    Args:
        loads: of every log that has an owner; those of unknown sequencers are left where they are.
        weights: live sequencers; those of weight 0 give all that they have and get nothing.
    """
    held: dict[str, list[LogLoad]] = {name: [] for name in sorted(weights)}
    for load in sorted(loads):
        if load.sequencer_id in held and load.cost > 0:
            held[load.sequencer_id].append(load)
    cost = {name: sum(load.cost for load in logs) for name, logs in held.items()}
    total_weight = sum(weights.values())
    moves: list[LogMove] = []
    while total_weight > 0 and len(moves) < move_count_max:
        move = _next_move(held, cost, weights, sum(cost.values()) / total_weight)
        if move is None:
            break
        load, target = move
        held[load.sequencer_id].remove(load)
        cost[load.sequencer_id] -= load.cost
        held[target].append(load._replace(sequencer_id=target))
        cost[target] += load.cost
        moves.append(LogMove(load.log_id, load.sequencer_id, target, load.cost))
    return moves


def _next_move(
    held: Mapping[str, list[LogLoad]],
    cost: Mapping[str, float],
    weights: Mapping[str, float],
    share: float,
) -> tuple[LogLoad, str] | None:
    """The move that leaves the worse of giver and taker best; None where none is worth it.

    Args:
        share: cost per weight if all was even.
    """

    def pressure(name: str, extra: float = 0.0) -> float:
        weight = weights[name]
        carried = cost[name] + extra
        return carried / weight if weight > 0 else (float("inf") if carried > 1e-9 else 0.0)

    source = max(held, key=lambda name: (pressure(name), name))
    takers = [name for name in held if name != source and weights[name] > 0]
    if not takers or pressure(source) <= HYSTERESIS * share:
        return None
    target = min(takers, key=lambda name: (pressure(name), name))
    best: tuple[float, float, str] | None = None
    chosen: LogLoad | None = None
    for load in held[source]:
        left = pressure(source, -load.cost) if weights[source] > 0 else 0.0
        worse = max(left, pressure(target, load.cost))
        rank = (worse, load.cost, load.log_id)
        if worse < pressure(source) and (best is None or rank < best):
            best, chosen = rank, load
    return None if chosen is None else (chosen, target)
