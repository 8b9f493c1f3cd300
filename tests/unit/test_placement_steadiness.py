"""Bookies that come and go: who counts as steady, and that nothing is refused because of it.

Source: docs/protocol/placement.md "Steadiness".
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from duramen.config import parse_log_config
from duramen.core.placement import (
    Candidate,
    PlacementRule,
    choose_ensemble,
    choose_replacements,
)
from duramen.core.placement.roster import choose_candidates, read_rows
from duramen.core.placement.steadiness import LEFT_MAX, Steadiness
from duramen.core.quorum import Quorum
from duramen.core.sequencer.proposals import choose_segment
from duramen.ids import BookieId
from duramen.units import SECOND
from tests.unit.candidates import candidate, living, own
from tests.unit.nodes import make_log

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")
AFTER_US = 30 * SECOND


def test_who_was_there_first_or_joins_is_steady_and_who_came_back_is_not() -> None:
    seen = Steadiness(AFTER_US)
    seen.observe({A: 1, B: 2}, 0)
    seen.observe({A: 1, B: 2, C: 3}, 1 * SECOND)
    assert seen.list_unsteady(1 * SECOND) == {}, "nothing is held against a new one"
    seen.observe({A: 1, C: 3}, 2 * SECOND)
    assert seen.list_unsteady(2 * SECOND) == {}, "who is away is nobody's candidate"
    seen.observe({A: 1, B: 4, C: 3}, 100 * SECOND)
    assert seen.list_unsteady(100 * SECOND) == {B: AFTER_US}
    seen.observe({A: 1, B: 4, C: 3}, 110 * SECOND)
    assert seen.list_unsteady(110 * SECOND) == {B: 20 * SECOND}, "a look changes nothing"
    assert seen.list_unsteady(130 * SECOND - 1) == {B: 1}
    assert seen.list_unsteady(130 * SECOND) == {}


def test_a_bookie_that_left_unseen_between_two_looks_came_back() -> None:
    seen = Steadiness(AFTER_US)
    seen.observe({A: 1, B: 2}, 0)
    seen.observe({A: 1, B: 7}, 5)
    assert seen.list_unsteady(5) == {B: AFTER_US}
    assert Steadiness(0).list_unsteady(5) == {}


def test_a_bookie_that_flaps_never_becomes_steady() -> None:
    seen = Steadiness(AFTER_US)
    seen.observe({A: 1, B: 2}, 0)
    for turn in range(1, 50):
        at_us = turn * 29 * SECOND
        seen.observe({A: 1}, at_us - 1)
        seen.observe({A: 1, B: 2 + turn}, at_us)
        assert B in seen.list_unsteady(at_us) and B in seen.list_unsteady(at_us + 28 * SECOND)


def test_memory_of_those_that_left_is_bounded() -> None:
    seen = Steadiness(AFTER_US)
    names = [BookieId(f"b{i}") for i in range(LEFT_MAX + 10)]
    for made, name in enumerate(names):
        seen.observe({name: made}, 0)
    seen.observe({}, 0)
    seen.observe({names[0]: LEFT_MAX * 2, names[-1]: LEFT_MAX * 2}, 0)
    assert list(seen.list_unsteady(0)) == [names[-1]], "the oldest are forgotten"


def test_a_row_that_is_unsteady_takes_new_data_as_the_last_choice() -> None:
    available = {**living("b1"), **living("b2", weight=5.0), **living("b3")}
    registered = {**own("b1"), **own("b2"), **own("b3")}
    rows = read_rows(available, registered, (), {BookieId("b2"): 7})
    assert [(row.takes_new_data, row.steady_in_us) for row in rows] == [
        (True, 0), (True, 7), (True, 0),
    ]  # fmt: skip
    assert [one.is_steady for one in choose_candidates(rows)] == [True, False, True]


def mark(cluster: list[Candidate], unsteady: list[bool]) -> list[Candidate]:
    pairs = zip(cluster, unsteady, strict=False)
    return [replace(one, is_steady=not is_unsteady) for one, is_unsteady in pairs]


places = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z", ""]), st.sampled_from("ab"), st.booleans()),
    min_size=1,
    max_size=7,
)
rules = st.builds(PlacementRule, st.integers(1, 2), st.integers(1, 2), st.booleans())
quorums = st.sampled_from([Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1), Quorum(4, 3, 2)])


@given(places, rules, quorums, st.integers(0, 99))
def test_no_ensemble_is_refused_because_bookies_are_unsteady(
    spots: list[tuple[str, str, bool]], rule: PlacementRule, quorum: Quorum, seed: int
) -> None:
    steady = [candidate(f"b{i}", region, rack) for i, (region, rack, _) in enumerate(spots)]
    mixed = mark(steady, [is_unsteady for *_, is_unsteady in spots])
    plain = choose_ensemble(steady, quorum, rule, random.Random(seed))
    chosen = choose_ensemble(mixed, quorum, rule, random.Random(seed))
    assert (chosen is None) == (plain is None)
    calm = [one for one in mixed if one.is_steady]
    strict = replace(rule, is_strict=True)
    if choose_ensemble(calm, quorum, strict, random.Random(seed)) is not None:
        assert chosen is not None and set(chosen) <= {one.member for one in calm}


@given(places, rules, st.sets(st.integers(0, 2), min_size=1), st.integers(0, 99))
def test_as_many_members_are_replaced_as_if_all_were_steady(
    spots: list[tuple[str, str, bool]], rule: PlacementRule, failed: set[int], seed: int
) -> None:
    old = [candidate(f"m{i}", region, f"r{i}") for i, region in enumerate("xyz")]
    ensemble = tuple(one.member for one in old)
    out = [ensemble[index] for index in sorted(failed)]
    where = {one.member: one for one in old}
    steady = [candidate(f"b{i}", region, rack) for i, (region, rack, _) in enumerate(spots)]
    mixed = mark(steady, [is_unsteady for *_, is_unsteady in spots])

    def count(pool: list[Candidate]) -> int:
        rng = random.Random(seed)
        changed = choose_replacements(ensemble, out, pool, Quorum(3, 3, 2), rule, where, rng)
        return 0 if changed is None else sum(one not in ensemble for one in changed)

    assert count(mixed) == count(steady)


def test_a_flapping_bookie_is_left_out_while_others_suffice() -> None:
    cluster = [candidate(f"b{i}", "x", f"r{i}") for i in range(4)]
    mixed = mark(cluster, [True, False, False, False])
    log = make_log()
    for seed in range(30):
        choice = choose_segment(log, mixed, random.Random(seed))
        assert choice is not None and cluster[0].member not in choice.ensemble
        assert choice.fits(log, mixed) and choice.fits(log, cluster)
    few = choose_segment(log, mixed[:3], random.Random(1))
    assert few is not None and cluster[0].member in few.ensemble, "it is needed"
    assert not few.fits(log, mixed), "another one came"
    assert few.fits(log, cluster[:3])


def test_a_segment_chosen_ahead_is_chosen_anew_when_a_member_came_back_late() -> None:
    cluster = [candidate(f"b{i}", "x", f"r{i}") for i in range(5)]
    log = make_log()
    ahead = choose_segment(log, cluster, random.Random(1))
    assert ahead is not None and ahead.fits(log, cluster)
    flapped = [replace(one, is_steady=one.member != ahead.ensemble[0]) for one in cluster]
    assert not ahead.fits(log, flapped)
    lax = replace(log, config=parse_log_config({"replication": {"placement": "prefer"}}))
    pair = mark(cluster[:2], [True, True])
    narrow = choose_segment(lax, pair, random.Random(1))
    assert narrow is not None and len(narrow.ensemble) == 2, "two that flap are better than none"
