"""The visible tail: how far readers were told, and when the LAC is told by itself.

Every entry carries the LAC of its sending. A LAC that nothing carries for `commit_delay` is made
known: it is sent to the last fragment or, with `commit: control`, carried by a control entry, which
the owner of the writer makes when `wants_control` says so.

Not here: the LAC itself (`window`). Source: docs/protocol/write.md "Acknowledgement", R13.
"""

from __future__ import annotations

from collections.abc import Collection

from duramen.core.segment import Segment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import SendLac
from duramen.ids import NOTHING, EntryId, Member


class VisibleTail:
    """What readers of one open segment know of its LAC.

    Args:
        commit_delay_us: how long a LAC waits for an entry that carries it.
        commits_by_entry: a control entry carries it then.
    """

    def __init__(self, commit_delay_us: int, *, commits_by_entry: bool, ports: Ports) -> None:
        self.wants_control = False
        """A control entry is to be added, unless another entry carries the LAC before."""

        self.due_us: int | None = None
        self._commit_delay_us = commit_delay_us
        self._commits_by_entry = commits_by_entry
        self._ports = ports
        self._told = NOTHING
        self._last_data = NOTHING

    def configure(self, commit_delay_us: int, *, commits_by_entry: bool) -> None:
        """Other ways, from now on."""
        self._commit_delay_us = commit_delay_us
        self._commits_by_entry = commits_by_entry

    def note_push(self, entry_id: EntryId, lac: EntryId, *, has_records: bool) -> None:
        """An entry is pushed, and carries `lac`."""
        if has_records:
            self._last_data = entry_id
        elif self.wants_control:
            self._told = lac
        self.wants_control = False
        self.due_us = None

    def note_acknowledged(self, now_us: int) -> None:
        """The LAC moved. What an earlier move waits for is not put off."""
        if self.due_us is None:
            self.due_us = now_us + self._commit_delay_us

    def report_again(self) -> None:
        """A member is back that may have missed the LAC: it is due for everybody, at once."""
        self._told = NOTHING
        self.due_us = 0

    def on_timer(
        self, segment: Segment, lac: EntryId, absent: Collection[Member], now_us: int
    ) -> None:
        """Tell the LAC if it is due."""
        if self.due_us is not None and now_us >= self.due_us:
            self.due_us = None
            self.report(segment, lac, absent)

    def report(self, segment: Segment, lac: EntryId, absent: Collection[Member]) -> None:
        """Make the tail visible: to the whole last fragment, when no add carried this LAC."""
        if self._commits_by_entry:
            # Readers need the LAC of the last record; that of a control entry shows them nothing.
            self.wants_control = min(lac, self._last_data) > self._told
            return
        if lac == self._told:
            return
        self._told = lac
        for member in segment.last_fragment.ensemble:
            if member not in absent:
                self._ports.put(SendLac(member, segment.ledger_id, lac))
