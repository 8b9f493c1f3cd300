"""One request of HTTP/2 that lasts: opened by a library, carried by hand.

The library (h2) knows settings and headers, and opens the connection and its one stream. Then it is
let go: an idle stream would hold thirty KiB for it. What comes from then on is DATA, WINDOW_UPDATE,
PING and the end, which are read and written here, at a tenth of the CPU.

Pure: bytes in, events out, and bytes to be written. Called by `runtime.standing`. Source: RFC 9113
sections 4.1, 5.2, 6.1 and 6.9; ADR 0048; docs/protocol/standing-streams.md "The port".
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from duramen.units import KIB, MIB

_STREAM: Final = 1
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RESET, _SETTINGS, _PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
_END_STREAM, _ACK, _PADDED = 0x1, 0x1, 0x8
_CONTROL_BYTES_MAX: Final = 20 * KIB
_FRAME_BYTES_MAX: Final = 1 * MIB
_HEADERS_BYTES_MAX: Final = 16 * KIB
_CRUMB_BYTES: Final = 16 * KIB
_CONNECTION_WINDOW_BYTES: Final = 65_535
"""What every connection begins with (RFC 9113, 6.9.2)."""

_WINDOW_MAX: Final = (1 << 31) - 1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA_TAIL: Final = b"\0\0" + _STREAM.to_bytes(4, "big")
_UPDATE: Final = struct.Struct(">II")

_INCREMENT_BYTES: Final = 4
_PING_BODY: Final = b"standing"
_ENDS: Final = {
    _GOAWAY: "the peer closes the connection", _RESET: "the peer gave the stream up",
    _HEADERS: "the peer ended the stream",
}  # fmt: skip

WINDOW_BYTES: Final = 4 * MIB
"""What the other side may send before what it sent is opened again."""


class Http2Error(Exception):
    """The peer speaks no HTTP/2, or not of this kind: the connection is of no use."""


class HeadersCame(NamedTuple):
    """The request is there, or its answer: its headers, pseudo-headers first."""

    headers: list[tuple[str, str]]


class Payload(NamedTuple):
    """A piece of the body."""

    piece: bytes


class Ponged(NamedTuple):
    """A ping was answered."""


class Ended(NamedTuple):
    """The peer is done, or leaves, or refuses the stream."""

    why: str


PipeEvent = HeadersCame | Payload | Ponged | Ended


class Http2Pipe:
    """One side of such a connection; what is to be written is fetched with `take`.

    Args:
        is_client: it makes the request.
    """

    def __init__(self, *, is_client: bool) -> None:
        self._library: H2Connection | None = H2Connection(
            H2Configuration(client_side=is_client, header_encoding="utf-8")
        )
        """None: the stream is open, and it has done its part."""
        values = {
            SettingCodes.MAX_FRAME_SIZE: _FRAME_BYTES_MAX,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            SettingCodes.MAX_CONCURRENT_STREAMS: 1,
            SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_BYTES_MAX,
        }
        if is_client:
            values[SettingCodes.ENABLE_PUSH] = 0
        self._library.local_settings = Settings(client=is_client, initial_values=values)
        self._library.initiate_connection()
        self._library.increment_flow_control_window(WINDOW_BYTES - _CONNECTION_WINDOW_BYTES)
        self._has_preface = is_client
        self._rest = b""
        self._left_bytes = 0
        """Of the DATA frame that is being read."""
        self._is_last = False
        """Whether it ends the body."""
        self._room_bytes = WINDOW_BYTES
        """What the peer may still send."""
        self._out: list[bytes | memoryview] = []
        self._held: deque[memoryview] = deque()
        self._held_bytes = 0
        self._windows_bytes = [0, 0]
        """What may be sent: on the connection, on the stream."""
        self._frame_bytes_max = 0
        self.data_bytes = 0
        """Of the body, as far as the windows had room."""

    @property
    def held_bytes(self) -> int:
        """What was sent and waits for the peer's windows."""
        return self._held_bytes

    def request(self, headers: Sequence[tuple[str, str]]) -> None:
        """Begin the request; its body follows once `HeadersCame`."""
        assert self._library is not None, "it begins with the request"
        self._library.send_headers(_STREAM, list(headers))

    def answer(self, headers: Sequence[tuple[str, str]], *, is_end: bool = False) -> None:
        """Answer the request; unless it ends there, its body follows.

        Raises:
            Http2Error: the peer has ended it meanwhile.
        """
        assert self._library is not None, "one request has one answer"
        try:
            self._library.send_headers(_STREAM, list(headers), end_stream=is_end)
        except ProtocolError as error:
            raise Http2Error(f"the request was taken back: {error}") from error
        if not is_end:
            self._take_over(self._library)

    def ping(self) -> None:
        """Ask whether the peer is there: `Ponged` if it is."""
        if self._library is None:
            self._out.append(_pack_frame(_PING, 0, _PING_BODY))
        else:
            self._library.ping(_PING_BODY)

    def close(self) -> None:
        """Say that nothing follows."""
        if self._library is None:
            self._out.append(_pack_frame(_GOAWAY, 0, _UPDATE.pack(_STREAM, ErrorCodes.NO_ERROR)))
        else:
            self._library.close_connection(ErrorCodes.NO_ERROR)

    def send(self, message: bytes) -> None:
        """Bytes of the body; those that the windows have no room for are held back."""
        assert self._library is None, "a body follows the headers"
        size_bytes = len(message)
        if not self._held and size_bytes <= min(*self._windows_bytes, self._frame_bytes_max):
            self._put(message)
            return
        self._held.append(memoryview(message))
        self._held_bytes += size_bytes
        self._flush_held()

    def open_window(self, size_bytes: int) -> None:
        """The peer may send so much more: as much of what it sent was taken."""
        self._room_bytes += size_bytes
        assert self._room_bytes <= WINDOW_BYTES, "more than was sent"
        self._out += (_pack_update(0, size_bytes), _pack_update(_STREAM, size_bytes))

    def take(self) -> list[bytes | memoryview]:
        """What is to be written now."""
        out, self._out = self._out, []
        control = b"" if self._library is None else self._library.data_to_send()
        return [control, *out] if control else out

    def receive(self, data: bytes) -> list[PipeEvent]:
        """What came.

        Raises:
            Http2Error: it is none of what may come.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        found: list[PipeEvent] = []
        at = 0 if self._has_preface else self._begin(data, found)
        while at < len(data) and self._has_preface:
            if self._left_bytes:
                piece = data[at : at + self._left_bytes]
                at += len(piece)
                self._take_in(piece, found)
                continue
            if len(data) - at < _HEAD_BYTES:
                break
            size_bytes = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3], data[at + 4]
            if kind == _DATA:
                self._begin_data(size_bytes, flags, data[at + 5 : at + _HEAD_BYTES])
                at += _HEAD_BYTES
                if not size_bytes:
                    self._take_in(b"", found)
                continue
            if size_bytes > _CONTROL_BYTES_MAX:
                raise Http2Error(f"a frame of kind {kind} and {size_bytes:,} bytes")
            end = at + _HEAD_BYTES + size_bytes
            if end > len(data):
                break
            frame, at = data[at:end], end
            if self._library is None:
                self._control(kind, flags, frame[_HEAD_BYTES:], frame[5:_HEAD_BYTES], found)
            else:
                self._give(self._library, frame, found)
        self._rest = data[at:]
        return found

    # --- Reading ---

    def _begin(self, data: bytes, found: list[PipeEvent]) -> int:
        """Where the first frame begins."""
        if data[: len(_PREFACE)] != _PREFACE[: len(data)]:
            raise Http2Error("no connection preface")
        if len(data) < len(_PREFACE):
            return 0
        self._has_preface = True
        assert self._library is not None, "nothing was answered yet"
        self._give(self._library, _PREFACE, found)
        return len(_PREFACE)

    def _begin_data(self, size_bytes: int, flags: int, stream: bytes) -> None:
        if self._library is not None:
            raise Http2Error("a body before the headers of both sides")
        if int.from_bytes(stream, "big") != _STREAM or flags & _PADDED:
            raise Http2Error("DATA of another stream, or padded")
        if size_bytes > _FRAME_BYTES_MAX:
            raise Http2Error(f"DATA of {size_bytes:,} bytes")
        if self._is_last:
            raise Http2Error("DATA behind the end")
        self._room_bytes -= size_bytes
        if self._room_bytes < 0:
            raise Http2Error("more DATA than the window has room for")
        self._left_bytes = size_bytes
        self._is_last = bool(flags & _END_STREAM)

    def _take_in(self, piece: bytes, found: list[PipeEvent]) -> None:
        self._left_bytes -= len(piece)
        if piece:
            found.append(Payload(piece))
        if self._is_last and not self._left_bytes:
            found.append(Ended("the peer ended the stream"))

    def _give(self, library: H2Connection, frame: bytes, found: list[PipeEvent]) -> None:
        """What the library makes of it."""
        try:
            events = library.receive_data(frame)
        except (ProtocolError, UnicodeError) as error:
            raise Http2Error(str(error) or type(error).__name__) from error
        for event in events:
            self._note(library, event, found)

    def _note(self, library: H2Connection, event: Event, found: list[PipeEvent]) -> None:
        match event:
            case RequestReceived() | ResponseReceived():
                if event.stream_id != _STREAM:
                    raise Http2Error(f"headers of stream {event.stream_id}")
                headers = [(str(name), str(value)) for name, value in event.headers or ()]
                found.append(HeadersCame(headers))
                if isinstance(event, ResponseReceived) and (":status", "200") in headers:
                    self._take_over(library)
            case ConnectionTerminated() | StreamReset() | StreamEnded() | TrailersReceived():
                found.append(Ended(type(event).__name__))
            case _:
                pass

    def _take_over(self, library: H2Connection) -> None:
        """From here on all is done here."""
        stream = library.streams[_STREAM]
        self._windows_bytes = [
            library.outbound_flow_control_window, stream.outbound_flow_control_window,
        ]  # fmt: skip
        self._frame_bytes_max = library.max_outbound_frame_size
        self._out.append(library.data_to_send())
        self._library = None

    def _control(
        self, kind: int, flags: int, body: bytes, stream: bytes, found: list[PipeEvent]
    ) -> None:
        """A frame of an open stream that is no DATA."""
        if kind == _WINDOW_UPDATE:
            self._widen(int.from_bytes(stream, "big"), body)
        elif kind == _PING:
            self._answer_ping(body, is_answer=bool(flags & _ACK), found=found)
        elif kind in _ENDS:
            found.append(Ended(_ENDS[kind]))
        elif kind == _SETTINGS and not flags & _ACK:
            raise Http2Error("settings that change while the stream is open")
        elif kind in (_PROMISE, _CONTINUATION):
            raise Http2Error(f"a frame of kind {kind}")
        # Priorities, and kinds that nobody knows yet, are passed over.

    def _answer_ping(self, body: bytes, *, is_answer: bool, found: list[PipeEvent]) -> None:
        if len(body) != len(_PING_BODY):
            raise Http2Error("a PING of another size")
        if is_answer:
            found.append(Ponged())
        else:
            self._out.append(_pack_frame(_PING, 0, body, flags=_ACK))

    def _widen(self, stream: int, body: bytes) -> None:
        if len(body) != _INCREMENT_BYTES:
            raise Http2Error("a WINDOW_UPDATE of another size")
        added_bytes = int.from_bytes(body, "big")
        if stream not in (0, _STREAM) or not 0 < added_bytes <= _WINDOW_MAX:
            raise Http2Error(f"a WINDOW_UPDATE of stream {stream} by {added_bytes:,}")
        self._windows_bytes[stream] += added_bytes
        if self._windows_bytes[stream] > _WINDOW_MAX:
            raise Http2Error(f"a window of {self._windows_bytes[stream]:,} bytes")
        self._flush_held()

    # --- Writing ---

    def _put(self, payload: bytes | memoryview) -> None:
        size_bytes = len(payload)
        head = size_bytes.to_bytes(3, "big") + _DATA_TAIL
        self._out += (head, payload)
        self.data_bytes += size_bytes
        self._windows_bytes[0] -= size_bytes
        self._windows_bytes[1] -= size_bytes

    def _flush_held(self) -> None:
        while self._held:
            room_bytes = min(*self._windows_bytes, self._frame_bytes_max)
            # In crumbs it would cost more than it is: who opens its window does so by much.
            if room_bytes < min(len(self._held[0]), _CRUMB_BYTES):
                return
            message = self._held.popleft()
            if len(message) > room_bytes:
                self._held.appendleft(message[room_bytes:])
                message = message[:room_bytes]
            self._held_bytes -= len(message)
            self._put(message)


def _pack_update(stream: int, size_bytes: int) -> bytes:
    return b"\0\0\x04\x08\0" + _UPDATE.pack(stream, size_bytes)


def _pack_frame(kind: int, stream: int, body: bytes, *, flags: int = 0) -> bytes:
    head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + body
