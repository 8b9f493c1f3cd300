"""Placement against brute force: R20 speaks about ack sets, so all of them are enumerated.

The seed example (three regions of twenty bookies) is a test of its own. Choosing is checked for
what it promises: distinct bookies, a rule that holds, refusal under `strict`.
Source: docs/protocol/placement.md "The rule (R20)", R20.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import Replication
from duramen.core.placement import (
    Candidate,
    PlacementRule,
    choose_ensemble,
    choose_replacements,
    explain_refusal,
    find_violations,
    satisfies,
)
from duramen.core.placement.advice import advise
from duramen.core.quorum import Quorum, write_sets
from tests.unit.candidates import candidate


@st.composite
def clusters(draw: st.DrawFn) -> list[Candidate]:
    """Two to seven bookies in up to three regions of up to three racks, names of racks reused."""
    places = st.tuples(st.sampled_from("xyz"), st.sampled_from("123"))
    drawn = draw(st.lists(places, min_size=2, max_size=7))
    return [candidate(f"b{i}", region, rack) for i, (region, rack) in enumerate(drawn)]


@st.composite
def quorums(draw: st.DrawFn, ensemble: int) -> Quorum:
    write = draw(st.integers(1, ensemble))
    return Quorum(ensemble, write, draw(st.integers(1, write)))


rules = st.builds(PlacementRule, st.integers(1, 3), st.integers(1, 3), is_strict=st.just(True))


def holds_by_force(ensemble: list[Candidate], quorum: Quorum, rule: PlacementRule) -> bool:
    """Every ack set of every write set, one by one."""
    where = {one.member: one for one in ensemble}
    for members in write_sets(tuple(where), quorum):
        for ack_set in itertools.combinations(members, quorum.ack_quorum):
            regions = {where[member].region for member in ack_set}
            racks = {(where[member].region, where[member].rack) for member in ack_set}
            if len(regions) < rule.min_regions or len(racks) < rule.min_racks:
                return False
    return True


@given(clusters(), rules, st.data())
def test_r20_satisfies_is_what_brute_force_says(
    cluster: list[Candidate], rule: PlacementRule, data: st.DataObject
) -> None:
    quorum = data.draw(quorums(len(cluster)))
    where = {one.member: one for one in cluster}
    assert satisfies(tuple(where), quorum, rule, where) == holds_by_force(cluster, quorum, rule)


@given(clusters(), rules, st.booleans(), st.integers(0, 99), st.data())
def test_an_ensemble_is_distinct_and_satisfies_or_is_refused(
    cluster: list[Candidate], rule: PlacementRule, is_strict: bool, seed: int, data: st.DataObject
) -> None:
    rule = PlacementRule(rule.min_racks, rule.min_regions, is_strict=is_strict)
    quorum = data.draw(quorums(data.draw(st.integers(1, len(cluster)))))
    chosen = choose_ensemble(cluster, quorum, rule, random.Random(seed))
    if chosen is None:
        assert is_strict
        return
    where = {one.member: one for one in cluster}
    assert len({one.bookie for one in chosen}) == len(chosen) == quorum.ensemble_size
    if is_strict:
        assert holds_by_force([where[one] for one in chosen], quorum, rule)


@given(clusters(), rules, st.integers(0, 99), st.data())
def test_replacements_keep_the_others_in_place_and_the_rule(
    cluster: list[Candidate], rule: PlacementRule, seed: int, data: st.DataObject
) -> None:
    where = {one.member: one for one in cluster}
    size = data.draw(st.integers(1, len(cluster)))
    quorum = data.draw(quorums(size))
    ensemble = tuple(where)[:size]
    failed = data.draw(st.lists(st.sampled_from(ensemble), unique=True))
    changed = choose_replacements(
        ensemble, failed, cluster, quorum, rule, where, random.Random(seed)
    )
    if changed is None:
        return
    assert changed != ensemble and len({one.bookie for one in changed}) == size
    for old, new in zip(ensemble, changed, strict=True):
        assert new == old or (old in failed and new not in ensemble)
    if len(failed) == 1:
        assert holds_by_force([where[one] for one in changed], quorum, rule)


def test_r20_the_seed_example() -> None:
    """One region of three down, E = Qw = 15 over the 40 that are left, min_regions 2."""
    left = [candidate(f"b{i}", f"region-{i % 2}", f"rack-{i}") for i in range(40)]
    rule = PlacementRule(min_racks=2, min_regions=2)
    assert choose_ensemble(left, Quorum(15, 15, 8), rule, random.Random(1)) is None
    chosen = choose_ensemble(left, Quorum(15, 15, 9), rule, random.Random(1))
    assert chosen is not None
    regions = [one.region for one in left if one.member in chosen]
    assert sorted(map(regions.count, ("region-0", "region-1"))) == [7, 8]


def test_r20_three_copies_over_three_regions() -> None:
    rule = PlacementRule(min_regions=2)
    three = [candidate(f"b{i}", f"region-{i % 3}") for i in range(6)]
    assert choose_ensemble(three, Quorum(3, 3, 2), rule, random.Random(1)) is not None
    two = [one for one in three if one.region != "region-2"]
    assert choose_ensemble(two, Quorum(3, 3, 2), rule, random.Random(1)) is None


def test_r20_it_is_the_write_set_that_counts_not_the_ensemble() -> None:
    rule = PlacementRule(min_regions=2)
    bad = [candidate("b0", "x"), candidate("b1", "x"), candidate("b2", "y"), candidate("b3", "y")]
    where = {one.member: one for one in bad}
    quorum = Quorum(4, 2, 2)
    assert not satisfies(tuple(where), quorum, rule, where), "b0 and b1 are one write set"
    striped = tuple(bad[i].member for i in (0, 2, 1, 3))
    assert satisfies(striped, quorum, rule, where)
    chosen = choose_ensemble(bad, quorum, rule, random.Random(1))
    assert chosen is not None and satisfies(chosen, quorum, rule, where)


def test_members_of_unknown_location_do_not_satisfy_a_strict_rule() -> None:
    cluster = [candidate(f"b{i}", rack=f"rack-{i}") for i in range(3)]
    members = tuple(one.member for one in cluster)
    where = {cluster[0].member: cluster[0]}
    assert not satisfies(members, Quorum(3, 3, 2), PlacementRule(min_racks=2), where)


def test_prefer_degrades_and_too_few_bookies_are_refused() -> None:
    cluster = [candidate(f"b{i}") for i in range(3)]
    rule = PlacementRule(min_racks=2, is_strict=False)
    assert choose_ensemble(cluster, Quorum(3, 3, 2), rule, random.Random(1)) is not None
    assert choose_ensemble(cluster[:2], Quorum(3, 3, 2), rule, random.Random(1)) is None


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_replaced_disk_may_follow_its_own_old_incarnation(is_listed: bool) -> None:
    """Regression: with as many bookies as members a lost disk could never be replaced (R1)."""
    cluster = [candidate(f"b{i}") for i in range(3)]
    where = {one.member: one for one in cluster}
    new = candidate("b2", life=2)
    ensemble = tuple(where)
    listed = [*cluster[:2], new] if is_listed else cluster[:2]
    changed = choose_replacements(
        ensemble, ensemble[2:], listed, Quorum(3, 3, 2), PlacementRule(), where, random.Random(1)
    )
    assert changed == ((*ensemble[:2], new.member) if is_listed else None)


def test_another_life_of_a_member_that_stays_is_no_replacement() -> None:
    cluster = [candidate(f"b{i}") for i in range(3)]
    where = {one.member: one for one in cluster}
    ensemble = tuple(where)
    listed = [candidate("b0", life=2)]
    assert choose_replacements(
        ensemble, ensemble[2:], listed, Quorum(3, 3, 2), PlacementRule(), where, random.Random(1)
    ) is None  # fmt: skip


def test_a_new_life_takes_no_other_place_while_the_former_one_stays() -> None:
    """Seeds 2671, 2788: three failed, two of them have new disks, and one bookie came in twice."""
    stay, failed = ["b3", "b4"], ["b2", "b0", "b1"]
    cluster = [candidate(name) for name in (*stay, *failed)]
    where = {one.member: one for one in cluster}
    ensemble = tuple(where)
    listed = [*cluster[:2], candidate("b0", life=2), candidate("b1", life=2)]
    for seed in range(50):
        changed = choose_replacements(
            ensemble, ensemble[2:], listed, Quorum(5, 5, 3), PlacementRule(), where,
            random.Random(seed),
        )  # fmt: skip
        assert changed is not None
        assert len({member.bookie for member in changed}) == 5, changed
        assert sum(member in ensemble for member in changed) == 3, "both new ones are taken"


# --- Who does not count ---------------------------------------------------------------------------


def test_r20_an_unknown_place_may_be_the_worst_one() -> None:
    """Two known racks and an unknown one: the third member may lie in either."""
    cluster = [candidate(f"b{i}", rack=f"rack-{i}") for i in range(3)]
    where = {one.member: one for one in cluster}
    members = tuple(where)
    rule = PlacementRule(min_racks=2)
    assert satisfies(members, Quorum(3, 3, 2), rule, where)
    known = {member: where[member] for member in members[:2]}
    assert not satisfies(members, Quorum(3, 3, 2), rule, known)
    assert satisfies(members, Quorum(3, 3, 3), rule, known), "any three lie in two racks at least"


def test_r20_a_bookie_of_unknown_place_is_not_chosen_when_places_matter() -> None:
    cluster = [candidate("b0", rack="a"), candidate("b1", rack="b"), candidate("b2", rack="")]
    rng = random.Random(1)
    rule = PlacementRule(min_racks=2)
    assert choose_ensemble(cluster, Quorum(3, 3, 2), rule, rng) is None
    refusal = explain_refusal(cluster, Quorum(3, 3, 2), rule)
    assert refusal is not None and refusal.numbers["unlocated"] == 1
    assert refusal.detail.endswith("2 are available (1 of unknown location do not count)")
    assert choose_ensemble(cluster, Quorum(3, 3, 2), PlacementRule(), rng) is not None
    lax = PlacementRule(min_racks=2, is_strict=False)
    assert choose_ensemble(cluster, Quorum(3, 3, 2), lax, rng) is not None
    where = {one.member: one for one in cluster}
    ensemble = (cluster[0].member, candidate("b9", rack="c").member)
    args = (ensemble, ensemble[1:], [cluster[2]], Quorum(2, 2, 2))
    assert choose_replacements(*args, rule, where, rng) is None
    assert choose_replacements(*args, lax, where, rng) is not None


def test_r20_suspended_members_do_not_count_as_copies() -> None:
    """Mutant: a suspended member counts for a strict rule."""
    cluster = [candidate(f"b{i}", rack=f"rack-{i}") for i in range(3)]
    where = {one.member: one for one in cluster}
    members, quorum, rule = tuple(where), Quorum(3, 3, 2), PlacementRule(min_racks=2)
    assert satisfies(members, quorum, rule, where, discounted=members[:1])
    assert not satisfies(members, quorum, rule, where, discounted=members[:2])
    (thin,) = find_violations(members, quorum, rule, where, discounted=members[:2])
    assert (thin.kind, thin.found, thin.limit) == ("copies", 1, 2)
    assert thin.format(quorum, rule) == "the copies that count span 1 of 2 places"
    assert satisfies(members, quorum, PlacementRule(), where, discounted=members)


def test_r20_a_suspended_member_binds_those_that_are_chosen() -> None:
    """It comes back one day: a bookie of its rack may not take another one's place meanwhile."""
    cluster = [candidate(f"b{i}", rack=rack) for i, rack in enumerate("abcc")]
    where = {one.member: one for one in cluster}
    ensemble = tuple(where)[:3]
    rule, rng = PlacementRule(min_racks=2), random.Random(1)
    changed = choose_replacements(
        ensemble, ensemble[1:], cluster[3:], Quorum(3, 3, 2), rule, where, rng
    )
    # b3 may follow b2, of its own rack; in the place of b1 it would lie beside b2.
    assert changed == (*ensemble[:2], cluster[3].member)


