"""Metadata of one striped segment: an immutable value, and the only ways in which it may change.

Its entries lie in fragments, each on one ensemble. What is true of flexible segments as well, its
state, end and absences, is in `segment_base`.
Invariants (checked by `validate`):
 1 fragments begin at entry 0 and their first entries rise strictly.
 2 every ensemble has E distinct bookies.
 3 totals before fragments never fall; those of the first one are zero.
 4 CLOSED ⇔ last entry and totals are set; no fragment begins after max(last entry, 0).
 5 holes lie below the last entry of a CLOSED `out_of_order` segment, ascending.
 6 the last fragment of a segment that is not CLOSED is not proved (R9).
 7 a segment with a bound is no longer OPEN, and its last entry is not above the bound.
 8 lost ranges lie within a CLOSED segment, ascending, apart from one another and from holes.
 9 only a CLOSED segment has a cold copy.
Encoded by `wire.metadata_json`. Source: docs/protocol/metadata.md, R2–R4, R9, R15–R17, R21.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace

from duramen.core.quorum import Quorum, covers, write_set, write_sets
from duramen.core.segment_base import TRANSITIONS, SegmentBase, SegmentState, Totals
from duramen.ids import EntryId, Member

__all__ = ["TRANSITIONS", "Fragment", "Segment", "SegmentState", "Totals"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A range of entries written to one ensemble: it lasts until the next fragment begins."""

    first_entry: EntryId
    ensemble: tuple[Member, ...]
    totals_before: Totals = Totals()
    is_proved: bool = False
    """What is stored was compared with what should be: every copy of the write sets is there."""


