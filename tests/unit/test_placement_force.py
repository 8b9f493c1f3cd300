"""What placement accepts satisfies R20, what it refuses cannot be done: against brute force.

Every way of spreading up to nine bookies over racks and regions (up to renaming), every E, Qw, Qa,
min_racks and min_regions. The gate takes all of it up to six bookies and a seeded sample up to
nine (other tiers: another size); with DURAMEN_PLACEMENT_FORCE=9 all 1.3 million cases up to nine
are taken.

The brute force shares nothing with the product: it lists ensembles as orders of bookies, and judges
each by listing all ack sets of all its write sets. Source: docs/protocol/placement.md "Choosing",
R20.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from duramen.core.placement import (
    Candidate,
    PlacementRule,
    choose_ensemble,
    choose_replacements,
    explain_refusal,
)
from duramen.core.quorum import Quorum
from duramen.ids import BookieId, Incarnation, Member
from tests.tiers import sized

WHOLE_UP_TO = int(os.environ.get("DURAMEN_PLACEMENT_FORCE", sized(fast=5, gate=6, night=7)))
SAMPLE_COUNT = sized(fast=200, gate=600, night=20_000)
MOST = 9
"""Bookies of the greatest cluster."""

PROVED_UP_TO = 8
"""Members of the greatest ensemble of which the search always proves a refusal within its bound."""

Spot = tuple[int, int]
"""Region and rack, as numbers."""


class Case(NamedTuple):
    """A cluster and what is asked of it."""

    spots: tuple[Spot, ...]
    quorum: Quorum
    rule: PlacementRule


# --- Brute force ---------------------------------------------------------------------------------


@functools.cache
def ack_set_is_good(members: tuple[Spot, ...], min_racks: int, min_regions: int) -> bool:
    return len(set(members)) >= min_racks and len({spot[0] for spot in members}) >= min_regions


@functools.cache
def write_set_is_good(members: tuple[Spot, ...], ack: int, racks: int, regions: int) -> bool:
    return all(
        ack_set_is_good(ack_set, racks, regions) for ack_set in itertools.combinations(members, ack)
    )


def is_good(ring: tuple[Spot, ...], quorum: Quorum, rule: PlacementRule) -> bool:
    """All ack sets of all write sets, one by one."""
    size, width = len(ring), quorum.write_quorum
    starts = range(1 if width == size else size)
    return all(
        write_set_is_good(
            tuple(sorted(ring[(start + k) % size] for k in range(width))),
            quorum.ack_quorum, rule.min_racks, rule.min_regions,
        )
        for start in starts
    )  # fmt: skip


_in_vain: dict[tuple[tuple[Spot, ...], int, int], list[tuple[int, int, int]]] = {}
"""What was asked in vain of a cluster, by its spots, ensemble size and write quorum."""


def exists(case: Case) -> bool:
    """Whether any ensemble satisfies the rule; what asks for no less than another in vain is not
    tried again: a smaller ack set, of more racks, of more regions."""
    quorum, rule = case.quorum, case.rule
    known = _in_vain.setdefault((case.spots, quorum.ensemble_size, quorum.write_quorum), [])
    wanted = quorum.ack_quorum, rule.min_racks, rule.min_regions
    if any(
        ack >= wanted[0] and racks <= wanted[1] and regions <= wanted[2]
        for ack, racks, regions in known
    ):
        return False
    is_possible = search(case)
    if not is_possible:
        known.append(wanted)
    return is_possible


def search(case: Case) -> bool:
    """Every order of every choice, cut when it is lost. Rings have no beginning: the least comes
    first."""
    size, width = case.quorum.ensemble_size, case.quorum.write_quorum
    if width == size:
        return any(
            is_good(ring, case.quorum, case.rule)
            for ring in itertools.combinations(case.spots, size)
        )
    demands = (case.quorum.ack_quorum, case.rule.min_racks, case.rule.min_regions)

    def grow(ring: tuple[Spot, ...], left: tuple[Spot, ...]) -> bool:
        if len(ring) >= width and not write_set_is_good(tuple(sorted(ring[-width:])), *demands):
            return False
        if len(ring) == size:
            return is_good(ring, case.quorum, case.rule)
        return any(
            grow((*ring, spot), (*left[:at], *left[at + 1 :]))
            for at, spot in enumerate(left)
            if spot not in left[:at] and (not ring or spot >= ring[0])
        )

    return grow((), case.spots)


# --- Cases ---------------------------------------------------------------------------------------


def partitions(number: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    if number == 0:
        yield ()
    for first in range(min(number, most or number), 0, -1):
        for rest in partitions(number - first, first):
            yield (first, *rest)


@functools.cache
def clusters(count: int) -> list[tuple[Spot, ...]]:
    """Every way of spreading `count` bookies over racks of regions, up to renaming."""
    found: dict[tuple[Spot, ...], None] = {}
    for regions in partitions(count):
        for racks in itertools.product(*(list(partitions(size)) for size in regions)):
            spots = [
                (region, rack)
                for region, sizes in enumerate(sorted(racks))
                for rack, size in enumerate(sizes)
                for _ in range(size)
            ]
            found[tuple(spots)] = None
    return list(found)


@functools.cache
def demands(count: int) -> list[tuple[Quorum, PlacementRule]]:
    """The easiest to satisfy first, which is what `exists` makes use of."""
    return [
        (Quorum(ensemble, write, ack), PlacementRule(racks, regions))
        for ensemble in range(1, count + 1)
        for write in range(1, ensemble + 1)
        for ack in range(write, 0, -1)
        for racks in range(1, ack + 1)
        for regions in range(1, ack + 1)
    ]


def cases() -> Iterator[Case]:
    for count in range(1, WHOLE_UP_TO + 1):
        for spots in clusters(count):
            for quorum, rule in demands(count):
                yield Case(spots, quorum, rule)
    rng = random.Random("placement")
    for _ in range(SAMPLE_COUNT if WHOLE_UP_TO < MOST else 0):
        count = rng.randint(WHOLE_UP_TO + 1, MOST)
        yield Case(rng.choice(clusters(count)), *rng.choice(demands(count)))


def candidates_of(case: Case) -> list[Candidate]:
    return [
        Candidate(Member(BookieId(f"b{at}"), Incarnation("1")), f"region{region}", f"rack{rack}")
        for at, (region, rack) in enumerate(case.spots)
    ]


def spots_of(case: Case, ensemble: tuple[Member, ...]) -> tuple[Spot, ...]:
    spots = {one.member: spot for one, spot in zip(candidates_of(case), case.spots, strict=True)}
    assert len(set(ensemble)) == len(ensemble) == case.quorum.ensemble_size
    return tuple(spots[member] for member in ensemble)


# --- Checks --------------------------------------------------------------------------------------


@pytest.mark.timeout(max(300, SAMPLE_COUNT // 5))
def test_r20_what_is_chosen_is_good_and_what_is_refused_is_impossible() -> None:
    rng = random.Random(1)
    chosen = refused = given_up = 0
    for case in cases():
        candidates = candidates_of(case)
        ensemble = choose_ensemble(candidates, case.quorum, case.rule, rng)
        if ensemble is not None:
            chosen += 1
            assert is_good(spots_of(case, ensemble), case.quorum, case.rule), (case, ensemble)
            continue
        refused += 1
        assert not exists(case), case
        refusal = explain_refusal(candidates, case.quorum, case.rule)
        assert refusal is not None, case
        given_up += refusal.reason == "search_bound"
        assert case.quorum.ensemble_size > PROVED_UP_TO or not given_up, (case, refusal)
    print(f"{chosen + refused} cases: {refused} refused, the search of {given_up} was given up")
    assert chosen > 800 and refused > 800, (chosen, refused)


@pytest.mark.parametrize("seed", range(6))
def test_r20_as_many_are_replaced_as_can_be(seed: int) -> None:
    """Brute force: every way of giving spare bookies to failed members."""
    rng = random.Random(seed)
    replaced = kept = 0
    for _ in range(400):
        case = Case(rng.choice(clusters(rng.randint(4, 8))), *rng.choice(demands(5)))
        size = case.quorum.ensemble_size
        candidates = candidates_of(case)
        rng.shuffle(candidates)
        where = {one.member: one for one in candidates}
        if size > len(candidates):
            continue
        ensemble = tuple(where)[:size]
        spots = dict(zip((c.member for c in candidates_of(case)), case.spots, strict=True))
        if not is_good(tuple(spots[member] for member in ensemble), case.quorum, case.rule):
            continue
        failed = rng.sample(ensemble, rng.randint(1, min(3, size)))
        spare = candidates[size:]
        changed = choose_replacements(ensemble, failed, spare, case.quorum, case.rule, where, rng)
        most = most_replaced(case, ensemble, failed, [one.member for one in spare], spots)
        after = ensemble if changed is None else changed
        assert sum(old != new for old, new in zip(ensemble, after, strict=True)) == most, case
        assert all(new == old or old in failed for old, new in zip(ensemble, after, strict=True))
        assert is_good(tuple(spots[member] for member in after), case.quorum, case.rule)
        replaced += most
        kept += len(failed) - most
    assert replaced > 20 and kept > 20, (replaced, kept)


def most_replaced(
    case: Case, ensemble: tuple[Member, ...], failed: list[Member], spare: list[Member],
    spots: dict[Member, Spot],
) -> int:  # fmt: skip
    best = 0
    for takers in itertools.product([None, *spare], repeat=len(failed)):
        given = [taker for taker in takers if taker is not None]
        if len(set(given)) < len(given) or len(given) <= best:
            continue
        by = {old: new for old, new in zip(failed, takers, strict=True) if new is not None}
        ring = tuple(spots[by.get(member, member)] for member in ensemble)
        if is_good(ring, case.quorum, case.rule):
            best = len(given)
    return best
