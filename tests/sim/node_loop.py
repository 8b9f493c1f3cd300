"""An event loop of one simulated process: real asyncio tasks, in virtual time.

As much of a loop as tasks, `gather`, `timeout`, `Event` and `Lock` ask for, so that production code
that lives in an event loop runs here unchanged. Callbacks wait for the loop's next turn, and turns
end every event of the process's life: a paused process turns later, one that ended never.
Whatever is unfinished is kept until the run is over, also what waits for an answer that never
comes: were it thrown away, its `finally` clauses would run when the garbage collector pleases.

`Promise` is what nodes wait for: a future to tasks of a loop, and all that `Node.spawn` knows.
Called by `world`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from duramen.units import SECOND

if TYPE_CHECKING:
    from tests.sim.world import Node

T = TypeVar("T")

_SWEEP_COUNT: Final = 64
"""Tasks of a life are looked through for finished ones when as many came again, and so many."""


_THREAD_US: Final = 100
"""How long a thread takes."""


_CANCEL_COUNT_MAX: Final = 20
"""What ends may begin something else for that, and so on."""

_TURN_COUNT_MAX: Final = 10_000
"""Turns at one instant: who needs more waits for what only time brings."""


class Promise(Generic[T]):
    """What a coroutine of a node waits for; to a task it is a future."""

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_error", "_is_cancelled",
                 "_is_settled", "_value", "on_settled")  # fmt: skip

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_settled = False
        self._is_cancelled = False
        self._callbacks: list[tuple[NodeLoop, int, Callable[..., Any], Any]] | None = None
        self.on_settled: Callable[[], None] | None = None

    def settle(self, value: T) -> None:
        """Give the value, once; later ones are ignored."""
        if not self._is_settled:
            self._value = value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Raise in the coroutine that waits."""
        if not self._is_settled:
            self._error = error
            self._wake()

    def cancel(self, msg: object = None) -> bool:
        """Raise CancelledError in the task that waits; False: it is over."""
        if self._is_settled:
            return False
        self._is_cancelled = True
        self.fail(asyncio.CancelledError())
        return True

    def cancelled(self) -> bool:
        """Whether the task that waited was cancelled."""
        return self._is_cancelled

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        """As `gather` asks futures for it."""
        return asyncio.CancelledError()

    def done(self) -> bool:
        """Whether it is over."""
        return self._is_settled

    def result(self) -> T:
        """The value; raises what it failed with."""
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def exception(self) -> BaseException | None:
        """What it failed with."""
        return self._error

    def set_result(self, value: T) -> None:
        """`settle`, as futures call it."""
        self.settle(value)

    def set_exception(self, error: BaseException) -> None:
        """`fail`, as futures call it."""
        self.fail(error)

    def get_loop(self) -> Any:
        """The loop of whoever waits."""
        return _get_running_loop()

    def add_done_callback(self, call: Callable[..., Any], *, context: Any = None) -> None:
        """Call, as a part of the life that runs now, when it is over."""
        loop: Any = _get_running_loop()
        if self._is_settled:
            loop.call_soon(call, self, context=context)
        elif self._callbacks is None:
            self._callbacks = [(loop, loop.life, call, context)]
        else:
            self._callbacks.append((loop, loop.life, call, context))

    def remove_done_callback(self, call: Callable[..., Any]) -> int:
        """Take a callback back; gives how many there were."""
        callbacks = self._callbacks or []
        self._callbacks = [row for row in callbacks if row[2] != call]
        return len(callbacks) - len(self._callbacks)

    def _wake(self) -> None:
        self._is_settled = True
        if self.on_settled is not None:
            self.on_settled()
        callbacks, self._callbacks = self._callbacks, None
        for loop, life, call, context in callbacks or ():
            if loop.life == life:
                loop.call_soon(call, self, context=context)

    def __await__(self) -> Generator[Promise[T], None, T]:
        if not self._is_settled:
            self._asyncio_future_blocking = True
            yield self
        return self.result()


class Handle:
    """A callback that may be taken back."""

    __slots__ = ("_args", "_call", "_context")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], context: Any) -> None:
        self._call: Callable[..., Any] | None = call
        self._args = args
        self._context: contextvars.Context | None = context

    def cancel(self) -> None:
        """Never call."""
        self._call, self._args = None, ()

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return self._call is None

    def call(self) -> None:
        """Call, unless it was taken back."""
        if self._call is None:
            return
        if self._context is None:
            self._call(*self._args)
        else:
            self._context.run(self._call, *self._args)


