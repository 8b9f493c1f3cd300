"""Places of streams that catch up: so many read ahead at once, and hold what that takes.

A reader that catches up holds what it has read ahead for its client, which is megabytes. It needs a
place for that, and has it for a turn: while others wait, until it has taken `TURN_BYTES` or had it
for `TURN_US`. A client that takes nothing has its reader's place taken away as soon as somebody
waits whom that serves: what was read ahead is dropped, and read again once it is the reader's turn.
Who waits keeps its place in the row while it tells its client that it is alive.

Called by `record_reader` and `streams`. Source: docs/protocol/read-answers.md "Turns of readers".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from duramen.core.reading.effects import Deliver
from duramen.core.reading.party_queue import PartyQueue
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.reading.bookies import read_clock_us
from duramen.runtime.reading.tail import Tail
from duramen.units import KIB, MS, SECOND
from duramen_readproxy.following.turns import Party, Turns
from duramen_readproxy.following.waiting_room import WaitingRoom

_LOG = logging.getLogger(__name__)

PLACE_COUNT_MAX: Final = 32
"""Each holds 12 MiB at most (`rest.choose_limits`), and 256 KiB to 1 MiB where others wait."""

PARTY_COUNT_MAX: Final = 24
"""Of one party: one whose readers wait for bookies that do not answer leaves some to others."""

TURN_BYTES: Final = 256 * KIB
TURN_US: Final = 1 * SECOND
BLOCKED_US: Final = 100 * MS
"""A client that takes nothing for so long is not about to: others go on meanwhile."""

Release = Callable[[], Coroutine[Any, Any, None] | None]
"""Drops what its reader holds; gives what is still to be done for that."""


class ReadingPlace:
    """One reader's; it has it between `enter` and `leave`, or until it is taken away.

    Args:
        call: in whose name it waits; None: nobody is asked who it is.
    """

    __slots__ = (
        "_call", "_places", "_release", "_since_us", "_taken_bytes", "found", "is_entering",
        "is_queued", "lent_us", "party", "untaken", "waiter",
    )  # fmt: skip

    def __init__(self, places: ReadingPlaces, call: AdmittedCall | None, release: Release) -> None:
        self._places = places
        self._call = call
        self._release = release
        self._taken_bytes = 0
        self._since_us = 0
        self.party: Party = None if call is None else call.bearer.principal
        self.lent_us: int | None = None
        """Since when its client has been given something that it has not taken yet."""
        self.is_entering = False
        """Whether its reader wants it, and has not begun its turn."""
        self.is_queued = False
        """Whether it is in the row of those that wait."""
        self.waiter: asyncio.Future[None] | None = None
        """What its reader waits on now."""
        self.untaken: Deliver | None = None
        """What the reader's cursor gave and the stream has not taken yet."""
        self.found: Tail | None = None
        """The end, as it was told: a cursor that comes after another goes no further."""

    @property
    def call(self) -> AdmittedCall | None:
        """See the class."""
        return self._call

    async def enter(self, deadline_us: int) -> bool:
        """Have it; waits for its turn.

        Args:
            deadline_us: until then it waits, and 50 ms more at most. Who comes again has kept its
                place in the row.

        Returns:
            Whether its turn has begun: not after the deadline, nor where it is to end.

        Raises:
            DuramenError: its caller may read no more.
        """
        self.is_entering = True
        is_held = await self._places.enter(self, deadline_us)
        self.is_entering = not is_held
        return is_held

    def begin_turn(self) -> None:
        """It has it from now on."""
        self._taken_bytes, self._since_us = 0, read_clock_us()

    def leave(self) -> None:
        """Have it no more, if it is held, and wait no more for it."""
        self.is_entering = False
        self._places.leave(self)

    async def rest(self) -> None:
        """Let others do a step."""
        await self._places.turns.rest(self.party)

    def note_taken(self, size_bytes: int) -> None:
        """Bytes of entries were taken for the client."""
        self._taken_bytes += size_bytes

    def lend(self) -> None:
        """Something goes to the client: it may take its time."""
        self.lent_us = read_clock_us()

    def take_back(self) -> None:
        """The client has taken it."""
        self.lent_us = None

    @property
    def is_due(self) -> bool:
        """Whether its turn is over, for somebody waits whom this place would serve."""
        if not self._places.is_wanted(self.party):
            return False
        return self._taken_bytes >= TURN_BYTES or read_clock_us() - self._since_us >= TURN_US

    def is_blocked(self, now_us: int) -> bool:
        """Whether it can be taken away: its client does not take what it was given."""
        if self.lent_us is None:
            return False
        return now_us - self.lent_us >= BLOCKED_US or now_us - self._since_us >= TURN_US

    def drop(self) -> Coroutine[Any, Any, None] | None:
        """Have its reader hold nothing."""
        return self._release()