def test_r20_a_replacement_does_not_degrade_silently() -> None:
    """Mutant: replacement degrades silently."""
    cluster = [candidate(f"b{i}", rack=rack) for i, rack in enumerate("abca")]
    where = {one.member: one for one in cluster}
    ensemble, rng = tuple(where)[:3], random.Random(1)
    args = (ensemble, ensemble[2:], cluster[3:], Quorum(3, 3, 2))
    assert choose_replacements(*args, PlacementRule(min_racks=2), where, rng) is None
    lax = PlacementRule(min_racks=2, is_strict=False)
    changed = choose_replacements(*args, lax, where, rng)
    assert changed == (*ensemble[:2], cluster[3].member)


def test_two_failed_members_are_replaced_together_where_one_alone_could_not_be() -> None:
    """Each spare lies in the rack of the other failed member."""
    cluster = [candidate(f"b{i}", rack=rack) for i, rack in enumerate("abcbc")]
    where = {one.member: one for one in cluster}
    ensemble = tuple(where)[:3]
    for order in (cluster[3:], cluster[:2:-1]):
        changed = choose_replacements(
            ensemble, ensemble[1:], order, Quorum(3, 3, 2), PlacementRule(min_racks=2), where,
            random.Random(2),
        )  # fmt: skip
        assert changed is not None and set(changed[1:]) == {one.member for one in cluster[3:]}


