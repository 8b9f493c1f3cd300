"""The reader core alone: one test per rule, driven by hand without a clock or a network.

`Bench` holds the metadata and collects effects; a test answers the reads that it wants answered.
Each rule was broken once in the core to see its test fail. Source: docs/protocol/reading.md, R17,
R18.
"""

import itertools
from dataclasses import replace
from random import Random

import pytest

from duramen.core.reading.effects import (
    CancelRead,
    Effect,
    Gap,
    SendRead,
    SetTimer,
    WatchMetadata,
)
from duramen.core.reading.polling import POLL_US
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.reader import FIRST_PAUSE_US, ReaderState
from duramen.core.reading.replica_order import (
    OVERLOAD_MEMORY_US,
)
from duramen.core.reading.runs import last_of_run, runs_beyond
from duramen.core.reading.speculation import Speculation
from duramen.core.status import BookieStatus
from duramen.ids import (
    LAST_ENTRY_ID,
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    Member,
    lsn_of,
)
from tests.unit.reader_bench import (
    A,
    B,
    Bench,
    C,
    D,
    make_log,
    make_segment,
    one_read,
)


def open_bench(
    lac: int, *, position: int = 0, is_following: bool = True
) -> tuple[Bench, list[Effect]]:
    """A reader in the open segment 1 that has just learnt a LAC."""
    bench = Bench((1, position), is_following=is_following)
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    assert poll.wait_us
    return bench, bench.answer(poll, lac=lac, highest=lac)


def test_it_begins_with_the_metadata() -> None:
    assert Bench((3, 5)).take() == [WatchMetadata(Epoch(3))]


def test_a_closed_segment_is_read_up_to_its_last_entry() -> None:
    bench = Bench()
    bench.take()
    read = one_read(bench.metadata(make_log(2, 1, 3), make_segment(1, last=2, start=0)))
    assert (read.first, read.last, read.wait_us) == (0, 2, 0)
    # R17: the bookie still holds a leftover beyond the last entry.
    assert bench.answer(read, 0, 1, 2, 3, lac=3) == [WatchMetadata(Epoch(2))]
    assert bench.delivered == [(1, 0), (1, 1), (1, 2)]


def test_an_open_segment_is_read_up_to_the_lac_only() -> None:
    bench, effects = open_bench(lac=1)
    read = one_read(effects)
    assert (read.first, read.last) == (0, 1)
    poll = one_read(bench.answer(read, 0, 1, 2, 3, lac=1, highest=3))
    assert bench.delivered == [(1, 0), (1, 1)]
    assert (poll.first, poll.wait_for, poll.wait_us) == (4, 2, POLL_US)


def test_the_highest_lac_of_any_bookie_counts_and_never_falls() -> None:
    bench, effects = open_bench(lac=5)
    read = one_read(effects)
    again = one_read(bench.answer(read, 0, 1, lac=2, highest=9))
    assert (again.first, again.last) == (2, 5)


def test_a_fragment_proves_the_lac_before_it() -> None:
    bench = Bench()
    bench.take()
    segment = make_segment(1, fragments=[(0, (A, B, C)), (4, (A, B, D))])
    read = one_read(bench.metadata(make_log(2, 0), segment))
    assert (read.first, read.last, read.wait_us) == (0, 3, 0)


def test_a_range_never_crosses_a_fragment() -> None:
    bench = Bench()
    bench.take()
    segment = make_segment(1, last=9, start=0, fragments=[(0, (A, B, C)), (4, (D, B, C))])
    read = one_read(bench.metadata(make_log(2, 1, 10), segment))
    assert (read.first, read.last, read.member) == (0, 3, A)
    read = one_read(bench.answer(read, 0, 1, 2, 3))
    assert (read.first, read.last) == (4, 9)
    assert read.member == B  # D is unknown to the roster: last


def test_a_striped_range_is_what_the_member_holds_without_a_gap() -> None:
    bench = Bench((1, 1))
    bench.take()
    segment = make_segment(1, last=9, start=0, write_quorum=2)
    read = one_read(bench.metadata(make_log(2, 1, 10), segment))
    assert (read.member, read.first, read.last) == (B, 1, 1)  # entries 1 on B, C; 2 on C, A
    read = one_read(bench.answer(read, 1))
    assert (read.member, read.first, read.last) == (A, 2, 3)


