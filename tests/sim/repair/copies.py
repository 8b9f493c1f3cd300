"""What there is of every entry that somebody may still read, counted on the simulated disks.

`CopyJudge` knows the metadata as it is, and reads disks as an inventory does. It says which copies
are missing where they should be: at the end nothing may be (the healed system must converge), and
before the nemesis takes more disks than a log can lose at once, nothing may be (then repair has
made good what was lost before, and the budget begins anew).

Called by `run` and `faults`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from duramen.core.entry_ranges import group_ranges
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, satisfies
from duramen.core.repair.audit import Stretch, list_stretches, live_epochs
from duramen.core.repair.copies import Piece, expected_entries
from duramen.core.segment import Segment
from duramen.ids import EntryId, Epoch, LedgerId, LogId, Member, ledger_of
from tests.sim.metadata import PATHS, Store
from tests.sim.processes import BookieNode


class Missing(NamedTuple):
    """Entries that a member is named for and does not hold with good bytes."""

    ledger_id: LedgerId
    member: Member
    ranges: tuple[tuple[int, int], ...]


class CopyJudge:
    """Looks at metadata and disks as they are.

    Args:
        segments: every segment node, as it is.
        list_logs: the log nodes as they are.
        rules: placement of each log.
    """

    def __init__(
        self,
        store: Store,
        bookies: Mapping[str, BookieNode],
        segments: Mapping[LedgerId, Segment],
        list_logs: Callable[[], list[tuple[LogId, LogNode]]],
        rules: Mapping[LogId, PlacementRule],
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._segments = segments
        self._list_logs = list_logs
        self._rules = rules
        self._seen: dict[tuple[Stretch, Member], bool] = {}

    def list_live(self) -> Iterator[tuple[Segment, Stretch]]:
        """What somebody may still read."""
        for log_id, log in self._list_logs():
            for number in live_epochs(log):
                segment = self._segments.get(ledger_of(log_id, Epoch(number)))
                for stretch in () if segment is None else list_stretches(log, segment):
                    assert segment is not None
                    yield segment, stretch

    def list_missing(self, *, is_final: bool = False) -> list[Missing]:
        """Every copy of an ended fragment that is not where it should be.

        Args:
            is_final: nothing goes wrong any more: what was found good once is not read again.
        """
        found = []
        for segment, stretch in self.list_live():
            if stretch.is_open:
                continue
            for index, member in enumerate(stretch.fragment.ensemble):
                if is_final and (stretch, member) in self._seen:
                    continue
                ranges = self._find_missing(segment, stretch, index, member)
                if ranges:
                    found.append(Missing(segment.ledger_id, member, tuple(ranges)))
                elif is_final:
                    self._seen[stretch, member] = True
        return found

    def list_misplaced(self) -> list[Segment]:
        """Strict segments of which an ended fragment breaks R20."""
        places = {
            bookie.member: bookie.candidate_of(bookie.member) for bookie in self._bookies.values()
        }
        return [
            segment
            for segment, stretch in self.list_live()
            if self._rules[segment.log_id].is_strict
            and not stretch.is_open
            and not satisfies(
                stretch.fragment.ensemble, segment.quorum, self._rules[segment.log_id], places
            )
        ]

    def list_notes(self) -> list[str]:
        """Notes about copies that are missing, of whatever ledger."""
        zxid = self._store.zxid
        notes = [f"queue {name}" for name in self._store.list_children(PATHS.repair_queue, zxid)]
        for segment in self._segments.values():
            parent = f"{PATHS.repair_owed}/{segment.ledger_id}"
            notes += [f"{parent}/{name}" for name in self._store.list_children(parent, zxid)]
        return notes

    def is_restored(self, hurt: Collection[Member]) -> bool:
        """Whether nothing depends on the disks that were hurt, and every copy is there."""
        for _, stretch in self.list_live():
            if any(member in hurt for member in stretch.fragment.ensemble):
                return False
            if stretch.is_open and not all(map(self._is_there, stretch.fragment.ensemble)):
                return False
        return not self.list_notes() and not self.list_missing()

    def _is_there(self, member: Member) -> bool:
        bookie = self._bookies[member.bookie]
        return bookie.member == member and bookie.is_listening

    def _find_missing(
        self, segment: Segment, stretch: Stretch, index: int, member: Member
    ) -> list[tuple[int, int]]:
        piece = Piece(stretch.first, stretch.last)
        expected = expected_entries(segment, stretch, index, piece)
        held: Mapping[EntryId, int] = {}
        if self._is_there(member):
            bookie = self._bookies[member.bookie]
            held = bookie.take_stock(segment.ledger_id, stretch.first, stretch.last)
        return list(group_ranges([entry for entry in expected if entry not in held]))
