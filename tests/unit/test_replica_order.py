"""In which order replicas are asked: failures, nearness, latency, and who is kept.

Source: duramen.core.reading.replica_order, docs/protocol/reading.md "Which replica".
"""

from __future__ import annotations

from random import Random

from duramen.core.reading.replica_order import (
    FAILURE_MEMORY_US,
    LATENCY_MEMORY_US,
    OVERLOAD_MEMORY_US,
    Place,
    ReplicaOrder,
)
from duramen.ids import BookieId, Incarnation, Member
from duramen.units import MS
from tests.unit.reader_bench import HERE, PLACES, A, B, C, D


def test_order_is_nearest_first_and_failed_last_for_a_while() -> None:
    order = ReplicaOrder(HERE, Random(3))
    order.on_places(PLACES)
    assert order.rank([D, C, B, A], 0) == [A, B, C, D]
    order.on_failure(A, 10)
    assert order.rank([A, B, C], 11) == [B, C, A]
    assert order.rank([A, B, C], 10 + FAILURE_MEMORY_US) == [A, B, C]
    order.on_success(A)
    assert order.rank([A, B, C], 12) == [A, B, C]


def test_an_overloaded_bookie_is_spared_for_a_moment_and_not_taken_for_dead() -> None:
    order = ReplicaOrder(HERE, Random(3))
    order.on_places(PLACES)
    order.on_overload(A, 10)
    assert order.rank([A, B, C], 9 + OVERLOAD_MEMORY_US) == [B, C, A]
    assert order.rank([A, B, C], 10 + OVERLOAD_MEMORY_US) == [A, B, C]
    order.on_failure(B, 10)
    order.on_overload(B, 11)
    assert order.rank([A, B, C], 11 + OVERLOAD_MEMORY_US) == [A, C, B], "the longer one counts"


def test_equals_come_in_the_order_of_their_latency_as_long_as_it_is_fresh() -> None:
    order = ReplicaOrder(Place("x", "y"), Random(3))
    order.on_places(dict.fromkeys((A.bookie, B.bookie, C.bookie), Place("eu", "r9")))
    order.on_latency(A, 20 * MS, 0)
    order.on_latency(B, 5 * MS, 0)
    order.on_latency(C, 9 * MS, 0)
    firsts = {tuple(order.rank([A, B, C], 1)) for _ in range(40)}
    assert firsts == {(B, C, A), (C, B, A)}, "less than twice as slow is as good"
    assert {order.rank([A, B, C], LATENCY_MEMORY_US)[0] for _ in range(40)} == {A, B, C}
    for _ in range(40):
        order.on_latency(A, 5 * MS, 2)
    assert {order.rank([A, B, C], 3)[0] for _ in range(40)} == {A, B, C}, "it is fast again"


def test_nearness_makes_up_for_less_than_four_times_the_time() -> None:
    order = ReplicaOrder(HERE, Random(3))
    order.on_places(PLACES)
    order.on_latency(B, 10 * MS, 0)
    order.on_latency(A, 40 * MS - 1, 0)
    assert order.rank([C, B, A], 1) == [A, B, C]
    late_us = order.speculation.delay_us(1)
    order.on_late(A, late_us - 1, 1)
    assert order.rank([C, B, A], 2) == [A, B, C], "an answer may take so long"
    order.on_late(A, late_us, 1)
    assert order.rank([C, B, A], 2) == [B, A, C], "however near it is"
    assert order.rank([C, B, A], 1 + LATENCY_MEMORY_US) == [A, B, C]
    order.on_latency(A, 2 * late_us, 3)
    order.on_late(A, late_us, 4)
    order.on_latency(B, 10 * MS, 4)
    assert order.rank([C, B, A], 3 + LATENCY_MEMORY_US) == [A, B, C], "that was known"


def test_the_slowest_comes_last_even_if_it_is_the_nearest_of_three() -> None:
    order = ReplicaOrder(HERE, Random(3))
    order.on_places(PLACES)
    order.on_latency(A, 400 * MS, 0)
    order.on_latency(B, 40 * MS, 0)
    order.on_latency(C, 10 * MS, 0)
    assert order.rank([A, B, C], 1) == [C, B, A]


