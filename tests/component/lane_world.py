"""A lane of a write proxy before a sequencer that the test plays by hand.

`HandPeers` takes the frames that a lane sends and gives for each what the test says, piece by
piece; like the real client it ends a frame that was not answered in its time. All of it runs under
a clock that stands still (`still_clock`). Used by `test_lanes` and `test_lane_promises`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.http_client import NoAnswerError, UnreachableError
from duramen.wire.sequencer_calls import (
    NO_OPTIONS,
    Append,
    AppendedBatch,
    AppendOptions,
    AppendResult,
    LogMark,
    pack_results,
    parse_appends,
)
from duramen_writeproxy import lanes
from duramen_writeproxy.lanes import Lane
from tests.component.still_clock import run_still, wait_quiet

MARK: Final = LogMark(Dlsn(Epoch(1), EntryId(1), 0), 1, 5)
OK: Final = AppendedBatch(MARK, 1, MARK)
URL: Final = "http://s"

WITHIN_S: Final = 10.0
"""The deadline of an append that says nothing else."""

AGES_S: Final = 3_600.0
MOMENT_S: Final = 0.001

UNCERTAIN: Final = ("append_uncertain", True)

Fate = Any
"""A result that is no refusal; a refusal's code and whether it is uncertain; or "unreachable"."""

Appending = Any
"""A task that appends. Many a scenario only wants that it is there."""


def fate_of(outcome: object) -> Fate:
    """What an append was told, by its task or within a group."""
    if isinstance(outcome, asyncio.Task):
        assert outcome.done()
        outcome = outcome.exception() or outcome.result()
    if isinstance(outcome, UnreachableError):
        return "unreachable"
    return (outcome.code, outcome.uncertain) if isinstance(outcome, DuramenError) else outcome


def one_frame_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a frame is open whatever is small waits, however long that takes."""
    monkeypatch.setattr(lanes, "SLOW_S", AGES_S)


def every_append_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the sake of larger frames, and no frame is ever slow."""
    monkeypatch.setattr(lanes, "SLOW_S", AGES_S)
    monkeypatch.setattr(lanes, "PIPELINED_BYTES", 0)


class HandFrame:
    """One frame that was sent, and its answer so far."""

    def __init__(self, url: str, body: bytes, timeout_us: int) -> None:
        self.url = url
        self.timeout_us = timeout_us
        self.rows: list[Append] = parse_appends(body)
        self.is_over = False
        self.steps: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(row.batch) for row in self.rows]

    @property
    def logs(self) -> list[LogId]:
        return [row.log_id for row in self.rows]

    async def give(self, *pieces: bytes) -> None:
        """Give pieces of the answer; returns when all has happened that follows from them."""
        for piece in pieces:
            self.steps.put_nowait(piece)
        await wait_quiet()

    async def answer(self, *indexes: int, result: AppendResult = OK) -> None:
        """Answer rows in one frame."""
        await self.give(pack_results([(index, result) for index in indexes]))

    async def answer_all(self, result: AppendResult = OK) -> None:
        """Answer all rows, and end."""
        await self.answer(*range(len(self.rows)), result=result)
        await self.end()

    async def end(self, error: Exception | None = None) -> None:
        """End the answer, properly or not."""
        self.steps.put_nowait(error)
        await wait_quiet()


class HandPeers:
    """The port of a lane."""

    def __init__(self) -> None:
        self.frames: list[HandFrame] = []
        self._streams: list[AsyncIterator[bytes]] = []
        """Kept, so that a stream ends when the lane closes it and not when it is collected."""

    def stream(self, url: str, body: bytes, timeout_us: int) -> AsyncIterator[bytes]:
        stream = self._answer(HandFrame(url, body, timeout_us))
        self._streams.append(stream)
        return stream

    async def _answer(self, frame: HandFrame) -> AsyncIterator[bytes]:
        self.frames.append(frame)
        until_s = asyncio.get_running_loop().time() + frame.timeout_us / 1e6
        try:
            while True:
                try:
                    async with asyncio.timeout_at(until_s):
                        step = await frame.steps.get()
                except TimeoutError:
                    raise NoAnswerError("no answer in time") from None
                if step is None:
                    return
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            frame.is_over = True


class LaneWorld:
    """A lane, its peers, and the tasks of who appends."""

    def __init__(self) -> None:
        self.peers = HandPeers()
        self.lane = Lane(URL, self.peers)

    @property
    def frames(self) -> list[HandFrame]:
        return self.peers.frames

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def put(
        self,
        batch: bytes = b"x",
        *,
        log: int = 1,
        within_s: float = WITHIN_S,
        options: AppendOptions = NO_OPTIONS,
    ) -> Appending:
        """Begin to append; nothing has happened yet when this returns."""
        appending = self.lane.append(LogId(log), batch, self.now_s + within_s, options)
        return asyncio.create_task(appending)

    def put_together(self, *batches: bytes, log: int = 1, within_s: float = WITHIN_S) -> Appending:
        """Begin to append a group, each batch with a condition of its own."""
        rows = [(batch, AppendOptions(match_seq_num=i)) for i, batch in enumerate(batches)]
        appending = self.lane.append_together(LogId(log), rows, self.now_s + within_s)
        return asyncio.create_task(appending)

    async def send(self, batch: bytes = b"x", *, log: int = 1) -> Appending:
        """Append, and wait until all has happened that follows."""
        task = self.put(batch, log=log)
        await wait_quiet()
        return task


def play(scenario: Callable[[LaneWorld], Awaitable[None]]) -> None:
    """Run a scenario; at its end nothing is left in the lane, and its counts say so."""

    async def work() -> None:
        world = LaneWorld()
        await scenario(world)
        for frame in world.frames:
            if not frame.is_over:
                await frame.end()
        await wait_quiet()
        left = world.lane.statistics()
        left.pop("frames")
        assert not any(left.values()), left
        assert world.lane.is_idle()

    run_still(work())
