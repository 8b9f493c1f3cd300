"""The second asking: what all nodes of a map have of a stretch of entries that nobody sent.

Each node is asked for digests and envelopes, without a filter. Who tells an entry is asked for its
body, then the next holder. An entry is absent if every node of the map has looked past it, vouches
for that and does not tell it: nothing less proves anything (R25).

It also tells who is named first and has nothing: whom to wait for no more.
Called by `flexible_pass`. Source: docs/protocol/envelopes.md "What nobody sends", R25, V8, V10.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.sending import ReadFilter, find_sender
from duramen.core.reading.range_read import HintRun, NodeAnswer
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, NodeNumber

STRETCH_ENTRY_COUNT: Final = 4_096
"""Entries that one second asking is about, at most."""


class _Digest:
    """What one node told."""

    def __init__(self, answer: NodeAnswer) -> None:
        self.next = answer.next
        self.identities = dict(answer.digests)
        self._told = list(self.identities)
        self.unvouched = EntryRanges(answer.unvouched)
        self.runs: tuple[HintRun, ...] = tuple(answer.runs)

    def lacks(self, entry: EntryId) -> bool:
        """Whether it has looked, vouches for what it says, and does not have the entry."""
        return entry < self.next and entry not in self.identities and entry not in self.unvouched

    def cannot_send(self, entry: EntryId) -> bool:
        """Whether it says that it has none, or none that it vouches for."""
        return entry < self.next and entry not in self.identities

    def list_told(self, first: EntryId, last: EntryId) -> Sequence[EntryId]:
        """The entries of a range that it told."""
        return self._told[bisect_left(self._told, first) : bisect_right(self._told, last)]


class UnsentStretch:
    """One second asking.

    Args:
        numbers: all nodes of the map.
    """

    def __init__(self, first: EntryId, last: EntryId, numbers: Collection[NodeNumber]) -> None:
        assert first <= last < first + STRETCH_ENTRY_COUNT, (first, last)
        self.first = first
        self.last = last
        self.pending = set(numbers)
        """Nodes that have not answered yet."""
        self.is_late = False
        """They take longer than answers do: holders that are known are enough."""
        self._numbers = frozenset(numbers)
        self._digests: dict[NodeNumber, _Digest] = {}
        self._failures: dict[NodeNumber, BookieStatus] = {}
        self._tried: defaultdict[EntryId, set[NodeNumber]] = defaultdict(set)

    def __repr__(self) -> str:
        told = {number: len(digest.identities) for number, digest in self._digests.items()}
        return f"<stretch {self.first}-{self.last} told={told} pending={sorted(self.pending)}>"

    def on_digest(self, number: NodeNumber, answer: NodeAnswer) -> None:
        """A node told what it has, or why it does not."""
        self.pending.discard(number)
        if answer.status is BookieStatus.OK:
            self._digests[number] = _Digest(answer)
        else:
            self._failures[number] = answer.status

    def note_tried(self, entry: EntryId, number: NodeNumber, status: BookieStatus) -> None:
        """A holder was asked for the body and did not give it."""
        self._tried[entry].add(number)
        if status is not BookieStatus.OK:
            self._failures[number] = status

    @property
    def end(self) -> EntryId:
        """How far all who answered have looked; the first entry at least."""
        looked = [EntryId(digest.next - 1) for digest in self._digests.values()]
        return max(self.first, min([self.last, *looked]))

    def list_holders(self, entry: EntryId) -> list[NodeNumber]:
        """Who told the entry and was not asked for it in vain."""
        tried = self._tried.get(entry, ())
        return [n for n, d in self._digests.items() if entry in d.identities and n not in tried]

    def count_held(self, number: NodeNumber, entry: EntryId) -> int:
        """How many entries without a gap a holder told from one on."""
        identities = self._digests[number].identities
        end = entry
        while end in identities:
            end = EntryId(end + 1)
        return end - entry

    def list_identities(self, entry: EntryId) -> set[int]:
        """The identities that were told; two are damage."""
        found = (digest.identities.get(entry) for digest in self._digests.values())
        return {identity for identity in found if identity is not None}

    def is_absent(self, entry: EntryId) -> bool:
        """Whether every node of the map vouches that it does not have the entry."""
        return self._numbers == self._digests.keys() and all(
            digest.lacks(entry) for digest in self._digests.values()
        )

    @property
    def failure(self) -> BookieStatus:
        """Why an entry did not come."""
        failures = set(self._failures.values())
        telling = (BookieStatus.GONE, BookieStatus.OVERLOADED, BookieStatus.TIMEOUT)
        return next((s for s in telling if s in failures), BookieStatus.UNKNOWN)

    def list_to_blame(self, read_filter: ReadFilter) -> set[NodeNumber]:
        """Who was to send an entry that another node has, and says that it cannot."""
        blamed: set[NodeNumber] = set()
        for digest in self._digests.values():
            for run in digest.runs:
                sender = find_sender(read_filter, run.envelope)
                named = None if sender is None else self._digests.get(sender)
                if sender is None or named is None or sender in blamed or named is digest:
                    continue
                if any(named.cannot_send(e) for e in digest.list_told(run.first, run.last)):
                    blamed.add(sender)
        return blamed
