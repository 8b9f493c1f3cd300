"""Metadata of one flexible segment: an immutable value, and the only ways in which it may change.

Its entries lie on the nodes of its map: N(e), the guests that recovery took in, and the nodes that
repair added. What is true of striped segments as well is in `core.segment_base`.
Invariants, beside 4, 5 and 7 to 9 there (checked by `validate`):
 10 rows rise by number, below `next_number` ≤ 65,535; at most 256 of them; each weight is > 0.
 11 each incarnation of a bookie has one row, and within N(e) each bookie has one.
 12 0 < `own_count`, and `own_count` + `guest_count` ≤ `next_number`.
 13 not CLOSED: every number given has its row, none is repair's; OPEN has no guests.
 14 not CLOSED: N(e) satisfies RP, nothing is proved, and `nodeset_version` is 0.
 15 missing records are among those of the totals: before CLOSED there are none.
 16 the modes are known ones.
Not here: what a change may do to the version before it (`segment_changes`).
Encoded by `wire.metadata_json`. Source: R22–R26, docs/protocol/flexible.md "The segment node".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.placement.room import Rack
from duramen.core.segment import Segment
from duramen.core.segment_base import SegmentBase, SegmentState, Totals
from duramen.ids import EntryId, Epoch, LogId, Member, NodeNumber

ROWS_MAX: Final = 256
"""More would make the node too large: repair refuses, and says so."""
NEXT_NUMBER_MAX: Final = 0xFFFF
"""Numbers have 16 bits; the last one is never given."""


@dataclass(frozen=True, slots=True)
class FlexibleSegment(SegmentBase):
    """The metadata of a flexible segment."""

    replication: ReplicationProperty
    """RP, and the extras of a wave, which are no part of it."""

    nodes: tuple[NodesetRow, ...]
    """Its map: who may hold entries. Repair adds rows and takes them out."""

    _: KW_ONLY
    own_count: int
    """N(e) is the rows whose number is below it: R22 and R23 count these alone."""

    guest_count: int = 0
    """The next so many numbers are guests: bookies that recovery wrote back to (R24)."""

    next_number: int
    """Numbers were given up to here; none is used twice."""

    nodeset_version: int = 0
    """How often rows were taken out, or places or RP changed (R26)."""

    is_proved: bool = False
    """Every copy that RP asks for was compared, by acknowledgements or by the audit (R9)."""

    missing_record_count: int = 0
    """Records of holes and losses, and the room that an accepted loss left behind the end."""

    @classmethod
    def opened(
        cls,
        log_id: LogId,
        epoch: Epoch,
        replication: ReplicationProperty,
        nodes: Sequence[ServingBookie],
        *,
        ack_mode: str,
        placement: str,
        created_unix_ms: int,
        nonce: str,
    ) -> FlexibleSegment:
        """The OPEN segment of a new epoch: its nodes are numbered in their order."""
        rows = tuple(NodesetRow(NodeNumber(number), node) for number, node in enumerate(nodes))
        return cls(
            log_id,
            epoch,
            replication,
            rows,
            own_count=len(rows),
            next_number=len(rows),
            ack_mode=ack_mode,
            placement=placement,
            created_unix_ms=created_unix_ms,
            nonce=nonce,
        ).validated()

    # --- The map ---------------------------------------------------------------------------------

    @property
    def own_nodes(self) -> tuple[NodesetRow, ...]:
        """N(e); in a CLOSED segment those of it that were not taken out."""
        return tuple(row for row in self.nodes if row.number < self.own_count)

    @property
    def members(self) -> tuple[Member, ...]:
        """Of N(e)."""
        return tuple(row.member for row in self.own_nodes)

    def list_holders(self, entry: EntryId) -> tuple[Member, ...]:
        """All nodes of the map: copysets are no evidence (ADR 0028)."""
        return tuple(row.member for row in self.nodes)

    def end_of_place(self, first: EntryId, last: EntryId) -> EntryId:
        """Any node may have any entry."""
        return last

    def is_sealed_by(self, members: Collection[Member]) -> bool:
        """Whether they meet each set of N(e) that satisfies RP (R23)."""
        own = self.own_nodes
        sealed = [row.node for row in own if row.member in members]
        return self.replication.is_covered_by(sealed, [row.node for row in own])

    @property
    def guests(self) -> tuple[NodesetRow, ...]:
        """Those that recovery took in, as far as they were not taken out."""
        end = self.own_count + self.guest_count
        return tuple(row for row in self.nodes if self.own_count <= row.number < end)

    @property
    def has_room(self) -> bool:
        """Whether one more node can be taken in."""
        return len(self.nodes) < ROWS_MAX and self.next_number < NEXT_NUMBER_MAX

    def find_row(self, number: NodeNumber) -> NodesetRow | None:
        """The row with this number; None: it was never given, or its node was taken out."""
        return next((row for row in self.nodes if row.number == number), None)

    def find_member(self, member: Member) -> NodesetRow | None:
        """The row of this incarnation of a bookie."""
        return next((row for row in self.nodes if row.member == member), None)

    def with_guest(self, node: ServingBookie, nonce: str) -> FlexibleSegment:
        """A bookie that is no node, before recovery writes back to it (R24)."""
        assert self.state is SegmentState.IN_RECOVERY, self
        return replace(self, guest_count=self.guest_count + 1)._with_row(node, nonce)

    def with_added(self, node: ServingBookie, nonce: str) -> FlexibleSegment:
        """A bookie that is no node, before repair copies to it (R26)."""
        assert self.is_closed, self
        return self._with_row(node, nonce)

    def _with_row(self, node: ServingBookie, nonce: str) -> FlexibleSegment:
        assert self.has_room, self
        rows = (*self.nodes, NodesetRow(NodeNumber(self.next_number), node))
        return replace(self, nodes=rows, next_number=self.next_number + 1, nonce=nonce).validated()

    def without_node(self, number: NodeNumber, nonce: str) -> FlexibleSegment:
        """A node taken out: each entry satisfies RP at the others (R26, the caller's predicate)."""
        rows = tuple(row for row in self.nodes if row.number != number)
        assert len(rows) < len(self.nodes), (number, self)
        return self._with_map(rows, self.replication, nonce)

    def with_locations(self, places: Mapping[NodeNumber, Rack], nonce: str) -> FlexibleSegment:
        """Nodes that lie elsewhere than was thought: each entry satisfies RP there (R26)."""
        assert all(self.find_row(number) for number in places), (places, self)
        rows = tuple(
            replace(row, node=replace(row.node, **places[row.number]._asdict()))
            if row.number in places
            else row
            for row in self.nodes
        )
        assert rows != self.nodes, (places, self)
        return self._with_map(rows, self.replication, nonce)

    def with_property(self, replication: ReplicationProperty, nonce: str) -> FlexibleSegment:
        """Another RP, which each entry satisfies at the nodes of the map (R26)."""
        assert replication != self.replication, self
        assert replication.extras == self.replication.extras, "extras are those of the claim"
        return self._with_map(self.nodes, replication, nonce)

    def _with_map(
        self, rows: tuple[NodesetRow, ...], replication: ReplicationProperty, nonce: str
    ) -> FlexibleSegment:
        """Readers, repair and the audit judge by another map or RP from now on."""
        assert self.is_closed, self
        return replace(
            self,
            nodes=rows,
            replication=replication,
            nodeset_version=self.nodeset_version + 1,
            nonce=nonce,
        ).validated()

    # --- The end ---------------------------------------------------------------------------------

    def closed_by_owner(
        self,
        *,
        last_entry: EntryId,
        totals: Totals,
        start_seq_num: int,
        completed_unix_ms: int,
        nonce: str,
    ) -> FlexibleSegment:
        """CLOSED at `last_entry` (`NOTHING` if empty), every entry complete: proved (R9)."""
        assert self.state is SegmentState.OPEN, self
        return replace(self, is_proved=True)._ended(
            last_entry=last_entry,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
            holes=(),
        )

    def closed_by_recovery(
        self,
        *,
        last_entry: EntryId,
        totals: Totals,
        start_seq_num: int,
        completed_unix_ms: int,
        nonce: str,
        holes: tuple[tuple[EntryId, EntryId], ...] = (),
        lost: tuple[tuple[EntryId, EntryId], ...] = (),
        missing_record_count: int = 0,
    ) -> FlexibleSegment:
        """CLOSED at `last_entry`, not proved; N(e) and the guests are its map (R24).

        Args:
            totals: with the missing records.
            lost: absences that rest on incarnations which were accepted as lost.
        """
        assert self.state is SegmentState.IN_RECOVERY, self
        return replace(self, lost=lost, missing_record_count=missing_record_count)._ended(
            last_entry=last_entry,
            totals=totals,
            start_seq_num=start_seq_num,
            completed_unix_ms=completed_unix_ms,
            nonce=nonce,
            holes=holes,
        )

    def with_lost(
        self, ranges: Collection[tuple[int, int]], missing_record_count: int, nonce: str
    ) -> FlexibleSegment:
        """Entries recorded as lost, besides those that are: for repair, of a CLOSED segment.

        Args:
            missing_record_count: with the records of these ranges; totals have them already.
        """
        assert self.is_closed and missing_record_count >= self.missing_record_count, self
        lost = self._join_lost(ranges)
        return replace(
            self, lost=lost, missing_record_count=missing_record_count, nonce=nonce
        ).validated()

    def with_proved(self, nonce: str) -> FlexibleSegment:
        """The audit compared every copy that RP asks for (R9)."""
        assert self.is_closed, self
        return replace(self, is_proved=True, nonce=nonce).validated()

    # --- Invariants ------------------------------------------------------------------------------

    def _validate_placing(self) -> None:
        """Invariants 10 to 16."""
        numbers = [row.number for row in self.nodes]
        assert all(a < b for a, b in itertools.pairwise((-1, *numbers, self.next_number))), (
            f"10: {self}"
        )
        assert len(numbers) <= ROWS_MAX and self.next_number <= NEXT_NUMBER_MAX, f"10: {self}"
        assert all(0 < row.weight < math.inf for row in self.nodes), f"10: {self}"
        assert len({row.member for row in self.nodes}) == len(numbers), f"11: {self}"
        own = self.own_nodes
        assert len({row.node.bookie for row in own}) == len(own), f"11: {self}"
        assert self.own_count > 0 and self.guest_count >= 0, f"12: {self}"
        given_count = self.own_count + self.guest_count
        assert given_count <= self.next_number, f"12: {self}"
        if not self.is_closed:
            assert len(numbers) == given_count == self.next_number, f"13: {self}"
            assert self.state is SegmentState.IN_RECOVERY or not self.guest_count, f"13: {self}"
            assert self.replication.is_satisfied_by(row.node for row in own), f"14: {self}"
            assert not self.is_proved and not self.nodeset_version, f"14: {self}"
        counted = 0 if self.totals is None else self.totals.record_count
        assert self.nodeset_version >= 0, f"14: {self}"
        assert 0 <= self.missing_record_count <= counted, f"15: {self}"
        assert self.ack_mode in {"ordered", "out_of_order"}, f"16: {self}"
        assert self.placement in {"strict", "prefer"}, f"16: {self}"

    def __repr__(self) -> str:
        rows = " ".join(f"{row.number}:{row.member}" for row in self.nodes)
        counts = f"{self.own_count}+{self.guest_count}/{self.next_number}"
        return self._describe(f"flexible v{self.nodeset_version} {counts} {rows}")


AnySegment = Segment | FlexibleSegment
"""What a segment's node may be."""