@pytest.mark.parametrize(
    "status",
    [
        BookieStatus.NO_ENTRY,
        BookieStatus.UNKNOWN,
        BookieStatus.WRONG_INCARNATION,
        BookieStatus.READ_ONLY,
        BookieStatus.OVERLOADED,
        BookieStatus.UNREACHABLE,
        BookieStatus.TIMEOUT,
    ],
)
def test_any_failure_leads_to_the_next_replica_nearest_first(status: BookieStatus) -> None:
    bench, effects = open_bench(lac=3)
    members = []
    for _ in range(3):
        read = one_read(effects)
        members.append(read.member)
        effects = bench.answer(read, status=status)
    assert members == [A, B, C]
    assert effects == [WatchMetadata(Epoch(1))]  # the ensemble may have changed: look first
    assert bench.reader.statistics()[f"errors_{status.name.lower()}"] == 3
    assert bench.reader.unavailable_since_us == bench.now_us


def test_a_second_failed_round_waits_and_tries_again() -> None:
    bench, effects = open_bench(lac=3)
    for _ in range(2):
        for _ in range(3):
            effects = bench.answer(one_read(effects), status=BookieStatus.UNKNOWN)
        if effects == [WatchMetadata(Epoch(1))]:
            effects = bench.metadata(make_log(2, 0), make_segment(1))
    assert effects == [SetTimer(bench.now_us + FIRST_PAUSE_US)]
    bench.reader.on_timer(bench.now_us + FIRST_PAUSE_US)
    assert bench.take() == [WatchMetadata(Epoch(1))]
    read = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    bench.answer(read, 0)
    assert bench.reader.unavailable_since_us is None


def test_a_pause_ends_when_the_metadata_change() -> None:
    bench, effects = open_bench(lac=3)
    for _ in range(2):
        for _ in range(3):
            effects = bench.answer(one_read(effects), status=BookieStatus.UNKNOWN)
        if effects == [WatchMetadata(Epoch(1))]:
            effects = bench.metadata(make_log(2, 0), make_segment(1))
    repaired = make_segment(1, fragments=[(0, (A, B, D))])
    read = one_read(bench.metadata(make_log(2, 0), repaired))
    assert read.first == 0


def test_a_poll_does_not_wait_for_what_is_stored_but_for_its_lac() -> None:
    bench = Bench()
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    assert (poll.first, poll.last, poll.wait_for) == (0, LAST_ENTRY_ID, 0)
    again = one_read(bench.answer(poll, 0, lac=-1, highest=0))
    assert (again.first, again.wait_for) == (1, 0)
    assert bench.delivered == []
    read = one_read(bench.answer(again, status=BookieStatus.NO_ENTRY, lac=0, highest=0))
    assert (read.first, read.last, read.wait_us) == (0, 0, 0)


def test_a_poll_that_brings_entry_and_lac_delivers_at_once() -> None:
    bench = Bench()
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    again = one_read(bench.answer(poll, 0, 1, lac=1, highest=1))
    assert bench.delivered == [(1, 0), (1, 1)]
    assert again.wait_for == 2


def test_after_an_empty_poll_it_looks_at_the_metadata_and_asks_another_bookie() -> None:
    bench = Bench()
    bench.take()
    effects = bench.metadata(make_log(2, 0), make_segment(1))
    members = []
    for _ in range(4):
        poll = one_read(effects)
        members.append(poll.member)
        assert bench.empty_poll(poll) == [WatchMetadata(Epoch(1))]
        effects = bench.metadata(make_log(2, 0), make_segment(1))
    assert members == [A, B, C, A]


def test_a_poll_that_does_not_wait_is_not_repeated_at_once() -> None:
    bench = Bench()
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    effects = bench.answer(poll, status=BookieStatus.NO_ENTRY, after_us=10)
    assert effects == [SetTimer(bench.now_us + FIRST_PAUSE_US)]


@pytest.mark.parametrize(
    "status", [BookieStatus.UNREACHABLE, BookieStatus.GONE, BookieStatus.OVERLOADED]
)
def test_polls_that_all_fail_make_the_tail_unavailable(status: BookieStatus) -> None:
    bench = Bench()
    bench.take()
    effects = bench.metadata(make_log(2, 0), make_segment(1))
    for _ in range(3):
        effects = bench.answer(one_read(effects), status=status)
    assert effects == [WatchMetadata(Epoch(1))]
    assert bench.reader.unavailable_since_us is not None


def test_a_poll_refused_for_overload_still_brings_the_lac() -> None:
    bench = Bench()
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    read = one_read(bench.answer(poll, status=BookieStatus.OVERLOADED, lac=0, highest=0))
    assert (read.first, read.last, read.wait_us) == (0, 0, 0)


