"""What every segment is, however its entries are placed: state, end, absences, and a cold copy.

A segment (= ledger = epoch) goes OPEN → IN_RECOVERY → CLOSED, or OPEN → CLOSED by its owner. Every
method gives a new value, which keeps what it does not mean to change; drivers store it (R3).
Invariants of each kind, by the numbers that they have in `segment` (checked by `validate`):
 4 CLOSED ⇔ last entry and totals are set.
 5 holes lie below the last entry of a CLOSED `out_of_order` segment, ascending.
 7 a segment with a bound is no longer OPEN, and its last entry is not above the bound.
 8 lost ranges lie within a CLOSED segment, ascending, apart from one another and from holes.
 9 only a CLOSED segment has a cold copy.
Not here: where entries lie (`segment` by fragments, `flexible.segment` by a nodeset).
Source: docs/protocol/metadata.md, R2–R4, R15–R17.
"""

from __future__ import annotations

import enum
import itertools
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple, Self

from duramen.core.cold_copy import ColdCopy
from duramen.core.entry_ranges import EntryRanges
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, Member, ledger_of


class SegmentState(enum.Enum):
    """Where a segment is in its life."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


TRANSITIONS: Mapping[SegmentState, frozenset[SegmentState]] = {
    SegmentState.OPEN: frozenset({SegmentState.IN_RECOVERY, SegmentState.CLOSED}),
    SegmentState.IN_RECOVERY: frozenset({SegmentState.CLOSED}),
    SegmentState.CLOSED: frozenset(),
}


class Totals(NamedTuple):
    """What a prefix of a segment (or of a log) holds; each look at an entry's header makes one."""

    record_count: int = 0
    length_bytes: int = 0
    max_txid: int | None = None
    max_timestamp_ms: int | None = None

    def plus(self, other: Totals) -> Totals:
        """The totals of this prefix followed by another one."""
        return Totals(
            self.record_count + other.record_count,
            self.length_bytes + other.length_bytes,
            _greater(self.max_txid, other.max_txid),
            _greater(self.max_timestamp_ms, other.max_timestamp_ms),
        )


