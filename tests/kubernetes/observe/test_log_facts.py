"""Whose turn it is to be read, what is kept of a log, and what a look may spend.

Source: docs/kubernetes/one-hand.md "What a look costs" (16, 17).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from duramen_operator.observe.log_facts import HANDFUL, KeptLogFacts, LogWish
from duramen_operator.observe.questions import Silences, Sort
from duramen_operator.observe.request_budget import WINDOW_S, RequestBudget

PLACED = LogWish(is_placed=True)
URGENT = LogWish(is_placed=True, is_urgent=True)
COST = 4


class Turns:
    """Facts of logs and a budget by one clock."""

    def __init__(self, count: int, least_count: int) -> None:
        self.now_s = 0.0
        self.facts = KeptLogFacts(lambda: self.now_s)
        self.budget = RequestBudget(lambda: self.now_s, least_count=least_count)
        self.wanted = dict.fromkeys((f"shop/{index:03}" for index in range(count)), PLACED)

    def look(self, *, after_s: float = WINDOW_S) -> list[str]:
        """One look that reads whoever is chosen."""
        self.now_s += after_s
        self.budget.accrue(len(self.wanted))
        self.facts.begin(self.wanted)
        chosen = self.facts.choose(self.budget)
        for path in chosen:
            describe(self.facts, path)
            for _ in range(COST):
                self.budget.spend()
        return chosen


def describe(facts: KeptLogFacts, path: str, log_id: str = "1", **parts: Any) -> None:
    """The cluster described a log, and its parts."""
    facts.on_described(path, {"log_id": log_id})
    for sort in facts.parts_of(path):
        facts.on_part(path, sort, parts.get(sort.value))


def paths(indices: Iterable[int]) -> list[str]:
    return [f"shop/{index:03}" for index in indices]


def test_few_logs_are_read_whole_in_each_look() -> None:
    turns = Turns(100, least_count=400)
    for _ in range(3):
        assert turns.look() == paths(range(100))


def test_many_logs_take_turns_the_oldest_facts_first() -> None:
    turns = Turns(100, least_count=160)
    turns.look()
    assert turns.look() == paths(range(40))
    assert turns.look() == paths(range(40, 80))
    assert turns.look() == paths([*range(80, 100), *range(20)])


def test_a_hurry_of_looks_shares_what_accrues_and_each_reads_a_handful() -> None:
    turns = Turns(100, least_count=160)
    turns.look()
    turns.look()
    hurry = [turns.look(after_s=1) for _ in range(5)]
    assert [len(chosen) for chosen in hurry] == [HANDFUL] * 5
    assert len({path for chosen in hurry for path in chosen}) == 5 * HANDFUL


@pytest.mark.parametrize("kind", ["urgent", "renewed", "unknown", "silent"])
def test_who_is_called_for_is_read_first_whatever_the_budget_says(kind: str) -> None:
    turns = Turns(100, least_count=1)
    turns.look()
    called = paths(range(50, 90))
    match kind:
        case "urgent":
            turns.wanted |= dict.fromkeys(called, URGENT)
        case "renewed":
            turns.facts.renew(called)
        case "unknown":
            called = paths(range(100, 140))
            turns.wanted |= dict.fromkeys(called, PLACED)
        case "silent":
            turns.facts.begin(turns.wanted)
            for path in called:
                turns.facts.on_problem(path, {"problem": {}}, is_unanswered=True)
    chosen = turns.look(after_s=0)
    assert sorted(chosen[:40]) == called
    assert len(chosen) == 40 + HANDFUL
    turns.facts.begin(turns.wanted)
    if kind != "urgent":
        assert len(turns.facts.choose(turns.budget)) == HANDFUL, "once it was read it takes turns"


def test_nothing_is_kept_of_logs_that_nobody_wants() -> None:
    turns = Turns(5, least_count=400)
    turns.look()
    turns.facts.renew(["shop/004", "shop/never"])
    del turns.wanted["shop/004"]
    turns.facts.begin(turns.wanted)
    assert turns.facts.paths == set(paths(range(4)))
    assert turns.facts.statistics() == {"logs": 4, "renewed": 0}


def test_facts_of_an_earlier_look_are_shown_and_called_old() -> None:
    turns = Turns(2, least_count=400)
    turns.look()
    turns.facts.begin(turns.wanted)
    describe(turns.facts, "shop/000", tail={"tail": {"seq_num": 7}})
    view = turns.facts.view()
    assert view["shop/000"]["tail"] == 7
    assert view["shop/001"]["log"] == {"log_id": "1"}
    assert turns.facts.list_stale() == {"shop/001"}


def test_another_log_of_the_name_has_nothing_of_the_one_before() -> None:
    turns = Turns(1, least_count=400)
    turns.facts.begin(turns.wanted)
    (path,) = turns.wanted
    describe(turns.facts, path, tail={"tail": {"seq_num": 7}})
    turns.facts.on_owners({"1": "s0"}, frozenset())
    turns.facts.on_described(path, {"log_id": "2"})
    view = turns.facts.view()[path]
    assert (view["tail"], view["owner"], view["segments"]) == (None, "", None)


def test_a_silent_log_is_unknown_and_has_what_was_known_when_it_answers_again() -> None:
    turns = Turns(1, least_count=400)
    turns.facts.begin(turns.wanted)
    (path,) = turns.wanted
    describe(turns.facts, path, tail={"tail": {"seq_num": 7}})
    problem = {"problem": {"code": "unreachable", "detail": "no answer"}}
    turns.facts.on_problem(path, problem, is_unanswered=True)
    assert turns.facts.view() == {path: problem}
    turns.facts.begin(turns.wanted)
    assert turns.facts.list_stale() == frozenset(), "nothing can rest on what is not known"
    assert turns.facts.list_left() == [], "it is told, and need not be asked in a hurry"
    turns.facts.on_described(path, {"log_id": "1"})
    assert turns.facts.view()[path]["tail"] == 7


def test_an_owner_that_is_silent_stays_as_it_was_known() -> None:
    turns = Turns(2, least_count=400)
    turns.facts.begin(turns.wanted)
    for log_id, path in enumerate(turns.wanted, 1):
        describe(turns.facts, path, str(log_id))
    turns.facts.on_owners({"1": "s0", "2": "s1"}, frozenset())
    turns.facts.on_owners({}, frozenset({"s0"}))
    assert [one["owner"] for one in turns.facts.view().values()] == ["s0", ""]
    turns.facts.on_owners({"1": "s2"}, frozenset({"s0"}))
    assert [one["owner"] for one in turns.facts.view().values()] == ["s2", ""]


def test_who_was_silent_is_asked_last_and_the_longest_silent_first() -> None:
    silences = Silences()
    for subject in ("b", "a", "b"):
        silences.note(Sort.TAIL, subject)
    assert silences.order(["a", "b", "c", "d"]) == ["c", "d", "a", "b"]
    silences.note(Sort.DESCRIPTION, "a")
    silences.forget(Sort.TAIL, "a")
    assert silences.order(["a", "b"]) == ["b", "a"]
    assert (silences.holds(Sort.TAIL, "a"), silences.holds(Sort.DESCRIPTION, "a")) == (False, True)
    silences.keep(["a"])
    assert not silences.holds(Sort.TAIL, "b")
