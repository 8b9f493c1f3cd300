"""Histories of maps: rows of flexible segments that come and go; bad ones for R26 and D2.

Copies are those of `History.store`; segments are told as the metadata store would apply them. Used
by `test_checkers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch, Member, NodeNumber
from tests.sim.histories.history import LOCATIONS, LOG, A, B, C, D, History, Play

NEEDED = ((EntryId(0), EntryId(1)),)


def serving(member: Member, rack: str = "") -> ServingBookie:
    place = LOCATIONS[member]
    return ServingBookie(member.bookie, place.region, rack or place.rack, member.incarnation)


def opened(*members: Member) -> FlexibleSegment:
    return FlexibleSegment.opened(
        LOG, Epoch(1), ReplicationProperty(2, 2), [serving(member) for member in members],
        ack_mode="ordered", placement="strict", created_unix_ms=1, nonce="o",
    )  # fmt: skip


def closed(*members: Member) -> FlexibleSegment:
    """Entries 0 and 1."""
    return opened(*members).closed_by_owner(
        last_entry=EntryId(1), totals=Totals(2, 2), start_seq_num=0, completed_unix_ms=2, nonce="c",
    )  # fmt: skip


def report(
    h: History,
    before: FlexibleSegment,
    after: FlexibleSegment,
    needed: Sequence[tuple[EntryId, EntryId]] = NEEDED,
) -> None:
    h.checkers.on_map_changed(before, after, needed)


def without(segment: FlexibleSegment, number: int, nonce: str = "repair.1") -> FlexibleSegment:
    return segment.without_node(NodeNumber(number), nonce)


def recover(h: History, segment: FlexibleSegment, gone: Sequence[Member] = ()) -> None:
    """A recovery is about to close it with entries 0 and 1, which it found above LNG."""
    h.checkers.on_recovered(segment, EntryId(-1), EntryId(1), (), gone)


# --- bad -----------------------------------------------------------------------------------------


def out_before_the_copy(h: History) -> None:
    h.store((A, B), 0)
    h.store((A, B), 1)
    report(h, closed(A, B, C), without(closed(A, B, C), 0))


def out_with_one_entry_missing(h: History) -> None:
    h.store((A, B, C), 0)
    h.store((A, B), 1)
    report(h, closed(A, B, C), without(closed(A, B, C), 0))


def out_where_one_rack_is_left(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B, D), entry)
    report(h, closed(A, B, D), without(closed(A, B, D), 1))


def out_where_the_other_disk_is_gone(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B, C), entry)
    h.checkers.on_lost(C)
    report(h, closed(A, B, C), without(closed(A, B, C), 0))


def out_of_what_is_written(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B, C), entry)
    before = opened(A, B, C)
    report(h, before, replace(before, nodes=before.nodes[1:], nonce="repair.1"))


def taken_out_by_its_owner(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B, C), entry)
    report(h, closed(A, B, C), without(closed(A, B, C), 0, nonce="owner"))


def moved_into_one_rack(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B), entry)
    moved = closed(A, B).with_locations({NodeNumber(1): serving(A).place}, "repair.1")
    assert moved is not None
    report(h, closed(A, B), moved)


def drained_and_in_a_map(h: History) -> None:
    h.checkers.on_drained(A, [], [closed(A, B)])


def acknowledged_in_one_rack(h: History) -> None:
    h.store((A, D), 0)
    h.checkers.on_entry_acknowledged(h.tick(), opened(A, B, D), EntryId(0), 5)


def recovered_with_one_copy(h: History) -> None:
    h.store((A, B), 0)
    h.store((C,), 1)
    recover(h, opened(A, B, C))


def recovered_in_one_rack(h: History) -> None:
    for entry in (0, 1):
        h.store((A, D), entry)
    recover(h, opened(A, B, D))


def recovered_with_a_disk_that_is_gone(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B), entry)
    recover(h, opened(A, B), gone=(B,))


# --- good ----------------------------------------------------------------------------------------


def out_when_the_others_hold_it_all(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B, C), entry)
    report(h, closed(A, B, C), without(closed(A, B, C), 0))
    h.checkers.on_drained(A, [], [without(closed(A, B, C), 0)])


def recovered_where_the_property_asks(h: History) -> None:
    for entry in (0, 1):
        h.store((A, B), entry)
    recover(h, opened(A, B, C), gone=(C,))


def out_when_the_rest_is_needed_no_more(h: History) -> None:
    h.store((A, B), 0)
    h.store((A, B, C), 1)
    report(h, closed(A, B, C), without(closed(A, B, C), 0), [(EntryId(1), EntryId(1))])


def a_row_comes_before_it_holds_anything(h: History) -> None:
    h.store((A, B), 0)
    added = closed(A, B).with_added(serving(C), "repair.1")
    report(h, closed(A, B), added)
    report(h, opened(A, B), closed(A, B))


BAD: dict[str, tuple[Play, ...]] = {
    "R26": (
        out_before_the_copy, out_with_one_entry_missing, out_where_one_rack_is_left,
        out_where_the_other_disk_is_gone, out_of_what_is_written, taken_out_by_its_owner,
        moved_into_one_rack,
    ),
    "D2": (
        drained_and_in_a_map, acknowledged_in_one_rack, recovered_with_one_copy,
        recovered_in_one_rack, recovered_with_a_disk_that_is_gone,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (
    out_when_the_others_hold_it_all, out_when_the_rest_is_needed_no_more,
    a_row_comes_before_it_holds_anything, recovered_where_the_property_asks,
)  # fmt: skip
