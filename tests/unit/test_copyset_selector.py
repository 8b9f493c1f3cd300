"""Copysets: every one is a wave, shares are what weights and RP allow, blocks end when they should.

What is fair is judged by all copysets there are: shares p are the ideal exactly if no copyset has
a greater sum of weight / p than all nodes have weight (the condition for the greatest sum of
weight × log p, which among lids on nested places is the fair level of `shares`).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.property import EXTRAS_MAX, ReplicationProperty
from duramen.core.flexible.selector import (
    BLOCK_BYTES_MAX,
    BLOCK_US_MAX,
    NO_BLOCK,
    PLANS_MAX,
    CopysetChoice,
    CopysetSelector,
    ListedNodes,
)
from duramen.core.flexible.shares import make_plan
from duramen.core.placement.room import Rack
from duramen.core.placement.rule import Refusal
from duramen.ids import BookieId, Incarnation, NodeNumber

PICKS_COUNT = 100_000
SHARE_ERROR_RATIO_MAX = 0.05
FAIRNESS_ERROR_RATIO_MAX = 1e-6
NOBODY = ListedNodes()
UNKNOWN = ("", "")


def make_rows(
    places: Iterable[tuple[str, str]], weights: Sequence[float] | None = None
) -> list[NodesetRow]:
    """Nodes with the numbers 10, 11, …"""
    places = list(places)
    return [
        NodesetRow(
            NodeNumber(10 + n),
            ServingBookie(BookieId(f"b{n}"), region, rack, Incarnation("1"), weight),
        )
        for n, ((region, rack), weight) in enumerate(
            zip(places, weights or [1.0] * len(places), strict=True)
        )
    ]


def in_racks(*counts: int, region: str = "r0") -> list[tuple[str, str]]:
    return [(region, f"k{rack}") for rack, count in enumerate(counts) for _ in range(count)]


def number(*numbers: int) -> tuple[NodeNumber, ...]:
    return tuple(NodeNumber(n) for n in numbers)


def listed(*gray: int, unusable: Iterable[int] = ()) -> ListedNodes:
    return ListedNodes(number(*gray), frozenset(number(*unusable)))


def make_selector(
    rows: Sequence[NodesetRow],
    wanted: ReplicationProperty,
    *,
    owner: Rack | None = None,
    is_near: bool = False,
    is_sticky: bool = False,
) -> CopysetSelector:
    rng = random.Random(5)
    return CopysetSelector(rows, wanted, rng, owner=owner, is_near=is_near, is_sticky=is_sticky)


def choose(
    selector: CopysetSelector,
    lists: ListedNodes = NOBODY,
    *left: int,
    entry_bytes: int = 1,
    now_us: int = 0,
) -> CopysetChoice:
    if left:
        chosen = selector.choose_again(
            lists, left=frozenset(number(*left)), holders=(), entry_bytes=entry_bytes
        )
    else:
        chosen = selector.choose(lists, entry_bytes=entry_bytes, now_us=now_us)
    assert isinstance(chosen, CopysetChoice), chosen
    return chosen


def is_wave(copyset: Sequence[NodesetRow], wanted: ReplicationProperty) -> bool:
    """By definition: any `node` of them satisfy RP."""
    return len(copyset) >= wanted.node and all(
        wanted.is_satisfied_by(row.node for row in some)
        for some in itertools.combinations(copyset, wanted.node)
    )


def list_waves(
    rows: Sequence[NodesetRow], wanted: ReplicationProperty, count: int
) -> list[tuple[NodesetRow, ...]]:
    return [some for some in itertools.combinations(rows, count) if is_wave(some, wanted)]


def measure_unfairness(
    rows: Sequence[NodesetRow],
    waves: Iterable[Sequence[NodesetRow]],
    shares: dict[NodeNumber, float],
) -> float:
    """0: these shares are the ideal."""
    waves = list(waves)
    can_be = {row.number for wave in waves for row in wave}
    weight = sum(row.weight for row in rows if row.number in can_be)
    return max(sum(row.weight / shares[row.number] for row in wave) for wave in waves) / weight - 1


RP = ReplicationProperty
SHAPES = {
    "6 nodes in 3 racks": (make_rows(in_racks(2, 2, 2)), RP(3, 2)),
    "6 nodes, one of ten times the weight": (
        make_rows(in_racks(2, 2, 2), [10, 1, 1, 1, 1, 1]), RP(3, 2),
    ),
    "20 nodes in 5 racks": (make_rows(in_racks(4, 4, 4, 4, 4)), RP(3, 2)),
    "20 nodes of weights 10 to 1": (
        make_rows(in_racks(4, 4, 4, 4, 4), [10, 1, 1, 2] * 2 + [1, 2, 3, 1] * 3), RP(3, 2),
    ),
    "uneven racks": (make_rows(in_racks(8, 2, 1)), RP(3, 2)),
    "uneven racks, three wanted": (make_rows(in_racks(6, 3, 2), [1, 2] * 5 + [4]), RP(3, 3)),
    "unknown places": (make_rows([*in_racks(3, 2), UNKNOWN, UNKNOWN]), RP(3, 2)),
    "one extra": (make_rows(in_racks(5, 2, 2), [3, 1, 1] * 3), RP(3, 2, 1, 1)),
    "two extras": (make_rows(in_racks(5, 3, 3, 2)), RP(3, 2, 1, 2)),
    "two regions": (
        make_rows([*in_racks(3, 3), *in_racks(2, 1, region="r1")]), RP(3, 2, 2),
    ),
    "three racks in two regions": (
        make_rows([*in_racks(4, 3), *in_racks(2, 2, region="r1")], [1, 1, 2] * 3 + [1, 1]),
        RP(3, 3, 2),
    ),
    "five copies in four racks": (make_rows(in_racks(6, 2, 2, 1, 1)), RP(5, 4)),
    "four copies in racks and regions": (
        make_rows([*in_racks(3, 3), *in_racks(3, 3, region="r1")]), RP(4, 3, 2),
    ),
    "a fourth copy goes to one of three regions": (
        make_rows([*in_racks(4), *in_racks(4, region="r1"), *in_racks(4, region="r2")]),
        RP(4, 3, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_shares_are_what_weights_and_rp_allow(shape: str) -> None:
    rows, wanted = SHAPES[shape]
    waves = list_waves(rows, wanted, wanted.wave_count)
    fit = {tuple(row.number for row in wave) for wave in waves}
    plan = make_plan(rows, wanted, wanted.wave_count)
    assert plan is not None
    shares = plan.shares()
    assert abs(sum(shares.values()) - wanted.wave_count) < 1e-6
    assert measure_unfairness(rows, waves, shares) < FAIRNESS_ERROR_RATIO_MAX
    selector = make_selector(rows, wanted)
    picks = Counter(choose(selector).numbers for _ in range(PICKS_COUNT))
    counts = Counter[NodeNumber]()
    firsts = Counter[NodeNumber]()
    for numbers, count in picks.items():
        assert tuple(sorted(numbers)) in fit, numbers
        firsts[numbers[0]] += count
        for one in numbers:
            counts[one] += count
    errors = {n: counts[n] / PICKS_COUNT / share - 1 for n, share in shares.items()}
    worst = max(map(abs, errors.values()))
    assert worst < SHARE_ERROR_RATIO_MAX, errors
    print(f"{shape}: shares {min(shares.values()):.3f} to {max(shares.values()):.3f}, {worst:.2%}")
    for one, count in firsts.items():  # readers ask all of them
        assert abs(count * wanted.wave_count / counts[one] - 1) < 0.12


def test_ideal_shares_of_shapes_that_can_be_worked_out_by_hand() -> None:
    # 3 copies, at most 2 in a rack: eight nodes share 2 of them, and three the last one.
    plan = make_plan(make_rows(in_racks(8, 2, 1)), RP(3, 2), 3)
    assert plan is not None
    assert [round(share, 6) for share in plan.shares().values()] == [0.25] * 8 + [0.333333] * 3
    # The heavy one is in each copyset, the others share what is left.
    plan = make_plan(make_rows(in_racks(2, 2, 2), [10, 1, 1, 1, 1, 1]), RP(3, 2), 3)
    assert plan is not None
    assert [round(share, 6) for share in plan.shares().values()] == [1.0] + [0.4] * 5


class FixedRandom(random.Random):
    """Gives these numbers first."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(3)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0) if self.numbers else super().random()


