"""Words that this process passes on: each a bounded number of times, the least told first.

A word that is news to a process is told in so many messages that all others have it, almost
certainly, when the last is sent: some times the logarithm of their number. A later word about the
same member takes its place. So state and messages stay bounded whatever is said.

Called by `gossip`. Source: docs/protocol/members.md "Rumours".
"""

from __future__ import annotations

import heapq
import math
from typing import Final

from duramen.core.members.messages import RUMOUR_COUNT_MAX, Word

_REPORT_FACTOR: Final = 4


def report_count(member_count: int) -> int:
    """In how many messages one process passes a word on."""
    return _REPORT_FACTOR * (1 + math.ceil(math.log2(max(member_count, 1))))


class Rumours:
    """The words that one process still passes on, one for each member."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, Word]] = {}

    def put(self, word: Word) -> None:
        """Pass this on from now on, instead of what was said of the member before."""
        self._told[word.name] = (0, word)

    def drop(self, name: str) -> None:
        """Say nothing of this member any more."""
        self._told.pop(name, None)

    def take(self, member_count: int, *, without: str | None = None) -> list[Word]:
        """What goes into one message.

        Args:
            member_count: how many are to hear of it.
            without: a member of whom the message speaks anyway.
        """
        told = (entry for entry in self._told.values() if entry[1].name != without)
        taken = heapq.nsmallest(RUMOUR_COUNT_MAX, told, key=lambda entry: entry[0])
        most = report_count(member_count)
        for count, word in taken:
            if count + 1 >= most:
                del self._told[word.name]
            else:
                self._told[word.name] = (count + 1, word)
        return [word for _, word in taken]

    def __len__(self) -> int:
        return len(self._told)
