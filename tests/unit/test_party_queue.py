"""Parties have their turns one after the other, however many of each wait.

Source: duramen.core.reading.party_queue, docs/protocol/read-answers.md "Turns of readers".
"""

from __future__ import annotations

from collections.abc import Callable

from duramen.core.reading.party_queue import PartyQueue


def anyone(_: str | None) -> bool:
    return True


def take_all(
    queue: PartyQueue[str | None, int], may: Callable[[str | None], bool] = anyone
) -> list[tuple[str | None, int]]:
    taken = []
    while (found := queue.take(may)) is not None:
        taken.append(found)
    return taken


def test_one_of_each_party_is_taken_in_turn_and_within_it_who_came_first() -> None:
    queue: PartyQueue[str | None, int] = PartyQueue()
    for number in range(3):
        queue.add("many", number)
    queue.add("one", 7)
    queue.add(None, 8)
    assert (len(queue), queue.party_count) == (5, 3)
    assert take_all(queue) == [("many", 0), ("one", 7), (None, 8), ("many", 1), ("many", 2)]
    assert (len(queue), queue.party_count) == (0, 0)


def test_a_party_that_may_have_nothing_now_is_passed_over_and_keeps_its_place() -> None:
    queue: PartyQueue[str | None, int] = PartyQueue()
    queue.add("full", 1)
    queue.add(None, 2)
    assert take_all(queue, lambda party: party != "full") == [(None, 2)]
    queue.add(None, 3)
    assert take_all(queue) == [("full", 1), (None, 3)]


def test_who_is_gone_is_not_taken_and_no_party_without_items_is_kept() -> None:
    queue: PartyQueue[str | None, int] = PartyQueue()
    for number in range(2):
        queue.add("a", number)
    queue.discard("a", 0)
    queue.discard("a", 0)
    queue.discard("b", 9)
    assert len(queue) == 1
    queue.discard("a", 1)
    assert (len(queue), queue.party_count, queue.take(anyone)) == (0, 0, None)
