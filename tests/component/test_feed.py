"""The feed that all readers at a log's tail share: who is woken when, with what, and how it ends.

The cursor behind the feed is played by hand and the clock stands still (`feed_world`).
Source: duramen_readproxy.following.feed, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from duramen.core.reading.effects import Gap
from duramen.core.reading.feed_window import WINDOW_COUNT_MAX
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch
from duramen.runtime.reading.log_reader import DataLost, Truncated
from duramen.wire.sequencer_calls import OpenLac
from duramen_readproxy.following import feed as feed_module
from duramen_readproxy.following.feed import LINGER_S, Feeds, LogFeed
from duramen_readproxy.following.owner_follower import CALL_COUNT_MAX
from duramen_readproxy.following.waiting_room import GRAIN_US
from tests.component.feed_world import (
    LOG,
    MOMENT_S,
    SOON_US,
    FeedWorld,
    deliver,
    ids_of,
    play,
    position,
    tail_at,
)
from tests.component.hand_owners import HandOwners
from tests.component.still_clock import count_timers, read_clock_us, wait_clock, wait_quiet
from tests.waiting import wait_for

LOST: Final = Gap(Epoch(1), EntryId(0), EntryId(3), is_lost=True)


# --- Who waits ---


def test_whoever_waits_is_woken_by_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join(1, 5, seq_num=100)
        await wait_quiet()
        [cursor] = world.cursors
        assert cursor.is_open and cursor.is_following and feed.tail is None
        assert (cursor.position, cursor.wanted) == (position(1, 5), [100])
        assert cursor.limits is feed_module._LIMITS
        waiting = [await world.wait(feed, 1, 5) for _ in range(3)]
        ahead = await world.wait(feed, 1, 9)
        assert feed.room.waiting_count == 4
        cursor.tail = tail_at(1, 8, 142)
        await cursor.give(deliver(1, 5, 7, start_seq_num=90, size=2))
        assert [ids_of(task.result()) for task in waiting] == [[(1, 5), (1, 7)]] * 3
        assert waiting[0].result()[0].start_seq_num == 90
        assert not ahead.done(), "what comes is not yet what it waits for"
        assert count_timers() == feed.room.waiting_count == 1
        assert feed.tail == cursor.tail and feed.window.end == (1, 8)
        assert cursor.wanted == [100, 90 + 8 * 2], "behind the last record"
        assert not feed.is_over and not feed.is_ended
        await cursor.give(deliver(2, 0, start_seq_num=300))
        assert ids_of(ahead.result()) == [(2, 0)]
        assert cursor.wanted[-1] == 301 and count_timers() == 0
        assert ids_of(await feed.wait(position(1, 6), 0)) == [(1, 7)], "it is there"
        assert await feed.wait(position(1, 4), 0) is None, "it never was"

    play(monkeypatch, scenario)


def test_a_wait_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        begin_s = world.now_s
        task = await world.wait(feed)
        await wait_clock(begin_s + SOON_US / 1e6 - MOMENT_S)
        assert not task.done()
        await wait_clock(begin_s + (SOON_US + GRAIN_US) / 1e6 + MOMENT_S)
        assert task.result() == ()
        assert feed.room.waiting_count == feed.room.timer_count == count_timers() == 0
        assert await feed.wait(position(1, 0), read_clock_us()) == ()

    play(monkeypatch, scenario)


def test_waits_that_end_together_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        waits = [await world.wait(feed) for _ in range(20)]
        assert feed.room.waiting_count == 20
        assert count_timers() == feed.room.timer_count <= 2, "one more, if a grain ends meanwhile"
        for wait in waits[1:]:
            wait.cancel()
        await wait_quiet()
        assert feed.room.waiting_count == feed.room.timer_count == 1
        world.feeds.stop_following()
        await wait_quiet()
        assert waits[0].result() == () and count_timers() == 0

    play(monkeypatch, scenario)


def test_a_reader_that_goes_away_leaves_nothing_at_the_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        gone, stays = await world.wait(feed), await world.wait(feed)
        gone.cancel()
        await wait_quiet()
        assert feed.room.waiting_count == count_timers() == 1
        # One that goes in the moment in which all are woken hinders nobody.
        leaving, last = await world.wait(feed), await world.wait(feed)
        leaving.cancel()
        world.feeds.stop_following()
        await wait_quiet()
        assert leaving.cancelled() and stays.result() == last.result() == ()

    play(monkeypatch, scenario)


# --- How a feed ends ---


def test_a_failure_is_raised_to_everybody_who_waits_and_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        waiting = [await world.wait(feed), await world.wait(feed)]
        cursor = world.cursors[0]
        await cursor.give(deliver(1, 0))
        behind = [await world.wait(feed, 1, 1), await world.wait(feed, 1, 1)]
        await cursor.give(DuramenError("data_unavailable", "nobody answers"))
        errors = [task.exception() for task in behind]
        for error in errors:
            assert isinstance(error, DuramenError)
            assert (error.code, error.detail) == ("data_unavailable", "nobody answers")
        assert errors[0] is not errors[1], "tracebacks pile up on one that is shared"
        assert feed.is_over and not feed.is_ended and not cursor.is_open
        assert [ids_of(task.result()) for task in waiting] == [[(1, 0)]] * 2
        assert ids_of(await feed.wait(position(1, 0), 0)) == [(1, 0)], "what was fed is good"
        with pytest.raises(DuramenError, match="nobody answers"):
            await feed.wait(position(1, 1), 0)
        with pytest.raises(DuramenError, match="nobody answers"):
            await feed.wait(position(1, 1), read_clock_us() + SOON_US)
        assert world.join(1, 1) is not feed, "who comes now tries again"

    play(monkeypatch, scenario)


@pytest.mark.parametrize("gap", [Truncated(3, 5), DataLost(LOST)])
def test_what_is_missing_each_reader_finds_out_by_itself(
    monkeypatch: pytest.MonkeyPatch, gap: DuramenError
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        waiting = [await world.wait(feed), await world.wait(feed)]
        await world.cursors[0].give(gap)
        assert [task.result() for task in waiting] == [None, None]
        assert await feed.wait(position(1, 0), read_clock_us() + SOON_US) is None
        assert feed.is_over and not feed.is_ended

    play(monkeypatch, scenario)


def test_the_end_of_a_log_is_told_behind_its_last_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        waiting = [await world.wait(feed), await world.wait(feed, 1, 1)]
        await world.cursors[0].give(deliver(1, 0), None)
        assert ids_of(waiting[0].result()) == [(1, 0)] and waiting[1].result() == ()
        assert feed.is_ended and feed.is_over
        begin_s = world.now_s
        assert await feed.wait(position(1, 1), read_clock_us() + SOON_US) == ()
        assert world.now_s == begin_s

    play(monkeypatch, scenario)


def test_who_waits_at_a_feed_that_is_given_up_reads_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        task = await world.wait(feed)
        assert not feed.is_over
        await feed.stop()
        await wait_quiet()
        assert feed.is_over and not world.cursors[0].is_open
        assert task.result() is None

    play(monkeypatch, scenario)


# --- Hints ---


def test_a_hint_wakes_the_cursor_and_only_where_the_reader_knows_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join(1, 3)
        await wait_quiet()
        [cursor] = world.cursors
        for entry, hint_count in ((3, 0), (2, 0), (4, 1), (9, 2)):
            assert world.join(1, entry) is feed
            assert cursor.known_count == hint_count, "at once, not when a bookie tells"
        assert world.join(2, 0) is feed and cursor.known_count == 3
        feed.nudge()
        assert cursor.known_count == 4
        assert feed.reader_count == 6 and len(world.cursors) == 1

    play(monkeypatch, scenario)


def test_what_the_owner_tells_goes_to_the_cursor_as_long_as_that_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        owners = HandOwners()
        world.feeds = Feeds(world.fetcher, owners)
        feed = world.join(2, 3)
        await wait_quiet()
        [cursor] = world.cursors
        assert [wait[:3] for _, wait in owners.asked] == [(LOG, 2, NOTHING)]
        owners.answers.put_nowait(OpenLac(Epoch(2), EntryId(5)))
        await wait_quiet()
        assert cursor.owner_lacs == [(2, 5)]
        cursor.exit_gate.clear()
        await cursor.give(None)
        owners.answers.put_nowait(OpenLac(Epoch(2), EntryId(6)))
        await wait_quiet()
        assert cursor.is_open and cursor.owner_lacs == [(2, 5)], "it would begin reads"
        cursor.exit_gate.set()
        await wait_quiet()
        assert feed.is_over and world.feeds.statistics()["owner_calls"] == 0

    play(monkeypatch, scenario)


# --- The stop ---


def test_a_stop_lets_everybody_go_in_order_and_nothing_is_lost_or_given_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed, other = world.join(), world.join(log=8)
        let_go: list[int] = []
        taken: list[list[tuple[int, int]]] = [[] for _ in range(4)]

        async def read(reader: int) -> None:
            at = position(1, 0)
            while found := await feed.wait(at, read_clock_us() + SOON_US):
                taken[reader] += ids_of(found) or []
                at = (found[-1].epoch, EntryId(found[-1].entry_id + 1))
            assert found == ()
            let_go.append(reader)

        readers = [asyncio.create_task(read(reader)) for reader in range(4)]
        elsewhere = await world.wait(other)
        cursor = world.cursors[0]
        await cursor.give(deliver(1, 0))
        cursor.steps.put_nowait(deliver(1, 1, 2))
        await wait_for(lambda: feed.window.end == (1, 3))
        assert not world.feeds.is_stopping
        world.feeds.stop_following()  # what came in this very turn is theirs
        await wait_quiet()
        assert taken == [[(1, 0), (1, 1), (1, 2)]] * 4
        assert let_go == [0, 1, 2, 3] and all(reader.done() for reader in readers)
        assert elsewhere.result() == () and world.feeds.is_stopping
        begin_s = world.now_s
        assert await feed.wait(position(1, 3), read_clock_us() + SOON_US) == ()
        assert world.now_s == begin_s
        assert ids_of(await feed.wait(position(1, 2), 0)) == [(1, 2)]
        assert not feed.is_over, "readers may want what it brings until they are gone"

    play(monkeypatch, scenario)


def test_nobody_begins_to_wait_after_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        world.feeds.stop_following()
        begin_s = world.now_s
        late = world.join()
        assert await late.wait(position(1, 0), read_clock_us() + SOON_US) == ()
        assert world.now_s == begin_s

    play(monkeypatch, scenario)


def test_the_stop_waits_until_every_cursor_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        monkeypatch.setattr(feed_module, "IDLE_COUNT_MAX", 1)
        read, idle, ending = (world.join(log=log) for log in (1, 2, 3))
        await wait_quiet()
        for cursor in world.cursors:
            cursor.exit_gate.clear()
        world.feeds.leave(idle)
        world.feeds.leave(ending)
        await wait_quiet()
        assert world.feeds.statistics()["feeds"] == 2 and ending.is_over is False
        stopping = asyncio.create_task(world.feeds.stop())
        for cursor in world.cursors:
            await wait_quiet()
            assert not stopping.done()
            cursor.exit_gate.set()
        await wait_quiet()
        assert stopping.done() and stopping.exception() is None
        assert read.is_over and idle.is_over and ending.is_over
        assert count_timers() == 0 and world.feeds.statistics()["idle"] == 0
        assert not world.feeds._endings

    play(monkeypatch, scenario)


# --- The feeds of a process ---


def test_readers_of_a_log_share_its_feed_and_the_numbers_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        first = world.join(1, 0)
        assert world.join(1, 0) is first
        other = world.join(1, 0, log=8)
        assert (first.log_id, other.log_id) == (9, 8)
        await wait_quiet()
        await world.cursors[0].give(deliver(1, 0, 1))
        world.feeds.on_lag()
        world.feeds.leave(other)
        assert world.feeds.statistics() == {
            "feeds": 2, "idle": 1, "idle_max": feed_module.IDLE_COUNT_MAX, "readers": 2,
            "waiting": 0, "wait_timers": 0,
            "entries": 2, "entries_max_per_feed": WINDOW_COUNT_MAX, "started": 2, "lagged": 1,
            "owner_calls": 0, "owner_calls_max": CALL_COUNT_MAX, "owner_lacs": 0,
            "owner_calls_ended": 2,
        }  # fmt: skip

    play(monkeypatch, scenario)


def test_a_feed_that_nobody_follows_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        assert world.join() is feed
        await wait_quiet()
        world.feeds.leave(feed)
        assert count_timers() == 0 and world.feeds.statistics()["idle"] == 0
        begin_s = world.now_s
        world.feeds.leave(feed)
        assert world.feeds.statistics()["idle"] == 1
        await wait_clock(begin_s + LINGER_S - MOMENT_S)
        assert not feed.is_over and world.cursors[0].is_open
        await wait_clock(begin_s + LINGER_S + MOMENT_S)
        assert feed.is_over and not world.cursors[0].is_open
        numbers = world.feeds.statistics()
        assert numbers["feeds"] == numbers["idle"] == numbers["readers"] == 0
        assert not world.feeds._endings, "nothing is kept of it"
        assert world.join() is not feed and world.feeds.statistics()["started"] == 2

    play(monkeypatch, scenario)


def test_a_reader_that_comes_back_finds_the_feed_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        world.feeds.leave(feed)
        await wait_clock(world.now_s + LINGER_S - MOMENT_S)
        assert world.join() is feed
        assert count_timers() == 0 and world.feeds.statistics()["idle"] == 0
        await wait_clock(world.now_s + 2 * LINGER_S)
        assert not feed.is_over and world.feeds.statistics()["feeds"] == 1
        begin_s = world.now_s
        world.feeds.leave(feed)
        await wait_clock(begin_s + LINGER_S - MOMENT_S)
        assert not feed.is_over, "the whole while again"
        await wait_clock(begin_s + LINGER_S + MOMENT_S)
        assert feed.is_over

    play(monkeypatch, scenario)


def test_idle_feeds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "IDLE_COUNT_MAX", 2)

    async def scenario(world: FeedWorld) -> None:
        feeds = [world.join(log=log) for log in (1, 2, 3)]
        await wait_quiet()
        for feed in feeds:
            world.feeds.leave(feed)
        await wait_quiet()
        assert [feed.is_over for feed in feeds] == [False, False, True]
        assert world.feeds.statistics()["idle"] == world.feeds.statistics()["feeds"] == 2

    play(monkeypatch, scenario)


async def end(_world: FeedWorld, feed: LogFeed, cursor: Any) -> None:
    await cursor.give(None)
    assert feed.is_over


def test_a_feed_that_is_over_is_replaced_and_leaves_the_new_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        old = world.join()
        await wait_quiet()
        await end(world, old, world.cursors[0])
        new = world.join(2, 0)
        assert new is not old and world.feeds.statistics()["feeds"] == 1
        world.feeds.leave(old)
        await wait_clock(world.now_s + 2 * LINGER_S)
        assert not new.is_over and world.join() is new
        assert world.feeds.statistics()["idle"] == 0

    play(monkeypatch, scenario)


def test_a_feed_that_is_over_lingers_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: FeedWorld) -> None:
        feed = world.join()
        await wait_quiet()
        await end(world, feed, world.cursors[0])
        world.feeds.leave(feed)
        numbers = world.feeds.statistics()
        assert numbers["feeds"] == numbers["idle"] == count_timers() == 0

    play(monkeypatch, scenario)


def test_a_feed_that_ended_while_it_lingered_takes_no_new_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: FeedWorld) -> None:
        old = world.join()
        await wait_quiet()
        world.feeds.leave(old)
        await end(world, old, world.cursors[0])
        new = world.join()
        assert new is not old and count_timers() == 0
        await wait_clock(world.now_s + 2 * LINGER_S)
        assert not new.is_over and world.feeds.statistics()["feeds"] == 1

    play(monkeypatch, scenario)
