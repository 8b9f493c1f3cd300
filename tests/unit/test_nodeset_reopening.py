"""Why an epoch's nodeset should be another one: each reason by name, and none where none is.

Not here: which nodeset is chosen (`test_nodeset`).
"""

from __future__ import annotations

import random
from dataclasses import replace

from duramen.core.flexible.nodeset import ChosenNodeset, ServingBookie, choose_nodeset
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.reopening import explain_reopening
from duramen.core.flexible.soundness import NodesetRule
from duramen.ids import BookieId, Incarnation, LogId

WANTED = ReplicationProperty(3, 2)
RULE = NodesetRule(WANTED, 6)
LOG = LogId(3)


def make_bookies(count: int) -> list[ServingBookie]:
    return [
        ServingBookie(BookieId(f"b{n:02}"), "r0", f"k{n % 4}", Incarnation("1"))
        for n in range(count)
    ]


def choose(bookies: list[ServingBookie], rule: NodesetRule = RULE) -> tuple[ServingBookie, ...]:
    chosen = choose_nodeset(bookies, rule, LOG)
    assert isinstance(chosen, ChosenNodeset), chosen
    return chosen.nodes


def explain(
    before: list[ServingBookie], now: list[ServingBookie], rule: NodesetRule = RULE
) -> list[tuple[str, str]]:
    held, chosen = choose(before), choose(now, rule)
    reasons = explain_reopening(held, WANTED, chosen, rule.wanted, now)
    return [(reason.kind, reason.detail) for reason in reasons]


def change(bookies: list[ServingBookie], **fields: object) -> list[ServingBookie]:
    """The first member of the nodeset changes."""
    member = choose(bookies)[0]
    return [replace(b, **fields) if b == member else b for b in bookies]  # type: ignore[arg-type]


def test_each_reason_is_named() -> None:
    bookies = make_bookies(16)
    member = choose(bookies)[0].bookie
    replaced = explain(bookies, change(bookies, incarnation=Incarnation("2")))
    assert replaced == [("replaced", f"{member} has another incarnation: 1 became 2")]
    relabelled = explain(bookies, change(bookies, rack="k9"))
    assert relabelled == [("relabelled", f"{member} is in r0/k9 and was in {place_of(member)}")]
    heavier = explain(bookies, change(bookies, weight=2.5))
    assert heavier == [("weight", f"{member} has weight 2.5 and had 1")]
    lighter = explain(bookies, change(bookies, weight=0.001))
    assert [kind for kind, _ in lighter] == ["weight", "added"]
    left = explain(bookies, [b for b in bookies if b.bookie != member])
    assert [kind for kind, _ in left] == ["left", "added"]
    assert left[0][1] == f"{member} is not in service"
    larger = explain(bookies, bookies, replace(RULE, size=7))
    assert [kind for kind, _ in larger] == ["size", "added"]
    assert larger[0][1] == "7 nodes instead of 6"
    wider = explain(bookies, bookies, replace(RULE, wanted=ReplicationProperty(3, 3)))
    assert wider[0][1] == (
        "replication node 3, rack 2, region 1, extras 0 becomes node 3, rack 3, region 1, extras 0"
    )


def place_of(name: str) -> str:
    return next(f"{b.region}/{b.rack}" for b in make_bookies(16) if b.bookie == name)


def test_a_bookie_that_is_added_tells_whom_it_displaces() -> None:
    bookies = make_bookies(12)
    kinds = set()
    for number in range(50):
        newcomer = ServingBookie(BookieId(f"n{number}"), "r0", "k0", Incarnation("1"))
        kinds.add(tuple(kind for kind, _ in explain(bookies, [*bookies, newcomer])))
    assert kinds == {(), ("passed_over", "added")}


def test_a_reason_is_given_exactly_if_something_differs() -> None:
    rng = random.Random(1)
    for _ in range(300):
        bookies = make_bookies(rng.randint(8, 14))
        now = [
            replace(
                bookie,
                weight=rng.choice((1.0,) * 20 + (2.0,)),
                rack=rng.choice((bookie.rack,) * 20 + ("k7",)),
                incarnation=Incarnation(rng.choice("1" * 20 + "2")),
            )
            for bookie in bookies
            if rng.random() < 0.97
        ]
        if len(now) >= 7:
            assert bool(explain(bookies, now)) == (choose(bookies) != choose(now))


def test_who_is_absent_and_comes_back_is_no_reason() -> None:
    rng = random.Random(2)
    bookies = make_bookies(16)
    held = choose(bookies)
    refused_count = 0
    for _ in range(200):
        now = [replace(bookie, is_absent=rng.random() < 0.15) for bookie in bookies]
        chosen = choose_nodeset(now, RULE, LOG)
        if not isinstance(chosen, ChosenNodeset):
            refused_count += 1
            assert "absent" in chosen.reason
            continue
        assert explain_reopening(held, WANTED, chosen.nodes, WANTED, now) == []
    assert 0 < refused_count < 50
