"""World: virtual time, one seeded source of randomness, the trace and its digest.

A heap of (time, number, action) is all that runs. Nothing here iterates over a set, hashes a text
with Python's `hash` or looks at a clock, so one seed gives one run, whatever PYTHONHASHSEED says.
`Node` is a process of the simulated cluster: it can be down (its events vanish) or paused (they
wait). `Node.spawn` runs a production coroutine that waits for promises and sleeps, and nothing
else; what lives in an event loop has one (`Node.loop`, of `node_loop`).

Called by every module of the simulator. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import zlib
from asyncio import _get_running_loop, _set_running_loop
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar, cast

from tests.sim.node_loop import NodeLoop, Promise

T = TypeVar("T")

VALIDATE_EVERY: Final = 61
"""Every so many events of nodes the node's cores are validated: a prime, to meet all kinds."""

LAST_EVENTS: Final = 40
Note = tuple[int, str, str, tuple[Any, ...]]


class World:
    """Time, randomness, counters and trace of one run.

    Args:
        seed: decides everything.
        with_trace: keep every event instead of the last 40, and validate cores after each.
    """

    def __init__(self, seed: int, *, with_trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.event_count = 0
        self.node_event_count = 0
        self.counts: Counter[str] = Counter()
        self.with_trace = with_trace
        self.story: deque[Note] = deque(maxlen=None if with_trace else LAST_EVENTS)
        self.unfinished: set[object] = set()
        """Coroutines of nodes, kept alive as `node_loop` keeps tasks; nobody goes through them."""
        self._digest = 0
        self._number = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def digest(self) -> str:
        """Of every event so far, and of the state of the randomness."""
        seen = zlib.crc32(repr(self.rng.getstate()[1]).encode(), self._digest)
        return f"{seen:08x}-{self.event_count}-{self.now_us}"

    def at(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do something after `delay_us` ≥ 0."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, action, args))

    def advance(self, until_us: int) -> None:
        """Play every event up to an instant; time stands there afterwards."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_us:
            self.now_us, _, action, args = pop(heap)
            self.event_count += 1
            action(*args)
        self.now_us = until_us

    def note(self, who: str, what: str, *details: Any) -> None:
        """Add an event to the trace; details are numbers and texts."""
        self._digest = zlib.crc32(f"{self.now_us} {who} {what} {details}".encode(), self._digest)
        self.story.append((self.now_us, who, what, details))

    def chance(self, ratio: float) -> bool:
        """True in `ratio` of all cases; draws nothing for 0."""
        return ratio > 0 and self.rng.random() < ratio

    def between(self, least_us: int, most_us: int) -> int:
        """A duration in [least, most]."""
        return least_us + int(self.rng.random() * (most_us - least_us))

    def format_story(self) -> list[str]:
        """The kept events in fixed columns: time, who, what, details."""
        return [
            f"{now_us / 1e6:12.6f}  {who:<6} {what:<22} {' '.join(map(str, details))}".rstrip()
            for now_us, who, what, details in self.story
        ]


class Node:
    """A simulated process: `run` is the only way in."""

    def __init__(self, world: World, name: str, region: str) -> None:
        self.world = world
        self.name = name
        self.region = region
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.loop = NodeLoop(self)
        self._inbox: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()

    def run(self, life: int, action: Callable[..., None], *args: Any) -> None:
        """An event for life number `life`: now, after the pause, or never."""
        if life != self.life or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((life, action, args))
            return
        # In the loop: production code begins tasks and sets timers wherever it is called.
        loop: Any = self.loop
        outer, is_inner = _get_running_loop(), loop.is_turning
        _set_running_loop(loop)
        loop.is_turning = True
        try:
            action(*args)
            if loop.ready and not is_inner:
                loop.turn()
        finally:
            loop.is_turning = is_inner
            _set_running_loop(outer)
        world = self.world
        world.node_event_count += 1
        if (world.with_trace or world.node_event_count % VALIDATE_EVERY == 0) and self.is_up:
            self.validate()

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """An event of this life later on."""
        world = self.world  # as `World.at`, without a call: half of all events come from here
        world._number += 1
        event = (world.now_us + delay_us, world._number, self.run, (self.life, action, *args))
        heapq.heappush(world._heap, event)

    @property
    def is_listening(self) -> bool:
        """Whether others can reach it: its port is open."""
        return self.is_up

    def start(self) -> None:
        """Start the process, if it is not up."""
        raise AssertionError(f"{self.name} is never started anew")

    def begin_life(self) -> None:
        """The process starts."""
        self.life += 1
        self.is_up = True
        self.is_paused = False
        self._inbox.clear()
        self.loop.forget()

    def end_life(self) -> None:
        """The process is gone; nothing of it happens any more."""
        self.life += 1
        self.is_up = False
        self.is_paused = False
        self._inbox.clear()
        self.loop.forget()

    def pause(self) -> None:
        """Stop as by SIGSTOP: what comes waits."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on with everything that came meanwhile."""
        self.is_paused = False
        while self._inbox and not self.is_paused:
            life, action, args = self._inbox.popleft()
            self.run(life, action, *args)

    def serve(self, kind: str, body: Any, reply: Callable[[Any], None]) -> None:
        """Answer a request of another process."""
        raise AssertionError(f"{self.name} serves no {kind}")

    def validate(self) -> None:
        """Assert the invariants of the cores inside."""

    def pass_time(self, delay_us: int) -> Promise[None]:
        """For a coroutine of this life to await."""
        over: Promise[None] = Promise()
        self.after(delay_us, over.settle, None)
        return over

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        on_done: Callable[[T], None] | None = None,
    ) -> None:
        """Run a production coroutine as part of this life."""
        _Task(self, work, on_done).step()


class _Task(Generic[T]):
    """A coroutine and the node that it lives in."""

    def __init__(
        self, node: Node, work: Coroutine[Any, Any, T], on_done: Callable[[T], None] | None
    ) -> None:
        self._node = node
        self._life = node.life
        self._loop = cast(asyncio.AbstractEventLoop, node.loop)
        self._work = work
        self._on_done = on_done

    def step(self) -> None:
        outer = _get_running_loop()
        _set_running_loop(self._loop)
        try:
            promise = self._work.send(None)
        except StopIteration as stop:
            self._node.world.unfinished.discard(self)
            if self._on_done is not None:
                self._on_done(stop.value)
            return
        finally:
            _set_running_loop(outer)
        assert isinstance(promise, Promise), promise
        self._node.world.unfinished.add(self)
        promise.on_settled = self._resume

    def _resume(self) -> None:
        self._node.run(self._life, self.step)
