"""The count of copies sees what is missing, different, destroyed or in the wrong place.

Segments and answers are made by hand; one good cluster of three regions, and for each fault the
smallest change that makes it. Also here: what the budget of destroyed disks lets be damaged, and
what a stopped bookie's files look like after bits flipped. Pure, but for a folder of small files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from duramen.config import parse_log_config
from duramen.core.flexible.nodeset import ServingBookie, choose_nodeset
from duramen.core.flexible.nodeset_plan import make_nodeset_rule
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.placement.rule import Refusal
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from tests.chaos.copies import Answer, CopyCount, Counted, Place, Rule
from tests.chaos.disks import DamageBudget, flip_bits
from tests.chaos.layout import FLAT, REGIONS, Form, Layout, Spread
from tests.chaos.replicas import find_first_needed, list_needed_members
from tests.combinations import FIRST, OTHERS
from tests.unit.repair_world import log_of_segments, make_segment, members

LAST = EntryId(5)
PLACES = {BookieId(bookie): Place(*REGIONS.place(bookie)) for bookie in REGIONS.ids("bookie")}
RULE = Rule(min_regions=2, min_racks=2)
THREE = Quorum(3, 3, 2)
BOOKIES = (0, 3, 6)
"""One in each region."""

RP = ReplicationProperty
Answers = dict[Member, dict[EntryId, Answer]]


def member(number: int) -> Member:
    return Member(BookieId(f"bookie-{number}"), Incarnation(f"{number:032x}"))


def segment(*numbers: int, quorum: Quorum = THREE) -> Segment:
    """A closed one of six entries on these bookies."""
    return Segment(
        LogId(1), Epoch(1), quorum, (Fragment(EntryId(0), tuple(map(member, numbers))),),
        state=SegmentState.CLOSED, last_entry=LAST, totals=Totals(6), start_seq_num=0,
    ).validated()  # fmt: skip


def answer_all(of: Segment) -> Answers:
    """Every member of every write set has every entry."""
    answers: Answers = {}
    for entry in map(EntryId, range(LAST + 1)):
        for one in of.write_set_of(entry):
            answers.setdefault(one, {})[entry] = 1000 + entry
    return answers


def count(of: AnySegment, answers: Answers, rule: Rule = RULE) -> CopyCount:
    total = CopyCount()
    total.take(Counted("log", of, EntryId(0), LAST, rule), answers, PLACES)
    return total


def codes(counted: CopyCount, *, expects_repaired: bool = False) -> set[str]:
    return {v.code for v in counted.violations(expects_repaired=expects_repaired)}


def test_a_whole_segment_is_whole() -> None:
    whole = segment(*BOOKIES)
    counted = count(whole, answer_all(whole))
    assert counted.is_whole and not codes(counted, expects_repaired=True)
    assert (counted.entries, counted.copies, counted.wanted) == (6, 18, 18)


def test_a_striped_segment_wants_its_write_sets_only() -> None:
    striped = segment(0, 3, 6, 1, 4, 7, quorum=Quorum(6, 3, 2))
    counted = count(striped, answer_all(striped))
    assert counted.is_whole and counted.wanted == 18


@pytest.mark.parametrize("why", ["no_entry", "unknown", "damaged", "wrong_incarnation", "gone"])
def test_a_missing_copy_is_a_fault_where_all_is_to_be_repaired(why: str) -> None:
    whole = segment(*BOOKIES)
    answers = answer_all(whole)
    answers[member(3)][EntryId(2)] = why
    counted = count(whole, answers)
    assert not counted.is_whole and not codes(counted)
    assert codes(counted, expects_repaired=True) == {"copies"}
    assert counted.is_missing_on({"bookie-3"}) and not counted.is_missing_on({"bookie-0"})
    ((short, found),) = counted.shorts.items()
    assert (short.why, found) == (why, (2, 2, 1)) and why in counted.format()


def test_a_member_that_was_never_asked_has_no_copy() -> None:
    whole = segment(*BOOKIES)
    answers = answer_all(whole)
    del answers[member(6)]
    assert count(whole, answers).copies == 12


def test_an_entry_without_any_good_copy_is_lost() -> None:
    whole = segment(*BOOKIES)
    answers = answer_all(whole)
    for number, why in zip(BOOKIES, ("wrong_incarnation", "no_entry", "unknown"), strict=True):
        answers[member(number)][EntryId(4)] = why
    assert codes(count(whole, answers)) == {"D1"}


def test_copies_that_differ_are_found() -> None:
    whole = segment(*BOOKIES)
    answers = answer_all(whole)
    answers[member(0)][EntryId(0)] = 7
    assert codes(count(whole, answers)) == {"O1"}


@pytest.mark.parametrize(
    ("numbers", "quorum", "rule"),
    [
        ((0, 1, 6), THREE, RULE),
        ((0, 3, 6, 1, 4), Quorum(5, 5, 2), RULE),
        # Each ack set of the whole ensemble would do, those of the write set 0, 1, 3 would not.
        ((0, 1, 3, 6), Quorum(4, 3, 2), RULE),
        ((0, 3, 6), THREE, Rule(min_regions=3)),
        ((0, 3, 6), THREE, Rule(min_racks=3)),
    ],
    ids=["two in a region", "five", "striped", "three regions", "three racks"],
)
def test_an_ack_set_in_too_few_places_is_found(
    numbers: tuple[int, ...], quorum: Quorum, rule: Rule
) -> None:
    wrong = segment(*numbers, quorum=quorum)
    assert codes(count(wrong, answer_all(wrong), rule)) == {"P1"}
    assert not codes(count(wrong, answer_all(wrong), rule._replace(is_strict=False)))


def test_bookies_of_unknown_place_are_all_in_one() -> None:
    odd = segment(0, 90, 91)
    assert codes(count(odd, answer_all(odd))) == {"P1"}


def test_every_fragment_is_judged_by_its_own_ensemble() -> None:
    one = segment(*BOOKIES)
    later = Fragment(EntryId(3), (member(0), member(1), member(6)), Totals(3))
    two = replace(one, fragments=(*one.fragments, later)).validated()
    counted = count(two, answer_all(two))
    assert codes(counted) == {"P1"} and counted.copies == 18


def test_holes_want_no_copies() -> None:
    holed = replace(
        segment(*BOOKIES), ack_mode="out_of_order", holes=((EntryId(1), EntryId(2)),)
    ).validated()
    assert count(holed, answer_all(holed)).entries == 4


# --- Flexible segments --------------------------------------------------------------------------

SPREAD = ReplicationProperty(3, 2, 2)
NODES = (0, 1, 3, 4, 6)
"""Two racks of the first region, two of the second, one of the third."""


def flexible(*numbers: int, wanted: ReplicationProperty = SPREAD) -> FlexibleSegment:
    """A closed one of six entries with these nodes."""
    nodes = [
        ServingBookie(one.bookie, *PLACES[one.bookie], one.incarnation)
        for one in map(member, numbers)
    ]
    return FlexibleSegment.opened(
        LogId(1), Epoch(1), wanted, nodes, ack_mode="out_of_order", placement="strict",
        created_unix_ms=0, nonce="",
    ).closed_by_owner(
        last_entry=LAST, totals=Totals(6), start_seq_num=0, completed_unix_ms=0, nonce=""
    )  # fmt: skip


def answer_at(*copysets: tuple[int, ...], nodes: tuple[int, ...] = NODES) -> Answers:
    """Each entry has its copyset, and everybody else vouches that it has none."""
    return {
        member(number): {
            EntryId(entry): 1000 + entry if number in copyset else "no_entry"
            for entry, copyset in enumerate(copysets)
        }
        for number in nodes
    }


SPREAD_WELL = ((0, 1, 3), (0, 4, 6), (1, 3, 6), (0, 1, 3, 4, 6), (1, 3, 4), (0, 3, 6))


def test_copies_of_a_flexible_segment_may_lie_anywhere_where_they_satisfy_its_property() -> None:
    counted = count(flexible(*NODES), answer_at(*SPREAD_WELL))
    assert counted.is_whole and not codes(counted, expects_repaired=True)
    assert (counted.entries, counted.copies, counted.wanted) == (6, 18, 18)
    assert not counted.is_missing_on({"bookie-0"})


@pytest.mark.parametrize(
    ("copyset", "wanted"),
    [((0, 3), SPREAD), ((0, 1), SPREAD), ((0, 3, 6), RP(4, 2)), ((0, 1, 3), RP(3, 3, 3)),
     ((3, 4, 3), RP(2, 2, 2))],
)  # fmt: skip
def test_copies_that_do_not_satisfy_it_are_a_fault_where_everybody_knows(
    copyset: tuple[int, ...], wanted: ReplicationProperty
) -> None:
    others = [NODES] * LAST
    counted = count(flexible(*NODES, wanted=wanted), answer_at(*others, copyset))
    assert codes(counted) == {"P1"} and not counted.is_whole
    assert counted.is_missing_on({"somebody"}), "nobody knows whose copy it was"


@pytest.mark.parametrize("why", ["unknown", "damaged", "wrong_incarnation", "gone", "unreachable"])
def test_who_cannot_vouch_may_have_the_copy_that_is_missing(why: str) -> None:
    answers = answer_at(*SPREAD_WELL)
    answers[member(3)][EntryId(0)] = why
    counted = count(flexible(*NODES), answers)
    assert not codes(counted) and not counted.is_whole
    assert codes(counted, expects_repaired=True) == {"copies"}
    ((short, found),) = counted.shorts.items()
    assert (short.member, short.why, found) == (member(3), why, (0, 0, 1))
    assert counted.is_missing_on({"bookie-3"})


def test_who_cannot_vouch_is_no_fault_where_the_others_are_enough() -> None:
    answers = answer_at(*SPREAD_WELL)
    answers[member(4)][EntryId(3)] = "unknown"
    counted = count(flexible(*NODES), answers)
    assert counted.is_whole and not counted.shorts


def test_an_entry_of_a_flexible_segment_without_any_good_copy_is_lost() -> None:
    answers = answer_at(*SPREAD_WELL[:4], (), SPREAD_WELL[5])
    assert codes(count(flexible(*NODES), answers)) == {"D1"}


def test_copies_of_a_flexible_segment_that_differ_are_found() -> None:
    answers = answer_at(*SPREAD_WELL)
    answers[member(0)][EntryId(0)] = 7
    assert codes(count(flexible(*NODES), answers)) == {"O1"}


def test_holes_of_a_flexible_segment_want_no_copies() -> None:
    holed = replace(flexible(*NODES), holes=((EntryId(1), EntryId(2)),)).validated()
    answers = answer_at(SPREAD_WELL[0], (), (0,), *SPREAD_WELL[3:])
    counted = count(holed, answers)
    assert counted.is_whole and counted.entries == 4


# --- What may be destroyed ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", [FLAT, REGIONS], ids=lambda layout: layout.name)
def test_logs_of_each_form_can_be_made_in_their_layout(layout: Layout) -> None:
    bookies = [
        ServingBookie(BookieId(name), *layout.place(name), Incarnation("1" * 32))
        for name in layout.ids("bookie")
    ]
    for combination in (FIRST, *OTHERS):
        for form in layout.list_forms(combination.copysets):
            replication = form.format(says_what_suffices=True)
            config = parse_log_config({"replication": replication, **combination._asdict()})
            assert config.ack_mode == combination.ack_mode
            if config.copysets == "flexible":
                found = choose_nodeset(bookies, make_nodeset_rule(config), LogId(1))
                assert not isinstance(found, Refusal) and not found.waived, form


@pytest.mark.parametrize(("spread", "most"), [(Spread(3), 2), (Spread(2, extras=1), 1)])
def test_a_flexible_log_bears_one_copy_less_than_it_has(spread: Spread, most: int) -> None:
    assert spread.damage_max == most


@pytest.mark.parametrize(
    ("form", "most"),
    [(Form(3, 3, 2), 1), (Form(5, 5, 3), 2), (Form(4, 4, 3), 1), (Form(6, 3, 2), 1),
     (Form(3, 3, 1), 0), (Form(3, 3, 3), 0), (Form(15, 15, 9), 6)],
)  # fmt: skip
def test_a_form_bears_the_smaller_of_two_numbers(form: Form, most: int) -> None:
    assert form.damage_max == most


def test_a_layout_bears_what_its_weakest_log_bears() -> None:
    assert FLAT.damage_max == REGIONS.damage_max == 1


def test_only_a_damaged_bookie_is_damaged_again_until_all_is_restored() -> None:
    budget = DamageBudget(1)
    assert budget.choose(["a", "b"], 1) == "b"
    budget.spend("b")
    assert budget.choose(["a", "b"], 0) == "b"
    assert budget.choose(["a", "c"], 0) is None
    budget.spend("b")
    with pytest.raises(AssertionError):
        budget.spend("a")
    budget.damaged = {"b"}
    budget.restore(["b"])
    assert budget.choose(["a", "c"], 0) is None, "who is in doubt proves no absence"
    budget.restore()
    assert budget.choose(["a", "c"], 0) == "a"


def test_nothing_may_be_damaged_where_nothing_is_spare() -> None:
    assert DamageBudget(0).choose(["a"], 0) is None


# --- Bits ---------------------------------------------------------------------------------------


def write_files(folder: Path, make: Callable[[int], bytes]) -> dict[Path, bytes]:
    names = ("journal/000001.dj", "journal/spare-000002.dj", "ledgers/000001.de", "cookie.json")
    written = {folder / name: make(number) for number, name in enumerate(names)}
    for path, data in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return written


def test_bits_flip_in_journal_and_entry_log_and_nowhere_else(tmp_path: Path) -> None:
    before = write_files(tmp_path, lambda number: random.Random(number).randbytes(20_000))
    flips = flip_bits(tmp_path, random.Random(1))
    changed = {path.name for path, data in before.items() if path.read_bytes() != data}
    assert changed == {name for name, _ in flips} == {"000001.dj", "000001.de"}
    bits = sum(
        (a ^ b).bit_count()
        for path, data in before.items()
        for a, b in zip(data, path.read_bytes(), strict=True)
    )
    assert bits == len(flips) >= 4


def test_no_bit_flips_where_nothing_stands(tmp_path: Path) -> None:
    write_files(tmp_path, lambda number: bytes(20_000))
    assert not flip_bits(tmp_path, random.Random(1))
    assert not flip_bits(tmp_path / "nowhere", random.Random(1))


# --- What is needed -----------------------------------------------------------------------------


def test_truncated_fragments_name_nobody_unless_a_takeover_reads_them() -> None:
    ended = make_segment([(0, "abc"), (5, "abd")], 9)
    log = log_of_segments([ended])
    trimmed = replace(log, trim_lsn=(1 << 32) + 7, trim_seq_num=7)
    assert find_first_needed(trimmed, ended) == 7
    assert list_needed_members(trimmed, ended) == set(members("abd"))
    gone = replace(log, trim_lsn=2 << 32, trim_seq_num=10)
    assert list_needed_members(gone, ended) == set()
    read_back = replace(gone, snapshot_lsn=(1 << 32) + 3)
    assert find_first_needed(read_back, ended) == 4
    assert list_needed_members(read_back, ended) == set(members("abcd"))
    assert find_first_needed(replace(gone, snapshot_lsn=None), ended) == 0
    spread = flexible(*NODES)
    assert list_needed_members(log, spread) == set(map(member, NODES))
    assert list_needed_members(gone, spread) == set()
    is_open = make_segment([(0, "abc"), (5, "abd")])
    assert list_needed_members(log_of_segments([is_open]), is_open) == set(members("abcd"))
