"""The reader core at the tail: whom it polls, how many at once, and whom it keeps.

Source: duramen.core.reading.reader, docs/protocol/reading.md "Long polls".
"""

from __future__ import annotations

import itertools

from duramen.core.reading.effects import (
    CancelRead,
    Effect,
    SendRead,
    SetTimer,
    WatchMetadata,
)
from duramen.core.reading.polling import (
    LOOK_US,
    OWNER_US,
    OWNER_WAIT_US,
    POLL_US,
    SECOND_POLL_US,
)
from duramen.core.reading.replica_order import SILENCE_MEMORY_US
from duramen.core.reading.runs import list_replicas
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch
from tests.unit.reader_bench import A, B, Bench, C, make_log, make_segment, one_read


def open_tail() -> tuple[Bench, SendRead]:
    """A reader at the tail of an empty open segment, and its poll."""
    bench = Bench()
    bench.take()
    return bench, one_read(bench.metadata(make_log(2, 0), make_segment(1)))


def advance(bench: Bench, time_us: int) -> list[Effect]:
    bench.now_us += time_us
    bench.reader.on_timer(bench.now_us)
    return bench.take()


def open_two_polls() -> tuple[Bench, SendRead, SendRead]:
    bench, first = open_tail()
    return bench, first, one_read(advance(bench, SECOND_POLL_US))


def test_a_bookie_that_is_silent_hides_the_tail_for_a_moment_only() -> None:
    bench, first = open_tail()
    assert first.member == A and not first.is_second
    early = advance(bench, SECOND_POLL_US - 1)
    assert early == [SetTimer(bench.now_us + 1)], "a timer may be early"
    second = one_read(advance(bench, 1))
    assert second.member == B and second.is_second and second.wait_for == first.wait_for
    assert advance(bench, SECOND_POLL_US) == [], "two are enough"
    effects = bench.answer(second, 0, lac=0)
    assert bench.delivered == [(1, 0)]
    assert CancelRead(first.read_id) in effects


def test_who_brought_news_is_polled_next_and_not_who_was_silent() -> None:
    """Else a frozen bookie would hide each record again, the nearest one at any rate."""
    bench, first, second = open_two_polls()
    assert first.member == A and second.member == B
    effects = bench.answer(second, lac=0, highest=0)
    read = next(effect for effect in effects if isinstance(effect, SendRead))
    assert not read.wait_us and read.member == B
    poll = one_read(bench.answer(read, 0))
    assert poll.wait_us and poll.member == B
    bench.now_us += SILENCE_MEMORY_US
    assert one_read(bench.answer(poll, 1, lac=1)).member == A


