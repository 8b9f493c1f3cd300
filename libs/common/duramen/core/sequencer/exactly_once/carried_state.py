"""Producers and token as the closed epochs left them: carried over a roll, or read from the log.

Nothing is judged in an epoch before the state of all older ones is known. A log that rolls knows
it already. A log that was taken over reads it back (`rebuild`) when every older epoch is closed.
The table is handed to admission, which moves it on; it is forgotten when the epoch is lost.

Invariant (see `validate`): what is known is not being read.
Called by `append_pipeline` and by the takeover. Source: docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.ids import Epoch


class CarriedState:
    """What one log's owner knows of the epochs before its own.

    Args:
        unix_ms: wall-clock time of the driver's `now_us`.
    """

    def __init__(self, ports: Ports, unix_ms: Callable[[int], int]) -> None:
        self.rebuild: Rebuild | None = None
        self.rebuild_count = 0
        self._ports = ports
        self._unix_ms = unix_ms
        self._table: ProducerTable | None = None
        self._complete_through = 0
        """`_table` holds the state of all epochs up to this one, if it is not None."""
        self._stateless: list[Epoch] = []
        self._replayed_count: int | None = None
        """Entries that were read for `_table`; None: it was carried over a roll."""

    @property
    def is_known(self) -> bool:
        """The state up to the last closed epoch is known."""
        return self._table is not None

    def note_recovered(self, epoch: Epoch, *, has_state: bool) -> None:
        """This process closed an epoch by recovery and saw whether it carries state."""
        if not has_state:
            self._stateless.append(epoch)

    def begin_rebuild(self, log: LogNode, now_us: int) -> None:
        """Learn the state up to the log's LCE; `is_known` says when it is there."""
        if self._table is not None and self._complete_through == log.last_clean_epoch:
            return
        if self.rebuild is not None and self.rebuild.fits(log):
            return
        self._table = None
        self.rebuild = Rebuild(log, self._stateless, self._unix_ms(now_us), self._ports)
        self.rebuild.start()
        self._follow_rebuild()

    def hand_over(self, log: LogNode) -> tuple[ProducerTable, int | None]:
        """The table for the epoch that begins, and how many entries were read for it (or None)."""
        assert self._table is not None, self
        self._table.keep(log.config.producers.results_kept)
        self._stateless.clear()
        replayed_count, self._replayed_count = self._replayed_count, None
        return self._table, replayed_count

    def on_closed(self, epoch: Epoch) -> None:
        """The closing `multi()` is in force: what is known is complete through this epoch."""
        self._complete_through = epoch

    def forget(self) -> None:
        """The epoch is lost: what the log holds has to be read."""
        self._table = None
        self.rebuild = None

    # --- results ---------------------------------------------------------------------------------

    def on_segment(self, token: int, segment: AnySegment | None, now_us: int) -> None:
        """A segment node was read for a rebuild, or could not be."""
        if self.rebuild is not None:
            self.rebuild.on_segment(token, segment, now_us)
            self._follow_rebuild()

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries were read for a rebuild, or could not be."""
        if self.rebuild is not None:
            self.rebuild.on_history(token, entries, now_us)
            self._follow_rebuild()

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        return None if self.rebuild is None else self.rebuild.wakeup_at_us()

    def on_timer(self, now_us: int) -> None:
        """Read again what could not be read."""
        if self.rebuild is not None:
            self.rebuild.on_timer(now_us)
            self._follow_rebuild()

    def _follow_rebuild(self) -> None:
        if self.rebuild is not None and self.rebuild.is_done:
            self._table = self.rebuild.table
            self._replayed_count = self.rebuild.entry_count
            self.rebuild_count += self.rebuild.entry_count > 0
            self.rebuild = None

    def validate(self) -> None:
        """Assert the invariant."""
        assert self.rebuild is None or self._table is None, f"rebuild of what is known: {self}"

    def __repr__(self) -> str:
        return f"<carried through e{self._complete_through} {self.rebuild or self._table}>"
