"""Network: requests and answers between nodes, late, lost, doubled, out of order, or cut off.

A request ends for its caller as the production lanes see it: with an answer, OVERLOADED (refused,
nothing was done), UNREACHABLE (no connection, certainly not processed) or TIMEOUT (perhaps
processed). Links are directed, so a partition may be one-way; a clogged link delivers everything
late. Equal delays do not exist, so requests overtake one another as concurrent HTTP/2 streams do.

Called by `peers` and `processes`; its faults are set by `nemesis`. Source: docs/testing.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duramen.core.status import BookieStatus
from duramen.units import MS, SECOND
from tests.sim.options import Options
from tests.sim.world import Node, World

STORE: Final = "zk"
"""Name of the metadata store at the end of a link."""

MEMBERS: Final = "members"
"""The call of gossip: so many that a trace is without them."""

_SWEEP_US: Final = 25 * MS
_CONNECT_US: Final = 500 * MS
"""How long a connection is tried."""

OnAnswer = Callable[[BookieStatus, Any], None]


class Refusal(NamedTuple):
    """An answer: the peer has no room, and nothing was done."""

    retry_after_us: int


class Call:
    """One request that waits for its answer; a stream's is answered in parts."""

    __slots__ = ("_network", "deadline_us", "is_done", "is_stream", "life", "on_answer", "peer",
                 "source")  # fmt: skip

    def __init__(
        self, network: Network, source: Node, peer: Node, on_answer: OnAnswer, deadline_us: int
    ) -> None:
        self.source = source
        self.life = source.life
        self.peer = peer
        self.on_answer = on_answer
        self.deadline_us = deadline_us
        self.is_done = False
        self.is_stream = False
        self._network = network

    def reply(self, value: Any) -> None:
        """Send the answer, or a part of a stream's, on its way back."""
        self._network.send_answer(self, value)

    def end(self, status: BookieStatus, value: Any) -> None:
        """The answer, or its absence, has come to the caller."""
        if self.is_done:
            if value is None or not self._network.has_late_answers or self.is_stream:
                return
            self._network.world.counts["late answer"] += 1
        self.is_done = not self.is_stream or status is not BookieStatus.OK
        self.source.run(self.life, self.on_answer, status, value)