def test_where_rounding_would_decide_whom_a_tooth_hits_it_is_thrown_again() -> None:
    plan = make_plan(make_rows(in_racks(2, 2, 2)), RP(3, 2), 3)
    assert plan is not None
    plan.draw(random.Random(3))
    sets = [
        set(plan.draw(FixedRandom(*teeth)))
        for teeth in ((0.25,), (0.0, 0.5 - 1e-12, 0.5, 1 - 1e-12, 0.25), (0.75,))
    ]
    assert sets[0] == sets[1] != sets[2]


def make_random_case(rng: random.Random) -> tuple[list[NodesetRow], ReplicationProperty]:
    places = [
        (f"r{rng.randrange(3)}", f"k{rng.randrange(3)}") if rng.random() > 0.1 else UNKNOWN
        for _ in range(rng.randrange(3, 8))
    ]
    node = rng.randrange(1, 6)
    rack = rng.randrange(1, node + 1)
    wanted = RP(node, rack, rng.randrange(1, rack + 1), rng.randrange(EXTRAS_MAX + 1))
    return make_rows(places, rng.choices((1.0, 2.0, 10.0), k=len(places))), wanted


def test_a_plan_is_there_exactly_if_a_wave_is_and_draws_waves_alone() -> None:
    rng = random.Random(8)
    kinds = Counter[str]()
    for _ in range(2_500):
        rows, wanted = make_random_case(rng)
        by_number = {row.number: row for row in rows}
        waves = list_waves(rows, wanted, wanted.wave_count)
        plan = make_plan(rows, wanted, wanted.wave_count)
        assert (plan is not None) == bool(waves), (rows, wanted)
        if plan is None:
            kinds["none"] += 1
            continue
        for _ in range(40):
            copyset = [by_number[n] for n in plan.draw(rng)]
            assert len({row.number for row in copyset}) == wanted.wave_count
            assert wanted.fits_wave([row.node for row in copyset]), (copyset, wanted)
            assert is_wave(copyset, wanted), (copyset, wanted)
        is_crossing = wanted.rack > wanted.region > 1 and wanted.node > wanted.rack
        has_unknown = any(row.rack is None for row in rows)
        if is_crossing or (has_unknown and wanted.extras):
            kinds["near the ideal"] += 1
            assert all(plan.shares()[row.number] > 0 for wave in waves for row in wave)
        else:
            kinds["ideal"] += 1
            unfairness = measure_unfairness(rows, waves, plan.shares())
            assert unfairness < FAIRNESS_ERROR_RATIO_MAX, (rows, wanted)
    assert min(kinds.values()) > 100, kinds


