"""The window: the entries that are not acknowledged in order, who stores each, and the LAC.

`ledger_writer` pushes entries here, reports who stored one, and asks what is acknowledged by that.
An acknowledged entry leaves in its order and moves the LAC. The copies that it still lacks are kept
by `owed_copies`.

Not here: whether anything may be acknowledged now (R6), and sending.
Invariants (checked by `validate`):
 1 the entries are LAC + 1 … LAP.
 2 their bytes are counted.
 3 the oldest entry is not acknowledged: it would have left.
Source: docs/protocol/write.md "Window and flush" and "Acknowledgement", R5, R7, R8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from duramen.core.segment import Segment, Totals
from duramen.ids import NOTHING, EntryId, Member
from duramen.limits import ENTRY_TARGET_BYTES

_PIPELINE_ENTRY_COUNT: Final = 4
"""Entries under way before batches are made to wait for company: enough to keep bookies busy
while the journal syncs, few enough that a queue turns into large entries."""

_PIPELINE_BYTES: Final = 4 * ENTRY_TARGET_BYTES


@dataclass(slots=True)
class SentEntry:
    """An entry in the window, or an acknowledged one of which copies are owed."""

    entry: EntryId
    payload: bytes
    totals: Totals
    holders: list[Member] = field(default_factory=list)
    is_sent: bool = False
    is_acknowledged: bool = False

    def missing_from(self, segment: Segment) -> list[Member]:
        """Members of its write set that are not known to hold it."""
        holders = self.holders
        return [m for m in segment.write_set_of(self.entry) if m not in holders]


class EntryWindow:
    """The entries of one open segment that are not acknowledged in order."""

    def __init__(self) -> None:
        self.lac = NOTHING
        self.lap = NOTHING
        self.lac_totals = Totals()
        self.entries: deque[SentEntry] = deque()
        self.size_bytes = 0

    @property
    def totals(self) -> Totals:
        """Of the segment up to the LAP."""
        return self.entries[-1].totals if self.entries else self.lac_totals

    @property
    def has_room(self) -> bool:
        """Whether what is under way leaves the pipeline room for another entry."""
        return len(self.entries) < _PIPELINE_ENTRY_COUNT and self.size_bytes < _PIPELINE_BYTES

    def lacks_ack_set(self, segment: Segment, absent: Collection[Member]) -> bool:
        """Whether fewer than Qa members hold the oldest entry, or the next one, or may take it.

        Never of an `out_of_order` segment: what lies behind it may be acknowledged, and it rolls.
        """
        if segment.ack_mode != "ordered":
            return False
        entry_id = EntryId(self.lac + 1)
        holders = self.entries[0].holders if self.entries else ()
        able = [
            member
            for member in segment.write_set_of(entry_id)
            if member in holders or member not in absent
        ]
        return len(able) < segment.quorum.ack_quorum

    def push(self, payload: bytes, totals: Totals) -> SentEntry:
        """Append entry LAP + 1; `totals` are the segment's behind it."""
        self.lap = EntryId(self.lap + 1)
        entry = SentEntry(self.lap, payload, totals)
        self.entries.append(entry)
        self.size_bytes += len(payload)
        return entry

    def note_stored(self, member: Member, entry_id: EntryId, segment: Segment) -> bool:
        """A member stores an entry above the LAC; whether that was ever pushed.

        R8: it counts only from a member of the entry's *current* write set.
        """
        index = entry_id - self.lac - 1
        if index >= len(self.entries):
            return False
        holders = self.entries[index].holders
        if member in segment.write_set_of(entry_id) and member not in holders:
            holders.append(member)
        return True

    def acknowledge(self, segment: Segment) -> list[SentEntry]:
        """What is acknowledged now and was not before.

        R5: Qa members of its write set hold it and, if `ordered`, every lower one is too.
        """
        found = []
        for entry in self.entries:
            if len(entry.holders) >= segment.quorum.ack_quorum:
                if not entry.is_acknowledged:
                    entry.is_acknowledged = True
                    found.append(entry)
            elif segment.ack_mode == "ordered":
                break
        return found

    def take_acknowledged(self) -> list[SentEntry]:
        """Move the LAC over what is acknowledged without a gap; returns what left the window."""
        taken = []
        while self.entries and self.entries[0].is_acknowledged:
            entry = self.entries.popleft()
            self.size_bytes -= len(entry.payload)
            taken.append(entry)
        if taken:
            self.lac, self.lac_totals = taken[-1].entry, taken[-1].totals
        return taken

    def clear_replaced(self, segment: Segment) -> None:
        """R7: a new ensemble is in force, and acks of members that it replaced are none."""
        for entry in self.entries:
            current = segment.write_set_of(entry.entry)
            entry.holders = [member for member in entry.holders if member in current]

    def clear_gone(self, member: Member) -> None:
        """R5: what lay on disks that were replaced is no copy for what is to be acknowledged."""
        for entry in self.entries:
            if member in entry.holders and not entry.is_acknowledged:
                entry.holders.remove(member)

    def validate(self) -> None:
        """Assert invariants 1 to 3."""
        ids = [entry.entry for entry in self.entries]
        assert ids == list(range(self.lac + 1, self.lap + 1)), f"1: {ids} {self.lac} {self.lap}"
        assert self.size_bytes == sum(len(e.payload) for e in self.entries), f"2: {self.size_bytes}"
        assert not self.entries or not self.entries[0].is_acknowledged, f"3: {self.entries[0]}"
