"""Says what a command waits for, once it has waited for a second: nobody sits before a silent line.

A `WaitNotice` listens to the calls of one client (`rest_client.CallObserver`). Its clock runs while
a call is open or is being repeated; an answer stops it. What is told is told once for each wait,
with the last reason: a connection that is refused is heard of long before the command's own time
limit. `report_waiting` is the same for a wait that is no call.

Called by the commands, by way of `cli.command.open_client`.
Source: docs/cli.md "Waiting, and ending early".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from duramen.errors import DuramenError
from duramen.runtime.http_client import UnreachableError

TOLD_AFTER_S: Final = 1.0


class WaitNotice:
    """Tells of waits for one server.

    Args:
        what: is waited for, as a person names it.
        say: prints a line for people.
    """

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what = what
        self._say = say
        self._open_count = 0
        self._reason = _NO_ANSWER
        self._timer: asyncio.TimerHandle | None = None

    def on_asked(self, grace_s: float) -> None:
        """A call begins; `grace_s`: for how long its answer may be late because it was told to."""
        self._open_count += 1
        self._start(grace_s)

    def on_answered(self) -> None:
        """A call was answered: whoever waited knows enough."""
        self._open_count -= 1
        self.stop()
        if self._open_count:
            self._start(0.0)

    def on_failed(self, error: Exception) -> None:
        """A call was not answered, or refused; it may be repeated, and the wait goes on."""
        self._open_count -= 1
        self._reason = _format(error)

    def stop(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._reason = None, _NO_ANSWER

    def _start(self, grace_s: float) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TOLD_AFTER_S + grace_s, self._report)

    def _report(self) -> None:
        # The timer stays: it has fired, and the same wait is not told twice.
        self._say(f"waiting for {self._what}: {self._reason}")


@asynccontextmanager
async def report_waiting(what: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Tells of the block if it takes long."""
    notice = WaitNotice(what, say)
    notice.on_asked(0.0)
    try:
        yield
    finally:
        notice.stop()


_NO_ANSWER: Final = "no answer yet"


def _format(error: Exception) -> str:
    match error:
        case UnreachableError():
            return "the connection is refused, or nothing is there"
        case DuramenError():
            return error.code
        case _:
            return str(error)