def test_what_racks_hold_beyond_their_base_goes_first_to_regions_below_theirs() -> None:
    # Seven copies in five racks and four regions, and one more: two of each region, and the two
    # racks that hold two of them have to be the small regions' only ones.
    big, small = in_racks(3, 3), in_racks(2)
    regions = [small, big, small, big]
    rows = make_rows((f"r{n}", rack) for n, places in enumerate(regions) for _, rack in places)
    wanted = RP(7, 5, 4, 1)
    plan = make_plan(rows, wanted, wanted.wave_count)
    assert plan is not None
    by_number = {row.number: row for row in rows}
    rng = random.Random(4)
    for _ in range(50):
        copyset = [by_number[n] for n in plan.draw(rng)]
        assert is_wave(copyset, wanted), copyset


def test_listed_nodes_and_those_to_be_left_are_in_none_while_others_suffice() -> None:
    selector = make_selector(make_rows(in_racks(3, 3, 3)), RP(3, 2))
    for _ in range(2_000):
        chosen = choose(selector, listed(10, unusable=[13]), 16)
        assert not {10, 13, 16}.intersection(chosen.numbers) and not chosen.forgiven


def test_extras_are_given_up_before_anybody_is_forgiven() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2, 1, 2))
    assert len(choose(selector).numbers) == 5
    assert len(choose(selector, listed(10)).numbers) == 5
    assert set(choose(selector, listed(10, 12)).numbers) == {11, 13, 14, 15}
    chosen = choose(selector, listed(10, 12, 14))
    assert set(chosen.numbers) == {11, 13, 15} and not chosen.forgiven


