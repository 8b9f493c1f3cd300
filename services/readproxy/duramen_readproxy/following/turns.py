"""Steps of readers that catch up: one in each pass of the event loop, each party in its turn.

What lies in the cache and goes into a socket's buffer is read, encoded and sent without waiting for
anything. So many readers that begin at once would have the loop to themselves, each until its
socket is full. Who rests here between steps lets everything else run that is to run.

Called by `record_reader` and `streams`. Source: docs/protocol/read-answers.md "Turns of readers".
"""

from __future__ import annotations

import asyncio

from duramen.core.reading.party_queue import PartyQueue
from duramen.core.rights.grants import Principal

Party = Principal | None
"""Whose reader it is; None: nobody is asked who it is."""


class Turns:
    """Used within one event loop."""

    def __init__(self) -> None:
        self._resting: PartyQueue[Party, asyncio.Future[None]] = PartyQueue()
        self._is_running = False
        self._step_count = 0

    async def rest(self, party: Party) -> None:
        """Wait for the next step: one pass of the loop, and one more for each that is before it."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._resting.add(party, waiter)
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._begin_step)
        try:
            await waiter
        finally:
            self._resting.discard(party, waiter)

    def statistics(self) -> dict[str, int]:
        """Who rests now, of how many parties, and steps since the start."""
        return {
            "resting": len(self._resting),
            "parties": self._resting.party_count,
            "steps": self._step_count,
        }

    def _begin_step(self) -> None:
        """The step is done in the next pass, before the one that begins then."""
        found = self._resting.take(lambda _: True)
        if found is None:
            self._is_running = False
            return
        _, waiter = found
        if not waiter.done():
            waiter.set_result(None)
            self._step_count += 1
        asyncio.get_running_loop().call_soon(self._begin_step)
