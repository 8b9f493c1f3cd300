"""Entries that came and were not given yet: kept over changes of the filter, given in order.

An entry that comes twice is one entry if both have one identity. Two identities for one entry are
damage, and nobody says which is right: it is taken from here, and given to nobody.

Bounded by who asks: a node is asked for more only when the position has come to where it looked.
Called by `flexible_pass`. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2".
"""

from __future__ import annotations

from duramen.core.reading.effects import Entry
from duramen.core.segment_base import SegmentBase
from duramen.ids import EntryId, Member


class CameEntries:
    """Bodies by entry, with identity and sender.

    Invariants:
     1 none lies below the position.
     2 `size_bytes` is that of all bodies.
    """

    def __init__(self, position: EntryId) -> None:
        self.position = position
        """The next entry to be given; it never falls."""
        self.size_bytes = 0
        self._entries: dict[EntryId, tuple[bytes, int, Member]] = {}
        self._conflicts: set[EntryId] = set()

    def __contains__(self, entry: EntryId) -> bool:
        return entry in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def find_next(self) -> EntryId | None:
        """The first entry that is kept here."""
        return min(self._entries, default=None)

    def put(self, entry: EntryId, body: bytes, identity: int, sender: Member) -> bool:
        """Keep an entry; False: another one with this id has come."""
        if entry < self.position or entry in self._conflicts:
            return entry not in self._conflicts
        known = self._entries.get(entry)
        if known is None:
            self._entries[entry] = body, identity, sender
            self.size_bytes += len(body)
        elif known[1] != identity:
            self.note_conflict(entry)
            return False
        return True

    def note_conflict(self, entry: EntryId) -> None:
        """Two identities were met: neither is given."""
        self._conflicts.add(entry)
        known = self._entries.pop(entry, None)
        if known is not None:
            self.size_bytes -= len(known[0])

    def is_in_conflict(self, entry: EntryId) -> bool:
        """Whether two identities were met since `forget_conflicts`."""
        return entry in self._conflicts

    def forget_conflicts(self) -> None:
        """Judge anew: damage may have been repaired meanwhile."""
        self._conflicts.clear()

    def move_to(self, position: EntryId) -> None:
        """What lies below is not wanted any more."""
        assert position >= self.position, (position, self.position)
        for entry in [entry for entry in self._entries if entry < position]:
            self.size_bytes -= len(self._entries.pop(entry)[0])
        self.position = position

    def find_end(self, last: EntryId, bytes_max: int, segment: SegmentBase) -> tuple[EntryId, bool]:
        """Behind the entries that can be given now, and whether more would not be wanted.

        An entry inside a hole was never acknowledged, and a lost one is not shown (R17).
        """
        if segment.absence_at(self.position) is not None:
            return self.position, True
        absent = (first for first, to in (*segment.holes, *segment.lost) if to >= self.position)
        end, stop = self.position, min([EntryId(last + 1), *absent])
        left_bytes = bytes_max
        while end < stop and left_bytes > 0:
            known = self._entries.get(end)
            if known is None:
                return end, False
            left_bytes -= len(known[0])
            end = EntryId(end + 1)
        return end, True

    def take(self, end: EntryId) -> tuple[tuple[Entry, ...], Member]:
        """The entries below `end`, and who sent the last one."""
        assert end > self.position, (end, self.position)
        taken = [(EntryId(at), self._entries.pop(EntryId(at))) for at in range(self.position, end)]
        self.size_bytes -= sum(len(body) for _, (body, _, _) in taken)
        self.position = end
        return tuple((entry, body) for entry, (body, _, _) in taken), taken[-1][1][2]

    def validate(self) -> None:
        """Assert the invariants."""
        assert all(entry >= self.position for entry in self._entries), f"1: {self.position}"
        assert self.size_bytes == sum(len(body) for body, _, _ in self._entries.values()), "2"
