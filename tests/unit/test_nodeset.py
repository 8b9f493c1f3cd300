"""Nodesets: sound by definition, steady when bookies come and go, by weight.

Soundness is compared with all sets of nodes that may be away. Not here: the property's own
arithmetic (`test_replication_property`).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

from duramen.core.flexible.nodeset import NodesetRule, choose_nodeset, explain_soundness
from duramen.core.flexible.property import Node, ReplicationProperty
from duramen.core.placement.rule import Refusal
from duramen.ids import BookieId, LogId

LOG = LogId(7)


def make_nodes(count: int, rack_count: int = 3, region_count: int = 1) -> list[Node]:
    return [
        Node(BookieId(f"b{n}"), f"r{n % region_count}", f"k{n % rack_count}") for n in range(count)
    ]


def even(nodes: list[Node]) -> dict[BookieId, float]:
    return {node.bookie: 1.0 for node in nodes}


def choose(
    nodes: list[Node], rule: NodesetRule, log_id: LogId = LOG, **weights: float
) -> tuple[Node, ...]:
    named = {BookieId(name): weight for name, weight in weights.items()}
    chosen = choose_nodeset(nodes, even(nodes) | named, rule, log_id)
    assert not isinstance(chosen, Refusal), chosen
    return chosen


def is_sound_by_definition(
    chosen: tuple[Node, ...], everybody: list[Node], rule: NodesetRule
) -> bool:
    wanted = rule.wanted
    aways = [set(s) for s in itertools.combinations(chosen, min(rule.tolerate, len(chosen)))]

    def without(rack: tuple[str, str], nodes: list[Node] | tuple[Node, ...]) -> set[Node]:
        return {node for node in nodes if (node.region, node.rack) != rack}

    racks = {(node.region, node.rack) for node in everybody}
    if len(racks) > 1 and all(wanted.is_satisfied_by(without(r, everybody)) for r in racks):
        held = {(node.region, node.rack) for node in chosen}
        if len(held) < 2:
            return False
        aways += [set(chosen) - without(rack, chosen) for rack in held]
        return all(wanted.is_satisfied_by(set(chosen) - away) for away in aways) and not any(
            wanted.is_satisfied_by(a) for a in aways[: len(aways) - len(held)]
        )
    return all(
        wanted.is_satisfied_by(set(chosen) - away) and not wanted.is_satisfied_by(away)
        for away in aways
    )


def test_soundness_is_what_it_says_on_all_small_nodesets() -> None:
    rng = random.Random(3)
    kinds = Counter[str]()
    for _ in range(3_000):
        everybody = [
            Node(BookieId(f"b{n}"), f"r{rng.randrange(2)}", f"k{rng.randrange(3)}")
            for n in range(rng.randrange(1, 9))
        ]
        node = rng.randrange(1, 4)
        rack = rng.randrange(1, node + 1)
        wanted = ReplicationProperty(node, rack, rng.randrange(1, rack + 1))
        rule = NodesetRule(wanted, rng.choice((None, 3, 5)), rng.randrange(3))
        chosen = tuple(rng.sample(everybody, rng.randrange(len(everybody) + 1)))
        refusal = explain_soundness(chosen, everybody, rule)
        by_definition = is_sound_by_definition(chosen, everybody, rule)
        assert (refusal is None) == by_definition, (chosen, rule, refusal)
        kinds[refusal.reason if refusal else "sound"] += 1
    assert min(kinds[kind] for kind in ("sound", "too_few_bookies", "too_few_racks")) > 50, kinds


def test_what_is_chosen_is_sound_and_small_clusters_are_used_whole() -> None:
    rule = NodesetRule(ReplicationProperty(3, 2))
    nodes = make_nodes(6)
    assert set(choose(nodes, rule)) == set(nodes)
    nodes = make_nodes(60, rack_count=5)
    chosen = choose(nodes, rule)
    assert len(chosen) == 20 and explain_soundness(chosen, nodes, rule) is None


def test_a_bookie_that_comes_or_goes_changes_one_member() -> None:
    rule = NodesetRule(ReplicationProperty(3, 2), 8)
    nodes = make_nodes(40, rack_count=4)
    for number in range(1, 60):
        before = set(choose(nodes, rule, LogId(number)))
        without = nodes[: number % 40] + nodes[number % 40 + 1 :]
        assert len(before - set(choose(without, rule, LogId(number)))) <= 1


def test_shares_follow_weights() -> None:
    rule = NodesetRule(ReplicationProperty(1), 1, tolerate=0)
    nodes = make_nodes(6, rack_count=1)
    counts = Counter(choose(nodes, rule, LogId(n), b0=3.0)[0].bookie for n in range(20_000))
    assert abs(counts[BookieId("b0")] / 20_000 - 3 / 8) < 0.02
    assert all(abs(counts[BookieId(f"b{n}")] / 20_000 - 1 / 8) < 0.02 for n in range(1, 6))


def test_places_that_are_wanted_are_found_among_many() -> None:
    nodes = [Node(BookieId(f"b{n}"), "r0", "k0") for n in range(50)]
    nodes += [Node(BookieId(f"c{n}"), f"r{n}", f"k{n}") for n in (1, 2, 3)]
    rule = NodesetRule(ReplicationProperty(3, 3, 3), 6)
    for number in range(1, 40):
        chosen = choose(nodes, rule, LogId(number))
        assert explain_soundness(chosen, nodes, rule) is None


def test_a_refusal_names_the_numbers() -> None:
    nodes = make_nodes(3)
    refusal = choose_nodeset(nodes, even(nodes), NodesetRule(ReplicationProperty(3, 3)), LOG)
    assert isinstance(refusal, Refusal) and refusal.reason == "too_few_bookies"
    assert "3 bookies" in refusal.detail and refusal.numbers["tolerate"] == 1
    nodes = make_nodes(8, rack_count=2)
    refusal = choose_nodeset(nodes, even(nodes), NodesetRule(ReplicationProperty(3, 3)), LOG)
    assert isinstance(refusal, Refusal) and refusal.reason == "too_few_racks"
    rule = NodesetRule(ReplicationProperty(2), None, tolerate=2)
    refusal = choose_nodeset(nodes, even(nodes), rule, LOG)
    assert isinstance(refusal, Refusal) and refusal.reason == "tolerates_all_copies"
