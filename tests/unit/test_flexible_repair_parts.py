"""What repair of a flexible segment decides, piece by piece: findings, targets, losses, answers.

Histories of whole attempts are in `test_flexible_repair`. Source: R26, docs/protocol/repair.md
"Repair of a flexible segment".
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from duramen.core.duty import Duty
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.repair.attempt import (
    AttemptEnd,
    CopyOrders,
    HoldingsQuestion,
    MarkQuestion,
    RepairAttempt,
    RowAddition,
)
from duramen.core.flexible.repair.audit import (
    NO_NODESET,
    NextNodeset,
    audit_flexible,
    list_needed,
    names_bookie,
    share_of,
)
from duramen.core.flexible.repair.availability import is_readable_without, judge_restart
from duramen.core.flexible.repair.evidence import FRESH_US, DamageMark, Evidence
from duramen.core.flexible.repair.losses import (
    count_missing,
    find_lost_entries,
    list_neighbours,
    record_lost,
)
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement.room import Rack
from duramen.core.repair.audit import NO_DEBTS, Action, Debts, RepairProblem
from duramen.core.repair.cluster_view import BookieState, ClusterView
from duramen.core.repair.copies import EntryFault, Flaw, Holdings
from duramen.core.segment_base import Totals
from duramen.ids import BookieId, EntryId, Epoch, LogId, Member, NodeNumber
from duramen.units import SECOND
from tests.unit.flexible_repair_world import RepairWorld
from tests.unit.flexible_segments import IN_RECOVERY, OPEN, close, close_as_owner, node
from tests.unit.repair_world import make_log


def nobody() -> NextNodeset:
    return NO_NODESET


def state_of(segment: FlexibleSegment, number: int, **changes: object) -> BookieState:
    """The bookie of a row, where the row says it is."""
    row = segment.nodes[number]
    state = BookieState(
        row.member, row.node.region, row.node.rack, row.weight, Duty.SERVING, Duty.SERVING,
        is_writable=True, data_url="up",
    )  # fmt: skip
    return replace(state, **changes)  # type: ignore[arg-type]


def view_of(
    segment: FlexibleSegment, changes: Mapping[int, Mapping[str, object]] | None = None
) -> ClusterView:
    """All rows' bookies, but for what is changed of some."""
    states = [
        state_of(segment, at, **(changes or {}).get(at, {})) for at in range(len(segment.nodes))
    ]
    return ClusterView(
        {state.member.bookie: state for state in states},
        watched_since_us=0, now_us=100 * SECOND, grace_us=30 * SECOND,
    )  # fmt: skip


def absent(since_s: int) -> dict[str, object]:
    return {"published_duty": None, "absent_since_us": since_s * SECOND}


def log_of(segment: FlexibleSegment, trim: int = 0) -> LogNode:
    """A log in which the segment's entries from `trim` on are needed."""
    log = replace(make_log(7), next_epoch=Epoch(4), first_live_epoch=Epoch(3))
    log = replace(log, last_clean_epoch=3 if segment.is_closed else 2).with_stateless()
    return replace(log, trim_lsn=3 << 32 | trim)


CLOSED = close_as_owner(OPEN)
UNPROVED = close(OPEN.marked("m"))


# --- Findings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("segment", "changes", "debts", "problem", "row"),
    [
        (CLOSED, {}, NO_DEBTS, None, None),
        (CLOSED, {2: absent(10)}, NO_DEBTS, RepairProblem.LOST, 2),
        (CLOSED, {2: absent(90)}, NO_DEBTS, None, None),
        (CLOSED, {1: {"duty": Duty.LEAVING}}, NO_DEBTS, RepairProblem.LEAVING, 1),
        (CLOSED, {1: {"duty": Duty.LEAVING}, 2: absent(90)}, NO_DEBTS, None, None),
        (CLOSED, {2: absent(10), 3: absent(90)}, NO_DEBTS, RepairProblem.LOST, 2),
        (CLOSED, {3: {"rack": "k9"}}, NO_DEBTS, RepairProblem.MISPLACED, None),
        (UNPROVED, {}, NO_DEBTS, RepairProblem.UNPROVED, None),
        (UNPROVED, {0: absent(90)}, NO_DEBTS, None, None),
        (CLOSED, {}, Debts(damaged=frozenset({CLOSED.nodes[4].member})), RepairProblem.DAMAGED, 4),
        (CLOSED, {}, Debts(doubtful=frozenset({CLOSED.nodes[4].member})), RepairProblem.DOUBTED, 4),
    ],
)  # fmt: skip
def test_a_closed_segment_is_one_finding_at_most(
    segment: FlexibleSegment,
    changes: dict[int, dict[str, object]],
    debts: Debts,
    problem: RepairProblem | None,
    row: int | None,
) -> None:
    found = audit_flexible(log_of(segment), segment, view_of(segment, changes), debts, nobody)
    assert [finding.problem for finding in found] == ([] if problem is None else [problem])
    if row is not None:
        assert found[0].member == segment.nodes[row].member
        assert found[0].key.first_entry == 0 and found[0].key.action is not Action.ROLL


