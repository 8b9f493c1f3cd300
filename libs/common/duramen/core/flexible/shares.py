"""How often each node of a nodeset is in a copyset, and copysets that come out just so often.

What weights and RP allow: node i has the probability weight_i × level, at most 1, at one level for
all; where a place may hold no more, its nodes stay below. As with water in vessels with lids, no
share can grow but at the cost of one that is smaller for its weight. Lids follow from `fits_wave`:
the sum of the m fullest places is ≤ S exactly if for some base their nodes beyond it together are
≤ S − m · base, the *budget*. The fairest base is taken, or a mixture. That is exact but for lids on
racks and regions at once, or extras beside unknown places: there it may be off, RP never.

A copyset is thrown: the probabilities lie side by side, place by place, what shares a budget in one
piece, and a comb with teeth 1 apart falls on them. A piece that is k long is hit k times: no lid is
ever broken, each node is hit as often as it should be, and nothing is tried twice.

Pure: randomness is injected. Called by `selector`. Source: R22, R27.
"""

from __future__ import annotations

import math
import operator
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Final

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.placement.room import Rack
from duramen.ids import NodeNumber

DRAWS_PER_LAYOUT_COUNT: Final = 32
"""Copysets that are drawn before the nodes are shuffled again: a shuffle costs as much as ten."""
ROTATIONS_MAX: Final = 16
"""Regions that are tried as the first one to get what racks may hold beyond their base."""
BORDER: Final = 1e-9
"""No tooth falls nearer to the end of a node: rounding would decide whom it hits."""
MIX_STEPS_MAX: Final = 60
MIX_GAIN_MIN: Final = 1e-4
"""Steps towards the fairest mixture, and how little of a gain ends them."""
NEAR_FACTOR: Final = 1e6
"""The owner's region counts as so much heavier, and its rack as so much again: filled first."""


@dataclass(frozen=True, slots=True)
class _Vessel:
    """Nodes, and the lids on the places among them.

    Args:
        nodes: indices of all nodes in it.
        places: what they lie in: racks or regions; none: no lids in it.
        unplaced: nodes of unknown place: each is beyond the base of any.
        base: what each place holds freely.
        budget: how much all places hold together beyond it, with the unplaced.
        unplaced_max: how much the unplaced hold.
    """

    nodes: tuple[int, ...]
    places: tuple[_Vessel, ...] = ()
    unplaced: tuple[int, ...] = ()
    base: int = 0
    budget: int = 0
    unplaced_max: int = 0


def make_plan(
    rows: Sequence[NodesetRow], wanted: ReplicationProperty, count: int, near: Rack | None = None
) -> CopysetPlan | None:
    """How copysets of `count` of these nodes are drawn, or None if none of that size is a wave.

    Args:
        near: place as many as can be in this rack, then in its region, and the rest by weight.
    """
    if len(rows) < count:
        return None
    weights = [row.weight * _favour(row, near) for row in rows]
    filled = (_fill(vessel, weights, count) for vessel in _list_vessels(rows, wanted, count))
    fillings = _keep_nearest([one for one in filled if one is not None], rows, near)
    if not fillings:
        return None
    return CopysetPlan(tuple(row.number for row in rows), count, _mix(fillings, rows))


def _favour(row: NodesetRow, near: Rack | None) -> float:
    if near is None or row.rack is None or row.rack.region != near.region:
        return 1.0
    return NEAR_FACTOR**2 if row.rack == near else NEAR_FACTOR


def _keep_nearest(
    fillings: list[_Filling], rows: Sequence[NodesetRow], near: Rack | None
) -> list[_Filling]:
    """Those with the most copies in the owner's rack, then in its region."""
    if near is None:
        return fillings

    def measure(filling: _Filling) -> tuple[float, float]:
        pairs = [(chance, row.rack) for chance, row in zip(filling.chances, rows, strict=True)]
        in_rack = sum(chance for chance, rack in pairs if rack == near)
        in_region = sum(chance for chance, rack in pairs if rack and rack.region == near.region)
        return round(in_rack, 6), round(in_region, 6)

    nearest = max(map(measure, fillings), default=None)
    return [filling for filling in fillings if measure(filling) == nearest]


def _mix(
    fillings: Sequence[_Filling], rows: Sequence[NodesetRow]
) -> tuple[tuple[_Filling, float], ...]:
    """The fairest one, and others as often as they help who has little for its weight.

    Nearly always one is the fairest, and is used alone. Otherwise the sum of weight × log(chance)
    grows by Frank and Wolfe's steps: that is what a single filling makes greatest under its lids.
    """
    best = max(
        range(len(fillings)),
        key=lambda one: sorted(
            round(chance / row.weight, 9)
            for chance, row in zip(fillings[one].chances, rows, strict=True)
        ),
    )
    parts = [float(one == best) for one in range(len(fillings))]
    chances = list(fillings[best].chances)
    for steps_count in range(1, MIX_STEPS_MAX if len(fillings) > 1 else 1):
        worth = [row.weight / max(now, BORDER) for row, now in zip(rows, chances, strict=True)]
        gains = [sum(map(operator.mul, worth, filling.chances)) for filling in fillings]
        next_one = max(range(len(fillings)), key=gains.__getitem__)
        if gains[next_one] <= sum(map(operator.mul, worth, chances)) * (1 + MIX_GAIN_MIN):
            break
        step = 1 / (steps_count + 1)
        parts = [part * (1 - step) + step * (one == next_one) for one, part in enumerate(parts)]
        chances = [
            now * (1 - step) + step * then
            for now, then in zip(chances, fillings[next_one].chances, strict=True)
        ]
    return tuple((one, part) for one, part in zip(fillings, parts, strict=True) if part)


