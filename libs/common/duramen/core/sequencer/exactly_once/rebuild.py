"""Rebuild of the state of a log by its new owner: from the last snapshot and what follows it.

Runs when every older epoch is closed. First backwards, segment by segment, by entry headers alone:
a segment without state is skipped after one header (none at all if its recoverer saw the last
entry), until the last part of a snapshot is met. Then forwards from the LSN through which that
snapshot is complete, whole entries, of which only stamps and control records matter. What cannot
be read now is asked again later: the log waits, since a guess could store an append twice.

    BACK → FORTH → DONE

Called by `log_state`. Source: 01-protocol section 5, takeover step 5.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.core.sequencer.effects import ReadHistory, ReadSegment
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.stamps import (
    HistoryEntry,
    Result,
    SnapshotPart,
    TokenRecord,
)
from duramen.core.sequencer.surroundings import Ports
from duramen.ids import Dlsn, EntryId, Epoch, Lsn
from duramen.limits import RETRY_DELAY_MAX_US, RETRY_DELAY_US

_HEADER_COUNT = 4_096
"""Entry headers that are asked for at once: 256 KiB."""


class RebuildState(enum.Enum):
    """See the module's head."""

    BACK = "back"
    FORTH = "forth"
    DONE = "done"


class Rebuild:
    """One rebuild.

    Args:
        log: LCE is the epoch before one's own.
        stateless: epochs that are known to carry no state.
        unix_ms: counts as the time at which replayed producers were heard.
    """

    def __init__(
        self, log: LogNode, stateless: Collection[Epoch], unix_ms: int, ports: Ports
    ) -> None:
        self.state = RebuildState.BACK
        self.table = ProducerTable(log.config.producers.results_kept)
        self.entry_count = 0
        self._stateless = stateless
        self._unix_ms = unix_ms
        self._ports = ports
        self._first = log.rebuild_lsn
        self._epoch = Epoch(log.last_clean_epoch)
        self._segments: list[Segment] = []
        """Those with state, newest first while going back, oldest first while going forth."""
        self._headers: list[HistoryEntry] = []
        self._candidates: list[EntryId] = []
        self._low = EntryId(0)
        self._scanned_from = EntryId(0)
        self._through: Lsn | None = None
        self._parts: list[SnapshotPart] = []
        self._is_loaded = True
        self._waiting: list[tuple[Segment, HistoryEntry]] = []
        self._asked: ReadSegment | ReadHistory | None = None
        self._retry_at_us: int | None = None
        self._retry_delay_us = RETRY_DELAY_US

    @property
    def is_done(self) -> bool:
        """The table is complete."""
        return self.state is RebuildState.DONE

    def start(self) -> None:
        """Ask for the first node; done at once if there is nothing to read."""
        self._look_at_epoch()

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        return self._retry_at_us

    def on_timer(self, now_us: int) -> None:
        """Ask again for what could not be read."""
        if self._retry_at_us is not None and now_us >= self._retry_at_us:
            self._retry_at_us = None
            match self._asked:
                case ReadSegment(_, epoch):
                    self._ask_segment(epoch)
                case ReadHistory(_, segment, first, last, is_headers_only):
                    self._ask_entries(segment, first, last, is_headers_only=is_headers_only)

    def on_segment(self, token: int, segment: Segment | None, now_us: int) -> None:
        """A segment node was read, or could not be."""
        if not self._is_asked(token):
            return
        if segment is None or not segment.is_closed:
            self._retry_later(now_us)
            return
        self._retry_delay_us = RETRY_DELAY_US
        assert segment.last_entry is not None
        self._low = EntryId(0)
        if segment.epoch == self._first >> 32:
            self._low = EntryId(self._first & 0xFFFF_FFFF)
        if segment.last_entry < self._low:
            self._go_to_older()
        else:
            last = segment.last_entry
            self._ask_entries(segment, last, last, is_headers_only=True)

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries were read, in order from the first asked for; None: they could not be."""
        asked = self._asked
        if not self._is_asked(token):
            return
        assert isinstance(asked, ReadHistory)
        if not entries or entries[0].entry != asked.first:
            self._retry_later(now_us)
            return
        self._retry_delay_us = RETRY_DELAY_US
        if self.state is RebuildState.FORTH:
            self._replay(asked, entries, now_us)
        elif asked.is_headers_only:
            self._note_headers(asked, entries)
        else:
            self._judge_candidate(asked.segment, entries[0])

    # --- back ------------------------------------------------------------------------------------

    def _look_at_epoch(self) -> None:
        while self._epoch >= self._first >> 32 and self._epoch in self._stateless:
            self._epoch = Epoch(self._epoch - 1)
        if self._epoch >= max(self._first >> 32, 1):
            self._ask_segment(self._epoch)
        else:
            self._go_forth()

    def _go_to_older(self) -> None:
        self._epoch = Epoch(self._epoch - 1)
        self._look_at_epoch()

    def _note_headers(self, asked: ReadHistory, entries: Sequence[HistoryEntry]) -> None:
        self._headers += entries
        last = entries[-1].entry
        if last < asked.last:
            self._ask_entries(
                asked.segment, EntryId(last + 1), asked.last, is_headers_only=True
            )  # fmt: skip
            return
        headers, self._headers = self._headers, []
        segment = asked.segment
        if headers[-1].entry == segment.last_entry and not headers[-1].has_state:
            self._go_to_older()
            return
        if headers[-1].entry == segment.last_entry and segment not in self._segments:
            self._segments.append(segment)
        self._candidates = [h.entry for h in headers if h.is_control]
        first = headers[0]
        # What lies before an entry without state has none either.
        self._low = max(self._low, EntryId(first.entry + (not first.has_state)))
        self._scanned_from = first.entry
        self._judge_next(segment)

    def _judge_next(self, segment: Segment) -> None:
        if self._candidates:
            entry = self._candidates.pop()
            self._ask_entries(segment, entry, entry, is_headers_only=False)
        elif self._scanned_from > self._low:
            first = max(self._low, EntryId(self._scanned_from - _HEADER_COUNT))
            last = EntryId(self._scanned_from - 1)
            self._ask_entries(segment, first, last, is_headers_only=True)
        else:
            self._go_to_older()

    def _judge_candidate(self, segment: Segment, found: HistoryEntry) -> None:
        part = found.control
        if isinstance(part, SnapshotPart) and part.number == part.part_count - 1:
            self._through = part.through
            self._is_loaded = False
            self._first = Lsn(part.through + 1)
            self._go_forth()
        else:
            self._judge_next(segment)

    # --- forth -----------------------------------------------------------------------------------

    def _go_forth(self) -> None:
        self.state = RebuildState.FORTH
        self._segments.reverse()
        self._next_segment()

    def _next_segment(self) -> None:
        if not self._segments:
            assert not self._waiting, self
            self.state = RebuildState.DONE
            return
        segment = self._segments.pop(0)
        assert segment.last_entry is not None
        first = EntryId(0)
        if segment.epoch == self._first >> 32:
            first = EntryId(self._first & 0xFFFF_FFFF)
        if first > segment.last_entry:
            self._next_segment()
        else:
            self._ask_entries(segment, first, segment.last_entry, is_headers_only=False)

    def _replay(self, asked: ReadHistory, entries: Sequence[HistoryEntry], now_us: int) -> None:
        for entry in entries:
            self.entry_count += 1
            part = entry.control
            if isinstance(part, SnapshotPart):
                self._note_part(part)
            elif self._is_loaded:
                self._apply(asked.segment, entry)
            elif entry.stamped or part is not None:
                self._waiting.append((asked.segment, entry))
        last = entries[-1].entry
        if last < asked.last:
            self._ask_entries(
                asked.segment, EntryId(last + 1), asked.last, is_headers_only=False
            )  # fmt: skip
        elif not self._is_loaded:
            # The last part was seen, so the others lie before it: whatever this is, not the truth.
            self._parts.clear()
            self._waiting.clear()
            first = EntryId(self._first & 0xFFFF_FFFF)
            self._asked = ReadHistory(asked.token, asked.segment, first, asked.last, False)
            self._retry_later(now_us)
        else:
            self._next_segment()

    def _note_part(self, part: SnapshotPart) -> None:
        if self._is_loaded or part.through != self._through:
            return
        if part.number == 0:
            self._parts.clear()
        self._parts.append(part)
        if len(self._parts) == part.part_count:
            self._is_loaded = True
            self.table.load(part.token, [row for one in self._parts for row in one.rows])
            self._parts.clear()
            for segment, entry in self._waiting:
                self._apply(segment, entry)
            self._waiting.clear()

    def _apply(self, segment: Segment, entry: HistoryEntry) -> None:
        if isinstance(entry.control, TokenRecord):
            self.table.token = entry.control.token
        assert segment.start_seq_num is not None
        for batch in entry.stamped:
            result = Result(
                Dlsn(segment.epoch, entry.entry, batch.slot),
                segment.start_seq_num + batch.position,
                batch.record_count,
                batch.timestamp_ms,
            )
            self.table.apply(batch.stamp, result, self._unix_ms)

    # --- asking ----------------------------------------------------------------------------------

    def _ask_segment(self, epoch: Epoch) -> None:
        self._asked = ReadSegment(self._ports.new_token(), epoch)
        self._ports.put(self._asked)

    def _ask_entries(
        self, segment: Segment, first: EntryId, last: EntryId, *, is_headers_only: bool
    ) -> None:
        token = self._ports.new_token()
        self._asked = ReadHistory(token, segment, first, last, is_headers_only)
        self._ports.put(self._asked)

    def _is_asked(self, token: int) -> bool:
        return self._asked is not None and self._asked.token == token and self._retry_at_us is None

    def _retry_later(self, now_us: int) -> None:
        self._retry_at_us = now_us + self._retry_delay_us
        self._retry_delay_us = min(2 * self._retry_delay_us, RETRY_DELAY_MAX_US)

    def __repr__(self) -> str:
        return f"<rebuild {self.state.value} e{self._epoch} read={self.entry_count} {self.table}>"
