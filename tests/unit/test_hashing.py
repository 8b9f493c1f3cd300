"""Rendezvous hashing: the same order everywhere, little movement, shares that follow weights.

The order is part of the interface between processes of different versions, so one is fixed here.
Source: docs/protocol/ownership.md "Whose is a log".
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from duramen.core.hashing import rank_nodes, weights_of

nodes = st.dictionaries(st.text(max_size=8), st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=8)


def test_the_order_is_the_same_in_every_version() -> None:
    weights = {f"sequencer-{i}": 1.0 for i in range(4)}
    assert rank_nodes("ns/orders", weights) == GOLDEN_ORDER


GOLDEN_ORDER = ["sequencer-2", "sequencer-0", "sequencer-3", "sequencer-1"]


@given(st.text(max_size=20), nodes)
def test_every_node_with_a_weight_is_ranked_once(key: str, weights: dict[str, float]) -> None:
    ranked = rank_nodes(key, weights)
    assert sorted(ranked) == sorted(node for node in weights if weights[node] > 0)
    backwards = dict(reversed(weights.items()))
    assert rank_nodes(key, backwards) == ranked, "the order of the mapping does not matter"


@given(st.text(max_size=20), nodes)
def test_a_node_that_goes_moves_only_what_it_held(key: str, weights: dict[str, float]) -> None:
    ranked = rank_nodes(key, weights)
    for gone in ranked:
        left = {node: weight for node, weight in weights.items() if node != gone}
        assert rank_nodes(key, left) == [node for node in ranked if node != gone]


def test_shares_follow_weights() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    first = Counter(rank_nodes(f"ns/log-{i}", weights)[0] for i in range(4_000))
    assert 850 < first["a"] < 1_150 and 850 < first["b"] < 1_150 and 1_800 < first["c"] < 2_200


def test_weights_are_read_from_a_roster_and_nonsense_counts_as_one() -> None:
    roster: dict[str, dict[str, object]] = {
        "old": {"data_url": "u"}, "half": {"weight": 0.5}, "out": {"weight": 0},
        "text": {"weight": "9"}, "less": {"weight": -1}, "true": {"weight": True},
    }  # fmt: skip
    assert weights_of(roster) == {
        "old": 1.0, "half": 0.5, "out": 0.0, "text": 1.0, "less": 1.0, "true": 1.0,
    }  # fmt: skip
