"""A log's life on a bench: segments with ages, cold copies, and what retention makes of them.

Used by `test_retention` and `test_release`. Source: docs/protocol/retention.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from duramen.config import parse_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.life.retention import (
    carry_out,
    judge,
)
from duramen.core.life.trim import end_of, status_of
from duramen.core.log_node import LogNode, TrimPoint
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member, lsn_of
from duramen.units import HOUR, MS
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log

HOUR_MS = HOUR // MS
COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5)
MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))


class Life:
    """One log whose segments have one record of ten bytes an entry."""

    def __init__(self, tiering: Mapping[str, Any] | None = None, **retention: Any) -> None:
        parts = {"retention": retention, "tiering": tiering or {}, "replication": {"min_racks": 1}}
        config = parse_log_config(parts)
        self.log = replace(make_log(), config=config)
        self.segments: dict[int, Segment] = {}
        self.now_ms = 0
        self.open_count = 0

    def append(self, count: int = 1) -> None:
        if not self.log.unclosed_epochs:
            self.log = self.log.with_new_epoch("open")
            self.open_count = 0
        self.open_count += count

    def close(self, cold_copy: ColdCopy | None = None) -> None:
        """Close the open segment; a log without one gets an empty one first."""
        self.append(0)
        epoch = Epoch(self.log.next_epoch - 1)
        fragment = Fragment(EntryId(0), (MEMBER,))
        self.segments[epoch] = Segment(LOG_ID, epoch, Quorum(1, 1, 1), (fragment,)).closed(
            last_entry=EntryId(self.open_count - 1) if self.open_count else NOTHING,
            totals=Totals(self.open_count, 10 * self.open_count),
            start_seq_num=self.log.totals.record_count,
            completed_unix_ms=self.now_ms,
            nonce="close",
        )
        if cold_copy is not None:
            self.segments[epoch] = self.segments[epoch].with_cold_copy(cold_copy, "cold")
        self.log = self.log.with_clean(self.segments[epoch], "close").with_stateless()

    def add(self, *counts: int) -> None:
        for count in counts:
            self.append(count)
            self.close()

    def release(self) -> TrimPoint:
        """The release pointer, every entry of the open segment being acknowledged."""
        if not self.log.unclosed_epochs:
            return self.log.closed_end
        lsn = lsn_of(self.log.unclosed_epochs[0], EntryId(self.open_count))
        return TrimPoint(lsn, 0, self.log.totals.record_count + self.open_count)

    def boundary(self, seq_num: int) -> TrimPoint:
        """Where a sequence number lies."""
        for segment in self.segments.values():
            end = end_of(segment)
            if seq_num < end.seq_num:
                entry = EntryId(seq_num - (segment.start_seq_num or 0))
                return TrimPoint(lsn_of(segment.epoch, entry), 0, seq_num)
        entry = EntryId(seq_num - self.log.totals.record_count)
        return TrimPoint(lsn_of(Epoch(self.log.last_clean_epoch + 1), entry), 0, seq_num)

    def truncate(self, seq_num: int) -> None:
        """Explicitly; what is truncated already is no change."""
        point = self.boundary(seq_num)
        if point > self.log.trim:
            self.log = self.log.with_trim(
                point, release=self.release(), unix_ms=self.now_ms, nonce="trim"
            )

    def closed(self) -> list[Segment]:
        return self._closed_from(self.log.first_live_epoch)

    def kept(self) -> list[Segment]:
        """Those that bookies hold."""
        return self._closed_from(self.log.first_kept_epoch)

    def _closed_from(self, first: Epoch) -> list[Segment]:
        return [self.segments[epoch] for epoch in range(first, self.log.last_clean_epoch + 1)]

    def retain(self, hours: float = 0) -> LogNode:
        """A round of retention, so much later."""
        self.now_ms += int(hours * HOUR_MS)
        verdict = judge(self.log, self.closed(), self.kept(), self.now_ms)
        after = carry_out(self.log, verdict, now_unix_ms=self.now_ms, nonce="retention")
        self.log = after or self.log
        return self.log

    def due_ms(self) -> int | None:
        return judge(self.log, self.closed(), self.kept(), self.now_ms).due_unix_ms

    def status(self) -> list[str]:
        return [status_of(segment, self.log).value for segment in self.closed()]