def test_a_dropped_ledger_is_no_end_but_a_reason_to_look_at_the_metadata() -> None:
    bench, effects = open_bench(lac=3)
    effects = bench.answer(one_read(effects), status=BookieStatus.GONE)
    assert effects == [WatchMetadata(Epoch(1))]
    assert not bench.reader.is_at_tail and not bench.delivered
    assert bench.metadata(make_log(3, 1, 4, first_live=2), None) == [WatchMetadata(Epoch(2))]
    assert bench.skipped == [(2, 0, 0)]


def test_a_sealed_segment_is_not_polled_but_watched_until_it_is_closed() -> None:
    bench = Bench()
    bench.take()
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    assert bench.empty_poll(poll, is_sealed=True) == [WatchMetadata(Epoch(1))]
    (timer,) = bench.metadata(make_log(2, 0), make_segment(1))
    assert isinstance(timer, SetTimer)
    closed = make_segment(1, last=0, start=0)
    read = one_read(bench.metadata(make_log(2, 1, 1), closed))
    assert (read.first, read.last, read.wait_us) == (0, 0, 0)


def test_the_next_segment_is_entered_only_after_this_one_is_closed_and_read() -> None:
    """R18 and BK#2898: a poll is out while the segment closes and the next one opens."""
    bench, effects = open_bench(lac=0)
    poll = one_read(bench.answer(one_read(effects), 0, lac=0, highest=0))
    # The log node shows epoch 2 already; segment 1 is not seen CLOSED: stay.
    assert bench.metadata(make_log(3, 1, 3), make_segment(1)) == []
    assert bench.reader.position == (1, 1)
    cancel, read = bench.metadata(make_log(3, 1, 3), make_segment(1, last=2, start=0))
    assert cancel == CancelRead(poll.read_id)
    assert isinstance(read, SendRead) and (read.first, read.last) == (1, 2)
    # The late answer to the poll means nothing any more.
    assert bench.answer(poll, 5, lac=5) == []
    assert bench.answer(read, 1, 2) == [WatchMetadata(Epoch(2))]
    assert bench.reader.position == (2, 0)
    assert bench.delivered == [(1, 0), (1, 1), (1, 2)]


def test_a_segment_is_not_entered_while_an_older_one_is_unclosed() -> None:
    """R18 for a reader that begins there."""
    bench = Bench((2, 0))
    bench.take()
    (timer,) = bench.metadata(make_log(3, 0), make_segment(2))
    assert isinstance(timer, SetTimer)
    bench.reader.on_lac(Epoch(2), EntryId(9), bench.now_us)
    assert bench.reader.bound == NOTHING
    bench.reader.on_timer(timer.at_us)
    assert bench.take() == [WatchMetadata(Epoch(2))]
    read = one_read(bench.metadata(make_log(3, 1, 40), make_segment(2)))
    assert not read.wait_us
    bench.answer(read, 0, lac=9)
    assert bench.starts == [40]  # sequence numbers go on where the closed epochs end


def test_metadata_never_step_back() -> None:
    bench = Bench()
    bench.take()
    read = one_read(bench.metadata(make_log(3, 1, 3), make_segment(1, last=2, start=0)))
    bench.metadata(make_log(2, 0), make_segment(1))
    assert bench.reader.bound == 2
    bench.answer(read, 0, 1, 2)
    assert bench.reader.position == (2, 0)


def test_at_the_end_of_the_log_it_waits_for_the_next_epoch() -> None:
    bench = Bench((2, 0))
    bench.take()
    (timer,) = bench.metadata(make_log(2, 1, 3), None)
    assert isinstance(timer, SetTimer) and bench.reader.is_at_tail
    poll = one_read(bench.metadata(make_log(3, 1, 3), make_segment(2)))
    assert poll.wait_us


def test_a_new_epoch_is_looked_at_as_soon_as_the_log_node_shows_it() -> None:
    bench = Bench((2, 0))
    bench.take()
    bench.metadata(make_log(2, 1, 3), None)
    assert bench.metadata(make_log(3, 1, 3), None) == [WatchMetadata(Epoch(2))]


def test_a_reader_at_rest_goes_on_when_the_segment_closes() -> None:
    bench = Bench(is_following=False)
    bench.take()
    bench.metadata(make_log(2, 0), make_segment(1))
    assert bench.reader.is_at_tail
    read = one_read(bench.metadata(make_log(2, 1, 1), make_segment(1, last=0, start=0)))
    assert (read.first, read.last) == (0, 0)


def test_an_empty_segment_is_passed() -> None:
    bench = Bench()
    bench.take()
    effects = bench.metadata(make_log(3, 1, 0), make_segment(1, last=-1, start=0))
    assert effects == [WatchMetadata(Epoch(2))]


