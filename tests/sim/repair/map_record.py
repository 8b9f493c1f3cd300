"""What repair changes in the maps of flexible segments, judged when it takes effect: R26 and D2.

Part of `checkers`. A row goes out of a CLOSED segment, or gets another place, only while what
became durable at the rows that are left satisfies RP for every entry that somebody may still read;
in one that is not closed no row goes. Whoever is not repair changes no row. Who is said to be
drained is named by no segment of which something may be read. Who recovers a segment closes it only
when the entries that it found satisfy RP (R24).

What is held is what became durable at some time; a disk that was lost longer ago than evidence may
be old holds nothing. Source: R26, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from duramen.core.flexible.repair.evidence import EntryRange
from duramen.core.flexible.segment import FlexibleSegment
from duramen.ids import EntryId, Member
from tests.sim.repair.copy_record import REPAIR
from tests.sim.segment_record import LedgerHoldings, Tally


def name_change(before: FlexibleSegment, after: FlexibleSegment) -> str:
    """What repair did, as `nemesis` calls it; empty: nothing to the map."""
    if not after.nonce.startswith(REPAIR) or after.nonce == before.nonce:
        return ""
    if len(after.nodes) < len(before.nodes):
        return "copies swapped"
    if len(after.nodes) > len(before.nodes):
        return "row added"
    return "segment proved" if after.is_proved and not before.is_proved else ""


class MapRecord:
    """The changes of maps, over all logs.

    Args:
        bit_of: a member as a bit of what holds an entry.
    """

    def __init__(self, tally: Tally, bit_of: Callable[[Member], int]) -> None:
        self._tally = tally
        self._bit_of = bit_of

    def on_changed(
        self,
        before: FlexibleSegment,
        after: FlexibleSegment,
        ledger: LedgerHoldings,
        needed: Sequence[EntryRange],
        lost: int,
    ) -> None:
        """A segment node was replaced.

        Args:
            needed: what somebody may still read of it.
            lost: members whose disks are gone for so long that nothing rests on them.
        """
        rows = {row.number: row for row in before.nodes}
        kept = {row.number: row for row in after.nodes}
        out = [number for number in rows if number not in kept]
        moved = [n for n, row in kept.items() if n in rows and rows[n] != row]
        what = "repair made", after, "of", before
        self._tally.check("R26", not out or before.is_closed, *what)
        self._tally.check("R26", len(out) <= 1, *what)
        if not after.nonce.startswith(REPAIR):
            self._tally.check("R26", not out and not moved, before, "becomes", after)
            return
        is_kept = (before.last_entry, before.holes) == (after.last_entry, after.holes)
        self._tally.check("R26", is_kept and before.state is after.state, *what)
        if out or moved:
            self._check_copies(after, ledger, needed, lost)

    def _check_copies(
        self,
        segment: FlexibleSegment,
        ledger: LedgerHoldings,
        needed: Sequence[EntryRange],
        lost: int,
    ) -> None:
        bits = [(self._bit_of(row.member), row.node) for row in segment.nodes]
        known: dict[int, bool] = {}
        for first, last in needed:
            for number in range(first, last + 1):
                held = ledger.any_holders(EntryId(number)) & ~lost
                if held not in known:
                    nodes = [node for bit, node in bits if bit & held]
                    known[held] = segment.replication.is_satisfied_by(nodes)
                what = "the rows that are left hold too little of entry", number, "of", segment
                self._tally.check("R26", known[held], *what)

    def on_recovered(
        self,
        segment: FlexibleSegment,
        ledger: LedgerHoldings,
        entries: Iterable[int],
        gone: Collection[Member],
    ) -> None:
        """D2: what recovery found above LNG is durable where RP asks for it, gone disks apart."""
        rows = [row for row in segment.nodes if row.member not in gone]
        bits = [(self._bit_of(row.member), row.node) for row in rows]
        for number in entries:
            held = ledger.any_holders(EntryId(number))
            is_kept = segment.replication.is_satisfied_by([node for b, node in bits if b & held])
            self._tally.check("D2", is_kept, "recovered entry", number, "is short in", segment)

    def on_drained(self, member: Member, named: Iterable[FlexibleSegment]) -> None:
        """A bookie may go now, says the metadata.

        Args:
            named: segments of which something may be read, or is written.
        """
        for segment in named:
            is_named = any(row.node.bookie == member.bookie for row in segment.nodes)
            self._tally.check("D2", not is_named, member.bookie, "is drained and in", segment)
