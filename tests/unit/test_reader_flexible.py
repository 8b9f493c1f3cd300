"""A reader in flexible segments: its nodes are read as one, polled one by one, and absence becomes
loss only where metadata that were read afterwards say what they said.

Source: R25, R30, docs/protocol/reading.md "Flexible segments".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.reading.effects import (
    ALL_NODES,
    COLD_STORE,
    ConfirmAbsence,
    Effect,
    Gap,
    SetTimer,
)
from duramen.core.reading.range_read import NodesAbsence
from duramen.core.reading.reader import ReaderState
from duramen.core.reading.replica_order import Place
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, NodeNumber, lsn_of
from tests.unit.flexible_reading_world import make_segment
from tests.unit.flexible_segments import COPY, node
from tests.unit.reader_bench import HERE, Bench, make_log, one_read

CLOSED = make_segment(5, last=40, holes=[(30, 31)])
LOG = make_log(4, 3, records=41)


def make_bench(segment: FlexibleSegment, log: LogNode = LOG) -> tuple[Bench, list[Effect]]:
    bench = Bench((3, 0), is_following=True)
    bench.take()
    return bench, bench.metadata(log, segment)


def absence(first: int, last: int, segment: FlexibleSegment = CLOSED) -> NodesAbsence:
    return NodesAbsence(EntryId(first), EntryId(last), segment.list_holders(EntryId(first)))


def suspect(bench: Bench, effects: list[Effect], first: int = 10, last: int = 12) -> None:
    """Ten entries come, and no node has the next ones."""
    read = one_read(effects)
    read = one_read(bench.answer(read, *range(first)))
    (asked,) = bench.answer(read, status=BookieStatus.NO_ENTRY, absent=absence(first, last))
    assert asked == ConfirmAbsence(Epoch(3))


def confirm(bench: Bench, log: LogNode, segment: FlexibleSegment | None) -> list[Effect]:
    bench.reader.on_confirmed(log, segment, bench.now_us)
    return bench.take()


def test_the_nodes_of_a_closed_segment_are_read_as_one_up_to_its_end() -> None:
    bench, effects = make_bench(CLOSED)
    read = one_read(effects)
    assert (read.member, read.first, read.last, read.bound) == (ALL_NODES, 0, 40, 40)
    following = one_read(bench.answer(read, *range(30), sender=CLOSED.members[2])[1:])
    assert (following.member, following.first) == (ALL_NODES, 32), "the hole is passed over"


def test_the_tail_is_polled_at_a_node_of_the_segment_and_read_from_all() -> None:
    segment = make_segment(5)
    bench, effects = make_bench(segment, make_log(4, 2))
    poll = one_read(effects)
    assert poll.member in segment.members and poll.wait_us and poll.bound == -1
    near, far = segment.nodes[0], segment.nodes[4]
    bench.order.on_places({near.node.bookie: HERE, far.node.bookie: Place("us", "r1")})
    read = one_read(bench.answer(poll, lac=3))
    assert (read.member, read.first, read.last, read.bound) == (ALL_NODES, 0, 3, 3)
    poll = one_read(bench.answer(read, 0, 1, 2, 3, sender=segment.members[4]))
    assert poll.member == segment.members[4], "who sent last is likely to send what is next"
    assert (poll.first, poll.wait_for, poll.bound) == (4, 4, 3)


def test_guests_and_nodes_of_repair_are_not_polled() -> None:
    segment = make_segment(3).marked("r").with_guest(node("g0", "k1"), "r1")
    bench, effects = make_bench(segment, make_log(4, 2))
    polled = set()
    for _ in range(4):
        poll = one_read([e for e in effects if not isinstance(e, SetTimer)])
        polled.add(poll.member)
        effects = bench.empty_poll(poll)
        if bench.reader.state is ReaderState.METADATA:
            effects = bench.metadata(make_log(4, 2), segment)
    assert polled <= set(segment.members)


def test_r25_absence_is_told_as_loss_when_the_metadata_say_what_they_said() -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    gap, read = confirm(bench, LOG, CLOSED)
    assert gap == Gap(Epoch(3), EntryId(10), EntryId(12), is_lost=True)
    assert one_read([read]).first == 13


def trim_behind(log: LogNode) -> LogNode:
    return replace(log, trim_lsn=lsn_of(Epoch(3), EntryId(20)), trim_seq_num=20)


CHANGES: dict[str, Callable[[LogNode, FlexibleSegment], tuple[LogNode, FlexibleSegment | None]]] = {
    "a node was added": lambda log, s: (log, s.with_added(node("n9"), "x")),
    "a node was taken out": lambda log, s: (log, s.without_node(NodeNumber(4), "x")),
    "it is recorded as lost": lambda log, s: (log, s.with_lost([(10, 12)], 3, "x")),
    "the log was deleted": lambda log, s: (replace(log, is_deleted=True), s),
    "the segment is gone": lambda log, _: (log, None),
    "the hot copies are gone": lambda log, s: (replace(log, first_hot_epoch=Epoch(4)), s),
    "a cold copy is there": lambda log, s: (log, s.with_cold_copy(COPY, "x")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_r25_absence_is_no_loss_when_the_metadata_changed(change: str) -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    log, segment = CHANGES[change](LOG, CLOSED)
    told = [e for e in confirm(bench, log, segment) if isinstance(e, Gap)]
    recorded = Gap(Epoch(3), EntryId(10), EntryId(12), is_lost=True)
    assert told == ([recorded] if change == "it is recorded as lost" else [])


def test_r25_a_cold_copy_is_asked_before_anything_is_lost() -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    cold = CLOSED.with_cold_copy(COPY, "x")
    read = one_read(confirm(bench, LOG, cold)[-1:])
    assert (read.member, read.first) == (COLD_STORE, 10)


def test_r25_below_the_trim_point_nothing_is_a_loss() -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    (read,) = confirm(bench, trim_behind(LOG), CLOSED)
    assert one_read([read]).first == 20 and bench.skipped == [(3, 20, 20)]


def test_r25_a_segment_that_was_truncated_whole_is_left() -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    log = replace(LOG, trim_lsn=lsn_of(Epoch(4), EntryId(0)), trim_seq_num=41)
    confirm(bench, log, CLOSED)
    assert bench.skipped == [(4, 0, 41)] and bench.reader.position == (4, 0)


def test_absence_of_something_else_than_is_wanted_proves_nothing() -> None:
    bench, effects = make_bench(CLOSED)
    read = one_read(effects)
    effects = bench.answer(read, status=BookieStatus.NO_ENTRY, absent=absence(3, 5))
    assert not [e for e in effects if isinstance(e, ConfirmAbsence)]


def test_r25_absence_by_an_older_map_proves_nothing() -> None:
    """Repair added a node, a watch told of it, and the nodes had been asked before."""
    bench, effects = make_bench(CLOSED)
    read = one_read(effects)
    bench.metadata(LOG, CLOSED.with_added(node("n9"), "x"))
    effects = bench.answer(read, status=BookieStatus.NO_ENTRY, absent=absence(0, 5))
    assert effects and not [e for e in effects if isinstance(e, ConfirmAbsence)]


def test_what_a_watch_tells_meanwhile_does_not_confirm_anything() -> None:
    bench, effects = make_bench(CLOSED)
    suspect(bench, effects)
    changed = CLOSED.with_added(node("n9"), "x")
    told = bench.metadata(LOG, changed)
    assert one_read(told).first == 10, "the map is another one: it is asked"
    assert not [e for e in confirm(bench, LOG, changed) if isinstance(e, Gap)]
