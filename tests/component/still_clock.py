"""An event loop whose clock stands still while anything can run, and then jumps to the next timer.

A test of seconds takes milliseconds, and of two instants it can say which came first, whatever the
machine does meanwhile. A scenario that waits for something that never comes fails at once, because
nothing is left that could wake it. Only for classes whose neighbours are all faked: threads and
sockets know nothing of this clock.

Used by the component tests of `duramen_writeproxy.lanes`, `duramen_readproxy.following`,
`duramen.runtime.reading` and `duramen.runtime.rest`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final

BEGIN_S: Final = 1_000.0
"""Where the clock begins: a deadline that was taken for a duration is not met by chance."""

_MOMENT_S: Final = 1e-6

_TURN_COUNT_MAX: Final = 50_000
"""Turns of the loop at one instant: a second or so, and far more than any scenario has."""


class StillLoop(asyncio.SelectorEventLoop):
    """See the module."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self.now_s = BEGIN_S
        self.faults: list[BaseException] = []
        """What callbacks of the loop raised, which nobody else is told."""
        super().__init__(_Selector(self))
        self.set_exception_handler(_keep_fault)

    def time(self) -> float:
        """The standing clock, in seconds."""
        return self.now_s

    @property
    def timer_count(self) -> int:
        """Timers that are set and not cancelled."""
        return sum(not timer.cancelled() for timer in self._scheduled)


def _keep_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if "handle" in context and isinstance(loop, StillLoop):
        loop.faults.append(context["exception"])


class _Selector(selectors.DefaultSelector):
    """Asked to wait it does not: it moves the clock to the end of the wait."""

    def __init__(self, loop: StillLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turn_count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        self._turn_count += 1
        if not events and timeout != 0:
            assert timeout is not None, "everybody waits, and nothing is left that could wake them"
            self._loop.now_s += timeout
            self._turn_count = 0
        if self._turn_count > _TURN_COUNT_MAX:
            self._turn_count = 0
            raise AssertionError("somebody turns in a circle, and the clock cannot go on")
        return events


def run_still(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario under a standing clock; a callback that raised fails it."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(scenario)
        loop = runner.get_loop()
        assert isinstance(loop, StillLoop)
        assert not loop.faults, loop.faults


def count_timers() -> int:
    """Timers of the running loop; who cleans up leaves none."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    return loop.timer_count


def read_clock_us() -> int:
    """What the product's `read_clock_us` is to say here."""
    return round(asyncio.get_running_loop().time() * 1_000_000)


async def wait_clock(at_s: float) -> None:
    """Return at that time, after all that happened before it."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    loop.call_at(at_s, waiter.set_result, None)
    await waiter


async def wait_quiet() -> None:
    """Return once all has happened that can happen now: everybody waits for a timer or for me."""
    await wait_clock(asyncio.get_running_loop().time() + _MOMENT_S)