def test_what_nobody_needs_is_no_work_and_names_nobody() -> None:
    gone = view_of(CLOSED, {0: absent(10)})
    assert list_needed(log_of(CLOSED, 41), CLOSED) == []
    assert audit_flexible(log_of(CLOSED, 41), CLOSED, gone, NO_DEBTS, nobody) == []
    assert not names_bookie(log_of(CLOSED, 41), CLOSED, BookieId("b0"))
    assert names_bookie(log_of(CLOSED, 40), CLOSED, BookieId("b0"))
    assert list_needed(log_of(CLOSED, 38), CLOSED) == [(38, 40)]
    holed = close(OPEN.marked("m"), holes=((3, 5),), lost=((8, 9),))
    assert list_needed(log_of(holed), holed) == [(0, 2), (6, 7), (10, 40)]


def test_guests_and_rows_of_every_state_are_named() -> None:
    for segment in (OPEN, IN_RECOVERY, CLOSED):
        for row in segment.nodes:
            assert names_bookie(log_of(segment), segment, row.node.bookie)
    assert not names_bookie(log_of(OPEN), OPEN, BookieId("b9"))


def test_an_owner_is_asked_to_roll_once_for_a_bookie_that_the_next_nodeset_names_again() -> None:
    """Else each roll would be the reason for the next one."""
    everybody = [row.member for row in OPEN.nodes]
    gone = view_of(OPEN, {1: absent(10)})  # for 90 s

    def ask(created_s_ago: int, members: list[Member]) -> list[Action]:
        segment = replace(OPEN, created_unix_ms=1_000_000 - created_s_ago * 1_000)
        following = NextNodeset(members, 1_000_000)
        found = audit_flexible(log_of(segment), segment, gone, NO_DEBTS, lambda: following)
        return [finding.key.action for finding in found]

    assert ask(91, everybody) == [Action.ROLL]
    assert ask(89, everybody) == []
    assert ask(89, [m for m in everybody if m != OPEN.nodes[1].member]) == [Action.ROLL]
    assert ask(91, []) == [], "no nodeset could be chosen"


def test_a_segment_in_recovery_is_left_to_its_recoverer() -> None:
    gone = view_of(IN_RECOVERY, {1: absent(10)})
    assert audit_flexible(log_of(IN_RECOVERY), IN_RECOVERY, gone, NO_DEBTS, nobody) == []


def test_shares_of_rows_follow_their_weights() -> None:
    shares = [share_of(CLOSED, row) for row in CLOSED.nodes]
    assert shares == sorted(shares) and max(shares) <= 10_000
    assert share_of(OPEN, OPEN.nodes[0]) == 0


# --- Attempts, step by step ----------------------------------------------------------------------


def begin(world: RepairWorld, piece_entry_count: int = 3) -> RepairAttempt:
    view, needed = world.view(), world.list_needed()
    candidates = view.candidates()
    return RepairAttempt(
        world.segment, needed, view, candidates, piece_entry_count=piece_entry_count
    )


def play_through(world: RepairWorld, attempt: RepairAttempt, *, copies: bool = True) -> AttemptEnd:
    """Nothing comes between, and copies are made, or never arrive."""
    while True:
        attempt.validate()
        match step := attempt.next_step():
            case MarkQuestion():
                told = {row.member: world.find_mark(row.member) for row in step.rows}
                attempt.on_marks({m: k for m, k in told.items() if k is not None}, world.now_us)
            case HoldingsQuestion():
                held = {r.member: world.take_holdings(r.member, step.piece) for r in step.rows}
                attempt.on_holdings({m: h for m, h in held.items() if h is not None})
            case CopyOrders():
                for order in step.orders if copies else ():
                    for first, last in order.ranges:
                        for entry in range(first, last + 1):
                            for source in order.sources:
                                world.pull(order.target.member, source.member, entry)
                attempt.on_copied()
            case RowAddition():
                world.change(world.segment.with_added(step.node, "a"))
                attempt.on_added(world.segment)
            case AttemptEnd():
                return step


