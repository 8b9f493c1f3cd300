"""Content coding around the routes of a public port: they see and send plain bytes.

A coded request reaches its route decoded, in pieces, without a Content-Length: so the route's own
bound on a body bounds what a decompression bomb may become, and no piece is made before the last
one was taken. An answer is coded if the client accepts it and the answer is not small already; a
streamed answer is flushed with each piece, so that a reader sees it when it was sent.

Added by `runtime.rest.make_public_app`. Source: docs/protocol/rest.md "Content coding".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from duramen.errors import DuramenError
from duramen.runtime.admin import problem_response
from duramen.runtime.edge.vary import add_vary
from duramen.units import KIB, MIB
from duramen.wire.edge.content_coding import (
    CODINGS,
    ContentEncoder,
    Decoder,
    choose_coding,
    make_decoder,
    make_encoder,
    parse_coding,
)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

UNDECODED: Final = "duramen.undecoded"
"""In the scope of a coded request: `receive` before decoding, to drop what is left of it."""

PIECE_BYTES_MAX: Final = 256 * KIB
"""Decoded bytes of one step: about a millisecond of the event loop."""

SMALL_ANSWER_BYTES: Final = 1 * KIB
"""A whole answer up to this is sent as it is: it fits one packet anyway."""

_LOOP_BYTES_MAX: Final = 64 * KIB
"""Larger pieces of answers are coded in a thread: gzip makes some 100 MB/s."""

_DROP_BYTES_MAX: Final = 64 * MIB
_DROP_TIMEOUT_S: Final = 2.0

_VARIES_BY: Final = b"Accept-Encoding"


class CodedBodies:
    """ASGI middleware: a plain function that hands on, so a waiting read costs no coroutine."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one request with its bodies decoded and coded."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        coded = accepted = b""
        has_length = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                has_length = True
            elif name == b"content-encoding":
                coded = coded + b"," + value if coded else value
            elif name == b"accept-encoding":
                accepted = accepted + b"," + value if accepted else value
        if accepted or scope["method"] == "GET":
            send = _CodedAnswer(send, choose_coding(accepted.decode("latin-1"))).send
        if coded:
            try:
                coding = parse_coding(coded.decode("latin-1"))
            except DuramenError as error:
                answer = problem_response(error)
                answer.headers["accept-encoding"] = ", ".join(CODINGS)
                return answer(scope, receive, send)
            if coding is not None:
                scope = _without_length(scope, receive)
                decoder = make_decoder(coding)
                receive = _DecodedBody(receive, decoder, will_end=has_length).receive
        return self._app(scope, receive, send)


def _without_length(scope: Any, receive: Receive) -> dict[str, Any]:
    """The scope of the decoded request: how long it will be nobody announced."""
    dropped = (b"content-encoding", b"content-length")
    headers = [pair for pair in scope["headers"] if pair[0] not in dropped]
    return {**scope, "headers": headers, UNDECODED: receive}


async def drop_rest(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    """Read and drop what is left of a body, within bounds.

    A client that is still sending when the connection closes never sees the answer.
    """
    dropped_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DROP_TIMEOUT_S):
            while dropped_bytes <= _DROP_BYTES_MAX:
                message = await receive()
                dropped_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    break


class _DecodedBody:
    """The messages of a coded body, decoded.

    Args:
        will_end: its length was announced: it is no session, whose client waits for answers.
    """

    def __init__(self, receive: Receive, decoder: Decoder, *, will_end: bool) -> None:
        self._receive = receive
        self._decoder = decoder
        self._will_end = will_end
        self._has_more = True

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            DuramenError: the body is damaged or was cut short.
        """
        while True:
            if not self._decoder.needs_input:
                piece = await self._decode()
                # Others have their turn after each step: a reader may drop what it gets, and a body
                # may have much of which nothing comes.
                await asyncio.sleep(0)
                if piece:
                    return {"type": "http.request", "body": piece, "more_body": True}
                continue
            if not self._has_more:
                self._decoder.end()
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._has_more = message.get("more_body", False)
            self._decoder.feed(message.get("body", b""))

    async def _decode(self) -> bytes:
        """A step of the decoder; of a body that cannot be decoded the rest is dropped."""
        try:
            return self._decoder.step(PIECE_BYTES_MAX)
        except DuramenError:
            if self._will_end and self._has_more:
                await drop_rest(self._receive)
            raise


class _CodedAnswer:
    """The messages of an answer, coded where that is worth it."""

    def __init__(self, send: Send, coding: str | None) -> None:
        self._send = send
        self._coding = coding
        self._encoder: ContentEncoder | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            message = self._begin(message)
        elif self._encoder is not None and message["type"] == "http.response.body":
            body, is_last = message.get("body", b""), not message.get("more_body")
            if body or is_last:
                message = {**message, "body": await _encode(self._encoder, body, is_last=is_last)}
        await self._send(message)

    def _begin(self, head: Message) -> Message:
        headers = add_vary(head.get("headers", ()), _VARIES_BY)
        if self._coding is not None and _is_worth_coding(head):
            self._encoder = make_encoder(self._coding)
            headers = [_mark_coded(*pair) for pair in headers if pair[0] != b"content-length"]
            headers.append((b"content-encoding", self._coding.encode()))
        return {**head, "headers": headers}


def _is_worth_coding(head: Message) -> bool:
    """Not what is coded already, has no body, or is small; what has no length is a stream."""
    headers = dict(head.get("headers", ()))
    if head["status"] in (204, 304) or b"content-encoding" in headers:
        return False
    length = headers.get(b"content-length")
    return length is None or int(length) > SMALL_ANSWER_BYTES


def _mark_coded(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """An ETag names exact bytes, which are others now; as a weak one it is still right."""
    if name == b"etag" and not value.startswith(b"W/"):
        return name, b"W/" + value
    return name, value


async def _encode(encoder: ContentEncoder, body: bytes, *, is_last: bool) -> bytes:
    if len(body) <= _LOOP_BYTES_MAX:
        return encoder.encode(body, is_last=is_last)
    return await asyncio.to_thread(lambda: encoder.encode(body, is_last=is_last))
