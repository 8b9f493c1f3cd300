"""Delivery: entries go to the members that take them, and later to those that failed.

A member is absent from its first failure until it answers. It gets no entries meanwhile, and is
probed with the oldest entry that it misses. An answer brings it all that it missed, oldest first.
A replaced member is kept in mind while it is owed something, and until its next probe, so as not to
be chosen again at once.

    taking entries → absent → probed → taking entries, or forgotten
Not here: what a failure does to the ensemble (`ensemble_change`), what answers count (`window`).
Source: docs/protocol/write.md "Suspended members", R1 and R5 (replaced disks), R9.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from duramen.core.segment import Segment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import SendAdd, SendLac
from duramen.core.sequencer.writing.owed_copies import OwedCopies
from duramen.core.sequencer.writing.window import EntryWindow, SentEntry
from duramen.ids import EntryId, Member
from duramen.limits import PROBE_INTERVAL_US


@dataclass(slots=True)
class Absence:
    """One member's."""

    probe_at_us: int
    is_probing: bool = False
    """A probe is under way: its answer or its time-out comes first."""


class Delivery:
    """Who takes the entries of one open segment, and who does not."""

    def __init__(self, ports: Ports) -> None:
        self.absent: dict[Member, Absence] = {}
        self._gone: set[Member] = set()
        self._ports = ports

    def list_suspended(self, segment: Segment) -> list[Member]:
        """Absent members of the present ensemble."""
        absent = self.absent
        return [m for m in segment.last_fragment.ensemble if m in absent] if absent else []

    def note_failure(self, member: Member, segment: Segment, now_us: int) -> bool:
        """An add, a LAC or a probe failed; whether the present ensemble lost a member by that."""
        is_new = member not in self.absent
        if is_new and not any(member in f.ensemble for f in segment.fragments):
            return False
        self.absent[member] = Absence(now_us + PROBE_INTERVAL_US)
        return is_new and member in segment.last_fragment.ensemble

    def note_gone(self, member: Member) -> None:
        """The member said that its disks were replaced: nothing of it counts any more."""
        self._gone.add(member)

    def is_gone(self, member: Member) -> bool:
        """Whether its disks were replaced."""
        return member in self._gone

    def hasten(self, now_us: int) -> None:
        """Every absent member is due for a probe."""
        for absence in self.absent.values():
            absence.probe_at_us = min(absence.probe_at_us, now_us)

    def send(self, entry: SentEntry, segment: Segment, lac: EntryId) -> None:
        """Send an entry to who is to store it and does not hold it yet."""
        entry.is_sent = True
        for member in segment.write_set_of(entry.entry):
            if member not in self.absent and member not in entry.holders:
                self._send_to(member, entry, segment, lac)

    def probe(self, segment: Segment, window: EntryWindow, owed: OwedCopies, now_us: int) -> bool:
        """Try every absent member whose time has come, one probe at a time; whether one was due."""
        due = [m for m, absence in self.absent.items() if now_us >= absence.probe_at_us]
        for member in due:
            is_member = member in segment.last_fragment.ensemble
            if not is_member and not owed.is_owed_to(member, segment):
                # It was replaced; until now it was kept in mind so as not to be chosen again.
                del self.absent[member]
                continue
            absence = self.absent[member]
            absence.probe_at_us = now_us + PROBE_INTERVAL_US
            if not absence.is_probing:
                absence.is_probing = True
                self._send_probe(member, segment, window, owed)
        return bool(due)

    def _send_probe(
        self, member: Member, segment: Segment, window: EntryWindow, owed: OwedCopies
    ) -> None:
        entry = next(_list_missed(member, segment, window, owed), None)
        if entry is not None:
            self._send_to(member, entry, segment, window.lac)
        else:
            self._ports.put(SendLac(member, segment.ledger_id, window.lac))

    def end_probe(self, member: Member) -> None:
        """The member answered, and may not be told anything now: it is probed again."""
        self.absent[member].is_probing = False

    def resume(
        self, member: Member, segment: Segment, window: EntryWindow, owed: OwedCopies
    ) -> None:
        """The member answered: it gets everything that it missed, oldest first."""
        del self.absent[member]
        for entry in _list_missed(member, segment, window, owed):
            self._send_to(member, entry, segment, window.lac)

    def _send_to(self, member: Member, entry: SentEntry, segment: Segment, lac: EntryId) -> None:
        # Below the entry's own id, also where the LAC has passed it since (R13).
        lac = EntryId(min(lac, entry.entry - 1))
        self._ports.put(SendAdd(member, segment.ledger_id, entry.entry, lac, entry.payload))


def misses_any(member: Member, segment: Segment, window: EntryWindow, owed: OwedCopies) -> bool:
    """Whether a copy for the member is under way, or still to be sent."""
    return any(
        member in entry.missing_from(segment)
        for entry in itertools.chain(window.entries, owed.entries.values())
    )


def _list_missed(
    member: Member, segment: Segment, window: EntryWindow, owed: OwedCopies
) -> Iterator[SentEntry]:
    entries = itertools.chain(owed.entries.values(), window.entries)
    return (entry for entry in entries if member in entry.missing_from(segment))
