"""What a nodeset lacks: the rules by which an epoch survives whoever may be away.

0. The nodeset satisfies the property: without that nothing can be written at all.
1. With any `tolerate` nodes away the rest satisfies it. (They are fewer than an entry's copies.)
2. With any `tolerate` nodes away there is a wave of node + extras whose every `node` satisfy it.
3. With any one rack away the rest satisfies it, where that holds of all bookies; and no rack
   satisfies it alone, where so many nodes can be chosen without that. Unknown places are one rack.
4. 1 to 3 hold of the nodes in any `regions_that_must_suffice` regions, and those in the others do
   not satisfy it alone. A node of unknown place is in none of them.

A nodeset is counts of bookies per rack here: bookies of one rack are alike. The worst that can be
away is the emptiest racks or regions. Only a wave with extras needs more than that arithmetic, and
only where racks or regions are scarce.

Pure. Called by `nodeset`. Source: R23, R26, docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from duramen.config import check_nodeset_numbers
from duramen.core.flexible.property import UNKNOWN, PlacedBookie, ReplicationProperty
from duramen.core.placement.room import Rack

SIZE_DEFAULT_MAX: Final = 20
"""Larger nodesets spread a log no better, and a recovery asks each node."""

Spread = Mapping[Rack, int]
"""Bookies per rack, each > 0."""


@dataclass(frozen=True, slots=True)
class NodesetRule:
    """What a nodeset has to be; numbers that contradict each other are a `ValueError`.

    Args:
        size: nodes wanted, at most 64; None: all, up to 20.
        tolerate: nodes that may be away at once.
        regions_that_must_suffice: how few regions may be left; None: all are there.
        is_strict: an unsound nodeset is refused; otherwise it is taken, and what it lacks told.
    """

    wanted: ReplicationProperty
    size: int | None = None
    tolerate: int = 1
    regions_that_must_suffice: int | None = None
    is_strict: bool = True

    def __post_init__(self) -> None:
        wanted = self.wanted
        check_nodeset_numbers(
            node=wanted.node,
            region=wanted.region,
            extras=wanted.extras,
            size=self.size,
            tolerate=self.tolerate,
            regions_that_must_suffice=self.regions_that_must_suffice,
        )

    @property
    def size_min(self) -> int:
        """A wave, and who may be away."""
        return self.wanted.wave_count + self.tolerate

    def size_of(self, bookie_count: int) -> int:
        """Nodes out of so many bookies."""
        size = max(SIZE_DEFAULT_MAX, self.size_min) if self.size is None else self.size
        return min(bookie_count, size)


GROWING_REASONS: Final = {"too_few_bookies", "too_few_racks", "too_few_regions", "no_wave"}
"""More nodes never lack more of these."""


class Lack(NamedTuple):
    """A rule that a nodeset breaks."""

    rule: int
    """0 to 4, as the module's head counts them."""
    reason: str
    """`too_few_bookies`, `too_few_racks`, `too_few_regions`, `no_wave`; `too_few_outside_rack`,
    `rack_holds_all_copies`, `regions_hold_all_copies`; and of those that
    are absent `too_many_absent`, `absent_hold_all_copies` (`nodeset`)."""
    found: int
    wanted: int
    amount: int
    """How many bookies would have to lie elsewhere, about: what an exchange makes less, > 0."""
    detail: str


def count_places(nodes: Collection[PlacedBookie]) -> Counter[Rack]:
    """How many of these lie in each rack."""
    return Counter(node.place for node in nodes)


def count_regions(spread: Spread) -> Counter[str]:
    """How many lie in each region; the unknown place is one."""
    regions = Counter[str]()
    for place, count in spread.items():
        regions[place.region] += count
    return regions


def find_lacks(spread: Spread, everybody: Spread, rule: NodesetRule) -> Iterator[Lack]:
    """All that such a nodeset lacks, chosen out of these bookies; what is worst comes first."""
    yield from _find_span_lacks(spread, rule, 0)
    yield from _find_tolerance_lacks(spread, everybody, rule)
    yield from _find_region_lacks(spread, everybody, rule)


def _find_tolerance_lacks(spread: Spread, everybody: Spread, rule: NodesetRule) -> Iterator[Lack]:
    """Rules 1 to 3."""
    yield from _find_span_lacks(spread, rule, rule.tolerate)
    yield from _find_wave_lacks(spread, rule)
    yield from _find_rack_lacks(spread, everybody, rule)


# --- Rules 0 and 1: any nodes away ---------------------------------------------------------------


