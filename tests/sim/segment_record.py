"""What metadata and writers of one log say of its segments, judged: E1, C1, F1, D2 and G1.

Part of `checkers`, which gives it every segment opened, closed or covered by seals, every entry
that became durable or was acknowledged, and at the end one complete read. Also what all the
checkers share: `Violation`, and the `Tally` of checks made.

Members are bits here, numbered by `checkers`: what holds an entry is one number.
Source: docs/testing.md "Invariants", docs/protocol/wire.md "Identities", docs/protocol/metadata.md
"Rules for every change", docs/protocol/write.md "Roll", docs/protocol/recovery.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from duramen.core.segment import Fragment, Totals
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, LogId, SequencerId

CODES: Final = (
    "D1", "D2", "D3", "O1", "O2", "O3", "G1", "U1", "L1", "F1", "C1", "E1", "P1", "M1", "T1",
    "Q1", "K1", "R21", "R26", "R29", "A1", "H1", "N1",
)  # fmt: skip

Record = tuple[Dlsn, int, bytes]
Holes = tuple[tuple[EntryId, EntryId], ...]
_EMPTY: Final[Mapping[int, int]] = {}


class Violation(Exception):
    """An invariant does not hold: `code` is its id in docs/testing.md "Invariants"."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return type(self), (self.code, self.text)  # between processes


