"""Client of the data planes: pyreqwest over HTTP/2, one connection per peer.

To peers that speak TLS a process shows its certificate, and names itself by header in each call;
after its identity was renewed new calls take new connections, and the old ones end with their last
call. While a cluster turns security on, a peer that is not reached by TLS is called in plain text.

Translates the library's exceptions once, at this border, into three: `Unreachable` (no connection
was made, nothing was processed), `NoAnswer` (sent, or perhaps sent, and not answered in time) and,
of those, `Overloaded` (refused with the promise that nothing was done, and with advice when to ask
again). Everything above decides what these mean for safety.
Source: docs/benchmarks.md "What shaped the design", R1, docs/protocol/wire.md "Overload",
docs/protocol/identity.md "The caller's header", docs/protocol/turning-on.md "Which way a call
takes".
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import BaseResponse

from duramen.limits import FRAME_BYTES_MAX
from duramen.runtime.identity.names import Identity
from duramen.runtime.security.peers import NotKnownError, Way
from duramen.runtime.standing.fates import (
    AdvisedRefusalError,
    NeverBegunError,
    StreamLostError,
)
from duramen.runtime.standing.process_name import make_process_name
from duramen.units import MIB, MS, SECOND
from duramen.wire.frame import (
    IDENTITY_HEADER,
    PROCESS_HEADER,
    RETRY_AFTER_HEADER,
    TIME_HEADER,
)

if TYPE_CHECKING:
    from duramen.runtime.security.process_security import ProcessSecurity
    from duramen.runtime.standing.call_stream import OpenCall
    from duramen.runtime.standing.call_streams import CallStreams, StreamWay

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

_STRANGER: Final = "invalid peer certificate: "
_NO_TLS: Final = "InvalidContentType"
_ALERT: Final = "received fatal alert: "
_OF_CERTIFICATES: Final = frozenset({
    "AccessDenied", "BadCertificate", "CertificateExpired", "CertificateRequired",
    "CertificateRevoked", "CertificateUnknown", "UnknownCA", "UnsupportedCertificate",
})  # fmt: skip
"""Alerts of a server that does not take the client's certificate: it has read no request then."""


class PeerError(Exception):
    """A data-plane call got no usable answer."""


class UnreachableError(PeerError):
    """No connection: the request was not processed."""


class DeniedError(UnreachableError):
    """The peer does not answer this process, for who it is: nothing was processed; 401 and 403."""


class UntrustedPeerError(UnreachableError):
    """The peer's certificate is refused: nothing was sent to it."""


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


def read_date_s(text: str | None) -> int | None:
    """The time of a header `Date`, in seconds since 1970; None: it says none."""
    try:
        return None if text is None else int(parsedate_to_datetime(text).timestamp())
    except (ValueError, OverflowError):
        return None


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


class _Connections:
    """The connections of a client that were made with one certificate."""

    __slots__ = ("call_count", "client", "is_old")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.call_count = 0
        self.is_old = False