@pytest.fixture
def world() -> RepairWorld:
    return RepairWorld(random.Random(3))


def test_a_drain_adds_who_is_wanted_and_ends(world: RepairWorld) -> None:
    for name in ("b0", "b1"):
        world.disks[name].duty = Duty.LEAVING
    world.disks["b2"].is_up = False
    end = play_through(world, attempt := begin(world))
    assert end.evidence is not None and not end.flaws
    assert [row.node.bookie for row in attempt.going] == ["b0", "b1"]
    assert len(world.segment.nodes) == 5, "b3 alone is not two racks"
    for row in attempt.going:
        change = end.evidence.take_out(world.segment, world.list_needed(), row.number, "t")
        assert change is not None
        world.change(change, world.now_us)
        end = end._replace(evidence=end.evidence.after(change))
        assert end.evidence is not None


def test_failed_copies_are_no_reason_to_add_anybody(world: RepairWorld) -> None:
    world.disks["b0"].duty = Duty.LEAVING
    end = play_through(world, begin(world), copies=False)
    assert end.evidence is None and len(world.segment.nodes) == 4
    assert {flaw.fault for flaw in end.flaws} == {EntryFault.NOT_COPIED}


def test_two_identities_of_one_entry_are_copied_nowhere(world: RepairWorld) -> None:
    (row, disk), *_ = world.holders(1)
    disk.copies[1] += 1
    world.disks["b6"].copies.clear()
    end = play_through(world, begin(world))
    assert end.evidence is None
    assert [(flaw.first, flaw.last, flaw.fault) for flaw in end.flaws] == [
        (1, 1, EntryFault.DIFFERENT)
    ]
    assert len(world.holders(1)) == 2, row


def test_who_cannot_vouch_for_an_entry_is_mended_first(world: RepairWorld) -> None:
    _, disk = world.holders(4)[0]
    disk.lose(4)
    assert play_through(world, begin(world)).evidence is not None
    assert 4 in disk.copies and 4 not in disk.unknown


def test_a_witness_that_does_not_answer_ends_the_attempt(world: RepairWorld) -> None:
    attempt = begin(world)
    world.disks["b1"].is_up = False
    assert play_through(world, attempt).reason == "b1 did not answer"
    world.disks["b1"].is_up = True
    attempt = begin(world)
    assert isinstance(attempt.next_step(), MarkQuestion)
    attempt.on_marks({m: DamageMark(0) for m in _members(world)}, world.now_us)
    attempt.on_holdings({m: Holdings() for m in _members(world) if m.bookie != "b2"})
    end = attempt.next_step()
    assert isinstance(end, AttemptEnd) and end.reason == "b2 did not answer"


def test_who_knows_no_marks_is_no_witness_and_that_is_said(world: RepairWorld) -> None:
    attempt = begin(world)
    told = {m: DamageMark(0) for m in _members(world) if m.bookie not in ("b1", "b2")}
    attempt.on_marks(told, world.now_us, [world.disks["b1"].member])
    end = attempt.next_step()
    assert isinstance(end, AttemptEnd) and end.evidence is None
    assert end.reason == "b1 knows no damage marks: its version is too old"


def test_with_nobody_to_take_a_copy_that_is_said() -> None:
    world = RepairWorld(random.Random(3), bookie_count=4)
    for name in ("b0", "b1"):
        world.disks[name].duty = Duty.LEAVING
    world.disks["b3"].duty = Duty.LEAVING
    end = play_through(world, begin(world))
    assert end.lacks_place and {f.fault for f in end.flaws} == {EntryFault.NOT_COPIED}


def test_a_piece_begins_and_ends_with_what_is_needed() -> None:
    world = RepairWorld(random.Random(1), last_entry=20, holes=((4, 11),))
    world.first_needed = 2
    attempt = begin(world, piece_entry_count=5)
    pieces = []
    while not isinstance(step := attempt.next_step(), AttemptEnd):
        if isinstance(step, HoldingsQuestion):
            pieces.append(tuple(step.piece))
            held = {r.member: world.take_holdings(r.member, step.piece) for r in step.rows}
            attempt.on_holdings({m: h for m, h in held.items() if h is not None})
        else:
            attempt.on_marks({m: DamageMark(0) for m in _members(world)}, world.now_us)
    assert pieces == [(2, 3), (12, 16), (17, 20)]


def _members(world: RepairWorld) -> list[Member]:
    return [row.member for row in world.segment.nodes]


# --- Evidence ------------------------------------------------------------------------------------