def test_one_whose_news_come_at_once_is_not_silent() -> None:
    bench, first = open_tail()
    second = one_read(advance(bench, SECOND_POLL_US))
    bench.answer(first, status=BookieStatus.NO_ENTRY, after_us=POLL_US // 2)
    third = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    poll = next(e for e in bench.answer(second, 0, lac=0) if isinstance(e, SendRead))
    assert third.member == C and poll.member == A, "it was polled a moment ago"


def test_equals_are_kept_and_not_drawn_again() -> None:
    bench, _, second = open_two_polls()
    bench.order.on_places({})
    poll = next(e for e in bench.answer(second, 0, lac=0) if isinstance(e, SendRead))
    for number in range(1, 20):
        assert poll.member == second.member
        poll = one_read(bench.answer(poll, number, lac=number))


def test_at_a_quiet_tail_two_are_polled_and_the_metadata_are_looked_at_once_for_each_wait() -> None:
    bench, first, second = open_two_polls()
    look_count = 0
    members = [first.member, second.member]
    polls = [(bench.now_us - SECOND_POLL_US, first), (bench.now_us, second)]
    begun_us = bench.now_us
    while bench.now_us < begun_us + 20 * POLL_US:
        sent_us, poll = polls.pop(0)
        after_us = sent_us + POLL_US - bench.now_us
        effects = bench.answer(poll, status=BookieStatus.NO_ENTRY, after_us=after_us)
        if effects == [WatchMetadata(Epoch(1))]:
            look_count += 1
            effects = bench.metadata(make_log(2, 0), make_segment(1))
        polls.append((bench.now_us, one_read(effects)))
        members.append(polls[-1][1].member)
    assert 19 <= look_count <= 20 * POLL_US // LOOK_US
    assert 40 <= len(members) <= 44
    assert all(one != other for one, other in itertools.pairwise(members))
    assert all(set(members[at : at + 4]) == {A, B, C} for at in range(len(members) - 3))


def test_what_others_tell_of_the_metadata_puts_no_look_off() -> None:
    """They may tell it all the time, and not know that the segment was closed."""
    bench, first = open_tail()
    bench.now_us += POLL_US - 1
    assert bench.metadata(make_log(2, 0), make_segment(1)) == [] and bench.now_us > LOOK_US
    effects = bench.answer(first, status=BookieStatus.NO_ENTRY, after_us=1)
    assert effects == [WatchMetadata(Epoch(1))]


def test_a_poll_that_fails_is_replaced_beside_the_one_that_is_out() -> None:
    bench, first, _ = open_two_polls()
    third = one_read(bench.answer(first, status=BookieStatus.TIMEOUT))
    assert third.member == C and third.is_second
    assert bench.reader.unavailable_since_us is None


def test_a_seal_ends_both_polls() -> None:
    bench, _, second = open_two_polls()
    effects = bench.answer(second, status=BookieStatus.NO_ENTRY, is_sealed=True, after_us=POLL_US)
    assert effects == [WatchMetadata(Epoch(1))]
    effects = bench.metadata(make_log(2, 0), make_segment(1))
    assert not [effect for effect in effects if isinstance(effect, SendRead)]
    closed = make_segment(1, last=0, start=0)
    assert one_read(bench.metadata(make_log(2, 1, 1), closed)).wait_us == 0


def test_news_while_it_looks_at_the_metadata_are_not_lost() -> None:
    bench, first, second = open_two_polls()
    after_us = POLL_US - SECOND_POLL_US
    effects = bench.answer(first, status=BookieStatus.NO_ENTRY, after_us=after_us)
    assert effects == [WatchMetadata(Epoch(1))]
    assert bench.answer(second, 0, lac=0) == [] and bench.delivered == [(1, 0)]
    poll = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    assert poll.wait_for == 1


def test_news_in_a_pause_end_it() -> None:
    bench, first, second = open_two_polls()
    bench.answer(first, status=BookieStatus.NO_ENTRY, after_us=0)
    assert bench.reader.state.value == "pause", "a poll that does not wait is not repeated at once"
    poll = next(e for e in bench.answer(second, 0, lac=0) if isinstance(e, SendRead))
    assert poll.wait_for == 1 and bench.delivered == [(1, 0)]


def test_a_read_that_came_late_costs_the_bookie_its_place() -> None:
    bench = Bench(is_following=False)
    bench.take()
    first = one_read(bench.metadata(make_log(2, 1), make_segment(1, last=5, start=0)))
    assert first.member == A
    bench.order.on_latency(B, 1_000, bench.now_us)
    bench.now_us = bench.speculate_at_us
    bench.reader.on_timer(bench.now_us)
    second = one_read(bench.take())
    assert second.member == B and second.is_second
    read = [e for e in bench.answer(second, 0, 1) if isinstance(e, SendRead)]
    assert [one.member for one in read] == [B]
    other = Bench(is_following=False)
    assert other.order is not bench.order
    assert bench.order.rank([A, B, C], bench.now_us)[0] == B, "for every reader of the process"


# --- The owner tells its LAC ---


def tell(bench: Bench, lac: int, epoch: int = 1) -> list[Effect]:
    bench.reader.on_lac(Epoch(epoch), EntryId(lac), bench.now_us, by_owner=True)
    return bench.take()


def test_a_poll_that_is_to_bring_what_the_owner_told_of_is_waited_for() -> None:
    bench, poll = open_tail()
    assert tell(bench, 0) == [SetTimer(bench.now_us + OWNER_WAIT_US)]
    assert tell(bench, 1) == [], "the poll is out still, and waited for no longer"
    effects = bench.answer(poll, 0, 1, highest=1, after_us=OWNER_WAIT_US - 1)
    assert bench.delivered == [(1, 0), (1, 1)]
    assert one_read(effects).wait_for == 2, "and nothing was read besides"


def test_a_poll_that_does_not_bring_it_is_given_up_for_a_read() -> None:
    bench, poll = open_tail()
    tell(bench, 0)
    assert advance(bench, OWNER_WAIT_US - 1) == [SetTimer(bench.now_us + 1)]
    cancelled, read = advance(bench, 1)
    assert cancelled == CancelRead(poll.read_id)
    assert isinstance(read, SendRead) and not read.wait_us and read.first == read.last == 0


def test_who_is_not_to_have_what_the_owner_told_of_is_not_waited_for() -> None:
    """Of three bookies each entry is at two."""
    bench = Bench()
    bench.take()
    segment = make_segment(1, write_quorum=2)
    poll = one_read(bench.metadata(make_log(2, 0), segment))
    stranger = next(n for n in range(3) if poll.member not in list_replicas(segment, EntryId(n)))
    for entry in range(stranger):
        bench.answer(poll, *range(entry + 1), lac=entry)
    effects = tell(bench, stranger)
    assert [type(effect) for effect in effects[-1:]] == [SendRead]


def test_a_lac_that_is_about_to_come_from_the_owner_is_not_polled_for() -> None:
    bench, poll = open_tail()
    tell(bench, 0)
    poll = one_read(bench.answer(poll, 0))
    assert bench.answer(poll, 1) == [SetTimer(bench.now_us + OWNER_WAIT_US)], "it is here"
    read = one_read(tell(bench, 1))
    assert not read.wait_us, "which the cache answers"
    bench.answer(read, 1)
    assert bench.delivered == [(1, 0), (1, 1)]


def test_an_owner_that_tells_nothing_is_waited_for_once_an_entry() -> None:
    bench, poll = open_tail()
    tell(bench, 0)
    poll = one_read(bench.answer(poll, 0))
    bench.answer(poll, 1)
    early = advance(bench, OWNER_WAIT_US - 1)
    assert early == [SetTimer(bench.now_us + 1)]
    poll = one_read(advance(bench, 1))
    assert poll.wait_us and (poll.first, poll.wait_for) == (2, 1)
    assert bench.delivered == [(1, 0)]
    bench.answer(poll, lac=1)
    assert bench.reader.bound == 1, "as a bookie told"


def test_an_owner_that_was_silent_for_a_while_is_not_counted_on() -> None:
    bench, poll = open_tail()
    tell(bench, 0)
    poll = one_read(bench.answer(poll, 0))
    assert one_read(bench.answer(poll, 1, after_us=OWNER_US)).wait_us


def test_a_lac_of_another_segment_shows_nothing() -> None:
    bench, _ = open_tail()
    assert tell(bench, 5, epoch=2) == [] and tell(bench, -1) == []
    assert bench.reader.bound == -1


def test_the_owners_lac_counts_while_the_metadata_are_looked_at() -> None:
    bench = Bench()
    bench.take()
    assert tell(bench, 3) == []
    read = one_read(bench.metadata(make_log(2, 0), make_segment(1)))
    assert not read.wait_us and bench.reader.bound == 3
