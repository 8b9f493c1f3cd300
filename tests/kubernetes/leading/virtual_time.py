"""An event loop in virtual time: what waits costs nothing, and clocks stand still in between.

`run` gives the coroutine the loop's own clock. Used by the tests of this folder.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Does not wait: the time that it should have waited is over at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(work: Callable[[Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """Run what `work` makes of the loop's clock, to its end."""
    loop = _VirtualLoop()
    failures: list[Mapping[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    try:
        done = loop.run_until_complete(work(loop.time))
    finally:
        loop.close()
    assert not failures, failures
    return done
