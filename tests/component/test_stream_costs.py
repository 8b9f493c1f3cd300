"""What a frame on a standing stream costs both ends, in counts: a machine's speed is not in them.

Under a standing clock, with a handler that answers at once.
Source: docs/protocol/standing-streams.md "What a frame costs".
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from duramen.units import KIB
from duramen.wire.standing.messages import HEAD_BYTES
from tests.component.still_clock import run_still
from tests.component.stream_pair import StreamPair

ADD, APPEND = 1, 2
REQUEST_COUNT = 100
BODY = bytes(300)
HTTP2_HEAD_BYTES = 9
TURN_COUNT = 6
"""Turns of the loop in which a request is handed over, answered and taken."""


class LoopCounts:
    """What was asked of the running loop since this was made, by both ends together."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        loop: Any = asyncio.get_running_loop()
        for name in ("call_soon", "call_at", "create_future"):
            setattr(loop, name, self._count(name, getattr(loop, name)))
        loop.set_task_factory(self._make_task)

    def _count(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.counts[name] += 1
            return call(*args, **named)

        return counted

    def _make_task(self, loop: Any, work: Any, **named: Any) -> asyncio.Task[Any]:
        self.counts["task"] += 1
        return asyncio.Task(work, loop=loop, **named)


class Asker:
    """Asks one request after the other, and carries what is written with each turn of the loop."""

    def __init__(self, pair: StreamPair) -> None:
        self._pair = pair
        self._call_soon: Callable[..., Any] = asyncio.get_running_loop().call_soon

    async def ask(self, code: int) -> bytes:
        """The whole answer."""
        call = self._pair.caller.ask(code, BODY)
        self._carry(TURN_COUNT)
        deadline_s = asyncio.get_running_loop().time() + 1
        whole, status = b"", None
        while status is None:
            status, piece = await call.take(deadline_s)
            whole += piece
        call.give_up()
        return whole

    def _carry(self, turn_count: int) -> None:
        self._pair.carry_all()
        if turn_count:
            self._call_soon(self._carry, turn_count - 1)


@pytest.mark.parametrize("code", [ADD, APPEND])
def test_a_frame_costs_one_write_each_way_and_one_task(code: int) -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        asker = Asker(pair)
        answer_bytes = len(await asker.ask(code))  # what is made once is not counted
        writes = pair.there.write_count, pair.back.write_count
        written = pair.there.written_bytes, pair.back.written_bytes
        loop = LoopCounts()
        for _ in range(REQUEST_COUNT):
            await asker.ask(code)
        assert pair.there.write_count - writes[0] == REQUEST_COUNT
        assert pair.back.write_count - writes[1] == REQUEST_COUNT
        head_bytes = HTTP2_HEAD_BYTES + HEAD_BYTES
        # An append is answered in two pieces and an end, which leave together in a turn of theirs.
        part_count = 1 if code == ADD else 3
        asked_bytes = pair.there.written_bytes - written[0]
        answered_bytes = pair.back.written_bytes - written[1]
        assert asked_bytes == REQUEST_COUNT * (head_bytes + len(BODY))
        assert answered_bytes == REQUEST_COUNT * (part_count * head_bytes + answer_bytes)
        # The handler's task begins and ends, and its caller is woken.
        turns = 3 if code == ADD else 4
        one_each = dict.fromkeys(("task", "create_future", "call_at"), REQUEST_COUNT)
        assert loop.counts == {**one_each, "call_soon": turns * REQUEST_COUNT}

    run_still(scenario())


def test_a_frame_leaves_nothing_behind_and_holds_little() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        asker = Asker(pair)
        await asker.ask(ADD)
        tracemalloc.start()
        try:
            await asker.ask(ADD)
            pair.begun.clear()
            gc.collect()
            before_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await asker.ask(ADD)
            _, most_bytes = tracemalloc.get_traced_memory()
            for _ in range(10 * REQUEST_COUNT):
                await asker.ask(ADD)
            pair.begun.clear()
            gc.collect()
            after_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most_bytes - before_bytes < 8 * KIB, "both ends with three copies of the body"
        assert after_bytes - before_bytes < 8 * KIB, "less than 9 bytes of each request"

    run_still(scenario())