@dataclass(frozen=True, slots=True)
class SegmentBase(ABC):
    """What the metadata of each segment has."""

    log_id: LogId
    epoch: Epoch
    _: KW_ONLY
    state: SegmentState = SegmentState.OPEN
    ack_mode: str = "ordered"
    placement: str = "strict"
    last_entry: EntryId | None = None
    holes: tuple[tuple[EntryId, EntryId], ...] = ()
    """Closed ranges of entries below the last one whose absence was proved (`out_of_order`)."""

    bound: EntryId | None = None
    """Nothing above it was acknowledged, and recovery leaves that out: appends in newer epochs may
    have been acknowledged since (`early_append`)."""

    lost: tuple[tuple[EntryId, EntryId], ...] = ()
    """Closed ranges of entries that were there, and of which no copy is left: a person has said
    that the disks which had them are gone for ever (R15)."""

    cold_copy: ColdCopy | None = None
    """The whole segment in the cold store, read back and compared; None: nobody says so."""

    totals: Totals | None = None
    start_seq_num: int | None = None
    completed_unix_ms: int | None = None
    created_unix_ms: int = 0
    nonce: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger that this segment is."""
        return ledger_of(self.log_id, self.epoch)

    @property
    def is_closed(self) -> bool:
        """Whether the end is decided for ever."""
        return self.state is SegmentState.CLOSED

    @property
    @abstractmethod
    def members(self) -> tuple[Member, ...]:
        """Bookies that new entries go to, or may go to; whom a recovery seals."""

    @abstractmethod
    def list_holders(self, entry: EntryId) -> tuple[Member, ...]:
        """Who may have an entry."""

    @abstractmethod
    def end_of_place(self, first: EntryId, last: EntryId) -> EntryId:
        """How far, up to `last`, entries may lie where `first` may."""

    @abstractmethod
    def is_sealed_by(self, members: Collection[Member]) -> bool:
        """Whether nothing can be acknowledged any more once these are sealed (R12, R23)."""

    def hole_at(self, entry: EntryId) -> tuple[EntryId, EntryId] | None:
        """The hole that `entry` lies in, if it lies in one."""
        return next((hole for hole in self.holes if hole[0] <= entry <= hole[1]), None)

    def lost_at(self, entry: EntryId) -> tuple[EntryId, EntryId] | None:
        """The lost range that `entry` lies in, if it lies in one."""
        return next((lost for lost in self.lost if lost[0] <= entry <= lost[1]), None)

    def absence_at(self, entry: EntryId) -> tuple[EntryId, EntryId] | None:
        """The hole or the lost range that `entry` lies in: nobody is to hold it."""
        return self.hole_at(entry) or self.lost_at(entry)

    def list_present(self, first: EntryId, last: EntryId) -> list[tuple[EntryId, EntryId]]:
        """Ranges of what lies from `first` to `last` and is neither lost nor a hole, ascending."""
        if first > last:
            return []
        present = EntryRanges([(first, last)])
        for absence in (*_touching(self.holes, first, last), *_touching(self.lost, first, last)):
            present.remove(*absence)
        return present.list_ranges()

    def has_lost(self, first: EntryId, last: EntryId) -> bool:
        """Whether anything from `first` to `last` is lost."""
        return first <= last and bool(_touching(self.lost, first, last))

    def _join_lost(
        self, ranges: Collection[tuple[int, int]]
    ) -> tuple[tuple[EntryId, EntryId], ...]:
        """What is lost, with these ranges."""
        lost = EntryRanges(self.lost)
        for first, last in ranges:
            lost.add(first, last)
        return tuple(lost.list_ranges())

    def with_cold_copy(self, copy: ColdCopy, nonce: str) -> Self:
        """A copy in the cold store was verified; it proves at least what one before it proved.

        Whoever loses a race for the segment finds a copy in it, and stands back: that is the
        caller's predicate. Another copy takes the place of a rechecked one only if it is rechecked
        too, since the hot copies may be gone.
        """
        assert self.is_closed, self
        before = self.cold_copy
        assert before is None or copy.is_rechecked or not before.is_rechecked, (self, copy)
        return replace(self, cold_copy=copy, nonce=nonce).validated()

    def with_recheck(self, unix_ms: int, nonce: str) -> Self:
        """The cold copy was found whole once more: the hot copies may go."""
        assert self.cold_copy is not None, self
        copy = self.cold_copy.rechecked(unix_ms)
        return replace(self, cold_copy=copy, nonce=nonce).validated()

    def without_cold_copy(self, nonce: str) -> Self:
        """The cold copy was found broken.

        Only while the hot copies are there: part of a `multi()` that checks a version of the log
        node with `first_hot_epoch` ≤ the segment's epoch.
        """
        assert self.cold_copy is not None, self
        return replace(self, cold_copy=None, nonce=nonce).validated()

    def marked(self, nonce: str) -> Self:
        """IN_RECOVERY: from now on only recovery may close it (MARK)."""
        assert SegmentState.IN_RECOVERY in TRANSITIONS[self.state], self
        return replace(self, state=SegmentState.IN_RECOVERY, nonce=nonce)

    def bounded(self, bound: EntryId, nonce: str) -> Self:
        """No recovery closes it above `bound` any more; the first bound stays."""
        assert self.state is SegmentState.IN_RECOVERY and self.bound is None, self
        return replace(self, bound=bound, nonce=nonce).validated()

    def _ended(
        self,
        *,
        last_entry: EntryId,
        totals: Totals,
        start_seq_num: int,
        completed_unix_ms: int,
        nonce: str,
        holes: tuple[tuple[EntryId, EntryId], ...],
    ) -> Self:
        """CLOSED at `last_entry`: each kind says who may, and what becomes of the rest."""
        return replace(
            self,
            state=SegmentState.CLOSED,
            last_entry=last_entry,
            holes=holes,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
        ).validated()

    def validated(self) -> Self:
        """The value itself, after its invariants were checked."""
        self.validate()
        return self

    @abstractmethod
    def _validate_placing(self) -> None:
        """Assert what holds of where entries lie."""

    def validate(self) -> None:
        """Assert the invariants of this kind of segment."""
        self._validate_placing()
        assert self.is_closed == (self.last_entry is not None), f"4: {self}"
        assert self.is_closed == (self.totals is not None), f"4: {self}"
        bounds = [entry for hole in self.holes for entry in hole]
        assert bounds == sorted(bounds), f"5: {self}"
        assert not bounds or (self.ack_mode == "out_of_order" and self.is_closed), f"5: {self}"
        assert not bounds or 0 <= bounds[0] <= bounds[-1] < (self.last_entry or 0), f"5: {self}"
        assert self.last_entry is None or self.last_entry >= NOTHING, f"4: {self}"
        if self.bound is not None:
            assert self.state is not SegmentState.OPEN, f"7: {self}"
            assert self.last_entry is None or self.last_entry <= self.bound, f"7: {self}"
        self._validate_lost()
        if self.cold_copy is not None:
            assert self.is_closed, f"9: {self}"
            self.cold_copy.validate()

    def _validate_lost(self) -> None:
        assert not self.lost or self.is_closed, f"8: {self}"
        assert all(first <= last for first, last in self.lost), f"8: {self}"
        absent = sorted((*self.holes, *self.lost))
        assert [*self.lost] == sorted(self.lost), f"8: {self}"
        assert not self.lost or all(a[1] < b[0] for a, b in itertools.pairwise(absent)), (
            f"8: {self}"
        )
        assert not self.lost or 0 <= self.lost[0][0] <= self.lost[-1][1] <= (
            self.last_entry or 0
        ), f"8: {self}"

    def _describe(self, placing: str) -> str:
        """What a fault shows of it."""
        end = "" if self.last_entry is None else f" last={self.last_entry}"
        cold = "" if self.cold_copy is None else f" cold={self.cold_copy.attempt[:8]}"
        return f"<segment {self.log_id}.e{self.epoch} {self.state.value}{end}{cold} {placing}>"


def _touching(
    ranges: tuple[tuple[EntryId, EntryId], ...], first: EntryId, last: EntryId
) -> tuple[tuple[EntryId, EntryId], ...]:
    """Those of ascending ranges that have an entry from `first` to `last`: there may be many."""
    begin = bisect_left(ranges, first, key=lambda one: one[1])
    return ranges[begin : bisect_right(ranges, last, key=lambda one: one[0])]


def _greater(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
