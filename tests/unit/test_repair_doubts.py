"""What a doubtful bookie may have lost without knowing it: compared once, remembered within bounds.

A model walks rounds over more fragments than are remembered and sees each of them compared, those
too that ended late. Source: R9, R15; docs/protocol/repair.md.
"""

from __future__ import annotations

from collections import Counter

from duramen.core.repair.audit import (
    Action,
    Debts,
    RepairProblem,
    audit_segment,
    is_good,
    list_stretches,
)
from duramen.core.repair.cluster_view import Absences, BookieState, ClusterView, build_view
from duramen.core.repair.doubts import Doubts, LedgerDoubts
from duramen.core.sequencer.proposals import rule_of
from duramen.ids import EntryId, LedgerId, Member
from tests.unit.repair_world import (
    away,
    bookie,
    log_of_segments,
    make_segment,
    member,
    members,
    view,
)

A, B = members("ab")
FIRST = EntryId(0)
DOUBTFUL_A = bookie("a", is_doubtful=True)


def doubts_of(*states: BookieState, count_max: int = 100) -> Doubts:
    doubts = Doubts(count_max)
    doubts.observe(states)
    return doubts


def is_doubted(doubts: Doubts, member: Member, ledger: int, first: EntryId = FIRST) -> bool:
    about = doubts.about(LedgerId(ledger))
    return Debts(doubtful=about.doubtful, compared=about.compared).is_doubted(member, first)


# --- What is in doubt ----------------------------------------------------------------------------


def test_every_ledger_is_in_doubt_until_it_was_compared_and_only_for_the_doubtful() -> None:
    doubts = doubts_of(DOUBTFUL_A, bookie("b"))
    assert is_doubted(doubts, A, 7) and not is_doubted(doubts, B, 7)
    doubts.clear(A, LedgerId(7), FIRST)
    doubts.clear(B, LedgerId(7), FIRST)
    assert not is_doubted(doubts, A, 7)
    assert is_doubted(doubts, A, 7, EntryId(5)) and is_doubted(doubts, A, 8)
    doubts.observe([DOUBTFUL_A])
    assert not is_doubted(doubts, A, 7), "what was compared stays so"


def test_who_was_away_or_has_new_disks_begins_anew_and_who_is_in_no_doubt_is_forgotten() -> None:
    for meanwhile in ([], [away("a")], [bookie("a")], [bookie("a", life=2, is_doubtful=True)]):
        doubts = doubts_of(DOUBTFUL_A)
        doubts.clear(A, LedgerId(7), FIRST)
        doubts.observe(meanwhile)
        assert doubts.about(LedgerId(7)).doubtful <= {member("a", 2)}
        doubts.observe([DOUBTFUL_A])
        assert is_doubted(doubts, A, 7)
        doubts.validate()


def test_a_published_doubt_is_seen() -> None:
    fields = {"incarnation": A.incarnation, "data_url": "http://a", "doubtful": True}
    state = BookieState(A, "r", "k")
    seen = build_view([state], {"a": fields}, {}, (), Absences(), now_us=0, grace_us=1)
    assert seen.bookies[A.bookie].is_doubtful
    calm = build_view(
        [state], {"a": fields | {"doubtful": False}}, {}, (), Absences(), now_us=0, grace_us=1
    )
    assert not calm.bookies[A.bookie].is_doubtful


# --- What it leads to ----------------------------------------------------------------------------


def all_there() -> ClusterView:
    return view([bookie(name) for name in "abcd"])


def test_a_closed_fragment_in_doubt_is_compared_and_its_copy_counts_for_nothing() -> None:
    segment = make_segment([(0, "abc"), (5, "bcd")], 9, proved=True)
    log = log_of_segments([segment])
    debts = Debts(doubtful=frozenset({A}))
    (found,) = audit_segment(log, segment, rule_of(log), all_there(), debts)
    assert (found.problem, found.key.action) == (RepairProblem.DOUBTED, Action.FILL)
    assert (found.good_count, found.size_bytes) == (2, 0)
    stretch = list_stretches(log, segment)[0]
    assert not is_good(A, stretch, all_there(), debts) and is_good(B, stretch, all_there(), debts)
    compared = Debts(doubtful=frozenset({A}), compared=frozenset({(A, FIRST)}))
    assert audit_segment(log, segment, rule_of(log), all_there(), compared) == []


def test_an_open_fragment_in_doubt_waits_for_its_end() -> None:
    segment = make_segment([(0, "abc")])
    log = log_of_segments([segment])
    debts = Debts(doubtful=frozenset({A}))
    assert audit_segment(log, segment, rule_of(log), all_there(), debts) == []


def test_a_known_damage_is_more_urgent_than_a_doubt() -> None:
    segment = make_segment([(0, "abc")], 9)
    log = log_of_segments([segment])
    debts = Debts(damaged=frozenset({A}), doubtful=frozenset({B}))
    (found,) = audit_segment(log, segment, rule_of(log), all_there(), debts)
    assert found.problem is RepairProblem.DAMAGED
    assert found.urgency < (found.good_count, RepairProblem.DOUBTED, *found.key.fragment)


# --- Bounds --------------------------------------------------------------------------------------


def test_more_fragments_than_are_remembered_are_all_compared_late_ones_too() -> None:
    doubts = doubts_of(DOUBTFUL_A, count_max=10)
    late = {3: 2, 50: 1, 99: 4}  # ledger → the round in which it ends
    compared: Counter[int] = Counter()
    for number in range(12):
        there = [ledger for ledger in range(1, 101) if late.get(ledger, 0) <= number]
        for ledger in there:
            if is_doubted(doubts, A, ledger):
                compared[ledger] += 1
                doubts.clear(A, LedgerId(ledger), FIRST)
                doubts.validate()
        doubts.end_round({A: n} if (n := sum(is_doubted(doubts, A, one) for one in there)) else {})
    assert set(compared) == set(range(1, 101))
    assert doubts.statistics()["passes_repeated"] >= 1
    assert doubts.statistics()["fragments"] <= 10


def test_a_round_that_left_something_in_doubt_repeats_no_pass() -> None:
    doubts = doubts_of(DOUBTFUL_A, count_max=1)
    for ledger in (1, 2):
        doubts.clear(A, LedgerId(ledger), FIRST)
    doubts.end_round({A: 1})
    assert doubts.about(LedgerId(1)) == LedgerDoubts()
    doubts.end_round({})
    assert is_doubted(doubts, A, 1)


def test_few_fragments_are_compared_once() -> None:
    doubts = doubts_of(DOUBTFUL_A)
    for ledger in range(50):
        doubts.clear(A, LedgerId(ledger), FIRST)
    for _ in range(3):
        doubts.end_round({})
    assert not any(is_doubted(doubts, A, ledger) for ledger in range(50))
