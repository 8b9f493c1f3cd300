"""Messages of a standing stream: a head of twelve bytes and a body, in whatever pieces they come.

A head is judged before its body is here, so that what cannot be never holds memory: it breaks the
stream. Called by `runtime.standing`. Source: docs/protocol/standing-streams.md "Messages".
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from duramen.limits import BODY_SMALL_BYTES
from duramen.units import MIB

_HEAD: Final = struct.Struct("<IIHBB")
_ADVICE: Final = struct.Struct("<I")

HEAD_BYTES: Final = _HEAD.size
REQUEST_BYTES_MAX: Final = 1 * MIB
IDENTITY_BYTES_MAX: Final = 3_000
ANSWER_BYTES_MAX: Final = BODY_SMALL_BYTES
NUMBER_MAX: Final = 0xFFFF_FFFF
ADVICE_MS_MAX: Final = 0xFFFF_FFFF

PATHS: Final = {1: "/b/add", 2: "/s/append", 3: "/b/lac", 4: "/s/lac"}
"""What a request may call, by the code in its head; later releases may know more."""


class MessageError(ValueError):
    """Bytes that are no message: the stream is broken."""


class MessageKind(enum.IntEnum):
    """What a message is; the caller's, or the server's."""

    REQUEST = 1
    ANSWER = 2
    REFUSAL = 3
    IDENTITY = 4
    LAST = 5


_BYTES_MAX: Final = {
    MessageKind.REQUEST: REQUEST_BYTES_MAX,
    MessageKind.ANSWER: ANSWER_BYTES_MAX,
    MessageKind.REFUSAL: ANSWER_BYTES_MAX,
    MessageKind.IDENTITY: IDENTITY_BYTES_MAX,
    MessageKind.LAST: 0,
}
_OF_CALLER: Final = frozenset({MessageKind.REQUEST, MessageKind.IDENTITY})
_OF_SERVER: Final = frozenset({MessageKind.ANSWER, MessageKind.REFUSAL, MessageKind.LAST})


class Message(NamedTuple):
    """A message as it came.

    Attributes:
        number: of the call; of `last` the last call that was begun, 0 to 2³² − 1; of an identity 0.
        what: of a request a key of `PATHS`, of an answer or a refusal its HTTP status; else 0.
        has_more: more of the same answer follows.
    """

    kind: MessageKind
    number: int
    what: int
    body: bytes
    has_more: bool = False


def pack_message(
    kind: MessageKind, number: int, what: int, body: bytes, *, has_more: bool = False
) -> bytes:
    """A message; its body fits its kind."""
    assert len(body) <= _BYTES_MAX[kind]
    return _HEAD.pack(len(body), number, what, kind, has_more) + body


def pack_refusal(advice_ms: int, sentence: str) -> bytes:
    """The body of a refusal: when to ask again, and why."""
    return _ADVICE.pack(advice_ms) + sentence.encode()[: ANSWER_BYTES_MAX - _ADVICE.size]


def parse_refusal(body: bytes) -> tuple[int, str]:
    """When to ask again, in ms, and why.

    Raises:
        MessageError: it says neither.
    """
    if len(body) < _ADVICE.size:
        raise MessageError(f"a refusal of {len(body)} bytes")
    return _ADVICE.unpack_from(body)[0], body[_ADVICE.size :].decode(errors="replace")


class MessageReader:
    """Takes what comes, gives whole messages.

    Args:
        is_server: it takes what callers send.
    """

    def __init__(self, *, is_server: bool) -> None:
        self._kinds = _OF_CALLER if is_server else _OF_SERVER
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = 0
        """Of the message that is not whole; 0: its head is not."""

    @property
    def is_between(self) -> bool:
        """Whether nothing of a message is here."""
        return not self._pieces

    def read(self, piece: bytes) -> list[Message]:
        """What is whole with this piece.

        Raises:
            MessageError: a head that cannot be; what stood before it is lost, too.
        """
        if self._pieces:
            if self._held_bytes + len(piece) < (self._wanted_bytes or HEAD_BYTES):
                self._keep(piece)
                return []
            self._pieces.append(piece)
            piece = b"".join(self._pieces)
            self._pieces.clear()
            self._held_bytes = 0
        found, at, end = [], 0, len(piece)
        while end - at >= HEAD_BYTES:
            body_bytes, number, what, kind, flag = _HEAD.unpack_from(piece, at)
            self._judge(body_bytes, number, what, kind, flag)
            self._wanted_bytes = HEAD_BYTES + body_bytes
            if end - at < self._wanted_bytes:
                break
            body = piece[at + HEAD_BYTES : at + self._wanted_bytes]
            at += self._wanted_bytes
            self._wanted_bytes = 0
            found.append(Message(MessageKind(kind), number, what, body, bool(flag)))
        if at < end:
            self._keep(piece[at:])
        return found

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held_bytes += len(piece)

    def _judge(self, body_bytes: int, number: int, what: int, kind: int, flag: int) -> None:
        if kind not in self._kinds:
            raise MessageError(f"a message of kind {kind}")
        if body_bytes > _BYTES_MAX[MessageKind(kind)]:
            raise MessageError(f"a message of kind {kind} and {body_bytes:,} bytes")
        if flag > (kind == MessageKind.ANSWER):
            raise MessageError(f"a message of kind {kind} with the flag {flag}")
        if kind == MessageKind.REQUEST and not what:
            raise MessageError("a request for nothing")
        is_numberless = kind in (MessageKind.IDENTITY, MessageKind.LAST)
        is_odd = what != 0 if is_numberless else number == 0
        if is_odd or (kind == MessageKind.IDENTITY and number):
            raise MessageError(f"a message of kind {kind} with number {number}, {what}")
