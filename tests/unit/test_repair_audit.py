"""What an audit finds, and what it must leave alone: fates of members, R9, R20, R21.

The view of the bookies, the judgement of segments, and what comparing copies says.
Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.duty import Duty
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule
from duramen.core.repair.audit import (
    NO_DEBTS,
    Action,
    Debts,
    Finding,
    RepairProblem,
    audit_segment,
    is_misplaced,
    list_stretches,
    live_epochs,
    names,
    remaining_debt,
)
from duramen.core.repair.cluster_view import (
    Absences,
    BookieState,
    ClusterView,
    CopyFate,
    build_view,
)
from duramen.core.repair.copies import (
    EntryFault,
    Holdings,
    Piece,
    compare,
    cut,
    expected_entries,
    missing_ranges,
)
from duramen.core.segment import Segment
from duramen.ids import BookieId, EntryId, Epoch, lsn_of
from tests.unit.repair_world import (
    away,
    bookie,
    log_of_segments,
    make_segment,
    member,
    members,
    view,
)

RULE = PlacementRule(2, 1)
ALL = [bookie(name) for name in "abcdef"]


def audit(segment: Segment, seen: ClusterView, debts: Debts = NO_DEBTS) -> list[Finding]:
    return audit_segment(log_of_segments([segment]), segment, RULE, seen, debts)


def encode_value(findings: list[Finding]) -> list[tuple[str, str, int]]:
    return [(f.problem.name, f.key.action.value, f.key.first_entry) for f in findings]


def with_states(*changed: Any) -> ClusterView:
    """All bookies are there but for those given."""
    states = {state.member.bookie: state for state in (*ALL, *changed)}
    return view(list(states.values()))


# --- Who is lost -------------------------------------------------------------------------------


def nodes(*names_: str) -> dict[str, dict[str, Any]]:
    fields = {"data_url": "http://x", "state": "rw"}
    return {name: {"incarnation": member(name).incarnation, **fields} for name in names_}


def observe(absences: Absences, there: str, now_us: int, **fields: Any) -> ClusterView:
    registered = [replace(bookie(name), published_duty=None) for name in "abc"]
    return build_view(
        registered, nodes(*there), fields.get("lost", {}), (), absences,
        now_us=now_us, grace_us=10,
    )  # fmt: skip


def test_a_bookie_is_lost_after_the_grace_and_not_before() -> None:
    absences = Absences()
    observe(absences, "abc", 0)
    assert observe(absences, "ab", 100).fate(member("c")) is CopyFate.AWAY
    seen = observe(absences, "ab", 109)
    assert seen.fate(member("c")) is CopyFate.AWAY and seen.next_loss_us() == 110
    assert observe(absences, "ab", 110).fate(member("c")) is CopyFate.LOST
    assert observe(absences, "abc", 111).fate(member("c")) is CopyFate.HERE
    assert observe(absences, "ab", 112).fate(member("c")) is CopyFate.AWAY, "a new absence"


def test_an_empty_listing_loses_nobody_and_starts_the_clocks_anew() -> None:
    absences = Absences()
    observe(absences, "ab", 100)
    nobody = observe(absences, "", 200)
    assert {nobody.fate(member(name)) for name in "abc"} == {CopyFate.AWAY}
    assert nobody.fate(member("stranger")) is CopyFate.AWAY
    assert observe(absences, "ab", 201).fate(member("c")) is CopyFate.AWAY
    assert observe(absences, "ab", 211).fate(member("c")) is CopyFate.LOST


def test_an_auditor_that_looked_away_begins_to_count_anew() -> None:
    absences = Absences()
    observe(absences, "ab", 100)
    absences.forget()
    assert observe(absences, "ab", 200).fate(member("c")) is CopyFate.AWAY


def test_replaced_disks_are_lost_at_once() -> None:
    seen = with_states(bookie("a", life=2))
    assert seen.fate(member("a")) is CopyFate.LOST
    assert seen.fate(member("a", 2)) is CopyFate.HERE
    lost = {member("z", 9).incarnation: {"bookie": "z", "region": "r", "rack": "old"}}
    seen = observe(Absences(), "abc", 0, lost=lost)
    assert seen.fate(member("z", 9)) is CopyFate.LOST
    assert seen.locations()[member("z", 9)].rack == "old"


def test_a_bookie_that_is_not_registered_at_all_is_lost_after_the_grace() -> None:
    assert view(ALL, watched_since_us=91).fate(member("z")) is CopyFate.AWAY
    assert view(ALL, watched_since_us=90).fate(member("z")) is CopyFate.LOST


def test_candidates_serve_are_writable_have_weight_and_lie_in_open_regions() -> None:
    states = [
        bookie("a"),
        bookie("b", is_writable=False),
        bookie("c", duty=Duty.DRAINING, published_duty=Duty.DRAINING),
        bookie("d", weight=0.0),
        bookie("e", region="closed"),
        bookie("f", published_duty=Duty.DRAINING),
        away("g"),
    ]
    seen = view(states, closed_regions=frozenset({"closed"}))
    assert [c.member.bookie for c in seen.candidates()] == ["a"]


# --- What is work ------------------------------------------------------------------------------


def test_a_healthy_proved_segment_is_no_work() -> None:
    assert audit(make_segment([(0, "abc"), (5, "abd")], 9, proved=True), with_states()) == []


def test_a_lost_member_is_swapped_in_every_settled_fragment() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")], 9, proved=True)
    found = audit(segment, with_states(away("a", 0)))
    assert encode_value(found) == [("LOST", "swap", 0), ("LOST", "swap", 5)]
    assert {f.member for f in found} == {member("a")} and {f.good_count for f in found} == {2}
    assert [f.size_bytes for f in found] == [500, 500]


def test_r21_of_an_open_segments_last_fragment_only_a_roll_is_asked() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")], proved=True)
    found = audit(segment, with_states(away("a", 0)))
    assert encode_value(found) == [("LOST", "swap", 0), ("LOST", "roll", 5)]
    assert found[1].member is None


def test_a_segment_in_recovery_is_left_to_who_recovers_it() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")]).marked("m")
    assert audit(segment, with_states(away("a", 0))) == []


def test_who_is_away_for_a_moment_is_no_work_and_nothing_is_compared_without_him() -> None:
    assert audit(make_segment([(0, "abc")], 9), with_states(away("a"))) == []


def test_an_unproved_fragment_is_compared() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")])
    assert encode_value(audit(segment, with_states())) == [("UNPROVED", "fill", 0)]


def test_owed_and_damaged_copies_are_filled_where_their_member_is_there() -> None:
    segment = make_segment([(0, "abc"), (5, "abc")], 9, proved=True)
    owed = Debts({member("a"): [(6, 7)]})
    found = audit(segment, with_states(), owed)
    assert encode_value(found) == [("OWED", "fill", 5)] and found[0].good_count == 2
    assert audit(segment, with_states(away("a")), owed) == []
    damaged = Debts(damaged=frozenset({member("a")}))
    assert encode_value(audit(segment, with_states(), damaged)) == [
        ("DAMAGED", "fill", 0), ("DAMAGED", "fill", 5)
    ]  # fmt: skip
    cleared = replace(damaged, cleared=frozenset({(member("a"), EntryId(0))}))
    assert encode_value(audit(segment, with_states(), cleared)) == [("DAMAGED", "fill", 5)]


def test_a_fill_does_not_hold_a_swap_up() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    owed = Debts({member("b"): [(0, 0)]})
    found = audit(segment, with_states(away("a", 0)), owed)
    assert encode_value(found) == [("OWED", "fill", 0), ("LOST", "swap", 0)]


def test_owed_copies_of_an_open_fragment_ask_for_a_roll() -> None:
    owed = Debts({member("b"): [(2, 3)]})
    assert encode_value(audit(make_segment([(0, "abc")]), with_states(), owed)) == [
        ("OWED", "roll", 0)
    ]


def test_a_bookie_that_drains_is_replaced_and_its_open_segments_roll() -> None:
    leaving = bookie("a", duty=Duty.DRAINING, published_duty=Duty.DRAINING)
    segment = make_segment([(0, "abc"), (5, "abd")], proved=True)
    found = audit(segment, with_states(leaving))
    assert encode_value(found) == [("LEAVING", "swap", 0), ("LEAVING", "roll", 5)]
    assert found[0].good_count == 3, "it is read from while it is there"


def test_what_could_not_be_repaired_is_worth_another_try_once_its_log_asks_for_less() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    seen = with_states(bookie("a", duty=Duty.DRAINING, published_duty=Duty.DRAINING))
    log = log_of_segments([segment])
    (wide,) = audit_segment(log, segment, PlacementRule(3, 1), seen)
    (narrow,) = audit_segment(log, segment, PlacementRule(2, 1), seen)
    assert wide.key == narrow.key and wide.facts != narrow.facts


def test_a_misplaced_fragment_is_work_unless_no_placement_can_hold_it() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    seen = with_states(bookie("b", rack="k-a"))
    assert encode_value(audit(segment, seen)) == [("MISPLACED", "swap", 0)]
    log = log_of_segments([segment])
    assert audit_segment(log, segment, PlacementRule(3, 1), seen) == []


def test_who_is_owed_counts_as_no_copy_and_is_filled_where_it_is_not_moved() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    seen, fragment = with_states(), segment.last_fragment
    owing = members("ab")
    assert not is_misplaced(segment, fragment, RULE, seen)
    assert not is_misplaced(segment, fragment, RULE, seen, discounted=owing[:1])
    assert is_misplaced(segment, fragment, RULE, seen, discounted=owing), "one rack is left"
    debts = Debts(owed={one: [(3, 4)] for one in owing})
    assert encode_value(audit(segment, seen, debts)) == [("OWED", "fill", 0)]


def test_what_was_truncated_given_up_or_purged_is_no_work_and_names_nobody() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")], 9, proved=True)
    log = log_of_segments([segment])
    trimmed = replace(log, trim_lsn=lsn_of(segment.epoch, EntryId(5)), trim_seq_num=5)
    seen = with_states(away("c", 0))
    assert audit_segment(trimmed, segment, RULE, seen) == []
    assert names(log, segment, BookieId("c")) and not names(trimmed, segment, BookieId("c"))
    assert [(s.first, s.last) for s in list_stretches(trimmed, segment)] == [(5, 9)]
    empty = make_segment([(0, "abc")], -1)
    assert list_stretches(log_of_segments([empty]), empty) == []


def test_what_takeovers_read_is_work_and_names_its_bookies_although_it_was_truncated() -> None:
    segments = [
        make_segment([(0, "abc"), (5, "abd")], 9, epoch=1, proved=True),
        make_segment([(0, "abc")], 9, epoch=2, proved=True),
    ]
    all_trimmed: dict[str, Any] = {"trim_lsn": lsn_of(Epoch(3), EntryId(0)), "trim_seq_num": 20}
    stateless = replace(log_of_segments(segments), **all_trimmed)
    assert list(live_epochs(stateless)) == []
    unknown = replace(stateless, snapshot_lsn=None)
    assert list(live_epochs(unknown)) == [1, 2]
    assert [(s.first, s.last) for s in list_stretches(unknown, segments[0])] == [(0, 4), (5, 9)]
    log = replace(stateless, snapshot_lsn=lsn_of(Epoch(1), EntryId(6)))
    assert list(live_epochs(log)) == [1, 2]
    assert [(s.first, s.last) for s in list_stretches(log, segments[0])] == [(7, 9)]
    assert names(log, segments[0], BookieId("d")) and not names(log, segments[0], BookieId("c"))
    found = audit_segment(log, segments[0], RULE, with_states(away("d", 0)))
    assert encode_value(found) == [("LOST", "swap", 5)]


def test_what_remains_of_a_debt_is_what_somebody_is_still_to_hold() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")], 9)
    log = log_of_segments([segment])
    assert remaining_debt(log, segment, member("c"), [(3, 20)]) == [(3, 4)]
    assert remaining_debt(log, segment, member("e"), [(0, 9)]) == []
    trimmed = replace(log, trim_lsn=lsn_of(segment.epoch, EntryId(2)), trim_seq_num=2)
    assert remaining_debt(trimmed, segment, member("a"), [(0, 6)]) == [(2, 4), (5, 6)]


def make_state(name: str, fate: str) -> BookieState:
    match fate:
        case "away":
            return away(name)
        case "lost":
            return away(name, 0)
        case "leaving":
            return bookie(name, duty=Duty.DRAINING)
        case "reborn":
            return bookie(name, life=2)
    return bookie(name)


@given(
    st.lists(st.sampled_from(["abc", "abd", "bcd", "ace"]), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 8)),
    st.lists(st.sampled_from(["here", "away", "lost", "leaving", "reborn"]), min_size=6,
             max_size=6),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=3),
)  # fmt: skip
def test_r21_no_audit_ever_names_the_last_fragment_of_an_unclosed_segment_for_a_change(
    ensembles: list[str],
    last_entry: int | None,
    fates: list[str],
    is_marked: bool,
    owed: list[tuple[str, int]],
) -> None:
    seen = view([make_state(name, fate) for name, fate in zip("abcdef", fates, strict=True)])
    fragments = [(2 * index, names_) for index, names_ in enumerate(ensembles)]
    end = None if last_entry is None else max(last_entry, fragments[-1][0])
    segment = make_segment(fragments, end)
    if is_marked and not segment.is_closed:
        segment = segment.marked("m")
    debts = Debts(
        {member(name): [(entry, entry)] for name, entry in owed},
        frozenset(member(name) for name, _ in owed),
    )
    found = audit(segment, seen, debts)
    changed = [f for f in found if f.key.action is not Action.ROLL]
    if not segment.is_closed:
        assert all(f.key.first_entry != segment.last_fragment.first_entry for f in changed)
    assert len({f.key for f in found}) == len(found)
    for finding in found:
        fragment = segment.fragment_of(finding.key.first_entry)
        if finding.problem is RepairProblem.LOST and finding.member is not None:
            assert finding.member in fragment.ensemble
            assert seen.fate(finding.member) is CopyFate.LOST
    assert segment.state.value != "IN_RECOVERY" or not found


def _log(segment: Segment) -> LogNode:
    return log_of_segments([segment])


# --- What comparing says -----------------------------------------------------------------------


@pytest.mark.parametrize(("write_quorum", "size"), [(3, 3), (2, 3), (2, 5), (3, 5), (1, 4)])
def test_each_member_is_expected_to_hold_the_entries_of_its_write_sets(
    write_quorum: int, size: int
) -> None:
    segment = make_segment([(0, "abcde"[:size])], 23, quorum=(write_quorum, 1))
    (stretch,) = list_stretches(_log(segment), segment)
    for place, one in enumerate(stretch.fragment.ensemble):
        expected = [
            entry
            for piece in cut(stretch, 5)
            for entry in expected_entries(segment, stretch, place, piece)
        ]
        assert expected == [e for e in range(24) if one in segment.write_set_of(EntryId(e))]


def test_pieces_cover_a_stretch_once() -> None:
    segment = make_segment([(0, "abc")], 9)
    (stretch,) = list_stretches(_log(segment), segment)
    assert list(cut(stretch, 4)) == [(0, 3), (4, 7), (8, 9)]
    assert isinstance(next(cut(stretch, 4)), Piece)


def held(text: str, unknown: tuple[int, ...] = ()) -> Holdings:
    """Letters are identities, a dot is an absence; an entry each, from 0 on."""
    identities = {EntryId(i): ord(letter) for i, letter in enumerate(text) if letter != "."}
    return Holdings(identities, [(EntryId(i), EntryId(i)) for i in unknown])


EXPECTED = [EntryId(i) for i in range(4)]


@pytest.mark.parametrize(
    ("own", "others", "is_silent", "flaws"),
    [
        (held("xyzw"), [held("xyzw")], False, []),
        (held("xyzw"), [held("xy.."), held("..zw")], False, []),
        (held("xy.w"), [held("xyzw")], False, [(2, 2, EntryFault.NOT_COPIED)]),
        (held("xy.."), [held("xy..")], False, [(2, 3, EntryFault.ABSENT)]),
        (held("xy.."), [held("xy..")], True, [(2, 3, EntryFault.SILENT)]),
        (held("xy.w"), [held("xy.w", (2,))], False, [(2, 2, EntryFault.UNKNOWN)]),
        (held("xyzw"), [held("xyqw")], False, [(2, 2, EntryFault.DIFFERENT)]),
        (held("...."), [held("xyzw"), held("xyqw")], False,
         [(2, 2, EntryFault.DIFFERENT), (0, 1, EntryFault.NOT_COPIED),
          (3, 3, EntryFault.NOT_COPIED)]),
        (held("xyzw"), [], True, [(0, 3, EntryFault.SILENT)]),
        (held("xyzw"), [held("....")], False, []),
    ],
)  # fmt: skip
def test_a_copy_is_verified_against_everybody_who_holds_it(
    own: Holdings, others: list[Holdings], is_silent: bool, flaws: list[tuple[int, int, EntryFault]]
) -> None:
    sources = dict(zip((member("b"), member("c")), others, strict=False))
    silent = [member("d")] if is_silent else []
    found = compare(member("a"), EXPECTED, own, sources, silent)
    assert sorted((f.first, f.last, f.fault.value) for f in found) == sorted(
        (first, last, fault.value) for first, last, fault in flaws
    )


def test_missing_is_what_has_no_good_bytes() -> None:
    assert missing_ranges(EXPECTED, held("x..w", (1,))) == [(1, 2)]
    assert missing_ranges(EXPECTED[1:], held("....")) == [(1, 3)]