class Tally:
    """Counts the checks made for each code; what fails is put into words only then."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = dict.fromkeys(CODES, 0)

    def check(self, code: str, is_kept: bool, *what: object) -> None:
        """Count a check, and raise what it found."""
        self.counts[code] += 1
        if not is_kept:
            raise Violation(code, format_text(*what))


class SegmentEnd(NamedTuple):
    """What a closed segment says about itself."""

    last_entry: EntryId
    totals: Totals
    start_seq_num: int
    holes: Holes = ()


class LedgerHoldings:
    """Which members hold which entry of one ledger, now and when it was covered by seals."""

    __slots__ = (
        "_at_cover",
        "_held",
        "_holders",
        "_responders",
        "_vouched",
        "highest_acknowledged",
        "placed_fragment",
    )

    def __init__(self, *, is_covered: bool) -> None:
        self.highest_acknowledged = NOTHING
        self.placed_fragment: Fragment | None = None
        """The last one whose placement was found good."""

        self._held: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._vouched: dict[int, int] = {}
        self._at_cover: Mapping[int, int] | None = _EMPTY if is_covered else None
        self._responders = 0

    def hold(self, entry_id: EntryId, crc: int, bit: int) -> None:
        """A member holds an entry durably, for good."""
        key = entry_id << 32 | crc
        self._held[key] = self._held.get(key, 0) | bit
        self._holders[entry_id] = self._holders.get(entry_id, 0) | bit

    def any_holders(self, entry_id: EntryId) -> int:
        """The members that hold an entry, whatever its bytes."""
        return self._holders.get(entry_id, 0)

    def holders(self, entry_id: EntryId, crc: int) -> int:
        """The members that hold these bytes."""
        return self._held.get(entry_id << 32 | crc, 0)

    def vouch(self, entry_id: EntryId, bit: int) -> None:
        """A member knows, and says to whoever asks, that it holds an entry."""
        self._vouched[entry_id] = self._vouched.get(entry_id, 0) | bit

    def is_vouched(self, entry_id: EntryId, bit: int) -> bool:
        """Whether a member ever vouched for an entry."""
        return self._vouched.get(entry_id, 0) & bit != 0

    def cover(self, responders: int) -> None:
        """Seals cover the ledger: remember what was held. The first cover counts."""
        if self._at_cover is None:
            self._at_cover = dict(self._held)
            self._responders = responders

    def has_witness(self, entry_id: EntryId, crc: int, write_set: int) -> bool:
        """Whether the entry may have been acknowledged by what was stored before the cover."""
        if self._at_cover is None:
            return True
        witnesses = write_set & (self._responders or write_set)
        return self._at_cover.get(entry_id << 32 | crc, 0) & witnesses != 0


class SegmentRecord:
    """The segments of one log: opened 1 … n, closed 1 … k with their ends."""

    def __init__(self, log_id: LogId, tally: Tally) -> None:
        self.log_id = log_id
        self.ends: dict[int, SegmentEnd] = {}
        self.controls: dict[int, set[int]] = {}
        """Entries without records that readers were given, by epoch."""
        self.covered: set[int] = set()
        """Epochs that seals cover."""
        self._tally = tally
        self._openers: dict[int, SequencerId] = {}
        self._conclusions: dict[tuple[int, EntryId, Holes], SegmentEnd] = {}
        self._ledgers: dict[int, LedgerHoldings] = {}
        self._bare = 1
        """The first epoch that is neither closed nor covered, as far as was looked."""

    def ledger(self, epoch: int) -> LedgerHoldings:
        """The ledger of an epoch; one first heard of under a cover held nothing then."""
        ledger = self._ledgers.get(epoch)
        if ledger is None:
            ledger = LedgerHoldings(is_covered=epoch in self.covered)
            self._ledgers[epoch] = ledger
        return ledger

    def check_opened(self, epoch: int) -> None:
        """E1: nothing happens in an epoch that nobody opened."""
        if epoch not in self._openers:
            raise Violation("E1", f"log {self.log_id} e{epoch} was never opened")

    def check_sealed_below(self, epoch: int) -> None:
        """E1: nothing is acknowledged while an older epoch is neither closed nor sealed."""
        while self._bare in self.ends or self._bare in self.covered:
            self._bare += 1
        what = "log", self.log_id, "epoch", epoch, "acknowledges before a cover seals", self._bare
        self._tally.check("E1", epoch <= self._bare, *what)

    def on_opened(self, epoch: Epoch, sequencer_id: SequencerId) -> None:
        """E1: one sequencer for each epoch, and epochs rise by one."""
        opener, count = self._openers.get(epoch), len(self._openers)
        what = "log", self.log_id, "epoch", epoch, "opened by", sequencer_id, "after epoch", count
        self._tally.check("E1", epoch == count + 1, *what, "and before by", opener)
        self._openers[epoch] = sequencer_id

    def on_covered(self, epoch: Epoch, responders: int) -> None:
        """Seals cover an epoch; older ones may lie elsewhere, and have covers of their own."""
        if epoch in self._ledgers and epoch not in self.ends:
            self._ledgers[epoch].cover(responders)
        self.covered.add(epoch)

    def on_closed(
        self, epoch: Epoch, said: SegmentEnd, recoverer: object, *, is_committed: bool
    ) -> None:
        """C1, G1, and D1: nothing acknowledged lies beyond an end."""
        self.check_opened(epoch)
        what = "log", self.log_id, "epoch", epoch, "said by", recoverer, said
        known = self.ends.get(epoch)
        if known is not None and is_committed:
            self._tally.check("C1", said == known, *what, "but closed as", known)
            return
        other = self._conclusions.setdefault((epoch, said.last_entry, said.holes), said)
        self._tally.check("C1", said == other, *what, "but said to be", other)
        self._check_start(epoch, said, what)
        lasting = self.ledger(epoch).highest_acknowledged
        self._tally.check("D1", lasting <= said.last_entry, *what, "but acknowledged", lasting)
        if is_committed:
            self.ends[epoch] = said

    def _check_start(self, epoch: int, said: SegmentEnd, what: tuple[object, ...]) -> None:
        """G1: segments close in order, and each starts where the one before it ended."""
        start = 0
        if epoch > 1:
            before = self.ends.get(epoch - 1)
            if before is None:
                raise Violation("G1", format_text(*what, "before the epoch below was closed"))
            start = before.start_seq_num + before.totals.record_count
        self._tally.check("G1", said.start_seq_num == start, *what, "but starts at", start)
        is_empty = said.last_entry == NOTHING
        is_possible = said.last_entry >= NOTHING and (not is_empty or not said.totals.record_count)
        self._tally.check("G1", is_possible, *what)

    def check_gaps(
        self, complete: Sequence[Record], first_epoch: int = 1, first_entry: int = 0
    ) -> None:
        """G1: epochs rise, entries and slots are dense, sequence numbers go 0, 1, 2, …

        Args:
            first_epoch, first_entry: where the read began: what lies below is not in it.
        """
        by_epoch: dict[int, list[Record]] = {}
        latest = first_epoch - 1
        for epoch, records in itertools.groupby(complete, key=lambda record: record[0].epoch):
            is_next = latest < epoch <= len(self.ends) + 1
            self._check_gap(is_next, "epoch", epoch, "after", latest, "closed", len(self.ends))
            self.check_opened(epoch)
            latest = epoch
            by_epoch[epoch] = list(records)
        seq_num = 0
        if first_epoch > 1:
            below = self.ends[first_epoch - 1]
            seq_num = below.start_seq_num + below.totals.record_count
        for epoch in range(first_epoch, max(latest, len(self.ends)) + 1):
            end, found = self.ends.get(epoch), by_epoch.get(epoch, [])
            begin = first_entry if epoch == first_epoch else 0
            if begin:  # how many records lie below is not known here
                following = 0 if end is None else end.start_seq_num + end.totals.record_count
                seq_num = found[0][1] if found else following
            last, seq_num = self._check_entries(epoch, found, seq_num, begin)
            if end is not None:
                is_whole = last == end.last_entry
                is_whole = is_whole and seq_num == end.start_seq_num + end.totals.record_count
                self._check_gap(is_whole, "epoch", epoch, "ends", last, seq_num, "not as", end)

    def _check_entries(
        self, epoch: int, records: Sequence[Record], seq_num: int, first_entry: int
    ) -> tuple[int, int]:
        """One epoch; gives its last entry and the sequence number that follows."""
        end = self.ends.get(epoch)
        holes = () if end is None else end.holes
        controls = self.controls.get(epoch, set())
        entry, slot = first_entry - 1, 0
        for dlsn, found, _ in records:
            skipped = [n for n in range(entry + 1, dlsn.entry) if n not in controls]
            is_next = dlsn.slot == (slot + 1 if dlsn.entry == entry else 0)
            is_next = is_next and dlsn.entry >= entry and _are_holes(skipped, holes)
            # Only a hole may take numbers with it: those of the records that were never stored.
            is_next = is_next and (found == seq_num or (len(skipped) > 0 and found > seq_num))
            self._check_gap(is_next, dlsn, "seq", found, "follows entry", entry, "slot", slot)
            entry, slot, seq_num = dlsn.entry, dlsn.slot, found + 1
        while entry + 1 in controls:
            entry += 1
        if end is not None and entry < end.last_entry:
            # Only a control entry ends an epoch behind a hole, which took its numbers with it.
            behind = range(entry + 1, end.last_entry + 1)
            skipped = [number for number in behind if number not in controls]
            self._check_gap(_are_holes(skipped, holes), "epoch", epoch, "ends before", skipped)
            entry, seq_num = end.last_entry, end.start_seq_num + end.totals.record_count
        return entry, seq_num

    def _check_gap(self, is_kept: bool, *what: object) -> None:
        self._tally.check("G1", is_kept, "log", self.log_id, *what)


def format_text(*what: object) -> str:
    """The parts of a message, side by side."""
    return " ".join(str(part) for part in what)


def _are_holes(entries: Sequence[int], holes: Holes) -> bool:
    return all(any(first <= entry <= last for first, last in holes) for entry in entries)