def _find_span_lacks(spread: Spread, rule: NodesetRule, away_count: int) -> Iterator[Lack]:
    wanted = rule.wanted
    number = min(away_count, 1)
    size = sum(spread.values())
    if size - away_count < wanted.node:
        least = wanted.node + away_count
        together = f" and nodeset.tolerate {away_count} together" if away_count else ""
        detail = f"{_number(size, 'bookie')} are less than replication.node {wanted.node}{together}"
        yield Lack(number, "too_few_bookies", size, least, least - size, detail)
    for kind, counts, least in (
        ("region", _sort_regions(spread), wanted.region),
        ("rack", _sort_racks(spread), wanted.rack),
    ):
        left_count = _count_left(counts, away_count)
        if least > 1 and left_count < least:
            there = _number(len(counts), kind)
            if away_count:
                there += f", {left_count} of which are left with {_number(away_count, 'node')} away"
            detail = f"the nodeset is in {there}, and replication.{kind} is {least}"
            amount = _measure_lack(counts, away_count, least)
            yield Lack(number, f"too_few_{kind}s", left_count, least, amount, detail)


def _sort_racks(spread: Spread) -> list[int]:
    return sorted(count for place, count in spread.items() if place != UNKNOWN)


def _sort_regions(spread: Spread) -> list[int]:
    regions = count_regions(spread)
    return sorted(count for region, count in regions.items() if region != UNKNOWN.region)


def _count_left(counts: list[int], away_count: int) -> int:
    """Places that still have a node when so many are away: the emptiest places go first."""
    sums = itertools.accumulate(counts)
    return len(counts) - sum(total <= away_count for total in sums)


def _measure_lack(counts: list[int], away_count: int, least: int) -> int:
    """Nodes that the emptiest places want until no `away_count` of them empty one too many."""
    spare = len(counts) - least
    if spare < 0:
        return away_count + 1 - spare
    return max(away_count + 1 - sum(counts[: spare + 1]), 0)


# --- Rule 2: a wave ------------------------------------------------------------------------------


def _find_wave_lacks(spread: Spread, rule: NodesetRule) -> Iterator[Lack]:
    wanted, away_count = rule.wanted, rule.tolerate
    if not wanted.extras:
        # A wave is any nodes that satisfy the property: rule 1 says all.
        return
    size = sum(spread.values())
    if size < rule.size_min:
        detail = (
            f"{_number(size, 'bookie')} are less than replication.node {wanted.node}, "
            f"replication.extras {wanted.extras} and nodeset.tolerate {away_count} together"
        )
        amount = rule.size_min - size
        yield Lack(2, "too_few_bookies", size, rule.size_min, amount, detail)
        return
    scarce = short = 0
    for counts, least in (
        (_sort_regions(spread), wanted.region), (_sort_racks(spread), wanted.rack)
    ):  # fmt: skip
        if least > 1:
            scarce += _measure_lack(counts, away_count, least + wanted.extras)
            short += _measure_lack(counts, away_count + wanted.extras, least)
    # One place more for each extra node is enough: of any `extras` nodes none empties more. And
    # what no longer spans enough without any `extras` more is no wave, nor holds one.
    if scarce and (
        short or not all(wanted.has_wave(left) for left in _list_left(spread, away_count))
    ):
        detail = (
            f"with {_number(away_count, 'node')} away no {wanted.wave_count} nodes are such that "
            f"every {wanted.node} of them satisfy the replication"
        )
        yield Lack(2, "no_wave", 0, 1, scarce, detail)


_Shape = tuple[int, tuple[tuple[int, ...], ...]]
"""Nodes of unknown place; for each region the nodes of its racks. All in order: what differs by
names alone is equal."""


def _list_left(spread: Spread, away_count: int) -> list[Spread]:
    """All that can be left when so many nodes are away, but for names."""
    regions: dict[str, list[int]] = {}
    for place, count in spread.items():
        if place != UNKNOWN:
            regions.setdefault(place.region, []).append(count)
    shapes: set[_Shape] = {
        (spread.get(UNKNOWN, 0), tuple(sorted(tuple(sorted(racks)) for racks in regions.values())))
    }
    for _ in range(away_count):
        shapes = {left for shape in shapes for left in _take_one(shape)}
    return [_name_places(shape) for shape in shapes]


def _take_one(shape: _Shape) -> Iterator[_Shape]:
    unknown_count, regions = shape
    if unknown_count:
        yield unknown_count - 1, regions
    for at, racks in enumerate(regions):
        others = regions[:at] + regions[at + 1 :]
        for count in sorted(set(racks)):
            left = list(racks)
            left.remove(count)
            left += [count - 1] if count > 1 else []
            yield unknown_count, tuple(sorted([*others, tuple(sorted(left))] if left else others))


def _name_places(shape: _Shape) -> Spread:
    unknown_count, regions = shape
    named = {
        Rack(f"r{at}", f"k{rack_at}"): count
        for at, racks in enumerate(regions)
        for rack_at, count in enumerate(racks)
    }
    return {**named, UNKNOWN: unknown_count} if unknown_count else named


# --- Rule 3: a rack away -------------------------------------------------------------------------


class _Totals(NamedTuple):
    """What counts for the property."""

    bookies: int
    racks: int
    regions: int


