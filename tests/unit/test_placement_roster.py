"""Who may take new data and with which share, from nodes as others wrote them.

Source: docs/protocol/placement.md "Choosing".
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from duramen.core.placement import PlacementRule, choose_ensemble, choose_replacements
from duramen.core.placement.roster import choose_candidates, read_rows
from duramen.core.quorum import Quorum
from tests.unit.candidates import candidate, living, own


@pytest.mark.parametrize(
    ("available", "registered", "closed", "is_taker"),
    [
        (living(), own(), (), True),
        (living(), {}, (), True),
        (living(state="ro"), own(), (), False),
        (living(draining=True), own(), (), False),
        (living(), own(duty="draining"), (), False),
        (living(duty="leaving"), own(), (), False),
        (living(), own(duty="drained"), (), False),
        (living(), own(duty="of a newer version"), (), False),
        (living(), own(weight=0), (), False),
        (living(), own(), ("x",), False),
        (living(), own(), ("y",), True),
        ({}, own(), (), False),
    ],
)
def test_new_data_go_only_where_nothing_speaks_against_it(
    available: Any, registered: Any, closed: tuple[str, ...], is_taker: bool
) -> None:
    rows = read_rows(available, registered, closed)
    assert [row.takes_new_data for row in rows] == [is_taker]
    assert bool(choose_candidates(rows)) == is_taker


def test_a_bookie_is_where_its_own_node_says_and_a_new_life_where_it_says_itself() -> None:
    (row,) = read_rows(living(), own(region="y", rack="c"), ())
    assert (row.region, row.rack) == ("y", "c"), "changed live, before the bookie followed"
    (row,) = read_rows(living(incarnation="bb"), own(region="y"), ())
    assert (row.region, row.incarnation) == ("x", "bb")
    (row,) = read_rows({}, own(region="y"), ())
    assert (row.region, row.state) == ("y", "absent"), "a dead one is still somewhere"


@pytest.mark.parametrize("fields", [{}, {"region": 7, "rack": None}, {"free_bytes": "much"}])
def test_what_others_wrote_badly_is_an_unknown_place_and_no_crash(fields: dict[str, Any]) -> None:
    node = {"incarnation": "aa", "state": "rw", **fields}
    (row,) = read_rows({"b1": node}, {"b1": {"v": 1}}, ())
    assert (row.region, row.rack, row.free_bytes) == ("", "", None)
    assert not row.candidate.is_located
    assert not read_rows({"b1": {"state": "rw"}}, {}, ()), "nobody can be asked without incarnation"


def test_a_bookie_in_doubt_gets_little_and_is_not_left_out() -> None:
    available = {
        **living("b1", free_bytes=800), **living("b2", free_bytes=800, doubtful=True),
        **living("b3", free_bytes=400),
    }  # fmt: skip
    rows = read_rows(available, {**own("b1"), **own("b2", weight=2.0), **own("b3")}, ())
    assert [row.is_doubtful for row in rows] == [False, True, False]
    candidates = choose_candidates(rows)
    assert [one.weight for one in candidates] == [1.0, 2 / 16, 0.5]
    rng = random.Random(1)
    for _ in range(20):
        chosen = choose_ensemble(candidates, Quorum(3, 3, 2), PlacementRule(), rng)
        assert chosen is not None and len(chosen) == 3, "three bookies go on with it"


def test_shares_follow_weight_and_free_space_down_to_a_sixteenth() -> None:
    available = {
        **living("b1", free_bytes=800), **living("b2", free_bytes=400),
        **living("b3", free_bytes=1), **living("b4", free_bytes=None),
    }  # fmt: skip
    registered = {**own("b1"), **own("b2", weight=3.0), **own("b3"), **own("b4")}
    shares = [one.weight for one in choose_candidates(read_rows(available, registered, ()))]
    assert shares == [1.0, 1.5, 1 / 16, 1.0]


def test_of_equal_places_the_heavy_bookie_is_drawn_by_its_share() -> None:
    light, heavy = candidate("b1"), candidate("b2")
    heavy = type(heavy)(heavy.member, heavy.region, heavy.rack, weight=3.0)
    rng = random.Random(1)
    drawn = Counter(
        choose_ensemble([light, heavy], Quorum(1, 1, 1), PlacementRule(), rng) for _ in range(2_000)
    )
    assert 1_400 < drawn[(heavy.member,)] < 1_600, drawn


def test_an_even_spread_comes_before_the_weight() -> None:
    cluster = [candidate(f"b{i}", "x" if i < 5 else "y", f"k{i}") for i in range(6)]
    cluster[5] = type(cluster[5])(cluster[5].member, "y", "k5", weight=0.001)
    chosen = choose_ensemble(cluster, Quorum(2, 2, 1), PlacementRule(), random.Random(1))
    assert chosen is not None and cluster[5].member in chosen


def test_replacements_prefer_the_place_with_the_fewest() -> None:
    cluster = [candidate(f"b{i}", region) for i, region in enumerate("xyzxz")]
    where = {one.member: one for one in cluster}
    ensemble = tuple(where)[:3]
    changed = choose_replacements(
        ensemble, ensemble[2:], cluster, Quorum(3, 3, 2), PlacementRule(), where, random.Random(1)
    )
    assert changed == (*ensemble[:2], cluster[4].member), "z has none left, x has one"
