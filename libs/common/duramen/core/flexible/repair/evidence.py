"""What one attempt has shown of a flexible segment, and the changes of its node that this allows.

Evidence is: every needed entry satisfied RP at the witnesses, by what was read from their disks in
one attempt, and none of them lost anything of the ledger from before its first reading to the last
question. It says nothing of the other rows, so these may go. It counts for the map that it was
found with, told by `nodeset_version`, as the changes that it allows move that on, and for a moment.

Pure. Not here: reading both nodes after a sync, compare-and-set, the session (drivers). Called by
whoever repairs. Source: R26, docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NewType

from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.placement.room import Rack
from duramen.ids import EntryId, NodeNumber
from duramen.units import SECOND

DamageMark = NewType("DamageMark", int)
"""Another one when something of a ledger that was durable at a bookie is not any more."""

FRESH_US: Final = 2 * SECOND
"""How old the last question may be when a change is sent: who slept longer asks again."""

EntryRange = tuple[EntryId, EntryId]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one attempt has shown.

    Args:
        nodeset_version: of the map that it was found with.
        wanted: RP, by which the attempt judged.
        places: of each witness, where it was taken to be: the map gets these places before
            anything else rests on them.
        compared: ranges of all entries that were needed then.
        asked_us: when the witnesses were asked for their marks again.
    """

    nodeset_version: int
    wanted: ReplicationProperty
    places: Mapping[NodeNumber, Rack]
    compared: tuple[EntryRange, ...]
    asked_us: int

    @property
    def witnesses(self) -> frozenset[NodeNumber]:
        """Who holds everything that is needed."""
        return frozenset(self.places)

    def is_fresh(self, now_us: int) -> bool:
        """Whether a change may be sent without asking for the marks again."""
        return 0 <= now_us - self.asked_us <= FRESH_US

    def refreshed(self, asked_us: int) -> Evidence:
        """The witnesses were asked again, and have the marks that they had."""
        assert asked_us >= self.asked_us, (asked_us, self)
        return replace(self, asked_us=asked_us)

    def holds(self, segment: FlexibleSegment, needed: Collection[EntryRange]) -> bool:
        """Whether it still says something of the segment as it stands in its node.

        Args:
            needed: ranges of what is needed now.
        """
        left = EntryRanges(needed)
        for first, last in self.compared:
            left.remove(first, last)
        is_same_map = segment.nodeset_version == self.nodeset_version
        return segment.is_closed and is_same_map and not left

    def relocate(
        self, segment: FlexibleSegment, needed: Collection[EntryRange], nonce: str
    ) -> FlexibleSegment | None:
        """The segment with witnesses where they are; None: they are there, or it may not be."""
        if self._is_judged_by(segment) or not self.holds(segment, needed):
            return None
        moved = {
            number: place
            for number, place in self.places.items()
            if (row := segment.find_row(number)) is not None and row.node.place != place
        }
        return segment.with_locations(moved, nonce)

    def prove(
        self, segment: FlexibleSegment, needed: Collection[EntryRange], nonce: str
    ) -> FlexibleSegment | None:
        """The segment proved; None: it is, or that may not be said."""
        is_shown = self._is_judged_by(segment) and self.holds(segment, needed)
        return segment.with_proved(nonce) if is_shown and not segment.is_proved else None

    def take_out(
        self,
        segment: FlexibleSegment,
        needed: Collection[EntryRange],
        number: NodeNumber,
        nonce: str,
    ) -> FlexibleSegment | None:
        """The segment without a row that is no witness; None: that may not be, or is so already."""
        if number in self.places or segment.find_row(number) is None:
            return None
        is_shown = self._is_judged_by(segment) and self.holds(segment, needed)
        return segment.without_node(number, nonce) if is_shown else None

    def after(self, changed: FlexibleSegment) -> Evidence:
        """The same for the map that a change of this evidence made."""
        return replace(self, nodeset_version=changed.nodeset_version)

    def adopt(self, segment: FlexibleSegment) -> Evidence | None:
        """The same after one change of the map by whomever, or of unknown outcome.

        If all witnesses are there still, where they were judged to be, that change was of other
        rows, or gave these their places. None: the evidence says nothing of this map.
        """
        is_next = segment.nodeset_version == self.nodeset_version + 1
        return self.after(segment) if is_next and self._is_judged_by(segment) else None

    def _is_judged_by(self, segment: FlexibleSegment) -> bool:
        """Whether the segment has the witnesses, their places and the RP of the attempt."""
        rows = [(segment.find_row(number), place) for number, place in self.places.items()]
        is_placed = all(row is not None and row.node.place == place for row, place in rows)
        return is_placed and segment.replication == self.wanted
