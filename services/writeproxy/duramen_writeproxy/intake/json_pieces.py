"""A large JSON body in pieces: each record by itself, and the frame that is around them.

Python's parser lets no other thread run until it is through: 10 MiB that are hard to parse would
hold the process for most of a second, in whichever thread. Pieces are found by quotes and brackets
alone, and bounded by what makes JSON slow to parse, which is values: bytes outside of texts. What
takes the pieces parses each of them strictly; nothing is judged valid here.

Called by `bodies`. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from duramen.errors import DuramenError
from duramen.limits import RECORD_BYTES_MAX
from duramen.units import KIB

OUTSIDE_BYTES_MAX: Final = 128 * KIB
"""Of a piece, outside of its texts: 1,000 headers on lines of their own take 90 KiB, and as many
empty lists as fit are parsed in 10 ms."""

TEXT_BYTES_MAX: Final = 6 * RECORD_BYTES_MAX
"""Of one text: JSON encodes a byte of a record with six characters at most."""

_MARK: Final = re.compile(rb'["\[\]{}]')
_IN_TEXT: Final = re.compile(rb'(?:[^"\\]++|\\.){0,4096}+', re.DOTALL)
_STEP_BYTES: Final = 256 * KIB
"""Of a text that is looked at in one go: some 2 ms."""

_OPENING: Final = b"[{"
_QUOTE, _BRACE = b'"{'
_SPACE: Final = b" \t\n\r"
_RECORDS: Final = [*b"{["]
"""What is open where a record may begin: the document, and a list in it."""


def check_values(piece: bytes, place: str) -> None:
    """Refuse a piece that would take long to parse.

    Args:
        place: names the piece in errors, such as `line 3`.

    Raises:
        DuramenError: `invalid_argument`, `record_too_large`, with `place` as the field.
    """
    for _ in _Marks(piece, place):
        pass


class _Marks:
    """The brackets of a text in their order, each with its place; texts are stepped over."""

    def __init__(self, text: bytes, place: str | None) -> None:
        self.place = place
        self.outside_bytes = 0
        """Since whoever iterates set it to 0."""
        self._text = text

    def __iter__(self) -> Iterator[tuple[int, int]]:
        position = 0
        while (mark := self._find_mark(position)) is not None:
            position = mark + 1
            if self._text[mark] == _QUOTE:
                position = self._skip_text(position)
            else:
                yield mark, self._text[mark]

    def _find_mark(self, position: int) -> int | None:
        end = min(len(self._text), position + OUTSIDE_BYTES_MAX)
        found = _MARK.search(self._text, position, end)
        self.outside_bytes += (end if found is None else found.end()) - position
        if self.outside_bytes >= OUTSIDE_BYTES_MAX:
            limit = f"more than {OUTSIDE_BYTES_MAX} bytes of JSON outside of its texts"
            raise self._refusal("invalid_argument", limit)
        return None if found is None else found.start()

    def _skip_text(self, start: int) -> int:
        """Where a text that begins at `start` is over."""
        position, end = -1, start
        while position < end:
            position = end
            found = _IN_TEXT.match(self._text, position, position + _STEP_BYTES)
            assert found is not None, "nothing at all is a match"
            end = found.end()
            if end - start > TEXT_BYTES_MAX:
                raise self._refusal("record_too_large", "a text is longer than a record may be")
        if self._text[end : end + 1] != b'"':
            raise self._refusal("invalid_argument", "no JSON: a text does not end")
        return end + 1

    def _refusal(self, code: str, detail: str) -> DuramenError:
        text = detail if self.place is None else f"{self.place}: {detail}"
        return DuramenError(code, text, field=self.place)


class Cutter:
    """Takes the records out of a document.

    Invariants:
     1 what is before `_taken_to` is in the frame, or in a record, or was a comma between two.
    """

    def __init__(self, body: bytes) -> None:
        self.frame = bytearray()
        """After `cut`: the document, its list of records empty."""
        self._body = body
        self._marks = _Marks(body, None)
        self._opened: list[int] = []
        self._taken_to = 0
        self._record_at: int | None = None
        self._record_count = 0
        self._is_first = True
        self._frame_outside_bytes = 0

    def cut(self) -> Iterator[bytes]:
        """The objects in lists of the document; a list without any stays in the frame.

        Raises:
            DuramenError: as `check_values`.
        """
        for at, kind in self._marks:
            if kind in _OPENING:
                if self._opened == _RECORDS and kind == _BRACE:
                    self._begin_record(at)
                self._opened.append(kind)
                if self._opened == _RECORDS:
                    self._begin_list(at + 1)
            elif self._opened:
                if self._opened == _RECORDS:
                    self._end_list(at)
                self._opened.pop()
                if self._opened == _RECORDS and self._record_at is not None:
                    yield self._end_record(self._record_at, at + 1)
        self.frame += self._body[self._taken_to :]

    def _begin_list(self, at: int) -> None:
        self.frame += self._body[self._taken_to : at]
        self._taken_to = at
        self._is_first = True
        self._frame_outside_bytes = self._marks.outside_bytes
        self._marks.outside_bytes = 0

    def _end_list(self, at: int) -> None:
        if not self._is_first:
            self._check_between(at, b"")
            self._taken_to = at
        self._marks.place = None
        self._marks.outside_bytes += self._frame_outside_bytes

    def _begin_record(self, at: int) -> None:
        self._check_between(at, b"" if self._is_first else b",")
        self._record_at = at
        self._marks.place = f"records[{self._record_count}]"
        self._marks.outside_bytes = 0

    def _end_record(self, start: int, end: int) -> bytes:
        self._record_at, self._taken_to, self._is_first = None, end, False
        self._record_count += 1
        self._marks.outside_bytes = 0
        return self._body[start:end]

    def _check_between(self, at: int, expected: bytes) -> None:
        if self._body[self._taken_to : at].strip(_SPACE) != expected:
            field = f"records[{self._record_count}]"
            detail = f"{field}: an object is expected, and a comma between two"
            raise DuramenError("invalid_argument", detail, field=field)
