"""Copies of a flexible segment as bookies told them: what is short, and what is no fault.

Four bookies in three racks, RP {node 3, rack 2}; inventories are written by hand. Source:
docs/protocol/flexible.md "Verifying copies", R22, R25, R26.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from duramen.client.flexible_check import (
    NodesPiece,
    compare_nodes,
    list_unsure,
    split_nodes,
)
from duramen.client.replica_check import CopySight, ReplicaReport, check_totals
from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.segment_base import Totals
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, Member
from tests.unit.flexible_segments import close, node

NODES = [node("a", "k0"), node("b", "k0"), node("c", "k1"), node("d", "k2")]
A, B, C, D = (Member(one.bookie, one.incarnation) for one in NODES)
OPEN = FlexibleSegment.opened(
    LogId(7), Epoch(3), ReplicationProperty(3, 2), NODES,
    ack_mode="out_of_order", placement="strict", created_unix_ms=1, nonce="o",
)  # fmt: skip


def closed(last: int, **absent: tuple[tuple[int, int], ...]) -> FlexibleSegment:
    return close(OPEN.marked("m"), last, **absent)  # type: ignore[arg-type]


def sight(
    numbers: Iterable[int], *, odd: Iterable[int] = (), unknown: Iterable[int] = ()
) -> CopySight:
    odd = list(odd)
    identities = {EntryId(n): 1_000 + n if n not in odd else 7 for n in numbers}
    return CopySight(BookieStatus.OK, identities, EntryRanges((n, n) for n in unknown))


def silent(status: BookieStatus) -> CopySight:
    return CopySight(status, {}, EntryRanges())


def report_of(segment: FlexibleSegment, sights: Mapping[Member, CopySight]) -> ReplicaReport:
    report = ReplicaReport()
    assert segment.last_entry is not None
    for piece in split_nodes(segment, segment.last_entry, 2):
        compare_nodes(piece, sights, report)
    return report


def faults(report: ReplicaReport) -> list[tuple[str, str, list[tuple[EntryId, EntryId]]]]:
    return [
        (key.fault.value, "" if key.member is None else key.member.bookie, ranges.list_ranges())
        for key, ranges in report.faults.items()
    ]


def test_each_entry_lies_where_its_wave_went() -> None:
    report = report_of(
        closed(2), {A: sight([0, 1]), B: sight([1, 2]), C: sight([0, 1, 2]), D: sight([0, 2])}
    )
    assert report.is_good and report.to_json()["findings"] == []
    assert (report.entry_count, report.copy_count, report.good_copy_count) == (3, 9, 9)


def test_copies_are_judged_by_their_places_and_not_counted() -> None:
    narrow = replace(OPEN, replication=ReplicationProperty(2, 2))
    segment = close(narrow.marked("m"), 0)
    report = report_of(
        segment, {A: sight([0]), B: sight([0]), C: sight([]), D: sight([])}
    )  # two bookies of one rack
    assert faults(report) == [("short", "", [(0, 0)])]
    (found,) = report.to_json()["findings"]
    assert found["detail"] == "copies in 2 bookies, 1 rack, 1 region, not node 2, rack 2, region 1"
    assert found["bookie"] is None


@pytest.mark.parametrize(
    "status",
    [BookieStatus.WRONG_INCARNATION, BookieStatus.GONE, BookieStatus.UNREACHABLE],
)
def test_a_node_without_copies_is_no_fault_where_the_others_suffice(status: BookieStatus) -> None:
    held = sight([0, 1])
    assert report_of(closed(1), {A: held, B: silent(status), C: held, D: held}).is_good
    doubtful = sight([], unknown=[0, 1])
    assert report_of(closed(1), {A: held, B: doubtful, C: held, D: held}).is_good


def test_what_is_short_names_who_may_have_had_a_copy() -> None:
    report = report_of(
        closed(1),
        {
            A: sight([0, 1]),
            B: silent(BookieStatus.TIMEOUT),
            C: sight([0], unknown=[1]),
            D: silent(BookieStatus.GONE),
        },
    )
    assert faults(report) == [
        ("short", "", [(0, 0)]),  # copies at two bookies
        ("unreachable", "b", [(0, 1)]),
        ("short", "", [(1, 1)]),  # at one
        ("damaged", "c", [(1, 1)]),
    ]
    assert (report.copy_count, report.good_copy_count) == (6, 3)


def test_another_identity_is_a_fault_even_where_the_rest_suffices() -> None:
    held = sight([0, 1])
    report = report_of(closed(1), {A: held, B: sight([0, 1], odd=[1]), C: held, D: held})
    assert faults(report) == [("different", "b", [(1, 1)])]
    two = report_of(closed(0), {A: sight([0]), B: sight([0], odd=[0]), C: sight([]), D: sight([])})
    assert faults(two) == [
        ("different", "a", [(0, 0)]), ("different", "b", [(0, 0)]), ("short", "", [(0, 0)]),
    ]  # fmt: skip


def test_a_copy_of_another_identity_is_none_of_the_entry() -> None:
    held = sight([0])
    report = report_of(closed(0), {A: held, B: sight([]), C: held, D: sight([0], odd=[0])})
    assert faults(report) == [("different", "d", [(0, 0)]), ("short", "", [(0, 0)])]


def test_nobody_holds_holes_and_losses() -> None:
    held = sight([0, 4])
    report = report_of(
        closed(4, holes=((1, 1),), lost=((2, 3),)), {A: held, B: held, C: held, D: held}
    )
    assert report.is_good
    assert (report.entry_count, report.lost_count, report.hole_count) == (2, 2, 1)


def test_what_lies_beyond_the_end_is_not_looked_at() -> None:
    held = sight([0, 1, 2])
    report = report_of(closed(0), {A: held, B: held, C: held, D: sight([])})
    assert (report.is_good, report.entry_count, report.copy_count) == (True, 1, 3)


def test_while_it_is_open_who_answered_is_asked_again() -> None:
    piece = NodesPiece(OPEN, EntryId(0), EntryId(1))
    held = sight([0, 1])
    sights = {A: held, B: silent(BookieStatus.UNREACHABLE), C: held, D: sight([0])}
    assert list_unsure(piece, sights) == [A, C, D]
    assert list_unsure(piece, {**sights, D: held}) == []


def test_room_behind_the_end_is_among_the_missing_records() -> None:
    segment = close(OPEN.marked("m"), 4, missing=17)
    said = segment.totals
    assert said is not None
    assert check_totals(segment, EntryId(4), said, said._replace(record_count=83)) == ""
    assert check_totals(segment, EntryId(4), said, said._replace(record_count=82)) != ""
    assert check_totals(segment, EntryId(4), said, said._replace(record_count=101)) != ""
    assert check_totals(segment, EntryId(4), said, Totals(83, said.length_bytes + 1)) != ""
