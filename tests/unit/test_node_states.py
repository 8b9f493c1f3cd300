"""The lists of a process (R27): who gets on them, who never does, and for how long.

Not here: what writers do about it (`test_ledger_writer`), clock and timer (`test_node_watch`).
"""

from __future__ import annotations

import random

from duramen.core.placement.node_states import GRAY_US_FIRST, GRAY_US_MAX, ListReason, NodeStates
from duramen.core.placement.rule import Candidate
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, Incarnation, Member
from duramen.units import MS, SECOND

OK, SEALED = BookieStatus.OK, BookieStatus.SEALED
FULL, OVERLOADED = BookieStatus.READ_ONLY, BookieStatus.OVERLOADED
A, B, C = (
    Member(BookieId(name), Incarnation(f"{number:032x}")) for number, name in enumerate("abc")
)
CANDIDATES = [Candidate(member, "r", member.bookie, 1.0) for member in (A, B, C)]


class Nodes(NodeStates):
    """The lists, checked after each event; frames are answered 1 ms after they were sent."""

    def answer(
        self, member: Member, sent_us: int, *statuses: BookieStatus, now_us: int | None = None
    ) -> None:
        now_us = sent_us + 1 * MS if now_us is None else now_us
        self.on_answered(member, statuses or (OK,), sent_us, now_us)
        self.validate()

    def silence(self, member: Member, sent_us: int, now_us: int | None = None) -> None:
        self.on_silent(member, sent_us, sent_us + 2 * SECOND if now_us is None else now_us)
        self.validate()

    def listed(self) -> dict[Member, str]:
        rows = self.statistics(0)["listed"]
        return {Member(row["bookie"], row["incarnation"]): row["reason"] for row in rows}


def test_who_is_silent_while_another_is_heard_is_listed_until_its_time_is_over() -> None:
    nodes = Nodes()
    nodes.answer(B, 100)  # of the same entry
    nodes.silence(A, 150)
    end_us = 150 + 2 * SECOND + GRAY_US_FIRST
    assert nodes.shunned == {A} and nodes.next_expiry_us == end_us
    nodes.expire(end_us - 1)
    assert nodes.shunned == {A}
    nodes.expire(end_us)
    assert nodes.shunned == frozenset() and nodes.next_expiry_us is None


def test_nobody_is_listed_while_nobody_is_heard() -> None:
    nodes = Nodes()
    nodes.answer(B, 0)
    for sent_us in range(1 * SECOND, 20 * SECOND, SECOND):
        for member in (A, B, C):
            nodes.silence(member, sent_us)
    assert nodes.listed() == {}


def test_when_somebody_is_heard_again_the_silences_in_between_are_forgotten() -> None:
    """The network was away from 1 s to 60 s; B's answer is the first one after that."""
    nodes = Nodes()
    for member in (A, B, C):
        nodes.answer(member, 0)
    for sent_us in range(1 * SECOND, 58 * SECOND, SECOND):
        for member in (A, B, C):
            nodes.silence(member, sent_us)
    nodes.answer(B, 60 * SECOND)
    nodes.silence(C, 59 * SECOND)  # sent while nobody was heard, told 1 s later
    assert nodes.listed() == {}
    nodes.answer(B, 61 * SECOND)
    nodes.silence(C, 60 * SECOND + 2 * MS)
    assert nodes.shunned == {C}


def test_an_answer_that_stored_nothing_ends_no_silence() -> None:
    """A disk that hangs answers what needs no record: repetitions, refusals of a sealed epoch."""
    nodes = Nodes()
    nodes.answer(A, 60, SEALED, now_us=SECOND)
    nodes.answer(B, 100)
    nodes.silence(A, 50)
    assert nodes.shunned == {A}
    nodes.answer(A, 3 * SECOND, SEALED)
    assert nodes.shunned == {A}
    nodes.answer(A, 3 * SECOND, SEALED, OK)
    assert nodes.shunned == frozenset()


def test_what_was_sent_before_it_stored_again_is_no_new_silence() -> None:
    nodes = Nodes()
    nodes.answer(A, 500 * MS)
    nodes.answer(B, 500 * MS)
    nodes.silence(A, 400 * MS)
    assert nodes.listed() == {}