class ReadingPlaces:
    """Those of a process."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._held: dict[ReadingPlace, None] = {}
        self._counts: Counter[Party] = Counter()
        self._waiting: PartyQueue[Party, ReadingPlace] = PartyQueue()
        self._room = WaitingRoom()
        """Where they do, while they do not tell their clients that they are alive."""
        self._timer: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._turn_count = 0
        self._taken_away_count = 0
        self._is_stopping = False

    def is_wanted(self, party: Party) -> bool:
        """Whether somebody waits whom a place would serve that this party gives up.

        A party that has all that it may have is served by its own places alone.
        """
        return self._waiting.has(
            lambda other: other == party or self._counts[other] < PARTY_COUNT_MAX
        )

    async def enter(self, place: ReadingPlace, deadline_us: int) -> bool:
        """See `ReadingPlace.enter`. Who is to end anyway has none: its client is told."""
        call = place.call
        try:
            while True:
                if call is not None:
                    call.check()
                if place in self._held:
                    return True
                if self._is_stopping or (call is not None and call.is_leaving):
                    self.leave(place)
                    return False
                if not place.is_queued:
                    place.is_queued = True
                    self._waiting.add(place.party, place)
                    self._admit()
                    continue
                if (now_us := read_clock_us()) >= deadline_us:
                    return False
                await self._wait(place, deadline_us, now_us)
        except BaseException:
            self.leave(place)
            raise

    async def _wait(self, place: ReadingPlace, deadline_us: int, now_us: int) -> None:
        call = place.call
        waiter = place.waiter = self._room.enter(deadline_us, now_us)
        if call is not None:
            call.watch(partial(_wake, waiter))
        try:
            await waiter
        finally:
            place.waiter = None
            self._room.leave(waiter, deadline_us)
            if call is not None:
                call.watch(None)

    def leave(self, place: ReadingPlace) -> None:
        """See `ReadingPlace.leave`."""
        if place.is_queued:
            place.is_queued = False
            self._waiting.discard(place.party, place)
        if place in self._held:
            del self._held[place]
            self._counts[place.party] -= 1
            if not self._counts[place.party]:
                del self._counts[place.party]
            self._admit()

    def stop_waiting(self) -> None:
        """From now on nobody waits, nor has a place anew: streams end where they are."""
        self._is_stopping = True
        self._room.wake_all()

    async def stop(self) -> None:
        """Wait for what was dropped to be given up."""
        if self._timer is not None:
            self._timer.cancel()
        for failure in await asyncio.gather(*self._endings, return_exceptions=True):
            if failure is not None:
                _LOG.warning("what a stream had read ahead was not given up: %r", failure)

    def statistics(self) -> dict[str, int]:
        """Places held and their bound, who waits; turns, and places taken away since the start."""
        steps = self.turns.statistics()
        return {
            "held": len(self._held),
            "held_max": PLACE_COUNT_MAX,
            "waiting": len(self._waiting),
            "turns": self._turn_count,
            "taken_away": self._taken_away_count,
            "resting": steps["resting"],
            "steps": steps["steps"],
        }

    def _admit(self) -> None:
        """Give the places that are free, and look again while somebody waits."""
        if self._is_stopping:
            return
        while len(self._held) < PLACE_COUNT_MAX:
            found = self._waiting.take(lambda party: self._counts[party] < PARTY_COUNT_MAX)
            if found is None:
                break
            party, place = found
            place.is_queued = False
            self._held[place] = None
            self._counts[party] += 1
            self._turn_count += 1
            place.begin_turn()
            if place.waiter is not None:
                _wake(place.waiter)
        if len(self._waiting) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BLOCKED_US / SECOND, self._look)

    def _look(self) -> None:
        """Take away places whose clients take nothing, as long as that serves who waits."""
        self._timer = None
        now_us = read_clock_us()
        blocked = [place for place in self._held if place.is_blocked(now_us)]
        for place in blocked:
            if not self.is_wanted(place.party):
                continue
            self._taken_away_count += 1
            ending = place.drop()
            if ending is not None:
                task = asyncio.get_running_loop().create_task(ending)
                self._endings.add(task)
                task.add_done_callback(self._endings.discard)
            self.leave(place)
        self._admit()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