def test_who_is_listed_longest_is_forgiven_first_and_only_who_helps() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2))
    chosen = choose(selector, listed(15, 10, 14, 11))
    assert chosen.forgiven == (15,) and set(chosen.numbers) == {12, 13, 15}
    chosen = choose(selector, listed(11, 15, 10, 14), 15)
    assert chosen.forgiven == (11,) and 15 not in chosen.numbers
    # Who is of the rack that is there already does not help, however long it is listed.
    selector = make_selector(make_rows(in_racks(4, 2)), RP(3, 2))
    chosen = choose(selector, listed(13, 15, 14))
    assert chosen.forgiven == (15,) and set(chosen.numbers) - {15} < {10, 11, 12}


def test_forgiving_is_by_definition() -> None:
    """The first so many gray ones without which there is no copyset, and of them no more."""
    rng = random.Random(21)
    forgiven_count = 0
    for _ in range(1_500):
        rows, wanted = make_random_case(rng)
        numbers = [row.number for row in rows]
        order = rng.sample(numbers, len(numbers))
        gray, unusable = order[: rng.randrange(1, len(order))], order[-1:]
        lists = listed(*gray, unusable=unusable)
        selector = make_selector(rows, wanted)
        chosen = selector.choose(lists, entry_bytes=1, now_us=0)

        def has_wave(allowed: Iterable[int]) -> bool:
            taken = [row for row in rows if row.number in allowed]  # noqa: B023
            return bool(list_waves(taken, wanted, wanted.node))  # noqa: B023

        free = [n for n in numbers if n not in gray and n not in unusable]
        needed = next((k for k in range(len(gray) + 1) if has_wave(free + gray[:k])), None)
        assert isinstance(chosen, Refusal) == (needed is None), (rows, wanted, lists)
        if isinstance(chosen, Refusal) or needed is None:
            continue
        forgiven_count += bool(needed)
        assert set(chosen.forgiven) <= set(gray[:needed])
        assert (needed == 0) == (not chosen.forgiven)
        assert set(chosen.numbers) <= {*free, *chosen.forgiven}
        for one in chosen.forgiven:  # nobody of them can be missed
            assert one in chosen.numbers
            assert not has_wave([n for n in [*free, *chosen.forgiven] if n != one])
    assert forgiven_count > 50


def test_a_refusal_names_what_is_missing() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2))
    refusal = selector.choose_again(
        listed(10, unusable=[11, 12]), left=frozenset(number(13, 14)), holders=(), entry_bytes=1
    )
    assert isinstance(refusal, Refusal) and refusal.reason == "too_few_bookies"
    assert (refusal.numbers["bookies"], refusal.numbers["unusable"]) == (2, 2)
    assert refusal.detail == (
        "the copies of an entry need 3 bookies, and of 6 bookies of the nodeset 2 in 2 racks of "
        "1 region can be asked: 2 take nothing new or are away, 2 have not answered it"
    )
    lists = listed(unusable=[12, 13, 14, 15])
    for wanted, reason in ((RP(2, 2), "too_few_racks"), (RP(2, 2, 2), "too_few_regions")):
        refusal = make_selector(make_rows(in_racks(2, 2, 2)), wanted).choose(
            lists, entry_bytes=1, now_us=0
        )
        assert isinstance(refusal, Refusal) and refusal.reason == reason
    assert selector.statistics()["refusals"] == 1


