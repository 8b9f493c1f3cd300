"""Nodesets: sound where any of that size is, steady when bookies come and go, by weight.

Not here: what is sound (`test_nodeset_soundness`), the property's own arithmetic
(`test_replication_property`), when an epoch's nodeset should be another (`test_nodeset_reopening`).
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import (
    ChosenNodeset,
    ServingBookie,
    choose_nodeset,
    explain_soundness,
    list_serving,
)
from duramen.core.flexible.property import UNKNOWN, ReplicationProperty
from duramen.core.flexible.soundness import NodesetRule, count_places, find_lacks
from duramen.core.placement.room import Rack
from duramen.core.placement.roster import BookieRow
from duramen.core.placement.rule import Refusal
from duramen.ids import BookieId, Incarnation, LogId, Member

LOG = LogId(7)
LIFE = Incarnation("1")


def place_bookies(places: Collection[Rack]) -> list[ServingBookie]:
    return [ServingBookie(BookieId(f"b{n}"), *place, LIFE) for n, place in enumerate(places)]


def make_bookies(count: int, rack_count: int = 3, region_count: int = 1) -> list[ServingBookie]:
    return place_bookies([Rack(f"r{n % region_count}", f"k{n % rack_count}") for n in range(count)])


def choose(bookies: list[ServingBookie], rule: NodesetRule, log_id: LogId = LOG) -> ChosenNodeset:
    chosen = choose_nodeset(bookies, rule, log_id)
    assert not isinstance(chosen, Refusal), chosen
    return chosen


def refuse(bookies: list[ServingBookie], rule: NodesetRule) -> Refusal:
    refusal = choose_nodeset(bookies, rule, LOG)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def names_of(chosen: ChosenNodeset) -> set[BookieId]:
    return {node.bookie for node in chosen.nodes}


# --- What is chosen ------------------------------------------------------------------------------


def test_small_clusters_are_used_whole_and_large_ones_up_to_twenty() -> None:
    rule = NodesetRule(ReplicationProperty(3, 2))
    bookies = make_bookies(6)
    assert choose(bookies, rule) == (tuple(bookies), ())
    bookies = make_bookies(60, rack_count=5)
    chosen = choose(bookies, rule)
    assert len(chosen.nodes) == 20 and explain_soundness(chosen.nodes, bookies, rule) is None
    assert [node.bookie for node in chosen.nodes] == sorted(names_of(chosen))
    wide = NodesetRule(ReplicationProperty(19, 1, 1, 1), None, tolerate=2)
    assert len(choose(make_bookies(60, rack_count=60), wide).nodes) == 22


def draw_small_cluster(rng: random.Random) -> tuple[list[ServingBookie], NodesetRule]:
    """With the places, numbers and sizes that there are; of three regions at most."""
    places = [
        Rack(f"r{region}", f"k{rack}")
        for region in range(rng.randint(1, 3))
        for rack in range(rng.randint(1, 3))
    ]
    places += [UNKNOWN] if rng.random() < 0.1 else []
    shares = [rng.choice((1, 1, 5)) for _ in places]
    bookies = place_bookies(rng.choices(places, shares, k=rng.randint(3, 10)))
    node = rng.randint(1, 4)
    rack = rng.randint(1, node)
    wanted = ReplicationProperty(node, rack, rng.randint(1, min(rack, 3)), rng.randrange(3))
    tolerate = rng.randrange(node)
    least = wanted.wave_count + tolerate
    size = rng.choice((None, rng.randint(least, least + 4)))
    return bookies, NodesetRule(wanted, size, tolerate, rng.choice((None, wanted.region)))


def list_spreads(bookies: list[ServingBookie], size: int) -> Iterator[Counter[Rack]]:
    """So many of these bookies, in all ways but for who it is in a rack."""
    everybody = count_places(bookies)
    for counts in itertools.product(*(range(min(n, size) + 1) for n in everybody.values())):
        if sum(counts) == size:
            yield +Counter(dict(zip(everybody, counts, strict=True)))


@pytest.mark.parametrize("seed", range(3))
def test_one_is_chosen_where_any_of_that_size_is_sound(seed: int) -> None:
    rng = random.Random(seed)
    counts = Counter[str]()
    for _ in range(250):
        bookies, rule = draw_small_cluster(rng)
        chosen = choose_nodeset(bookies, rule, LogId(rng.randrange(1, 1_000)))
        size = rule.size_of(len(bookies))
        if isinstance(chosen, ChosenNodeset):
            assert len(chosen.nodes) == size and not chosen.waived
            assert explain_soundness(chosen.nodes, bookies, rule) is None
        else:
            everybody = count_places(bookies)
            for spread in list_spreads(bookies, size):
                assert any(find_lacks(spread, everybody, rule)), (bookies, rule, spread)
        counts[type(chosen).__name__] += 1
    assert min(counts.values()) > 50, counts


def test_shares_follow_weights() -> None:
    rule = NodesetRule(ReplicationProperty(1), 1, tolerate=0)
    bookies = make_bookies(6, rack_count=1)
    bookies[0] = replace(bookies[0], weight=3.0)
    counts = Counter(choose(bookies, rule, LogId(n)).nodes[0].bookie for n in range(1, 6_000))
    assert abs(counts[BookieId("b0")] / 6_000 - 3 / 8) < 0.03
    assert all(abs(counts[BookieId(f"b{n}")] / 6_000 - 1 / 8) < 0.03 for n in range(1, 6))
    assert choose(bookies, rule, LOG).nodes[0] in bookies


def test_places_that_are_wanted_are_found_among_many() -> None:
    places = [Rack("r0", "k0")] * 50 + [Rack(f"r{n}", f"k{n}") for n in (1, 2, 3)]
    bookies = place_bookies(places)
    rule = NodesetRule(ReplicationProperty(3, 3, 3), 6)
    for number in range(1, 40):
        chosen = choose(bookies, rule, LogId(number))
        assert explain_soundness(chosen.nodes, bookies, rule) is None


# --- Who comes and goes --------------------------------------------------------------------------


def count_exchanges(chosen: ChosenNodeset, bookies: list[ServingBookie], rule: NodesetRule) -> int:
    """Members that are there for their places alone: by a rule that wants none, others are."""
    free = NodesetRule(ReplicationProperty(1), rule.size_of(len(bookies)), tolerate=0)
    return len(names_of(choose(bookies, free, LOG)) - names_of(chosen))


@pytest.mark.parametrize("seed", range(3))
def test_a_bookie_that_comes_or_goes_changes_one_member_beside_what_places_demand(
    seed: int,
) -> None:
    rng = random.Random(seed)
    counts = Counter[int]()
    for _ in range(120):
        places = [Rack(f"r{r}", f"k{k}") for r in range(rng.randint(1, 3)) for k in range(3)]
        shares = [rng.choice((1, 1, 4)) for _ in places]
        bookies = place_bookies(rng.choices(places, shares, k=rng.randint(10, 40)))
        node = rng.randint(2, 4)
        rack = rng.randint(2, min(node, 3))
        region_count = len({bookie.region for bookie in bookies})
        wanted = ReplicationProperty(node, rack, min(rng.randint(1, rack), region_count))
        rule = NodesetRule(wanted, rng.randint(node + 1, node + 6), is_strict=False)
        leaves = rng.choice(bookies)
        left = [bookie for bookie in bookies if bookie != leaves]
        if isinstance(choose_nodeset(left, rule, LOG), Refusal):
            continue
        before, after = choose(bookies, rule), choose(left, rule)
        gone = names_of(before) - names_of(after) - {leaves.bookie}
        exchanges = max(count_exchanges(before, bookies, rule), count_exchanges(after, left, rule))
        assert len(gone) <= min(exchanges, 2), (rule, leaves, gone)
        if leaves.bookie not in names_of(before) and not exchanges:
            assert before == after
        counts[len(gone)] += 1
    assert counts[0] > 80 and counts[0] > 20 * (counts[1] + counts[2]), counts


def test_who_is_absent_counts_as_any_other() -> None:
    bookies = make_bookies(30, rack_count=4)
    rule = NodesetRule(ReplicationProperty(3, 2), 12)
    present = choose(bookies, rule)
    for bookie in bookies:
        others = [replace(b, is_absent=b == bookie) for b in bookies]
        assert choose(others, rule) == present


def test_one_of_three_may_be_absent_and_no_more() -> None:
    rule = NodesetRule(ReplicationProperty(2, 2))
    bookies = make_bookies(3)
    bookies[0] = replace(bookies[0], is_absent=True)
    assert len(choose(bookies, rule).nodes) == 3
    bookies[1] = replace(bookies[1], is_absent=True)
    refusal = refuse(bookies, rule)
    assert refusal.reason == "too_many_absent" and "2 of 3 nodes are absent" in refusal.detail
    waived = choose(bookies, replace(rule, is_strict=False)).waived
    assert [(lack.reason, lack.numbers["rule"]) for lack in waived] == [
        ("absent_hold_all_copies", 1), ("too_many_absent", 2)
    ]  # fmt: skip


def test_more_may_be_absent_than_is_tolerated_where_the_others_do() -> None:
    rule = NodesetRule(ReplicationProperty(3, 2))
    bookies = [replace(b, is_absent=n < 2) for n, b in enumerate(make_bookies(6))]
    assert len(choose(bookies, rule).nodes) == 6
    bookies = [replace(b, is_absent=n < 3) for n, b in enumerate(make_bookies(9))]
    chosen = choose(bookies, rule)
    (shown,) = chosen.waived
    assert len(chosen.nodes) == 9 and shown.reason == "absent_hold_all_copies"
    assert "3 of 9 nodes are absent" in shown.detail


# --- What is refused, and waived -----------------------------------------------------------------


def test_a_refusal_names_the_numbers_and_values_that_go_together() -> None:
    three = refuse(make_bookies(3), NodesetRule(ReplicationProperty(3, 2)))
    assert three.reason == "too_few_bookies" and three.numbers["tolerate"] == 1
    assert three.detail == (
        "3 bookies are less than replication.node 3 and nodeset.tolerate 1 together: "
        "replication.node 2 or nodeset.tolerate 0 would work"
    )
    alike = refuse(make_bookies(3, rack_count=1), NodesetRule(ReplicationProperty(3, 2)))
    assert alike.reason == "too_few_racks" and alike.numbers["racks"] == 1
    assert "replication.node 2 and replication.rack 1 or " in alike.detail
    racks = refuse(make_bookies(8, rack_count=2), NodesetRule(ReplicationProperty(3, 3)))
    assert racks.detail == (
        "the nodeset is in 2 racks, and replication.rack is 3: replication.rack 2 would work"
    )
    wave = refuse(make_bookies(6), NodesetRule(ReplicationProperty(3, 3, 1, 1)))
    assert wave.reason == "no_wave" and "replication.extras 0 would work" in wave.detail
    assert "would work" not in refuse([], NodesetRule(ReplicationProperty(3))).detail


def test_values_that_are_offered_work() -> None:
    rng = random.Random(5)
    tried_count = 0
    while tried_count < 60:
        bookies, rule = draw_small_cluster(rng)
        refusal = choose_nodeset(bookies, rule, LOG)
        if not isinstance(refusal, Refusal) or "would work" not in refusal.detail:
            continue
        offer = refusal.detail.rpartition(": ")[2].removesuffix(" would work")
        for way in offer.split(" or "):
            changes = {n: int(v) for n, v in re.findall(r"\.([a-z_]+) (\d+)", way)}
            of_property = {n: v for n, v in changes.items() if hasattr(rule.wanted, n)}
            fields: dict[str, Any] = {n: v for n, v in changes.items() if n not in of_property}
            fields["wanted"] = replace(rule.wanted, **of_property)
            assert choose(bookies, replace(rule, **fields)).waived == ()
            tried_count += 1


def test_regions_that_must_suffice_are_found_or_refused() -> None:
    wanted = ReplicationProperty(3, 3, 2)
    rule = NodesetRule(wanted, 9, regions_that_must_suffice=2)
    places = [Rack("r0", f"k{n % 6}") for n in range(30)]
    places += [Rack(region, f"k{n}") for region in ("r1", "r2") for n in range(4)]
    for number in range(1, 20):
        nodes = choose(place_bookies(places), rule, LogId(number)).nodes
        for left in itertools.combinations(("r0", "r1", "r2"), 2):
            there = [node for node in nodes if node.region in left]
            assert all(wanted.is_satisfied_by(n for n in there if n != away) for away in there)
    refusal = refuse(place_bookies([p for p in places if p.region != "r2" or p.rack == "k0"]), rule)
    assert refusal.numbers["rule"] == 4
    assert refusal.detail.endswith("replication.regions_that_must_suffice 3 would work")


def test_prefer_takes_what_is_there_and_tells_but_never_lowers_the_property() -> None:
    rule = NodesetRule(ReplicationProperty(3, 2), is_strict=False)
    chosen = choose(make_bookies(3), rule)
    assert len(chosen.nodes) == 3
    assert [(lack.reason, lack.numbers["rule"]) for lack in chosen.waived] == [
        ("too_few_bookies", 1)
    ]
    assert "would work" not in chosen.waived[0].detail
    assert refuse(make_bookies(2), rule).numbers["rule"] == 0
    assert refuse(make_bookies(9, rack_count=1), rule).reason == "too_few_racks"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((None, 3), "nodeset.tolerate 3 is not 0 to 2"),
        ((None, -1), "nodeset.tolerate -1"),
        ((4, 1), "replication.node 3 and replication.extras 1 and nodeset.tolerate 1 together"),
        ((65, 1), "nodeset.size 65 is not 5 to 64"),
        ((None, 1, 1), "1 regions are never replication.region 2"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(
    numbers: tuple[int | None, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        NodesetRule(ReplicationProperty(3, 2, 2, 1), *numbers)  # type: ignore[arg-type]


# --- Who is in service ---------------------------------------------------------------------------


def test_in_service_is_who_serves_has_a_weight_and_lies_in_an_open_region() -> None:
    row = BookieRow(
        BookieId("b0"), LIFE, "r0", "k0", "rw", Duty.SERVING, 2.0, free_bytes=1, is_closed=False,
        keeps_envelopes=True,
    )  # fmt: skip
    serves = ServingBookie(row.bookie, "r0", "k0", LIFE, 2.0)
    for other in (
        row, replace(row, state="ro"), replace(row, is_doubtful=True, steady_in_us=5),
        replace(row, free_bytes=10**9), replace(row, state="absent"),
    ):  # fmt: skip
        assert list_serving([other]) == [serves]
    assert list_serving([replace(row, state="absent")])[0].is_absent
    for other in (
        replace(row, duty=Duty.DRAINING), replace(row, weight=0.0), replace(row, is_closed=True),
        replace(row, is_registered=False), replace(row, keeps_envelopes=False),
    ):  # fmt: skip
        assert list_serving([other]) == []
    assert list_serving([row], lost={Member(row.bookie, LIFE)}) == []
    assert list_serving([row], lost={Member(row.bookie, Incarnation("2"))}) == [serves]
