"""The part of HTTP/2 that carries a standing stream: against itself, and against a whole library.

Source: RFC 9113; docs/protocol/standing-streams.md "The port".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded

from duramen.wire.standing.http2 import (
    WINDOW_BYTES,
    Ended,
    HeadersCame,
    Http2Error,
    Http2Pipe,
    Payload,
    PipeEvent,
    Ponged,
)

REQUEST = [(":method", "POST"), (":scheme", "http"), (":authority", "a:1"), (":path", "/x")]
ANSWER = [(":status", "200")]


def _flow(source: Http2Pipe, sink: Http2Pipe, step: int = 1 << 20) -> list[PipeEvent]:
    """Carry what one side has to write to the other, in pieces."""
    data = b"".join(source.take())
    return [one for at in range(0, len(data), step) for one in sink.receive(data[at : at + step])]


def _payload(events: list[PipeEvent]) -> bytes:
    return b"".join(one.piece for one in events if isinstance(one, Payload))


def _open(step: int = 1 << 20) -> tuple[Http2Pipe, Http2Pipe]:
    client, server = Http2Pipe(is_client=True), Http2Pipe(is_client=False)
    client.request(REQUEST)
    came = _flow(client, server, step)
    assert [(":path", "/x") in one.headers for one in came if isinstance(one, HeadersCame)] == [
        True
    ]
    server.answer(ANSWER)
    came = _flow(server, client, step)
    assert [isinstance(one, HeadersCame) for one in came] == [True]
    assert _flow(client, server, step) == []
    return client, server


@pytest.mark.parametrize("step", [1, 2, 7, 9, 10, 1 << 20])
def test_bodies_flow_both_ways_in_whatever_pieces(step: int) -> None:
    client, server = _open(step)
    client.send(b"one")
    client.send(b"two")
    assert _payload(_flow(client, server, step)) == b"onetwo"
    server.send(b"three")
    client.send(b"four")
    assert _payload(_flow(server, client, step)) == b"three"
    assert _payload(_flow(client, server, step)) == b"four"


def test_no_more_is_sent_than_the_window_has_room_for() -> None:
    client, server = _open()
    sent = [bytes([number]) * (1 << 20) for number in range(6)]
    for one in sent:
        client.send(one)
    assert client.held_bytes == 2 << 20
    came = _payload(_flow(client, server))
    assert len(came) == WINDOW_BYTES
    server.open_window(1 << 19)
    _flow(server, client)
    assert client.held_bytes == 3 << 19
    came += _payload(_flow(client, server))
    server.open_window(2 << 20)
    _flow(server, client)
    came += _payload(_flow(client, server))
    assert came == b"".join(sent)
    assert client.held_bytes == 0


def test_who_sends_more_than_its_window_is_found_out() -> None:
    client, server = _open()
    for _ in range(4):
        client.send(bytes(1 << 20))
    _flow(client, server)
    with pytest.raises(Http2Error, match="window"):
        server.receive(_data(b"x"))


def test_a_window_that_opens_in_crumbs_is_not_used_up_in_crumbs() -> None:
    client, server = _open()
    for _ in range(5):
        client.send(bytes(1 << 20))
    _flow(client, server)
    for _ in range(1_000):
        assert client.receive(_update(0, 1) + _update(1, 1)) == []
    assert client.take() == []
    assert client.held_bytes == 1 << 20
    client.receive(_update(0, 1 << 20) + _update(1, 1 << 20))
    assert client.held_bytes == 0


def test_a_request_that_is_taken_back_at_once_is_an_error() -> None:
    client, server = Http2Pipe(is_client=True), Http2Pipe(is_client=False)
    client.request(REQUEST)
    reset = b"\0\0\4\3\0\0\0\0\1" + b"\0\0\0\2"
    came = server.receive(b"".join(client.take()) + reset)
    assert [type(one) for one in came] == [HeadersCame, Ended]
    with pytest.raises(Http2Error, match="taken back"):
        server.answer(ANSWER)


def test_a_header_that_is_no_text_is_an_error() -> None:
    _, server = Http2Pipe(is_client=True), Http2Pipe(is_client=False)
    library = _Library(is_client=True)
    library.connection.send_headers(1, [*REQUEST, (b"x-odd", b"\xff\xfe")])
    with pytest.raises(Http2Error):
        library.drain(server)


def test_pings_pass_a_body_that_waits() -> None:
    client, server = _open()
    for _ in range(5):
        client.send(bytes(1 << 20))
    _flow(client, server)
    assert client.held_bytes
    client.ping()
    _flow(client, server)
    assert Ponged() in _flow(server, client)


def test_the_end_is_told_however_it_comes() -> None:
    client, server = _open()
    server.close()
    assert any(isinstance(one, Ended) for one in _flow(server, client))
    client, _ = _open()
    assert client.receive(_data(b"x", flags=1))[-1] == Ended("the peer ended the stream")
    with pytest.raises(Http2Error, match="behind the end"):
        client.receive(_data(b"y"))
    client, _ = _open()
    reset = b"\0\0\4\3\0\0\0\0\1" + b"\0\0\0\2"
    assert [type(one) for one in client.receive(reset)] == [Ended]


def test_a_refused_stream_ends_with_its_status() -> None:
    client, server = Http2Pipe(is_client=True), Http2Pipe(is_client=False)
    client.request(REQUEST)
    _flow(client, server)
    server.answer([(":status", "404")], is_end=True)
    came = _flow(server, client)
    assert [type(one) for one in came] == [HeadersCame, Ended]


def _data(body: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((0, flags)) + stream.to_bytes(4, "big") + body


def _update(stream: int, size: int, length: int = 4) -> bytes:
    head = length.to_bytes(3, "big") + b"\x08\0" + stream.to_bytes(4, "big")
    return head + size.to_bytes(length, "big")


@pytest.mark.parametrize(
    "frame",
    [
        _data(b"x", stream=3),
        _data(b"x", stream=0),
        _data(b"\0x", flags=8),
        (2 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1",
        _update(1, 0),
        _update(3, 1),
        _update(0, 1 << 31),
        _update(0, (1 << 31) - 1),
        _update(1, 1, length=5),
        b"\x01\0\1\4\0\0\0\0\0",
        b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\0\0\1",
        b"\0\0\1\x06\0\0\0\0\0x",
    ],
    ids=[
        "another stream", "no stream", "padded", "too large a frame", "an empty update",
        "an update of another stream", "an update that cannot be", "a window beyond all",
        "a long update", "a large control frame", "settings that change", "a short ping",
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(frame: bytes) -> None:
    _, server = _open()
    with pytest.raises(Http2Error):
        server.receive(frame)


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"\x16"]
)
def test_who_speaks_something_else_is_told_at_once(begin: bytes) -> None:
    with pytest.raises(Http2Error, match="preface"):
        Http2Pipe(is_client=False).receive(begin)


def test_a_body_before_the_answer_is_an_error() -> None:
    client, server = Http2Pipe(is_client=True), Http2Pipe(is_client=False)
    client.request(REQUEST)
    _flow(client, server)
    with pytest.raises(Http2Error, match="before"):
        server.receive(_data(b"x"))


@pytest.mark.parametrize(
    "frame",
    [b"\0\0\0\4\1\0\0\0\0", b"\0\0\5\2\0\0\0\0\1" + bytes(5), b"\0\0\3\x2a\7\0\0\0\0abc"],
    ids=["settings are acknowledged", "a priority", "a kind of the future"],
)
def test_what_says_nothing_here_is_passed_over(frame: bytes) -> None:
    client, server = _open()
    assert server.receive(frame) == []
    assert server.take() == []
    client.send(b"x")
    assert _payload(_flow(client, server)) == b"x"


@pytest.mark.parametrize("kind", [1, 3, 7], ids=["trailers", "a reset", "a farewell"])
def test_each_frame_that_ends_a_stream_does(kind: int) -> None:
    _, server = _open()
    frame = b"\0\0\4" + bytes((kind, 5)) + b"\0\0\0\1" + bytes(4)
    assert [type(one) for one in server.receive(frame)] == [Ended]


class _Library:
    """The other side as the library plays it, DATA and windows included."""

    def __init__(self, *, is_client: bool) -> None:
        self.connection = H2Connection(H2Configuration(client_side=is_client))
        self.connection.initiate_connection()
        self.body = b""
        self.events: list[type] = []

    def feed(self, pipe: Http2Pipe) -> None:
        for event in self.connection.receive_data(b"".join(pipe.take())):
            self.events.append(type(event))
            if isinstance(event, DataReceived):
                self.body += event.data or b""
                self.connection.acknowledge_received_data(event.flow_controlled_length or 0, 1)

    def drain(self, pipe: Http2Pipe) -> list[PipeEvent]:
        return pipe.receive(self.connection.data_to_send())


def _settle(pipe: Http2Pipe, library: _Library, is_done: Callable[[], bool]) -> list[PipeEvent]:
    """Let both talk until nothing is left to be said."""
    came: list[PipeEvent] = []
    for _ in range(2_000):
        library.feed(pipe)
        came += library.drain(pipe)
        if is_done():
            return came
    raise AssertionError("they talk for ever")


def test_a_whole_library_is_called() -> None:
    pipe, library = Http2Pipe(is_client=True), _Library(is_client=False)
    pipe.request(REQUEST)
    library.feed(pipe)
    assert RequestReceived in library.events
    library.connection.send_headers(1, ANSWER)
    assert any(isinstance(one, HeadersCame) for one in library.drain(pipe))
    sent = bytes(range(256)) * 1_000
    pipe.send(sent)
    # Its windows have 64 KiB: it opens them as it takes.
    came = _settle(pipe, library, lambda: library.body == sent)
    library.connection.send_data(1, b"answer")
    library.connection.end_stream(1)
    came += library.drain(pipe)
    assert _payload(came) == b"answer"
    assert isinstance(came[-1], Ended)


def test_a_whole_library_calls() -> None:
    pipe, library = Http2Pipe(is_client=False), _Library(is_client=True)
    library.connection.send_headers(1, REQUEST)
    assert any(isinstance(one, HeadersCame) for one in library.drain(pipe))
    pipe.answer(ANSWER)
    library.feed(pipe)
    assert ResponseReceived in library.events
    library.connection.send_data(1, b"request")
    assert _payload(library.drain(pipe)) == b"request"
    sent = bytes(range(256)) * 1_000
    pipe.send(sent)
    _settle(pipe, library, lambda: library.body == sent)
    pipe.close()
    library.feed(pipe)
    assert StreamEnded not in library.events
