"""Rules of flexible segments switched off, one at a time: cores that forget one of them.

`mutants.py` says in which world each is fatal. Those of rules that are marked † settle a fault that
loses, hides or doubles records.

Called by `mutants.py`. Source: docs/protocol/waves.md, docs/protocol/recovery.md "Recovery of a
flexible segment", docs/protocol/envelopes.md "Invariants", R22–R24.
"""

from __future__ import annotations

from collections.abc import Collection

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import AddRow
from duramen.core.flexible.recovery import FlexibleRecovery, _FlexiblePosition
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.flexible.writing.waves import WaveWindow
from duramen.core.status import BookieStatus
from duramen.ids import Member, NodeNumber, epoch_of, log_of
from tests.explore.flexible import FlexibleRecoveryMachine, WaveMachine
from tests.explore.nodes import AnyShape

# --- R22 †: holders are judged by their places, never by their number ----------------------------


class CountingWriter(WaveWriter):
    """Has as many copies as RP has nodes, wherever they lie."""

    def _suffices(self, numbers: Collection[NodeNumber]) -> bool:
        return len(numbers) >= self._wanted.node


class CountingWriterMachine(WaveMachine):
    """Runs it."""

    waves = CountingWriter


# --- R22: LNG moves over complete entries alone --------------------------------------------------


class LeapingWindow(WaveWindow):
    """LNG is the newest entry that is complete."""

    def pass_complete(self) -> bool:
        """Over gaps."""
        newest = max((e.entry for e in self.entries if e.is_complete), default=self.lng)
        before = self.lng
        while self.entries and self.entries[0].entry <= newest:
            entry = self.entries.popleft()
            self.size_bytes -= len(entry.payload)
            if self.incomplete.pop(entry.entry, None):
                self.incomplete_bytes -= len(entry.payload)
            self.lng, self.lng_totals = entry.entry, entry.totals
        return self.lng > before


class LeapingWriterMachine(WaveMachine):
    """Runs it."""

    def make_core(self, shape: AnyShape) -> WaveWriter:
        """With that window."""
        core = super().make_core(shape)
        core._window.__class__ = LeapingWindow
        return core


# --- V3 †: SEALED comes before what is here ------------------------------------------------------


class ObligingBookie(BookieCore):
    """An entry that is here is OK, whatever is sealed."""

    def _judge_add(self, add: AddRow, token: int, has_room: bool) -> tuple[BookieStatus, int]:
        log = self._logs.get(log_of(add.ledger_id))
        ledger = None if log is None else log.ledgers.get(epoch_of(add.ledger_id))
        known = None if ledger is None else self._judge_repeated(ledger, add)
        return known or super()._judge_add(add, token, has_room)


# --- R23: a cover meets every set that satisfies RP ----------------------------------------------


class CountingRecovery(FlexibleRecovery):
    """Takes as many nodes as RP asks for as a cover."""

    def _covers(self, members: Collection[Member]) -> bool:
        return len(members) >= self.segment.replication.node


class CountingRecoveryMachine(FlexibleRecoveryMachine):
    """Runs it."""

    flexible = CountingRecovery


# --- R24 †: what nobody gives is absent if a cover vouches for that; then it is the end, or a hole


class EndingRecovery(FlexibleRecovery):
    """Ends before the first entry that nobody gives."""

    def _judge_absence(self, position: _FlexiblePosition, now_us: int) -> None:
        self._conclude(now_us)


class EndingRecoveryMachine(FlexibleRecoveryMachine):
    """Runs it."""

    flexible = EndingRecovery


# --- R24: what is reported is stored until copies satisfy RP -------------------------------------


class ContentedRecovery(FlexibleRecovery):
    """One report is enough."""

    def _write_back(self, position: _FlexiblePosition, now_us: int) -> None:
        self._complete(position, now_us)


class ContentedRecoveryMachine(FlexibleRecoveryMachine):
    """Runs it."""

    flexible = ContentedRecovery
