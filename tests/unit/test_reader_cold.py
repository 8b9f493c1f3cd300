"""The reader where hot copies are gone: the cold store in their place, without a seam.

Source: docs/protocol/archive.md, docs/protocol/reading.md "Cold copies".
"""

from __future__ import annotations

from dataclasses import replace

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.reading.effects import (
    COLD_STORE,
    Effect,
    SendRead,
    SetTimer,
    WatchMetadata,
)
from duramen.core.reading.reader import FIRST_PAUSE_US
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import Epoch
from duramen.limits import COLD_READ_TIMEOUT_US
from tests.unit.reader_bench import A, Bench, make_log, make_segment, one_read

COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5, rechecked_unix_ms=6)
FIRST = make_segment(1, last=9, start=0).with_cold_copy(COPY, "cold")
SECOND = make_segment(2, last=4, start=10)


def log_hot_from(epoch: int) -> LogNode:
    log = replace(make_log(3, 2, 15), snapshot_lsn=3 << 32)
    return log.with_first_hot_epoch(Epoch(epoch), "hot")


def open_closed_segment(log: LogNode, segment: Segment = FIRST) -> tuple[Bench, SendRead]:
    bench = Bench()
    bench.take()
    return bench, one_read(bench.metadata(log, segment))


def fail_round(bench: Bench, effects: list[Effect], status: BookieStatus) -> list[Effect]:
    for _ in range(3):
        effects = bench.answer(one_read(effects), status=status)
    return effects


def test_what_has_left_the_bookies_is_read_from_the_cold_store_alone() -> None:
    bench, read = open_closed_segment(log_hot_from(2))
    assert read.is_cold and bench.reader.is_cold
    assert (read.first, read.last, read.wait_us) == (0, 9, 0)
    assert read.timeout_us == COLD_READ_TIMEOUT_US and not read.beyond
    read = one_read(bench.answer(read, *range(5)))
    assert read.is_cold and (read.first, read.last) == (5, 9)
    assert bench.answer(read, *range(5, 10)) == [WatchMetadata(Epoch(2))]
    hot = one_read(bench.metadata(log_hot_from(2), SECOND))
    assert hot.member == A and not bench.reader.is_cold
    bench.answer(hot, *range(5))
    assert bench.delivered == [*((1, n) for n in range(10)), *((2, n) for n in range(5))]


def test_a_cold_read_that_is_late_is_not_asked_of_a_bookie() -> None:
    bench, _ = open_closed_segment(log_hot_from(2))
    bench.reader.on_timer(bench.now_us + COLD_READ_TIMEOUT_US)
    assert bench.take() == []


def test_hot_copies_that_go_under_a_reader_are_looked_for_in_the_metadata_first() -> None:
    bench, read = open_closed_segment(log_hot_from(1))
    read = one_read(bench.answer(read, 0, 1, 2))
    assert not read.is_cold
    # One answer is enough: a bookie drops nothing before the log node says so.
    assert bench.answer(read, status=BookieStatus.GONE) == [WatchMetadata(Epoch(1))]
    cold = one_read(bench.metadata(log_hot_from(2), FIRST))
    assert cold.is_cold and (cold.first, cold.last) == (3, 9)
    bench.answer(cold, *range(3, 10))
    assert bench.delivered == [(1, n) for n in range(10)] and bench.skipped == []


def test_gone_twice_with_the_same_metadata_goes_on_to_the_other_replicas() -> None:
    bench, read = open_closed_segment(log_hot_from(1), replace(FIRST, cold_copy=None))
    bench.answer(read, status=BookieStatus.GONE)
    effects = bench.metadata(log_hot_from(1), replace(FIRST, cold_copy=None))
    members = {one_read(effects).member}
    for _ in range(2):
        effects = bench.answer(one_read(effects), status=BookieStatus.GONE)
        members.add(one_read(effects).member)
    assert len(members) == 3
    effects = bench.answer(one_read(effects), status=BookieStatus.GONE)
    assert effects == [SetTimer(bench.now_us + FIRST_PAUSE_US)]


def test_where_no_bookie_gives_it_the_cold_copy_does() -> None:
    bench, read = open_closed_segment(log_hot_from(1))
    effects = fail_round(bench, [read], BookieStatus.UNREACHABLE)
    effects = bench.metadata(log_hot_from(1), FIRST)
    fail_round(bench, effects, BookieStatus.UNREACHABLE)
    bench.reader.on_timer(bench.now_us + FIRST_PAUSE_US)
    bench.take()
    cold = one_read(bench.metadata(log_hot_from(1), FIRST))
    assert cold.is_cold and not bench.reader.is_cold, "there should be hot copies"
    again = one_read(bench.answer(cold, *range(9)))
    assert again.is_cold and bench.reader.unavailable_since_us is None
    assert bench.answer(again, 9) == [WatchMetadata(Epoch(2))]
    assert one_read(bench.metadata(log_hot_from(1), SECOND)).member != COLD_STORE


def test_a_cold_store_that_is_down_is_asked_again_after_a_pause_and_counted() -> None:
    bench, read = open_closed_segment(log_hot_from(2))
    assert bench.answer(read, status=BookieStatus.UNREACHABLE) == [WatchMetadata(Epoch(1))]
    since_us = bench.reader.unavailable_since_us
    assert since_us == bench.now_us
    read = one_read(bench.metadata(log_hot_from(2), FIRST))
    effects = bench.answer(read, status=BookieStatus.UNREACHABLE)
    assert effects == [SetTimer(bench.now_us + FIRST_PAUSE_US)]
    bench.reader.on_timer(bench.now_us + FIRST_PAUSE_US)
    bench.take()
    read = one_read(bench.metadata(log_hot_from(2), FIRST))
    assert read.is_cold and bench.reader.unavailable_since_us == since_us
    assert bench.reader.statistics()["errors_unreachable"] == 2
    bench.answer(read, *range(10))
    assert bench.reader.unavailable_since_us is None


def test_a_cold_store_that_fails_where_bookies_did_leads_back_to_the_bookies() -> None:
    bench, read = open_closed_segment(log_hot_from(1))
    fail_round(bench, [read], BookieStatus.TIMEOUT)
    fail_round(bench, bench.metadata(log_hot_from(1), FIRST), BookieStatus.TIMEOUT)
    bench.reader.on_timer(bench.now_us + FIRST_PAUSE_US)
    bench.take()
    cold = one_read(bench.metadata(log_hot_from(1), FIRST))
    assert cold.is_cold
    bench.answer(cold, status=BookieStatus.UNREACHABLE)
    bench.reader.on_timer(bench.now_us + 2 * FIRST_PAUSE_US)
    bench.take()
    assert not one_read(bench.metadata(log_hot_from(1), FIRST)).is_cold


def test_an_older_log_node_does_not_bring_hot_copies_back() -> None:
    bench, read = open_closed_segment(log_hot_from(2))
    bench.answer(read, status=BookieStatus.TIMEOUT)
    assert one_read(bench.metadata(log_hot_from(1), FIRST)).is_cold