NEAR_SHAPES = {
    "6 nodes in 3 racks": (make_rows(in_racks(2, 2, 2)), RP(3, 2)),
    "three racks": (make_rows(in_racks(4, 2, 2)), RP(3, 3)),
    "no places wanted": (make_rows(in_racks(4, 4)), RP(3)),
    "extras": (make_rows(in_racks(4, 3, 2)), RP(3, 2, 1, 1)),
    "regions": (make_rows([*in_racks(4, 3), *in_racks(3, 2, region="r1")]), RP(3, 2, 2)),
    "racks and regions": (make_rows([*in_racks(4, 3), *in_racks(3, 2, region="r1")]), RP(4, 3, 2)),
    "unknown places": (make_rows([*in_racks(2, 2), UNKNOWN, UNKNOWN]), RP(3, 2)),
}


@pytest.mark.parametrize("shape", NEAR_SHAPES)
def test_near_places_as_much_as_rp_allows_in_the_owners_rack_then_region(shape: str) -> None:
    rows, wanted = NEAR_SHAPES[shape]
    owner = Rack("r0", "k0")
    by_number = {row.number: row for row in rows}

    def measure(copyset: Iterable[NodesetRow]) -> tuple[int, int]:
        racks = [row.rack for row in copyset]
        return racks.count(owner), sum(rack is not None and rack.region == "r0" for rack in racks)

    most = max(map(measure, list_waves(rows, wanted, wanted.wave_count)))
    ratios = []
    for is_near in (True, False):
        selector = make_selector(rows, wanted, owner=owner, is_near=is_near)
        for _ in range(2_000):
            copyset = [by_number[n] for n in choose(selector, entry_bytes=100).numbers]
            assert is_wave(copyset, wanted)
            assert not is_near or measure(copyset) == most, copyset
        statistics = selector.statistics()
        ratios.append(statistics["cross_rack_bytes"] / statistics["copied_bytes"])
    print(
        f"{shape}: {ratios[0]:.0%} of copied bytes leave the rack with near, else {ratios[1]:.0%}"
    )
    assert ratios[0] == pytest.approx(1 - most[0] / wanted.wave_count)
    assert ratios[0] <= ratios[1]  # where each rack has one copy at most, near changes nothing


def test_near_is_by_weight_within_the_rack_and_outside() -> None:
    rows = make_rows(in_racks(4, 2, 2), [1, 1, 1, 3, 1, 1, 2, 2])
    plan = make_plan(rows, RP(3, 2), 3, Rack("r0", "k0"))
    assert plan is not None
    assert [round(share, 4) for share in plan.shares().values()] == [
        0.3333, 0.3333, 0.3333, 1.0, 0.1667, 0.1667, 0.3333, 0.3333,
    ]  # fmt: skip


def test_a_block_ends_by_its_size_and_by_its_age() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2), is_sticky=True)
    half = BLOCK_BYTES_MAX // 2
    first = choose(selector, entry_bytes=half)
    assert first == choose(selector, entry_bytes=half) and first.block == 1
    second = choose(selector, entry_bytes=1, now_us=7)
    assert second.block == 2
    assert choose(selector, entry_bytes=1, now_us=7 + BLOCK_US_MAX - 1) == second
    assert choose(selector, entry_bytes=1, now_us=7 + BLOCK_US_MAX).block == 3
    # One entry may be larger than a block; nothing follows it there.
    assert choose(selector, entry_bytes=2 * BLOCK_BYTES_MAX, now_us=7 + BLOCK_US_MAX).block == 4
    assert choose(selector, entry_bytes=1, now_us=7 + BLOCK_US_MAX).block == 5
    assert selector.statistics()["copysets"] == selector.statistics()["blocks"] == 5


def test_a_failed_store_ends_its_block_and_no_later_one() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2), is_sticky=True)
    assert choose(selector).block == 1
    selector.end_block(1)
    assert choose(selector).block == 2
    selector.end_block(1)
    assert choose(selector).block == 2


