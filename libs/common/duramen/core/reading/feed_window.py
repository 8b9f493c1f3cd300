"""The newest entries of a log in order, as the feed that its tailing readers share has seen them.

A window knows which entries there are and where, never their bytes. Those lie in the cache, whose
bound is the only one on memory. A reader at a position inside the window is told what follows. A
reader that has fallen behind the window reads by itself until it has caught up. The window has
every entry between its beginning and its end that readers may see. Holes are left out; a lost entry
ends the feed.

Pure. Called by the read proxy's `following.feed`. Source: docs/protocol/read-answers.md "Who shares
what", docs/protocol/reading.md "Long polls".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from duramen.ids import EntryId, Epoch

WINDOW_COUNT_MAX: Final = 4_096
"""How far a reader may lag and still be fed: seconds of a busy log, and 500 KB of memory."""

TAKE_COUNT_MAX: Final = 64
"""Entries that a reader is told of at once: then it lets others run."""

Position = tuple[Epoch, EntryId]


class FedEntry(NamedTuple):
    """An entry that readers may see, and where its segment begins."""

    epoch: Epoch
    entry_id: EntryId
    start_seq_num: int


class FeedWindow:
    """Positions only rise; see the module.

    Args:
        position: (epoch, entry) from which on everything will be added.
    """

    def __init__(self, position: Position, count_max: int = WINDOW_COUNT_MAX) -> None:
        assert count_max >= 1, count_max
        self._count_max = count_max
        self._entries: list[FedEntry] = []
        self._gone_count = 0
        """Entries at the beginning of the list that are out of the window already."""
        self.begin = position
        """The first position from which on nothing is missing."""
        self.end = position
        """The position behind the newest entry."""

    def __len__(self) -> int:
        return len(self._entries) - self._gone_count

    def add(self, epoch: Epoch, start_seq_num: int, entry_ids: Iterable[EntryId]) -> None:
        """Append entries of one segment, ascending; the oldest go beyond the bound."""
        for entry_id in entry_ids:
            assert (epoch, entry_id) >= self.end, (epoch, entry_id, self)
            self._entries.append(FedEntry(epoch, entry_id, start_seq_num))
            self.end = (epoch, EntryId(entry_id + 1))
        surplus = len(self) - self._count_max
        if surplus > 0:
            self._gone_count += surplus
            last_gone = self._entries[self._gone_count - 1]
            self.begin = (last_gone.epoch, EntryId(last_gone.entry_id + 1))
        if self._gone_count > self._count_max:  # moved in bulk, so that an add costs nothing
            del self._entries[: self._gone_count]
            self._gone_count = 0

    def take(self, position: Position) -> Sequence[FedEntry] | None:
        """The next entries from a position on, all of one segment; None if it is out of the window.

        Empty at the end, and for a position ahead of it: that reader knows more than the feed.
        """
        if position < self.begin:
            return None
        first = bisect_left(self._entries, position, lo=self._gone_count, key=_position_of)
        taken = self._entries[first : first + TAKE_COUNT_MAX]
        if taken and taken[-1].epoch != taken[0].epoch:
            taken = [entry for entry in taken if entry.epoch == taken[0].epoch]
        return taken

    def __repr__(self) -> str:
        return f"<window {self.begin} to {self.end}: {len(self)}>"


def _position_of(entry: FedEntry) -> Position:
    return entry.epoch, entry.entry_id