def test_who_refuses_is_heard() -> None:
    nodes = Nodes()
    nodes.answer(B, 100, OVERLOADED, OK)
    nodes.silence(A, 50)
    assert nodes.shunned == {A}


def test_another_incarnation_of_the_silent_bookie_is_no_witness() -> None:
    nodes = Nodes()
    nodes.answer(Member(A.bookie, B.incarnation), 500)
    nodes.silence(A, 100)
    assert nodes.listed() == {}


def test_listings_grow_with_each_silence_and_shrink_with_each_entry_stored() -> None:
    nodes = Nodes()
    lengths = []
    now_us = 0
    for _ in range(9):
        now_us += 100 * SECOND
        nodes.answer(B, now_us)
        nodes.silence(A, now_us, now_us + SECOND)
        assert nodes.next_expiry_us is not None
        lengths.append((nodes.next_expiry_us - now_us - SECOND) // SECOND)
        nodes.expire(now_us + 2 * GRAY_US_MAX)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(3):
        now_us += 10 * SECOND
        nodes.answer(A, now_us)
    nodes.answer(B, now_us + SECOND)
    nodes.silence(A, now_us + SECOND, now_us + 3 * SECOND)
    assert nodes.next_expiry_us == now_us + 3 * SECOND + GRAY_US_MAX // 8


def test_who_refuses_comes_last_in_choices_and_is_left_by_nobody() -> None:
    nodes = Nodes()
    assert nodes.mark(CANDIDATES) is CANDIDATES
    nodes.answer(A, 0, FULL)
    assert nodes.shunned == frozenset() and nodes.listed() == {A: "takes nothing new"}
    assert [c.is_steady for c in nodes.mark(CANDIDATES)] == [False, True, True]
    assert nodes.mark(CANDIDATES) is nodes.mark(CANDIDATES)
    assert nodes.next_expiry_us is not None
    nodes.expire(nodes.next_expiry_us)
    assert nodes.mark(CANDIDATES) is CANDIDATES


def test_the_gravest_refusal_of_a_frame_counts() -> None:
    nodes = Nodes()
    nodes.answer(A, 0, OVERLOADED, BookieStatus.WRONG_INCARNATION, FULL, OK)
    assert nodes.listed() == {A: "other incarnation"}


def test_a_full_one_that_is_silent_is_left_and_stays_full_when_it_answers() -> None:
    nodes = Nodes()
    nodes.answer(A, 0, FULL)
    nodes.answer(B, SECOND)
    nodes.silence(A, SECOND)
    assert nodes.shunned == {A}
    nodes.answer(A, 4 * SECOND)
    assert nodes.shunned == frozenset() and nodes.listed() == {A: "takes nothing new"}


def test_refusals_of_an_entry_say_nothing_of_the_bookie() -> None:
    listing = []
    for status in BookieStatus:
        nodes = Nodes()
        nodes.answer(A, 0, status)
        listing += [status] * bool(nodes.listed())
    assert set(listing) == {FULL, OVERLOADED, BookieStatus.WRONG_INCARNATION}


def test_random_histories_list_the_silent_only_with_a_witness() -> None:
    rng = random.Random(11)
    grays = 0
    for _ in range(300):
        nodes = Nodes()
        heard_us = dict.fromkeys((A, B, C), -1)
        stored_us = dict.fromkeys((A, B, C), -1)
        now_us = 0
        for _ in range(60):
            now_us += rng.randrange(200 * MS)
            member = rng.choice((A, B, C))
            sent_us = max(now_us - rng.randrange(3 * SECOND), 0)
            if rng.random() < 0.6:
                status = rng.choice((OK, OK, SEALED, FULL, OVERLOADED))
                nodes.answer(member, sent_us, status, now_us=now_us)
                heard_us[member] = now_us
                if status is OK:
                    stored_us[member] = max(stored_us[member], sent_us)
            else:
                before = nodes.shunned
                nodes.silence(member, sent_us, now_us)
                if nodes.shunned - before:
                    grays += 1
                    assert sent_us > stored_us[member]
                    assert max(heard_us[m] for m in heard_us if m != member) > stored_us[member]
            nodes.expire(now_us)
            nodes.validate()
            counts = nodes.count_reasons()
            assert counts[ListReason.SILENT] == len(nodes.shunned)
    assert grays > 300