@pytest.mark.parametrize("how", ["gray", "unusable"])
def test_a_block_ends_when_one_of_its_nodes_is_to_be_left(how: str) -> None:
    selector = make_selector(make_rows(in_racks(3, 3, 3)), RP(3, 2), is_sticky=True)
    first = choose(selector)
    others = [n for n in range(10, 19) if n not in first.numbers]
    assert choose(selector, listed(others[0], unusable=others[1:2])) == first
    bad = first.numbers[1]
    lists = listed(bad) if how == "gray" else listed(unusable=[bad])
    second = choose(selector, lists)
    assert second.block == 2 and bad not in second.numbers
    assert choose(selector, lists) == second


def test_what_makes_do_with_less_ends_when_the_lists_change() -> None:
    selector = make_selector(make_rows(in_racks(2, 2)), RP(3, 2, 1, 1), is_sticky=True)
    assert len(choose(selector).numbers) == 4
    reduced = choose(selector, listed(10))
    assert len(reduced.numbers) == 3 and reduced.block == 2
    assert choose(selector, listed(10)) == reduced
    forgiving = choose(selector, listed(10, 11))
    assert forgiving.forgiven == (10,) and forgiving.block == 3
    assert choose(selector, listed(10, 11)) == forgiving
    assert len(choose(selector).numbers) == 4


def test_a_later_wave_belongs_to_no_block_and_ends_none() -> None:
    selector = make_selector(make_rows(in_racks(2, 2)), RP(3, 2, 1, 1), is_sticky=True)
    first = choose(selector)
    again = choose(selector, NOBODY, 10)
    assert len(again.numbers) == 3 and again.block == NO_BLOCK
    assert choose(selector) == first


def test_who_stores_the_entry_comes_first_in_a_later_wave() -> None:
    selector = make_selector(make_rows(in_racks(3, 3, 3)), RP(3, 2))
    for _ in range(200):
        chosen = selector.choose_again(
            NOBODY, left=frozenset(), holders=number(11, 15), entry_bytes=1
        )
        assert isinstance(chosen, CopysetChoice)
        are_holders = [n in (11, 15) for n in chosen.numbers]
        assert are_holders == sorted(are_holders, reverse=True)


def test_asking_for_a_refusal_counts_nothing_and_begins_nothing() -> None:
    selector = make_selector(make_rows(in_racks(2, 2, 2)), RP(3, 2), is_sticky=True)
    before = selector.statistics()
    assert selector.find_refusal(NOBODY) is None
    refusal = selector.find_refusal(listed(unusable=[10, 11, 12, 13]))
    assert refusal is not None and refusal.reason == "too_few_bookies"
    assert selector.statistics() == {**before, "plans": 2}


def test_blocks_are_switched_off_and_on_live() -> None:
    selector = make_selector(make_rows(in_racks(4, 4, 4)), RP(3, 2), is_sticky=True)
    assert choose(selector).block == 1
    selector.switch_sticky(is_sticky=False)
    singles = [choose(selector) for _ in range(50)]
    assert {single.block for single in singles} == {NO_BLOCK}
    assert len({single.numbers for single in singles}) > 25
    selector.switch_sticky(is_sticky=True)
    assert choose(selector).block == choose(selector).block == 2


def test_the_same_seed_gives_the_same_copysets() -> None:
    runs = [
        [choose(selector, listed(10 + n % 3), 13 + n % 2).numbers for n in range(300)]
        for selector in (make_selector(make_rows(in_racks(4, 4, 4)), RP(3, 2)) for _ in range(2))
    ]
    assert runs[0] == runs[1]


def test_few_plans_are_kept_and_an_idle_log_needs_none() -> None:
    selector = make_selector(make_rows(in_racks(4, 4, 4)), RP(3, 2))
    for one in range(10, 22):
        choose(selector, listed(one))
    assert selector.statistics()["plans"] == PLANS_MAX
    selector.forget_plans()
    assert selector.statistics()["plans"] == 0