def test_the_runs_of_a_member_beyond_an_entry_are_exactly_what_it_holds() -> None:
    members = [Member(BookieId(f"m{i}"), Incarnation(f"{i:032}")) for i in range(8)]
    for size, write_quorum, first in itertools.product(range(2, 6), range(2, 6), range(5)):
        if write_quorum > size:
            continue
        ensemble, later = tuple(members[:size]), tuple(members[size : 2 * size])
        fragments = ((0, ensemble), (23, (later + ensemble)[:size]))
        segment = make_segment(1, fragments=fragments, write_quorum=write_quorum)
        for member, last in itertools.product(
            segment.write_set_of(EntryId(first)), (first, 17, 40)
        ):
            runs = [(EntryId(first), last_of_run(segment, EntryId(first), member))]
            runs += runs_beyond(segment, EntryId(first), EntryId(last), member)
            held = [entry for begin, end in runs for entry in range(begin, end + 1)]
            expected = [
                entry
                for entry in range(first, 23)
                if member in segment.write_set_of(EntryId(entry))
            ]
            assert [e for e in held if e <= last] == [e for e in expected if e <= last]


def test_a_striped_segment_is_read_ahead_as_far_as_one_range_of_bytes_has_room() -> None:
    """Entry i of E = 4, Qw = 3 lies on the members i, i + 1, i + 2 modulo 4."""
    bench = Bench(is_following=False, limits=ReaderLimits(range_bytes=100))
    bench.take()
    segment = make_segment(
        1, last=99, start=0, fragments=((0, (A, B, C, D)), (50, (D, C, B, A))), write_quorum=3
    )
    read = one_read(bench.metadata(make_log(2, 1, 100), segment))
    assert read.beyond == (), "nobody knows yet how large its entries are"
    read = one_read(bench.answer(read, *range(read.first, read.last + 1)))
    ahead = [entry for first, last in read.beyond for entry in range(first, last + 1)]
    assert ahead and max(ahead) <= read.first + 9, "ten entries of ten bytes"
    assert all(read.member in segment.write_set_of(EntryId(entry)) for entry in ahead)
    bench.reader.on_timer(bench.speculate_at_us)
    assert one_read(bench.take()).beyond == (), (
        "a second replica is asked for what is late, not for more"
    )


def test_a_truncated_segment_is_skipped_and_says_so() -> None:
    bench, effects = open_bench(lac=3)
    read = one_read(effects)
    effects = bench.metadata(make_log(5, 3, 30, first_live=3), None)
    assert effects == [CancelRead(read.read_id), WatchMetadata(Epoch(3))]
    assert bench.skipped == [(3, 0, 0)]
    assert bench.answer(read, 0, 1) == [] and bench.delivered == []


def test_after_a_truncation_inside_a_segment_reading_goes_on_at_the_trim_point() -> None:
    bench, effects = open_bench(lac=3)
    log = replace(
        make_log(5, 4, 30, first_live=2), trim_lsn=lsn_of(Epoch(3), EntryId(2)), trim_seq_num=17
    )
    read = one_read(effects)
    effects = bench.metadata(log, None)
    assert effects == [CancelRead(read.read_id), WatchMetadata(Epoch(3))]
    assert bench.skipped == [(3, 2, 17)]
    segment = make_segment(3, last=5, start=10, fragments=((0, (A, B, C)), (4, (B, C, D))))
    read = one_read(bench.metadata(log, segment))
    assert (read.first, read.last) == (2, 3)
    bench.answer(read, 2, 3)
    assert bench.delivered == [(3, 2), (3, 3)] and bench.skipped == [(3, 2, 17)]


def test_a_reader_that_does_not_follow_rests_at_the_tail_until_it_is_told_more() -> None:
    bench = Bench(is_following=False)
    bench.take()
    assert bench.metadata(make_log(2, 0), make_segment(1)) == []
    assert bench.reader.is_at_tail and bench.reader.state is ReaderState.CONSUMER
    bench.reader.on_lac(Epoch(1), EntryId(1), bench.now_us)
    read = one_read(bench.take())
    assert bench.answer(read, 0, 1) == []
    bench.reader.on_follow(bench.now_us)
    assert one_read(bench.take()).wait_us == POLL_US


def test_it_reads_ahead_no_further_than_its_buffer() -> None:
    bench = Bench(is_following=False, limits=ReaderLimits(range_bytes=20, buffer_bytes=30))
    bench.take()
    read = one_read(bench.metadata(make_log(2, 1, 9), make_segment(1, last=8, start=0)))
    read = one_read(bench.answer(read, 0, 1))
    assert bench.answer(read, 2, 3) == []
    bench.reader.on_consumed(20, bench.now_us)
    assert one_read(bench.take()).first == 4