class NodeLoop:
    """The event loop of a node; `life` is that of the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.life = node.life
        """Callbacks of another life are never called."""
        self.is_turning = False
        """Whether an event of the node is under way, whose end calls what waits."""
        self.ready: deque[Handle] = deque()
        """What waits for the next turn."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._sweep_at_count = _SWEEP_COUNT
        self._left: list[asyncio.Task[Any]] = []

    def forget(self) -> None:
        """The node has another life: nothing of the last one is called any more."""
        self.life = self._node.life
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            _close_unbegun(task.get_coro())
        self._left += left
        self._tasks.clear()
        self.ready.clear()

    def close_left(self) -> None:
        """Close what earlier lives left unfinished while a loop runs: the run is over.

        The garbage collector would, with no loop for a `finally` that asks for one. What a process
        that is gone does then concerns nobody.
        """
        self.enter(self._close_left)

    def _close_left(self) -> None:
        for task in self._left:
            with contextlib.suppress(Exception):
                _close(task.get_coro())
        self._left.clear()

    def cancel_all(self) -> None:
        """Cancel every task of this life, and let each come to its end: nothing is left to do."""
        for _ in range(_CANCEL_COUNT_MAX):
            left = [task for task in self._tasks if not task.done()]
            for task in left:
                task.cancel()
            self.turn()
            if not left:
                return
        raise AssertionError(f"{self._node.name}: tasks do not end")

    def turn(self) -> None:
        """Call what waits, and what that asks for: the end of an event."""
        turn_count = 0
        while self.ready and not self._node.is_paused:
            turn_count += 1
            assert turn_count < _TURN_COUNT_MAX, f"{self._node.name} goes round without end"
            ready, life = self.ready, self.life
            for _ in range(len(ready)):
                # What one that raises leaves behind waits: the end of the run calls it.
                ready.popleft().call()
                if self.life != life:
                    break  # it was the end of the process
        if self.ready:
            self._node.after(0, _nothing)

    def enter(self, call: Callable[[], None]) -> None:
        """Call with this loop as the running one."""
        outer = _get_running_loop()
        _set_running_loop(cast(asyncio.AbstractEventLoop, self))
        try:
            call()
        finally:
            _set_running_loop(outer)

    def run_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a task of this life; an error in it ends the run."""
        self.create_task(work).add_done_callback(_raise_error)

    def begin_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As `run_task`; gives the task, to be cancelled."""
        task = self.create_task(work)
        task.add_done_callback(_raise_error)
        return task

    # --- What asyncio asks for -------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._node.world.now_us / SECOND

    def get_debug(self) -> bool:
        """No."""
        return False

    def create_future(self) -> Any:
        """A promise."""
        return Promise()

    def create_task(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[T]:
        """A task of this life, whose first step comes with the next turn."""
        loop: Any = self
        task: asyncio.Task[T]
        task = asyncio.Task(work, loop=loop, name=name or self._node.name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)
        if len(self._tasks) >= self._sweep_at_count:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._sweep_at_count = 2 * len(self._tasks) + _SWEEP_COUNT
        return task

    def run_in_executor(self, executor: object, call: Callable[..., T], *args: Any) -> Promise[T]:
        """Call a moment later, as a thread would."""
        done: Promise[T] = Promise()

        def run() -> None:
            try:
                value = call(*args)
            except Exception as error:
                done.fail(error)
            else:
                done.settle(value)

        self._node.after(_THREAD_US, run)
        return done

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        """Call with the next turn."""
        handle = Handle(callback, args, context)
        if not self.ready and not self.is_turning:
            self._node.after(0, _nothing)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Handle:
        """Call after so many virtual seconds."""
        handle = Handle(callback, args, context)
        self._node.after(max(int(delay * SECOND), 1), handle.call)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Handle:
        """Call at a virtual instant."""
        delay_us = round(when * SECOND) - self._node.world.now_us
        handle = Handle(callback, args, context)
        self._node.after(max(delay_us, 1), handle.call)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody took is a finding like any other."""
        error = context.get("exception") or AssertionError(context["message"])
        self._node.world.at(0, _raise, error)


def _close(work: object) -> None:
    assert isinstance(work, CoroutineType)
    work.close()


def _close_unbegun(work: object) -> None:
    """Nothing of it runs, and nobody complains that nothing did; nor of what it was given."""
    if isinstance(work, CoroutineType) and getcoroutinestate(work) == CORO_CREATED:
        given = [] if work.cr_frame is None else list(work.cr_frame.f_locals.values())
        work.close()
        for inner in given:
            _close_unbegun(inner)


def _raise_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _raise(error: BaseException) -> None:
    raise error


def _nothing() -> None:
    """An event without anything but its end."""
