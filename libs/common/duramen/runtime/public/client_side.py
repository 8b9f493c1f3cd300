"""The client's side of a forwarded call: its body, and its going.

One task takes what the server gives of the request, for as long as the call lasts: pieces of the
body, one of which waits at most, and the word that the client has gone. Nobody else may ask the
server: a `receive` that is cancelled is taken for a client that has gone, now and then.

Called by `forwarding`. Source: ASGI; docs/protocol/rest.md "Either proxy".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from duramen.errors import DuramenError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class CutShortError(Exception):
    """The client went in the middle of its body."""


class ClientSide:
    """A client and the rest of its request.

    Args:
        has_body: whether somebody takes the body's pieces; else they are dropped, as a read's.
    """

    def __init__(self, receive: Receive, *, has_body: bool) -> None:
        self._receive = receive
        self._has_body = has_body
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._is_over = False
        self.is_begun = False
        """Whether a piece was given away: the body cannot be sent a second time."""

        self.fault: DuramenError | None = None
        """Why the body cannot be read to its end, such as a coding that is damaged."""

        self.gone = asyncio.create_task(self._take(), name="client of a forwarded call")
        """Done when the client has gone, or its body has a fault."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            CutShortError: the client has gone, or there is a fault.
        """
        while True:
            piece = await self._pieces.get()
            if piece is None:
                if self._is_over:
                    return
                raise CutShortError
            self.is_begun = True
            yield piece

    async def hold_open(self) -> AsyncIterator[bytes]:
        """A body without pieces that breaks off when the call is over.

        The HTTP library carries a call on whose task was cancelled before its answer began; a body
        that fails is what ends it.
        """
        await asyncio.wait({self.gone})
        raise CutShortError
        yield b""

    async def leave(self) -> None:
        """The call is over."""
        self.gone.cancel()
        await asyncio.gather(self.gone, return_exceptions=True)

    async def _take(self) -> None:
        while True:
            try:
                message = await self._receive()
            except DuramenError as error:
                self.fault = error
                break
            if message["type"] != "http.request":
                break
            if self._is_over or not self._has_body:
                continue
            if piece := bytes(message.get("body", b"")):
                await self._pieces.put(piece)
            if not message.get("more_body"):
                self._is_over = True
                await self._pieces.put(None)
        if not self._is_over and self._has_body:
            await self._pieces.put(None)
