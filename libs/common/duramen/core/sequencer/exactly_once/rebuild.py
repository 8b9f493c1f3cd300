"""Rebuild of the state of a log by its new owner: from the last snapshot and the entries after it.

It runs when every older epoch is closed. First it goes backwards, segment by segment, by entry
headers alone, until it meets the last part of a snapshot. One header lets it skip a segment without
state (no header, if the segment's recoverer saw the last entry). Then it goes forwards from the LSN
through which that snapshot is complete, and reads whole entries for their stamps and control
records. If an entry cannot be read now, the log waits and asks again, since a guess could store an
append twice.

    BACK → FORTH → DONE

An entry recorded as lost (R15) is passed over. Where it may have held state the table is told. A
snapshot with a lost part does not count; another is looked for, as far back as readers may read.
Called by `carried_state`. Source: docs/protocol/recovery.md "Takeover", docs/protocol/repair.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import ReadHistory, ReadSegment
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.stamps import (
    HistoryEntry,
    Result,
    SnapshotPart,
    TokenRecord,
)
from duramen.ids import Dlsn, EntryId, Epoch, Lsn
from duramen.limits import RETRY_BACKOFF

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
        self._log = log
        self._stateless = stateless
        self._unix_ms = unix_ms
        self._ports = ports
        self._asked: ReadSegment | ReadHistory | None = None
        self._unread: ReadHistory | None = None
        """What could not be read, while its segment's node is read anew."""
        self._retry_at_us: int | None = None
        self._retry_delay_us = RETRY_BACKOFF.first_us
        self._begin(log.rebuild_lsn)

    def _begin(self, first: Lsn) -> None:
        """Nothing is known yet; go back as far as `first` at most."""
        self.state = RebuildState.BACK
        self.table = ProducerTable(self._log.config.producers.results_kept)
        self.entry_count = 0
        self._first = first
        self._epoch = Epoch(self._log.last_clean_epoch)
        self._segments: list[tuple[AnySegment, EntryId]] = []
        """Those with state, and where in them it begins at the earliest: newest first while going
        back, oldest first while going forth."""
        self._headers: list[HistoryEntry] = []
        self._candidates: list[EntryId] = []
        self._low = EntryId(0)
        self._top: EntryId | None = None
        """The last entry of the segment that is there, until its header was read."""
        self._scanned_from = EntryId(0)
        self._next = EntryId(0)
        """Going forth: everything of the segment below this was read, or is lost."""
        self._may_have_lost_snapshot = False
        self._through: Lsn | None = None
        self._parts: list[SnapshotPart] = []
        self._is_loaded = True
        self._waiting: list[tuple[AnySegment, HistoryEntry] | None] = []
        """What follows the snapshot, until that is whole; None: a loss."""

    @property
    def is_done(self) -> bool:
        """The table is complete."""
        return self.state is RebuildState.DONE

    def fits(self, log: LogNode) -> bool:
        """Whether it reads what is to be read by this log node: segments may be gone since."""
        known = self._log
        return (
            known.last_clean_epoch == log.last_clean_epoch
            and known.rebuild_lsn == log.rebuild_lsn
            and known.first_hot_epoch == log.first_hot_epoch
        )

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
                case ReadHistory(segment=segment):
                    self._unread = self._asked
                    self._ask_segment(segment.epoch)

    def on_segment(self, token: int, segment: AnySegment | None, now_us: int) -> None:
        """A segment node was read, or could not be."""
        if not self._is_asked(token):
            return
        if segment is None or not segment.is_closed:
            self._retry_later(now_us)
            return
        if self._unread is not None:
            self._ask_anew(self._unread, segment)
            return
        self._retry_delay_us = RETRY_BACKOFF.first_us
        self._low = self._first_of(segment)
        assert segment.last_entry is not None
        present = segment.list_present(self._low, segment.last_entry)
        if present:
            self._top = present[-1][1]
            self._ask_entries(segment, self._top, self._top, is_headers_only=True)
            return
        self._note_state(segment)
        self._go_to_older()

    def _ask_anew(self, unread: ReadHistory, segment: AnySegment) -> None:
        """The node of what could not be read, as it is now: repair may have moved the copies, or
        recorded that there are none any more, with which all begins again.
        """
        self._unread = None
        if segment.lost != unread.segment.lost:
            self._begin(self._log.rebuild_lsn)
            self._look_at_epoch()
            return
        self._segments = [
            (segment if one.epoch == segment.epoch else one, first) for one, first in self._segments
        ]
        self._ask_entries(
            segment, unread.first, unread.last, is_headers_only=unread.is_headers_only
        )

    def on_history(self, token: int, entries: Sequence[HistoryEntry] | None, now_us: int) -> None:
        """Entries were read, in order from the first asked for; None: they could not be."""
        asked = self._asked
        if not self._is_asked(token):
            return
        assert isinstance(asked, ReadHistory)
        if not entries or entries[0].entry != asked.first:
            self._retry_later(now_us)
            return
        self._retry_delay_us = RETRY_BACKOFF.first_us
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
        if self._top is not None:
            if not headers[-1].has_state:
                self._low = EntryId(self._top + 1)  # only what is lost behind it may have any
            self._top = None
            self._note_state(segment, is_seen=headers[-1].has_state)
            if not headers[-1].has_state:
                self._go_to_older()
                return
        self._candidates = [h.entry for h in headers if h.is_control]
        first = headers[0]
        if not first.has_state:
            # What lies before it has none either.
            self._low = max(self._low, EntryId(first.entry + 1))
        self._scanned_from = first.entry
        self._judge_next(segment)

    def _judge_next(self, segment: AnySegment) -> None:
        if self._candidates:
            entry = self._candidates.pop()
            self._ask_entries(segment, entry, entry, is_headers_only=False)
            return
        while self._scanned_from > self._low:
            first = max(self._low, EntryId(self._scanned_from - _HEADER_COUNT))
            present = segment.list_present(first, EntryId(self._scanned_from - 1))
            if present:
                self._ask_entries(segment, *present[-1], is_headers_only=True)
                return
            self._scanned_from = first
        self._go_to_older()

    def _judge_candidate(self, segment: AnySegment, found: HistoryEntry) -> None:
        part = found.control
        if isinstance(part, SnapshotPart) and self._is_usable(segment, found.entry, part):
            self._through = part.through
            self._is_loaded = False
            self._may_have_lost_snapshot = False
            self._first = Lsn(part.through + 1)
            self._go_forth()
        else:
            self._judge_next(segment)

    def _is_usable(self, segment: AnySegment, entry: EntryId, part: SnapshotPart) -> bool:
        """Whether `entry` ends a snapshot that is there as a whole, with what it is to be read on
        from; its owner wrote the parts one directly after the other.
        """
        if part.number != part.part_count - 1 or part.through + 1 < self._first:
            return False
        first = EntryId(entry - part.number)
        return segment.list_present(first, entry) == [(first, entry)]

    def _note_state(self, segment: AnySegment, *, is_seen: bool = False) -> None:
        """The segment has state from `_low` on, if it is seen there, or may have lost some."""
        assert segment.last_entry is not None
        is_lossy = segment.has_lost(self._low, segment.last_entry)
        if is_seen or is_lossy:
            self._segments.append((segment, self._low))
        self._may_have_lost_snapshot = self._may_have_lost_snapshot or is_lossy

    # --- forth -----------------------------------------------------------------------------------

    def _go_forth(self) -> None:
        if self._may_have_lost_snapshot and self._first > self._log.needed_lsn:
            self._begin(self._log.needed_lsn)
            self._look_at_epoch()
            return
        self.state = RebuildState.FORTH
        self._segments.reverse()
        self._next_segment()

    def _next_segment(self) -> None:
        while self._segments:
            segment, first = self._segments.pop(0)
            self._next = max(first, self._first_of(segment))
            if self._read_on(segment):
                return
        assert not self._waiting, self
        self.state = RebuildState.DONE

    def _read_on(self, segment: AnySegment) -> bool:
        """Ask for what comes next of the segment and is there; False: nothing is."""
        end = segment.last_entry
        assert end is not None
        for first in range(self._next, end + 1, _HEADER_COUNT):
            last = min(end, EntryId(first + _HEADER_COUNT - 1))
            present = segment.list_present(EntryId(first), last)
            if present:
                self._ask_entries(segment, *present[0], is_headers_only=False)
                return True
        if segment.has_lost(self._next, end):
            self._note_loss()
        return False

    def _replay(self, asked: ReadHistory, entries: Sequence[HistoryEntry], now_us: int) -> None:
        is_behind_loss = asked.segment.has_lost(self._next, EntryId(asked.first - 1))
        if is_behind_loss and entries[0].has_state:
            self._note_loss()
        self._next = EntryId(entries[-1].entry + 1)
        for entry in entries:
            self.entry_count += 1
            part = entry.control
            if isinstance(part, SnapshotPart):
                self._note_part(part)
            elif self._is_loaded:
                self._apply(asked.segment, entry)
            elif entry.stamped or part is not None:
                self._waiting.append((asked.segment, entry))
        if self._read_on(asked.segment):
            return
        if self._is_loaded:
            self._next_segment()
            return
        # The last part was seen, so the others lie before it: whatever this is, not the truth.
        self._begin(self._log.rebuild_lsn)
        self._asked = ReadSegment(asked.token, self._epoch)
        self._retry_later(now_us)

    def _note_loss(self) -> None:
        """What comes next is lost, and may have held state."""
        if self._is_loaded:
            self.table.note_loss()
        else:
            self._waiting.append(None)

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
            for waiting in self._waiting:
                if waiting is None:
                    self.table.note_loss()
                else:
                    self._apply(*waiting)
            self._waiting.clear()

    def _apply(self, segment: AnySegment, entry: HistoryEntry) -> None:
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

    def _first_of(self, segment: AnySegment) -> EntryId:
        """The first entry of a segment that may matter."""
        if segment.epoch == self._first >> 32:
            return EntryId(self._first & 0xFFFF_FFFF)
        return EntryId(0)

    def _ask_segment(self, epoch: Epoch) -> None:
        self._asked = ReadSegment(self._ports.new_token(), epoch)
        self._ports.put(self._asked)

    def _ask_entries(
        self, segment: AnySegment, first: EntryId, last: EntryId, *, is_headers_only: bool
    ) -> None:
        token = self._ports.new_token()
        self._asked = ReadHistory(token, segment, first, last, is_headers_only)
        self._ports.put(self._asked)

    def _is_asked(self, token: int) -> bool:
        return self._asked is not None and self._asked.token == token and self._retry_at_us is None

    def _retry_later(self, now_us: int) -> None:
        self._retry_at_us = now_us + self._retry_delay_us
        self._retry_delay_us = RETRY_BACKOFF.next_us(self._retry_delay_us)

    def __repr__(self) -> str:
        return f"<rebuild {self.state.value} e{self._epoch} read={self.entry_count} {self.table}>"