# --- lids -----------------------------------------------------------------------------------------


def _list_vessels(
    rows: Sequence[NodesetRow], wanted: ReplicationProperty, count: int
) -> Iterator[_Vessel]:
    """Lids of which any is enough: what fits under them all is a wave."""
    racks: dict[Rack, list[int]] = {}
    for index, row in enumerate(rows):
        if row.rack is not None:
            racks.setdefault(row.rack, []).append(index)
    regions: dict[str, list[_Vessel]] = {}
    for rack, indices in racks.items():
        regions.setdefault(rack.region, []).append(_Vessel(tuple(indices)))
    unplaced = tuple(index for index, row in enumerate(rows) if row.rack is None)
    by_region = [_gather(places, base=count) for places in regions.values()]
    if wanted.rack > wanted.region > 1:
        yield from _list_crossing(by_region, unplaced, wanted, count)
    elif wanted.rack > 1:
        # Where as many regions as racks are wanted, the regions say it all.
        by_rack = list(chain.from_iterable(regions.values()))
        places = by_region if wanted.region > 1 else by_rack
        for base in _list_bases(wanted, wanted.rack, count):
            budget = wanted.node - 1 - (wanted.rack - 1) * base
            yield _gather(places, unplaced, base, budget, budget)
    else:
        yield _gather(list(chain.from_iterable(regions.values())), unplaced, count, count, count)


