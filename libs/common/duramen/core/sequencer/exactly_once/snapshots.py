"""When the state of producers and token is written into the log, and which snapshot is complete.

A snapshot is one or more control records. Each names the LSN through which the snapshot is
complete; a rebuild replays the entries after that. A snapshot is due before a segment is closed,
and after SNAPSHOT_ENTRY_COUNT entries or SNAPSHOT_BYTES (at least four times its own size, so that
writing it stays cheap). A log without producers and token writes none: its log node says so
(`at_close`).

Called by `append_pipeline`. Source: docs/protocol/write.md "Exactly once".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.stamps import ProducerRow, SnapshotPart
from duramen.ids import NOTHING, EntryId, Epoch, Lsn, lsn_of
from duramen.limits import SNAPSHOT_BYTES, SNAPSHOT_ENTRY_COUNT, SNAPSHOT_PART_BYTES

_ROW_BYTES: Final = 64
_RESULT_BYTES: Final = 40
"""Near enough to what `wire.control_record` encodes."""


class _SentSnapshot(NamedTuple):
    through: Lsn
    last: EntryId


class Snapshots:
    """The snapshots of one log by its owner."""

    def __init__(self) -> None:
        self.written_count = 0
        self._complete: Lsn | None = None
        self._sent: _SentSnapshot | None = None
        self._entry_count = 0
        self._bytes = 0
        self._size_bytes = 0
        self._covered: EntryId = NOTHING

    def begin(self, *, replayed_count: int | None) -> None:
        """An epoch is open; `replayed_count` entries were read for it, or None after a roll."""
        self._sent = None
        self._covered = NOTHING
        if replayed_count is not None:
            self._complete = None
            self._entry_count, self._bytes = replayed_count, 0

    def note_entry(self, size_bytes: int) -> None:
        """One more entry would have to be read by a rebuild."""
        self._entry_count += 1
        self._bytes += size_bytes

    def is_due(self, table: ProducerTable) -> bool:
        """Whether a snapshot should be written now."""
        if table.is_empty or self._sent is not None or self._bytes < 4 * self._size_bytes:
            return False
        return self._entry_count >= SNAPSHOT_ENTRY_COUNT or self._bytes >= SNAPSHOT_BYTES

    def is_wanted_at_end(self, table: ProducerTable, lap: EntryId) -> bool:
        """Whether the segment, which ends with `lap`, needs one more before it is closed."""
        return not table.is_empty and not (self._covered == lap and lap > NOTHING)

    def cut(self, table: ProducerTable, epoch: Epoch, lac: EntryId) -> list[SnapshotPart]:
        """The parts of a snapshot of what is acknowledged up to `lac`."""
        groups: list[list[ProducerRow]] = [[]]
        size_bytes = self._size_bytes = 0
        for row in table.list_rows():
            row_bytes = _ROW_BYTES + len(row.producer_id) + _RESULT_BYTES * len(row.results)
            if groups[-1] and size_bytes + row_bytes > SNAPSHOT_PART_BYTES:
                groups.append([])
                size_bytes = 0
            groups[-1].append(row)
            size_bytes += row_bytes
            self._size_bytes += row_bytes
        through = lsn_of(epoch, lac)
        return [
            SnapshotPart(through, index, len(groups), table.token, tuple(rows))
            for index, rows in enumerate(groups)
        ]

    def on_sent(self, through: Lsn, last: EntryId) -> None:
        """The parts are on their way; the last one is entry `last`."""
        self._sent = _SentSnapshot(through, last)
        self._covered = last
        self._entry_count = self._bytes = 0
        self.written_count += 1

    def on_acknowledged(self, lac: EntryId) -> None:
        """The LAC moved."""
        if self._sent is not None and lac >= self._sent.last:
            self._complete = self._sent.through
            self._sent = None

    def at_close(self, table: ProducerTable, epoch: Epoch) -> Lsn | None:
        """What the log node says once `epoch` is closed: where a rebuild begins, less one.

        The end of the epoch if there is no state at all; None: what it says already.
        """
        if table.is_empty:
            return lsn_of(Epoch(epoch + 1), NOTHING)
        return self._complete
