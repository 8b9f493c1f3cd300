"""Metadata of one log: the epoch store, an immutable value with its transitions.

It decides which epochs exist (`next_epoch`) and up to which they are closed (`last_clean_epoch`,
LCE). It also sums up what the closed ones hold, so the sequence numbers of the epoch after LCE are
known. The unclosed segments of a log are exactly LCE + 1 … next_epoch − 1; no listing is needed
(R4). Storing a value by compare-and-set is the driver's work (R2, R3).

Invariants (checked by `validate`):
 1 0 ≤ LCE < next_epoch.
 2 first_live_epoch ≤ LCE + 1, and truncated_below too.
 3 trim_seq_num ≥ 0.
 4 ended or deleted ⇒ LCE = next_epoch − 1; purged ⇒ deleted.
 5 1 ≤ first_hot_epoch ≤ LCE + 1, and no takeover reads below it.
 6 metadata have left ZooKeeper below first_hot_epoch only; a metadata log's own never do.
Used by sequencer, recovery, reader; encoded by `wire`. Source: docs/protocol/metadata.md, R2, R4.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from duramen.config import LogConfig
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.core.segment import SegmentState, Totals
from duramen.core.segment_base import SegmentBase
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, LogId, Lsn, is_metadata_log, lsn_of


class Ending(enum.Enum):
    """How a log stops to take appends."""

    END = "end"
    """Its stream is over: what it holds stays readable."""
    DELETE = "delete"
    """Hidden now, given up when the undelete window is over."""


class TrimPoint(NamedTuple):
    """The boundary before a record: its entry, its slot there, its sequence number.

    As the trim point of a log it names the first live record. Positions are immutable, so the three
    belong together for ever; they are ordered as the log is.
    """

    lsn: Lsn
    slot: int
    seq_num: int

    @property
    def dlsn(self) -> Dlsn:
        """The same place as a DLSN."""
        return Dlsn(Epoch(self.lsn >> 32), EntryId(self.lsn & 0xFFFF_FFFF), self.slot)


@dataclass(frozen=True, slots=True)
class LogNode:
    """The log node of docs/protocol/metadata.md."""

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
    trim_slot: int = 0
    truncated_below: Epoch = Epoch(1)
    """Every segment below was truncated at `truncated_unix_ms` at the latest; those above
    `first_live_epoch` wait for `retention.truncated`."""

    truncated_unix_ms: int = 0
    first_live_epoch: Epoch = Epoch(1)
    snapshot_lsn: int | None = None
    """A rebuild of producers and token reads what follows; None: everything that is there, and
    nothing of it may be given up."""

    first_hot_epoch: Epoch = Epoch(1)
    """Every epoch below has released its hot copies: its records lie in the cold store alone, and
    bookies drop it (docs/protocol/archive.md)."""

    metadata: MetadataMarks = MetadataMarks()
    """Which records of the metadata log count instead of segment nodes."""

    is_ended: bool = False
    is_deleted: bool = False
    deleted_unix_ms: int | None = None
    is_purged: bool = False
    """The tombstone (R4): the log never comes back, and bookies give its space back."""

    created_unix_ms: int = 0
    nonce: str = ""
    config_nonce: str = ""
    """The nonce of the call that wrote `config`: whoever repeats it finds its own."""

    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unclosed_epochs(self) -> tuple[Epoch, ...]:
        """Epochs that exist and are not known to be closed, oldest first."""
        return tuple(Epoch(e) for e in range(self.last_clean_epoch + 1, self.next_epoch))

    @property
    def is_stateless(self) -> bool:
        """Whether it is known that no closed epoch has left producers or a token behind."""
        return self.last_clean_epoch == 0 or self.snapshot_lsn == _end_of(self.last_clean_epoch)

    @property
    def first_stateful_epoch(self) -> Epoch:
        """The oldest epoch that a takeover may read: 1 until a close has named a snapshot."""
        return Epoch(1 if self.snapshot_lsn is None else max(1, (self.snapshot_lsn + 1) >> 32))

    @property
    def rebuild_lsn(self) -> Lsn:
        """From here on a takeover reads producers and token back, truncated or not."""
        first = lsn_of(self.first_live_epoch, EntryId(0))
        return first if self.snapshot_lsn is None else Lsn(max(first, self.snapshot_lsn + 1))

    @property
    def first_kept_epoch(self) -> Epoch:
        """Bookies keep this one and what follows: what lies below was given up, or released."""
        return max(self.first_live_epoch, self.first_hot_epoch)

    @property
    def moved_count(self) -> int:
        """Live epochs whose metadata have moved to the metadata log."""
        return max(0, self.metadata.through + 1 - self.first_live_epoch)

    @property
    def needed_lsn(self) -> Lsn:
        """The first entry that anybody may still read from bookies: a reader, or a takeover."""
        first = lsn_of(self.first_hot_epoch, EntryId(0))
        return max(first, min(self.trim.lsn, self.rebuild_lsn))

    @property
    def trim(self) -> TrimPoint:
        """The first live record; where the log begins if nothing was truncated."""
        start = TrimPoint(lsn_of(self.first_live_epoch, EntryId(0)), 0, self.trim_seq_num)
        return max(TrimPoint(Lsn(self.trim_lsn), self.trim_slot, self.trim_seq_num), start)

    @property
    def closed_end(self) -> TrimPoint:
        """The end of the closed segments: the release pointer when no epoch is open."""
        lsn = lsn_of(Epoch(self.last_clean_epoch + 1), EntryId(0))
        return TrimPoint(lsn, 0, self.totals.record_count)

    def with_trim(
        self, point: TrimPoint, *, release: TrimPoint, unix_ms: int, nonce: str
    ) -> LogNode:
        """Everything before `point` is truncated; the trim point never falls.

        Args:
            release: the end of the closed segments, or what follows the LAC of the open one.
            unix_ms: now, from which truncated segments are kept for `retention.truncated`.
        """
        assert self.trim <= point <= release, (point, release, self)
        assert self.trim_seq_num <= point.seq_num <= release.seq_num, (point, release, self)
        trimmed = replace(
            self,
            trim_lsn=point.lsn,
            trim_slot=point.slot,
            trim_seq_num=point.seq_num,
            nonce=nonce,
        )
        if self.truncated_below > self.first_live_epoch:
            return trimmed.validated()  # others wait already: these get their turn after them
        return trimmed._with_next_truncated(unix_ms).validated()

    def with_first_live_epoch(self, epoch: Epoch, *, unix_ms: int, nonce: str) -> LogNode:
        """Segments below `epoch`, all truncated, are given up: bookies may drop them (R4)."""
        assert self.first_live_epoch <= epoch <= self.truncated_below, (epoch, self)
        assert epoch <= self.trim.dlsn.epoch, (epoch, self)
        given_up = replace(self, first_live_epoch=epoch, nonce=nonce)
        if epoch < self.truncated_below:
            return given_up.validated()
        return given_up._with_next_truncated(unix_ms).validated()

    def with_first_hot_epoch(self, epoch: Epoch, nonce: str) -> LogNode:
        """Segments below `epoch`, all with a rechecked cold copy, release their hot copies.

        Part of a `multi()` that checks the versions of those segment nodes.
        """
        assert self.first_hot_epoch <= epoch, (epoch, self)
        return replace(self, first_hot_epoch=epoch, nonce=nonce).validated()

    def with_metadata(self, marks: MetadataMarks, nonce: str) -> LogNode:
        """Other records count: part of the `multi()` that makes it so."""
        assert marks.is_as_new_as(self.metadata) and not self.is_purged, (marks, self)
        return replace(self, metadata=marks, nonce=nonce).validated()

    def _with_next_truncated(self, unix_ms: int) -> LogNode:
        """From now on everything that is truncated by now waits."""
        below = min(self.trim.dlsn.epoch, self.last_clean_epoch + 1)
        if below <= self.first_live_epoch:
            return self
        return replace(self, truncated_below=Epoch(below), truncated_unix_ms=unix_ms)

    def with_ending(self, ending: Ending, *, unix_ms: int, nonce: str) -> LogNode:
        """No append any more: the log has ended, or is deleted. Every epoch is closed."""
        if ending is Ending.END:
            return replace(self, is_ended=True, nonce=nonce).validated()
        deleted = replace(self, is_deleted=True, deleted_unix_ms=unix_ms, nonce=nonce)
        return deleted.validated()

    def undeleted(self, nonce: str) -> LogNode:
        """As before it was deleted; not once it is purged."""
        assert self.is_deleted and not self.is_purged, self
        return replace(self, is_deleted=False, deleted_unix_ms=None, nonce=nonce).validated()

    def purged(self, nonce: str) -> LogNode:
        """The tombstone: for ever."""
        assert self.is_deleted, self
        return replace(self, is_purged=True, nonce=nonce).validated()

    def with_new_epoch(self, nonce: str) -> LogNode:
        """One more epoch exists: written in one `multi()` with its segment (R2)."""
        assert not self.is_ended and not self.is_deleted, self
        return replace(self, next_epoch=Epoch(self.next_epoch + 1), nonce=nonce).validated()

    def with_clean(self, segment: SegmentBase, nonce: str) -> LogNode:
        """`segment`, the one after LCE, is closed: LCE and totals move in the same `multi()`."""
        assert segment.state is SegmentState.CLOSED and segment.totals is not None, segment
        assert segment.epoch == self.last_clean_epoch + 1, (segment, self)
        return replace(
            self,
            last_clean_epoch=segment.epoch,
            totals=self.totals.plus(segment.totals),
            nonce=nonce,
        ).validated()

    def with_stateless(self) -> LogNode:
        """The epoch that was just closed carries no state, and neither does any before it."""
        return self.with_snapshot(_end_of(self.last_clean_epoch))

    def with_snapshot(self, lsn: int) -> LogNode:
        """Producers and token are snapshotted through `lsn`; the end of an epoch: there are none.

        Part of a closing `multi()`: what the snapshot says may be forgotten before LCE covers it.
        """
        assert lsn >= (self.snapshot_lsn or 0), (lsn, self)
        return replace(self, snapshot_lsn=lsn).validated()

    def is_as_new_as(self, other: LogNode) -> bool:
        """Whether this was not read before `other`, as far as one sees: all of these only rise."""
        return (
            self.next_epoch >= other.next_epoch
            and self.last_clean_epoch >= other.last_clean_epoch
            and self.first_live_epoch >= other.first_live_epoch
            and self.first_hot_epoch >= other.first_hot_epoch
            and self.metadata.is_as_new_as(other.metadata)
        )

    def validated(self) -> LogNode:
        """The value itself, after its invariants were checked."""
        self.validate()
        return self

    def validate(self) -> None:
        """Assert invariants 1 to 6."""
        assert 0 <= self.last_clean_epoch < self.next_epoch, f"1: {self}"
        assert 1 <= self.first_live_epoch <= self.last_clean_epoch + 1, f"2: {self}"
        assert self.truncated_below <= self.last_clean_epoch + 1, f"2: {self}"
        assert self.trim_seq_num >= 0, f"3: {self}"
        is_over = self.is_ended or self.is_deleted
        assert not is_over or self.last_clean_epoch == self.next_epoch - 1, f"4: {self}"
        assert self.is_deleted or not self.is_purged, f"4: {self}"
        assert 1 <= self.first_hot_epoch <= self.last_clean_epoch + 1, f"5: {self}"
        assert self.first_hot_epoch <= self.first_stateful_epoch, f"5: {self}"
        self.metadata.validated()
        assert self.metadata.through < self.first_hot_epoch, f"6: {self}"
        assert not self.metadata.epoch or not is_metadata_log(self.log_id), f"6: {self}"

    def __repr__(self) -> str:
        return (
            f"<log {self.log_id} {self.namespace}/{self.name} next=e{self.next_epoch} "
            f"lce=e{self.last_clean_epoch} records={self.totals.record_count}"
            f"{self.format_life()}>"
        )

    def format_life(self) -> str:
        """What ended, or was cut off; nothing while the log is whole."""
        marks = ("ended", self.is_ended), ("deleted", self.is_deleted), ("purged", self.is_purged)
        trim = f" trim={self.trim.dlsn}/{self.trim_seq_num}" if self.trim_seq_num else ""
        live = f" live=e{self.first_live_epoch}" if self.first_live_epoch > 1 else ""
        live += f" hot=e{self.first_hot_epoch}" if self.first_hot_epoch > 1 else ""
        live += f" moved=e{self.metadata.through}" if self.metadata.through else ""
        return trim + live + "".join(f" {name}" for name, is_so in marks if is_so)


def _end_of(epoch: int) -> Lsn:
    """Behind everything of an epoch: a rebuild that begins after it reads nothing of that epoch."""
    return lsn_of(Epoch(epoch + 1), NOTHING)