class Network:
    """All links."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.loss_ratio = options.loss_ratio
        self.duplicate_ratio = options.duplicate_ratio
        self.slow_ratio = options.slow_ratio
        self.has_late_answers = options.has_late_answers
        self.on_pull: Callable[[Any], None] = _nothing
        """Told of every pull that arrives."""
        self._cross_region_us = options.cross_region_us
        self._cuts: dict[tuple[str, str], int] = {}
        self._clogs: dict[tuple[str, str], int] = {}
        self._deadlines: dict[int, deque[Call]] = {}
        world.at(_SWEEP_US, self._sweep)

    # --- Faults ----------------------------------------------------------------------------------

    def cut(self, source: str, target: str, until_us: int) -> None:
        """Nothing goes from `source` to `target` until then."""
        self._cuts[source, target] = max(until_us, self._cuts.get((source, target), 0))

    def mend(self, source: str, target: str) -> bool:
        """End the cut from `source` to `target`; False: there is none now."""
        return self._cuts.pop((source, target), 0) > self.world.now_us

    def clog(self, source: str, target: str, until_us: int) -> None:
        """What goes from `source` to `target` arrives then at the earliest."""
        self._clogs[source, target] = until_us

    def heal(self) -> None:
        """A clean network from now on."""
        self._cuts.clear()
        self._clogs.clear()
        self.loss_ratio = self.duplicate_ratio = self.slow_ratio = 0.0

    def is_cut(self, source: str, target: str) -> bool:
        """Whether the link is cut now."""
        until_us = self._cuts.get((source, target))
        if until_us is None:
            return False
        if until_us <= self.world.now_us:
            del self._cuts[source, target]  # most of the time there are none at all
            return False
        return True

    # --- Traffic ---------------------------------------------------------------------------------

    def call(  # noqa: PLR0917 - the hottest call of all: keywords cost
        self,
        source: Node,
        peer: Node,
        kind: str,
        body: Any,
        timeout_us: int,
        on_answer: OnAnswer,
        is_stream: bool = False,
    ) -> Call:
        """Send a request; `on_answer(status, value)` follows once, for a stream once per part.

        A stream's request is never doubled: a connection does not do that, and appends may not be
        processed twice.
        """
        world = self.world
        call = Call(self, source, peer, on_answer, world.now_us + timeout_us)
        call.is_stream = is_stream
        calls = self._deadlines.get(timeout_us)
        if calls is None:
            calls = self._deadlines[timeout_us] = deque()
        calls.append(call)
        if self._cuts and self.is_cut(source.name, peer.name):
            world.counts["request cut off"] += 1
            if world.chance(0.3):
                world.at(min(timeout_us, SECOND), call.end, BookieStatus.UNREACHABLE, None)
            return call
        draw = world.rng.random
        if self.loss_ratio and draw() < self.loss_ratio:  # as `World.chance`, which costs a call
            world.counts["request lost"] += 1
            return call
        world.at(self._delay_us(source, peer), self._arrive, call, kind, body)
        if not is_stream and self.duplicate_ratio and draw() < self.duplicate_ratio:
            world.counts["request doubled"] += 1
            world.at(self._delay_us(source, peer) + 5 * MS, self._arrive, call, kind, body)
        return call

    def connect(self, source: Node, peer: Node, on_result: Callable[[bool], None]) -> None:
        """Open a connection and close it; told whether it was refused. What is cut off or paused
        refuses nothing: the one is silent, for the other the kernel accepts."""
        is_cut = self.is_cut(source.name, peer.name) or self.is_cut(peer.name, source.name)
        delay_us = _CONNECT_US if is_cut else 2 * self._delay_us(source, peer)

        def look() -> None:
            source.run(life, on_result, not is_cut and not peer.is_listening)

        life = source.life
        self.world.at(delay_us, look)

    def send_answer(self, call: Call, value: Any) -> None:
        """The answer to a call leaves the peer."""
        world = self.world
        if self._cuts and self.is_cut(call.peer.name, call.source.name):
            world.counts["answer cut off"] += 1
        elif self.loss_ratio and world.rng.random() < self.loss_ratio:
            world.counts["answer lost"] += 1
        else:
            delay_us = self._delay_us(call.peer, call.source)
            if isinstance(value, Refusal):
                world.at(delay_us, call.end, BookieStatus.OVERLOADED, value)
                return
            world.at(delay_us, call.end, BookieStatus.OK, value)
            if not call.is_stream and self.has_late_answers and world.chance(self.duplicate_ratio):
                world.at(delay_us + 3 * MS, call.end, BookieStatus.OK, value)

    def _arrive(self, call: Call, kind: str, body: Any) -> None:
        peer = call.peer
        if not peer.is_listening:
            self.world.counts["unreachable"] += 1
            delay_us = self._delay_us(peer, call.source)
            self.world.at(delay_us, call.end, BookieStatus.UNREACHABLE, None)
            return
        if kind != MEMBERS:
            self.world.note(call.source.name, kind, peer.name)
        if kind == "pull":
            self.on_pull(body[1])
        peer.run(peer.life, peer.serve, kind, body, call.reply)

    def _delay_us(self, source: Node, target: Node) -> int:
        world = self.world
        draw = world.rng.random()
        delay_us = 120 + int(draw * 400)
        if source.region != target.region:
            delay_us += self._cross_region_us + int(draw * 700)
        if self.slow_ratio and world.rng.random() < self.slow_ratio:
            world.counts["message slow"] += 1
            delay_us += world.between(10 * MS, 600 * MS)
        if self._clogs:
            until_us = self._clogs.get((source.name, target.name), 0)
            if until_us > world.now_us:
                world.counts["message clogged"] += 1
                delay_us += until_us - world.now_us
        return delay_us

    def _sweep(self) -> None:
        """End the calls whose time is over; one event for all that wait."""
        now_us = self.world.now_us
        for calls in list(self._deadlines.values()):  # who is told may ask with another time-out
            while calls and (calls[0].is_done or calls[0].deadline_us <= now_us):
                call = calls.popleft()
                if not call.is_done:
                    self.world.counts["call timed out"] += 1
                    call.end(BookieStatus.TIMEOUT, None)
        self.world.at(_SWEEP_US, self._sweep)


def _nothing(_: object) -> None:
    """Nobody listens."""
