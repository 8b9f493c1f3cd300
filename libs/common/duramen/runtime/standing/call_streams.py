"""The standing streams of one process to its peers: opened beside its calls, and never waited for.

A peer says where it serves streams in what it registers; the URL is of one life of its process, so
another registration is another stream. While there is none, or it is full, requests go as calls.

Called by `http_client`. Source: docs/protocol/standing-streams.md "Rules" 10 and 11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duramen.runtime.identity.names import Identity
from duramen.runtime.security.peers import NotKnownError
from duramen.runtime.standing.call_stream import CallStream
from duramen.runtime.standing.fates import StreamLostError
from duramen.runtime.standing.process_name import STREAM_URL, make_process_name
from duramen.wire.standing.messages import PATHS, REQUEST_BYTES_MAX
from duramen.wire.standing.opening import parse_stream_url

if TYPE_CHECKING:
    from duramen.runtime.security.process_security import ProcessSecurity

_LOG: Final = logging.getLogger(__name__)

_CONNECT_S: Final = 1.0
_ANSWER_S: Final = 2.0
_RETRY_FIRST_S: Final = 1.0
_RETRY_MOST_S: Final = 30.0
_LONG_LIFE_S: Final = 60.0
"""A stream that lived for so long ended for a reason of its own."""

_CODES: Final = {path: code for code, path in PATHS.items()}


_NO_STREAM: Final = (OSError, TimeoutError, ValueError, NotKnownError, StreamLostError)


class StreamWay(NamedTuple):
    """A stream that takes a request now, and the request's code there."""

    stream: CallStream
    code: int


