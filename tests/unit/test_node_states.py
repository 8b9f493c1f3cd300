"""The lists of a process (R27): who gets on them, who never does, and for how long.

Not here: what writers do about it (`test_ledger_writer`), clock and timer (`test_node_watch`).
"""

from __future__ import annotations

import random

from duramen.core.placement.node_states import GRAY_US_FIRST, GRAY_US_MAX, NodeStates
from duramen.core.placement.rule import Candidate
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, Incarnation, Member
from duramen.units import MS, SECOND

A, B, C = (
    Member(BookieId(name), Incarnation(f"{number:032x}")) for number, name in enumerate("abc")
)


def answer(nodes: NodeStates, member: Member, sent_us: int, *, is_entry: bool = True) -> None:
    nodes.on_answered(member, sent_us, is_entry=is_entry)
    nodes.validate()


def silence(nodes: NodeStates, member: Member, sent_us: int, now_us: int) -> None:
    nodes.on_silent(member, sent_us, now_us)
    nodes.validate()


def test_who_is_silent_while_another_answers_is_listed_until_its_time_is_over() -> None:
    nodes = NodeStates()
    answer(nodes, B, 150)
    silence(nodes, A, 100, 2_000)
    assert nodes.shunned == {A} and nodes.next_expiry_us == 2_000 + GRAY_US_FIRST
    assert nodes.expire(1_999 + GRAY_US_FIRST) is None
    assert nodes.expire(2_000 + GRAY_US_FIRST) == frozenset({A})
    assert nodes.shunned == frozenset() and nodes.next_expiry_us is None


def test_nobody_is_listed_while_nobody_answers() -> None:
    nodes = NodeStates()
    answer(nodes, B, 90)  # of a store before the silence
    for sent_us in range(100, 1_000, 100):
        for member in (A, B, C):
            silence(nodes, member, sent_us, sent_us + 50)
    assert nodes.shunned == frozenset()


def test_the_first_answer_after_a_time_without_any_lists_nobody() -> None:
    """We were cut off. What had no answer then has none later, and says nothing of who answers."""
    nodes = NodeStates()
    for member in (A, B):
        silence(nodes, member, 100, 2_100)
    answer(nodes, A, 3_000)
    answer(nodes, B, 3_001)
    for member in (A, B):
        silence(nodes, member, 1_500, 3_500)  # told late, of a store before their answers
    assert nodes.shunned == frozenset()
    silence(nodes, B, 3_100, 5_100)
    assert nodes.shunned == frozenset()  # nobody answered a store sent since
    answer(nodes, A, 5_200)
    silence(nodes, B, 5_200, 7_200)
    assert nodes.shunned == {B}


def test_another_incarnation_of_the_silent_bookie_is_no_witness() -> None:
    nodes = NodeStates()
    again = Member(A.bookie, B.incarnation)
    answer(nodes, again, 500)
    silence(nodes, A, 100, 2_000)
    assert nodes.shunned == frozenset()


def test_listings_grow_with_each_silence_and_shrink_with_each_answer() -> None:
    nodes = NodeStates()
    lengths = []
    now_us = 0
    for _ in range(9):
        now_us += 100 * SECOND
        answer(nodes, B, now_us)
        silence(nodes, A, now_us, now_us)
        assert nodes.next_expiry_us is not None
        lengths.append((nodes.next_expiry_us - now_us) // SECOND)
        nodes.expire(now_us + GRAY_US_MAX)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(3):
        now_us += 100
        answer(nodes, A, now_us)
    answer(nodes, B, now_us + 1)
    silence(nodes, A, now_us + 1, now_us + 1)
    assert nodes.next_expiry_us == now_us + 1 + GRAY_US_MAX // 8


def test_an_answer_ends_the_listing() -> None:
    nodes = NodeStates()
    answer(nodes, B, 200)
    silence(nodes, A, 100, 2_000)
    assert nodes.on_answered(A, 2_500, is_entry=False) == frozenset({A})
    assert nodes.shunned == frozenset()


def test_who_has_no_space_is_left_until_it_takes_an_entry_or_its_time_is_over() -> None:
    nodes = NodeStates()
    nodes.on_refused(A, BookieStatus.READ_ONLY, 1_000)
    answer(nodes, A, 1_100, is_entry=False)
    assert nodes.shunned == {A}  # what recovery writes is taken
    answer(nodes, A, 1_200)
    assert nodes.shunned == frozenset()
    nodes.on_refused(A, BookieStatus.READ_ONLY, 2_000)
    assert nodes.next_expiry_us is not None
    nodes.expire(nodes.next_expiry_us)
    assert nodes.shunned == frozenset()


def test_who_is_overloaded_comes_last_in_choices_and_is_left_by_nobody() -> None:
    nodes = NodeStates()
    candidates = [Candidate(member, "r", member.bookie, 1.0) for member in (A, B, C)]
    assert nodes.mark(candidates) is candidates
    nodes.on_refused(A, BookieStatus.OVERLOADED, 1_000)
    assert nodes.shunned == frozenset()
    assert [c.is_steady for c in nodes.mark(candidates)] == [False, True, True]
    assert nodes.mark(candidates) is nodes.mark(candidates)
    nodes.expire(1_000 + SECOND)
    assert nodes.mark(candidates) is candidates


def test_refusals_of_an_entry_say_nothing_of_the_bookie() -> None:
    refusals = {status for status in BookieStatus if NodeStates.is_refusal(status)}
    assert refusals == {
        BookieStatus.READ_ONLY, BookieStatus.OVERLOADED, BookieStatus.WRONG_INCARNATION
    }  # fmt: skip


def test_random_histories_keep_the_invariants_and_list_only_with_a_witness() -> None:
    rng = random.Random(11)
    for _ in range(200):
        nodes = NodeStates()
        answered = dict.fromkeys((A, B, C), -1)
        now_us = 0
        for _ in range(60):
            now_us += rng.randrange(200 * MS)
            member = rng.choice((A, B, C))
            sent_us = max(now_us - rng.randrange(3 * SECOND), 0)
            match rng.randrange(4):
                case 0:
                    answer(nodes, member, sent_us)
                    answered[member] = max(answered[member], sent_us)
                case 1:
                    before = nodes.shunned
                    silence(nodes, member, sent_us, now_us)
                    if nodes.shunned - before:
                        assert sent_us > answered[member]
                        assert max(answered[m] for m in answered if m != member) > answered[member]
                case 2:
                    nodes.on_refused(member, BookieStatus.OVERLOADED, now_us)
                case _:
                    nodes.expire(now_us)
            nodes.validate()