def _list_bases(wanted: ReplicationProperty, place_count: int, count: int) -> range:
    if count == wanted.node:
        return range(1, 2)  # it allows whatever is in so many places
    return range(1, (wanted.node - 1) // (place_count - 1) + 1)


def _list_crossing(
    regions: Sequence[_Vessel], unplaced: tuple[int, ...], wanted: ReplicationProperty, count: int
) -> Iterator[_Vessel]:
    """Lids on racks and on regions.

    What racks may hold beyond their base together is dealt out to the regions, one after the other,
    so that a rack's lids lie inside its region. Each region is the first one once.
    """
    for region_base in _list_bases(wanted, wanted.region, count):
        region_budget = wanted.node - 1 - (wanted.region - 1) * region_base
        for base in _list_bases(wanted, wanted.rack, count):
            rack_budget = wanted.node - 1 - (wanted.rack - 1) * base
            for unplaced_max in range(min(len(unplaced), rack_budget, region_budget) + 1):
                left_count = rack_budget - unplaced_max
                for first in range(min(len(regions), ROTATIONS_MAX) if left_count else 1):
                    order = [*regions[first:], *regions[:first]]
                    places = _deal_out(order, base, region_base, left_count)
                    yield _gather(places, unplaced, region_base, region_budget, unplaced_max)


def _deal_out(
    regions: Sequence[_Vessel], base: int, region_base: int, left_count: int
) -> list[_Vessel]:
    """Regions whose racks hold as much beyond their base as is left: first those that are still
    below their own base, since what goes beyond both costs both."""
    extra = [0] * len(regions)
    for limit in (region_base, math.inf):
        for index, region in enumerate(regions):
            free_count = sum(min(len(rack.nodes), base) for rack in region.places)
            room = min(len(region.nodes), limit) - free_count - extra[index]
            more = int(max(0, min(room, left_count)))
            extra[index] += more
            left_count -= more
    return [
        _gather(region.places, (), base, budget)
        for region, budget in zip(regions, extra, strict=True)
    ]


def _gather(
    places: Sequence[_Vessel],
    unplaced: tuple[int, ...] = (),
    base: int = 0,
    budget: int = 0,
    unplaced_max: int = 0,
) -> _Vessel:
    nodes = (*chain.from_iterable(place.nodes for place in places), *unplaced)
    return _Vessel(nodes, tuple(places), unplaced, base, budget, unplaced_max)


# --- water ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Filling:
    """The probability of each node under one set of lids."""

    vessel: _Vessel
    chances: list[float]


def _fill(vessel: _Vessel, weights: Sequence[float], count: int) -> _Filling | None:
    """As much water as makes `count` copies, or None if the lids do not let it in."""
    water = _Water(weights)
    water.close(vessel)
    if water.measure(vessel.nodes, math.inf) < count - BORDER:
        return None
    level = water.level_of(vessel.nodes, count)
    return _Filling(vessel, [water.measure((node,), level) for node in range(len(weights))])


class _Water:
    """Node i holds weight_i × level, and no more than at its own highest level."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self._highest = [1 / weight for weight in weights]

    def measure(self, nodes: Collection[int], level: float) -> float:
        """What these nodes hold together."""
        weights, highest = self._weights, self._highest
        return sum([weights[node] * min(level, highest[node]) for node in nodes])

    def level_of(self, nodes: Collection[int], total: float) -> float:
        """The highest level at which they hold no more than that."""
        steps = sorted(self._highest[node] for node in nodes)
        return _find_level(lambda level: self.measure(nodes, level), steps, total)

    def close(self, vessel: _Vessel) -> None:
        """Put the lids on, the inner ones first.

        A place is closed where it holds its base; but the budget is shared by all that are beyond
        theirs, up to the level at which it is used up.
        """
        if not vessel.places and not vessel.unplaced:
            return
        for place in vessel.places:
            self.close(place)
        self._lower(vessel.unplaced, self.level_of(vessel.unplaced, vessel.unplaced_max))
        knees = [self.level_of(place.nodes, vessel.base) for place in vessel.places]
        steps = sorted({*knees, *(self._highest[node] for node in vessel.nodes)} - {math.inf})

        def exceed(level: float) -> float:
            beyond = [
                self.measure(place.nodes, level) - vessel.base
                for place, knee in zip(vessel.places, knees, strict=True)
                if knee < level
            ]
            return sum(beyond) + self.measure(vessel.unplaced, level)

        shared = _find_level(exceed, steps, vessel.budget)
        self._lower(vessel.unplaced, shared)
        for place, knee in zip(vessel.places, knees, strict=True):
            self._lower(place.nodes, max(shared, knee))

    def _lower(self, nodes: Collection[int], level: float) -> None:
        for node in nodes:
            self._highest[node] = min(self._highest[node], level)


def _find_level(measure: Callable[[float], float], steps: Sequence[float], total: float) -> float:
    """The highest level at which it measures no more than `total`; straight between the steps."""
    index = bisect_right(steps, total, key=measure)
    if index == len(steps):
        return math.inf
    low, high = steps[index - 1] if index else 0.0, steps[index]
    least, most = measure(low), measure(high)
    return low + (high - low) * (total - least) / (most - least)


# --- combs ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class CopysetPlan:
    """Draws copysets of `count` nodes."""

    numbers: tuple[NodeNumber, ...]
    count: int
    fillings: tuple[tuple[_Filling, float], ...]
    """With the part of copysets that each is used for."""
    _order: list[NodeNumber] = field(default_factory=list)
    _ends: list[float] = field(default_factory=list)
    """Where each of them ends, when they lie side by side."""
    _borders: list[float] = field(default_factory=list)
    """The same, as places of the first tooth."""
    _left_count: int = 0

    def draw(self, rng: random.Random) -> tuple[NodeNumber, ...]:
        """A copyset, in any order: who comes first serves readers."""
        if not self._left_count:
            self._lay_out(rng)
        self._left_count -= 1
        tooth = rng.random()
        while self._is_at_a_border(tooth):
            tooth = rng.random()
        order, ends = self._order, self._ends
        chosen = [order[bisect_right(ends, tooth + n)] for n in range(self.count)]
        rng.shuffle(chosen)
        return tuple(chosen)

    def shares(self) -> dict[NodeNumber, float]:
        """How often each node is in a copyset: exact, not counted."""
        return {
            number: sum(part * filling.chances[node] for filling, part in self.fillings)
            for node, number in enumerate(self.numbers)
        }

    def _is_at_a_border(self, tooth: float) -> bool:
        index = bisect_right(self._borders, tooth)
        return min(self._borders[index] - tooth, tooth - self._borders[index - 1]) < BORDER

    def _lay_out(self, rng: random.Random) -> None:
        fillings, parts = zip(*self.fillings, strict=True)
        filling = rng.choices(fillings, parts)[0]
        order = _order_nodes(filling.vessel, filling.chances, rng)
        self._order = [self.numbers[node] for node in order]
        self._ends = list(accumulate(filling.chances[node] for node in order))
        self._borders = sorted((0.0, 1.0, *(end % 1.0 for end in self._ends)))
        self._left_count = DRAWS_PER_LAYOUT_COUNT


def _order_nodes(vessel: _Vessel, chances: Sequence[float], rng: random.Random) -> list[int]:
    """By chance, but each place in one piece, and in one piece what shares a budget."""
    if not vessel.places:
        nodes = list(vessel.nodes)
        rng.shuffle(nodes)
        return nodes
    unplaced = list(vessel.unplaced)
    rng.shuffle(unplaced)
    beyond, within = [unplaced], list[list[int]]()
    for place in vessel.places:
        is_beyond = sum(chances[node] for node in place.nodes) > vessel.base + BORDER
        (beyond if is_beyond else within).append(_order_nodes(place, chances, rng))
    rng.shuffle(beyond)
    rng.shuffle(within)
    return list(chain.from_iterable(beyond + within))
