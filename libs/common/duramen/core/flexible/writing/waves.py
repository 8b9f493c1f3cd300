"""The entries of one open flexible segment above LNG: who stores which, and LNG.

An entry is complete when the nodes that store it satisfy RP, whatever wave they belong to. Complete
is not for ever: disks are replaced, and then what their node stored is taken back from every entry
above LNG, also from acknowledged ones. So the payload is kept until LNG has passed the entry.

Not here: which nodes a wave goes to, when the next one is due, and sending.
Invariants (checked by `validate`):
 1 the entries are LNG + 1 … the newest, and LNG + 1 is not complete.
 2 bytes and incomplete entries are counted.
 3 a node that stores an entry has no store of it under way.
 4 `ordered`: what is acknowledged has left.
Called by `wave_writer`. Source: docs/protocol/waves.md "An entry", R22.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, NodeNumber

PASSED_OVER_SHOWN_MAX: Final = 5
"""Nodes that are named to people."""


class AskedStore(NamedTuple):
    """A store that is under way."""

    sent_us: int
    lng: EntryId
    """What it carries."""


@dataclass(slots=True)
class WavedEntry:
    """An entry above LNG."""

    entry: EntryId
    payload: bytes
    totals: Totals
    incomplete_since_us: int
    """When it was added, or a copy was taken back that it needed."""
    holders: list[NodeNumber] = field(default_factory=list)
    """Who stores it."""
    pending: dict[NodeNumber, AskedStore] = field(default_factory=dict)
    """Stores that are under way."""
    failed: set[NodeNumber] = field(default_factory=set)
    """Nodes whose last store of it ended without a copy, and which are not forgiven."""
    named: list[NodeNumber] = field(default_factory=list)
    """Nodes in the order in which its copysets first named them: copies of two waves agree on who
    comes first."""
    wave_count: int = 0
    block: int = 0
    """The sticky block of its first wave."""
    sent_us: int = 0
    late_us: int = 0
    """When its last wave was sent, and when that is late."""
    is_late: bool = False
    is_complete: bool = False
    is_acknowledged: bool = False

    def list_hoped_for(self) -> list[NodeNumber]:
        """Who stores it, and who may do so in time."""
        return self.holders if self.is_late else [*self.holders, *self.pending]

    def name(self, added: Collection[NodeNumber]) -> list[NodeNumber]:
        """The copyset of the next wave: who stores it or may do so in time, and these."""
        self.named += [number for number in added if number not in self.named]
        members = {*self.list_hoped_for(), *added}
        return [number for number in self.named if number in members]

    def begin_wave(
        self, numbers: Collection[NodeNumber], lng: EntryId, now_us: int, late_us: int
    ) -> None:
        """It goes to these nodes."""
        self.wave_count += 1
        self.sent_us, self.late_us, self.is_late = now_us, late_us, False
        for number in numbers:
            self.pending[number] = AskedStore(now_us, lng)


class WaveTally:
    """What further waves an epoch needed, and because of whom: for people."""

    def __init__(self) -> None:
        self.entry_count = 0
        """Entries that wanted more than their first wave."""
        self._passed_over: Counter[NodeNumber] = Counter()

    def note(self, entry: WavedEntry, passed_over: Iterable[NodeNumber]) -> None:
        """A further wave of an entry is sent, past these nodes."""
        self.entry_count += entry.wave_count == 1
        self._passed_over.update(passed_over)

    def list_passed_over(self) -> list[tuple[NodeNumber, int]]:
        """Nodes and how often a wave went past them; the most often first, few."""
        return self._passed_over.most_common(PASSED_OVER_SHOWN_MAX)


class WaveWindow:
    """The entries LNG + 1 … the newest of one open segment.

    Args:
        suffices: whether copies at these nodes satisfy RP.
    """

    def __init__(
        self, suffices: Callable[[Collection[NodeNumber]], bool], *, is_ordered: bool
    ) -> None:
        self.lng = NOTHING
        self.newest = NOTHING
        self.lng_totals = Totals()
        self.entries: deque[WavedEntry] = deque()
        self.incomplete: dict[EntryId, WavedEntry] = {}
        """Oldest first."""
        self.size_bytes = 0
        self.incomplete_bytes = 0
        self._suffices = suffices
        self._is_ordered = is_ordered

    @property
    def totals(self) -> Totals:
        """Of the segment up to the newest entry."""
        return self.entries[-1].totals if self.entries else self.lng_totals

    def push(self, payload: bytes, totals: Totals, now_us: int) -> WavedEntry:
        """Append the next entry; `totals` are the segment's behind it."""
        self.newest = EntryId(self.newest + 1)
        entry = WavedEntry(self.newest, payload, totals, now_us)
        self.entries.append(entry)
        self.size_bytes += len(payload)
        self.incomplete[entry.entry] = entry
        self.incomplete_bytes += len(payload)
        return entry

    def find(self, entry_id: EntryId) -> WavedEntry | None:
        """An entry above LNG; None: it was passed, or never pushed."""
        index = entry_id - self.lng - 1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def note_stored(self, entry: WavedEntry, node: NodeNumber) -> None:
        """A node stores it."""
        entry.pending.pop(node, None)
        entry.failed.discard(node)
        if node in entry.holders:
            return
        entry.holders.append(node)
        if not entry.is_complete and self._suffices(entry.holders):
            entry.is_complete = True
            del self.incomplete[entry.entry]
            self.incomplete_bytes -= len(entry.payload)

    def take_back(self, node: NodeNumber, now_us: int) -> None:
        """Its disks were replaced: nothing of it counts, whether acknowledged or not."""
        undone = [entry for entry in self.entries if self._take_back_from(entry, node)]
        for entry in undone:
            entry.is_complete, entry.is_late = False, True  # its waves are over
            entry.incomplete_since_us = now_us
            self.incomplete[entry.entry] = entry
            self.incomplete_bytes += len(entry.payload)
        if undone:
            self.incomplete = dict(sorted(self.incomplete.items()))

    def _take_back_from(self, entry: WavedEntry, node: NodeNumber) -> bool:
        """Whether the entry was complete and is not any more."""
        entry.pending.pop(node, None)
        if node not in entry.holders:
            return False
        entry.holders.remove(node)
        return entry.is_complete and not self._suffices(entry.holders)

    def acknowledge(self, changed: WavedEntry) -> list[WavedEntry]:
        """What is acknowledged by the completion of an entry and was not before (R22), in order."""
        if not self._is_ordered:
            found = [] if changed.is_acknowledged else [changed]
        else:
            found = list(itertools.takewhile(lambda entry: entry.is_complete, self.entries))
        for entry in found:
            entry.is_acknowledged = True
        return found

    def pass_complete(self) -> bool:
        """Move LNG over what is complete without a gap; whether it moved."""
        before = self.lng
        while self.entries and self.entries[0].is_complete:
            entry = self.entries.popleft()
            self.size_bytes -= len(entry.payload)
            self.lng, self.lng_totals = entry.entry, entry.totals
        return self.lng > before

    def validate(self) -> None:
        """Assert invariants 1 to 4."""
        ids = [entry.entry for entry in self.entries]
        assert ids == list(range(self.lng + 1, self.newest + 1)), f"1: {ids} {self.lng}"
        assert not self.entries or not self.entries[0].is_complete, f"1: {self.entries[0]}"
        incomplete = [entry for entry in self.entries if not entry.is_complete]
        assert self.size_bytes == sum(len(e.payload) for e in self.entries), f"2: {self.size_bytes}"
        assert list(self.incomplete.values()) == incomplete, f"2: {list(self.incomplete)}"
        assert self.incomplete_bytes == sum(len(e.payload) for e in incomplete), "2"
        for entry in self.entries:
            assert entry.is_complete == self._suffices(entry.holders), f"2: {entry}"
            assert entry.pending.keys().isdisjoint(entry.holders), f"3: {entry}"
            assert len(entry.holders) == len(set(entry.holders)), f"3: {entry}"
            assert not (self._is_ordered and entry.is_acknowledged), f"4: {entry}"
