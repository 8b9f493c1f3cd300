"""Frames of `/s/members`: what is packed is read, and nothing else is.

Source: docs/protocol/members.md "The call".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.members.messages import (
    AWAY_COUNT_MAX,
    MemberQuestion,
    MemberReply,
    MemberState,
    RelayFinding,
    Word,
)
from duramen.wire.frame import FrameError, pack_frame
from duramen.wire.member_calls import (
    _ROW,
    FRAME_BYTES_MOST,
    pack_question,
    pack_reply,
    parse_question,
    parse_reply,
)

printable = st.from_regex(r"[a-zA-Z0-9._-]{1,60}", fullmatch=True)
words = st.builds(Word, printable, st.integers(0, 2**32 - 1), st.sampled_from(MemberState))
word_lists = st.lists(words, max_size=18).map(tuple)


@given(printable, st.integers(0, 2**32 - 1), word_lists, st.none() | printable)
def test_questions_are_read_as_they_were_packed(
    sender: str, incarnation: int, told: tuple[Word, ...], target: str | None
) -> None:
    question = MemberQuestion(sender, incarnation, told, target)
    assert parse_question(pack_question(question)) == question


def test_an_observers_question() -> None:
    question = MemberQuestion("proxy", 0, is_observer=True)
    assert parse_question(pack_question(question)) == question


@given(printable, st.integers(0, 2**32 - 1), word_lists, st.sampled_from(RelayFinding))
def test_answers_are_read_as_they_were_packed(
    sender: str, incarnation: int, told: tuple[Word, ...], finding: RelayFinding
) -> None:
    reply = MemberReply(sender, incarnation, told, finding)
    assert parse_reply(pack_reply(reply)) == reply


def test_the_longest_frame_is_read() -> None:
    told = tuple(
        Word("x" * 252 + f"{i:03}", 1, MemberState.CONFIRMED) for i in range(AWAY_COUNT_MAX)
    )
    data = pack_reply(MemberReply("y" * 255, 1, told))
    assert len(data) <= FRAME_BYTES_MOST
    assert parse_reply(data).words == told


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        parse_question(data)
    with pytest.raises(FrameError):
        parse_reply(data)


@pytest.mark.parametrize(
    ("rows", "payload", "flags"),
    [
        ([], b"", 0),
        ([(0, 0, 1, 0)], b"a", 3),
        ([(0, 0, 1, 0)], b"a", 1),
        ([(0, 3, 1, 0)], b"a", 0),
        ([(0, 0, 0, 0)], b"", 0),
        ([(0, 0, 2, 0)], b"a", 0),
        ([(0, 0, 1, 0)], b"\xff", 0),
        ([(0, 0, 1, 0)] * 65, b"a" * 65, 0),
    ],
)
def test_questions_that_say_something_else_are_refused(
    rows: list[tuple[int, ...]], payload: bytes, flags: int
) -> None:
    with pytest.raises(FrameError):
        parse_question(pack_frame(b"DMBQ", _ROW, rows, [payload], flags=flags))


def test_a_finding_that_is_not_known_is_refused() -> None:
    with pytest.raises(FrameError):
        parse_reply(pack_frame(b"DMBR", _ROW, [(0, 0, 1, 0)], [b"a"], flags=4))
