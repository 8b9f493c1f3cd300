"""Messages of standing streams: cut anywhere they come out whole, and what cannot be is refused.

Source: docs/protocol/standing-streams.md "Messages".
"""

from __future__ import annotations

import struct

import pytest

from duramen.wire.standing.messages import (
    ANSWER_BYTES_MAX,
    IDENTITY_BYTES_MAX,
    NUMBER_MAX,
    REQUEST_BYTES_MAX,
    Message,
    MessageError,
    MessageKind,
    MessageReader,
    pack_message,
    pack_refusal,
    parse_refusal,
)

OF_CALLER = [
    Message(MessageKind.IDENTITY, 0, 0, b"who"),
    Message(MessageKind.REQUEST, 1, 1, b"a frame"),
    Message(MessageKind.REQUEST, 2, 3, b""),
    Message(MessageKind.REQUEST, NUMBER_MAX, 2, b"x" * 70),
]
OF_SERVER = [
    Message(MessageKind.ANSWER, 1, 200, b"part", has_more=True),
    Message(MessageKind.ANSWER, 1, 200, b""),
    Message(MessageKind.REFUSAL, 2, 503, pack_refusal(250, "no room")),
    Message(MessageKind.LAST, 0, 0, b""),
]


def _pack(message: Message) -> bytes:
    kind, number, what, body, has_more = message
    return pack_message(kind, number, what, body, has_more=has_more)


@pytest.mark.parametrize(("is_server", "messages"), [(True, OF_CALLER), (False, OF_SERVER)])
def test_messages_cut_at_every_byte_come_out_whole(
    is_server: bool, messages: list[Message]
) -> None:
    data = b"".join(map(_pack, messages))
    for cut in range(len(data) + 1):
        reader = MessageReader(is_server=is_server)
        assert reader.read(data[:cut]) + reader.read(data[cut:]) == messages
        assert reader.is_between
    for step in (1, 2, 3, 5, 13):
        reader = MessageReader(is_server=is_server)
        found = [
            one for at in range(0, len(data), step) for one in reader.read(data[at : at + step])
        ]
        assert found == messages


def test_half_a_message_is_told_from_none() -> None:
    reader = MessageReader(is_server=True)
    data = _pack(OF_CALLER[1])
    assert reader.is_between
    assert reader.read(data[:5]) == []
    assert not reader.is_between
    assert reader.read(data[5:]) == [OF_CALLER[1]]
    assert reader.is_between


def test_the_bytes_of_a_request() -> None:
    spelt = _pack(Message(MessageKind.REQUEST, 7, 1, b"ab"))
    assert spelt.hex() == "02000000" + "07000000" + "0100" + "01" + "00" + "6162"


def _head(size: int, number: int, what: int, kind: int, flag: int = 0) -> bytes:
    return struct.pack("<IIHBB", size, number, what, kind, flag)


@pytest.mark.parametrize(
    ("is_server", "head"),
    [
        (True, _head(0, 1, 200, 2)),
        (True, _head(0, 1, 503, 3)),
        (True, _head(0, 1, 0, 5)),
        (False, _head(0, 1, 1, 1)),
        (False, _head(0, 0, 0, 4)),
        (True, _head(0, 1, 1, 0)),
        (False, _head(0, 1, 1, 6)),
        (True, _head(REQUEST_BYTES_MAX + 1, 1, 1, 1)),
        (True, _head(IDENTITY_BYTES_MAX + 1, 0, 0, 4)),
        (False, _head(ANSWER_BYTES_MAX + 1, 1, 200, 2)),
        (False, _head(1, 0, 0, 5)),
        (True, _head(0, 0, 1, 1)),
        (True, _head(0, 1, 0, 1)),
        (True, _head(0, 1, 1, 1, 1)),
        (True, _head(0, 1, 0, 4)),
        (True, _head(0, 0, 1, 4)),
        (False, _head(0, 0, 200, 2)),
        (False, _head(0, 1, 200, 2, 2)),
        (False, _head(0, 0, 503, 3)),
        (False, _head(0, 1, 503, 3, 1)),
        (False, _head(0, 1, 1, 5)),
    ],
)
def test_a_head_that_cannot_be_breaks_the_stream(is_server: bool, head: bytes) -> None:
    with pytest.raises(MessageError):
        MessageReader(is_server=is_server).read(head)


def test_the_largest_of_each_kind_are_taken() -> None:
    request = Message(MessageKind.REQUEST, 1, 1, bytes(REQUEST_BYTES_MAX))
    assert MessageReader(is_server=True).read(_pack(request)) == [request]
    answer = Message(MessageKind.ANSWER, 1, 200, bytes(ANSWER_BYTES_MAX))
    assert MessageReader(is_server=False).read(_pack(answer)) == [answer]


def test_a_refusal_says_when_and_why() -> None:
    assert parse_refusal(pack_refusal(250, "no room")) == (250, "no room")
    assert len(pack_refusal(1, "x" * 100_000)) == ANSWER_BYTES_MAX
    with pytest.raises(MessageError):
        parse_refusal(b"abc")
