"""Questions and answers of members: `POST /s/members`, one small frame each.

The first row is the sender, the others are words about members; for an indirect ping the second
row names who is to be pinged. Names are the payload. A frame that says anything else is refused.

Called by `runtime.members`. Source: docs/protocol/members.md "The call".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from duramen.core.members.messages import (
    MemberQuestion,
    MemberReply,
    MemberState,
    RelayFinding,
    Word,
)
from duramen.wire.frame import Frame, FrameError, pack_frame, parse_frame, split_payload

# row  incarnation u32, state u8, bytes of the name u8, 0 u16; payload: the names
# flags of a request: 0 ping, 1 indirect ping (second row: of whom), 2 an observer asks
# flags of an answer: the finding

PATH: Final = "/s/members"
HELPER_PATH: Final = "/b/members"
"""The same at a bookie, which answers indirect pings alone."""

HELPER_PREFIX: Final = "bookie/"
"""Before the id of a bookie: no sequencer has a name like that, for ids are names of nodes."""

ROW_COUNT_MAX: Final = 64
FRAME_BYTES_MOST: Final = 20 * 1024
"""64 rows with the longest names."""

_ROW = struct.Struct("<IBBH")
_QUESTION: Final = b"DMBQ"
_ANSWER: Final = b"DMBR"
_PING, _INDIRECT, _OBSERVER = range(3)


def pack_question(question: MemberQuestion) -> bytes:
    """Encode a question."""
    words = [Word(question.sender, question.incarnation, MemberState.ALIVE)]
    flags = _OBSERVER if question.is_observer else _PING
    if question.target is not None:
        flags = _INDIRECT
        words.append(Word(question.target, 0, MemberState.ALIVE))
    return _pack(_QUESTION, [*words, *question.words], flags)


def parse_question(data: bytes) -> MemberQuestion:
    """Read a question.

    Raises:
        FrameError: no such frame.
    """
    flags, (sender, *words) = _parse(data, _QUESTION)
    if flags not in (_PING, _INDIRECT, _OBSERVER):
        raise FrameError("a question of members has flags that are not known")
    target = None
    if flags == _INDIRECT:
        if not words:
            raise FrameError("an indirect ping names nobody")
        target = words.pop(0).name
    is_observer = flags == _OBSERVER
    return MemberQuestion(sender.name, sender.incarnation, tuple(words), target, is_observer)


def pack_reply(reply: MemberReply) -> bytes:
    """Encode an answer."""
    words = [Word(reply.sender, reply.incarnation, MemberState.ALIVE), *reply.words]
    return _pack(_ANSWER, words, int(reply.finding))


def parse_reply(data: bytes) -> MemberReply:
    """Read an answer.

    Raises:
        FrameError: no such frame.
    """
    flags, (sender, *words) = _parse(data, _ANSWER)
    try:
        finding = RelayFinding(flags)
    except ValueError:
        raise FrameError("an answer of members has a finding that is not known") from None
    return MemberReply(sender.name, sender.incarnation, tuple(words), finding)


def _pack(magic: bytes, words: Sequence[Word], flags: int) -> bytes:
    assert len(words) <= ROW_COUNT_MAX, len(words)
    names = [word.name.encode() for word in words]
    rows = [
        (word.incarnation, word.state, len(name), 0)
        for word, name in zip(words, names, strict=True)
    ]
    return pack_frame(magic, _ROW, rows, names, flags=flags)


def _parse(data: bytes, magic: bytes) -> tuple[int, list[Word]]:
    if len(data) > FRAME_BYTES_MOST:
        raise FrameError("a frame of members is not so long")
    frame = parse_frame(data, magic, _ROW)
    if not 1 <= len(frame.rows) <= ROW_COUNT_MAX:
        raise FrameError(f"a frame of members has 1 to {ROW_COUNT_MAX} rows")
    return frame.flags, _read_words(frame)


def _read_words(frame: Frame) -> list[Word]:
    names = split_payload(frame.payload, [row[2] for row in frame.rows])
    words = []
    for (incarnation, state, *_), name in zip(frame.rows, names, strict=True):
        try:
            words.append(Word(bytes(name).decode(), incarnation, MemberState(state)))
        except ValueError:
            raise FrameError("a word about a member is not understood") from None
    if any(not word.name for word in words):
        raise FrameError("a member without a name")
    return words
