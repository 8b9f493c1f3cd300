"""Reads segments' metadata from both places, the metadata store and the metadata log, as one.

Nothing is concluded from a node that is missing: it may have moved, or been given up, a moment ago.
So the log node is read again, synced, and says where to look; and if the metadata log was trimmed
above where that version says its records begin, or the node should be there and is not, it is read
once more. `SegmentLookup` is for one epoch, `ListingLookup` for all of a log. Both say what they
want next (`wanted`), are told what was read, and end with `result`. A lookup that meets changes all
the time gives up and says that nothing is known: its caller may try again, and may not conclude.

Used by readers, tools and audits. Source: docs/protocol/metadata-logs.md "Reading", R4.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import (
    PlacedRecord,
    SegmentListing,
    Whereabouts,
    find_counting,
    join,
    whereabouts_of,
)
from duramen.ids import Epoch

LOOK_COUNT_MAX: Final = 16
"""Times that the log node is read for one lookup: each but the first because something moved."""


class LookupStep(enum.Enum):
    """What a lookup wants to be told next."""

    LOG = "log"
    """The log node, read after a sync → `on_log`."""
    NODE = "node"
    """The segment node of the epoch → `on_node`."""
    NODES = "nodes"
    """The segment nodes that are there, and each that `list_stored` names → `on_nodes`."""
    RECORDS = "records"
    """Records from `first_lsn` to `lsn` of the log node → `on_records`."""
    NOTHING = "nothing"
    """It has ended."""


class Unreadable(enum.Enum):
    """Why nothing is known. Never a reason to take anything for absent."""

    NO_RECORD = "its metadata have moved, and no record of them can be found"
    NO_NODE = "its node is missing, and nothing says why"
    TOO_MANY_CHANGES = "the log changed all the time while it was read"
    NO_LOG = "the log has no node"


class SegmentLookup:
    """The metadata of one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.wanted = LookupStep.NODE
        self.log: LogNode | None = None
        """The version that decided, once one was read."""

        self.result: AnySegment | Whereabouts | Unreadable | None = None
        """Where it has ended: the segment, or GIVEN_UP or NOT_YET by `log`, or nothing known."""

        self._look_count = 0
        self._is_stored = False

    def on_node(self, segment: AnySegment | None) -> None:
        """The segment's node, or that there is none."""
        assert self.wanted is LookupStep.NODE, self.wanted
        if segment is not None:
            self._end(segment)
        else:
            self._look()

    def on_log(self, log: LogNode | None) -> None:
        """The log node as it is now."""
        assert self.wanted is LookupStep.LOG, self.wanted
        if log is None:
            return self._end(Unreadable.NO_LOG)
        is_same = self.log == log
        self.log = log
        where = whereabouts_of(log, self.epoch)
        if where is Whereabouts.MOVED:
            self.wanted = LookupStep.RECORDS
        elif where is not Whereabouts.STORED:
            return self._end(where)
        elif is_same and self._is_stored:
            # Asked for before and after, and nothing has changed: it is nowhere.
            return self._end(Unreadable.NO_NODE)
        else:
            self.wanted = LookupStep.NODE
        self._is_stored = where is Whereabouts.STORED
        return None

    def on_records(self, records: Sequence[PlacedRecord] | None) -> None:
        """Records as `log` asks for them; None: the metadata log was trimmed above its first."""
        assert self.wanted is LookupStep.RECORDS and self.log is not None, self.wanted
        if records is None:
            return self._look()
        found = find_counting(self.log, records).get(self.epoch)
        return self._end(Unreadable.NO_RECORD if found is None else found.segment)

    def _look(self) -> None:
        self._look_count += 1
        if self._look_count > LOOK_COUNT_MAX:
            self._end(Unreadable.TOO_MANY_CHANGES)
        else:
            self.wanted = LookupStep.LOG

    def _end(self, result: AnySegment | Whereabouts | Unreadable) -> None:
        self.wanted, self.result = LookupStep.NOTHING, result


class ListingLookup:
    """The metadata of all epochs of a log that live."""

    def __init__(self) -> None:
        self.wanted = LookupStep.LOG
        self.log: LogNode | None = None
        self.result: SegmentListing | Unreadable | None = None
        self._nodes: Mapping[Epoch, AnySegment] = {}
        self._look_count = 1
        self._before: LogNode | None = None

    def list_stored(self) -> range:
        """Epochs whose nodes are to be read by name: no listing says that one is not there."""
        assert self.log is not None
        first = max(self.log.first_live_epoch, self.log.metadata.through + 1)
        return range(first, self.log.next_epoch)

    def on_log(self, log: LogNode | None) -> None:
        """The log node as it is now."""
        assert self.wanted is LookupStep.LOG, self.wanted
        self.log = log
        if log is None:
            self._end(Unreadable.NO_LOG)
        else:
            self.wanted = LookupStep.NODES

    def on_nodes(self, nodes: Mapping[Epoch, AnySegment]) -> None:
        """The segment nodes that are there."""
        assert self.wanted is LookupStep.NODES and self.log is not None, self.wanted
        self._nodes = nodes
        if self.log.metadata.through >= self.log.first_live_epoch:
            self.wanted = LookupStep.RECORDS
        else:
            self._join(())

    def on_records(self, records: Sequence[PlacedRecord] | None) -> None:
        """Records as `log` asks for them; None: the metadata log was trimmed above its first."""
        assert self.wanted is LookupStep.RECORDS and self.log is not None, self.wanted
        if records is None:
            self._look()
        else:
            self._join(records)

    def _join(self, records: Sequence[PlacedRecord]) -> None:
        assert self.log is not None
        listing = join(self.log, self._nodes, records)
        if listing is not None:
            self._end(listing)
        elif self._before == self.log:
            self._end(Unreadable.NO_NODE)
        else:
            self._look()

    def _look(self) -> None:
        self._before = self.log
        self._look_count += 1
        if self._look_count > LOOK_COUNT_MAX:
            self._end(Unreadable.TOO_MANY_CHANGES)
        else:
            self.wanted = LookupStep.LOG

    def _end(self, result: SegmentListing | Unreadable) -> None:
        self.wanted, self.result = LookupStep.NOTHING, result
