"""One lane of a write proxy: what is sent when, in which frame, and for what there is room.

The sequencer is played by hand and the clock stands still (`lane_world`), so that every bound is
looked at from both sides. What appends are told of their fate is in `test_lane_promises`.
Source: duramen_writeproxy.lanes, docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.errors import DuramenError
from duramen.wire.sequencer_calls import NO_OPTIONS, AppendOptions
from duramen_writeproxy import lanes
from duramen_writeproxy.lanes import GRACE_S, PIPELINED_BYTES, SLOW_S
from duramen_writeproxy.metrics import FRAMES
from tests.component.lane_world import (
    MOMENT_S,
    OK,
    URL,
    WITHIN_S,
    LaneWorld,
    every_append_its_frame,
    fate_of,
    one_frame_at_a_time,
    play,
)
from tests.component.still_clock import count_timers, wait_clock, wait_quiet

# --- Frames ---


def test_what_arrives_in_one_turn_goes_in_one_frame() -> None:
    async def scenario(world: LaneWorld) -> None:
        assert world.lane.is_idle()
        frames_before = FRAMES._value.get()
        options = AppendOptions(match_seq_num=7)
        tasks = [
            world.put(b"a", log=1),
            world.put(b"bb", log=2, within_s=4.5, options=options),
            world.put(b"ccc", log=1, within_s=0.0004),
        ]
        await asyncio.sleep(0)
        assert world.lane.statistics() == {
            "waiting": 3, "held": 3, "held_bytes": 6, "held_logs": 2,
            "open_frames": 0, "slow_logs": 0, "frames": 0,
        }  # fmt: skip
        assert not world.lane.is_idle()
        await wait_quiet()
        [frame] = world.frames
        assert frame.url == f"{URL}/s/append"
        assert [(r.log_id, bytes(r.batch), r.deadline_ms, r.options) for r in frame.rows] == [
            (1, b"a", 10_000, NO_OPTIONS),
            (2, b"bb", 4_500, options),
            (1, b"ccc", 1, NO_OPTIONS),  # there is no time-out of nothing
        ]
        assert frame.timeout_us == pytest.approx((WITHIN_S + GRACE_S) * 1e6)
        assert world.lane.statistics() == {
            "waiting": 0, "held": 3, "held_bytes": 6, "held_logs": 2,
            "open_frames": 1, "slow_logs": 0, "frames": 1,
        }  # fmt: skip
        assert FRAMES._value.get() == frames_before + 1
        assert count_timers() == 3 + 1, "one of each append, one of the client"
        await frame.answer(1)
        assert [task.done() for task in tasks] == [False, True, False], "one by one"
        assert world.lane.statistics()["held_logs"] == 1
        await frame.answer(0, 2)
        assert [fate_of(task) for task in tasks] == [OK] * 3
        assert not world.lane.is_idle(), "the frame is open until its stream ends"
        await frame.end()
        assert world.lane.is_idle() and count_timers() == 0

    play(scenario)


def test_a_turn_of_many_appends_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    class CountingLane(lanes.Lane):
        def _pump(self) -> None:
            looks.append(self._loop.time())
            super()._pump()

    monkeypatch.setattr("tests.component.lane_world.Lane", CountingLane)

    async def scenario(world: LaneWorld) -> None:
        for turn in (1, 2):
            tasks = [world.put(log=log) for log in range(100)]
            await wait_quiet()
            assert len(looks) == 2 * turn - 1
            await world.frames[-1].answer_all()
            assert len(looks) == 2 * turn, "once more when the frame was closed"
            assert all(task.done() for task in tasks)

    play(scenario)


def test_small_appends_wait_for_the_frame_before_them_and_large_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_frame_at_a_time(monkeypatch)

    async def scenario(world: LaneWorld) -> None:
        await world.send(b"first")
        await world.send(b"a", log=1)
        await world.send(b"b", log=2)
        assert len(world.frames) == 1 and world.lane.statistics()["waiting"] == 2
        assert count_timers() == 3 + 1 + 1, "one timer looks whether the frame is slow"
        await world.send(b"x" * (PIPELINED_BYTES - 3), log=3)
        assert len(world.frames) == 1
        await world.send(b"c", log=1)
        assert world.frames[1].logs == [1, 2, 3, 1]
        assert world.frames[1].bodies[-1] == b"c", "those of a log in their order"
        await world.send(b"d")
        assert len(world.frames) == 2
        await world.frames[0].answer_all()
        assert len(world.frames) == 2, "the other one is under way"
        await world.frames[1].answer_all()
        assert world.frames[2].bodies == [b"d"], "now it need not wait for any timer"

    play(scenario)


def test_a_lane_has_few_frames_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    every_append_its_frame(monkeypatch)

    async def scenario(world: LaneWorld) -> None:
        for _ in range(lanes.FRAME_COUNT_MAX + 1):
            await world.send()
        assert len(world.frames) == lanes.FRAME_COUNT_MAX == 4
        await world.frames[2].end()
        assert len(world.frames) == lanes.FRAME_COUNT_MAX + 1
        assert world.lane.statistics()["open_frames"] == lanes.FRAME_COUNT_MAX

    play(scenario)


@pytest.mark.parametrize(
    ("frame_bytes", "row_counts"), [(336, [3, 3, 2]), (335, [2] * 4), (50, [1] * 4)]
)
def test_a_frame_is_filled_to_its_bound(
    monkeypatch: pytest.MonkeyPatch, frame_bytes: int, row_counts: list[int]
) -> None:
    """100 bytes of a batch and 12 of its row; one batch alone may be larger than a frame."""
    every_append_its_frame(monkeypatch)
    monkeypatch.setattr(lanes, "FRAME_BYTES_MAX", frame_bytes)
    assert lanes._ROW_BYTES == 12

    async def scenario(world: LaneWorld) -> None:
        for number in range(8):
            world.put(bytes([number]) * 100, log=number % 2)
        await wait_quiet()
        assert [len(frame.rows) for frame in world.frames] == row_counts
        sent = [body for frame in world.frames for body in frame.bodies]
        assert sent == [bytes([number]) * 100 for number in range(sum(row_counts))]
        assert world.lane.statistics()["waiting"] == 8 - sum(row_counts)

    play(scenario)


def test_a_frame_has_so_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    every_append_its_frame(monkeypatch)
    monkeypatch.setattr(lanes, "ROW_COUNT_MAX", 3)

    async def scenario(world: LaneWorld) -> None:
        for log in (1, 1, 1, 1, 2):
            world.put(log=log)
        await wait_quiet()
        assert [frame.logs for frame in world.frames] == [[1, 2, 1], [1, 1]], "logs by turns"

    play(scenario)


# --- Slow logs ---


def test_a_frame_that_is_open_for_long_holds_nobody_up() -> None:
    async def scenario(world: LaneWorld) -> None:
        begin_s = world.now_s
        await world.send(log=1)
        await world.send(log=2)
        await wait_clock(begin_s + SLOW_S - MOMENT_S)
        assert len(world.frames) == 1 and world.lane.statistics()["slow_logs"] == 0
        await wait_clock(begin_s + SLOW_S * 1.5 + MOMENT_S)
        assert world.frames[1].logs == [2]
        assert world.lane.statistics()["slow_logs"] == 1
        assert count_timers() == 2 + 2, "nothing waits, nobody looks"

    play(scenario)


def test_a_slow_log_has_frames_of_its_own_until_its_last_overdue_row_is_answered() -> None:
    async def scenario(world: LaneWorld) -> None:
        for log in (1, 1, 2):
            world.put(log=log)
        await wait_quiet()
        assert world.frames[0].logs == [1, 2, 1]
        await wait_clock(world.now_s + SLOW_S + MOMENT_S)
        # Nothing waited and no timer ran: whoever comes next finds out.
        both(world)
        await wait_quiet()
        assert [frame.logs for frame in world.frames[1:]] == [[3], [1]]
        assert world.lane.statistics()["slow_logs"] == 2
        for frame in world.frames[1:]:
            await frame.answer_all()
        await world.frames[0].answer(0)
        both(world)
        await wait_quiet()
        assert [frame.logs for frame in world.frames[3:]] == [[3], [1]], "a row is overdue yet"
        for frame in world.frames[3:]:
            await frame.answer_all()
        assert world.lane.statistics()["slow_logs"] == 2
        await world.frames[0].answer(2)
        assert world.lane.statistics()["slow_logs"] == 1
        both(world)
        await wait_quiet()
        assert [frame.logs for frame in world.frames[5:]] == [[3, 1]]
        await world.frames[0].end()
        assert world.lane.statistics()["slow_logs"] == 0, "what is over is not overdue"

    def both(world: LaneWorld) -> None:
        world.put(log=3)
        world.put(log=1)

    play(scenario)


def test_slow_logs_wait_for_their_own_frames_only() -> None:
    async def scenario(world: LaneWorld) -> None:
        await world.send(log=1)
        await wait_clock(world.now_s + SLOW_S + MOMENT_S)
        for log in (1, 1, 2, 2):
            await world.send(log=log)
        assert [frame.logs for frame in world.frames] == [[1], [1], [2]]
        assert world.lane.statistics()["waiting"] == 2
        await world.frames[1].answer_all()
        assert world.frames[3].logs == [1]
        await world.frames[2].answer_all()
        assert world.frames[4].logs == [2]

    play(scenario)


def test_what_waits_among_the_slow_ones_waits_no_longer_than_others() -> None:
    async def scenario(world: LaneWorld) -> None:
        await world.send(log=1)
        await wait_clock(world.now_s + SLOW_S + MOMENT_S)
        begin_s = world.now_s
        await world.send(log=1)
        await world.send(log=1)
        await wait_clock(begin_s + SLOW_S - MOMENT_S)
        assert len(world.frames) == 2
        await wait_clock(begin_s + SLOW_S * 1.5 + MOMENT_S)
        assert len(world.frames) == 3, "nobody came, and nobody need come"

    play(scenario)


def test_slow_frames_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "OPEN_FRAME_COUNT_MAX", 3)

    async def scenario(world: LaneWorld) -> None:
        for _ in range(4):
            await world.send(log=1)
            await wait_clock(world.now_s + 2 * SLOW_S)
        assert len(world.frames) == 4, "one while it was quick, three since"
        await world.send(log=1)
        await wait_clock(world.now_s + 5 * SLOW_S)
        assert len(world.frames) == 4
        await world.send(log=2)
        assert world.frames[4].logs == [2], "others have their own"
        await world.frames[0].answer_all()
        assert len(world.frames) == 5
        await world.frames[1].answer_all()
        assert world.frames[5].logs == [1]
        await world.send(log=1)
        await wait_clock(world.now_s + 5 * SLOW_S)
        assert len(world.frames) == 6, "one went, one came"

    play(scenario)


def test_a_quick_frame_that_breaks_makes_no_log_quick() -> None:
    async def scenario(world: LaneWorld) -> None:
        await world.send(log=1)
        await wait_clock(world.now_s + SLOW_S + MOMENT_S)
        await world.send(log=1)
        await world.frames[1].end()
        assert world.lane.statistics()["slow_logs"] == 1, "its first row is overdue yet"

    play(scenario)


# --- Groups ---


def test_a_group_goes_in_one_frame_and_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    every_append_its_frame(monkeypatch)
    row_bytes = 1 + lanes._ROW_BYTES
    monkeypatch.setattr(lanes, "FRAME_BYTES_MAX", 4 * row_bytes)

    async def scenario(world: LaneWorld) -> None:
        group = world.put_together(b"a", b"b", b"c")
        alone = world.put(b"d", log=2)
        more = world.put_together(b"e", b"f", log=2)
        await asyncio.sleep(0)
        assert world.lane.statistics()["held_bytes"] == 6
        assert world.lane.statistics()["held"] == 3
        await wait_quiet()
        assert [frame.bodies for frame in world.frames] == [[b"a", b"b", b"c", b"d"], [b"e", b"f"]]
        options = [row.options.match_seq_num for row in world.frames[0].rows]
        assert options == [0, 1, 2, None]
        refused = DuramenError("condition_failed", "no")
        await world.frames[0].answer(2, 3)
        await world.frames[0].answer(0, result=refused)
        assert not group.done(), "until the last one is answered"
        await world.frames[0].answer(1)
        first, *others = group.result()
        assert first.code == "condition_failed" and others == [OK, OK]
        assert fate_of(alone) == OK
        await world.frames[1].answer_all()
        assert more.result() == [OK, OK]

    play(scenario)


def test_a_mistake_in_a_group_is_not_taken_for_an_answer() -> None:
    async def scenario(world: LaneWorld) -> None:
        group = world.put_together(b"a")
        await wait_quiet()
        [ticket] = next(iter(world.lane._frames)).open.values()
        ticket.future.set_exception(RuntimeError("a mistake"))
        await wait_quiet()
        assert isinstance(group.exception(), RuntimeError)

    play(scenario)


def test_a_frame_with_groups_has_so_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequencer refuses a longer frame whole, and all of it is uncertain."""
    every_append_its_frame(monkeypatch)
    monkeypatch.setattr(lanes, "ROW_COUNT_MAX", 3)

    async def scenario(world: LaneWorld) -> None:
        groups = [world.put_together(b"a", b"b", log=log) for log in (1, 2)]
        await wait_quiet()
        rows = [len(frame.rows) for frame in world.frames]
        for frame in world.frames:
            await frame.answer_all()
        assert all(group.done() for group in groups)
        assert rows == [2, 2]

    play(scenario)


# --- Room ---


def test_what_finds_no_room_is_refused_and_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LANE_BYTES_MAX", 100)

    async def scenario(world: LaneWorld) -> None:
        greedy = await world.send(b"x" * 40, log=1)  # 60 are free: a log has a third of that
        over = await world.send(b"x" * 61, log=2)
        together = world.put_together(b"x" * 30, b"x" * 31, log=2)
        more = await world.send(log=1)
        assert fate_of(over) == fate_of(together) == ("overloaded", False)
        assert fate_of(more) == ("window_full", False)
        assert not greedy.done()
        first = await world.send(b"x" * 10, log=2)  # 50 are free: 16 of them for each
        assert fate_of(await world.send(b"x" * 7, log=2)) == ("window_full", False)
        assert not (await world.send(b"x" * 6, log=2)).done()
        exact = await world.send(b"x" * 44, log=3)
        assert not exact.done() and not first.done()
        assert world.lane.statistics()["held_bytes"] == 100
        assert fate_of(await world.send(log=4)) == ("overloaded", False)
        assert world.lane.statistics()["held"] == 4

    play(scenario)