class _PeerStreams:
    """One peer: where it serves streams, and the stream that is there."""

    __slots__ = ("began_s", "next_s", "opening", "retry_s", "stream", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.stream: CallStream | None = None
        self.opening: asyncio.Task[None] | None = None
        self.retry_s = _RETRY_FIRST_S
        self.next_s = 0.0
        self.began_s = 0.0


class CallStreams:
    """The streams of a process that calls.

    Attributes:
        process: names this life of the process to peers, 32 hexadecimal digits.

    Args:
        security: by which it names itself; None: it calls nobody who asks.
    """

    def __init__(self, security: ProcessSecurity | None) -> None:
        self.process = make_process_name()
        self._security = security
        self._places: dict[str, _PeerStreams] = {}
        self._ending: set[CallStream] = set()
        self._opened_count = 0
        self._failed_count = 0
        self._is_closed = False
        self._renewal_count = 0
        if security is not None:
            security.on_change(self._renew)

    def learn(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """What a roster of peers calls after every change: the nodes that are registered now.

        Peers that have left are known as they were: calls still go there, too.
        """
        # The oldest come first: one that left its place to another is not the one that is called.
        there: dict[str, object] = {}
        for fields in nodes.values():
            if isinstance(base := fields.get("data_url"), str):
                there[base] = fields.get(STREAM_URL)
        for base, url in there.items():
            place = self._places.get(base)
            if place is not None and place.url == url:
                continue
            self._end(self._places.pop(base, None), "the peer is registered anew")
            if isinstance(url, str) and self._is_fitting(url):
                self._places[base] = _PeerStreams(url)
        for base in [base for base, place in self._places.items() if place.stream is None]:
            if base not in there:
                self._end(self._places.pop(base), "the peer has left")

    def find(self, url: str, body_bytes: int) -> StreamWay | None:
        """The way of a request by a stream; None: it goes as a call, and a stream is opened.

        Args:
            url: of the call.
        """
        if body_bytes > REQUEST_BYTES_MAX:
            return None
        end = url.find("/", len("https://"))
        code = _CODES.get(url[end:])
        place = None if code is None else self._places.get(url[:end])
        if code is None or place is None:
            return None
        if place.stream is not None:
            return StreamWay(place.stream, code) if place.stream.has_room else None
        self._want(place, url)
        return None

    async def close(self) -> None:
        """End all streams; what was begun on them has an open fate."""
        self._is_closed = True
        tasks = [place.opening for place in self._places.values() if place.opening is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in [*self._ending, *self._list_streams()]:
            stream.break_off("this process stops")
        self._places.clear()

    def statistics(self) -> dict[str, int]:
        """Peers with streams, streams, requests on them, and how many were opened."""
        streams = self._list_streams()
        return {
            "peers": len(self._places),
            "streams": len(streams),
            "streams_ending": len(self._ending),
            "requests_open": sum(stream.open_count for stream in streams),
            "opened": self._opened_count,
            "not_opened": self._failed_count,
        }

    # --- Opening ---------------------------------------------------------------------------------

    def _is_fitting(self, url: str) -> bool:
        """Whether it can be called as what this process is."""
        if self._security is None:
            return url.startswith("http://")
        return self._security.tally is None and url.startswith("https://")

    def _want(self, place: _PeerStreams, url: str) -> None:
        loop = asyncio.get_running_loop()
        if place.opening is None and loop.time() >= place.next_s and not self._is_closed:
            place.opening = loop.create_task(self._open(place, url))
            place.opening.add_done_callback(partial(_on_opening_over, place))

    async def _open(self, place: _PeerStreams, url: str) -> None:
        loop, renewal_count = asyncio.get_running_loop(), self._renewal_count
        try:
            stream = await self._connect(place, url)
        except Exception as error:
            self._failed_count += 1
            self._wait_longer(place)
            if not isinstance(error, _NO_STREAM):
                raise
            _LOG.info("%s: no standing stream: %r", place.url, error)
            return
        self._opened_count += 1
        place.began_s = loop.time()
        if self._places.get(_find_base(url)) is not place:
            stream.retire("the peer is registered anew")
        elif renewal_count != self._renewal_count:
            stream.retire("it shows the certificate of before")
        elif stream.is_usable:
            place.stream = stream
        else:
            self._wait_longer(place)

    async def _connect(self, place: _PeerStreams, url: str) -> CallStream:
        at, receiver = parse_stream_url(place.url), self._find_receiver(url)
        name, context = None, None
        if receiver is not None and self._security is not None:
            name = partial(self._security.name_to, receiver)
            context = self._security.make_caller_context()
        stream = CallStream(at, self.process, name, partial(self._on_over, place))
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: stream, at.host, at.port, ssl=context,
                    server_hostname=None if context is None else at.host,
                )  # fmt: skip
            await stream.wait_open(_ANSWER_S)
        except BaseException:
            stream.break_off("it was not opened")
            raise
        return stream

    def _find_receiver(self, url: str) -> Identity | None:
        return None if self._security is None else self._security.find_receiver(url)

    def _wait_longer(self, place: _PeerStreams) -> None:
        place.next_s = asyncio.get_running_loop().time() + place.retry_s
        place.retry_s = min(2 * place.retry_s, _RETRY_MOST_S)

    # --- The end of a stream ---------------------------------------------------------------------

    def _on_over(self, place: _PeerStreams, stream: CallStream) -> None:
        """It takes no more requests: what it has is answered still, or is not."""
        if not stream.is_over:
            self._keep_ending(stream)
        if place.stream is not stream:
            return
        place.stream = None
        if asyncio.get_running_loop().time() - place.began_s >= _LONG_LIFE_S:
            place.retry_s = _RETRY_FIRST_S
        self._wait_longer(place)

    def _keep_ending(self, stream: CallStream) -> None:
        self._ending = {one for one in self._ending if not one.is_over} | {stream}

    def _end(self, place: _PeerStreams | None, why: str) -> None:
        if place is None:
            return
        if place.opening is not None:
            place.opening.cancel()
        if place.stream is not None:
            place.stream.retire(why)

    def _renew(self) -> None:
        """The certificate, or what is trusted, is another one: so are the streams."""
        self._renewal_count += 1
        for place in self._places.values():
            stream = place.stream
            if stream is not None:
                stream.retire("this process's certificate was renewed")
                place.next_s, place.retry_s = 0.0, _RETRY_FIRST_S

    def _list_streams(self) -> list[CallStream]:
        return [place.stream for place in self._places.values() if place.stream is not None]


def _find_base(url: str) -> str:
    return url[: url.find("/", len("https://"))]


def _on_opening_over(place: _PeerStreams, _task: asyncio.Task[None]) -> None:
    place.opening = None