def evidence(version: int = 0, last: int = 40) -> Evidence:
    places = {NodeNumber(n): CLOSED.nodes[n].node.place for n in (0, 1, 2)}
    return Evidence(version, CLOSED.replication, places, ((EntryId(0), EntryId(last)),), 100)


def test_evidence_says_nothing_of_another_map_or_of_more_entries() -> None:
    needed = [(EntryId(0), EntryId(40))]
    other = CLOSED.without_node(NodeNumber(3), "t")
    added = CLOSED.with_added(node("b9"), "a")
    assert evidence().holds(CLOSED, needed) and evidence().holds(added, needed)
    assert evidence().holds(CLOSED, []) and evidence(last=50).holds(CLOSED, needed)
    assert not evidence().holds(other, needed)
    assert not evidence(last=39).holds(CLOSED, needed)
    assert not evidence().holds(OPEN, [])
    assert evidence().take_out(CLOSED, needed, NodeNumber(2), "t") is None, "a witness"
    assert evidence().take_out(other, needed, NodeNumber(3), "t") is None


def test_one_change_of_other_rows_is_adopted_and_nothing_else() -> None:
    """It may be this one, of unknown outcome, or another repairer's."""
    gone = CLOSED.without_node(NodeNumber(3), "t")
    adopted = evidence().adopt(gone)
    assert adopted is not None and adopted.nodeset_version == 1
    assert evidence().adopt(gone.without_node(NodeNumber(4), "t")) is None
    assert evidence().adopt(CLOSED) is None
    assert evidence().adopt(CLOSED.without_node(NodeNumber(2), "t")) is None, "a witness"
    moved = CLOSED.with_locations({NodeNumber(1): Rack("eu", "k9")}, "r")
    assert evidence().adopt(moved) is None, "a witness was judged to be elsewhere"
    wider = CLOSED.with_property(replace(CLOSED.replication, rack=3), "w")
    assert evidence().adopt(wider) is None, "by another RP"


def test_rows_go_only_after_the_map_has_the_places_that_they_were_judged_by() -> None:
    needed = [(EntryId(0), EntryId(40))]
    found = evidence()
    found = replace(found, places={**found.places, NodeNumber(1): Rack("eu", "k9")})
    assert found.take_out(CLOSED, needed, NodeNumber(3), "t") is None
    assert found.prove(UNPROVED, needed, "p") is None
    moved = found.relocate(CLOSED, needed, "r")
    assert moved is not None and moved.nodes[1].node.place == Rack("eu", "k9")
    assert found.adopt(moved) == found.after(moved) == replace(found, nodeset_version=1)
    assert found.adopt(CLOSED.with_locations({NodeNumber(1): Rack("eu", "k8")}, "r")) is None
    assert found.after(moved).relocate(moved, needed, "r") is None
    assert found.after(moved).take_out(moved, needed, NodeNumber(3), "t") is not None


def test_marks_are_fresh_from_the_question_on() -> None:
    assert evidence().is_fresh(100) and evidence().is_fresh(100 + FRESH_US)
    assert not evidence().is_fresh(101 + FRESH_US) and not evidence().is_fresh(99)


# --- Losses --------------------------------------------------------------------------------------


def lost_view(segment: FlexibleSegment, accepted: str) -> ClusterView:
    """Row 0 and 1 are gone; of those named it is accepted."""
    view = view_of(segment, {0: absent(10), 1: absent(10)})
    names = [row.node.incarnation for row in segment.nodes if row.node.bookie in accepted.split()]
    return replace(view, lost=frozenset(names), accepted=frozenset(names))


def flaw(fault: EntryFault, first: int, last: int) -> Flaw:
    return Flaw(UNPROVED.nodes[0].member, EntryId(first), EntryId(last), fault)


def test_an_entry_is_lost_when_each_row_was_heard_or_is_accepted() -> None:
    flaws = [flaw(EntryFault.ABSENT, 3, 4), flaw(EntryFault.UNKNOWN, 5, 5)]
    segment = replace(UNPROVED, nodes=tuple(
        replace(row, node=replace(row.node, incarnation=node("x", life=at + 1).incarnation))
        for at, row in enumerate(UNPROVED.nodes)
    ))  # fmt: skip
    assert find_lost_entries(segment, flaws, lost_view(segment, "b0 b1")) == [(3, 4)]
    assert find_lost_entries(segment, flaws, lost_view(segment, "b0")) == []
    assert find_lost_entries(segment, flaws, view_of(segment)) == [], "nobody is gone"


