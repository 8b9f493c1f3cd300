"""What a lane of a write proxy promises each append about its fate, and to whom it keeps it.

The promise that counts most: who is told that an append is certainly not stored is told the truth,
so what is given up before it was sent is never sent. The other one: whatever happens, everybody is
told something in time. The sequencer is played by hand, the clock stands still (`lane_world`).
Source: duramen_writeproxy.lanes, docs/protocol/wire.md "Sequencer: POST /s/append".
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, HEADER_BYTES, FrameError
from duramen.wire.sequencer_calls import AppendResult, Redirect, pack_results
from duramen_writeproxy.lanes import GRACE_S, SLOW_S, Lane, Lanes
from tests.component.lane_world import (
    AGES_S,
    MOMENT_S,
    OK,
    UNCERTAIN,
    URL,
    WITHIN_S,
    Appending,
    Fate,
    HandPeers,
    LaneWorld,
    fate_of,
    one_frame_at_a_time,
    play,
)
from tests.component.still_clock import count_timers, run_still, wait_clock, wait_quiet

# --- Given up ---


@pytest.mark.parametrize("is_patient", [True, False])
def test_what_was_given_up_before_it_was_sent_is_never_sent(
    monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    """Certainly not stored: whether the caller was told so, or went away."""
    one_frame_at_a_time(monkeypatch)

    async def scenario(world: LaneWorld) -> None:
        begin_s = world.now_s
        first = world.put(b"first", within_s=AGES_S)
        await wait_quiet()
        given_up = await world.send(b"given up", log=1)
        group = world.put_together(b"g1", b"g2", log=2)
        other = world.put(b"other", log=2, within_s=AGES_S)
        await wait_clock(begin_s + WITHIN_S + GRACE_S - MOMENT_S)
        assert not given_up.done() and not group.done()
        if is_patient:
            await wait_clock(begin_s + WITHIN_S + GRACE_S + MOMENT_S)
            assert fate_of(given_up) == ("overloaded", False)
            assert [fate_of(o) for o in group.result()] == [("overloaded", False)] * 2
        else:
            given_up.cancel()
            group.cancel()
            await wait_quiet()
        assert world.lane.statistics()["held_bytes"] == len(b"first" + b"other")
        assert len(world.frames) == 1
        await world.frames[0].answer_all()
        assert world.frames[1].bodies == [b"other"]
        await world.frames[1].answer_all()
        assert fate_of(first) == fate_of(other) == OK

    play(scenario)


def test_a_frame_of_nothing_but_given_up_appends_is_not_sent() -> None:
    async def scenario(world: LaneWorld) -> None:
        tasks = [world.put(log=log) for log in (1, 1, 2)]
        await asyncio.sleep(0)
        assert world.lane.statistics()["waiting"] == 3
        for task in tasks:
            task.cancel()
        await wait_quiet()
        assert not world.frames and world.lane.statistics()["frames"] == 0

    play(scenario)


def test_bytes_of_what_was_given_up_are_free_while_its_row_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_frame_at_a_time(monkeypatch)

    async def scenario(world: LaneWorld) -> None:
        world.put(b"first", within_s=AGES_S)
        await wait_quiet()
        batch = bytes(1_000)
        alone_count = sys.getrefcount(batch)
        given_up = world.put(batch, log=2)
        await wait_clock(world.now_s + WITHIN_S + GRACE_S + MOMENT_S)
        assert fate_of(given_up) == ("overloaded", False)
        assert world.lane.statistics()["waiting"] == 1
        del given_up
        gc.collect()
        assert sys.getrefcount(batch) == alone_count

    play(scenario)


# --- The wait for an answer ---


def test_an_answer_that_never_comes_ends_as_uncertain_within_the_bound() -> None:
    async def scenario(world: LaneWorld) -> None:
        begin_s = world.now_s
        alone = world.put(log=1)
        group = world.put_together(b"a", b"b", log=2)
        longer = world.put(log=3, within_s=2 * WITHIN_S)
        await wait_quiet()
        [frame] = world.frames
        assert frame.timeout_us == pytest.approx((2 * WITHIN_S + GRACE_S) * 1e6)
        await frame.answer(1)
        await wait_clock(begin_s + WITHIN_S + GRACE_S - MOMENT_S)
        assert not alone.done() and not group.done()
        await wait_clock(begin_s + WITHIN_S + GRACE_S + MOMENT_S)
        assert fate_of(alone) == UNCERTAIN
        stored, doubt = group.result()
        assert stored == OK and fate_of(doubt) == UNCERTAIN
        assert world.lane.statistics()["held"] == 1
        # Answers that come too late change nothing, for them or for their neighbours.
        await frame.answer(0, 2, 3)
        assert fate_of(alone) == UNCERTAIN and fate_of(longer) == OK
        assert not frame.is_over

    play(scenario)


def test_an_answer_within_the_bound_counts() -> None:
    async def scenario(world: LaneWorld) -> None:
        begin_s = world.now_s
        alone = world.put(log=1)
        group = world.put_together(b"a", b"b", log=2)
        await wait_quiet()
        await wait_clock(begin_s + WITHIN_S + GRACE_S - MOMENT_S)
        await world.frames[0].answer(0, 1, 2)
        assert fate_of(alone) == OK and group.result() == [OK, OK]

    play(scenario)


def test_the_client_is_told_how_long_an_answer_may_take() -> None:
    """Its own bound ends the frame; nothing is left behind it."""

    async def scenario(world: LaneWorld) -> None:
        begin_s = world.now_s
        task = world.put()
        await wait_clock(begin_s + WITHIN_S + GRACE_S + MOMENT_S)
        assert fate_of(task) == UNCERTAIN
        assert world.frames[0].is_over and world.lane.is_idle()

    play(scenario)


# --- What became of it ---


@pytest.mark.parametrize(
    "result", [OK, Redirect(SequencerId("s2"), "http://s2"), DuramenError("log_ended", "no")]
)
def test_a_sequencers_answer_is_given_as_it_is(result: AppendResult) -> None:
    async def scenario(world: LaneWorld) -> None:
        task = await world.send()
        group = world.put_together(b"a")
        await world.frames[0].answer(0, result=result)
        await world.frames[0].end()
        await world.frames[1].answer(0, result=result)
        [grouped] = group.result()
        if isinstance(result, DuramenError):
            assert fate_of(task) == fate_of(grouped) == ("log_ended", False)
        else:
            assert task.result() == grouped == result

    play(scenario)


@pytest.mark.parametrize(
    ("error", "fate", "words"),
    [
        (None, UNCERTAIN, "ended early"),
        (NoAnswerError("the line is cut"), UNCERTAIN, "the line is cut"),
        (FrameError("what is that"), UNCERTAIN, "what is that"),
        (RuntimeError("a mistake"), UNCERTAIN, "ended early"),
        (OverloadedError("later", 7_000_000), ("overloaded", False), "no room"),
        (UnreachableError("cannot connect"), "unreachable", "cannot connect"),
    ],
)
def test_rows_without_an_answer_have_the_fate_of_their_frame(
    error: Exception | None, fate: Fate, words: str
) -> None:
    async def scenario(world: LaneWorld) -> None:
        answered = world.put(b"a", log=1)
        open_ones = [world.put(b"b", log=2), world.put(b"c", log=2)]
        group = world.put_together(b"d", b"e", log=3)
        gone = world.put(b"f", log=4)
        await wait_quiet()
        gone.cancel()
        [frame] = world.frames
        assert frame.bodies == [b"a", b"b", b"d", b"e", b"f", b"c"]
        await frame.answer(0)
        await frame.end(error)
        assert fate_of(answered) == OK
        assert [fate_of(task) for task in open_ones] == [fate] * 2
        told = [task.exception() or task.result() for task in open_ones]
        assert all(words in str(outcome) for outcome in told)
        assert told[0] is not told[1] or fate == ("overloaded", False), "tracebacks pile up"
        for outcome in group.result():
            assert outcome is not None and words in str(outcome)
            assert isinstance(outcome, UnreachableError) == (fate == "unreachable")
        if isinstance(error, OverloadedError):
            assert told[0].retry_after_ms == 7_000
        assert world.lane.is_idle()

    play(scenario)


def test_answers_may_be_cut_anywhere_and_come_together() -> None:
    async def scenario(world: LaneWorld) -> None:
        tasks = [world.put() for _ in range(3)]
        await wait_quiet()
        one, two = pack_results([(2, OK)]), pack_results([(0, OK)])
        await world.frames[0].give(*(one[i : i + 1] for i in range(len(one) - 1)))
        assert not any(task.done() for task in tasks)
        await world.frames[0].give(one[-1:] + two + pack_results([(1, OK)])[:-1])
        assert [task.done() for task in tasks] == [True, False, True]
        await world.frames[0].end()
        assert [fate_of(task) for task in tasks] == [OK, UNCERTAIN, OK]

    play(scenario)


@pytest.mark.parametrize("index", [0, 9])
def test_an_answer_to_what_is_not_open_ends_the_frame(index: int) -> None:
    """Answered before, or never asked: whatever it says next is not believed."""

    async def scenario(world: LaneWorld) -> None:
        tasks = [world.put(), world.put()]
        await wait_quiet()
        [frame] = world.frames
        await frame.answer(0)
        await frame.give(pack_results([(index, OK)]) + pack_results([(1, OK)]))
        assert frame.is_over, "and its stream with it"
        assert [fate_of(task) for task in tasks] == [OK, UNCERTAIN]
        assert f"row {index} is not open" in str(tasks[1].exception())

    play(scenario)


def test_an_answer_that_is_longer_than_any_may_be_is_not_waited_for() -> None:
    """Its head says so: nothing of it is gathered."""

    async def scenario(world: LaneWorld) -> None:
        task = await world.send()
        [frame] = world.frames
        answer = pack_results([(0, OK)])
        size_bytes = struct.pack("<I", FRAME_BYTES_HARD_MAX)
        await frame.give(answer[:28] + size_bytes + answer[32:HEADER_BYTES])
        assert frame.is_over and fate_of(task) == UNCERTAIN

    play(scenario)


def test_any_iterator_of_pieces_is_an_answer() -> None:
    """One that is no generator has nothing to close."""

    class Pieces:
        def __init__(self) -> None:
            self.left = [pack_results([(0, OK)])]

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise NoAnswerError("the line is cut")
            return self.left.pop()

    class PlainPeers(HandPeers):
        def stream(self, _url: str, _body: bytes, _timeout_us: int) -> AsyncIterator[bytes]:
            return Pieces()

    async def scenario(world: LaneWorld) -> None:
        world.lane = Lane(URL, PlainPeers())
        tasks = [world.put(), world.put()]
        await wait_quiet()
        assert [fate_of(task) for task in tasks] == [OK, UNCERTAIN]
        assert "the line is cut" in str(tasks[1].exception())

    play(scenario)


# --- The end ---


def test_a_lane_that_is_cancelled_refuses_what_was_not_sent_and_doubts_what_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_frame_at_a_time(monkeypatch)

    async def scenario(world: LaneWorld) -> None:
        sent = [world.put(b"a"), world.put(b"b", log=2)]
        await wait_quiet()
        await world.frames[0].answer(0)
        waiting, gone = await world.send(b"c"), await world.send(b"d")
        group = world.put_together(b"e", b"f")
        await wait_quiet()
        gone.cancel()
        await wait_quiet()
        world.lane.cancel()
        world.lane.cancel()
        late = [world.put(b"g"), world.put_together(b"h", b"i", log=9)]
        await wait_quiet()
        draining = ("server_draining", False)
        assert [fate_of(task) for task in sent] == [OK, UNCERTAIN]
        assert fate_of(waiting) == draining
        assert [fate_of(o) for o in group.result()] == [draining] * 2
        assert [fate_of(task) for task in late] == [draining] * 2
        assert [frame.bodies for frame in world.frames] == [[b"a", b"b"]], "nothing after the stop"
        assert world.frames[0].is_over
        assert count_timers() == 0

    play(scenario)


def test_a_slow_log_is_cancelled_too() -> None:
    async def scenario(world: LaneWorld) -> None:
        await world.send()
        await wait_clock(world.now_s + SLOW_S + MOMENT_S)
        await world.send()
        waiting = await world.send()
        world.lane.cancel()
        await wait_quiet()
        assert fate_of(waiting) == ("server_draining", False)
        assert len(world.frames) == 2

    play(scenario)


# --- All lanes ---


def play_lanes(scenario: Callable[[HandPeers, Lanes], Awaitable[None]]) -> None:
    async def work() -> None:
        peers = HandPeers()
        await scenario(peers, Lanes(peers))

    run_still(work())


async def append_to(all_lanes: Lanes, url: str) -> Appending:
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    task = asyncio.create_task(all_lanes.lane_of(url).append(LogId(1), b"x", deadline))
    await wait_quiet()
    return task


def test_each_sequencer_has_one_lane_and_a_busy_one_is_kept() -> None:
    async def scenario(peers: HandPeers, all_lanes: Lanes) -> None:
        urls = ("http://busy", "http://idle", "http://there")
        made = {url: all_lanes.lane_of(url) for url in urls}
        assert len(set(made.values())) == 3
        in_flight = await append_to(all_lanes, "http://busy")
        waiting = await append_to(all_lanes, "http://busy")
        assert peers.frames[0].url == "http://busy/s/append"
        all_lanes.keep_only({"http://there"})
        assert set(all_lanes.statistics()) == {"http://busy", "http://there"}
        assert all_lanes.statistics()["http://busy"] == made["http://busy"].statistics()
        assert all(all_lanes.lane_of(u) is made[u] for u in ("http://busy", "http://there"))
        assert all_lanes.lane_of("http://idle") is not made["http://idle"]
        await peers.frames[0].answer_all()
        await peers.frames[1].answer(0)
        assert fate_of(in_flight) == fate_of(waiting) == OK
        all_lanes.keep_only({"http://there"})
        assert "http://busy" in all_lanes.statistics(), "its frame is open"
        await peers.frames[1].end()
        all_lanes.keep_only({"http://there"})
        assert set(all_lanes.statistics()) == {"http://there"}

    play_lanes(scenario)


def test_a_lane_in_which_somebody_waits_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_peers: HandPeers, all_lanes: Lanes) -> None:
        lane = all_lanes.lane_of(URL)
        task = asyncio.create_task(lane.append(LogId(1), b"x", 2 * AGES_S))
        await asyncio.sleep(0)
        assert lane.statistics()["open_frames"] == 0 and lane.statistics()["waiting"] == 1
        all_lanes.keep_only(set())
        assert all_lanes.lane_of(URL) is lane
        all_lanes.cancel()
        await wait_quiet()
        assert fate_of(task) == ("server_draining", False)

    play_lanes(scenario)


def test_all_lanes_are_cancelled() -> None:
    async def scenario(peers: HandPeers, all_lanes: Lanes) -> None:
        tasks = [await append_to(all_lanes, url) for url in ("http://a", "http://b")]
        all_lanes.cancel()
        await wait_quiet()
        assert [fate_of(task) for task in tasks] == [UNCERTAIN] * 2
        again = [await append_to(all_lanes, url) for url in ("http://a", "http://b")]
        assert [fate_of(task) for task in again] == [("server_draining", False)] * 2
        assert len(peers.frames) == 2

    play_lanes(scenario)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_no_lane_is_opened_after_the_stop(is_dropped: bool) -> None:
    """A redirect, or a roster that changes, names a sequencer while the proxy stops."""

    async def scenario(peers: HandPeers, all_lanes: Lanes) -> None:
        if is_dropped:
            all_lanes.lane_of(URL)
        all_lanes.cancel()
        all_lanes.keep_only(set())
        late = await append_to(all_lanes, URL)
        for frame in peers.frames:
            await frame.end()
        assert fate_of(late) == ("server_draining", False) and not peers.frames

    play_lanes(scenario)
