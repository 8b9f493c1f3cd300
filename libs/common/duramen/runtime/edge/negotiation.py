"""What HTTP asks of every GET of a port: HEAD beside it, and 406 where the answer is not accepted.

A HEAD is the GET without its body: the route is asked, its head is sent, and it is told that the
client has gone, so that a stream ends there. An answer of a type that the client does not accept
becomes a problem (`not_acceptable`). A route that has several forms chooses one by itself
(`wire.edge.accept`), and nothing is left to refuse here. Refusals are problems whatever the client
accepts, as it could not read why else.

Added around both public applications and the admin application. Source: RFC 9110, 9.3.2 and 12.5.1;
docs/protocol/rest.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from duramen.errors import DuramenError
from duramen.wire.edge.accept import choose_media

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Negotiation:
    """ASGI middleware; what accepts anything, as most do, passes through untouched."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return self._app(scope, receive, send)
        accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
        if accept and accept != b"*/*":
            send = _Accepting(send, accept.decode("latin-1")).send
        if scope["method"] == "GET":
            return self._app(scope, receive, send)
        head = _HeadOnly(receive, send)
        return self._app({**scope, "method": "GET"}, head.receive, head.send)


class _HeadOnly:
    """Sends an answer's head; to the application its client has gone then."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_sent = asyncio.Event()

    async def receive(self) -> Message:
        """What comes from the client until the head is sent."""
        if not self._is_sent.is_set():
            coming = asyncio.ensure_future(self._receive())
            sent = asyncio.ensure_future(self._is_sent.wait())
            try:
                await asyncio.wait((coming, sent), return_when=asyncio.FIRST_COMPLETED)
                if not sent.done():
                    return coming.result()
            finally:
                coming.cancel()
                sent.cancel()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Pass the head on, and nothing else."""
        if message["type"] != "http.response.start" or self._is_sent.is_set():
            return
        await self._send(message)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self._is_sent.set()


class _Accepting:
    """Puts a problem in the place of an answer that the client does not accept."""

    def __init__(self, send: Send, accept: str) -> None:
        self._send = send
        self._accept = accept
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Pass a message on, or refuse the answer with its first one."""
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            media = _media_of(message)
            if message["status"] < 300 and media is not None:
                self._is_refused = choose_media(self._accept, [media]) is None
            if self._is_refused and media is not None:
                await self._refuse(media)
                return
        await self._send(message)

    async def _refuse(self, media: str) -> None:
        error = refuse_accept(self._accept, media)
        body = orjson.dumps(error.problem())
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
        ]
        start = {"type": "http.response.start", "status": error.kind.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def refuse_accept(accept: str, *served: str) -> DuramenError:
    """The refusal of a request that accepts nothing of what there is."""
    return DuramenError(
        "not_acceptable", f"{accept[:100]!r} is not served; Accept {' or '.join(served)}",
        field="Accept",
    )  # fmt: skip


def _media_of(head: Message) -> str | None:
    for name, value in head.get("headers", ()):
        if name.lower() == b"content-type":
            return str(value.decode("latin-1").partition(";")[0].strip().lower())
    return None
