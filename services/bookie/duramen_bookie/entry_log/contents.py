"""Contents of envelopes: the table that hot entries point into, rows of indexes, runs of equals.

A content is an envelope without its checksum; the entries of a sticky block have one content, so
that a table keeps it once for all that follow each other. A content says itself how long it is, so
its number is where it begins.

Not here: envelopes as they lie on a disk (`data_file`), what a content says
(`wire.flexible.envelope`).
Called by the active index, by storage and entry log. Source: docs/protocol/envelopes.md "On disk".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.ids import EntryId, LedgerId
from duramen.wire.disk.entry_log_format import NO_ENVELOPE
from duramen.wire.flexible.envelope import content_bytes

NO_CONTENT: Final = 0xFFFF_FFFF
"""Stands for the content of an entry without an envelope."""


class ContentRun(NamedTuple):
    """Entries `first` … `last`, all of which are here, with the content of their envelopes."""

    first: EntryId
    last: EntryId
    content: bytes


class ContentTable:
    """Contents by number; one that equals the one that was put before is not put again."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._last_number = NO_CONTENT
        self.content_bytes_max = 0
        """The longest one that was ever put."""

    def put(self, content: bytes) -> int:
        """The number of a content."""
        last = self._last_number
        if last != NO_CONTENT and self._bytes[last:] == content:
            return last
        number = len(self._bytes)
        assert number < NO_CONTENT, "the journal holds less than that"
        self._bytes += content
        self._last_number = number
        self.content_bytes_max = max(self.content_bytes_max, len(content))
        return number

    def get(self, number: int) -> bytes:
        """The content with a number that `put` gave."""
        return bytes(self._bytes[number : number + content_bytes(self._bytes, number)])


class ContentRows:
    """Numbers the rows of an index of version 2, and tells for each where its content stands."""

    def __init__(self) -> None:
        self._row_count = 0
        self._ledger_id = LedgerId(-1)
        self._content = b""
        self._row = NO_ENVELOPE

    def place(self, ledger_id: LedgerId, content: bytes) -> int:
        """The `content_row` of the next row; an empty content: it has no envelope."""
        number = self._row_count
        self._row_count += 1
        if not content:
            self._row = NO_ENVELOPE
        elif (ledger_id, content) != (self._ledger_id, self._content) or self._row == NO_ENVELOPE:
            self._row = number
        self._ledger_id, self._content = ledger_id, content
        return self._row


def group_contents(pairs: Iterable[tuple[int, bytes]]) -> list[ContentRun]:
    """Entries, ascending, with their contents (empty: none), as runs."""
    runs: list[ContentRun] = []
    for entry_id, content in pairs:
        if not content:
            continue
        last = runs[-1] if runs else None
        if last is not None and (last.last + 1, last.content) == (entry_id, content):
            runs[-1] = last._replace(last=EntryId(entry_id))
        else:
            runs.append(ContentRun(EntryId(entry_id), EntryId(entry_id), content))
    return runs
