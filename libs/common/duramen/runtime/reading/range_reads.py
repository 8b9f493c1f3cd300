"""Driver of the port of reads: turns a core's effects into calls and timers, answers into inputs.

One `ReadRunner` holds one core, striped or flexible, and does one read at a time. Calls that are
still out when a read ends go on where the core may want their answers, until the runner is closed.

Not here: whom to ask and what answers prove (`core.reading.range_read` and the cores behind it).
Called by `bookies.RangeFetcher`. Source: docs/protocol/reading.md "One port".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from duramen.core.reading.range_read import (
    AskNode,
    Finish,
    ForgetCall,
    NodeAnswer,
    RangeEffect,
    RangeRead,
    WakeAt,
    WantedEntries,
)
from duramen.units import MS


class ReadRunner:
    """Carries out one core's effects.

    Args:
        ask: a call to one bookie; every way of not answering is a status.
        clock_us: the `now_us` of the core.
    """

    def __init__(
        self,
        core: RangeRead,
        ask: Callable[[AskNode], Awaitable[NodeAnswer]],
        clock_us: Callable[[], int],
    ) -> None:
        self._core = core
        self._ask = ask
        self._clock_us = clock_us
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._finished: asyncio.Future[Finish] | None = None

    async def read(self, wanted: WantedEntries) -> Finish:
        """One read. Who gives it up closes the runner.

        Raises:
            Exception: a fault of the core's, or of a call's.
        """
        assert self._finished is None, wanted
        self._finished = asyncio.get_running_loop().create_future()
        try:
            self._core.want(wanted, self._clock_us())
            self._pump()
            return await self._finished
        finally:
            self._finished = None

    def close(self) -> None:
        """Give up what is out."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._calls.values():
            task.cancel()
        self._calls.clear()

    def _pump(self) -> None:
        for effect in self._core.take_effects():
            self._carry_out(effect)

    def _carry_out(self, effect: RangeEffect) -> None:
        match effect:
            case AskNode(call_id):
                self._calls[call_id] = asyncio.create_task(self._call(effect))
            case ForgetCall(call_id):
                task = self._calls.pop(call_id, None)
                if task is not None:
                    task.cancel()
            case WakeAt(at_us):
                self._set_timer(at_us)
            case Finish():
                if self._finished is not None and not self._finished.done():
                    self._finished.set_result(effect)

    async def _call(self, effect: AskNode) -> None:
        try:
            answer = await self._ask(effect)
            if self._calls.pop(effect.call_id, None) is not None:
                self._core.on_answer(effect.call_id, answer, self._clock_us())
                self._pump()
        except Exception as error:
            self._fail(error)

    def _set_timer(self, at_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Loops count in milliseconds, and one may round down: not before its time.
        delay_ms = math.ceil(max(0, at_us - self._clock_us()) / MS) + 1
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._core.on_timer(self._clock_us())
            self._pump()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A fault is told to who waits; without anybody it is raised where it was met."""
        if self._finished is None or self._finished.done():
            raise error
        self._finished.set_exception(error)
