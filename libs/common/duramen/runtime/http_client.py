"""Client of the data planes: pyreqwest over cleartext HTTP/2, one connection per peer.

Translates the library's exceptions once, at this border, into three: `Unreachable` (no connection
was made, nothing was processed), `NoAnswer` (sent, or perhaps sent, and not answered in time) and,
of those, `Overloaded` (refused with the promise that nothing was done, and with advice when to ask
again). Everything above decides what these mean for safety.
Source: docs/benchmarks.md "What shaped the design", R1, docs/protocol/wire.md "Overload".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from types import CodeType, FrameType
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError
from pyreqwest.response import BaseResponse

from duramen.limits import FRAME_BYTES_MAX
from duramen.units import MIB, MS, SECOND
from duramen.wire.frame import RETRY_AFTER_HEADER

_CONNECT_TIMEOUT: Final = timedelta(seconds=1)
_KEEP_ALIVE: Final = timedelta(seconds=2)
"""A peer that is frozen or cut off is noticed by pings, not by the first lost request alone."""

_RETRY_AFTER_MAX_US: Final = 60 * SECOND
"""No peer is believed that it must be left alone for longer."""

_LEAVE_MAX_S: Final = 1.0
_LEAVE_LOOK_S: Final = 0.0005
_TELLS_LOOP: Final = asyncio.BaseEventLoop.call_soon_threadsafe.__code__

_CONNECT_CAUSE: Final = "client error (Connect)"
"""How the HTTP library says that a connection could not be made, as against `(SendRequest)`."""


class PeerError(Exception):
    """A data-plane call got no usable answer."""


class UnreachableError(PeerError):
    """No connection: the request was not processed."""


class NoAnswerError(PeerError):
    """No answer: the request may have been processed."""


class RefusedError(NoAnswerError):
    """The peer does not understand what it was sent, and did nothing: 400."""


class OverloadedError(NoAnswerError):
    """The peer is there and has no room: nothing was done.

    `retry_after_us`: how long it asks to be left alone, 1 ms to 60 s.
    """

    def __init__(self, text: str, retry_after_us: int) -> None:
        super().__init__(text)
        self.retry_after_us = retry_after_us


class KeptCancellation:
    """Keeps the cancellation of a task that waits for the HTTP library.

    The library gives an answer (or an error) that is there rather than the cancellation that came
    with it, and a task that was told to stop would go on. `with` it around whatever is awaited.

    Raises:
        asyncio.CancelledError: at the end, where one came meanwhile and was swallowed.
    """

    __slots__ = ("_count_before",)

    def __enter__(self) -> None:
        self._count_before = _count_cancellations()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_swallowed = kind is None or issubclass(kind, PyreqwestError)
        if is_swallowed and _count_cancellations() > self._count_before:
            raise asyncio.CancelledError


def _count_cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def close_client(client: Client) -> None:
    """Close every connection of a client of the HTTP library, so that the program may end then.

    The library's threads give answers under the interpreter's lock. A process that ends while one
    of them is still about it aborts, after all was done: once in twelve short programs on two busy
    cores. So this waits, for a second at most, until none is inside.
    """
    await client.close()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _LEAVE_MAX_S
    while _is_answering() and loop.time() < deadline_s:  # noqa: ASYNC110 - nobody tells when
        await asyncio.sleep(_LEAVE_LOOK_S)


def _is_answering() -> bool:
    """Whether a thread of the library tells an event loop something.

    No Python code called the first of its frames, which is the loop's. Other threads that Python's
    `threading` does not know are none of ours, and may stay inside for as long as they like.
    """
    return any(_first_code(frame) is _TELLS_LOOP for frame in sys._current_frames().values())


def _first_code(frame: FrameType) -> CodeType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


class PeerClient:
    """Calls to data planes of any number of peers."""

    def __init__(self) -> None:
        self._client: Client = (
            ClientBuilder()
            .http2_prior_knowledge()
            .http2_initial_stream_window_size(FRAME_BYTES_MAX)
            .http2_initial_connection_window_size(4 * FRAME_BYTES_MAX)
            .http2_max_frame_size(1 * MIB)
            .http2_keep_alive_interval(_KEEP_ALIVE)
            .http2_keep_alive_timeout(_KEEP_ALIVE)
            .connect_timeout(_CONNECT_TIMEOUT)
            .no_proxy()
            .follow_redirects(enable=False)
            .build()
        )

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        """POST `body`, give the answer's body.

        Raises:
            UnreachableError: no connection was made.
            OverloadedError: refused for now, nothing was done.
            NoAnswerError: no answer within `timeout_us`, the connection broke, or the answer is
                no success: it may have been processed.
        """
        try:
            with KeptCancellation():
                builder = self._client.post(url).body_bytes(body).timeout(_delta(timeout_us))
                response = await builder.build().send()
                answer = bytes(await response.bytes())
        except PyreqwestError as error:
            raise translate(error, url) from error
        if response.status != 200:
            raise _refusal(response, url)
        return answer

    async def stream(self, url: str, body: bytes, timeout_us: int) -> AsyncIterator[bytes]:
        """POST `body`, give the answer's pieces as they arrive.

        Raises:
            As `call`, also between pieces.
        """
        try:
            builder = (
                self._client.post(url)
                .body_bytes(body)
                .timeout(_delta(timeout_us))
                .streamed_read_buffer_limit(0)
            )
            async with builder.build_streamed() as response:
                if response.status != 200:
                    raise _refusal(response, url)
                while True:
                    with KeptCancellation():
                        piece = await response.body_reader.read_chunk()
                    if piece is None:
                        return
                    if len(piece):
                        yield bytes(piece)
        except PyreqwestError as error:
            raise translate(error, url) from error

    async def request_json(
        self, method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        """Send a JSON body, give HTTP status and the answer's body, whatever the status.

        Raises:
            As `call`, but for the status.
        """
        try:
            builder = self._client.request(method, url).header("content-type", "application/json")
            request = builder.body_bytes(body).timeout(_delta(timeout_us)).build()
            with KeptCancellation():
                response = await request.send()
                return response.status, bytes(await response.bytes())
        except PyreqwestError as error:
            raise translate(error, url) from error

    async def close(self) -> None:
        """Close every connection."""
        await close_client(self._client)


def _refusal(response: BaseResponse, url: str) -> NoAnswerError:
    """What an answer that is no success says about the request."""
    text = f"{url}: HTTP {response.status}"
    if response.status == 400:
        return RefusedError(text)
    advice = response.get_header(RETRY_AFTER_HEADER) if response.status == 503 else None
    if advice is None or not advice.isdecimal():
        return NoAnswerError(text)
    return OverloadedError(text, min(max(int(advice), 1) * MS, _RETRY_AFTER_MAX_US))


def translate(error: PyreqwestError, url: str) -> PeerError:
    """Say of a library error whether the request was certainly not processed.

    The library's `ConnectError` is no proof: it is also raised when an established connection
    breaks after the request was sent. Only the cause chain tells; any other is NoAnswerError.
    """
    if isinstance(error, DetailedPyreqwestError):
        causes = (error.details or {}).get("causes") or ()
        if any(cause["message"] == _CONNECT_CAUSE for cause in causes):
            return UnreachableError(f"cannot connect to {url}")
    return NoAnswerError(f"{url}: {error.message}")


def _delta(duration_us: int) -> timedelta:
    return timedelta(microseconds=max(duration_us, 1))
