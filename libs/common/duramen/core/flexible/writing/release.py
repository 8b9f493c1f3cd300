"""Release: what each node knows of LNG, and who has to be told it now (R30).

A node needs an LNG that lets it show what it may hold: of each entry at or below LNG of which a
store was sent to it. Stores carry LNG, so a busy node is told by the next one; who is not told by
anything under way in time is told by itself. A node that was sent nothing has nothing to show.

Invariants (checked by `validate`):
 1 nobody was told more than LNG.
 2 whoever lacks something is due at some time.
Called by `wave_writer`. Source: docs/protocol/waves.md "Release", R13, R30.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duramen.ids import NOTHING, EntryId, NodeNumber
from duramen.limits import PROBE_INTERVAL_US
from duramen.units import SECOND

PAUSE_US_MAX: Final = 30 * SECOND


@dataclass(slots=True)
class _Known:
    """What one node knows, and may hold."""

    sent: EntryId = NOTHING
    """The last entry of which a store was sent to it that may have arrived."""
    told: EntryId = NOTHING
    """The highest LNG that it took."""
    under_way: EntryId = NOTHING
    """The highest that is on its way: in a store, or by itself."""
    asked: EntryId | None = None
    """What it is told by itself now."""
    due_us: int | None = None
    """When it is told by itself, unless something else tells it before."""
    pause_us: int = PROBE_INTERVAL_US

    def lacks(self, lng: EntryId) -> bool:
        """Whether it may hold an entry that it could not show."""
        return min(self.sent, lng) > max(self.told, self.under_way)


class NodeRelease:
    """What the nodes of one open segment know of its LNG.

    Args:
        numbers: of N(e).
    """

    def __init__(self, numbers: Iterable[NodeNumber], commit_delay_us: int) -> None:
        self._commit_delay_us = commit_delay_us
        self._known = {number: _Known() for number in numbers}
        self._lng = NOTHING

    def configure(self, commit_delay_us: int) -> None:
        """From now on."""
        self._commit_delay_us = commit_delay_us

    def due_us(self) -> int | None:
        """When `take_due` has something to do."""
        due = (known.due_us for known in self._known.values() if known.lacks(self._lng))
        return min((at_us for at_us in due if at_us is not None), default=None)

    def note_moved(self, lng: EntryId, now_us: int) -> None:
        """LNG is there now. What an earlier move waits for is not put off."""
        self._lng = lng
        for known in self._known.values():
            if known.due_us is None and known.lacks(lng):
                known.due_us = now_us + self._commit_delay_us

    def note_sent(self, number: NodeNumber, lng: EntryId, entry: EntryId = NOTHING) -> None:
        """An LNG is on its way to it, with a store of an entry or by itself."""
        known = self._known[number]
        known.sent = max(known.sent, entry)
        known.under_way = max(known.under_way, lng)

    def note_asked(self, number: NodeNumber) -> None:
        """It is told LNG by itself."""
        known = self._known[number]
        known.asked = self._lng
        known.under_way = max(known.under_way, self._lng)

    def note_answered(self, number: NodeNumber, now_us: int) -> None:
        """It took what it was told by itself."""
        known = self._known[number]
        asked, known.asked = known.asked, None
        if asked is not None:
            self.note_told(number, asked, now_us)

    def note_told(self, number: NodeNumber, lng: EntryId, now_us: int) -> None:
        """It took an LNG."""
        known = self._known[number]
        known.told = max(known.told, lng)
        known.pause_us = PROBE_INTERVAL_US
        if known.told >= known.under_way:
            known.under_way = NOTHING
        if not known.lacks(self._lng):
            known.due_us = None
        elif known.due_us is None or known.due_us > now_us + self._commit_delay_us:
            known.due_us = now_us + self._commit_delay_us

    def note_failed(self, number: NodeNumber, now_us: int) -> None:
        """What was on its way ended: it is told by itself, less and less often."""
        known = self._known[number]
        known.under_way, known.asked = NOTHING, None
        if known.lacks(self._lng):
            known.due_us = now_us + known.pause_us
            known.pause_us = min(2 * known.pause_us, PAUSE_US_MAX)

    def note_gone(self, number: NodeNumber) -> None:
        """Its disks were replaced: it holds nothing, and is told nothing."""
        self._known[number] = _Known()

    def take_due(self, now_us: int) -> list[NodeNumber]:
        """Who is told LNG now; the LNG is under way to them from now on."""
        due = []
        for number, known in self._known.items():
            if known.due_us is not None and now_us >= known.due_us:
                known.due_us = None
                if known.lacks(self._lng):
                    due.append(number)
        return due

    def list_lacking(self) -> list[NodeNumber]:
        """Whoever has not been told what it needs, whatever the time."""
        return [number for number, known in self._known.items() if known.lacks(self._lng)]

    def validate(self) -> None:
        """Assert invariants 1 and 2."""
        for known in self._known.values():
            assert max(known.told, known.under_way) <= self._lng, f"1: {known} {self._lng}"
            assert not known.lacks(self._lng) or known.due_us is not None, f"2: {known}"
