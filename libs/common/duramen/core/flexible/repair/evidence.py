"""What one attempt has shown of a flexible segment, and the changes of its node that this allows.

Evidence is: every needed entry satisfied RP at the witnesses, by what was read from their disks in
one attempt, and none of them lost anything of the ledger from before its first reading to the last
question. It says nothing of the other rows, so these may go. It counts for the map that it was
found with, told by `nodeset_version`, as the changes that it allows move that on, and for a moment.

Pure. Not here: reading both nodes after a sync, compare-and-set, the session (drivers). Called by
whoever repairs. Source: R26, docs/protocol/repair.md "Repair of a flexible segment (planned)".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NewType

from duramen.core.entry_ranges import EntryRanges
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
        compared: ranges of all entries that were needed then.
        places: rows whose bookies lie elsewhere than the map says: RP holds by these places, so the
            map gets them before anything else rests on it.
        asked_us: when the witnesses were asked for their marks again.
    """

    nodeset_version: int
    witnesses: frozenset[NodeNumber]
    compared: tuple[EntryRange, ...]
    places: Mapping[NodeNumber, Rack]
    asked_us: int

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

    def take_out(
        self,
        segment: FlexibleSegment,
        needed: Collection[EntryRange],
        number: NodeNumber,
        nonce: str,
    ) -> FlexibleSegment | None:
        """The segment without a row that is no witness; None: that may not be, or is so already."""
        if number in self.witnesses or segment.find_row(number) is None or self.places:
            return None
        return segment.without_node(number, nonce) if self.holds(segment, needed) else None

    def prove(
        self, segment: FlexibleSegment, needed: Collection[EntryRange], nonce: str
    ) -> FlexibleSegment | None:
        """The segment proved; None: it is, or that may not be said."""
        if segment.is_proved or self.places or not self.holds(segment, needed):
            return None
        return segment.with_proved(nonce)

    def relocate(
        self, segment: FlexibleSegment, needed: Collection[EntryRange], nonce: str
    ) -> FlexibleSegment | None:
        """The segment with rows where their bookies are; None: no row moved, or it may not be."""
        if not self.places or not self.holds(segment, needed):
            return None
        return segment.with_locations(self.places, nonce)

    def after(self, changed: FlexibleSegment) -> Evidence:
        """The same for the map that a change of this evidence made, or another one like it."""
        places = {
            number: place
            for number, place in self.places.items()
            if (row := changed.find_row(number)) is not None and row.node.place != place
        }
        return replace(self, nodeset_version=changed.nodeset_version, places=places)

    def adopt(self, segment: FlexibleSegment, number: NodeNumber | None) -> Evidence | None:
        """The same after a change by whomever, or of unknown outcome: a row that was taken out, or
        (None) the places.

        Each change of the map moves `nodeset_version` by one: if it is one higher, and this is so,
        nothing else was changed. None: the evidence says nothing of this map.
        """
        if segment.nodeset_version != self.nodeset_version + 1:
            return None
        after = self.after(segment)
        is_so = not after.places if number is None else segment.find_row(number) is None
        return after if is_so else None
