"""Values of exactly-once appends: stamps, results, control records, what a rebuild reads.

Not here: their bytes (`wire.control_record`) and every decision.
Called by everything in this package, by `transmit`, and by the codecs.
Source: docs/protocol/rest.md "Append", docs/protocol/write.md "Exactly once".
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.ids import Dlsn, EntryId, Lsn


class Stamp(NamedTuple):
    """Who made a batch, and which of its batches it is.

    Attributes:
        producer_id: 1 to 64 printable ASCII characters.
        epoch: ≥ 0; a higher one fences the lower ones of the same id.
        sequence: counts the batches of (log, id, epoch) from 0.
    """

    producer_id: str
    epoch: int
    sequence: int


class Result(NamedTuple):
    """Where an acknowledged batch of a producer lies: what a duplicate is answered.

    Attributes:
        record_count: 0: a loss mark; that batch is not in the log (`ProducerTable`).
    """

    start: Dlsn
    seq_num: int
    record_count: int
    timestamp_ms: int

    @property
    def is_lost(self) -> bool:
        """Whether this is a loss mark: the batch is not in the log."""
        return self.record_count == 0

    def as_loss_mark(self, *, is_behind: bool = False) -> Result:
        """A loss mark directly before this batch, or directly behind it."""
        start, seq_num, count, _ = self
        if is_behind:
            start, seq_num = start._replace(slot=start.slot + count), seq_num + count
        return self._replace(start=start, seq_num=seq_num, record_count=0)


class ProducerRow(NamedTuple):
    """One producer: its last acknowledged batch, and the newest results, oldest first.

    Attributes:
        last: sequence of the last result.
        used_unix_ms: when a sequencer saw it last, by its clock; for `expire_after` alone.
    """

    producer_id: str
    epoch: int
    last: int
    used_unix_ms: int
    results: tuple[Result, ...]


class TokenRecord(NamedTuple):
    """Control record: the log's fencing token is this from here on; empty: none."""

    token: str


class SnapshotPart(NamedTuple):
    """Control record: a part of the state as it was after the entry `through`.

    Attributes:
        through: acknowledged when the snapshot was made; replay begins after it.
        number: of this part; the last one has `part_count` - 1.
    """

    through: Lsn
    number: int
    part_count: int
    token: str
    rows: tuple[ProducerRow, ...]


ControlRecord = TokenRecord | SnapshotPart


class SetToken(NamedTuple):
    """The command that sets the fencing token.

    Attributes:
        expected: refused unless this is the token in force; None: whatever it is.
    """

    token: str
    expected: str | None = None


class StampedBatch(NamedTuple):
    """A batch of a producer, as it lies in an entry."""

    stamp: Stamp
    slot: int
    position: int
    record_count: int
    timestamp_ms: int


class HistoryEntry(NamedTuple):
    """What a rebuild reads of one entry.

    Attributes:
        has_state: this entry or an earlier one of its segment carries a stamp or a control record.
        control: None for data, and where only headers were read.
        stamped: batches with a producer; empty where only headers were read.
    """

    entry: EntryId
    has_state: bool
    is_control: bool
    control: ControlRecord | None = None
    stamped: tuple[StampedBatch, ...] = ()
