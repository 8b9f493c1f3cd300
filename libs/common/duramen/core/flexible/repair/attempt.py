"""One attempt at repairing a CLOSED flexible segment: what to ask, copy and add, step by step.

    MARK → COMPARE ⇄ COPY, COMPARE → ADD → MARK, COMPARE → MARK_AGAIN → ENDED

Witnesses tell their marks before anything else. Piece by piece all that are there say what they
hold; what is short is copied, and the targets are asked again. If every needed entry satisfied RP
at the witnesses, and their marks stayed, that is evidence (`evidence`). A witness that does not
answer ends the attempt; flaws do not, so that what can be copied is. Invariants (`validate`):
 1 whoever is asked what it holds, and may be a witness, has told its mark before.
 2 evidence comes without flaws, from witnesses whose marks stayed.
 3 at most `node` bookies are added, and no one who failed is a target again.
Sans-IO: `next_step` says what to do, `on_…` what came of it. Not here: calls, compare-and-set.
Called by whoever repairs. Source: R26, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.repair.comparison import (
    ShortGroup,
    find_flaws,
    join_ranges,
    judge_piece,
)
from duramen.core.flexible.repair.evidence import DamageMark, EntryRange, Evidence
from duramen.core.flexible.repair.repair_map import RepairMap, as_serving
from duramen.core.flexible.repair.targets import TargetChoice
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.placement import Candidate
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.copies import Flaw, Holdings, Piece, missing_ranges
from duramen.ids import EntryId, Member, NodeNumber

FLAW_COUNT_MAX: Final = 1_000
"""Ranges that nobody can copy: with more of them the rest of the segment is left for later."""


class AttemptState(enum.Enum):
    """Where an attempt is."""

    MARK = "mark"
    COMPARE = "compare"
    COPY = "copy"
    ADD = "add"
    MARK_AGAIN = "mark again"
    ENDED = "ended"


class MarkQuestion(NamedTuple):
    """Ask these for their damage marks of the ledger."""

    rows: Sequence[NodesetRow]


class HoldingsQuestion(NamedTuple):
    """Ask these what they hold of a piece, read anew from their disks."""

    piece: Piece
    rows: Sequence[NodesetRow]


class CopyOrder(NamedTuple):
    """`target` shall fetch entries from the sources, tried in their order: one call has runs of
    which each source holds some, since short runs with holders of their own may be many."""

    target: NodesetRow
    ranges: tuple[EntryRange, ...]
    sources: tuple[NodesetRow, ...]


class CopyOrders(NamedTuple):
    """Have entries copied; `map_numbers`: whom copysets may name."""

    orders: Sequence[CopyOrder]
    map_numbers: tuple[NodeNumber, ...]


class RowAddition(NamedTuple):
    """Append a row for this bookie, unless the segment has one of it by now."""

    node: ServingBookie


class AttemptEnd(NamedTuple):
    """Nothing more to do: evidence, or why there is none.

    `flaws`: needed entries that do not satisfy RP. `reason`: what voided the attempt, if anything.
    """

    evidence: Evidence | None
    flaws: Sequence[Flaw] = ()
    reason: str = ""
    lacks_place: bool = False


RepairStep = MarkQuestion | HoldingsQuestion | CopyOrders | RowAddition | AttemptEnd


class RepairAttempt:
    """One attempt.

    Args:
        segment: CLOSED, as it was read after a sync.
        needed: ranges of what is needed of it, ascending.
        candidates: bookies that take new data and keep envelopes.
        piece_entry_count: entries that are compared in one go.
        moved: the row that a rebalance takes out, and `taker` to whom.
    """

    def __init__(
        self,
        segment: FlexibleSegment,
        needed: Sequence[EntryRange],
        view: ClusterView,
        candidates: Sequence[Candidate],
        *,
        piece_entry_count: int,
        moved: NodeNumber | None = None,
        taker: Member | None = None,
    ) -> None:
        assert segment.is_closed and piece_entry_count > 0, segment
        self.state = AttemptState.MARK
        self.copied_order_count = 0
        self._needed = EntryRanges(needed)
        self._view, self._candidates = view, candidates
        self._moved, self._taker = moved, taker
        self._version = segment.nodeset_version
        self._pieces = list(_cut(self._needed, piece_entry_count))
        self._piece_index = 0
        self._marks: dict[NodeNumber, DamageMark] = {}
        self._found: dict[NodeNumber, Holdings] = {}
        self._asked: tuple[NodesetRow, ...] = ()
        self._orders: list[CopyOrder] = []
        self._failed: set[NodeNumber] = set()
        self._added_count = 0
        self._addition: ServingBookie | None = None
        self._flaws: list[Flaw] = []
        self._end: AttemptEnd | None = None
        self._lacks_place = False
        self._map = RepairMap(segment, view, moved)
        self._invite_taker()

    @property
    def segment(self) -> FlexibleSegment:
        """As it was read last, with the rows that were added."""
        return self._map.segment

    @property
    def going(self) -> tuple[NodesetRow, ...]:
        """Rows that evidence says nothing of, and that are to be taken out."""
        return self._map.going

    # --- What to do ------------------------------------------------------------------------------

    def next_step(self) -> RepairStep:
        """What is to be done now; asked twice it is the same."""
        match self.state:
            case AttemptState.MARK:
                return MarkQuestion([r for r in self._map.witnesses if r.number not in self._marks])
            case AttemptState.COMPARE:
                return HoldingsQuestion(self._piece, self._asked)
            case AttemptState.COPY:
                return CopyOrders(self._orders, tuple(row.number for row in self.segment.nodes))
            case AttemptState.ADD:
                assert self._addition is not None, self
                return RowAddition(self._addition)
            case AttemptState.MARK_AGAIN:
                return MarkQuestion(self._map.witnesses)
            case AttemptState.ENDED:
                assert self._end is not None, self
                return self._end

    @property
    def _piece(self) -> Piece:
        return self._pieces[self._piece_index]

    # --- What came of it -------------------------------------------------------------------------

    def on_marks(
        self,
        marks: Mapping[Member, DamageMark],
        asked_us: int,
        unaware: Collection[Member] = (),
    ) -> None:
        """Nodes told their marks; who is not in it did not, or has another incarnation by now.

        Args:
            asked_us: when they were asked, and not when they answered.
            unaware: who answered, and knows no marks.
        """
        told = {row.number: marks[row.member] for row in self.segment.nodes if row.member in marks}
        silent = [row for row in self._map.witnesses if row.number not in told | self._marks.keys()]
        if self.state is AttemptState.MARK_AGAIN:
            silent = [row for row in self._map.witnesses if row.number not in told]
        old = [row for row in silent if row.member in unaware]
        if old:
            self._give_up(f"{_list(old)} knows no damage marks: its version is too old")
        elif silent:
            self._give_up(f"{_list(silent)} did not answer")
        elif not self.segment.nodes:
            self._give_up("nobody is in the map")
        elif self.state is AttemptState.MARK:
            self._marks.update({n: mark for n, mark in told.items() if n not in self._marks})
            self._begin_piece()
        else:
            self._conclude(told, asked_us)

    def on_holdings(self, found: Mapping[Member, Holdings]) -> None:
        """Those who were asked told what they hold; who is not in it did not."""
        assert self.state is AttemptState.COMPARE, self
        told = {row.number: found[row.member] for row in self._asked if row.member in found}
        silent = [r for r in self._asked if r in self._map.witnesses and r.number not in told]
        if silent:
            self._give_up(f"{_list(silent)} did not answer")
            return
        self._found.update(told)
        for order in self._orders:
            # Whatever it was sent: what it has now counts, and who lacks any of it failed.
            expected = [EntryId(e) for first, last in order.ranges for e in range(first, last + 1)]
            if missing_ranges(expected, self._found[order.target.number]):
                self._failed.add(order.target.number)
        self._orders = []
        self._judge()

    def on_copied(self) -> None:
        """The orders were given; what came of them the targets are asked."""
        assert self.state is AttemptState.COPY, self
        self.copied_order_count += len(self._orders)
        targets = {order.target.number: order.target for order in self._orders}
        self._ask(tuple(targets.values()))

    def on_added(self, segment: FlexibleSegment) -> None:
        """The segment has a row of the bookie now, or could get none."""
        assert self.state is AttemptState.ADD and self._addition is not None, self
        if segment.nodeset_version != self._version:
            self._give_up("somebody else changed the map")
            return
        added, self._addition = self._addition, None
        self._map = RepairMap(segment, self._view, self._moved)
        if not any(row.node.bookie == added.bookie for row in self._map.witnesses):
            self._give_up(f"{added.bookie} could not be added")
            return
        self.state = AttemptState.MARK

    # --- Pieces ----------------------------------------------------------------------------------

    def _begin_piece(self) -> None:
        if self._piece_index == len(self._pieces):
            self._end_comparison()
            return
        self._found, self._orders = {}, []
        self._ask(self._map.there)

    def _ask(self, rows: tuple[NodesetRow, ...]) -> None:
        self._asked = rows
        self.state = AttemptState.COMPARE

    def _judge(self) -> None:
        """Copy what is short, add who is wanted for that, or go on with the next piece."""
        piece = self._piece
        needed = [
            EntryId(entry)
            for first, last in self._needed.within(piece.first, piece.last)
            for entry in range(first, last + 1)
        ]
        judged = judge_piece(needed, self._found, self._map)
        choice = TargetChoice(self._map, self._candidates, self._taker)
        flawed = list(judged.hopeless)
        wanted: dict[NodesetRow, list[ShortGroup]] = {}
        for group in judged.short:
            targets = choice.choose(group, self._failed)
            if targets is None and self._add(choice, group):
                return
            if targets is None:
                flawed += group.entries
            else:
                for row in targets:
                    wanted.setdefault(row, []).append(group)
        if wanted:
            self._orders = [
                CopyOrder(row, join_ranges(groups), tuple(choice.list_sources(groups)))
                for row, groups in wanted.items()
            ]
            self.state = AttemptState.COPY
            return
        if flawed:
            self._flaws += find_flaws(flawed, self._found, self._map)
        self._piece_index += 1
        if len(self._flaws) < FLAW_COUNT_MAX:
            self._begin_piece()
        else:
            self._end_comparison()

    def _invite_taker(self) -> None:
        """A rebalance moves copies to who may be in no row yet, although the others would do."""
        taken = [c for c in self._candidates if c.member == self._taker]
        if taken and self.segment.has_room and self._map.find_row(taken[0].member) is None:
            self._added_count += 1
            self._addition = as_serving(taken[0])
            self.state = AttemptState.ADD

    def _add(self, choice: TargetChoice, group: ShortGroup) -> bool:
        """Whether a bookie is to be added first; none is where copies failed that would do."""
        if choice.choose(group) is not None:
            return False
        node = choice.choose_addition(group)
        segment = self.segment
        if node is None or not segment.has_room:
            self._lacks_place = True
            return False
        if self._added_count >= segment.replication.node:
            return False
        self._added_count += 1
        self._addition, self._orders = node, []
        self.state = AttemptState.ADD
        return True

    # --- The end ---------------------------------------------------------------------------------

    def _end_comparison(self) -> None:
        if self._flaws:
            self._finish(AttemptEnd(None, tuple(self._flaws), "", self._lacks_place))
        else:
            self.state = AttemptState.MARK_AGAIN

    def _conclude(self, told: Mapping[NodeNumber, DamageMark], asked_us: int) -> None:
        witnesses = self._map.witnesses
        changed = [row for row in witnesses if told[row.number] != self._marks[row.number]]
        if changed:
            self._give_up(f"{_list(changed)} may have lost what it told before")
            return
        self._finish(
            AttemptEnd(
                Evidence(
                    self._version,
                    self.segment.replication,
                    self._map.list_places(),
                    tuple(self._needed.list_ranges()),
                    asked_us,
                )
            )
        )

    def ask_again(self) -> None:
        """The evidence is not fresh any more: ask the witnesses for their marks once more."""
        assert self._end is not None and self._end.evidence is not None, self
        self._end = None
        self.state = AttemptState.MARK_AGAIN

    def _give_up(self, reason: str) -> None:
        self._finish(AttemptEnd(None, (), reason))

    def _finish(self, end: AttemptEnd) -> None:
        self._end = end
        self.state = AttemptState.ENDED

    def validate(self) -> None:
        """Assert the invariants."""
        if self.state is AttemptState.COMPARE:
            asked = [row for row in self._asked if row in self._map.witnesses]
            assert all(row.number in self._marks for row in asked), f"1: {self}"
        if self._end is not None and self._end.evidence is not None:
            assert not self._flaws and not self._end.flaws, f"2: {self}"
            assert self._end.evidence.witnesses <= self._marks.keys(), f"2: {self}"
        assert self._added_count <= self.segment.replication.node, f"3: {self}"
        assert all(order.target.number not in self._failed for order in self._orders), f"3: {self}"

    def __repr__(self) -> str:
        return (
            f"<repair of {self.segment.log_id}.e{self.segment.epoch} {self.state.value} "
            f"piece={self._piece_index}/{len(self._pieces)} flaws={len(self._flaws)} "
            f"going={[row.number for row in self.going]}>"
        )


def _cut(needed: EntryRanges, entry_count: int) -> Iterator[Piece]:
    """Pieces that span so many entries at most; each begins and ends with a needed one."""
    following = needed.list_ranges()[0][0] if needed else None
    while following is not None:
        parts = needed.within(following, following + entry_count - 1)
        end = parts[-1][1]
        yield Piece(following, end)
        rest = needed.within(end + 1, needed.last())
        following = rest[0][0] if rest else None


def _list(rows: Collection[NodesetRow]) -> str:
    return ", ".join(row.node.bookie for row in rows)