# --- Reasons, numbers, advice ---------------------------------------------------------------------


def test_a_refusal_tells_the_reason_and_the_numbers() -> None:
    cluster = [candidate(f"b{i}", rack="ab"[i % 2]) for i in range(6)]
    refusal = explain_refusal(cluster, Quorum(3, 3, 2), PlacementRule(min_racks=2))
    assert refusal is not None and refusal.reason == "too_few_racks"
    assert (refusal.numbers["room"], refusal.numbers["racks"]) == (2, 2)
    assert refusal.detail == (
        "write quorum 3, ack quorum 2, min_racks 2: one rack may hold 1 of a write set at most, so "
        "that 2 of 3 members have room in 2 racks (r/a: 3, r/b: 3)"
    )
    assert explain_refusal(cluster, Quorum(2, 2, 2), PlacementRule(min_racks=2)) is None


def test_an_order_that_does_not_exist_is_told_from_too_few_places() -> None:
    """By number two of five may share a rack; in a ring of five any two are in one write set."""
    cluster = [candidate(f"b{i}", rack="aabcd"[i]) for i in range(5)]
    refusal = explain_refusal(cluster, Quorum(5, 3, 3), PlacementRule(min_racks=3))
    assert refusal is not None and refusal.reason == "no_order", refusal
    assert refusal.detail.startswith("no order of 5 bookies in 4 racks of 1 regions gives every")


