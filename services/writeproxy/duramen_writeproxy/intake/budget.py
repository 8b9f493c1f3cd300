"""Room for the bodies of appends in this process, counted by the bytes that are really here.

A body that comes in one piece is counted when it is here. One that comes in pieces is counted piece
by piece as arriving, and what arrives may use half of the room: clients that send slowly, or never
finish, thus leave the other half to those that do. Nothing is counted for what is only announced.

Called by `append_route` and the sessions. Source: CONTRIBUTING.md "Style on a page".
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.errors import DuramenError
from duramen.units import MIB

IN_FLIGHT_BYTES_MAX: Final = 256 * MIB
"""Bodies of append requests in this process, until their answer."""

_ARRIVING_DIVISOR: Final = 2


class Budget:
    """Bytes that requests hold; bounded for the process."""

    def __init__(self, most_bytes: int = IN_FLIGHT_BYTES_MAX) -> None:
        self.held_bytes = 0
        self.arriving_bytes = 0
        self.request_count = 0
        self._most_bytes = most_bytes
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._given = asyncio.Event()

    def open(self) -> BudgetShare:
        """The share of one request, without any bytes yet; to be closed."""
        self.request_count += 1
        self._is_idle.clear()
        return BudgetShare(self)

    def close(self, held_bytes: int) -> None:
        """A request is over that held so much: only its Share calls this."""
        self.give(held_bytes)
        self.request_count -= 1
        if not self.request_count:
            self._is_idle.set()

    def take(self, size_bytes: int, *, is_arriving: bool) -> None:
        """Hold bytes until `give`.

        Raises:
            DuramenError: `overloaded`.
        """
        has_room = self.held_bytes + size_bytes <= self._most_bytes
        if is_arriving:
            arriving_bytes = self.arriving_bytes + size_bytes
            has_room = has_room and arriving_bytes <= self._most_bytes // _ARRIVING_DIVISOR
        if not has_room:
            raise DuramenError("overloaded", "too many bytes are in flight in this proxy")
        self.held_bytes += size_bytes
        self.arriving_bytes += size_bytes * is_arriving

    def give(self, size_bytes: int) -> None:
        """What was taken is free again."""
        self.held_bytes -= size_bytes
        self._given.set()

    def end_arriving(self, size_bytes: int) -> None:
        """So many bytes belong to something that is whole now, or were given up."""
        self.arriving_bytes -= size_bytes
        self._given.set()

    async def wait_given(self) -> None:
        """Return after somebody gave something back."""
        self._given.clear()
        await self._given.wait()

    async def wait_idle(self) -> None:
        """Return once no request is being served."""
        await self._is_idle.wait()


class BudgetShare:
    """What one request holds of the budget."""

    __slots__ = ("_arriving_bytes", "_budget", "_held_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held_bytes = 0
        self._arriving_bytes = 0

    def add_piece(self, size_bytes: int) -> None:
        """A piece of a body is here that is not whole yet.

        Raises:
            DuramenError: `overloaded`.
        """
        self._budget.take(size_bytes, is_arriving=True)
        self._held_bytes += size_bytes
        self._arriving_bytes += size_bytes

    async def wait_piece(self, size_bytes: int) -> None:
        """As `add_piece`, but waits for room."""
        while True:
            try:
                self.add_piece(size_bytes)
                return
            except DuramenError:
                await self._budget.wait_given()

    def add_whole(self, size_bytes: int) -> None:
        """The body is whole, whether pieces of it were added or not.

        Raises:
            DuramenError: `overloaded`.
        """
        more_bytes = size_bytes - self._held_bytes
        if more_bytes > 0:
            self._budget.take(more_bytes, is_arriving=False)
            self._held_bytes += more_bytes
        self.finish_arriving(self._arriving_bytes)

    def finish_arriving(self, size_bytes: int) -> None:
        """So many of the bytes that arrived belong to something that is whole now."""
        self._arriving_bytes -= size_bytes
        self._budget.end_arriving(size_bytes)

    def give(self, size_bytes: int) -> None:
        """So many bytes of what was whole are not needed any more."""
        self._held_bytes -= size_bytes
        self._budget.give(size_bytes)

    def close(self) -> None:
        """Give everything back; may be repeated."""
        if self._held_bytes < 0:
            return
        self.finish_arriving(self._arriving_bytes)
        self._budget.close(self._held_bytes)
        self._held_bytes = -1
