"""Copies that are owed to members: acknowledged entries that not all of a write set has.

An entry stays in memory until its whole write set has it, or until a recorded range names who
misses it (`repair/owed`). What is kept is bounded: past its budget the log records what it owes,
past twice the budget it takes no appends.

Not here: the writing of those ranges (`runtime.sequencer.log_driver`), the copies that are made
from them (`core.repair`), the wait for owed copies before a close (`segment_end`).
Invariant (checked by `validate`): the bytes are the sum over the entries.
Source: docs/protocol/write.md "Owed copies", R9.
"""

from __future__ import annotations

from collections.abc import Collection

from duramen.core.segment import Segment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import PersistOwed
from duramen.core.sequencer.writing.window import SentEntry
from duramen.ids import EntryId, Member
from duramen.limits import OWED_BYTES_MAX_PER_SEQUENCER, RETRY_DELAY_MAX_US


class OwedCopies:
    """What one open segment owes to members that missed it.

    Args:
        bytes_max: what the log may keep in memory before it is recorded.
        ports: to record ranges, and to see what all logs of the process keep.
    """

    def __init__(self, bytes_max: int, ports: Ports) -> None:
        self.entries: dict[EntryId, SentEntry] = {}
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._ports = ports
        self._record_again_at_us = 0
        self._indebted: list[EntryId] = []
        """First entries of fragments of which a copy was ever left to repair."""

    def configure(self, bytes_max: int) -> None:
        """Another budget, from now on."""
        self._bytes_max = bytes_max

    def has_room(self) -> bool:
        """Whether what is kept leaves room for new entries."""
        if self.size_bytes and self._ports.owed_by_all() > OWED_BYTES_MAX_PER_SEQUENCER:
            return False
        return self.size_bytes <= 2 * self._bytes_max

    def awaits_other_than(self, absent: Collection[Member], segment: Segment) -> bool:
        """Whether something is owed to a member that is not absent."""
        return any(m not in absent for e in self.entries.values() for m in e.missing_from(segment))

    def is_owed_to(self, member: Member, segment: Segment) -> bool:
        """Whether the member misses something."""
        return any(member in entry.missing_from(segment) for entry in self.entries.values())

    def list_proved(self, segment: Segment) -> list[EntryId]:
        """First entries of the fragments of which every copy was acknowledged.

        None of which a copy is owed or was ever left to repair: whether that one came all the same
        is for the auditor to see.
        """
        owing = [segment.fragment_of(entry_id).first_entry for entry_id in self.entries]
        return [
            fragment.first_entry
            for fragment in segment.fragments
            if fragment.first_entry not in self._indebted and fragment.first_entry not in owing
        ]

    def keep(self, entry: SentEntry, segment: Segment) -> None:
        """An entry was acknowledged: keep it if a copy of it is owed."""
        if entry.missing_from(segment):
            self.entries[entry.entry] = entry
            self.size_bytes += len(entry.payload)

    def note_stored(self, member: Member, entry_id: EntryId, segment: Segment) -> None:
        """A member stores an acknowledged entry, or need not be waited for any longer."""
        entry = self.entries.get(entry_id)
        if entry is None or member in entry.holders:
            return
        entry.holders.append(member)
        if not entry.missing_from(segment):
            del self.entries[entry_id]
            self.size_bytes -= len(entry.payload)

    def on_recorded(self, owed: PersistOwed, segment: Segment) -> None:
        """The range is recorded for repair: memory need not keep it for this member."""
        self._record_again_at_us = 0
        for entry_id in range(owed.first, owed.last + 1):
            self.note_stored(owed.member, EntryId(entry_id), segment)

    def bound(self, segment: Segment, now_us: int) -> None:
        """Record what is owed once this log, or all logs together, keep much of it in memory."""
        is_much = self.size_bytes > self._bytes_max or (
            self.size_bytes > 0 and self._ports.owed_by_all() > OWED_BYTES_MAX_PER_SEQUENCER // 2
        )
        if is_much and now_us >= self._record_again_at_us:
            self._record_again_at_us = now_us + RETRY_DELAY_MAX_US
            self.record(segment)

    def record(self, segment: Segment) -> None:
        """Have everything recorded that is owed now, as ranges, member by member."""
        missing: dict[Member, list[EntryId]] = {}
        for entry in self.entries.values():
            fragment = segment.fragment_of(entry.entry)
            if fragment.first_entry not in self._indebted:
                self._indebted.append(fragment.first_entry)
            for member in entry.missing_from(segment):
                missing.setdefault(member, []).append(entry.entry)
        for member, entries in missing.items():
            first = entries[0]
            for here, after in zip(entries, [*entries[1:], None], strict=True):
                if after != here + 1:
                    self._ports.put(PersistOwed(segment.ledger_id, member, first, here))
                    first = after if after is not None else first

    def validate(self) -> None:
        """Assert the invariant."""
        kept_bytes = sum(len(entry.payload) for entry in self.entries.values())
        assert self.size_bytes == kept_bytes, f"{self.size_bytes} {kept_bytes}"
