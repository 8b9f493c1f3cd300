"""What there is of every entry that somebody may still read, counted on the simulated disks.

`CopyJudge` knows the metadata as it is, and reads disks as an inventory does. It says which copies
are missing where they should be: at the end nothing may be (the healed system must converge), and
before the nemesis takes more disks than a log can lose at once, nothing may be (then repair has
made good what was lost before, and the budget begins anew). Striped members are to hold what is
theirs; of a flexible segment the rows that are there are to satisfy RP for every entry together.

Called by `run` and `faults`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from duramen.core.entry_ranges import group_ranges
from duramen.core.flexible.repair.audit import list_needed, names_anybody
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, satisfies
from duramen.core.repair.audit import Stretch, list_stretches, live_epochs
from duramen.core.repair.copies import Piece, expected_entries
from duramen.core.segment import Segment
from duramen.ids import BookieId, EntryId, Epoch, LedgerId, LogId, Member, ledger_of
from duramen.units import SECOND
from tests.sim.metadata import PATHS, Store
from tests.sim.processes import BookieNode
from tests.sim.repair.copy_record import REPAIR

_QUIET_US: Final = 20 * SECOND
"""Longer than from the view that a repair was planned by to its swap."""


class Missing(NamedTuple):
    """Entries that a member is named for and does not hold with good bytes.

    `member`: None: entries that too few of the map's rows hold.
    """

    ledger_id: LedgerId
    member: Member | None
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
        segments: Mapping[LedgerId, AnySegment],
        list_logs: Callable[[], list[tuple[LogId, LogNode]]],
        rules: Mapping[LogId, PlacementRule],
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._segments = segments
        self._list_logs = list_logs
        self._rules = rules
        self._seen: dict[tuple[Stretch, Member], bool] = {}
        self._seen_maps: set[tuple[LedgerId, str]] = set()

    def _list_segments(self) -> Iterator[tuple[LogNode, AnySegment]]:
        for log_id, log in self._list_logs():
            for number in live_epochs(log):
                segment = self._segments.get(ledger_of(log_id, Epoch(number)))
                if segment is not None:
                    yield log, segment

    def list_live(self) -> Iterator[tuple[Segment, Stretch]]:
        """What somebody may still read of striped segments."""
        for log, segment in self._list_segments():
            if isinstance(segment, Segment):
                for stretch in list_stretches(log, segment):
                    yield segment, stretch

    def list_maps(self) -> Iterator[tuple[LogNode, FlexibleSegment]]:
        """Flexible segments of which somebody may still read something, or that are written."""
        for log, segment in self._list_segments():
            if isinstance(segment, FlexibleSegment) and names_anybody(log, segment):
                yield log, segment

    def list_missing(self, *, is_final: bool = False) -> list[Missing]:
        """Every copy of an ended fragment or segment that is not where it should be.

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
        for log, flexible in self.list_maps():
            key = flexible.ledger_id, flexible.nonce
            if flexible.is_closed and key not in self._seen_maps:
                missing = list(self._find_missing_of(log, flexible))
                found += missing
                if is_final and not missing:
                    self._seen_maps.add(key)
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

    def is_quiet(self, old: Segment, segment: Segment, now_us: int) -> bool:
        """Whether the members that stay have been there, and are to stay, for a while."""
        if not segment.nonce.startswith(REPAIR):
            return False
        for before, after in zip(old.fragments, segment.fragments, strict=False):
            if before.ensemble == after.ensemble:
                continue
            for member in [m for m in before.ensemble if m in after.ensemble]:
                fields = self._store.bookies.get(member.bookie)
                is_here = fields is not None and fields["incarnation"] == member.incarnation
                if fields is None or not is_here or fields["draining"]:
                    return False
                if self._store.moved_us[member.bookie] > now_us - _QUIET_US:
                    return False
        return True

    def is_restored(self, hurt: Collection[Member]) -> bool:
        """Whether nothing depends on the disks that were hurt, and every copy is there."""
        for _, stretch in self.list_live():
            if any(member in hurt for member in stretch.fragment.ensemble):
                return False
            if stretch.is_open and not all(map(self._is_there, stretch.fragment.ensemble)):
                return False
        for _, flexible in self.list_maps():
            members = [row.member for row in flexible.nodes]
            if any(member in hurt for member in members):
                return False
            if not flexible.is_closed and not all(map(self._is_there, members)):
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

    def _find_missing_of(self, log: LogNode, segment: FlexibleSegment) -> Iterator[Missing]:
        """Rows that are lost, and entries that those who are there hold too few copies of."""
        needed = list_needed(log, segment)
        stocks = []
        for row in segment.nodes:
            bookie = self._bookies[row.node.bookie]
            if bookie.member != row.member or bookie.is_removed:
                yield Missing(segment.ledger_id, row.member, ())
            elif bookie.is_listening:
                held: dict[EntryId, int] = {}
                for first, last in needed:
                    held |= bookie.take_stock(segment.ledger_id, first, last)
                stocks.append((row.node, held))
        short = []
        known: dict[tuple[BookieId, ...], bool] = {}
        for first, last in needed:
            for number in range(first, last + 1):
                nodes = [node for node, held in stocks if number in held]
                names = tuple(node.bookie for node in nodes)
                if names not in known:
                    known[names] = segment.replication.is_satisfied_by(nodes)
                if not known[names]:
                    short.append(number)
        if short:
            yield Missing(segment.ledger_id, None, tuple(group_ranges(short)))
