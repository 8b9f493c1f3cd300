"""One reader of a log: by itself while it catches up, at the feed once it follows; and `fill`.

Cursors are played by hand, feeds are real, the clock stands still (`feed_world`). `fill` is looked
at for what a bounded answer may say: that it is empty, that it ends, that this is the tail.
Source: duramen_readproxy.following.record_reader, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from duramen.core.reading.effects import Deliver, Gap
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch
from duramen.runtime.reading.log_reader import DataLost, Truncated
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen_readproxy.answers import Bounds, RecordPick
from duramen_readproxy.following.record_reader import AHEAD_PAUSE_US, RecordReader, fill
from tests.component.feed_world import (
    MOMENT_S,
    SOON_US,
    FeedWorld,
    HandCursor,
    deliver,
    play,
    position,
    tail_at,
)
from tests.component.still_clock import read_clock_us, wait_clock, wait_quiet

LIMITS: Final = ReaderLimits()
LOST: Final = DataLost(Gap(Epoch(1), EntryId(1), EntryId(3), is_lost=True))
MOVED: Final = Truncated(1, 5)
END: Final = tail_at(1, 0, 0)


def make_reader(world: FeedWorld, epoch: int = 1, entry: int = 0) -> RecordReader:
    at = position(epoch, entry)
    return RecordReader(world.feeds, world.fetcher, world.follower(), at, LIMITS)


async def feed_all(world: FeedWorld, *delivered: Deliver) -> None:
    """Let the feed, whose cursor was made last, bring entries that the cache has."""
    for one in delivered:
        world.cache.put(one)
    await world.cursors[-1].give(*delivered)


def take(reader: RecordReader, wanted_seq_num: int = 0) -> asyncio.Task[Deliver | None]:
    return asyncio.create_task(reader.take(wanted_seq_num, read_clock_us() + SOON_US))


# --- Catching up ---


def test_who_catches_up_has_a_cursor_and_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world, 1, 3) as reader:
            [cursor] = world.cursors
            assert (cursor.position, cursor.limits) == (position(1, 3), LIMITS)
            cursor.tail, cursor.end = tail_at(1, 5, 50), tail_at(1, 6, 60)
            first = deliver(1, 3, 4)
            await cursor.give(first)
            assert await reader.take(40, 0) is first
            assert (reader.tail, reader.end) == (cursor.tail, cursor.end)
            assert not reader.is_following and not reader.is_at_end_of_stream
            await cursor.give(None)
            assert await reader.take(50, 0) is None, "the end, as far as is known"
            assert cursor.wanted == [40, 50]
            for is_more in (True, False):
                cursor.more_behind_tail = is_more
                assert await reader.on_tail(tail_at(1, 7, 70)) is is_more
            assert cursor.told_tails == [tail_at(1, 7, 70)] * 2
            await cursor.give(LOST)
            with pytest.raises(DataLost):
                await reader.take(50, 0)
            reader.pass_loss(LOST)
            assert cursor.passed_count == 1
            cursor.is_at_end_of_stream = True
            assert reader.is_at_end_of_stream
            assert world.feeds.statistics()["started"] == 0
        assert not cursor.is_open

    play(monkeypatch, scenario)


# --- Following ---


def test_who_follows_lets_its_cursor_go_and_takes_from_the_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world, 1, 3) as reader:
            [own] = world.cursors
            await own.give(deliver(1, 3), None)
            await reader.take(40, 0)
            assert await reader.take(41, 0) is None
            await reader.follow(END)
            assert reader.is_following and not own.is_open and reader.end is None
            taking = take(reader, 41)
            await wait_quiet()
            feeding = world.cursors[1]
            assert (feeding.position, feeding.wanted) == (position(1, 4), [41])
            feeding.tail = tail_at(1, 9, 90)
            await feed_all(world, deliver(1, 4, 5, 8, start_seq_num=30))
            found = taking.result()
            assert found is not None and found.start_seq_num == 30
            assert [entry for entry, _ in found.entries] == [4, 5], "to the hole"
            assert reader.tail is None, "there is more"
            found = await reader.take(43, 0)
            assert found is not None and [entry for entry, _ in found.entries] == [8]
            assert reader.tail == tail_at(1, 9, 90)
            await feed_all(world, deliver(2, 0, start_seq_num=70))
            found = await reader.take(44, 0)
            assert found is not None and (found.epoch, found.start_seq_num) == (2, 70)
            assert len(world.cursors) == 2 and world.feeds.statistics()["readers"] == 1
        numbers = world.feeds.statistics()
        assert (numbers["readers"], numbers["idle"], numbers["lagged"]) == (0, 1, 0)

    play(monkeypatch, scenario)


def test_a_wait_at_the_feed_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world) as reader:
            await reader.follow(END)
            begin_s = world.now_s
            taking = take(reader)
            await wait_clock(begin_s + SOON_US / 1e6 - MOMENT_S)
            assert not taking.done()
            await wait_clock(begin_s + SOON_US / 1e6 + MOMENT_S)
            assert taking.result() is None and not reader.is_at_end_of_stream
            assert world.feeds.statistics()["readers"] == 1, "it may ask again"

    play(monkeypatch, scenario)


@pytest.mark.parametrize("is_sure", [True, False])
@pytest.mark.parametrize("is_out_of_window", [True, False])
def test_who_lags_reads_by_itself_from_where_it_is_until_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch, is_out_of_window: bool, is_sure: bool
) -> None:
    monkeypatch.setattr("duramen_readproxy.following.feed.WINDOW_COUNT_MAX", 2)

    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world, 1, 3) as reader:
            await reader.follow(END._replace(is_sure=is_sure))
            assert await reader.take(0, 0) is None
            if is_out_of_window:
                await feed_all(world, deliver(1, 3), deliver(1, 4), deliver(1, 5))
            else:
                await world.cursors[-1].give(deliver(1, 3))  # the cache has lost it already
            taking = take(reader)
            await wait_quiet()
            own = world.cursors[-1]
            assert len(world.cursors) == 3 and own.position == position(1, 3)
            assert (own.is_open, own.is_following) == (True, False)
            numbers = world.feeds.statistics()
            assert (numbers["lagged"], numbers["readers"]) == (1, 0)
            own.tail = tail_at(1, 6, 6)
            await own.give(deliver(1, 3, 4, 5), None)
            assert taking.result() is not None
            assert reader.tail == (own.tail if is_sure else None)
            again = take(reader, 6)
            await wait_quiet()
            assert not own.is_open and world.feeds.statistics()["readers"] == 1
            await wait_quiet()
            assert not again.done() and reader.is_following
            feeding = world.cursors[1]
            world.cache.put(deliver(1, 6))
            await feeding.give(*([] if is_out_of_window else [deliver(1, 4, 5)]), deliver(1, 6))
            found = again.result()
            assert found is not None and found.entries[0][0] == 6

    play(monkeypatch, scenario)


def test_who_is_behind_a_feed_that_has_nothing_waits_before_it_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        _ = world.join(1, 4)  # by a reader that has heard of more
        async with make_reader(world, 1, 3) as reader:
            await reader.follow(END)
            taking = take(reader, 3)
            await wait_quiet()
            for _ in range(5):
                looks = len(world.cursors)
                await world.cursors[-1].give(None)  # it finds no more than is known
                assert len(world.cursors) == looks and not world.cursors[-1].is_open
                await wait_clock(world.now_s + AHEAD_PAUSE_US / 1e6 + MOMENT_S)
                assert len(world.cursors) == looks + 1 and world.cursors[-1].is_open
            assert world.feeds.statistics()["lagged"] == 1, "it is one reader that lags, once"
            assert reader.waited_us >= 5 * AHEAD_PAUSE_US, "nobody works meanwhile"
            await world.cursors[-1].give(deliver(1, 3))
            found = taking.result()
            assert found is not None and found.entries[0][0] == 3, "it is known at last"
            begin_s = world.now_s
            again = asyncio.create_task(reader.take(3, read_clock_us()))
            await world.cursors[-1].give(None)
            assert again.result() is None and world.now_s < begin_s + 0.01

    play(monkeypatch, scenario)


def test_the_end_of_a_log_is_seen_at_the_feed_and_by_ones_own_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world) as at_feed, make_reader(world) as alone:
            await at_feed.follow(END)
            taking = take(at_feed)
            await wait_quiet()
            feeding = world.cursors[-1]
            await feeding.give(None)
            assert taking.result() is None and at_feed.is_at_end_of_stream
            own = world.cursors[1]
            alone.is_following = True  # it lagged, and the log ended meanwhile
            own.is_at_end_of_stream = True
            await own.give(None)
            assert await alone.take(0, 0) is None and alone.is_at_end_of_stream
            assert own.is_open and world.feeds.statistics()["started"] == 1

    play(monkeypatch, scenario)


def test_what_the_feed_cannot_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world) as reader:
            await reader.follow(END)
            taking = take(reader)
            await wait_quiet()
            await world.cursors[-1].give(DuramenError("data_unavailable", "nobody"))
            assert getattr(taking.exception(), "code", None) == "data_unavailable"
        assert world.feeds.statistics()["readers"] == 0

    play(monkeypatch, scenario)


# --- The entry in which an answer ends ---


def test_the_entry_that_an_answer_ends_in_is_remembered_and_no_other_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        async with make_reader(world, 1, 3) as reader:
            [own] = world.cursors
            assert reader.find_touched() is None
            await own.give(deliver(1, 3, 4, 5), deliver(1, 6))
            await reader.take(0, 0)
            assert reader.find_touched() is None, "the answer has come to none of them"
            reader.touch(EntryId(4))
            touched = reader.find_touched()
            assert touched is not None and touched.entry_id == 4
            reader.touch(EntryId(5))
            await reader.take(0, 0)
            touched = reader.find_touched()
            assert touched is not None and touched.entry_id == 5, "until the next one is touched"
            reader.touch(EntryId(6))
            taking = take(reader)
            await wait_quiet()
            assert reader._taken is None, "who waits long must not hold entries"
            touched = reader.find_touched()
            assert touched is not None and touched.entry_id == 6
            await own.give(None)
            await taking

    play(monkeypatch, scenario)


# --- Bounded answers ---


class Answer:
    """`fill` under way, and who is asked for the tail."""

    def __init__(self, world: FeedWorld, *, wait_us: int = 0, count: int = 9) -> None:
        self.world = world
        self.reader = make_reader(world)
        self.tails: list[Tail | Exception] = []
        self.asked_count = 0
        start = Start(Epoch(1), EntryId(0), 0)
        self.pick = RecordPick(start, Bounds(count, None, None), is_base64=False)
        self.task = asyncio.create_task(fill(self.reader, self.pick, wait_us, self._find_tail))

    async def _find_tail(self) -> Tail:
        self.asked_count += 1
        found = self.tails.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def cursor(self) -> HandCursor:
        await wait_quiet()
        return self.world.cursors[-1]

    @property
    def count(self) -> int:
        return len(self.pick.drain())

    @property
    def outcome(self) -> Any:
        assert self.task.done()
        assert not any(c.is_open for c in self.world.cursors if not c.is_following)
        return self.task.exception() or self.task.result()


TAIL: Final = tail_at(1, 2, 2)


def test_an_answer_that_is_full_says_nothing_of_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world, count=3)
        cursor = await answer.cursor()
        await cursor.give(deliver(1, 0, size=2), deliver(1, 1, 2, size=2))
        assert answer.outcome is None and answer.count == 3 and answer.asked_count == 0
        assert cursor.wanted == [0, 2]
        touched = answer.reader.find_touched()
        assert touched is not None and touched.entry_id == 1

    play(monkeypatch, scenario)


@pytest.mark.parametrize("known_end", [TAIL, None])
@pytest.mark.parametrize("seq_num", [1, 2, 3])
def test_one_that_is_full_just_at_the_end_says_so_only_if_that_is_the_end(
    monkeypatch: pytest.MonkeyPatch, known_end: Tail | None, seq_num: int
) -> None:
    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world, count=2)
        found = tail_at(1, seq_num, seq_num)
        answer.tails = [found]
        cursor = await answer.cursor()
        cursor.tail, cursor.end = TAIL, known_end and found
        await cursor.give(deliver(1, 0, 1))
        assert answer.outcome == (found if seq_num == 2 else None)
        assert answer.asked_count == (known_end is None)

    play(monkeypatch, scenario)


@pytest.mark.parametrize("wait_us", [0, SOON_US])
@pytest.mark.parametrize("is_sure", [True, False])
def test_an_answer_with_records_ends_at_the_tail_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, wait_us: int, is_sure: bool
) -> None:
    """Whoever asks is told that it is the tail only where that is sure."""

    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world, wait_us=wait_us)
        answer.tails = [TAIL._replace(is_sure=is_sure)]
        cursor = await answer.cursor()
        cursor.more_behind_tail = True
        await cursor.give(deliver(1, 0), None)
        assert not answer.task.done(), "it takes to the end that was found"
        cursor.more_behind_tail = False
        cursor.end = TAIL._replace(is_sure=is_sure)
        await cursor.give(deliver(1, 1), None)
        assert answer.outcome == (cursor.end if is_sure else None)
        assert answer.count == 2 and answer.asked_count == 1, "the end is looked for once"
        assert cursor.told_tails == [cursor.end]
        assert world.feeds.statistics()["started"] == 0

    play(monkeypatch, scenario)


@pytest.mark.parametrize("is_sure", [True, False])
@pytest.mark.parametrize("comes", [True, False])
def test_an_empty_answer_waits_at_the_tail_for_its_first_records(
    monkeypatch: pytest.MonkeyPatch, comes: bool, is_sure: bool
) -> None:
    """What comes lies behind the end that was found: if that was not sure, neither is its end."""

    async def scenario(world: FeedWorld) -> None:
        begin_s = world.now_s
        answer = Answer(world, wait_us=SOON_US)
        answer.tails = [tail_at(1, 0, 0)._replace(is_sure=is_sure)]
        await (await answer.cursor()).give(None)
        feeding = await answer.cursor()
        assert feeding.is_following and not answer.task.done()
        if comes:
            feeding.tail = TAIL
            await feed_all(world, deliver(1, 0, 1))
            assert answer.outcome == (TAIL if is_sure else None) and answer.count == 2
            assert world.now_s < begin_s + MOMENT_S, "what it has it gives"
        else:
            await wait_clock(begin_s + SOON_US / 1e6 - MOMENT_S)
            assert not answer.task.done()
            await wait_clock(begin_s + SOON_US / 1e6 + MOMENT_S)
            assert answer.outcome == (tail_at(1, 0, 0) if is_sure else None)
            assert answer.count == 0
        assert world.feeds.statistics()["readers"] == 0

    play(monkeypatch, scenario)


def test_a_followed_answer_that_is_full_is_not_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world, wait_us=SOON_US, count=1)
        answer.tails = [tail_at(1, 0, 0)]
        await (await answer.cursor()).give(None)
        feeding = await answer.cursor()
        feeding.tail = tail_at(1, 1, 1)
        await feed_all(world, deliver(1, 0))
        assert answer.outcome == tail_at(1, 1, 1) and answer.asked_count == 1

    play(monkeypatch, scenario)


@pytest.mark.parametrize("is_ended", [True, False])
def test_nobody_waits_behind_the_end_of_a_log_or_for_no_time(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world, wait_us=SOON_US if is_ended else 0)
        answer.tails = [tail_at(1, 0, 0)]
        cursor = await answer.cursor()
        cursor.is_at_end_of_stream = is_ended
        await cursor.give(None)
        assert answer.outcome == tail_at(1, 0, 0) and len(world.cursors) == 1

    play(monkeypatch, scenario)


@pytest.mark.parametrize("gap", [MOVED, LOST])
@pytest.mark.parametrize("is_empty", [True, False])
def test_an_answer_ends_before_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, gap: DuramenError, is_empty: bool
) -> None:
    """One that would be empty is the place to tell it."""

    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world)
        cursor = await answer.cursor()
        if not is_empty:
            await cursor.give(deliver(1, 0))
        await cursor.give(gap)
        assert answer.outcome is (gap if is_empty else None)
        assert answer.count == (0 if is_empty else 1)

    play(monkeypatch, scenario)


@pytest.mark.parametrize(
    ("code", "is_empty", "is_raised"),
    [
        ("data_unavailable", True, True),
        ("data_unavailable", False, False),
        ("log_deleted", False, True),
    ],
)
def test_what_was_read_stands_whoever_may_say_where_the_end_is(
    monkeypatch: pytest.MonkeyPatch, code: str, is_empty: bool, is_raised: bool
) -> None:
    async def scenario(world: FeedWorld) -> None:
        answer = Answer(world)
        error = DuramenError(code, "no")
        answer.tails = [error]
        cursor = await answer.cursor()
        cursor.tail = tail_at(1, 1, 1)
        await cursor.give(*([] if is_empty else [deliver(1, 0)]), None)
        assert answer.outcome is (error if is_raised else None)
        assert answer.count == (0 if is_empty else 1)

    play(monkeypatch, scenario)
