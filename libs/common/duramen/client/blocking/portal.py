"""An event loop in a thread, and the way into it from any other thread.

One for each `SyncClient`. A call blocks the thread that makes it and nobody else; what interrupts
the wait (Ctrl-C) cancels the call. Used by `client.blocking`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="duramen-client", daemon=True
        )
        self._thread.start()
        self._entering = threading.Lock()
        self._is_closing = False

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What the coroutine gives or raises; not to be called in the loop's own thread.

        Raises:
            TimeoutError: it took longer; it was cancelled.
            RuntimeError: the client is closed, or being closed.
        """
        # What is let in before the loop begins to end is ended by it; what came later would wait
        # for a loop that never turns again.
        with self._entering:
            if self._is_closing:
                work.close()
                raise RuntimeError("this client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        """The items one by one; a generator is closed when this one is."""
        try:
            while (step := self.call(_step(items))) is not None:
                yield step[0]
        finally:
            # A reader that is dropped after its client was closed has nothing to end any more.
            if isinstance(items, AsyncGenerator) and not self._is_closing:
                with suppress(RuntimeError, CancelledError):
                    self.call(_close(items))

    def close(self) -> None:
        """End what still runs, the loop, and its thread."""
        with self._entering:
            self._is_closing = True
            ending = asyncio.run_coroutine_threadsafe(_end_others(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _step(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _end_others() -> None:
    """Cancel every other task, as `asyncio.run` does at its end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()
