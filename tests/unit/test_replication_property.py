"""The replication property against its definition: all subsets of all small nodesets.

Not here: which nodesets are chosen (`test_nodeset`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from duramen.core.flexible.property import EXTRAS_MAX, PlacedBookie, ReplicationProperty
from duramen.ids import BookieId

SIZE_MAX = 5
PLACES = [("r0", "k0"), ("r0", "k1"), ("r1", "k0"), ("r2", "k0"), ("", "")]


def list_nodesets() -> Iterator[tuple[PlacedBookie, ...]]:
    """All up to five nodes, by how many lie where."""
    for size in range(SIZE_MAX + 1):
        for places in itertools.combinations_with_replacement(PLACES, size):
            yield tuple(
                PlacedBookie(BookieId(f"b{number}"), region, rack)
                for number, (region, rack) in enumerate(places)
            )


PROPERTIES = [
    ReplicationProperty(node, rack, region)
    for node in range(1, 5)
    for rack in range(1, node + 1)
    for region in range(1, rack + 1)
]


def list_subsets(
    nodes: tuple[PlacedBookie, ...], size_min: int = 0
) -> Iterator[tuple[PlacedBookie, ...]]:
    for size in range(size_min, len(nodes) + 1):
        yield from itertools.combinations(nodes, size)


@pytest.mark.parametrize("wanted", PROPERTIES, ids=str)
def test_a_cover_meets_every_set_that_satisfies_it(wanted: ReplicationProperty) -> None:
    for nodes in list_nodesets():
        enough = [set(s) for s in list_subsets(nodes) if wanted.is_satisfied_by(s)]
        for responders in list_subsets(nodes):
            by_definition = all(s & set(responders) for s in enough)
            assert wanted.is_covered_by(responders, nodes) == by_definition, (nodes, responders)


@pytest.mark.parametrize("wanted", PROPERTIES, ids=str)
def test_a_wave_fits_if_any_of_its_nodes_may_answer_first(wanted: ReplicationProperty) -> None:
    for nodes in list_nodesets():
        subsets = list(itertools.combinations(nodes, wanted.node))
        by_definition = bool(subsets) and all(map(wanted.is_satisfied_by, subsets))
        assert wanted.fits_wave(nodes) == by_definition, nodes


@pytest.mark.parametrize("wanted", PROPERTIES, ids=str)
@pytest.mark.parametrize("extras", range(EXTRAS_MAX + 1))
def test_a_wave_is_found_where_there_is_one(wanted: ReplicationProperty, extras: int) -> None:
    wanted = replace(wanted, extras=extras)
    for nodes in list_nodesets():
        by_definition = any(map(wanted.fits_wave, itertools.combinations(nodes, wanted.wave_count)))
        assert wanted.has_wave(Counter(node.place for node in nodes)) == by_definition, nodes


def test_two_incarnations_of_a_bookie_are_one() -> None:
    wanted = ReplicationProperty(2)
    twice = (PlacedBookie(BookieId("b0"), "r0", "k0"), PlacedBookie(BookieId("b0"), "r0", "k1"))
    assert not wanted.is_satisfied_by(twice)
    assert wanted.is_covered_by(twice[:1], twice)


@pytest.mark.parametrize(
    "numbers",
    [(0,), (1, 2), (2, 1, 2), (1, 0), (2, 1, 0), (1, 1, 1, EXTRAS_MAX + 1), (1, 1, 1, -1)],
)
def test_what_makes_no_sense_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"node \d|extras"):
        ReplicationProperty(*numbers)