def test_a_gap_in_an_answer_is_not_passed() -> None:
    bench, effects = open_bench(lac=5)
    read = one_read(bench.answer(one_read(effects), 0, 2, 3, lac=5))
    assert bench.delivered == [(1, 0)]
    assert read.first == 1


def test_a_reader_comes_back_to_an_overloaded_replica_soon() -> None:
    bench, effects = open_bench(lac=3)
    effects = bench.answer(one_read(effects), status=BookieStatus.OVERLOADED)
    read = one_read(effects)
    assert read.member == B
    bench.now_us += OVERLOAD_MEMORY_US
    assert one_read(bench.answer(read, 0)).member == A


def test_a_hole_is_reported_as_a_gap_and_passed() -> None:
    holes = ((EntryId(0), EntryId(1)), (EntryId(4), EntryId(4)))
    segment = replace(
        make_segment(1, last=5, start=0), ack_mode="out_of_order", holes=holes
    ).validated()
    bench = Bench(is_following=False)
    bench.take()
    gap, effect = bench.metadata(make_log(2, 1), segment)
    assert gap == Gap(Epoch(1), EntryId(0), EntryId(1))
    read = one_read([effect])
    assert read.first == 2
    gap, effect = bench.answer(read, 2, 3)
    assert gap == Gap(Epoch(1), EntryId(4), EntryId(4))
    read = one_read([effect])
    assert read.first == 5
    bench.answer(read, 5)
    assert bench.delivered == [(1, 2), (1, 3), (1, 5)]


def test_what_a_bookie_holds_inside_a_hole_is_not_delivered() -> None:
    """An entry that was never acknowledged may lie on one bookie: it is none of the log (R17)."""
    segment = replace(
        make_segment(1, last=4, start=0),
        ack_mode="out_of_order",
        holes=((EntryId(1), EntryId(2)),),
    ).validated()
    bench = Bench(is_following=False)
    bench.take()
    read = one_read(bench.metadata(make_log(2, 1), segment))
    gap, effect = bench.answer(read, 0, 1, 2, 3, 4)
    assert gap == Gap(Epoch(1), EntryId(1), EntryId(2))
    bench.answer(one_read([effect]), 3, 4)
    assert bench.delivered == [(1, 0), (1, 3), (1, 4)]


def late_read() -> tuple[Bench, SendRead, SendRead]:
    """A read that is not answered in time, and the one that was sent beside it."""
    bench = Bench(is_following=False)
    bench.take()
    first = one_read(bench.metadata(make_log(2, 1), make_segment(1, last=5, start=0)))
    bench.now_us = bench.speculate_at_us
    bench.reader.on_timer(bench.now_us)
    return bench, first, one_read(bench.take())


def test_a_late_answer_asks_the_next_replica_and_the_first_answer_wins() -> None:
    bench, first, second = late_read()
    assert (second.first, second.last) == (first.first, first.last)
    assert second.member != first.member
    effects = bench.answer(second, 0, 1, 2, 3, 4, 5)
    assert CancelRead(first.read_id) in effects
    assert [entry for _, entry in bench.delivered] == [0, 1, 2, 3, 4, 5]
    assert bench.answer(first, 0, 1, 2) == []
    assert len(bench.delivered) == 6
    assert bench.order.speculation.request_count == 1


def test_each_further_replica_is_asked_after_twice_the_time() -> None:
    bench, _, second = late_read()
    begun_us = bench.now_us
    bench.reader.on_timer(bench.speculate_at_us - 1)
    assert bench.take() == [SetTimer(bench.speculate_at_us)], "a timer may be early"
    first_delay_us = bench.order.speculation.delay_us(1)
    assert bench.speculate_at_us - begun_us == 2 * first_delay_us
    bench.now_us = bench.speculate_at_us
    bench.reader.on_timer(bench.now_us)
    third = one_read(bench.take())
    bench.now_us = bench.speculate_at_us
    bench.reader.on_timer(bench.now_us)
    assert bench.take() == [], "three replicas are all there are"
    assert third.member != second.member


def test_a_failed_speculation_waits_for_the_answer_that_is_still_out() -> None:
    bench, first, second = late_read()
    assert bench.answer(second, status=BookieStatus.UNKNOWN) == []
    bench.answer(first, 0, 1, 2, 3, 4, 5)
    assert len(bench.delivered) == 6


def test_the_delay_follows_the_99th_percentile() -> None:
    speculation = Speculation()
    rng = Random(3)
    for _ in range(20_000):
        speculation.on_answer(rng.randrange(1_000, 101_000))
    assert 85_000 < speculation.delay_us(1) < 115_000
