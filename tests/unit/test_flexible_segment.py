"""The flexible segment's transitions and invariants, and what two versions say of each other.

Rules R22–R26. Source: docs/protocol/flexible.md "The segment node".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import NEXT_NUMBER_MAX, ROWS_MAX, FlexibleSegment
from duramen.core.flexible.segment_changes import find_frozen_faults, find_map_faults
from duramen.core.placement.room import Rack
from duramen.core.segment_base import SegmentState, Totals
from duramen.ids import NOTHING, EntryId, Epoch
from tests.unit.flexible_segments import (
    CLOSED,
    COPY,
    IN_RECOVERY,
    OPEN,
    RP,
    close,
    close_as_owner,
    lives,
    node,
    number,
)


def numbers_of(rows: tuple[NodesetRow, ...]) -> list[int]:
    return [row.number for row in rows]


# --- Transitions ---------------------------------------------------------------------------------


def test_an_epoch_numbers_its_nodes_in_their_order() -> None:
    assert numbers_of(OPEN.nodes) == [0, 1, 2, 3, 4] and OPEN.own_nodes == OPEN.nodes
    assert (OPEN.own_count, OPEN.guest_count, OPEN.next_number) == (5, 0, 5)
    assert OPEN.ledger_id == 7 << 32 | 3 and OPEN.nodes[3].rack == Rack("eu", "k0")


def test_r24_guests_get_the_next_numbers_and_are_no_nodes_of_the_epoch() -> None:
    assert IN_RECOVERY.own_nodes == OPEN.nodes
    assert [(row.number, row.node.bookie) for row in IN_RECOVERY.guests] == [(5, "g0"), (6, "b1")]
    assert (IN_RECOVERY.guest_count, IN_RECOVERY.next_number) == (2, 7)
    assert IN_RECOVERY.nodeset_version == 0, "who comes moves nothing"


def test_a_close_takes_the_epochs_nodes_and_the_guests() -> None:
    assert CLOSED.nodes == IN_RECOVERY.nodes and CLOSED.guests == IN_RECOVERY.guests
    assert CLOSED.is_closed and CLOSED.last_entry == 40 and CLOSED.missing_record_count == 17


def test_r9_an_owners_close_is_proved_and_recoverys_is_not_until_the_audit() -> None:
    assert close_as_owner(OPEN).is_proved and not CLOSED.is_proved
    assert CLOSED.with_proved("a").is_proved


def test_a_segment_without_entries_closes_and_needs_nobody() -> None:
    segment = close(OPEN.marked("m"), NOTHING)
    for row in OPEN.nodes:
        segment = segment.without_node(row.number, "n")
    assert segment.nodes == () and segment.nodeset_version == 5 and segment.next_number == 5


def test_r26_a_node_that_left_and_comes_back_has_another_number() -> None:
    left = CLOSED.without_node(number(1), "n1")
    assert left.find_row(number(1)) is None and left.own_count == 5
    back = left.with_added(CLOSED.nodes[1].node, "n2")
    assert back.nodes[-1] == NodesetRow(number(7), CLOSED.nodes[1].node)
    assert (left.nodeset_version, back.nodeset_version, back.next_number) == (1, 1, 8)
    assert numbers_of(back.own_nodes) == [0, 2, 3, 4], "what repair adds is no node of the epoch"
    assert numbers_of(back.guests) == [5, 6]


def test_r26_another_place_and_another_property_move_the_version() -> None:
    moved = CLOSED.with_locations({number(2): Rack("us", "x"), number(5): Rack("", "")}, "n1")
    assert (moved.nodes[2].rack, moved.nodes[5].rack) == (Rack("us", "x"), None)
    assert moved.nodes[2].member == CLOSED.nodes[2].member and moved.nodeset_version == 1
    asked = moved.with_property(replace(RP, rack=3), "n2")
    assert asked.replication == ReplicationProperty(3, 3, 1, extras=1)
    assert asked.nodeset_version == 2


def test_what_repair_loses_moves_lost_and_missing_records_and_no_totals() -> None:
    lost = CLOSED.with_lost([(15, 16), (20, 20)], 21, "n1")
    assert lost.lost == ((12, 16), (20, 20)) and lost.missing_record_count == 21
    assert lost.totals == CLOSED.totals and lost.nodeset_version == 0
    assert lost.absence_at(EntryId(16)) == (12, 16) and lost.absence_at(EntryId(9)) == (9, 9)


def test_a_closed_segment_has_a_cold_copy_as_a_striped_one_has() -> None:
    cold = CLOSED.with_cold_copy(COPY, "n1").with_recheck(7, "n2")
    assert cold.cold_copy == COPY.rechecked(7)
    assert replace(cold.without_cold_copy("n3"), nonce=CLOSED.nonce) == CLOSED


def test_who_is_away_is_the_same_row() -> None:
    away = replace(OPEN.nodes[0], node=replace(OPEN.nodes[0].node, is_absent=True))
    assert replace(OPEN, nodes=(away, *OPEN.nodes[1:])) == OPEN


STEPS: dict[str, Callable[[], FlexibleSegment]] = {
    "mark twice": lambda: IN_RECOVERY.marked("n"),
    "mark when closed": lambda: CLOSED.marked("n"),
    "owner closes what is marked": lambda: close_as_owner(IN_RECOVERY),
    "owner closes twice": lambda: close_as_owner(close_as_owner(OPEN)),
    "recovery closes what is open": lambda: close(OPEN),
    "recovery closes twice": lambda: close(CLOSED),
    "guest of an open segment": lambda: OPEN.with_guest(node("g9"), "n"),
    "guest of a closed segment": lambda: CLOSED.with_guest(node("g9"), "n"),
    "guest that is a node": lambda: IN_RECOVERY.with_guest(OPEN.nodes[0].node, "n"),
    "guest twice": lambda: IN_RECOVERY.with_guest(IN_RECOVERY.guests[0].node, "n"),
    "repair adds too early": lambda: IN_RECOVERY.with_added(node("g9"), "n"),
    "repair adds a node twice": lambda: CLOSED.with_added(CLOSED.nodes[3].node, "n"),
    "removal too early": lambda: IN_RECOVERY.without_node(number(6), "n"),
    "removal of nobody": lambda: CLOSED.without_node(number(7), "n"),
    "places too early": lambda: OPEN.with_locations({number(0): Rack("eu", "x")}, "n"),
    "places of nobody": lambda: CLOSED.with_locations({number(9): Rack("eu", "x")}, "n"),
    "places as they are": lambda: CLOSED.with_locations({number(0): Rack("eu", "k0")}, "n"),
    "property too early": lambda: OPEN.with_property(replace(RP, node=2), "n"),
    "property as it is": lambda: CLOSED.with_property(RP, "n"),
    "other extras": lambda: CLOSED.with_property(replace(RP, node=2, extras=0), "n"),
    "lost too early": lambda: IN_RECOVERY.with_lost([(0, 0)], 1, "n"),
    "missing records come back": lambda: CLOSED.with_lost([(0, 0)], 16, "n"),
    "proved too early": lambda: IN_RECOVERY.with_proved("n"),
    "bound of an open segment": lambda: OPEN.bounded(EntryId(3), "n"),
    "a second bound": lambda: IN_RECOVERY.bounded(EntryId(3), "n").bounded(EntryId(4), "n"),
    "an end above the bound": lambda: close(IN_RECOVERY.bounded(EntryId(3), "n")),
    "a cold copy too early": lambda: IN_RECOVERY.with_cold_copy(COPY, "n"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_nothing_changes_but_by_its_transition(step: Callable[[], FlexibleSegment]) -> None:
    with pytest.raises(AssertionError):
        step()


def test_repair_is_refused_when_rows_or_numbers_are_used_up() -> None:
    full = CLOSED
    while full.has_room:
        full = full.with_added(node(f"n{full.next_number}"), "n")
    assert len(full.nodes) == ROWS_MAX == full.next_number
    with pytest.raises(AssertionError):
        full.with_added(node("late"), "n")
    assert full.without_node(number(9), "n").has_room
    last = replace(CLOSED, next_number=NEXT_NUMBER_MAX - 1).with_added(node("late"), "n")
    assert last.nodes[-1].number == NEXT_NUMBER_MAX - 1 and not last.has_room, "65,535 is not given"
    with pytest.raises(AssertionError):
        last.with_added(node("later"), "n")


# --- Invariants ----------------------------------------------------------------------------------

ROW = CLOSED.nodes[0]
HEAVY = (replace(ROW, node=replace(ROW.node, weight=float("inf"))), *CLOSED.nodes[1:])
WEIGHTLESS = (replace(ROW, node=replace(ROW.node, weight=0.0)), *CLOSED.nodes[1:])
TWICE = (*CLOSED.nodes, NodesetRow(number(7), ROW.node))
TWO_LIVES = (replace(ROW, node=node("b4", "k0", life=2)), *CLOSED.nodes[1:])
MANY = tuple(NodesetRow(number(n), node(f"n{n}")) for n in range(ROWS_MAX + 1))

BROKEN: list[tuple[str, FlexibleSegment, dict[str, Any]]] = [
    ("4", CLOSED, {"last_entry": None}),
    ("4", CLOSED, {"totals": None, "missing_record_count": 0}),
    ("4", OPEN, {"last_entry": EntryId(3)}),
    ("5", CLOSED, {"holes": ((40, 40),)}),
    ("5", CLOSED, {"ack_mode": "ordered"}),
    ("7", CLOSED, {"bound": EntryId(39)}),
    ("7", OPEN, {"bound": EntryId(39)}),
    ("8", CLOSED, {"lost": ((5, 6),)}),
    ("8", IN_RECOVERY, {"lost": ((5, 6),)}),
    ("9", IN_RECOVERY, {"cold_copy": COPY}),
    ("10", CLOSED, {"nodes": CLOSED.nodes[::-1]}),
    ("10", CLOSED, {"nodes": (ROW, *CLOSED.nodes)}),
    ("10", CLOSED, {"nodes": (replace(ROW, number=number(-1)), *CLOSED.nodes[1:])}),
    ("10", CLOSED, {"next_number": 6}),
    ("10", CLOSED, {"next_number": NEXT_NUMBER_MAX + 1}),
    ("10", CLOSED, {"nodes": MANY, "next_number": ROWS_MAX + 1}),
    ("10", CLOSED, {"nodes": HEAVY}),
    ("10", CLOSED, {"nodes": WEIGHTLESS}),
    ("11", CLOSED, {"nodes": TWICE, "next_number": 8}),
    ("11", CLOSED, {"nodes": TWO_LIVES}),
    ("12", CLOSED, {"own_count": 0}),
    ("12", CLOSED, {"guest_count": -1}),
    ("12", CLOSED, {"guest_count": 3}),
    ("13", OPEN, {"next_number": 6}),
    ("13", OPEN, {"nodes": OPEN.nodes[:4]}),
    ("13", OPEN, {"own_count": 4}),
    ("13", OPEN, {"own_count": 4, "guest_count": 1}),
    ("13", IN_RECOVERY, {"guest_count": 1}),
    ("14", OPEN, {"replication": replace(RP, region=2)}),
    ("14", IN_RECOVERY, {"replication": replace(RP, node=6)}),
    ("14", OPEN, {"is_proved": True}),
    ("14", IN_RECOVERY, {"nodeset_version": 1}),
    ("14", CLOSED, {"nodeset_version": -1}),
    ("15", IN_RECOVERY, {"missing_record_count": 1}),
    ("15", CLOSED, {"missing_record_count": 101}),
    ("15", CLOSED, {"missing_record_count": -1}),
    ("16", OPEN, {"ack_mode": "late"}),
    ("16", OPEN, {"placement": "anywhere"}),
]


@pytest.mark.parametrize(("invariant", "segment", "fields"), BROKEN)
def test_each_invariant_is_checked(
    invariant: str, segment: FlexibleSegment, fields: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match=rf"^{invariant}: <segment 7\.e3 "):
        replace(segment, **fields).validate()


def test_a_closed_segment_needs_no_satisfied_property() -> None:
    replace(CLOSED, replication=replace(RP, node=9)).validate()


# --- Two versions --------------------------------------------------------------------------------


@given(lives())
def test_each_step_of_a_life_keeps_to_what_is_frozen_and_to_its_numbers(
    versions: list[FlexibleSegment],
) -> None:
    given: dict[int, NodesetRow] = {}
    for version in versions:
        version.validate()
        for row in version.nodes:
            known = given.setdefault(row.number, row)
            assert known.member == row.member, "no number is used twice"
    for before, after in itertools.pairwise(versions):
        assert find_frozen_faults(before, after) == find_map_faults(before, after) == []
        assert before.own_count == after.own_count and before.next_number <= after.next_number


MORE = (*OPEN.nodes, NodesetRow(number(5), node("x")))
ELSEWHERE = (replace(ROW, node=replace(ROW.node, rack="x")), *CLOSED.nodes[1:])
HEAVIER = (replace(ROW, node=replace(ROW.node, weight=9.0)), *CLOSED.nodes[1:])
ANOTHER = (replace(ROW, node=node("x")), *CLOSED.nodes[1:])
BOUNDED = IN_RECOVERY.bounded(EntryId(50), "n")
PROVED = CLOSED.with_proved("n")
REMOVED = CLOSED.without_node(number(1), "n")

FROZEN: list[tuple[FlexibleSegment, dict[str, Any], str]] = [
    (OPEN, {"epoch": Epoch(4)}, "epoch is frozen"),
    (OPEN, {"ack_mode": "ordered"}, "ack_mode is frozen"),
    (OPEN, {"placement": "prefer"}, "placement is frozen"),
    (OPEN, {"created_unix_ms": 1}, "created_unix_ms is frozen"),
    (IN_RECOVERY, {"own_count": 6, "guest_count": 1}, "own_count is frozen"),
    (OPEN, {"replication": replace(RP, node=2)}, "replication is frozen"),
    (CLOSED, {"replication": replace(RP, extras=0)}, "extras are frozen"),
    (OPEN, {"nodes": ELSEWHERE[:5]}, "rows are frozen"),
    (IN_RECOVERY, {"nodes": HEAVIER}, "rows are frozen"),
    (IN_RECOVERY, {"nodes": IN_RECOVERY.nodes[:6]}, "rows are frozen"),
    (OPEN, {"nodes": MORE}, "guests come while"),
    (OPEN, {"nodes": MORE, "state": SegmentState.IN_RECOVERY}, "guests come while"),
    (IN_RECOVERY, {"nodeset_version": 1}, "nodeset_version is frozen"),
    (IN_RECOVERY, {"state": SegmentState.OPEN}, "IN_RECOVERY became OPEN"),
    (CLOSED, {"state": SegmentState.IN_RECOVERY}, "CLOSED became IN_RECOVERY"),
    (BOUNDED, {"bound": EntryId(51)}, "the first bound stays"),
    (BOUNDED, {"bound": None}, "the first bound stays"),
    (CLOSED, {"bound": EntryId(50)}, "bound is frozen"),
    (CLOSED, {"last_entry": EntryId(41)}, "last_entry is frozen"),
    (CLOSED, {"holes": ()}, "holes is frozen"),
    (CLOSED, {"totals": Totals(101)}, "totals is frozen"),
    (CLOSED, {"start_seq_num": 1}, "start_seq_num is frozen"),
    (CLOSED, {"completed_unix_ms": 1}, "completed_unix_ms is frozen"),
    (CLOSED, {"guest_count": 1}, "guest_count is frozen"),
    (CLOSED, {"lost": ()}, "what is lost stays lost"),
    (CLOSED, {"lost": ((12, 13),)}, "what is lost stays lost"),
    (CLOSED, {"lost": ((13, 16),)}, "what is lost stays lost"),
    (CLOSED, {"lost": ((11, 14),), "missing_record_count": 16}, "missing records came back"),
    (CLOSED, {"missing_record_count": 18}, "missing records move with what is lost"),
    (PROVED, {"is_proved": False}, "what is proved stays so"),
]


@pytest.mark.parametrize(("before", "fields", "fault"), FROZEN)
def test_what_is_frozen_is_found_changed(
    before: FlexibleSegment, fields: dict[str, Any], fault: str
) -> None:
    assert find_frozen_faults(before, before) == []
    assert any(
        found.startswith(fault) for found in find_frozen_faults(before, replace(before, **fields))
    )


def test_guests_do_not_come_with_the_close() -> None:
    closed = replace(CLOSED, nodes=(*CLOSED.nodes, NodesetRow(number(7), node("x"))))
    (fault,) = find_frozen_faults(IN_RECOVERY, closed)
    assert fault.startswith("guests come while")


MAPS: list[tuple[FlexibleSegment, dict[str, Any], str]] = [
    (CLOSED, {"next_number": 6}, "next_number fell from 7 to 6"),
    (REMOVED, {"nodes": CLOSED.nodes}, "number 1 was given before"),
    (CLOSED, {"nodes": ANOTHER}, "the row of b0/"),
    (CLOSED, {"nodes": HEAVIER}, "the row of b0/"),
    (CLOSED, {"nodes": CLOSED.nodes[1:]}, "nodeset_version 0 became 0: b0/0000 was taken out"),
    (CLOSED, {"nodes": ELSEWHERE}, "nodeset_version 0 became 0: b0/0000 lies elsewhere"),
    (CLOSED, {"replication": replace(RP, node=2)}, "nodeset_version 0 became 0: the property"),
    (CLOSED, {"nodes": ELSEWHERE, "nodeset_version": 2}, "nodeset_version 0 became 2: b0/0000"),
    (CLOSED, {"nodeset_version": 1}, "nodeset_version 0 became 1: the map stayed"),
    (REMOVED, {"nodeset_version": 0}, "nodeset_version 1 became 0: the map stayed"),
]


@pytest.mark.parametrize(("before", "fields", "fault"), MAPS)
def test_what_a_number_or_the_map_became_is_found(
    before: FlexibleSegment, fields: dict[str, Any], fault: str
) -> None:
    assert find_map_faults(before, before) == []
    (found,) = find_map_faults(before, replace(before, **fields))
    assert found.startswith(fault)


def test_who_comes_and_what_is_lost_or_cold_or_proved_moves_no_version() -> None:
    for after in (
        CLOSED.with_added(node("x"), "n"),
        CLOSED.with_lost([(0, 0)], 18, "n"),
        CLOSED.with_cold_copy(COPY, "n"),
        CLOSED.with_proved("n"),
    ):
        assert after.nodeset_version == 0 and find_map_faults(CLOSED, after) == []
        assert find_map_faults(CLOSED, replace(after, nodeset_version=1))