def test_a_row_that_came_meanwhile_forbids_a_loss() -> None:
    """It was not asked, and may be of a bookie that was taken out before, with its copies."""
    ranges = [(EntryId(3), EntryId(4))]
    found = record_lost(UNPROVED, UNPROVED, ranges, 2, "l")
    assert found is not None and found.lost == ((3, 4),) and found.missing_record_count == 2
    added = UNPROVED.with_added(node("b9"), "a")
    assert record_lost(added, UNPROVED, ranges, 2, "l") is None
    assert record_lost(added.without_node(NodeNumber(5), "t"), UNPROVED, ranges, 2, "l") is None
    assert record_lost(found, UNPROVED, ranges, 1, "l") is None, "others were lost meanwhile"


def test_missing_records_are_what_the_entries_around_leave_unexplained() -> None:
    segment = replace(
        close(OPEN.marked("m"), 9, holes=((3, 3),)), totals=Totals(30, 300)
    )  # three records an entry
    counts = {EntryId(e): (3 * e, 3 * e + 3) for e in range(10)}
    assert count_missing(segment, [], counts) == 3
    assert count_missing(segment, [(EntryId(4), EntryId(5))], counts) == 9
    assert list_neighbours(segment, [(EntryId(4), EntryId(5))]) == [2, 6]
    assert count_missing(segment, [(EntryId(0), EntryId(1))], counts) == 9
    assert count_missing(segment, [(EntryId(8), EntryId(9))], counts) == 9
    assert list_neighbours(segment, [(EntryId(8), EntryId(9))]) == [2, 4, 7]
    del counts[EntryId(2)]
    assert count_missing(segment, [(EntryId(8), EntryId(9))], counts) == 6


# --- Disruption ----------------------------------------------------------------------------------


def test_readable_is_what_brute_force_says_of_all_small_maps() -> None:
    """Exactly where it says no, some entry may lie on those that are away alone."""
    case_count = 0
    for node_count, rack_count in itertools.product(range(1, 6), range(1, 4)):
        nodes = [node(f"b{n}", f"k{n % rack_count}") for n in range(node_count)]
        for wanted in (
            ReplicationProperty(1), ReplicationProperty(2), ReplicationProperty(2, 2),
            ReplicationProperty(3, 2), ReplicationProperty(3, 3),
        ):  # fmt: skip
            if not wanted.is_satisfied_by(nodes):
                continue
            segment = FlexibleSegment.opened(
                LogId(7), Epoch(3), wanted, nodes, ack_mode="ordered", placement="strict",
                created_unix_ms=1, nonce="o",
            )  # fmt: skip
            subsets = [
                list(rows)
                for size in range(node_count + 1)
                for rows in itertools.combinations(segment.nodes, size)
            ]
            copysets = [s for s in subsets if wanted.is_satisfied_by(row.node for row in s)]
            for away in subsets:
                worst = all(any(row not in away for row in copyset) for copyset in copysets)
                assert is_readable_without(segment, away) == worst, (segment, away)
                case_count += 1
    assert case_count > 500


@pytest.mark.parametrize(
    ("segment", "changes", "damaged", "codes"),
    [
        (CLOSED, {}, (), []),
        (CLOSED, {1: absent(90)}, (), []),
        (CLOSED, {1: absent(90), 2: absent(10)}, (), ["too_few_copies"]),
        (CLOSED, {1: absent(90)}, (2,), ["too_few_copies"]),
        (CLOSED, {}, (1, 2), ["too_few_copies"]),
        (CLOSED, {3: absent(90)}, (0,), []),
        (UNPROVED, {}, (), ["unproved"]),
        (OPEN, {}, (), []),
        (OPEN, {1: absent(90)}, (), []),
        (OPEN, {1: absent(90), 2: absent(90)}, (), ["not_coverable", "too_few_copies"]),
        (IN_RECOVERY, {}, (), ["in_recovery"]),
        (IN_RECOVERY, {1: absent(90), 2: absent(90)}, (), ["not_coverable", "in_recovery"]),
    ],
)  # fmt: skip
def test_a_restart_is_judged_by_who_is_left(
    segment: FlexibleSegment,
    changes: dict[int, dict[str, object]],
    damaged: tuple[int, ...],
    codes: list[str],
) -> None:
    debts = Debts(damaged=frozenset(segment.nodes[n].member for n in damaged))
    view = view_of(segment, changes)
    log = log_of(segment)
    assert judge_restart(log, segment, [BookieId("b0")], view, debts) == codes
    assert judge_restart(log, segment, [BookieId("b9")], view, debts) == []