def _list_without_rack(spread: Spread) -> Iterator[tuple[Rack, _Totals]]:
    """For each rack what is left without it."""
    size = sum(spread.values())
    located = [place for place in spread if place != UNKNOWN]
    racks_of = Counter(place.region for place in located)
    for place, count in spread.items():
        is_known = place != UNKNOWN
        is_last = is_known and racks_of[place.region] == 1
        yield place, _Totals(size - count, len(located) - is_known, len(racks_of) - is_last)


def _find_rack_lacks(spread: Spread, everybody: Spread, rule: NodesetRule) -> Iterator[Lack]:
    wanted = rule.wanted
    of_all = dict(_list_without_rack(everybody))
    for place, left in _list_without_rack(spread):
        if wanted.is_met_by(*left) or not wanted.is_met_by(*of_all[place]):
            continue
        amount = max(wanted.node - left.bookies, 0)
        amount += max(wanted.rack - left.racks, 0) if wanted.rack > 1 else 0
        amount += max(wanted.region - left.regions, 0) if wanted.region > 1 else 0
        detail = (
            f"without {_name(place)} {_number(left.bookies, 'node')} of the nodeset in "
            f"{_number(left.racks, 'rack')} and {_number(left.regions, 'region')} are left: too "
            "few, and the other bookies would be enough"
        )
        yield Lack(3, "too_few_outside_rack", left.bookies, wanted.node, amount, detail)
    # Whoever wants two racks has copies outside of any one.
    most = wanted.node - 1
    if wanted.rack > 1 or sum(min(n, most) for n in everybody.values()) < sum(spread.values()):
        return
    for place, count in spread.items():
        if count > most:
            detail = (
                f"{_name(place)} holds {_number(count, 'node')} of the nodeset, so that all "
                f"{wanted.node} copies of an entry may lie there, and what was stored last "
                "cannot be found out without it"
            )
            yield Lack(3, "rack_holds_all_copies", count, most, count - most, detail)


# --- Rule 4: regions away ------------------------------------------------------------------------


def _find_region_lacks(spread: Spread, everybody: Spread, rule: NodesetRule) -> Iterator[Lack]:
    wanted, least = rule.wanted, rule.regions_that_must_suffice
    regions = sorted({place.region for place in everybody if place != UNKNOWN})
    if least is None or least >= len(regions):
        return
    away_count = len(regions) - least
    located_count = sum(count for place, count in spread.items() if place != UNKNOWN)
    in_fullest = -(-located_count * away_count // len(regions))
    if away_count >= least or (away_count >= wanted.rack and in_fullest >= wanted.node):
        # Either they are as many as suffice, or the fullest of them have a rack each, and nodes.
        detail = (
            f"{away_count} of {len(regions)} regions may hold all copies of an entry, and "
            f"{_number(least, 'region')} must suffice without them"
        )
        yield Lack(4, "regions_hold_all_copies", in_fullest, wanted.node - 1, 1, detail)
        return
    for left, away in _list_region_sets(spread, everybody, regions, away_count):
        in_left = {place: n for place, n in spread.items() if place.region in left}
        in_away = {place: n for place, n in spread.items() if place.region in away}
        totals = _Totals(sum(in_away.values()), len(in_away), len({p.region for p in in_away}))
        if wanted.is_met_by(*totals):
            detail = (
                f"the nodes in {_name_all(away)} may hold all copies of an entry, and "
                f"{_number(least, 'region')} must suffice without them"
            )
            amount = totals.bookies - wanted.node + 1
            yield Lack(
                4, "regions_hold_all_copies", totals.bookies, wanted.node - 1, amount, detail
            )
        of_all = {place: n for place, n in everybody.items() if place.region in left}
        for lack in _find_tolerance_lacks(in_left, of_all, rule):
            yield lack._replace(rule=4, detail=f"in {_name_all(left)} alone {lack.detail}")


def _list_region_sets(
    spread: Spread, everybody: Spread, regions: list[str], away_count: int
) -> Iterator[tuple[Collection[str], Collection[str]]]:
    """Regions that are left and those that are away, one of each that differ by names alone."""
    racks: dict[str, list[tuple[int, int]]] = {region: [] for region in regions}
    for place, count in everybody.items():
        if place != UNKNOWN:
            racks[place.region].append((spread.get(place, 0), count))
    kinds = {region: tuple(sorted(counts)) for region, counts in racks.items()}
    seen = set()
    for away in itertools.combinations(sorted(regions, key=lambda r: (kinds[r], r)), away_count):
        kind = tuple(kinds[region] for region in away)
        if kind not in seen:
            seen.add(kind)
            yield [region for region in regions if region not in away], away


# --- Words ---------------------------------------------------------------------------------------


def _number(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else noun + 's'}"


def _name(place: Rack) -> str:
    return f"rack {place.region}/{place.rack}" if place != UNKNOWN else "the unknown place"


def _name_all(regions: Collection[str]) -> str:
    return f"{'region' if len(regions) == 1 else 'regions'} {', '.join(sorted(regions))}"
