"""Swaps, drains, disruption and rebalance: each decision against brute force, or step by step.

"Allowed" never loses an ack set; every swap keeps R20 for every write set; a drain cannot end
early; a rebalance only makes things more even. Source: docs/protocol/placement.md "The rule (R20)",
docs/protocol/repair.md, R12, R20, R21.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.duty import Duty
from duramen.core.placement import PlacementRule, satisfies
from duramen.core.quorum import Quorum, write_sets
from duramen.core.repair.audit import NO_DEBTS, Debts
from duramen.core.repair.cluster_view import BookieState, ClusterView, CopyFate
from duramen.core.repair.disruption import RISK_COUNT_MAX, Disruption
from duramen.core.repair.disruption_grants import DisruptionKind
from duramen.core.repair.drain import Need, WholeRound, advance, explain, shortages
from duramen.core.repair.rebalance import Copy, Loads, plan_moves, spread
from duramen.core.repair.swap import Swap, SwapChoice, can_take
from duramen.core.segment import Fragment, Segment
from duramen.ids import BookieId, EntryId, Member
from tests.unit.repair_world import (
    away,
    bookie,
    log_of_segments,
    make_log,
    make_segment,
    member,
    members,
    view,
)

RNG = random.Random(7)
QUORUM = Quorum(3, 3, 2)
RULE = PlacementRule(2, 1)


def fragment(names: str) -> Fragment:
    return Fragment(EntryId(0), members(names))


def choose(names: str, old: str | None, seen: ClusterView, rule: PlacementRule = RULE) -> Any:
    choice = SwapChoice(QUORUM, rule, seen, seen.candidates(), random.Random(3))
    return choice.choose(fragment(names), None if old is None else member(old))


# --- Swaps -------------------------------------------------------------------------------------


def test_a_lost_member_is_replaced_where_the_rule_holds() -> None:
    seen = view([
        bookie("a", rack="1"), bookie("b", rack="2"), away("c", 0),
        bookie("d", rack="1"), bookie("e", rack="3"),
    ])  # fmt: skip
    rule = PlacementRule(2, 1)
    assert choose("abc", "c", seen, rule) == Swap(member("c"), member("e"))


def test_no_bookie_that_keeps_the_rule_is_no_swap_also_where_placement_is_preferred() -> None:
    seen = view([bookie("a", rack="1"), bookie("b", rack="2"), away("c", 0), bookie("d", rack="1")])
    assert choose("abc", "c", seen, PlacementRule(2, 1, is_strict=False)) is None


def test_with_several_lost_the_first_swap_of_a_good_plan_is_taken() -> None:
    seen = view([
        bookie("a", rack="1"), replace(away("b", 0), rack="1"), replace(away("c", 0), rack="1"),
        bookie("d", rack="2"), bookie("e", rack="3"),
    ])  # fmt: skip
    swap = choose("abc", "b", seen)
    assert swap is not None and swap.old == member("b") and swap.new.bookie in "de"


def test_with_several_lost_and_no_good_plan_nothing_is_swapped() -> None:
    seen = view([bookie("a", rack="1"), away("b", 0), away("c", 0),
                 bookie("d", rack="1"), bookie("e", rack="1")])  # fmt: skip
    assert choose("abc", "b", seen, PlacementRule(3, 1)) is None
    both = replace(seen, bookies={**seen.bookies, BookieId("b"): replace(away("b", 0), rack="1"),
                                  BookieId("c"): replace(away("c", 0), rack="1")})  # fmt: skip
    assert choose("abc", "b", both) is None


def test_a_misplaced_fragment_gets_the_one_member_that_mends_it() -> None:
    seen = view([bookie("a", rack="1"), bookie("b", rack="1"), bookie("c", rack="2"),
                 bookie("d", rack="1"), bookie("e", rack="3")])  # fmt: skip
    swap = choose("abc", None, seen)
    assert swap is not None and swap.old.bookie in "ab" and swap.new == member("e")


def test_a_replaced_disk_may_follow_its_own_bookies_old_one() -> None:
    seen = view([bookie("a"), bookie("b"), bookie("c", life=2)])
    assert choose("abc", "c", seen) == Swap(member("c"), member("c", 2))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("123"),
                       st.sampled_from(["here", "here", "lost", "leaving"])),
             min_size=4, max_size=7),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 9),
)  # fmt: skip
def test_swaps_by_brute_force(
    places: list[tuple[str, str, str]], racks: int, regions: int, ack: int, seed: int
) -> None:
    """What is swapped satisfies R20; where one swap would, one is found."""
    states = [_state(f"b{i}", *place) for i, place in enumerate(places)]
    seen = view(states)
    quorum, rule = Quorum(3, 3, ack), PlacementRule(racks, regions)
    ensemble = tuple(state.member for state in states[:3])
    bad = [m for m in ensemble if seen.fate(m) in (CopyFate.LOST, CopyFate.LEAVING)]
    if not bad:
        return
    candidates = seen.candidates()
    choice = SwapChoice(quorum, rule, seen, candidates, random.Random(seed))
    swap = choice.choose(Fragment(EntryId(0), ensemble), bad[0])
    by_force = [
        c.member
        for c in candidates
        if c.member not in ensemble
        and satisfies(_swapped(ensemble, bad[0], c.member), quorum, rule, seen.locations())
    ]
    if by_force:
        assert swap is not None and swap.old == bad[0] and swap.new in by_force
    if swap is not None and len(bad) == 1:
        assert swap.new in by_force
    if swap is not None:
        free = [c.member for c in candidates if c.member not in ensemble]
        assert swap.new in free, "nobody twice in an ensemble"


def _state(name: str, region: str, rack: str, fate: str) -> BookieState:
    duty = Duty.DRAINING if fate == "leaving" else Duty.SERVING
    state = bookie(name, region=region, rack=rack, duty=duty, published_duty=duty)
    return replace(away(name, 0), region=region, rack=rack) if fate == "lost" else state


def _swapped(ensemble: tuple[Member, ...], old: Member, new: Member) -> tuple[Member, ...]:
    return tuple(new if one == old else one for one in ensemble)


# --- Drains ------------------------------------------------------------------------------------


def drained(duty: Duty, published: Duty | None = None) -> BookieState:
    return bookie("a", duty=duty, published_duty=duty if published is None else published)


@pytest.mark.parametrize(
    ("before", "named", "duty"),
    [
        (drained(Duty.DRAINING), 0, Duty.LEAVING),
        (drained(Duty.DRAINING), 1, None),
        (drained(Duty.DRAINING, Duty.SERVING), 0, None),
        (drained(Duty.SERVING), 0, None),
        (replace(away("a"), duty=Duty.DRAINING), 0, None),
        (replace(drained(Duty.DRAINING), member=member("a", 2)), 0, None),
    ],
)
def test_draining_ends_after_a_round_that_began_when_the_bookie_had_published_it(
    before: BookieState, named: int, duty: Duty | None
) -> None:
    seen = WholeRound(view([before]), {BookieId("a"): named} if named else {})
    step = advance(drained(Duty.DRAINING), seen)
    assert (None if step is None else step.duty) == duty


@pytest.mark.parametrize(
    ("before", "named", "duty"),
    [
        (drained(Duty.LEAVING), 0, Duty.DRAINED),
        (drained(Duty.LEAVING), 2, Duty.DRAINING),
        (drained(Duty.LEAVING, Duty.DRAINING), 0, None),
        (drained(Duty.DRAINING), 0, None),
        (drained(Duty.DRAINING), 2, None),
    ],
)
def test_leaving_ends_in_drained_or_goes_back(
    before: BookieState, named: int, duty: Duty | None
) -> None:
    seen = WholeRound(view([before]), {BookieId("a"): named} if named else {})
    step = advance(drained(Duty.LEAVING), seen)
    assert (None if step is None else step.duty) == duty


def test_leaving_waits_for_recoveries_which_may_have_acks_of_the_bookie() -> None:
    before = drained(Duty.LEAVING)
    seen = WholeRound(view([before]), {}, recovering_count=1)
    assert advance(before, seen) is None
    assert "1 recoveries" in explain(before, seen)


def test_a_serving_or_drained_bookie_is_left_alone() -> None:
    for duty in (Duty.SERVING, Duty.DRAINED):
        assert advance(drained(duty), WholeRound(view([drained(duty)]), {})) is None
        assert explain(drained(duty), None) == ""


def test_a_drain_says_what_it_waits_for() -> None:
    seen = WholeRound(view([]), {BookieId("a"): 3})
    assert explain(drained(Duty.DRAINING), seen) == "3 fragments name it"
    assert "not published" in explain(drained(Duty.DRAINING, Duty.SERVING), seen)
    assert "not there" in explain(replace(away("a"), duty=Duty.DRAINING), seen)
    assert explain(drained(Duty.LEAVING), WholeRound(view([]), {})) == "the next whole round"


def test_so_many_may_drain_as_the_others_can_hold() -> None:
    seen = view([bookie(name) for name in "abcd"])
    need = Need(QUORUM, RULE)
    assert shortages(seen, [BookieId("a")], [need], RNG) == []
    assert shortages(seen, [BookieId("a"), BookieId("b")], [need], RNG) == [need]
    wide = Need(QUORUM, PlacementRule(2, 2))
    assert shortages(seen, [BookieId("a")], [need, wide], RNG) == [wide]


# --- Disruption --------------------------------------------------------------------------------


def ask(
    name: str,
    kind: DisruptionKind,
    seen: ClusterView,
    segments: Iterable[Segment],
    debts: Debts = NO_DEBTS,
) -> dict[str, Any]:
    question = Disruption([BookieId(name)], kind, seen)
    for segment in segments:
        log = log_of_segments([segment])
        question.note_log(log, Need(QUORUM, RULE))
        if question.note_segment(log, segment, debts):
            question.note_risk(log)
    return question.conclude(RNG)


def codes(answer: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in answer["reasons"]]


HERE = view([bookie(name) for name in "abcd"])


def test_a_restart_is_allowed_where_every_write_set_keeps_its_ack_quorum() -> None:
    whole = make_segment([(0, "abc")], 9, proved=True)
    answer = ask("a", DisruptionKind.RESTART, HERE, [whole])
    assert answer["allowed"] and answer["logs_at_risk_count"] == 0
    one_away = view([bookie("a"), bookie("b"), away("c"), bookie("d"), bookie("e")])
    answer = ask("a", DisruptionKind.RESTART, one_away, [whole])
    assert codes(answer) == ["too_few_copies"]
    assert (answer["logs_at_risk"], answer["logs_at_risk_count"]) == (["ns/log5"], 1)
    assert ask("d", DisruptionKind.RESTART, one_away, [whole])["allowed"], "it holds nothing of it"
    assert ask("c", DisruptionKind.RESTART, one_away, [whole])["allowed"], "it is away already"


def test_copies_that_are_unproved_owed_or_damaged_count_as_missing() -> None:
    segment = make_segment([(0, "abc")], 9)
    assert codes(ask("a", DisruptionKind.RESTART, HERE, [segment])) == ["unproved"]
    whole = make_segment([(0, "abc")], 9, proved=True)
    for debts in (Debts({member("b"): [(3, 3)]}), Debts(damaged=frozenset({member("b")}))):
        assert codes(ask("a", DisruptionKind.RESTART, HERE, [whole], debts)) == ["too_few_copies"]
        assert ask("b", DisruptionKind.RESTART, HERE, [whole], debts)["allowed"]


def test_open_segments_must_stay_coverable_and_writable() -> None:
    assert ask("a", DisruptionKind.RESTART, HERE, [make_segment([(0, "abc")])])["allowed"]
    one_away = view([*map(bookie, "abde"), away("c")])
    answer = ask("a", DisruptionKind.RESTART, one_away, [make_segment([(0, "abc")])])
    assert codes(answer) == ["not_coverable", "too_few_copies"]
    marked = make_segment([(0, "abc")]).marked("m")
    assert codes(ask("a", DisruptionKind.RESTART, HERE, [marked])) == ["in_recovery"]


def test_while_another_is_away_a_restart_leaves_enough_for_new_segments() -> None:
    three = view([bookie("a"), bookie("b"), bookie("c")])
    whole = make_segment([(0, "abc")], 9, proved=True)
    assert ask("a", DisruptionKind.RESTART, three, [whole])["allowed"], "or nobody ever could"
    one_away = view([*map(bookie, "abc"), away("d")])
    answer = ask("a", DisruptionKind.RESTART, one_away, [whole])
    assert codes(answer) == ["placement"]
    leaving = view([*map(bookie, "abc"), away("d", 0)])
    assert codes(ask("a", DisruptionKind.RESTART, leaving, [whole])) == ["placement"]


@pytest.mark.parametrize(
    ("quorum", "is_open", "found"),
    [((3, 3), True, ["no_spare"]), ((3, 3), False, ["no_spare"]), ((3, 1), True, ["no_spare"]),
     ((3, 1), False, []), ((3, 2), True, [])],
)  # fmt: skip
def test_a_quorum_that_can_miss_nobody_has_a_code_of_its_own(
    quorum: tuple[int, int], is_open: bool, found: list[str]
) -> None:
    segment = make_segment([(0, "abc")], None if is_open else 9, quorum=quorum, proved=True)
    assert codes(ask("a", DisruptionKind.RESTART, HERE, [segment])) == found


def test_who_can_miss_nobody_misses_those_who_are_away_besides() -> None:
    one_away = view([*map(bookie, "acde"), away("b")])
    segment = make_segment([(0, "abc")], quorum=(3, 1))
    answer = ask("a", DisruptionKind.RESTART, one_away, [segment])
    assert codes(answer) == ["no_spare", "not_coverable"]
    segment = make_segment([(0, "abc")], quorum=(3, 3))
    answer = ask("a", DisruptionKind.RESTART, one_away, [segment])
    assert codes(answer) == ["no_spare", "too_few_copies"]


def test_a_bookie_that_is_lost_for_ever_is_not_waited_for() -> None:
    dead = away("d", 0)
    seen = view([*map(bookie, "abc"), dead], lost=frozenset({dead.member.incarnation}))
    whole = make_segment([(0, "abc")], 9, proved=True)
    assert ask("a", DisruptionKind.RESTART, seen, [whole])["allowed"]


def test_what_is_accepted_allows_nothing_else() -> None:
    segment = make_segment([(0, "abc")], 9, quorum=(3, 3))
    question = Disruption([BookieId("a")], DisruptionKind.RESTART, HERE)
    question.note_segment(log_of_segments([segment]), segment, NO_DEBTS)
    assert not question.conclude(RNG, ["no_spare"])["allowed"]
    answer = question.conclude(RNG, ["no_spare", "unproved"])
    assert answer["allowed"] and codes(answer) == ["no_spare", "unproved"]
    question.note_unread("segment 3 of log 5")
    assert not question.conclude(RNG, ["no_spare", "unproved", "unread"])["allowed"]


def test_removal_is_denied_while_any_incarnation_is_named() -> None:
    old_life = make_segment([(0, "abc")], 9, proved=True)
    reborn = view([bookie("a", life=2), *(bookie(name) for name in "bcd")])
    answer = ask("a", DisruptionKind.REMOVE, reborn, [old_life])
    assert codes(answer) == ["named", "not_drained"] and answer["logs_at_risk"] == ["ns/log5"]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (bookie("d"), ["not_drained"]),
        (bookie("d", duty=Duty.DRAINING), ["not_drained"]),
        (bookie("d", duty=Duty.LEAVING), ["not_drained"]),
        (bookie("d", duty=Duty.DRAINED), []),
        (away("d"), []),
    ],
)
def test_removal_is_denied_until_no_new_segment_can_depend_on_the_bookie(
    state: BookieState, found: list[str]
) -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    seen = view([*(bookie(name) for name in "abc"), state])
    assert codes(ask("d", DisruptionKind.REMOVE, seen, [segment])) == found


def test_removal_is_denied_where_the_others_cannot_hold_new_segments() -> None:
    three = view([bookie("a"), bookie("b"), bookie("c", duty=Duty.DRAINED)])
    question = Disruption([BookieId("c")], DisruptionKind.REMOVE, three)
    question.note_log(make_log(), Need(QUORUM, RULE))
    answer = question.conclude(RNG)
    assert codes(answer) == ["placement"] and "write_quorum 3" in answer["reasons"][0]["detail"]
    ended = Disruption([BookieId("c")], DisruptionKind.REMOVE, three)
    ended.note_log(make_log(is_ended=True), Need(QUORUM, RULE))
    assert ended.conclude(RNG)["allowed"], "an ended log begins no segment"


def test_what_could_not_be_read_allows_nothing() -> None:
    question = Disruption([BookieId("a")], DisruptionKind.RESTART, HERE)
    question.note_unread("segment 3 of log 5")
    answer = question.conclude(RNG)
    assert codes(answer) == ["unread"] and "segment 3" in answer["reasons"][0]["detail"]


def test_an_answer_names_so_many_logs_and_counts_the_others() -> None:
    question = Disruption([BookieId("a")], DisruptionKind.RESTART, HERE)
    for number in range(1, RISK_COUNT_MAX + 6):
        question.note_risk(make_log(number))
        question.note_risk(make_log(number))  # of two segments of a log
    answer = question.conclude(RNG)
    assert (len(answer["logs_at_risk"]), answer["logs_at_risk_count"]) == (100, 105)


@settings(max_examples=200)
@given(
    st.integers(2, 5),
    st.data(),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.booleans(),
    st.booleans(),
    st.sets(st.integers(0, 4), max_size=2),
)
def test_allowed_never_loses_an_ack_set(  # noqa: PLR0917 - drawn
    size: int,
    data: st.DataObject,
    is_there: list[bool],
    is_closed: bool,
    is_proved: bool,
    owed: set[int],
) -> None:
    """Brute force over every set of holders that an acknowledged entry may have."""
    write = data.draw(st.integers(1, size))
    ack = data.draw(st.integers(1, write))
    names = "abcde"[:size]
    segment = make_segment([(0, names)], 11 if is_closed else None, quorum=(write, ack),
                           proved=is_closed and is_proved)  # fmt: skip
    states = [bookie(n) if there else away(n) for n, there in zip(names, is_there, strict=False)]
    debts = Debts({member(names[i]): [(0, 11)] for i in sorted(owed) if i < size})
    answer = ask("a", DisruptionKind.RESTART, view(states), [segment], debts)
    if not answer["allowed"]:
        return
    left = {s.member for s in states if s.is_available and s.member.bookie != "a"}
    whole = {m for m in left if m not in debts.owed}
    for members_ in write_sets(segment.last_fragment.ensemble, segment.quorum):
        if not any(m.bookie == "a" for m in members_):
            continue
        if is_closed:
            # Proved: every member holds it but those to whom something is owed.
            assert len([m for m in members_ if m in whole]) >= ack
            continue
        for holders in itertools.combinations(members_, ack):
            assert any(holder in left for holder in holders), (holders, answer)


# --- Rebalance ---------------------------------------------------------------------------------


def loads_of(segments: Iterable[Segment]) -> Loads:
    loads = Loads()
    for segment in segments:
        loads.note(log_of_segments([segment]), segment, RULE)
    return loads


def many(count: int, names: str = "abc", **fields: Any) -> list[Segment]:
    proved = fields.pop("proved", True)
    return [make_segment([(0, names)], 9, log_id=i + 1, proved=proved) for i in range(count)]


def test_a_new_bookie_gets_its_share_and_the_plan_ends() -> None:
    seen = view([bookie(name) for name in "abcd"])
    loads = loads_of(many(40))
    assert spread(loads, seen)[BookieId("d")] == 0.0
    moves = plan_moves(loads, seen)
    assert {move.target for move in moves} == {member("d")}
    left = dict.fromkeys("abc", 40)
    for move in moves:
        left[move.copy.member.bookie] -= 1
    assert all(30 <= count <= 33 for count in left.values()), left
    assert len({move.copy.ledger_id for move in moves}) == len(moves), "a fragment moves once"


def test_what_is_even_enough_is_left_alone() -> None:
    assert plan_moves(loads_of(many(40, "abcd")), view([bookie(n) for n in "abcd"])) == []
    assert plan_moves(Loads(), view([bookie(n) for n in "ab"])) == []
    assert plan_moves(loads_of(many(4)), view([bookie("a")])) == []


def test_open_and_unproved_copies_do_not_move() -> None:
    seen = view([bookie(name) for name in "abcd"])
    assert plan_moves(loads_of(many(40, proved=False)), seen) == []
    opened = [make_segment([(0, "abc")], log_id=i + 1) for i in range(40)]
    assert plan_moves(loads_of(opened), seen) == []


def test_weights_are_shares() -> None:
    heavy = view([bookie(n) for n in "abc"] + [bookie("d", weight=3.0)])
    even = view([bookie(n) for n in "abcd"])
    loads = loads_of(many(60))
    assert len(plan_moves(loads, heavy)) > len(plan_moves(loads, even))


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["abc", "abd", "bcd", "ace", "cde"]), min_size=1, max_size=30),
    st.lists(st.sampled_from("12"), min_size=5, max_size=5),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=5, max_size=5),
)
def test_a_plan_keeps_the_rule_and_never_makes_the_fullest_fuller(
    ensembles: list[str], racks: list[str], weights: list[float]
) -> None:
    states = [
        bookie(name, rack=rack, weight=weight)
        for name, rack, weight in zip("abcde", racks, weights, strict=True)
    ]
    seen = view(states)
    segments = [
        make_segment([(0, names)], 9, log_id=i + 1, proved=True)
        for i, names in enumerate(ensembles)
    ]
    loads = loads_of(segments)
    before = spread(loads, seen)
    held = {name: loads.size_bytes.get(name, 0) for name in before}
    for move in plan_moves(loads, seen):
        assert isinstance(move.copy, Copy)
        assert can_take(move.copy.fragment, move.swap, QUORUM, RULE, seen)
        held[move.copy.member.bookie] -= move.copy.size_bytes
        held[move.target.bookie] += move.copy.size_bytes
    share = {name: seen.bookies[name].weight for name in held}
    assert max(held[n] / share[n] for n in held) <= max(
        loads.size_bytes.get(n, 0) / share[n] for n in held
    )
