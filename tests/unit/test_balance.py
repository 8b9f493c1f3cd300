"""Plans of moves: they even the load out, are shy, and come to an end.

Source: core.ownership.balance, docs/protocol/ownership.md.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duramen.core.ownership.balance import BYTES_PER_APPEND, LogLoad, plan_moves


def load(number: int, owner: str, appends_per_s: float, bytes_per_s: float = 0.0) -> LogLoad:
    return LogLoad(str(number), owner, appends_per_s, bytes_per_s)


def carried(loads: list[LogLoad], weights: dict[str, float]) -> dict[str, float]:
    return {w: sum(each.cost for each in loads if each.sequencer_id == w) for w in weights}


def apply(loads: list[LogLoad], weights: dict[str, float], count: int = 1000) -> list[LogLoad]:
    targets = {m.log_id: m.target for m in plan_moves(loads, weights, move_count_max=count)}
    return [e._replace(sequencer_id=targets.get(e.log_id, e.sequencer_id)) for e in loads]


def test_one_that_carries_all_gives_half() -> None:
    loads = [load(i, "a", 10) for i in range(10)]
    after = carried(apply(loads, {"a": 1.0, "b": 1.0}), {"a": 1.0, "b": 1.0})
    assert 40 <= after["b"] <= 50 and after["a"] + after["b"] == 100


def test_weights_decide_and_weight_zero_gives_everything() -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 0.0}
    loads = [load(i, "ac"[i % 2], 1) for i in range(80)]
    after = carried(apply(loads, weights), weights)
    assert after["c"] == 0
    assert 15 <= after["a"] <= 25


def test_what_is_nearly_even_stays() -> None:
    loads = [load(i, "a", 1) for i in range(11)] + [load(20 + i, "b", 1) for i in range(9)]
    assert plan_moves(loads, {"a": 1.0, "b": 1.0}) == []


def test_one_hot_log_is_not_pushed_to_and_fro() -> None:
    assert plan_moves([load(1, "a", 1000)], {"a": 1.0, "b": 1.0}) == []
    loads = [load(1, "a", 1000), load(2, "a", 10)]
    assert [m.log_id for m in plan_moves(loads, {"a": 1.0, "b": 1.0})] == ["2"]


def test_bytes_count_as_appends() -> None:
    loads = [load(1, "a", 0, 100.0 * BYTES_PER_APPEND), load(2, "a", 100)]
    [move] = plan_moves(loads, {"a": 1.0, "b": 1.0})
    assert move.cost == 100


def test_a_round_is_bounded_and_idle_logs_stay() -> None:
    loads = [load(i, "a", 1) for i in range(50)] + [load(90, "a", 0)]
    assert len(plan_moves(loads, {"a": 1.0, "b": 1.0}, move_count_max=3)) == 3
    assert not any(m.log_id == "90" for m in plan_moves(loads, {"a": 0.0, "b": 1.0}))
    assert plan_moves(loads, {"a": 1.0}) == [] == plan_moves(loads, {})
    assert plan_moves(loads, {"a": 0.0}) == []
    assert plan_moves([load(1, "unknown", 9)], {"a": 1.0}) == []


loads_of_all = st.lists(
    st.tuples(st.sampled_from("abcd"), st.floats(0, 1e4), st.floats(0, 1e9)), max_size=30
)
weights_of_all = st.dictionaries(
    st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0, 4.0]), max_size=3
)


@given(loads_of_all, weights_of_all)
def test_a_plan_never_makes_it_worse_and_a_second_one_is_empty(
    rows: list[tuple[str, float, float]], weights: dict[str, float]
) -> None:
    loads = [load(i, *row) for i, row in enumerate(rows)]
    moves = plan_moves(loads, weights, move_count_max=1000)
    assert len({(m.log_id, m.source) for m in moves}) == len(moves)
    assert all(weights[m.target] > 0 and m.source != m.target for m in moves)
    after = apply(loads, weights)
    assert plan_moves(after, weights, move_count_max=1000) == []

    def worst(logs: list[LogLoad]) -> float:
        return max(
            (carried(logs, weights)[w] / weights[w] for w in weights if weights[w]), default=0
        )

    if not any(weights[w] == 0 for w in weights):
        assert worst(after) <= worst(loads) * (1 + 1e-9)
