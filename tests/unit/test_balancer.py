"""When the balancer moves logs by itself: seldom, never to and fro, and it comes to an end.

The world of the properties is small and unkind: reports are lost, rates of a log that has just
moved are told too low, moves fail or come late, sequencers come and go, and two balancers work at
once. Source: core.ownership.balancer, docs/protocol/ownership.md "Balancing".
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.ownership.balance import LogLoad, LogMove, plan_moves
from duramen.core.ownership.balancer import (
    BEGIN_RATIO,
    EXCESS_MIN,
    HOLD_OFF_US,
    MOVES_PER_MINUTE,
    MOVES_PER_SAMPLE,
    SAMPLE_COUNT,
    SAMPLE_INTERVAL_US,
    Balancer,
    Sample,
    is_held_off,
)
from duramen.units import MINUTE, SECOND

LATE_MAX_US = 20 * SECOND
"""Longer than a balancer waits for a hand-over."""


def sample_of(costs: dict[str, list[float]], *, fresh: tuple[str, ...] = ()) -> Sample:
    """Sequencer → costs of its logs, which are named after it."""
    loads = tuple(
        LogLoad(f"{name}{index}", name, cost, 0.0)
        for name, row in costs.items()
        for index, cost in enumerate(row)
    )
    return Sample(loads, dict.fromkeys(costs, 1.0), frozenset(fresh))


def play(balancer: Balancer, samples: list[Sample]) -> list[list[LogMove]]:
    return [
        balancer.on_sample(sample, index * SAMPLE_INTERVAL_US)
        for index, sample in enumerate(samples)
    ]


UNEVEN = sample_of({"a": [300.0] * 4, "b": [100.0]})


def test_what_lasts_is_moved_and_what_does_not_is_not() -> None:
    assert play(Balancer(), [UNEVEN] * SAMPLE_COUNT)[:-1] == [[]] * (SAMPLE_COUNT - 1)
    [*_, moves] = play(Balancer(), [UNEVEN] * SAMPLE_COUNT)
    assert {(move.source, move.target) for move in moves} == {("a", "b")}
    calm = sample_of({"a": [100.0] * 4, "b": [400.0]})
    assert not any(play(Balancer(), [UNEVEN, UNEVEN, calm, UNEVEN, UNEVEN]))


def test_a_sample_that_is_missing_begins_the_row_anew() -> None:
    balancer = Balancer()
    play(balancer, [UNEVEN] * (SAMPLE_COUNT - 1))
    balancer.forget()
    assert not any(play(balancer, [UNEVEN] * (SAMPLE_COUNT - 1)))
    assert balancer.on_sample(UNEVEN, 0)


def test_who_comes_or_goes_begins_the_row_anew() -> None:
    wider = UNEVEN._replace(weights={**UNEVEN.weights, "c": 1.0})
    assert not any(play(Balancer(), [UNEVEN, UNEVEN, wider, wider]))
    heavier = UNEVEN._replace(weights={**UNEVEN.weights, "a": 2.0})
    assert not any(play(Balancer(), [UNEVEN, UNEVEN, heavier, heavier]))


@pytest.mark.parametrize(
    "costs",
    [
        {"a": [100.0] * 11, "b": [100.0] * 5},  # 1.375 times its share
        {"a": [19.0] * 10, "b": []},  # twice its share, and still nothing
        {"a": [5_000.0], "b": []},  # too hot for anybody: it stays
        {"a": [], "b": []},
    ],
)
def test_what_is_not_worth_it_stays(costs: dict[str, list[float]]) -> None:
    assert not any(play(Balancer(), [sample_of(costs)] * 5))


def test_a_log_that_has_just_come_stays_and_counts() -> None:
    fresh = tuple(f"a{index}" for index in range(4))
    assert not any(play(Balancer(), [UNEVEN._replace(fresh=frozenset(fresh))] * 5))
    moves = play(Balancer(), [UNEVEN._replace(fresh=frozenset(fresh[:3]))] * SAMPLE_COUNT)[-1]
    assert [move.log_id for move in moves] == ["a3"]
    assert is_held_off(HOLD_OFF_US - 1) and not is_held_off(HOLD_OFF_US)


def test_the_others_are_evened_out_beside_a_log_that_nobody_can_carry() -> None:
    costs = {"a": [5_000.0], "b": [1_000.0] * 6, "c": []}
    moves = play(Balancer(), [sample_of(costs)] * SAMPLE_COUNT)[-1]
    assert moves and {(move.source, move.target) for move in moves} == {("b", "c")}


def test_once_begun_it_goes_on_to_the_closer_bound() -> None:
    balancer = Balancer()
    many = sample_of({"a": [100.0] * 20, "b": []})
    assert len(play(balancer, [many] * SAMPLE_COUNT)[-1]) == MOVES_PER_SAMPLE
    closer = sample_of({"a": [100.0] * 13, "b": [100.0] * 7})  # 1.3 times its share
    assert play(balancer, [closer] * SAMPLE_COUNT)[-1]
    assert not any(play(Balancer(), [closer] * 5))


# --- Regions of writers --------------------------------------------------------------------------

REGIONS = {"a": "eu", "b": "us", "c": "us"}


def wishing(costs: dict[str, list[float]], wishes: dict[str, str], **changes: Any) -> Sample:
    sample = sample_of(costs)._replace(wishes=wishes, regions=REGIONS)
    return sample._replace(**changes)


AWAY = wishing({"a": [5.0, 5.0], "b": [9.0], "c": []}, {"a0": "us"})


def test_a_log_goes_to_the_region_of_its_writers_however_even_the_loads_are() -> None:
    assert not any(play(Balancer(), [AWAY] * (SAMPLE_COUNT - 1)))
    [*_, moves] = play(Balancer(), [AWAY] * SAMPLE_COUNT)
    assert moves == [LogMove("a0", "a", "c", 5.0, is_for_region=True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"wishes": {}},
        {"wishes": {"a0": "eu"}},  # it is there
        {"wishes": {"a0": "asia"}},  # nobody is there
        {"fresh": frozenset({"a0"})},
        {"followed": frozenset({"a0"})},  # it came for that reason, and does not leave for it
        {"weights": {"a": 1.0, "b": 0.0, "c": 0.0}},
    ],
)
def test_a_region_is_no_reason_to_move_a_log(changes: dict[str, Any]) -> None:
    assert not any(play(Balancer(), [AWAY._replace(**changes)] * 5))


def test_writers_that_wander_take_no_log_along() -> None:
    other = AWAY._replace(wishes={"a0": "eu"})
    assert not any(play(Balancer(), [AWAY, other, AWAY, AWAY, other, AWAY]))


def test_loads_move_a_log_only_among_the_sequencers_of_its_writers() -> None:
    costs = {"a": [], "b": [300.0] * 4, "c": []}
    wishes = {f"b{index}": "us" for index in range(4)}
    moves = play(Balancer(), [wishing(costs, wishes)] * SAMPLE_COUNT)[-1]
    assert moves and {(move.source, move.target) for move in moves} == {("b", "c")}
    alone = wishing(costs, wishes, regions={"a": "eu", "b": "us", "c": "eu"})
    assert not any(play(Balancer(), [alone] * 5)), "its region has no other sequencer"
    # Where nobody takes logs in that region, a wish holds nothing.
    nowhere = wishing(costs, dict.fromkeys(wishes, "asia"))
    assert play(Balancer(), [nowhere] * SAMPLE_COUNT)[-1]


def test_moves_of_a_minute_are_bounded() -> None:
    balancer = Balancer()
    many = sample_of({"a": [100.0] * 500, "b": []})
    moved: list[int] = []
    for index in range(100):
        at_us = index * SAMPLE_INTERVAL_US // 10
        moved += [at_us] * len(balancer.on_sample(many, at_us))
        balancer.validate()
        assert sum(at_us - each < MINUTE for each in moved) <= MOVES_PER_MINUTE
    assert len(moved) == 2 * MOVES_PER_MINUTE


# --- A whole cluster -----------------------------------------------------------------------------


@dataclass
class Log:
    owner: str
    rate: float
    since_us: int = -HOLD_OFF_US
    moved_us: list[int] = field(default_factory=list)


class Setup(NamedTuple):
    """What a cluster is made of, and how unkind it is."""

    seed: int
    names: str
    log_count: int
    balancer_count: int
    loss: float
    is_noisy: bool


class Cluster:
    """Sequencers with logs, and balancers that ask them."""

    def __init__(self, setup: Setup) -> None:
        rng = self.rng = random.Random(setup.seed)
        names = setup.names
        self.weights = dict.fromkeys(names, 1.0)
        self.is_noisy = setup.is_noisy
        # One balancer keeps the hold-off by itself; two need owners that do.
        self.are_owners_shy = setup.balancer_count > 1
        # Nearly all begin at one sequencer; a few are far hotter than the others.
        self.logs = {
            str(index): Log(
                names[0] if rng.random() < 0.8 else rng.choice(names),
                rng.expovariate(1 / 100) * rng.choice((1, 1, 1, 20)),
            )
            for index in range(setup.log_count)
        }
        self.late: list[tuple[int, LogMove]] = []

    def report(self, now_us: int) -> Sample:
        """What the sequencers say: of a log that has just come, they have not seen all."""
        loads = []
        for log_id, log in self.logs.items():
            seen = min((now_us - log.since_us) / (10 * SECOND), 1.0)
            noise = self.rng.uniform(0.8, 1.2) if self.is_noisy else 1.0
            loads.append(LogLoad(log_id, log.owner, log.rate * seen * noise, 0.0))
        fresh = (n for n, log in self.logs.items() if is_held_off(now_us - log.since_us))
        return Sample(tuple(loads), dict(self.weights), frozenset(fresh))

    def hand_over(self, move: LogMove, now_us: int) -> None:
        """As an owner does it: not without the log, and not of one that has just come."""
        log = self.logs[move.log_id]
        is_fresh = self.are_owners_shy and is_held_off(now_us - log.since_us)
        if log.owner != move.source or is_fresh:
            return
        log.owner, log.since_us = move.target, now_us
        log.moved_us.append(now_us)

    def is_uneven(self) -> bool:
        """Whether a balancer would begin, were it not for the hold-off."""
        cost = {
            name: sum(log.rate for log in self.logs.values() if log.owner == name)
            for name in self.weights
        }
        share = sum(cost.values()) / len(cost)
        loads = [LogLoad(n, log.owner, log.rate, 0.0) for n, log in self.logs.items()]
        givers = {
            name
            for name, each in cost.items()
            if each >= BEGIN_RATIO * share and each - share >= EXCESS_MIN
        }
        fixed = {name for name, log in self.logs.items() if log.owner not in givers}
        return bool(plan_moves(loads, self.weights, fixed=fixed))

    def moves(self) -> list[int]:
        return sorted(at_us for log in self.logs.values() for at_us in log.moved_us)


def run_cluster(cluster: Cluster, balancer_count: int, *, minutes: int, loss: float) -> None:
    balancers = [Balancer() for _ in range(balancer_count)]
    rng = cluster.rng
    for step in range(minutes * 6):
        now_us = step * SAMPLE_INTERVAL_US
        due = [each for each in cluster.late if each[0] <= now_us]
        cluster.late = [each for each in cluster.late if each[0] > now_us]
        for _, move in due:
            cluster.hand_over(move, now_us)
        for balancer in balancers:
            if rng.random() < loss:
                balancer.forget()
                continue
            for move in balancer.on_sample(cluster.report(now_us), now_us):
                fate = rng.random()
                if fate < 0.7:
                    cluster.hand_over(move, now_us)
                elif fate < 0.9:
                    cluster.late.append((now_us + rng.randrange(LATE_MAX_US), move))
            balancer.validate()


setups = st.builds(
    Setup,
    st.integers(0, 2**32),
    st.sampled_from(["ab", "abc", "abcdef"]),
    st.integers(0, 60),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(setups)
def test_moves_come_to_an_end_and_none_is_taken_back_in_the_hold_off(setup: Setup) -> None:
    cluster = Cluster(setup)
    run_cluster(cluster, setup.balancer_count, minutes=60, loss=setup.loss)
    moves = cluster.moves()
    for log in cluster.logs.values():
        pauses = [after - before for before, after in pairwise(log.moved_us)]
        assert all(pause >= HOLD_OFF_US for pause in pauses), log
    most = MOVES_PER_MINUTE * setup.balancer_count
    for first, last in zip(moves, moves[most:], strict=False):
        assert last - first >= MINUTE - LATE_MAX_US, "late moves may fall into the next minute"
    if not setup.is_noisy:
        assert not cluster.is_uneven()
        assert all(at_us < 45 * MINUTE for at_us in moves), moves


def test_the_unkind_cluster_has_moves_to_make() -> None:
    cluster = Cluster(Setup(1, "abc", 40, 1, 0.0, is_noisy=False))
    assert cluster.is_uneven()
    run_cluster(cluster, 1, minutes=60, loss=0.0)
    assert len(cluster.moves()) >= MOVES_PER_SAMPLE
