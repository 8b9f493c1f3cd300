"""What a nodeset lacks against its definition: all that may be away, of all small nodesets.

Not here: the property's own arithmetic (`test_replication_property`), the choice (`test_nodeset`).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator

import pytest

from duramen.core.flexible.property import EXTRAS_MAX, UNKNOWN, PlacedBookie, ReplicationProperty
from duramen.core.flexible.soundness import NodesetRule, count_places, find_lacks
from duramen.core.placement.room import Rack
from duramen.ids import BookieId

SIZE_MAX = 6
PLACES = [Rack("r0", "k0"), Rack("r0", "k1"), Rack("r1", "k0"), Rack("r2", "k0"), UNKNOWN]

Places = tuple[Rack, ...]


def make_nodes(places: Collection[Rack]) -> list[PlacedBookie]:
    return [PlacedBookie(BookieId(f"b{n}"), *place) for n, place in enumerate(places)]


@functools.cache
def satisfies(places: Places, wanted: ReplicationProperty) -> bool:
    return wanted.is_satisfied_by(make_nodes(places))


@functools.cache
def has_wave(places: Places, wanted: ReplicationProperty) -> bool:
    return any(
        all(satisfies(some, wanted) for some in itertools.combinations(wave, wanted.node))
        for wave in set(itertools.combinations(places, wanted.wave_count))
    )


def split(places: Places, away_count: int) -> Iterator[tuple[Places, Places]]:
    """Those that are left and those that are away, all that differ."""
    for away in set(itertools.combinations(places, min(away_count, len(places)))):
        left = list(places)
        for place in away:
            left.remove(place)
        yield tuple(left), away


def list_broken(places: Places, everybody: Places, rule: NodesetRule) -> set[int]:
    """The rules that the nodeset breaks, by their words."""
    wanted = rule.wanted
    broken = set() if satisfies(places, wanted) else {0}
    broken |= list_broken_of_tolerance(places, everybody, rule)
    regions = sorted({place.region for place in everybody if place != UNKNOWN})
    suffices = rule.regions_that_must_suffice
    if suffices is None or suffices >= len(regions):
        return broken
    for left in itertools.combinations(regions, suffices):
        inside = tuple(place for place in places if place.region in left)
        outside = tuple(p for p in places if p.region not in left and p != UNKNOWN)
        of_all = tuple(place for place in everybody if place.region in left)
        if satisfies(outside, wanted) or list_broken_of_tolerance(inside, of_all, rule):
            broken.add(4)
    return broken


def list_broken_of_tolerance(places: Places, everybody: Places, rule: NodesetRule) -> set[int]:
    wanted = rule.wanted
    broken = set()
    for left, away in split(places, rule.tolerate):
        if not satisfies(left, wanted) or satisfies(away, wanted):
            broken.add(1)
        if not has_wave(left, wanted):
            broken.add(2)
    can_be_recovered = can_be_without_a_full_rack(everybody, len(places), wanted)
    for rack in set(places):
        left = tuple(place for place in places if place != rack)
        away = tuple(place for place in places if place == rack)
        left_of_all = tuple(place for place in everybody if place != rack)
        if satisfies(left_of_all, wanted) and not satisfies(left, wanted):
            broken.add(3)
        if satisfies(away, wanted) and can_be_recovered:
            broken.add(3)
    return broken


@functools.cache
def can_be_without_a_full_rack(everybody: Places, size: int, wanted: ReplicationProperty) -> bool:
    return any(
        not any(satisfies(tuple(p for p in some if p == rack), wanted) for rack in set(some))
        for some in set(itertools.combinations(everybody, size))
    )


def find_broken(places: Places, everybody: Places, rule: NodesetRule) -> set[int]:
    spread, of_all = count_places(make_nodes(places)), count_places(make_nodes(everybody))
    lacks = list(find_lacks(spread, of_all, rule))
    assert all(lack.amount > 0 and lack.detail for lack in lacks), lacks
    return {lack.rule for lack in lacks}


def normalize(broken: set[int], rule: NodesetRule) -> set[int]:
    """Without what is said once: nobody away is rule 0, a wave without extras is rule 1."""
    said_twice = ({1} if rule.tolerate == 0 else set()) | ({2} if not rule.wanted.extras else set())
    return broken - said_twice


def list_rules(node: int) -> Iterator[NodesetRule]:
    for rack in range(1, node + 1):
        for region in range(1, rack + 1):
            for extras in range(EXTRAS_MAX + 1):
                wanted = ReplicationProperty(node, rack, region, extras)
                yield from (NodesetRule(wanted, None, away) for away in range(node))


@pytest.mark.parametrize("node", [1, 2, 3])
def test_any_nodes_away_is_what_it_says_on_all_small_nodesets(node: int) -> None:
    rules = list(list_rules(node))
    counts = Counter[int]()
    for size in range(SIZE_MAX + 1):
        for places in itertools.combinations_with_replacement(PLACES, size):
            for rule in rules:
                broken = find_broken(places, places, rule)
                by_definition = normalize(list_broken(places, places, rule), rule)
                assert broken == by_definition, (places, rule)
                counts.update(broken)
    assert counts[0] and counts[2] and (node == 1 or counts[1]), counts


@pytest.mark.parametrize("seed", range(4))
def test_racks_and_regions_away_are_what_they_say(seed: int) -> None:
    rng = random.Random(seed)
    counts = Counter[object]()
    for _ in range(500):
        places = [Rack(f"r{r}", f"k{k}") for r in range(rng.randint(1, 5)) for k in range(2)]
        places += [UNKNOWN] if rng.random() < 0.1 else []
        everybody = tuple(rng.choices(places, k=rng.randrange(1, 9)))
        node = rng.choice((1, 2, 2, 3))
        rack = rng.choice((1, rng.randint(1, node)))
        wanted = ReplicationProperty(node, rack, rng.randint(1, rack), rng.choice((0, 0, 1)))
        suffices = rng.choice((None, *range(wanted.region, 5)))
        rule = NodesetRule(wanted, None, rng.randrange(node), suffices)
        chosen = tuple(rng.sample(everybody, rng.randint(len(everybody) // 2, len(everybody))))
        broken = find_broken(chosen, everybody, rule)
        assert broken == normalize(list_broken(chosen, everybody, rule), rule), (chosen, rule)
        counts.update(broken or ["sound"])
        counts["sound on regions"] += not broken and suffices is not None
    assert min(counts[kind] for kind in (0, 1, 2, 3, 4, "sound", "sound on regions")) > 10, counts