class PeerClient:
    """Calls to data planes of any number of peers.

    Args:
        security: by which it names itself to peers that speak TLS; None: it calls none of them.
        streams: takes small requests where there is a stream; None: all go as calls.

    Attributes:
        process: names this life of the process to peers, 32 hexadecimal digits.
    """

    def __init__(
        self, security: ProcessSecurity | None = None, streams: CallStreams | None = None
    ) -> None:
        self._security = security
        self._streams = streams
        self.process = make_process_name() if streams is None else streams.process
        self._now = _Connections(self._make_client())
        self._closing: set[asyncio.Task[None]] = set()
        if security is not None:
            security.on_change(self._renew)

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        """POST `body`, give the answer's body.

        Raises:
            UnreachableError: no connection was made.
            DeniedError: the peer does not know who calls, or does not let it.
            OverloadedError: refused for now, nothing was done.
            NoAnswerError: no answer within `timeout_us`, the connection broke, or the answer is
                no success: it may have been processed.
        """
        deadline = _Deadline(timeout_us)
        if self._streams is not None and (way := self._streams.find(url, len(body))) is not None:
            with contextlib.suppress(NeverBegunError):
                return await _ask_whole(way, url, body, deadline)
        response, answer = await self._send("POST", url, body, deadline)
        if response.status != 200:
            raise _refusal(response, url)
        return answer

    async def stream(self, url: str, body: bytes, timeout_us: int) -> AsyncIterator[bytes]:
        """POST `body`, give the answer's pieces as they arrive.

        Raises:
            As `call`, also between pieces.
        """
        deadline = _Deadline(timeout_us)
        if self._streams is not None and (way := self._streams.find(url, len(body))) is not None:
            pieces = _ask_pieces(way, url, body, deadline)
            try:
                async for of_stream in pieces:
                    yield of_stream
                return
            except NeverBegunError:
                pass
            finally:
                await pieces.aclose()
        ways = self._list_ways(url)
        tried, missed = await self._leave_out_silent(ways, deadline)
        connections = self._take()
        try:
            for number, (at, receiver) in enumerate(tried, 1):
                try:
                    for is_last in (receiver is None, True):
                        header = self._name_to(receiver)
                        builder = _add_header(connections.client.post(at), header).body_bytes(body)
                        builder = builder.timeout(deadline.left()).streamed_read_buffer_limit(0)
                        async with builder.build_streamed() as response:
                            if not is_last and self._is_to_repeat(response, receiver, header):
                                continue
                            self._note_missed(ways, missed)
                            if response.status != 200:
                                raise _refusal(response, at)
                            while True:
                                with KeptCancellation():
                                    piece = await response.body_reader.read_chunk()
                                if piece is None:
                                    return
                                if len(piece):
                                    yield bytes(piece)
                except PyreqwestError as error:
                    missed = translate(error, at)
                    if number == len(tried) or not isinstance(missed, UnreachableError):
                        raise missed from error
        finally:
            self._give_back(connections)

    async def request_json(
        self, method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        """Send a JSON body, give HTTP status and the answer's body, whatever the status.

        Raises:
            As `call`, but for the status.
        """
        response, answer = await self._send(
            method, url, body, _Deadline(timeout_us), media=(("content-type", "application/json"),)
        )
        return response.status, answer

    async def close(self) -> None:
        """Close every connection."""
        if self._streams is not None:
            await self._streams.close()
        await asyncio.gather(*self._closing, close_client(self._now.client))

    # --- Sending ---------------------------------------------------------------------------------

    async def _send(
        self,
        method: str,
        url: str,
        body: bytes,
        deadline: _Deadline,
        *,
        media: tuple[tuple[str, str], ...] = (),
    ) -> tuple[BaseResponse, bytes]:
        """The answer; one that does not know who calls is asked once more."""
        ways = self._list_ways(url)
        tried, missed = await self._leave_out_silent(ways, deadline)

        def make(client: Client, at: str) -> RequestBuilder:
            builder = client.request(method, at)
            for name, value in media:
                builder = builder.header(name, value)
            return builder.body_bytes(body)

        connections = self._take()
        try:
            for number, way in enumerate(tried, 1):
                try:
                    found = await self._send_by(connections.client, way, make, deadline)
                except PyreqwestError as error:
                    missed = translate(error, way.url)
                    if number == len(tried) or not isinstance(missed, UnreachableError):
                        raise missed from error
                else:
                    self._note_missed(ways, missed)
                    return found
            raise AssertionError("the last way has an end")
        finally:
            self._give_back(connections)

    async def _send_by(
        self,
        client: Client,
        way: Way,
        make: Callable[[Client, str], RequestBuilder],
        deadline: _Deadline,
    ) -> tuple[BaseResponse, bytes]:
        url, receiver = way
        for is_last in (receiver is None, True):
            header = self._name_to(receiver)
            builder = _add_header(make(client, url), header)
            request = builder.timeout(deadline.left()).build()
            with KeptCancellation():
                response = await request.send()
                answer = bytes(await response.bytes())
            if is_last or not self._is_to_repeat(response, receiver, header):
                return response, answer
        raise AssertionError("the last answer is given")

    def _note_missed(self, ways: tuple[Way, ...], missed: PeerError | None) -> None:
        """Somebody answered; the way before, by TLS, did not lead there."""
        if missed is not None and self._security is not None:
            self._security.note_unreached(ways[0].url, str(missed))

    def _name_to(self, receiver: Identity | None) -> str | None:
        """The header for a receiver; None: it asks nobody who calls."""
        if receiver is None or self._security is None:
            return None
        return self._security.name_to(receiver)

    async def _leave_out_silent(
        self, ways: tuple[Way, ...], deadline: _Deadline
    ) -> tuple[tuple[Way, ...], PeerError | None]:
        """The ways to try, and why the first one is none of them."""
        if len(ways) == 1 or self._security is None:
            return ways, None
        secure, wait_s = ways[0].url, deadline.left().total_seconds() / 2
        is_open = await self._security.open_ports.is_open(secure, wait_s)
        if is_open:
            return ways, None
        # Of a call that had too little time to find out nothing is told: its peer may just be slow.
        missed = None if is_open is None else UnreachableError(f"cannot connect to {secure}")
        return ways[1:], missed

    def _list_ways(self, url: str) -> tuple[Way, ...]:
        """How a peer is called, the best way first.

        Raises:
            UnreachableError: it is not known who is there.
        """
        if self._security is None:
            return (Way(url, None),)
        try:
            return self._security.list_ways(url)
        except NotKnownError as error:
            raise UnreachableError(str(error)) from None

    def _is_to_repeat(
        self, response: BaseResponse, receiver: Identity | None, header: str | None
    ) -> bool:
        """Whether a peer does not know who calls; the next header is another one."""
        if response.status != 401 or receiver is None or header is None or self._security is None:
            return False
        self._security.reconsider(receiver, header, response.get_header(TIME_HEADER))
        return True

    # --- Connections -----------------------------------------------------------------------------

    def _make_client(self) -> Client:
        builder = (
            ClientBuilder()
            .http2_prior_knowledge()
            .http2_initial_stream_window_size(FRAME_BYTES_MAX)
            .http2_initial_connection_window_size(4 * FRAME_BYTES_MAX)
            .http2_max_frame_size(1 * MIB)
            .http2_keep_alive_interval(_KEEP_ALIVE)
            .http2_keep_alive_timeout(_KEEP_ALIVE)
            .connect_timeout(_CONNECT_TIMEOUT)
            .default_headers({PROCESS_HEADER: self.process})
            .no_proxy()
            .follow_redirects(enable=False)
        )
        return builder.build() if self._security is None else self._security.make_client(builder)

    def _take(self) -> _Connections:
        connections = self._now
        connections.call_count += 1
        return connections

    def _give_back(self, connections: _Connections) -> None:
        connections.call_count -= 1
        if connections.is_old and not connections.call_count:
            self._retire(connections)

    def _renew(self) -> None:
        """The certificate, or what is trusted, is another one: so are the connections."""
        before, self._now = self._now, _Connections(self._make_client())
        before.is_old = True
        if not before.call_count:
            self._retire(before)

    def _retire(self, connections: _Connections) -> None:
        task = asyncio.create_task(close_client(connections.client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Deadline:
    """What is left of a call's time, for its second try as well."""

    __slots__ = ("_end_ns",)

    def __init__(self, timeout_us: int) -> None:
        self._end_ns = time.monotonic_ns() + 1_000 * timeout_us

    def left(self) -> timedelta:
        """1 µs at least."""
        return _delta(self.left_us())

    def left_us(self) -> int:
        """Below 0: it is over."""
        return (self._end_ns - time.monotonic_ns()) // 1_000


async def _ask_whole(way: StreamWay, url: str, body: bytes, deadline: _Deadline) -> bytes:
    """The answer by a standing stream; raises as `_take`."""
    end_s = asyncio.get_running_loop().time() + deadline.left_us() / SECOND
    call = way.stream.ask(way.code, body)
    try:
        is_last, piece = await _take(call, url, end_s)
        if is_last:
            return piece
        pieces = [piece]
        while not is_last:
            is_last, piece = await _take(call, url, end_s)
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        call.give_up()


async def _ask_pieces(
    way: StreamWay, url: str, body: bytes, deadline: _Deadline
) -> AsyncGenerator[bytes, None]:
    """The same, each piece as it comes."""
    end_s = asyncio.get_running_loop().time() + deadline.left_us() / SECOND
    call = way.stream.ask(way.code, body)
    try:
        is_last = False
        while not is_last:
            is_last, piece = await _take(call, url, end_s)
            if piece:
                yield piece
    finally:
        call.give_up()


async def _take(call: OpenCall, url: str, end_s: float) -> tuple[bool, bytes]:
    """A piece of an answer by a standing stream, and whether it is the last one.

    Raises:
        NeverBegunError: nothing was sent, or nothing of it was begun: it may go as a call.
        RefusedError, DeniedError, OverloadedError, NoAnswerError: as `PeerClient.call`.
    """
    try:
        status, piece = await call.take(end_s)
    except AdvisedRefusalError as error:
        after_us = min(max(error.advice_ms, 1) * MS, _RETRY_AFTER_MAX_US)
        raise OverloadedError(f"{url}: {error}", after_us) from None
    except TimeoutError:
        if call.number == 0:
            raise NeverBegunError("nothing of it has left") from None
        raise NoAnswerError(f"{url}: no answer in time") from None
    except StreamLostError as error:
        raise NoAnswerError(f"{url}: {error}") from None
    if status == 400:
        raise RefusedError(f"{url}: HTTP 400")
    if status == 404:
        raise NeverBegunError("the peer knows no such request on a stream")
    if status in (401, 403):
        raise DeniedError(f"{url}: HTTP {status}")
    if status not in (None, 200):
        raise NoAnswerError(f"{url}: HTTP {status}")
    return status is not None, piece


def _add_header(builder: RequestBuilder, header: str | None) -> RequestBuilder:
    return builder if header is None else builder.header(IDENTITY_HEADER, header)


def _refusal(response: BaseResponse, url: str) -> PeerError:
    """What an answer that is no success says about the request."""
    text = f"{url}: HTTP {response.status}"
    if response.status == 400:
        return RefusedError(text)
    if response.status in (401, 403):
        return DeniedError(text)
    advice = response.get_header(RETRY_AFTER_HEADER) if response.status in (429, 503) else None
    if advice is None or not advice.isdecimal():
        return NoAnswerError(text)
    return OverloadedError(text, min(max(int(advice), 1) * MS, _RETRY_AFTER_MAX_US))


def translate(error: PyreqwestError, url: str) -> PeerError:
    """Say of a library error whether the request was certainly not processed.

    The library's `ConnectError` is no proof: it is also raised when an established connection
    breaks after the request was sent. Only the cause chain tells; any other is NoAnswerError.
    """
    if isinstance(error, DetailedPyreqwestError):
        causes = [cause["message"] for cause in (error.details or {}).get("causes") or ()]
        if _CONNECT_CAUSE in causes:
            is_stranger = causes[-1].startswith(_STRANGER)
            kind = UntrustedPeerError if is_stranger else UnreachableError
            return kind(f"cannot connect to {url}{_explain_tls(causes[-1])}")
        alert = causes[-1].removeprefix(_ALERT) if causes else ""
        if alert in _OF_CERTIFICATES:
            return DeniedError(f"{url} asks for another certificate than it was shown ({alert})")
    return NoAnswerError(f"{url}: {error.message}")


def _explain_tls(cause: str) -> str:
    """Why a connection was not made, where that lies in TLS."""
    if cause.startswith(_STRANGER):
        why = cause.removeprefix(_STRANGER)
        if why == "UnknownIssuer":
            why = "none of the authorities that are trusted here has issued it: name its own"
        return f": its certificate is refused ({why})"
    if _NO_TLS in cause:
        return ": it speaks no TLS there (http:// in place of https://?)"
    return ""


def _delta(duration_us: int) -> timedelta:
    return timedelta(microseconds=max(duration_us, 1))
