"""Metadata of one log: the epoch store, an immutable value with its transitions.

It decides which epochs exist (`next_epoch`), up to where they are closed (`last_clean_epoch`, LCE)
and what the closed ones hold in sum, so that the sequence numbers of the epoch after LCE are known.
The unclosed segments of a log are exactly LCE + 1 … next_epoch − 1: nothing is ever concluded from
a listing (R4). Storing a value by compare-and-set is the driver's work (R2, R3).

Invariants (checked by `validate`):
 1 0 ≤ LCE < next_epoch.
 2 first_live_epoch ≤ LCE + 1.
 3 trim_seq_num ≥ 0.

Called by sequencer, recovery and reader. Spelled as JSON by `wire.metadata_json`.
Source: 01-protocol section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duramen.config import LogConfig
from duramen.core.segment import Segment, SegmentState, Totals
from duramen.ids import Epoch, LogId


@dataclass(frozen=True, slots=True)
class LogNode:
    """The log node of 01-protocol section 2."""

    log_id: LogId
    namespace: str
    name: str
    config: LogConfig
    config_version: int = 1
    next_epoch: Epoch = Epoch(1)
    last_clean_epoch: int = 0
    totals: Totals = Totals()
    trim_lsn: int = 0
    trim_seq_num: int = 0
    first_live_epoch: Epoch = Epoch(1)
    snapshot_lsn: int | None = None
    """A rebuild of producers and token reads what follows; None: everything that is there."""

    is_ended: bool = False
    is_deleted: bool = False
    created_unix_ms: int = 0
    nonce: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unclosed_epochs(self) -> tuple[Epoch, ...]:
        """Epochs that exist and are not known to be closed, oldest first."""
        return tuple(Epoch(e) for e in range(self.last_clean_epoch + 1, self.next_epoch))

    def with_new_epoch(self, nonce: str) -> LogNode:
        """One more epoch exists: written in one `multi()` with its segment (R2)."""
        return replace(self, next_epoch=Epoch(self.next_epoch + 1), nonce=nonce).validated()

    def with_clean(self, segment: Segment, nonce: str) -> LogNode:
        """`segment`, the one after LCE, is closed: LCE and totals move in the same `multi()`."""
        assert segment.state is SegmentState.CLOSED and segment.totals is not None, segment
        assert segment.epoch == self.last_clean_epoch + 1, (segment, self)
        return replace(
            self,
            last_clean_epoch=segment.epoch,
            totals=self.totals.plus(segment.totals),
            nonce=nonce,
        ).validated()

    def with_snapshot(self, lsn: int) -> LogNode:
        """Producers and token are snapshotted through `lsn`; the end of an epoch: there are none.

        Part of a closing `multi()`: what the snapshot says may be forgotten before LCE covers it.
        """
        assert lsn >= (self.snapshot_lsn or 0), (lsn, self)
        return replace(self, snapshot_lsn=lsn).validated()

    def validated(self) -> LogNode:
        """The value itself, after its invariants were checked."""
        self.validate()
        return self

    def validate(self) -> None:
        """Assert invariants 1 to 3."""
        assert 0 <= self.last_clean_epoch < self.next_epoch, f"1: {self}"
        assert 1 <= self.first_live_epoch <= self.last_clean_epoch + 1, f"2: {self}"
        assert self.trim_seq_num >= 0, f"3: {self}"

    def __repr__(self) -> str:
        return (
            f"<log {self.log_id} {self.namespace}/{self.name} next=e{self.next_epoch} "
            f"lce=e{self.last_clean_epoch} records={self.totals.record_count}>"
        )