@dataclass(frozen=True, slots=True)
class Segment(SegmentBase):
    """The metadata of a striped segment."""

    quorum: Quorum
    fragments: tuple[Fragment, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """The ensemble of the last fragment."""
        return self.last_fragment.ensemble

    def list_holders(self, entry: EntryId) -> tuple[Member, ...]:
        """Its write set."""
        return self.write_set_of(entry)

    def end_of_place(self, first: EntryId, last: EntryId) -> EntryId:
        """The end of the fragment that `first` lies in, or `last`."""
        beyond = [f.first_entry for f in self.fragments if f.first_entry > first]
        return min([last, *(EntryId(entry - 1) for entry in beyond)])

    def is_sealed_by(self, members: Collection[Member]) -> bool:
        """Whether they cover the last fragment (R12)."""
        sets = write_sets(self.last_fragment.ensemble, self.quorum)
        return covers(members, sets, self.quorum.ack_quorum)

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that new entries go to."""
        return self.fragments[-1]

    def fragment_of(self, entry: EntryId) -> Fragment:
        """The fragment that holds `entry`."""
        last = self.fragments[-1]
        if last.first_entry <= entry:  # as for every entry that is on its way
            return last
        for fragment in reversed(self.fragments):
            if fragment.first_entry <= entry:
                return fragment
        raise AssertionError(f"entry {entry} precedes every fragment")

    def write_set_of(self, entry: EntryId) -> tuple[Member, ...]:
        """The members that `entry` is written to."""
        return write_set(self.fragment_of(entry).ensemble, self.quorum, entry)

    def with_lost(self, ranges: Collection[tuple[int, int]], nonce: str) -> Segment:
        """Entries recorded as lost, besides those that are: for repair, of a CLOSED segment."""
        assert self.is_closed, self
        return replace(self, lost=self._join_lost(ranges), nonce=nonce).validated()

    def with_ensemble(
        self, first_entry: EntryId, ensemble: tuple[Member, ...], totals_before: Totals, nonce: str
    ) -> Segment:
        """A new ensemble from `first_entry` on; replaces the last fragment if it begins there."""
        assert self.state is SegmentState.OPEN, self
        assert self.ack_mode == "ordered", "an out_of_order segment rolls instead"
        kept = self.fragments
        if kept[-1].first_entry == first_entry:
            kept = kept[:-1]
        fragment = Fragment(first_entry, ensemble, totals_before)
        return replace(self, fragments=(*kept, fragment), nonce=nonce).validated()

    def with_swapped(self, first_entry: EntryId, old: Member, new: Member, nonce: str) -> Segment:
        """`new` in the place of `old`, in the fragment that begins at `first_entry` (R21).

        For repair, when a verified copy lies at `new`: it proves what `old` proved, so the fragment
        says of itself what it said. The last fragment of a segment that is not CLOSED is its
        owner's to change.
        """
        fragment = self._settled_fragment(first_entry)
        assert old in fragment.ensemble and old != new, (self, old, new)
        ensemble = tuple(new if member == old else member for member in fragment.ensemble)
        return self._with_fragment(replace(fragment, ensemble=ensemble), nonce)

    def with_proved(self, first_entry: EntryId, nonce: str) -> Segment:
        """The fragment at `first_entry` proved: copies of all its write sets were compared (R9)."""
        fragment = self._settled_fragment(first_entry)
        return self._with_fragment(replace(fragment, is_proved=True), nonce)

    def _settled_fragment(self, first_entry: EntryId) -> Fragment:
        """A fragment that gets no more entries: any but the last one of an unclosed segment."""
        settled = self.fragments if self.is_closed else self.fragments[:-1]
        found = [fragment for fragment in settled if fragment.first_entry == first_entry]
        assert found, f"R21: no settled fragment begins at {first_entry}: {self}"
        return found[0]

    def _with_fragment(self, changed: Fragment, nonce: str) -> Segment:
        """`changed` in the place of the fragment with its first entry."""
        fragments = tuple(
            changed if fragment.first_entry == changed.first_entry else fragment
            for fragment in self.fragments
        )
        return replace(self, fragments=fragments, nonce=nonce).validated()

    def closed(
        self,
        *,
        last_entry: EntryId,
        totals: Totals,
        start_seq_num: int,
        completed_unix_ms: int,
        nonce: str,
        holes: tuple[tuple[EntryId, EntryId], ...] = (),
        fragments: tuple[Fragment, ...] | None = None,
        proved: Collection[EntryId] = (),
    ) -> Segment:
        """CLOSED at `last_entry` (`NOTHING` if empty); later fragments are dropped (R17).

        Args:
            fragments: recovery's in-memory ensembles, written only together with CLOSED (R16).
            proved: first entries of fragments that the owner knows to be whole (R9); the others
                say of themselves what they said.
        """
        assert SegmentState.CLOSED in TRANSITIONS[self.state], self
        candidates = self.fragments if fragments is None else fragments
        kept = tuple(
            replace(f, is_proved=True) if f.first_entry in proved else f
            for f in candidates
            if f.first_entry <= max(last_entry, 0)
        )
        return replace(self, fragments=kept)._ended(
            last_entry=last_entry,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
            holes=holes,
        )

    def _validate_placing(self) -> None:
        """Invariants 1 to 3 and 6, and of 4 what it says of fragments."""
        firsts = [fragment.first_entry for fragment in self.fragments]
        assert firsts and firsts[0] == 0, f"1: {self}"
        assert all(a < b for a, b in itertools.pairwise(firsts)), f"1: {self}"
        for fragment in self.fragments:
            bookies = sorted(member.bookie for member in fragment.ensemble)
            assert len(bookies) == self.quorum.ensemble_size, f"2: {self}"
            assert all(a != b for a, b in itertools.pairwise(bookies)), f"2: {self}"
        counts = [fragment.totals_before.record_count for fragment in self.fragments]
        assert counts == sorted(counts) and counts[0] == 0, f"3: {self}"
        if self.last_entry is not None:
            assert firsts[-1] <= max(self.last_entry, 0), f"4: {self}"
        assert self.is_closed or not self.last_fragment.is_proved, f"6: {self}"

    def __repr__(self) -> str:
        return self._describe(
            " ".join(f"{f.first_entry}:{list(f.ensemble)}" for f in self.fragments)
        )