def test_an_answer_that_took_no_time_at_all_is_a_fast_one() -> None:
    """By a clock of microseconds, or one that stands still."""
    order = ReplicaOrder(Place("x", "y"), Random(3))
    order.on_places(dict.fromkeys((A.bookie, B.bookie), Place("eu", "r9")))
    order.on_latency(A, 0, 0)
    assert {order.rank([A, B], 1)[0] for _ in range(40)} == {A, B}
    order.on_latency(B, 50 * MS, 1)
    assert order.rank([A, B], 2) == [A, B]


def test_latencies_of_a_bookie_go_with_it_to_another_place() -> None:
    order = ReplicaOrder(HERE, Random(3))
    order.on_places(PLACES)
    order.on_latency(A, 900 * MS, 0)
    order.on_latency(B, 1 * MS, 0)
    order.on_places({**PLACES, C.bookie: HERE, A.bookie: PLACES[C.bookie]})
    assert order.rank([C, B, A], 1) == [C, B, A]


def test_what_fails_together_is_not_asked_one_after_the_other() -> None:
    """Own rack, another rack of the region, then the regions in turn (docs/protocol/reading.md
    "Which replica")."""
    places = {
        "xa1": ("x", "a"), "xa2": ("x", "a"), "xb1": ("x", "b"), "xc1": ("x", "c"),
        "y1": ("y", "a"), "y2": ("y", "a"), "y3": ("y", "b"), "z1": ("z", "a"),
    }  # fmt: skip
    members = {name: Member(BookieId(name), Incarnation("0" * 32)) for name in places}
    names = {member: name for name, member in members.items()}

    def rank(here: Place, *wanted: str, seed: int) -> list[str]:
        order = ReplicaOrder(here, Random(seed))
        order.on_places({BookieId(name): Place(*place) for name, place in places.items()})
        return [names[m] for m in order.rank([members[name] for name in wanted], 0)]

    for seed in range(20):
        found = rank(Place("x", "a"), "z1", "y1", "xb1", "xa1", seed=seed)
        assert found[:2] == ["xa1", "xb1"] and set(found[2:]) == {"y1", "z1"}
        found = rank(Place("x", "a"), *places, seed=seed)
        assert found[0][:2] == "xa" and found[1][:2] in ("xb", "xc")
        assert {found[2][0], found[3][0]} == {"y", "z"}, "one of each other region"
        assert [name[0] for name in found[4:]] == ["x", "y", "x", "y"], found
        racks_of_y = [places[name][1] for name in found if name[0] == "y"]
        assert racks_of_y[0] != racks_of_y[1], "its racks in turn as well"
        found = rank(Place("x", "d"), "xb1", "xc1", "y1", seed=seed)
        assert set(found[:2]) == {"xb1", "xc1"} and found[2] == "y1", "no replica in the own rack"
        found = rank(Place("x", "a"), "xa1", "xa2", "y1", seed=seed)
        assert found[1] == "y1", "one rack nearby is no second place"
        found = rank(Place("w", "a"), "y1", "y2", "z1", seed=seed)
        assert {found[0][0], found[1][0]} == {"y", "z"}


def test_a_reader_keeps_its_replica_among_equals() -> None:
    order = ReplicaOrder(Place("x", "y"), Random(3))
    order.on_places(dict.fromkeys((A.bookie, B.bookie, C.bookie), Place("eu", "r9")))
    assert {order.rank([A, B, C], 0, B)[0] for _ in range(40)} == {B}
    order.on_latency(A, 5 * MS, 0)
    order.on_latency(B, 9 * MS, 0)
    assert order.rank([A, B], 1, B)[0] == B, "less than twice as slow is as good"
    order.on_latency(B, 50 * MS, 1)
    assert order.rank([A, B], 2, B)[0] == A
    near = ReplicaOrder(HERE, Random(3))
    near.on_places(PLACES)
    assert near.rank([A, B, C], 0, C)[0] == A, "nearer is better by far"


def test_equals_are_shuffled() -> None:
    order = ReplicaOrder(Place("x", "y"), Random(3))
    order.on_places(dict.fromkeys((A.bookie, B.bookie, C.bookie), Place("eu", "r9")))
    firsts = {order.rank([A, B, C], 0)[0] for _ in range(40)}
    assert firsts == {A, B, C}
