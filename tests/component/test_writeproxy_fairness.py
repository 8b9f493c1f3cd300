"""One log's share of the way from a write proxy to a sequencer: it never takes that of the others.

A log whose sequencer does not answer, or that has more to send than goes through, is told so by
itself; what other logs append is neither refused nor sent behind it. Order of answers and contents
of frames are looked at, no times. The neighbours are `writeproxy_world`'s.
Source: duramen_writeproxy.lanes, docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.http_client import NoAnswerError
from duramen.units import KIB
from duramen.wire.sequencer_calls import Append, AppendResult, parse_appends
from duramen_writeproxy import lanes
from duramen_writeproxy.lanes import Lane
from tests.component.writeproxy_world import RECORDS, World, lane_of, run
from tests.waiting import wait_for

GREEDY = LogId(5)
OTHER = RECORDS.replace("/l/", "/m/")
LANE_BYTES = 1_000 * KIB
BATCH = b"x" * (20 * KIB)


def test_a_log_whose_window_is_full_refuses_only_its_own_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(lanes, "LANE_BYTES_MAX", LANE_BYTES)
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            if append.log_id == GREEDY:
                await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        held: list[asyncio.Task[Any]] = []
        refused: list[asyncio.Task[Any]] = []
        for _ in range(40):
            # Each one is refused, or is in a frame that waits, before the next one comes.
            row_count = len(world.rows)
            task = asyncio.create_task(world.append(BATCH))
            await wait_for(lambda: task.done() or len(world.rows) > row_count)  # noqa: B023
            (refused if task.done() else held).append(task)
        assert {(t.result()[0], t.result()[1]["code"]) for t in refused} == {(503, "window_full")}
        assert all(task.result()[1]["retryable"] for task in refused)
        assert 8 <= len(held) <= 12, "a quarter of the lane, and no more"
        for _ in range(10):
            assert (await world.append(BATCH, OTHER))[0] == 200
        assert not any(task.done() for task in held)
        gate.set()
        assert {status for status, _ in await asyncio.gather(*held)} == {200}
        await wait_for(lambda: lane_of(world)["held_bytes"] == lane_of(world)["held_logs"] == 0)
        assert (await world.append(BATCH))[0] == 200

    run(scenario)


class SilentPeers:
    """Takes frames, keeps what they carry, and answers nothing until told to break off."""

    def __init__(self) -> None:
        self.frames: list[list[LogId]] = []
        self.end = asyncio.Event()

    async def stream(self, _url: str, body: bytes, _timeout_us: int) -> AsyncIterator[bytes]:
        self.frames.append([append.log_id for append in parse_appends(body)])
        await self.end.wait()
        raise NoAnswerError("the test is over")
        yield b""


def play(scenario: Any) -> None:
    async def work() -> None:
        peers = SilentPeers()
        lane = Lane("http://s", peers)
        tasks: list[asyncio.Task[Any]] = []

        def put(log_id: int, size_bytes: int = len(BATCH)) -> asyncio.Task[Any]:
            deadline = asyncio.get_running_loop().time() + 30
            task = asyncio.create_task(lane.append(LogId(log_id), b"x" * size_bytes, deadline))
            tasks.append(task)
            return task

        async with asyncio.timeout(30):
            await scenario(lane, peers, put)
            peers.end.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            await wait_for(lane.is_idle)
        assert lane.statistics()["held_logs"] == lane.statistics()["waiting"] == 0

    asyncio.run(work())


def test_logs_fill_a_frame_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes last, of a log with little to send, is in the frame that is sent next."""
    monkeypatch.setattr(lanes, "FRAME_BYTES_MAX", 3 * (len(BATCH) + 100))
    monkeypatch.setattr(lanes, "SLOW_S", 30)

    async def scenario(lane: Lane, peers: SilentPeers, put: Any) -> None:
        for _ in range(12):
            put(1)
        put(2)
        put(3)
        await wait_for(lambda: len(peers.frames) == lanes.FRAME_COUNT_MAX)
        assert peers.frames[0] == [1, 2, 3]
        assert peers.frames[1:] == [[1, 1, 1]] * 3

    monkeypatch.setattr(lanes, "PIPELINED_BYTES", 0)
    play(scenario)


def test_however_many_logs_are_greedy_there_is_room_for_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LANE_BYTES_MAX", LANE_BYTES)

    async def scenario(lane: Lane, _peers: SilentPeers, put: Any) -> None:
        for _ in range(30):
            for log_id in range(1, 6):
                put(log_id)
        await wait_for(lambda: lane.statistics()["held_logs"] == 5)
        assert lane.statistics()["held"] < 50, "some were refused"
        late = put(9)
        await wait_for(lambda: lane.statistics()["held_logs"] == 6)
        assert not late.done()
        over = put(8, LANE_BYTES)
        with pytest.raises(DuramenError) as caught:
            await over
        assert caught.value.code == "overloaded", "it fits nowhere, however fair"

    play(scenario)
