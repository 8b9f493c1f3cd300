"""The entries of one open flexible segment above LNG: their waves, who stored which, and LNG.

An entry is complete when the nodes that stored one wave satisfy RP. Any `node` nodes of a copyset
do (`selector`), so counting is enough. Complete is not for ever: disks are replaced, and then what
their node answered is taken back from every entry above LNG, also from acknowledged ones. So the
payload is kept until LNG has passed the entry.

Not here: which nodes a wave goes to, when the next one is due, and sending.
Invariants (checked by `validate`):
 1 the entries are LNG + 1 … the newest, and LNG + 1 is not complete.
 2 bytes and incomplete entries are counted.
 3 a node has a store of an entry under way in one of its waves at most.
 4 `ordered`: what is acknowledged has left.
Called by `wave_writer`. Source: docs/protocol/waves.md "An entry", R22.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from duramen.core.flexible.selector import CopysetChoice
from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, NodeNumber

FIRST_WAVE: Final = 1
WAVE_NUMBER_MAX: Final = 0xFFFF
WAVES_KEPT_MAX: Final = 8


@dataclass(slots=True)
class Wave:
    """One attempt at storing an entry."""

    number: int
    choice: CopysetChoice
    lng: EntryId
    """What its stores carry."""
    sent_us: int
    late_us: int
    """When it is late, if it is not complete by then."""
    is_late: bool = False
    holders: list[NodeNumber] = field(default_factory=list)
    pending: list[NodeNumber] = field(default_factory=list)
    """Nodes whose stores are under way."""

    @property
    def pause_us(self) -> int:
        """The time that it had."""
        return self.late_us - self.sent_us

    def can_have(self, count: int) -> bool:
        """Whether so many nodes store it, or may do so yet."""
        return len(self.holders) + len(self.pending) >= count


@dataclass(slots=True)
class WavedEntry:
    """An entry above LNG."""

    entry: EntryId
    payload: bytes
    totals: Totals
    incomplete_since_us: int
    """When it was added, or an answer was taken back that it needed."""
    waves: list[Wave] = field(default_factory=list)
    """The last ones, the newest at the end."""
    holders: set[NodeNumber] = field(default_factory=set)
    """Nodes that store it, of whatever wave."""
    failed: set[NodeNumber] = field(default_factory=set)
    """Nodes whose last store of it ended without a copy, and which are not forgiven."""
    is_complete: bool = False
    is_acknowledged: bool = False

    @property
    def last_wave(self) -> Wave | None:
        """The newest wave."""
        return self.waves[-1] if self.waves else None

    def list_pending(self) -> frozenset[NodeNumber]:
        """Nodes that have a store of it under way."""
        return frozenset(number for wave in self.waves for number in wave.pending)

    def begin_wave(self, choice: CopysetChoice, lng: EntryId, now_us: int, late_us: int) -> Wave:
        """It goes to these nodes."""
        before = self.last_wave
        number = FIRST_WAVE if before is None else min(before.number + 1, WAVE_NUMBER_MAX)
        wave = Wave(number, choice, lng, now_us, late_us, pending=list(choice.numbers))
        self.waves.append(wave)
        del self.waves[:-WAVES_KEPT_MAX]
        return wave

    def find_wave(self, number: int) -> Wave | None:
        """A wave that still counts."""
        return next((wave for wave in self.waves if wave.number == number), None)


class WaveWindow:
    """The entries LNG + 1 … the newest of one open segment.

    Args:
        node_count: of RP.
    """

    def __init__(self, node_count: int, *, is_ordered: bool) -> None:
        self.lng = NOTHING
        self.newest = NOTHING
        self.lng_totals = Totals()
        self.entries: deque[WavedEntry] = deque()
        self.incomplete: dict[EntryId, WavedEntry] = {}
        """Oldest first."""
        self.size_bytes = 0
        self.incomplete_bytes = 0
        self._node_count = node_count
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

    def note_stored(self, entry: WavedEntry, wave: Wave, node: NodeNumber) -> None:
        """A node stored it, of that wave."""
        wave.pending.remove(node)
        wave.holders.append(node)
        entry.holders.add(node)
        entry.failed.discard(node)
        if not entry.is_complete and self._judge(entry):
            entry.is_complete = True
            del self.incomplete[entry.entry]
            self.incomplete_bytes -= len(entry.payload)

    def note_failed(self, entry: WavedEntry, wave: Wave, node: NodeNumber) -> None:
        """A store ended without a copy."""
        wave.pending.remove(node)
        entry.failed.add(node)

    def take_back(self, node: NodeNumber, now_us: int) -> None:
        """Its disks were replaced: nothing of it counts, whether acknowledged or not."""
        undone = [entry for entry in self.entries if self._take_back_from(entry, node)]
        for entry in undone:
            entry.is_complete = False
            entry.incomplete_since_us = now_us
            self.incomplete[entry.entry] = entry
            self.incomplete_bytes += len(entry.payload)
        if undone:
            self.incomplete = dict(sorted(self.incomplete.items()))

    def _take_back_from(self, entry: WavedEntry, node: NodeNumber) -> bool:
        """Whether the entry was complete and is not any more."""
        entry.holders.discard(node)
        for wave in entry.waves:
            if node in wave.holders:
                wave.holders.remove(node)
            if node in wave.pending:
                wave.pending.remove(node)
        return entry.is_complete and not self._judge(entry)

    def _judge(self, entry: WavedEntry) -> bool:
        return any(len(wave.holders) >= self._node_count for wave in entry.waves)

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
            pending = [number for wave in entry.waves for number in wave.pending]
            assert len(pending) == len(set(pending)), f"3: {entry}"
            assert entry.is_complete == self._judge(entry), f"2: {entry}"
            assert not (self._is_ordered and entry.is_acknowledged), f"4: {entry}"
