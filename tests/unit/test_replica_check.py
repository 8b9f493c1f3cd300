"""What the copies of a log should be, against what bookies tell: each fault by itself, and ranges.

A world of three bookies, striped or not; inventories are written by hand. Source:
docs/protocol/write.md "Write sets", R1, R15, R17.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from duramen.client.replica_check import (
    CopyFault,
    CopySight,
    FaultKey,
    FragmentPiece,
    ReplicaReport,
    check_chain,
    check_totals,
    compare,
    find_odd,
    list_missing,
    split_segment,
)
from duramen.core.entry_ranges import EntryRanges
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member

A, B, C, D = (Member(BookieId(name), Incarnation(name * 32)) for name in "abcd")
OK = BookieStatus.OK


def closed(
    last: int, *, quorum: Quorum | None = None, mode: str = "ordered", holes: tuple[int, ...] = ()
) -> Segment:
    first = Fragment(EntryId(0), (A, B, C))
    segment = Segment(LogId(1), Epoch(2), quorum or Quorum(3, 3, 2), (first,), ack_mode=mode)
    return segment.closed(
        last_entry=EntryId(last),
        totals=Totals(10, 100),
        start_seq_num=5,
        completed_unix_ms=1,
        nonce="n",
        holes=tuple((EntryId(hole), EntryId(hole)) for hole in holes),
    )


def sight(
    numbers: Iterable[int], *, odd: Iterable[int] = (), unknown: Iterable[int] = ()
) -> CopySight:
    odd = list(odd)
    identities = {EntryId(n): 1_000 + n if n not in odd else 7 for n in numbers}
    return CopySight(OK, identities, EntryRanges((n, n) for n in unknown))


def silent(status: BookieStatus) -> CopySight:
    return CopySight(status, {}, EntryRanges())


def report_of(segment: Segment, *sights: CopySight) -> ReplicaReport:
    report = ReplicaReport()
    assert segment.last_entry is not None
    for piece in split_segment(segment, segment.last_entry, 100):
        compare(piece, dict(zip((A, B, C), sights, strict=True)), report)
    return report


def faults(report: ReplicaReport) -> list[tuple[str, str, list[tuple[EntryId, EntryId]]]]:
    return [
        (key.fault.value, "" if key.member is None else key.member.bookie, ranges.list_ranges())
        for key, ranges in report.faults.items()
    ]


def test_a_log_whose_copies_are_all_there_is_good() -> None:
    report = report_of(closed(4), *[sight(range(5))] * 3)
    assert report.is_good and report.to_json()["findings"] == []
    assert (report.entry_count, report.copy_count, report.good_copy_count) == (5, 15, 15)


def test_what_is_missing_damaged_or_different_is_told_with_its_place() -> None:
    report = report_of(
        closed(6),
        sight([0, 1, 5, 6]),
        sight(range(7), odd=[2]),
        sight([0, 2, 4, 5, 6], unknown=[1]),
    )
    assert sorted(faults(report)) == [
        ("damaged", "c", [(1, 1)]), ("different", "b", [(2, 2)]), ("different", "c", [(2, 2)]),
        ("missing", "a", [(2, 4)]), ("missing", "c", [(3, 3)]),
    ]  # fmt: skip
    assert report.good_copy_count == 21 - 7


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (BookieStatus.WRONG_INCARNATION, "missing"),
        (BookieStatus.GONE, "missing"),
        (BookieStatus.UNREACHABLE, "unreachable"),
        (BookieStatus.TIMEOUT, "unreachable"),
        (BookieStatus.OVERLOADED, "unreachable"),
    ],
)
def test_a_bookie_that_tells_nothing_has_no_good_copy(status: BookieStatus, fault: str) -> None:
    report = report_of(closed(4), sight(range(5)), sight(range(5)), silent(status))
    assert faults(report) == [(fault, "c", [(0, 4)])] and report.good_copy_count == 10


def test_of_a_striped_segment_only_write_sets_are_asked_for() -> None:
    striped = closed(5, quorum=Quorum(3, 2, 2))
    held = [[n for n in range(6) if n % 3 in (i, (i - 1) % 3)] for i in range(3)]
    assert report_of(striped, *map(sight, held)).is_good
    assert report_of(striped, *map(sight, held)).copy_count == 12
    one_less = [held[0][1:], held[1], held[2]]
    assert faults(report_of(striped, *map(sight, one_less))) == [("missing", "a", [(0, 0)])]


def test_nobody_holds_a_hole_and_what_lies_beyond_the_end_does_not_count() -> None:
    segment = closed(4, mode="out_of_order", holes=(2,))
    assert report_of(segment, *[sight([0, 1, 3, 4, 9])] * 3).is_good
    report = report_of(segment, *[sight([0, 1, 3, 4])] * 3)
    assert (report.entry_count, report.hole_count, report.lost_count) == (4, 1, 0)
    assert report.to_json()["hole_entries"] == 1


@pytest.mark.parametrize(
    ("identities", "odd"),
    [
        ({A: 1, B: 1, C: 1}, []),
        ({A: 1, B: 2, C: 1}, [B]),
        ({A: 1, B: 2}, [A, B]),
        ({A: 1, B: 2, C: 3}, [A, B, C]),
        ({}, []),
    ],
)
def test_the_odd_ones_are_those_that_are_not_like_most(
    identities: dict[Member, int], odd: list[Member]
) -> None:
    assert find_odd(identities) == odd


def test_pieces_end_where_fragments_do_and_cover_every_entry_once() -> None:
    segment = Segment(LogId(1), Epoch(1), Quorum(3, 3, 2), (Fragment(EntryId(0), (A, B, C)),))
    segment = segment.with_ensemble(EntryId(5), (A, B, D), Totals(5, 50), "n")
    pieces = split_segment(segment, EntryId(11), 4)
    assert [piece[2:] for piece in pieces] == [(0, 3), (4, 4), (5, 8), (9, 11)]
    assert [piece.ensemble[2] for piece in pieces] == [C, C, D, D]
    assert [piece[2:] for piece in split_segment(segment, EntryId(3), 4)] == [(0, 3)]
    assert split_segment(segment, NOTHING, 4) == []
    trimmed = split_segment(segment, EntryId(11), 4, begin=EntryId(6))
    assert [piece[2:] for piece in trimmed] == [(6, 9), (10, 11)]
    assert split_segment(segment, EntryId(11), 4, begin=EntryId(12)) == []


def test_only_members_that_answered_and_lack_something_are_asked_again() -> None:
    segment = closed(2, quorum=Quorum(3, 2, 2))
    piece = FragmentPiece(segment, (A, B, C), EntryId(0), EntryId(2))
    sights = {A: sight([0, 2]), B: sight([0]), C: silent(BookieStatus.UNREACHABLE)}
    assert list_missing(piece, sights) == [B]


def test_counts_of_the_metadata_are_compared_with_those_of_the_entries() -> None:
    segment = closed(4)
    assert check_totals(segment, EntryId(4), segment.totals, Totals(10, 100)) == ""
    text = check_totals(segment, EntryId(4), segment.totals, Totals(9, 100))
    assert "up to entry 4 of e2" in text and "10 records" in text and "the entry 9" in text


def test_segments_follow_one_another_without_a_gap_of_sequence_numbers() -> None:
    assert check_chain([closed(4)], 15) == [] and check_chain([closed(4)], None) == []
    assert check_chain([closed(4)], 16) == [(2, "e2 ends at 15, then comes 16")]


def test_findings_are_ranges_in_order() -> None:
    report = ReplicaReport()
    for entry in (3, 4, 9):
        report.add(FaultKey(Epoch(2), CopyFault.MISSING, A), EntryId(entry))
    report.add(FaultKey(Epoch(1), CopyFault.METADATA, None, "there is no segment node"))
    first, second = report.to_json()["findings"]
    assert (first["bookie"], first["ranges"], first["detail"]) == (
        None, [], "there is no segment node"
    )  # fmt: skip
    assert (second["count"], second["ranges"]) == (3, [[3, 4], [9, 9]])
