"""What counts as lost for ever, how a segment records it, and how comparisons pass over it (R15).

Source: R15, docs/protocol/recovery.md "What is missing for good", docs/protocol/repair.md.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from duramen.client.replica_check import FragmentPiece, ReplicaReport, compare
from duramen.core.repair.audit import list_stretches
from duramen.core.repair.cluster_view import Absences, ClusterView, build_view
from duramen.core.repair.copies import EntryFault, Flaw, expected_entries
from duramen.core.repair.copies import Piece as Part
from duramen.core.repair.losses import find_lost
from duramen.ids import EntryId, Epoch
from duramen.wire.metadata_json import MetadataJsonError, encode_segment, read_segment
from tests.unit.repair_world import away, bookie, make_log, make_segment, member, view

SEGMENT = make_segment([(0, "abc")], 9)


FAULTS = [fault.value for fault in EntryFault if fault is not EntryFault.ABSENT]


def gone(*names: str, accepted: str = "") -> ClusterView:
    """A cluster of which some bookies are lost, and of some of them that is accepted."""
    states = [away(name, 0) if name in names else bookie(name) for name in "abcd"]
    return view(
        states,
        lost=frozenset(member(name).incarnation for name in accepted),
        accepted=frozenset(member(name).incarnation for name in accepted),
    )


def flaws(fault: EntryFault = EntryFault.ABSENT, first: int = 3, last: int = 4) -> list[Flaw]:
    return [Flaw(member("d"), EntryId(first), EntryId(last), fault)]


def test_what_nobody_can_have_any_more_is_lost() -> None:
    assert find_lost(SEGMENT, flaws(), gone("a", "b", accepted="ab")) == [(3, 4)]
    many = [*flaws(), *flaws(first=4, last=6), *flaws(first=9, last=9)]
    assert find_lost(SEGMENT, many, gone("a", accepted="a")) == [(3, 6), (9, 9)]


@pytest.mark.parametrize(
    ("world", "found"),
    [
        (gone("a", "b", accepted="a"), flaws()),
        (gone("a", "b"), flaws()),
        (gone(), flaws()),
        (gone("d", accepted="d"), flaws()),
        *[(gone("a", accepted="a"), flaws(EntryFault(fault))) for fault in FAULTS],
    ],
    ids=["one is only away", "not accepted", "nobody is gone", "another is gone", *FAULTS],
)
def test_nothing_is_lost_while_somebody_may_have_it_or_nobody_is_gone(
    world: ClusterView, found: list[Flaw]
) -> None:
    assert find_lost(SEGMENT, found, world) == []


def test_only_the_write_set_of_an_entry_counts_and_only_a_closed_segment_loses() -> None:
    striped = make_segment([(0, "abcd")], 9, quorum=(2, 2))
    world = gone("a", accepted="a")  # a holds the entries 0, 3, 4, 7 and 8
    assert find_lost(striped, flaws(first=0, last=9), world) == [(0, 0), (3, 4), (7, 8)]
    still_open = make_segment([(0, "abc"), (5, "bcd")])
    assert find_lost(still_open, flaws(), world) == []


def test_a_view_tells_what_is_accepted_from_what_was_only_replaced() -> None:
    lost: dict[str, dict[str, Any]] = {
        member("a").incarnation: {"bookie": "a", "region": "r", "rack": "k", "accepted_unix_ms": 5},
        member("b").incarnation: {"bookie": "b", "replaced_by": "x"},
    }
    built = build_view([], {}, lost, (), Absences(), now_us=0, grace_us=10)
    assert built.accepted == {member("a").incarnation}
    assert built.lost == {member("a").incarnation, member("b").incarnation}
    assert replace(built, accepted=frozenset()).facts() != built.facts(), "worth another try"


def test_a_closed_segment_adds_up_what_is_lost_and_keeps_it() -> None:
    first = SEGMENT.with_lost([(3, 4)], "n1")
    both = first.with_lost([(5, 5), (8, 9)], "n2")
    assert (first.lost, both.lost, both.nonce) == (((3, 4),), ((3, 5), (8, 9)), "n2")
    assert read_segment(encode_segment(both)) == both
    assert both.with_proved(EntryId(0), "n3").lost == both.lost
    assert [both.lost_at(EntryId(entry)) for entry in (2, 4, 9)] == [None, (3, 5), (8, 9)]


@pytest.mark.parametrize("lost", [(), (0,), (9,), (0, 1, 5, 9), (2, 4, 5, 7), tuple(range(10))])
def test_what_of_a_segment_is_there_is_told_in_ranges(lost: tuple[int, ...]) -> None:
    lossy = SEGMENT.with_lost([(entry, entry) for entry in lost], "n")
    for first in range(11):
        for last in range(first - 1, 10):
            ranges = lossy.list_present(EntryId(first), EntryId(last))
            present = [entry for one, end in ranges for entry in range(one, end + 1)]
            assert present == [n for n in range(first, last + 1) if n not in lost]
            assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))
            has_lost = lossy.has_lost(EntryId(first), EntryId(last))
            assert has_lost == any(first <= n <= last for n in lost)


@pytest.mark.parametrize("lost", [((3, 2),), ((3, 4), (4, 6)), ((6, 7), (1, 2)), ((8, 10),)])
def test_a_node_with_impossible_losses_is_no_segment(lost: Any) -> None:
    with pytest.raises(MetadataJsonError):
        read_segment(encode_segment(replace(SEGMENT, lost=lost)))
    with pytest.raises(AssertionError):
        make_segment([(0, "abc")]).with_lost([(0, 0)], "n")


def test_nobody_is_to_hold_what_is_lost_and_verify_counts_it() -> None:
    lossy = SEGMENT.with_lost([(3, 4)], "n")
    log = replace(make_log(), next_epoch=Epoch(2), last_clean_epoch=1)
    (stretch,) = list_stretches(log, lossy)
    part = Part(EntryId(2), EntryId(6))
    assert expected_entries(lossy, stretch, 0, part) == [2, 5, 6]
    report = ReplicaReport()
    compare(FragmentPiece(lossy, lossy.last_fragment.ensemble, EntryId(3), EntryId(4)), {}, report)
    assert report.is_good and report.to_json()["lost_entries"] == 2