@pytest.mark.parametrize(
    ("fields", "ways"),
    [
        ({}, None),
        ({"min_regions": 2, "regions_that_must_suffice": 3}, None),
        ({"min_regions": 2}, "ack_quorum 3 or regions_that_must_suffice 3 or min_regions 1 "),
        (
            {"ensemble_size": 15, "write_quorum": 15, "ack_quorum": 8, "min_regions": 2},
            "ack_quorum 9 or regions_that_must_suffice 3 or min_regions 1 ",
        ),
        ({"ensemble_size": 15, "write_quorum": 15, "ack_quorum": 9, "min_regions": 2}, None),
        (
            {"ensemble_size": 4, "min_regions": 2, "regions_that_must_suffice": 3},
            "ack_quorum 3 or ensemble_size 6 or regions_that_must_suffice 4 or min_regions 1 ",
        ),
        (
            {"min_regions": 2, "regions_that_must_suffice": 1},
            "1 regions are never min_regions 2: 2 ",
        ),
    ],
)
def test_r20_a_replication_that_can_never_work_is_told_what_would(
    fields: dict[str, int], ways: str | None
) -> None:
    advice = advise(Replication.model_validate(fields))
    assert (advice is None) == (ways is None), advice
    if advice is not None and ways is not None:
        assert advice.field == "replication.regions_that_must_suffice"
        assert ways + "would work" in advice.detail


@pytest.mark.parametrize("regions", [2, 3, 4])
def test_r20_what_is_advised_works_and_what_is_accepted_can_be_placed(regions: int) -> None:
    """Against the choice itself, on so many regions of plenty."""
    cluster = [candidate(f"{r}{i}", f"r{r}", f"k{i}") for r in range(regions) for i in range(6)]
    for size in range(1, 7):
        for write in range(1, size + 1):
            for ack in range(2, write + 1):
                fields = {"ensemble_size": size, "write_quorum": write, "ack_quorum": ack}
                rest = {"min_racks": 1, "min_regions": 2, "regions_that_must_suffice": regions}
                wanted = Replication.model_validate({**fields, **rest})
                chosen = choose_ensemble(
                    cluster, Quorum(size, write, ack), PlacementRule(1, 2), random.Random(1)
                )
                assert (advise(wanted) is None) == (chosen is not None), wanted
