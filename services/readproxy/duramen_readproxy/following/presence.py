"""Work for a client ends when the client goes.

Whoever waits may hang up: then the task that makes the answer is cancelled, and what it waited
for is freed. One `receive` waits for that, from the request to the end of its answer: granian takes
one that was cancelled for a client that has gone, now and then.

Called by the REST routes and `streams`. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive


class Presence:
    """Cancels the task that made it once the client has gone; `end` stops that.

    Granian's `receive` gives a future, so that waiting takes no task of its own.
    """

    __slots__ = ("_message", "_receive", "_task", "is_gone")

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.is_gone = False
        self._task = task
        self._receive = receive
        self._message: asyncio.Future[Message] | None = None
        self._listen()

    def take_back(self) -> None:
        """The cancellation has done its work: the task goes on, to answer nobody."""
        self._task.uncancel()

    def end(self) -> None:
        """Wait for the client's going no more."""
        if self._message is not None:
            self._message.remove_done_callback(self._on_message)
            self._message.cancel()
            self._message = None

    def _listen(self) -> None:
        self._message = asyncio.ensure_future(self._receive())
        self._message.add_done_callback(self._on_message)

    def _on_message(self, message: asyncio.Future[Message]) -> None:
        if message.cancelled() or self._message is None:
            return
        if message.exception() is None and message.result()["type"] != "http.disconnect":
            self._listen()
            return
        self.is_gone = True
        self._message = None
        self._task.cancel()
